//! Waiting on a set.

use core::sync::atomic::Ordering::Relaxed;

use beeline_lane::Armed;
use libc::epoll_event;

use super::behind::{arm_exclusive, is_watched_elsewhere, may_somebody_sleep};
use super::bells::drain_fired;
use super::cool::{cool_behind, cool_entry, cool_for_sleep};
use super::events::{EPOLLET, EPOLLONESHOT};
use super::faults::answer_faults;
use super::limits::{AT_ONCE_TICKS, IDLE_LOOKS};
use super::lying::begin_asking;
use super::nested::any_ready;
use super::order::KernelEvents;
use super::readiness::{readiness, reported};
use super::registration::{EPOLLEXCLUSIVE, pause};
use super::set::set_of;
use super::set::{Asking, Entry, KERNEL_BEGAN, LANES_BEGAN, Marks, NIL, Set};
use super::waker::wake_sleeper;
use crate::app_memory::is_some;
use crate::desc::{Desc, Kind, Pin};
use crate::wait::deadline;
use crate::wait::{Patience, Spun, Woken, let_signals_in, ticks};
use crate::{Errno, Outcome, follow, guards, kernel, table, upkeep};

/// `epoll_wait(2)`.
///
/// # Safety
/// `events` must be writable for `max` events, as for epoll_wait(2).
pub unsafe fn wait(epfd: i32, events: *mut epoll_event, max: i32, timeout_ms: i32) -> Outcome {
    // SAFETY: forwarded from the caller.
    unsafe { pwait(epfd, events, max, timeout_ms, core::ptr::null()) }
}

/// `epoll_pwait(2)`.
///
/// # Safety
/// As for [`wait`]; `mask` must be null or a valid signal set.
pub unsafe fn pwait(epfd: i32, events: *mut epoll_event, max: i32, timeout_ms: i32, mask: *const u8) -> Outcome {
    let deadline = match timeout_ms {
        ..0 => Deadline::Never,
        0 => Deadline::Now,
        _ => Deadline::After(timeout_ms as u64 * 1_000_000),
    };
    // SAFETY: forwarded from the caller.
    unsafe { run(epfd, events, max, deadline, mask) }
}

/// `epoll_pwait2(2)`.
///
/// # Safety
/// As for [`pwait`]; `timeout` must be null or valid.
pub unsafe fn pwait2(
    epfd: i32,
    events: *mut epoll_event,
    max: i32,
    timeout: *const libc::timespec,
    mask: *const u8,
) -> Outcome {
    // SAFETY: null or valid, as the caller guarantees.
    let deadline = match deadline(unsafe { timeout.as_ref() }) {
        Ok(None) => Deadline::Never,
        Ok(Some(0)) => Deadline::Now,
        Ok(Some(at)) => Deadline::At(at),
        Err(errno) => return Outcome::Fail(errno),
    };
    // SAFETY: forwarded from the caller.
    unsafe { run(epfd, events, max, deadline, mask) }
}

/// Until when a call waits. The clock is read only by a call that really waits.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Deadline {
    Never,
    Now,
    After(u64),
    At(u64),
}

/// # Safety
/// As for [`pwait`].
unsafe fn run(epfd: i32, events: *mut epoll_event, max: i32, deadline: Deadline, mask: *const u8) -> Outcome {
    let Some(set) = table::get(epfd).and_then(set_of) else { return Outcome::Kernel };
    if max <= 0 || max as usize > i32::MAX as usize / size_of::<epoll_event>() {
        return Outcome::Kernel;
    }
    if !is_some(events as usize, size_of::<epoll_event>()) {
        // The kernel finds fault only when there is something to report.
        return if any_ready(set, 0) { Outcome::fail(libc::EFAULT) } else { Outcome::Kernel };
    }
    // SAFETY: null or a valid signal set, as the caller guarantees; the kernel's is the first 8 bytes.
    let mask = unsafe { mask.cast::<u64>().as_ref() };
    let mut call = Call::new(epfd, set, events, max as usize);
    match call.wait(deadline, mask) {
        Ok(count) => Outcome::Done(count as isize),
        Err(errno) => Outcome::Fail(errno),
    }
}

