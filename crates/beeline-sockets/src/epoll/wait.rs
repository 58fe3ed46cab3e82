//! Waiting on a set.

use core::sync::atomic::Ordering::Relaxed;

use beeline_lane::Armed;
use beeline_stats::Counter;
use libc::epoll_event;

use super::control::{WAKER_DATA, disarm_pair, wake_sleeper};
use super::registration::{bury, make_exact, pause, was_parked};
use super::set::{Entry, NIL, Set};
use super::{
    BUSY_WAITS, EPOLLERR, EPOLLHUP, EPOLLIN, EPOLLONESHOT, IDLE_LOOKS, LOOK_TICKS_MAX, LOOK_TICKS_MIN, Marks,
    SPIN_LOOK_TICKS, any_ready, arrivals, attend, cool_behind, cool_entry, cool_set, judge, open_fd, reported, set_of,
};
use crate::app_memory::bogus;
use crate::desc::{Desc, Kind};
use crate::io::{self, Anchor, Next};
use crate::life::relay;
use crate::poll::{deadline, somebody_polls};
use crate::wait::{Patience, Spun, Woken};
use crate::{Errno, Outcome, kernel, meet, stats, table};

/// Looks at hot lanes for which a spin takes the set's lock once; then it looks at the clock. So many take a
/// microsecond or two, however long the list is: a spinner that takes longer must not be mistaken for one that was
/// kept from running.
const LOOKS_PER_LOCK: u32 = 64;

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
    // SAFETY: null or valid by the caller's word.
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
    if bogus(events as usize, size_of::<epoll_event>()) {
        // The kernel finds fault only when there is something to report.
        return if any_ready(set, 0) { Outcome::fail(libc::EFAULT) } else { Outcome::Kernel };
    }
    // SAFETY: null or a valid signal set by the caller's word; the kernel's is the first 8 bytes.
    let mask = unsafe { mask.cast::<u64>().as_ref() };
    let mut call = Call { epfd, set, events, max: max as usize, filled: 0, number: 0 };
    match call.wait(deadline, mask) {
        Ok(count) => Outcome::Done(count as isize),
        Err(errno) => Outcome::Fail(errno),
    }
}

/// Takes what the kernel has to say about the lanes of a set that has no other members, for somebody who watches the
/// set: they become hot.
pub(super) fn take_news(epfd: i32, set: &'static Set) {
    let mut events = [epoll_event { events: 0, u64: 0 }; 16];
    let (pointer, room) = (events.as_mut_ptr(), events.len());
    // SAFETY: room for that many events.
    let count = unsafe { kernel::epoll_now(epfd, pointer, room as i32) };
    let mut call = Call { epfd, set, events: pointer, max: room, filled: 0, number: 0 };
    call.translate(count.unwrap_or(0));
}

/// One call that waits.
struct Call {
    epfd: i32,
    set: &'static Set,
    events: *mut epoll_event,
    max: usize,
    filled: usize,
    /// Tells this call's reports from those of others; 0 before the first harvest.
    number: u32,
}

