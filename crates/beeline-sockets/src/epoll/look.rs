//! When a wait asks the kernel without waiting (rule 7 of [`super`]), and what else it looks at then.

use core::sync::atomic::Ordering::Relaxed;

use beeline_stats::Counter;

use super::company;
use super::limits::{BUSY_WAITS, FEW_WAITS, LOOK_TICKS_MAX, LOOK_TICKS_MIN, QUIET_LOOKS};
use super::lying::begin_asking;
use super::readiness::readiness;
use super::set::NIL;
use super::wait::Call;
use crate::desc::Desc;
use crate::wait::ticks;
use crate::{Errno, kernel, stats};

impl Call {
    /// Asks the kernel, or owes that look if the wait `may_owe` it and will most likely sleep. Whether it has asked.
    #[inline(never)]
    pub(super) fn begins_with_look(&mut self, may_owe: bool) -> Result<bool, Errno> {
        self.owes_look = may_owe && self.will_sleep();
        if !self.owes_look {
            self.look()?;
        }
        Ok(!self.owes_look)
    }

    /// Whether this wait is most likely to sleep: the kernel has had nothing of its own to tell for a while, the set
    /// does not spin, or only for a peer that is near, and no hot member has anything to report, as far as a few looks
    /// tell. Where nothing is hot, nothing is armed in vain: then all that counts is whether the kernel had something
    /// to tell at once when it was asked last.
    fn will_sleep(&mut self) -> bool {
        let set = self.set;
        let finds = if set.hot_first.load(Relaxed) == NIL {
            set.tells_at_once.load(Relaxed)
        } else {
            set.busy_waits.load(Relaxed) < FEW_WAITS
        };
        if finds || set.is_the_kernels() {
            return !finds;
        }
        let _guard = set.lock.lock();
        if set.budget().is_open() && !self.peer_is_near(false) {
            return false;
        }
        let mut fd = set.hot_first.load(Relaxed);
        for _ in 0..QUIET_LOOKS {
            match set.find(fd) {
                None => {
                    self.take_number();
                    return true;
                }
                // A set inside is asked by a system call, and once is enough.
                Some(entry) if entry.desc().is_some_and(Desc::is_lane) && readiness(set, entry, 0) == 0 => {
                    // As a harvest that finds it idle.
                    entry.place.store(0, Relaxed);
                    fd = entry.heat.next();
                }
                Some(_) => return false,
            }
        }
        false
    }

    /// Whether a wait that has something to report should look at the kernel, too.
    pub(super) fn look_is_due(&self) -> bool {
        let waits = self.set.busy_waits.load(Relaxed);
        if waits < BUSY_WAITS {
            self.set.busy_waits.store(waits + 1, Relaxed);
            return true;
        }
        self.kernel_is_due()
    }

    /// Whether the time between two looks of a busy set is over.
    fn kernel_is_due(&self) -> bool {
        ticks().wrapping_sub(self.set.last_look.load(Relaxed)) > self.set.look_ticks.load(Relaxed)
    }

    /// Asks the kernel without waiting.
    pub(super) fn look(&mut self) -> Result<(), Errno> {
        self.owes_look = false;
        if self.set.busy_waits.load(Relaxed) >= BUSY_WAITS {
            stats::count(Counter::EpollKernelLooks, 1);
        }
        self.set.last_look.store(ticks(), Relaxed);
        loop {
            let (filled, room) = (self.filled, self.max - self.filled);
            let parked = self.set.parked.load(Relaxed);
            self.departures = self.set.departed.count();
            let asking = begin_asking(self.epfd, self.set);
            // SAFETY: filled <= max, so the rest of the app's array is writable for that many events.
            let told = unsafe { kernel::epoll_now(self.epfd, self.events.add(filled), room as i32) };
            let heated = told.is_ok_and(|count| count != 0 && self.translate(count));
            self.set.edged.has_asked(asking);
            let count = told?;
            self.set.tells_at_once.store(count != 0, Relaxed);
            let news = self.look_at_company();
            if count == 0 {
                self.set.looked.store(0, Relaxed);
                if !news {
                    self.rest();
                }
            } else if heated || self.own.is_some() {
                self.harvest();
            }
            if news {
                self.harvest();
            }
            // What was parked may have taken the place of what is not.
            if count < room || self.filled != filled || self.set.parked.load(Relaxed) >= parked {
                return Ok(());
            }
        }
    }

    /// Looks at the members that are named the same sleep as one that has rung, perhaps.
    #[inline]
    pub(super) fn look_at_company(&mut self) -> bool {
        let news = company::look(self.set);
        if news {
            // As where a bell has told.
            self.ours = true;
            self.set.look_ticks.store(LOOK_TICKS_MIN, Relaxed);
        }
        news
    }

    /// The kernel had nothing new to tell: it is asked less often.
    pub(super) fn rest(&self) {
        let ticks = self.set.look_ticks.load(Relaxed).saturating_mul(2);
        self.set.look_ticks.store(ticks.clamp(LOOK_TICKS_MIN, LOOK_TICKS_MAX), Relaxed);
    }
}