/// One call that waits. What begins as zero lies together: each call writes it at once.
pub(super) struct Call {
    pub(super) epfd: i32,
    pub(super) set: &'static Set,
    pub(super) events: *mut epoll_event,
    pub(super) max: usize,
    pub(super) filled: usize,
    /// How many members had left when the kernel was asked last.
    pub(super) departures: u32,
    /// Tells this call's reports from those of others; 0 before the first look at the members.
    pub(super) number: u32,
    /// Whether locks of other sets, around this one, may be held.
    pub(super) is_inside: bool,
    /// Where the kernel's own events stand among the others.
    pub(super) own: Option<KernelEvents>,
    /// Whether there was news of lanes, or of a listener's clients.
    pub(super) ours: bool,
    /// Whether a look at the kernel was due and put off, as nothing was ready: the call's spin or its sleep makes it.
    pub(super) owes_look: bool,
    /// Whether the last sleep was in the place of that look, and found at once what was there.
    pub(super) was_a_look: bool,
    /// As what it asks the kernel, while it sleeps.
    asking: Asking,
    /// Whether the kernel has told of room that there is not, and will do so again at once.
    pub(super) told_in_vain: bool,
    /// Whether somebody may sleep who is not woken by what woke this call: the set is in another one, or a connection
    /// was told that others watch.
    may_be_awaited: bool,
}

impl Call {
    pub(super) fn new(epfd: i32, set: &'static Set, events: *mut epoll_event, max: usize) -> Self {
        Self {
            epfd,
            set,
            events,
            max,
            filled: 0,
            is_inside: false,
            number: 0,
            departures: set.departed.count(),
            own: None,
            ours: false,
            owes_look: false,
            may_be_awaited: set.exposed.load(Relaxed),
            was_a_look: false,
            told_in_vain: false,
            asking: Asking::default(),
        }
    }

    fn wait(&mut self, deadline: Deadline, mask: Option<&u64>) -> Result<usize, Errno> {
        match self.at_once(deadline)? {
            Some(filled) => Ok(filled),
            None => self.eventually(deadline, mask),
        }
    }

    /// The part of a call that does not wait. `None` if it is to wait.
    #[inline]
    fn at_once(&mut self, deadline: Deadline) -> Result<Option<usize>, Errno> {
        let _ = answer_faults(self.set);
        upkeep::look_after();
        let due = self.look_is_due();
        // Where an array became full, the kernel's events and ours begin by turns.
        let crowded = self.set.crowded.load(Relaxed);
        let kernel_begins =
            due && crowded != KERNEL_BEGAN && self.begins_with_look(crowded == 0 && deadline != Deadline::Now)?;
        if !self.owes_look {
            self.harvest();
        }
        let full = self.filled == self.max;
        // What was to sleep and finds something makes up for the look that it put off.
        let now = if due { !self.owes_look || self.filled != 0 } else { self.filled == 0 && deadline == Deadline::Now };
        if !full && !kernel_begins && now {
            self.look()?;
        }
        if full {
            self.set.crowded.store(if kernel_begins { KERNEL_BEGAN } else { LANES_BEGAN }, Relaxed);
        } else if crowded != 0 {
            self.set.crowded.store(0, Relaxed);
        }
        if self.filled == 0 && follow::catch_up() {
            self.look()?;
        }
        if self.filled == 0 && answer_faults(self.set) {
            self.harvest();
        }
        // As in the kernel, a call that does not wait lets no signals in by its mask (`ep_poll`).
        Ok((self.filled != 0 || deadline == Deadline::Now).then(|| self.leave()))
    }

    /// Goes on after a look that found nothing.
    fn eventually(&mut self, deadline: Deadline, mask: Option<&u64>) -> Result<usize, Errno> {
        let mut patience = Patience::until(match deadline {
            Deadline::Never => None,
            Deadline::Now => Some(0),
            Deadline::After(wait_ns) => Some(kernel::now_ns().saturating_add(wait_ns)),
            Deadline::At(at) => Some(at),
        });
        let given = self.epfd;
        let mut held = None;
        loop {
            follow::catch_up();
            if mask.is_none() {
                match self.spin(&mut patience) {
                    Spun::News => {
                        if self.filled == 0 {
                            self.harvest();
                        }
                        if self.filled == 0 {
                            self.look()?;
                        }
                        if self.filled != 0 {
                            return Ok(self.leave());
                        }
                        continue;
                    }
                    Spun::Signal => {
                        if patience.signal().is_some() {
                            self.leave();
                            return Err(Errno(libc::EINTR));
                        }
                    }
                    Spun::Nothing => {}
                }
            }
            // A set that is closed while this call sleeps is kept until the end.
            let pin: &Pin = match &mut held {
                Some(pin) => pin,
                none => none.insert(self.pin().ok_or(Errno(libc::EBADF))?),
            };
            self.set.sleepers.fetch_add(1, Relaxed);
            let slept = pin.while_waiting(|| {
                crate::cancel::undoing(self.set, one_sleeper_less, || self.sleep(&mut patience, mask))
            });
            one_sleeper_less(self.set);
            self.epfd = pin.fd(given);
            self.may_be_awaited |= self.set.exposed.load(Relaxed);
            match slept {
                Some(Woken::Ready(count)) => {
                    self.set.last_look.store(ticks(), Relaxed);
                    self.told_in_vain = false;
                    self.translate(count);
                    self.set.edged.has_asked(self.asking);
                    self.look_at_company();
                    self.harvest();
                    if self.rests(count, &mut patience, pin, mask)? {
                        self.look()?;
                    }
                }
                None => {
                    self.harvest();
                    if self.owes_look && self.filled == self.max {
                        // The kernel's turn is next.
                        self.set.crowded.store(LANES_BEGAN, Relaxed);
                    } else if self.owes_look || self.filled == 0 {
                        self.look()?;
                    }
                }
                Some(Woken::TimedOut) => {
                    self.slept(&patience);
                    return Ok(0);
                }
                // epoll_wait(2) is never restarted after a handler (signal(7)).
                Some(Woken::Signal { .. }) => return Err(Errno(libc::EINTR)),
                Some(Woken::Failed(errno)) => return Err(errno),
            }
            if self.filled != 0 || patience.is_over() {
                return Ok(self.leave());
            }
        }
    }