impl Call {
    fn wait(&mut self, deadline: Deadline, mask: Option<&u64>) -> Result<usize, Errno> {
        attend(self.set);
        let due = self.look_is_due();
        if due && self.set.crowded.load(Relaxed) {
            self.set.crowded.store(false, Relaxed);
            self.look()?;
        }
        self.harvest();
        if self.filled == self.max {
            self.set.crowded.store(true, Relaxed);
        } else if due || self.filled == 0 && deadline == Deadline::Now {
            self.look()?;
        }
        if self.filled == 0 && relay::catch_up() {
            self.look()?;
        }
        if self.filled != 0 || deadline == Deadline::Now {
            if self.filled == 0
                && let Some(mask) = mask
            {
                crate::poll::let_signals_in(mask)?;
            }
            return Ok(self.leave());
        }
        let mut patience = Patience::until(match deadline {
            Deadline::Never => None,
            Deadline::Now => Some(0),
            Deadline::After(wait_ns) => Some(kernel::now_ns().saturating_add(wait_ns)),
            Deadline::At(at) => Some(at),
        });
        loop {
            relay::catch_up();
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
                            return Err(Errno(libc::EINTR));
                        }
                    }
                    Spun::Nothing => {}
                }
            }
            self.set.sleepers.fetch_add(1, Relaxed);
            let slept = crate::cancel::undoing(forget_sleeper, self.set, || self.sleep(&mut patience, mask));
            self.set.sleepers.fetch_sub(1, Relaxed);
            match slept {
                Some(Woken::Ready(count)) => {
                    self.set.budget().slept(&patience);
                    self.set.last_look.store(ticks(), Relaxed);
                    self.translate(count);
                    self.harvest();
                }
                None => self.harvest(),
                Some(Woken::TimedOut) => return Ok(0),
                // epoll_wait(2) is never restarted after a handler (signal(7)).
                Some(Woken::Signal { .. }) => return Err(Errno(libc::EINTR)),
                Some(Woken::Failed(errno)) => return Err(errno),
            }
            if self.filled != 0 {
                return Ok(self.leave());
            }
        }
    }

    /// Arms what is hot and sleeps in the kernel. `None` if there was something to report already.
    fn sleep(&mut self, patience: &mut Patience, mask: Option<&u64>) -> Option<Woken> {
        if cool_set(self.epfd, self.set, 0) == Armed::Ready {
            attend(self.set);
            return None;
        }
        let mask = mask.map_or(core::ptr::null(), core::ptr::from_ref);
        let (epfd, events, max) = (self.epfd, self.events, self.max as i32);
        Some(patience.sleep_with(|timeout| {
            // SAFETY: `events` is writable for `max` events by the caller's word; `timeout` is this thread's own;
            // `mask` is null or live.
            unsafe { kernel::epoll_sleep(epfd, events, max, timeout, mask) }
        }))
    }

    fn is_cold(&self) -> bool {
        self.set.find(self.set.hot_first.load(Relaxed)).is_none()
    }

    /// Whether a wait that has something to report should look at the kernel, too.
    fn look_is_due(&self) -> bool {
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
    fn look(&mut self) -> Result<(), Errno> {
        if self.set.busy_waits.load(Relaxed) >= BUSY_WAITS {
            stats::count(Counter::EpollKernelLooks, 1);
        }
        self.set.last_look.store(ticks(), Relaxed);
        loop {
            let (filled, room) = (self.filled, self.max - self.filled);
            let parked = self.set.parked.load(Relaxed);
            // SAFETY: filled <= max, so the rest of the app's array is writable for that many events.
            let count = unsafe { kernel::epoll_now(self.epfd, self.events.add(filled), room as i32) }?;
            if count == 0 {
                self.rest();
            } else if self.translate(count) {
                self.harvest();
            }
            // What was parked may have taken the place of what is not.
            if count < room || self.filled != filled || self.set.parked.load(Relaxed) >= parked {
                return Ok(());
            }
        }
    }

    /// The kernel had nothing new to tell: it is asked less often.
    fn rest(&self) {
        let ticks = self.set.look_ticks.load(Relaxed).saturating_mul(2);
        self.set.look_ticks.store(ticks.clamp(LOOK_TICKS_MIN, LOOK_TICKS_MAX), Relaxed);
    }

    /// Goes through `count` kernel events behind the filled part of the app's array: those of lanes only make
    /// the lanes hot, the others stay. Tells whether a lane became hot.
    ///
    /// A set whose kernel members have news is asked more often.
    fn translate(&mut self, count: usize) -> bool {
        let mut heated = false;
        let begin = self.filled;
        for index in begin..begin + count {
            // SAFETY: the kernel has just filled these places; the struct is packed, so it is read whole.
            let event = unsafe { self.events.add(index).read_unaligned() };
            if self.is_for_app(event, &mut heated) {
                self.push(event);
            }
        }
        if self.filled != begin {
            self.set.busy_waits.store(0, Relaxed);
        }
        match heated || self.filled != begin {
            true => self.set.look_ticks.store(LOOK_TICKS_MIN, Relaxed),
            false => self.rest(),
        }
        heated
    }

    /// Whether a kernel event goes to the app as it is.
    fn is_for_app(&self, event: epoll_event, heated: &mut bool) -> bool {
        if event.u64 == WAKER_DATA {
            *heated = true;
            return false;
        }
        let guard = self.set.lock.lock();
        let mut known = false;
        let mut foreign = false;
        // Lanes whose anchor has news: those are told without the set's lock.
        let mut news = [const { None }; 4];
        let mut told = 0;
        let mut rung = None;
        let mut listener = None;
        // With equal data the kernel does not say which member it means, parked ones among them, and an end may be that
        // of a connection that had the number before: then members are asked themselves.
        let parked = was_parked(self.epfd, self.set, event.u64);
        let mut members = u32::from(parked);
        self.set.with_data(event.u64, |_, _| members += 1);
        self.set.with_data(event.u64, |fd, entry| {
            known = true;
            match entry.desc().map(|desc| (desc, desc.kind())) {
                Some((desc, Kind::Lane)) => {
                    let harmless = event.events & !(EPOLLIN | libc::EPOLLOUT as u32) == 0;
                    let event = match members {
                        1 if harmless => event,
                        _ => epoll_event { events: present_events(fd, desc), u64: event.u64 },
                    };
                    if event.events == 0 {
                        return;
                    }
                    if entry.fired.load(Relaxed) {
                        desc.side().rx.note_bell();
                        pause(self.epfd, fd, entry);
                        return;
                    }
                    make_exact(self.epfd, fd, entry);
                    let was_hot = entry.hot.load(Relaxed);
                    self.set.make_hot(fd, entry);
                    *heated |= !was_hot;
                    if event.events & EPOLLIN != 0 {
                        desc.side().rx.note_bell();
                        rung = Some((fd, desc)).filter(|_| was_hot);
                    }
                    let grave = event.events & !(EPOLLIN | libc::EPOLLOUT as u32);
                    if grave != 0 && told < news.len() {
                        // Pinned: its number may lead elsewhere, and a description that is given back, too.
                        news[told] = Some((desc.pin(), desc, fd, grave as i16));
                        told += 1;
                    }
                    if event.events & (EPOLLHUP | EPOLLERR) != 0 {
                        bury(self.epfd, fd, entry);
                    }
                }
                Some((desc, Kind::Listener)) => {
                    if !entry.fired.load(Relaxed) && !self.has_reported(event) {
                        listener = Some((fd, desc));
                    }
                }
                Some((desc, Kind::Epoll)) => {
                    // An arrival that was reported already may be told by the kernel only now.
                    let told = set_of(desc)
                        .is_some_and(|inner| arrivals(inner) == entry.seen_tail.load(Relaxed) && any_ready(inner, 1));
                    if !told {
                        entry.fresh.store(true, Relaxed);
                    }
                    self.set.make_hot(fd, entry);
                    *heated = true;
                }
                _ => foreign = true,
            }
        });
        drop(guard);
        for (_pin, desc, fd, revents) in news.into_iter().flatten() {
            if desc.is_lane() {
                let (Next::Again | Next::Kernel) = io::kernel_said(open_fd(fd, desc), desc, revents);
            }
        }
        if let Some((fd, desc)) = rung {
            self.hush(fd, desc);
        }
        if let Some((fd, desc)) = listener {
            foreign |= self.listener_fires(fd, desc, event);
        }
        foreign || !known && !parked && !self.set.has_strays.load(Relaxed)
    }

    /// Takes out the bells of a hot lane that nobody sleeps on.
    fn hush(&self, fd: i32, desc: &'static Desc) {
        let fd = open_fd(fd, desc);
        let Some(_pin) = table::pin(fd, desc) else { return };
        let Some(guard) = table::rx_of(fd, desc) else { return };
        // Whoever sleeps has said so before it armed the lane, under the lock that we hold.
        let alone = !desc.shared.load(Relaxed)
            && desc.entries.load(Relaxed) == 1
            // Ours.
            && desc.pins.load(Relaxed) == 1
            && self.set.sleepers.load(Relaxed) == 0
            && !somebody_polls();
        let hushed = if alone { guard.reader().hush(&Anchor(fd)) } else { Ok(()) };
        drop(guard);
        if let Err(failure) = hushed {
            let (Next::Again | Next::Kernel) = io::fault(fd, desc, failure, 0);
        }
    }

    /// Whether the app's array holds this event of a listener already: its door and its queue report alike.
    fn has_reported(&self, event: epoll_event) -> bool {
        (0..self.filled).any(|index| {
            // SAFETY: places below `filled` were written by us or the kernel.
            let other = unsafe { self.events.add(index).read_unaligned() };
            other.u64 == event.u64 && other.events & EPOLLIN != 0
        })
    }

    /// Whether a listener's event goes to the app: not if its door rang in vain. Asking a door may find clients that
    /// have not said hello, which changes sets; so the set is not locked.
    fn listener_fires(&self, fd: i32, desc: &'static Desc, event: epoll_event) -> bool {
        let in_queue = || kernel::poll_now(desc.fd.load(Relaxed), libc::POLLIN) != 0;
        if event.events & EPOLLIN != 0 && !meet::door_ready(desc) && !in_queue() {
            return false;
        }
        let _guard = self.set.lock.lock();
        let Some(entry) = self.set.find(fd) else { return true };
        if entry.events.load(Relaxed) & EPOLLONESHOT != 0 {
            if entry.fired.load(Relaxed) {
                return false;
            }
            disarm_pair(self.epfd, fd, entry);
        }
        true
    }

    /// Reports what hot members have to say, as far as there is room. Each is looked at once; those that are
    /// reported go to the end of the list, so that a short array does not starve the rest.
    fn harvest(&mut self) {
        let _guard = self.set.lock.lock();
        self.harvest_locked();
    }

    fn harvest_locked(&mut self) {
        let set = self.set;
        if self.number == 0 {
            self.number = set.calls.load(Relaxed).wrapping_add(1).max(1);
            set.calls.store(self.number, Relaxed);
        }
        let mut fd = set.hot_first.load(Relaxed);
        let last = set.hot_last.load(Relaxed);
        while let Some(entry) = set.find(fd) {
            if self.filled == self.max {
                break;
            }
            let next = if fd == last { NIL } else { entry.next.load(Relaxed) };
            self.gather(fd, entry);
            fd = next;
        }
    }

    #[inline]
    fn gather(&mut self, fd: i32, entry: &Entry) {
        let set = self.set;
        let Some(desc) = entry.desc() else { return };
        let marks = Marks::of(desc);
        let report = judge(set, entry, 0);
        if report == 0 {
            let looks = entry.idle_looks.load(Relaxed) + 1;
            entry.idle_looks.store(looks, Relaxed);
            if looks > IDLE_LOOKS {
                entry.idle_looks.store(0, Relaxed);
                cool_entry(self.epfd, set, fd, entry, 0);
            }
            return;
        }
        entry.idle_looks.store(0, Relaxed);
        if entry.call.load(Relaxed) == self.number {
            // A second harvest of one call.
            return;
        }
        entry.call.store(self.number, Relaxed);
        reported(entry, desc, &marks, report);
        self.push(epoll_event { events: report, u64: entry.data.load(Relaxed) });
        if set.hot_last.load(Relaxed) != fd {
            set.make_cold(fd, entry);
            set.make_hot(fd, entry);
        }
    }

    fn push(&mut self, event: epoll_event) {
        // SAFETY: filled < max wherever this is called: harvest checks, and translate only moves events down.
        unsafe { self.events.add(self.filled).write_unaligned(event) };
        self.filled += 1;
    }

    fn spin(&mut self, patience: &mut Patience) -> Spun {
        let set = self.set;
        let cold = self.is_cold();
        let mut place = NIL;
        let mut looked = ticks();
        set.budget().spin_by(1, patience, || {
            // A set with nothing hot spins on the kernel alone: a bell or a client that comes within the budget is
            // spared a sleep.
            let now = ticks();
            if cold || now.wrapping_sub(looked) > SPIN_LOOK_TICKS {
                looked = now;
                // What goes wrong here is found again by the look that follows a spin.
                return self.look().is_err() || self.filled != 0;
            }
            self.watch(&mut place)
        })
    }

    /// Looks at some of the hot list, from `place` on and around, and reports what it finds.
    fn watch(&mut self, place: &mut i32) -> bool {
        let set = self.set;
        let _guard = set.lock.lock();
        for _ in 0..LOOKS_PER_LOCK {
            // What is not hot any more has no successor to go on with.
            let Some(entry) = set.find(*place).filter(|entry| entry.hot.load(Relaxed)) else {
                *place = set.hot_first.load(Relaxed);
                core::hint::spin_loop();
                continue;
            };
            if judge(set, entry, 0) != 0 {
                self.harvest_locked();
                return true;
            }
            *place = entry.next.load(Relaxed);
        }
        false
    }

    /// Ends the call: if other threads sleep on the set, what stays hot is armed for them.
    fn leave(&mut self) -> usize {
        if self.set.sleepers.load(Relaxed) != 0 {
            let armed = cool_behind(self.epfd, self.set);
            if armed == Armed::Ready && self.filled == self.max {
                // There was more than this call had room for: as the kernel does, wake the next thread.
                wake_sleeper(self.epfd, self.set);
            }
        }
        self.filled
    }
}

/// A thread was cancelled in its sleep on a set.
unsafe extern "C" fn forget_sleeper(set: *mut core::ffi::c_void) {
    // SAFETY: the set that `wait` slept on, an object of a slab.
    unsafe { &*set.cast::<Set>() }.sleepers.fetch_sub(1, Relaxed);
}

/// What the kernel reports of a lane's anchor now.
fn present_events(fd: i32, desc: &'static Desc) -> u32 {
    u32::from(kernel::poll_now(open_fd(fd, desc), libc::POLLIN | libc::POLLRDHUP) as u16)
}

/// A cheap clock: the time-stamp counter where there is one, nanoseconds elsewhere.
fn ticks() -> u64 {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: rdtsc has no preconditions on x86-64 Linux in user mode.
    unsafe {
        core::arch::x86_64::_rdtsc()
    }
    #[cfg(not(target_arch = "x86_64"))]
    kernel::now_ns()
}
