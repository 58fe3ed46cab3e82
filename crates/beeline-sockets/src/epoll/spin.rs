//! The spin of a wait on a set: on its hot lanes, with a look at the kernel now and then, or on the kernel alone.

use core::sync::atomic::Ordering::Relaxed;

use super::events::EPOLLET;
use super::limits::{LOOK_TICKS_MAX, SPIN_LOOK_TICKS};
use super::readiness::readiness;
use super::set::{Entry, NIL};
use super::wait::Call;
use crate::io;
use crate::wait::{Look, Patience, Spun, clients_are_near, peers_are_near, ticks};

/// Looks at hot lanes for which a spin takes the set's lock once; then it looks at the clock. So many take a
/// microsecond or two, however long the list is: a spinner that takes longer must not be mistaken for one that was
/// kept from running.
const LOOKS_PER_LOCK: u32 = 48;

/// Ticks between two looks at the kernel of a spin on hot lanes, if a look takes `price`: they shall not be what it
/// does. Where each looked at once, two ends that both look would do nothing but wait for each other's looks.
fn spin_pause(price: u64) -> u64 {
    price.saturating_mul(8).clamp(SPIN_LOOK_TICKS, LOOK_TICKS_MAX)
}

impl Call {
    /// Whether the connection that was told last has a peer that a spin would keep from running: by what both have
    /// shown if the spin `begins`, as most that pay are over within its first looks. The set is locked.
    pub(super) fn peer_is_near(&self, begins: bool) -> bool {
        let last = self.set.find(self.set.hot_last.load(Relaxed)).and_then(|entry| entry.desc());
        match last.filter(|desc| desc.is_lane()) {
            Some(desc) if begins => desc.peer_was_near(),
            Some(desc) => desc.peer_is_near(),
            None => peers_are_near(),
        }
    }

    /// A sleep has ended, after a spin or instead of one.
    pub(super) fn slept(&self, patience: &Patience) {
        if self.was_a_look {
            // It tells nothing of spins.
            return;
        }
        let guard = self.set.lock.lock();
        let near = self.peer_is_near(false);
        guard.end();
        if !near {
            self.set.budget().slept(patience, self.ours);
        }
    }

    fn is_cold(&self) -> bool {
        self.set.find(self.set.hot_first.load(Relaxed)).is_none()
    }

    /// Looks again and again until something is to be told, or the budget is spent.
    pub(super) fn spin(&mut self, patience: &mut Patience) -> Spun {
        let set = self.set;
        let mut cold = self.is_cold();
        let budget = set.budget_anew();
        // What put off its look although the set spins did so for a peer that is near.
        let for_near = self.owes_look && budget.is_open();
        if set.is_the_kernels() || set.hands.need_cpu() || for_near || cold && clients_are_near() {
            budget.give_way(patience);
            return Spun::Nothing;
        }
        let mut place = NIL;
        let mut looked = ticks();
        let mut pause = spin_pause(set.look_price.load(Relaxed));
        let mut watches = 0u32;
        budget.spin_by(1, patience, || {
            // A set with nothing hot spins on the kernel alone: a bell or a client that comes within the budget is
            // spared a sleep.
            cold = cold && self.is_cold();
            let now = ticks();
            let owed = self.owes_look;
            if cold || owed || now.wrapping_sub(looked) > pause {
                // What goes wrong here is found again by the look that follows a spin.
                let news = self.look().is_err() || self.filled != 0;
                looked = ticks();
                let price = looked.wrapping_sub(now);
                set.look_price.store(price, Relaxed);
                pause = spin_pause(price);
                return match news {
                    true if owed => Look::Before,
                    true if self.ours => Look::News,
                    true => Look::Foreign,
                    false => Look::Asked,
                };
            }
            watches = watches.saturating_add(1);
            self.watch(&mut place, watches)
        })
    }

    /// Looks at some of the hot list, from `place` on and around, and reports what it finds. It is the spin's look with
    /// this number, from 1.
    fn watch(&mut self, place: &mut i32, number: u32) -> Look {
        let guard = self.set.lock.lock();
        let look = match number {
            1 | 2 if self.peer_is_near(number == 1) => Look::Near,
            _ if self.watch_locked(place) => Look::News,
            _ => Look::Nothing,
        };
        guard.end();
        look
    }

    #[inline]
    fn watch_locked(&mut self, place: &mut i32) -> bool {
        let set = self.set;
        // What is not hot any more has no successor to go on with.
        let hot = |fd| set.find(fd).filter(|entry| entry.heat.is_hot());
        let mut at = hot(*place);
        let mut looks = 0..LOOKS_PER_LOCK;
        while looks.next().is_some() {
            let Some(entry) = at else {
                core::hint::spin_loop();
                *place = set.hot_first.load(Relaxed);
                at = hot(*place);
                continue;
            };
            let report = readiness(set, entry, 0);
            if report != 0 {
                return self.found(*place, entry, report);
            }
            match entry.heat.next() {
                // The only one is looked at again and again.
                NIL if *place == set.hot_first.load(Relaxed) => match entry.desc() {
                    // Room does not show at the front.
                    Some(desc) if desc.is_lane() && !entry.asks_for_room() => io::rest_at(desc, &mut looks),
                    _ => core::hint::spin_loop(),
                },
                next => (*place, at) = (next, hot(next)),
            }
        }
        false
    }

    /// Reports what a spin has found, and what else there is. Where edges count, the count comes before the judgement.
    #[inline]
    fn found(&mut self, fd: i32, entry: &Entry, report: u32) -> bool {
        if self.set.hot_first.load(Relaxed) == self.set.hot_last.load(Relaxed)
            && let Some(desc) = entry.desc().filter(|_| entry.events.load(Relaxed) & EPOLLET == 0)
        {
            self.take_number();
            self.report(fd, entry, desc, None, report);
        } else {
            self.harvest_locked();
        }
        true
    }
}