    /// After a sleep that the kernel ended with so many events: whether the thread has rested, as they were nothing to
    /// tell.
    fn rests(&mut self, count: usize, patience: &mut Patience, pin: &Pin, mask: Option<&u64>) -> Result<bool, Errno> {
        let rested = if self.filled == 0 && self.told_in_vain {
            pin.while_waiting(kernel::sleep_ms);
            true
        } else {
            self.slept(patience);
            count != 0 && self.filled == 0 && pin.while_waiting(|| patience.woke_in_vain())
        };
        if rested && let Some(mask) = mask {
            // The kernel ends a sleep in vain before it lets a signal in.
            pin.while_waiting(|| let_signals_in(mask))?;
        }
        Ok(rested)
    }

    fn pin(&self) -> Option<Pin> {
        let desc = table::get(self.epfd).filter(|desc| set_of(desc).is_some_and(|set| core::ptr::eq(set, self.set)))?;
        guards::pin(self.epfd, desc)
    }

    /// Arms what is hot and sleeps in the kernel. `None` if there was something to report already.
    fn sleep(&mut self, patience: &mut Patience, mask: Option<&u64>) -> Option<Woken> {
        self.asking = begin_asking(self.epfd, self.set);
        if cool_for_sleep(self.epfd, self.set) == Armed::Ready {
            self.set.edged.has_asked(self.asking);
            return None;
        }
        self.departures = self.set.departed.count();
        if self.set.is_the_kernels() {
            patience.count_only_if_open();
        }
        let mask = mask.map_or(core::ptr::null(), core::ptr::from_ref);
        let (epfd, events, max) = (self.epfd, self.events, self.max as i32);
        let began = ticks();
        let woken = patience.sleep_with(|timeout| {
            // SAFETY: `events` is writable for `max` events, as the caller guarantees; `timeout` is this thread's own;
            // `mask` is null or live.
            unsafe { kernel::epoll_sleep(epfd, events, max, timeout, mask) }
        });
        self.was_a_look = core::mem::take(&mut self.owes_look) && ticks().wrapping_sub(began) < AT_ONCE_TICKS;
        self.set.tells_at_once.store(self.was_a_look, Relaxed);
        if self.was_a_look {
            // What comes between waits is better looked for before them: nothing is armed in vain then.
            self.set.busy_waits.store(0, Relaxed);
        }
        if !matches!(woken, Woken::Ready(_)) {
            self.set.edged.has_asked(self.asking);
        }
        Some(woken)
    }

    /// Reports what hot members have to say, as far as there is room. Each is looked at once; those that are
    /// reported go to the end of the list, so that a short array does not starve the rest.
    pub(super) fn harvest(&mut self) {
        let guard = self.set.lock.lock();
        self.harvest_locked();
        guard.end();
    }

    pub(super) fn harvest_locked(&mut self) {
        let set = self.set;
        self.take_number();
        match self.own {
            Some(KernelEvents { count: 1.., .. }) => return self.harvest_many(set.hot_first.load(Relaxed), None),
            _ => self.own = None,
        }
        let mut fd = set.hot_first.load(Relaxed);
        let last = set.hot_last.load(Relaxed);
        if fd == last && self.filled != self.max {
            if let Some(entry) = set.find(fd) {
                self.gather(fd, entry);
            }
            return;
        }
        let mut first: Option<(i32, Option<Marks>, u32)> = None;
        while let Some(entry) = set.find(fd) {
            if self.filled == self.max {
                return;
            }
            let next = if fd == last { NIL } else { entry.heat.next() };
            let marks = (entry.events.load(Relaxed) & EPOLLET != 0).then(|| entry.desc().map(Marks::of)).flatten();
            match readiness(set, entry, 0) {
                0 => self.found_idle(fd, entry),
                // A second harvest of one call.
                _ if entry.call.load(Relaxed) == self.number => {}
                _ if first.is_some() => return self.harvest_many(fd, first.map(|(fd, ..)| fd)),
                report => first = Some((fd, marks, report)),
            }
            fd = next;
        }
        if let Some((fd, marks, report)) = first
            && let Some(entry) = set.find(fd)
            && let Some(desc) = entry.desc()
        {
            self.report(fd, entry, desc, marks.as_ref(), report);
        }
    }

    #[inline]
    pub(super) fn take_number(&mut self) {
        if self.number == 0 {
            self.number = self.set.calls.load(Relaxed).wrapping_add(1).max(1);
            self.set.calls.store(self.number, Relaxed);
        }
    }

    #[inline]
    pub(super) fn gather(&mut self, fd: i32, entry: &Entry) {
        let Some(desc) = entry.desc() else { return };
        let marks = (entry.events.load(Relaxed) & EPOLLET != 0).then(|| Marks::of(desc));
        match readiness(self.set, entry, 0) {
            0 => self.found_idle(fd, entry),
            report => self.report(fd, entry, desc, marks.as_ref(), report),
        }
    }

    /// A look at a hot member was in vain.
    #[inline]
    pub(super) fn found_idle(&mut self, fd: i32, entry: &Entry) {
        entry.place.store(0, Relaxed);
        if entry.heat.look_in_vain() > IDLE_LOOKS {
            entry.heat.reset_idle_looks();
            cool_entry(self.epfd, self.set, fd, entry, 0);
        }
    }

    #[inline]
    pub(super) fn report(&mut self, fd: i32, entry: &Entry, desc: &Desc, marks: Option<&Marks>, report: u32) {
        let set = self.set;
        entry.heat.reset_idle_looks();
        if entry.call.load(Relaxed) == self.number {
            // A second harvest of one call.
            return;
        }
        entry.call.store(self.number, Relaxed);
        reported(set, entry, desc, marks, report);
        self.ours = true;
        self.push(epoll_event { events: report, u64: entry.data.load(Relaxed) });
        let asked = entry.events.load(Relaxed);
        if asked & (EPOLLET | EPOLLONESHOT | EPOLLEXCLUSIVE) == 0 {
            entry.place.store(set.next_place(), Relaxed);
        } else if self.note_told(fd, entry, desc, asked) {
            // It has nothing to tell until the next shot is asked for, which makes it hot again.
            set.told_last.store(fd, Relaxed);
            set.make_cold(entry);
            return;
        }
        if set.hot_last.load(Relaxed) != fd {
            set.make_cold(entry);
            set.make_hot(fd, entry);
        }
    }

    /// Notes of a member that is not told of again as long as it is ready, or not to everybody, that it was told.
    /// Whether that was its one shot.
    #[inline]
    fn note_told(&mut self, fd: i32, entry: &Entry, desc: &Desc, asked: u32) -> bool {
        let is_once = asked & (EPOLLET | EPOLLONESHOT) != 0;
        entry.place.store(if is_once { 0 } else { self.set.next_place() }, Relaxed);
        if asked & EPOLLEXCLUSIVE != 0 {
            self.may_be_awaited |= is_watched_elsewhere(entry);
        }
        if asked & EPOLLONESHOT != 0 {
            if desc.kind() == Kind::Epoll {
                pause(self.epfd, fd, entry);
            }
            drain_fired(self.set, fd, entry);
        }
        asked & EPOLLONESHOT != 0
    }

    pub(super) fn push(&mut self, event: epoll_event) {
        // SAFETY: filled < max wherever this is called: harvest checks, and translate only moves events down.
        unsafe { self.events.add(self.filled).write_unaligned(event) };
        self.filled += 1;
    }

    /// Ends the call.
    #[inline]
    fn leave(&mut self) -> usize {
        if self.may_be_awaited || self.set.sleepers.load(Relaxed) != 0 {
            self.arm_behind();
        }
        self.filled
    }

    /// If others sleep, what stays hot is armed for them.
    #[inline(never)]
    fn arm_behind(&self) {
        if self.may_be_awaited {
            arm_exclusive(self.set, self.number);
        }
        if may_somebody_sleep(self.set) {
            let (armed, untold) = cool_behind(self.epfd, self.set, self.number);
            if untold || armed == Armed::Ready && self.filled == self.max {
                // There was more than this call had room for, or has come since: as the kernel does, wake the next
                // thread.
                wake_sleeper(self.epfd, self.set);
            }
        }
    }
}

/// A sleep is over, or its thread was cancelled in it. In a child that was forked by a handler of the sleeper, nobody
/// is counted.
fn one_sleeper_less(set: &Set) {
    let _ = set.sleepers.fetch_update(Relaxed, Relaxed, |sleepers| sleepers.checked_sub(1));
}
