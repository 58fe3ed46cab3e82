//! Waiting: a bounded spin, then sleep, and signals noticed in both.
//!
//! Interrupts when idle, polling when busy. A wait for a connection spins first if that has paid lately:
//!
//! 1. Each waiter keeps an account of its spins ([`ledger`]): news that comes soon pays in, spins in vain are paid from it, and
//!    none is longer than what is left. It spins only where most waits end with news of lanes within `spin_ns_max`. So what is
//!    spun in vain stays a small part of what spins have spared.
//! 2. A waiter whose sleep costs more than that of one connection, an epoll set with many, spins longer by as much;
//!    so does every waiter where system calls are dear, as under a tracer: see [`priced`].
//! 3. There is no spin for a peer that runs on this very CPU, nor is what came after such a wait a reason to spin ([`near`]).
//! 4. There is no spin in a crowd of threads that wait ([`crowd`]).
//! 5. A gap in the spinner's own time means that the kernel ran something else on this CPU: there is more
//!    work than CPUs. The spin ends, and it is the last until news has come soon.
//! 6. A handler of the app that runs meanwhile ends a spin as it ends a sleep.

mod crowd;
mod ledger;
mod near;

#[cfg(test)]
mod tests;

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed, compiler_fence};

use beeline_stats::{Counter, tunables::Wait};

use crate::Errno;
use crate::cancel;
use crate::kernel;
use crate::stats;
use crate::thread;
use crate::upkeep;

use ledger::{Ended, Lately, Ledger};

pub use crowd::is_crowded;
pub use near::{ANY_CPU, is_near, note_near, peers_are_near};

/// A spin shorter than this is none.
const SPIN_NS_MIN: u32 = 1_000;
/// Checks between two looks at the clock.
const CHECKS_PER_LOOK: u32 = 32;
/// A gap between two looks at the clock that means another task ran here.
const GAP_NS: u64 = 20_000;
/// The same with a system call in between, which may take its time: under a tracer it does.
const CALL_GAP_NS: u64 = 200_000;
/// How long a call that is to poll on spins between two looks at the kernel, which alone tells of a peer that was
/// killed and of other descriptors.
const POLL_NS: u64 = 100_000;
/// "For ever" for the kernel: it saturates.
const FOREVER: libc::timespec = libc::timespec { tv_sec: 1 << 32, tv_nsec: 0 };

/// How a sleep ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Woken {
    /// That many fds have events.
    Ready(usize),
    /// The deadline passed.
    TimedOut,
    /// A handler of the app ran. `restart` tells whether all that ran were installed with `SA_RESTART`.
    Signal {
        /// Whether calls that the kernel would restart go on.
        restart: bool,
    },
    /// The system call failed.
    Failed(Errno),
}

/// What one check of a spin has seen.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Look {
    /// There is news.
    News,
    /// There is news that nobody has to spin for: the kernel would have told of it as soon.
    Foreign,
    /// There is none.
    Nothing,
    /// There is none, and that took a system call.
    Asked,
    /// The peer runs on this CPU: it cannot send while this goes on.
    Near,
}

/// How a spin ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Spun {
    /// There is news.
    News,
    /// There is none; sleep.
    Nothing,
    /// A handler of the app ran.
    Signal,
}

/// One blocking call: until when it waits, and which signals it has seen.
pub struct Patience {
    deadline_ns: Option<u64>,
    /// When the present wait began, on `CLOCK_MONOTONIC`; 0 if nobody looked at the clock.
    since_ns: u64,
    handled: u32,
    interrupted: u32,
    /// Whether the thread may be cancelled in a sleep of this call.
    cancellable: bool,
    /// Whether a sleep of this call looks after connections that nobody has taken yet (`offers` of beeline-sockets).
    looks_after: bool,
}

impl Patience {
    /// A call that begins now and waits until `deadline_ns` on `CLOCK_MONOTONIC`, or for ever.
    #[must_use]
    pub fn until(deadline_ns: Option<u64>) -> Self {
        thread::with(|thread| Self {
            deadline_ns,
            since_ns: 0,
            handled: thread.handled.load(Relaxed),
            interrupted: thread.interrupted.load(Relaxed),
            cancellable: true,
            looks_after: true,
        })
    }

    /// A call that begins now with a timeout in nanoseconds; 0 means none (`SO_RCVTIMEO`).
    #[must_use]
    pub fn timeout(timeout_ns: u64) -> Self {
        Self::until((timeout_ns != 0).then(|| kernel::now_ns().saturating_add(timeout_ns)))
    }

    /// Whether the call has a deadline.
    #[must_use]
    pub fn is_bounded(&self) -> bool {
        self.deadline_ns.is_some()
    }

    /// Whether the deadline has passed.
    pub fn is_over(&self) -> bool {
        self.deadline_ns.is_some_and(|deadline_ns| kernel::now_ns() >= deadline_ns)
    }

    /// Whether a handler ran since the call began or last asked; if so, forgets it and tells whether
    /// the kernel would restart a call that restarts.
    pub fn signal(&mut self) -> Option<Woken> {
        thread::with(|thread| {
            let (handled, interrupted) = (thread.handled.load(Relaxed), thread.interrupted.load(Relaxed));
            if handled == self.handled {
                return None;
            }
            let restart = interrupted == self.interrupted;
            (self.handled, self.interrupted) = (handled, interrupted);
            Some(Woken::Signal { restart })
        })
    }

    /// The wait that begins does not spin, and its end tells nothing about spinning.
    pub fn give_way(&mut self) {
        self.since_ns = 0;
    }

    /// Whether a handler ran since the call began.
    #[inline]
    pub fn signalled(&self) -> bool {
        thread::with(|thread| thread.handled.load(Relaxed) != self.handled)
    }

    /// Sleeps until something is ready. No lock may be held.
    pub fn sleep(&mut self, fds: &mut [libc::pollfd], mask: Option<&u64>) -> Woken {
        let mask = mask.map_or(core::ptr::null(), core::ptr::from_ref);
        self.sleep_with(|timeout| {
            // SAFETY: `timeout` is this thread's own, `mask` null or live.
            unsafe { kernel::await_any(fds, timeout, mask) }
        })
    }

    /// Sleeps in a system call that takes a timeout by pointer. A handler that runs before the kernel has
    /// read the timeout sets it to zero (see [`thread`]).
    pub fn sleep_with(&mut self, call: impl FnOnce(*const libc::timespec) -> beeline_shm::sys::SysResult) -> Woken {
        let polling = crate::config().wait == Wait::Poll;
        let due_ns = if self.looks_after { upkeep::due_ns() } else { None };
        let until_ns = match (self.deadline_ns, due_ns) {
            (Some(deadline), Some(due)) => Some(deadline.min(due)),
            (deadline, due) => deadline.or(due),
        };
        let timeout = match until_ns {
            _ if polling => libc::timespec { tv_sec: 0, tv_nsec: 0 },
            None => FOREVER,
            Some(deadline) => {
                let left = deadline.saturating_sub(kernel::now_ns());
                libc::timespec { tv_sec: (left / 1_000_000_000) as i64, tv_nsec: (left % 1_000_000_000) as i64 }
            }
        };
        stats::count(Counter::Sleeps, 1);
        let result = thread::with(|thread| {
            // SAFETY: only this thread and its own handlers use its `timeout`.
            unsafe { thread.timeout.get().write_volatile(timeout) };
            compiler_fence(core::sync::atomic::Ordering::SeqCst);
            thread.sleeping.store(true, Relaxed);
            compiler_fence(core::sync::atomic::Ordering::SeqCst);
            if self.signalled() {
                thread.sleeping.store(false, Relaxed);
                return Err(Errno(libc::EINTR));
            }
            let call = || call(thread.timeout.get());
            let result = if self.cancellable { cancel::point(call) } else { call() };
            thread.sleeping.store(false, Relaxed);
            result
        });
        match result {
            Ok(0) if polling && self.deadline_ns.is_none_or(|deadline| kernel::now_ns() < deadline) => {
                self.signal().unwrap_or(Woken::Ready(0))
            }
            Ok(0) if until_ns != self.deadline_ns => {
                upkeep::look_after();
                self.signal().unwrap_or(Woken::Ready(0))
            }
            Ok(0) => self.signal().unwrap_or(Woken::TimedOut),
            Ok(count) => Woken::Ready(count),
            // A handler that was not installed through us ran: the kernel's default holds.
            Err(Errno(libc::EINTR)) => self.signal().unwrap_or(Woken::Signal { restart: false }),
            Err(errno) => Woken::Failed(errno),
        }
    }
}

/// [`Patience::sleep`] for a call that does not spin, and that must come back: the thread is not cancelled in it.
pub fn sleep(fds: &mut [libc::pollfd], deadline_ns: Option<u64>, mask: Option<&u64>) -> Woken {
    Patience { cancellable: false, looks_after: false, ..Patience::until(deadline_ns) }.sleep(fds, mask)
}

/// What one waiter, a connection, a listener or an epoll set, knows of its spins. Valid when zeroed: then it does not spin.
///
/// Whoever waits stores it, without a lock: threads that wait at one time may spoil each other's figures, and nothing else.
#[repr(C)]
pub struct SpinState {
    /// What the next spin may take, in nanoseconds; less than `spin_ns_max` as long as the account is not full.
    ns: AtomicU32,
    /// Waits of a listener since its last spin.
    skipped: AtomicU32,
    /// The account ([`Ledger::to_bits`]).
    ledger: AtomicU64,
}

/// How waits of this process ended of late.
static LATELY: Lately = Lately::new();

impl SpinState {
    /// Another connection or set begins: as others of this process did of late.
    pub fn begin(&self) {
        self.keep(Ledger::new(LATELY.soon(), longest()));
        self.skipped.store(0, Relaxed);
    }

    /// What the next spin may take.
    #[inline]
    pub fn ns(&self) -> u32 {
        self.ns.load(Relaxed)
    }

    /// The next spin of a listener may take that long.
    pub fn set_ns(&self, spin_ns: u32) {
        self.ns.store(spin_ns, Relaxed);
    }

    /// One more wait of a listener does not spin. Returns how many did not before.
    pub fn skip(&self) -> u32 {
        self.skipped.fetch_add(1, Relaxed)
    }

    fn ledger(&self) -> Ledger {
        Ledger::from_bits(self.ledger.load(Relaxed))
    }

    fn keep(&self, ledger: Ledger) {
        self.ledger.store(ledger.to_bits(), Relaxed);
        let longest = longest();
        let grant = ledger.grant(longest);
        // What is full is told by one look.
        let granted = if ledger.is_full(longest) { longest } else { grant.min(longest.saturating_sub(1)) };
        self.ns.store(granted, Relaxed);
    }
}

fn longest() -> u32 {
    crate::config().spin_ns_max.min(u64::from(u32::MAX)) as u32
}

fn brief(ns: u64) -> u32 {
    ns.min(u64::from(u32::MAX)) as u32
}

/// The adaptive budget of one wait.
pub struct Budget<'a> {
    /// What the waiter knows.
    pub state: &'a SpinState,
    /// How much longer than the budget a spin is worth while, because the sleep would cost that.
    pub extra_ns: u64,
}

impl Budget<'_> {
    /// How much longer a spin is worth while than the budget says.
    fn extra_ns(&self) -> u64 {
        self.extra_ns + u64::from(CALL_NS.load(Relaxed)) * CALLS_PER_SLEEP
    }

    /// Nanoseconds that the coming wait may spin.
    fn grant(&self) -> u64 {
        match crate::config().wait {
            Wait::Poll => POLL_NS,
            Wait::Sleep => 0,
            Wait::Lazy => u64::from(self.state.ledger().grant(longest())),
        }
    }

    /// The wait ended with news at once.
    #[inline]
    pub fn paid(&self) {
        if self.state.ns.load(Relaxed) != longest() {
            self.ended(Ended::Won(0));
        }
    }

    /// A spin was in vain, or `preempted`: others want this CPU.
    fn failed(&self, spun_ns: u64, preempted: bool) {
        let mut ledger = self.state.ledger();
        ledger.spun_in_vain(brief(spun_ns.saturating_sub(self.extra_ns())), preempted, longest());
        self.state.keep(ledger);
    }

    /// The wait is over.
    #[cold]
    fn ended(&self, ended: Ended) {
        if crate::config().wait != Wait::Lazy {
            return;
        }
        let (longest, extra_ns) = (longest(), brief(self.extra_ns()));
        let mut ledger = self.state.ledger();
        ledger.ended(ended, longest, extra_ns);
        self.state.keep(ledger);
        LATELY.note(match ended {
            Ended::Won(ns) | Ended::Slept(ns) => ns <= longest.saturating_add(extra_ns),
            Ended::Otherwise => false,
        });
    }

    /// A sleep that followed [`Budget::spin`] ended, with news of lanes or not. Their peer is not near.
    pub fn slept(&self, patience: &Patience, news: bool) {
        if patience.since_ns == 0 {
            return;
        }
        self.ended(match news {
            true => Ended::Slept(brief(kernel::now_ns().saturating_sub(patience.since_ns))),
            false => Ended::Otherwise,
        });
    }

    /// Spins until `news` or the budget is spent. `news` is called often and must be cheap.
    pub fn spin(&self, patience: &mut Patience, mut news: impl FnMut() -> bool) -> Spun {
        self.spin_by(CHECKS_PER_LOOK, patience, || if news() { Look::News } else { Look::Nothing })
    }

    /// As [`Budget::spin`], with `checks` calls of `look` between two looks at the clock.
    pub fn spin_by(&self, checks: u32, patience: &mut Patience, mut look: impl FnMut() -> Look) -> Spun {
        let grant = match self.grant() {
            0 => 0,
            grant => grant.saturating_add(self.extra_ns()),
        };
        patience.since_ns = 0;
        if grant == 0 {
            if crate::config().wait == Wait::Lazy {
                patience.since_ns = kernel::now_ns();
                crowd::note();
            }
            return Spun::Nothing;
        }
        let mut last = 0;
        loop {
            let mut gap = GAP_NS;
            for _ in 0..checks {
                match look() {
                    Look::News => {
                        if patience.since_ns == 0 {
                            self.paid();
                        } else {
                            self.ended(Ended::Won(brief(last - patience.since_ns)));
                            stats::count(Counter::SpinsPaid, 1);
                        }
                        return Spun::News;
                    }
                    Look::Foreign => {
                        if patience.since_ns != 0 {
                            self.failed(last - patience.since_ns, false);
                            stats::count(Counter::SpinsFailed, 1);
                        }
                        self.ended(Ended::Otherwise);
                        return Spun::News;
                    }
                    Look::Nothing => {}
                    Look::Asked => gap = CALL_GAP_NS,
                    Look::Near => {
                        patience.give_way();
                        return Spun::Nothing;
                    }
                }
                core::hint::spin_loop();
            }
            if patience.signalled() {
                return Spun::Signal;
            }
            let now = kernel::now_ns();
            if patience.since_ns == 0 {
                if is_crowded() && crate::config().wait == Wait::Lazy {
                    patience.give_way();
                    return Spun::Nothing;
                }
                (patience.since_ns, last) = (now, now);
            }
            let preempted = now - last > gap;
            let spun = now - patience.since_ns;
            let expired = spun >= grant || patience.deadline_ns.is_some_and(|deadline| now >= deadline);
            if preempted || expired {
                // The time in which another task ran was not spun.
                self.failed(if preempted { last - patience.since_ns } else { spun }, preempted);
                stats::count(Counter::SpinsFailed, 1);
                return Spun::Nothing;
            }
            last = now;
        }
    }
}

/// What a system call that does not block costs this process, in nanoseconds: a moving average.
static CALL_NS: AtomicU32 = AtomicU32::new(0);
/// No call is thought to be dearer: this thread was kept from running meanwhile.
const CALL_NS_MAX: u32 = 50_000;
/// Calls that a sleep and a wake-up take, of both ends together.
const CALLS_PER_SLEEP: u64 = 8;

/// Makes a system call that does not block, and notes what it costs.
pub fn priced<T>(call: impl FnOnce() -> T) -> T {
    let before = kernel::now_ns();
    let result = call();
    let took = (kernel::now_ns() - before).min(u64::from(CALL_NS_MAX)) as u32;
    let known = CALL_NS.load(Relaxed);
    CALL_NS.store(known - known / 4 + took / 4, Relaxed);
    result
}

/// A cheap clock: the time-stamp counter where there is one, nanoseconds elsewhere.
pub fn ticks() -> u64 {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: rdtsc has no preconditions on x86-64 Linux in user mode.
    unsafe {
        core::arch::x86_64::_rdtsc()
    }
    #[cfg(not(target_arch = "x86_64"))]
    kernel::now_ns()
}

/// The deadline that a relative timeout means; `Some(0)` for no wait.
pub fn deadline(timeout: Option<&libc::timespec>) -> Result<Option<u64>, Errno> {
    let Some(timeout) = timeout else { return Ok(None) };
    if timeout.tv_sec < 0 || !(0..1_000_000_000).contains(&timeout.tv_nsec) {
        return Err(Errno(libc::EINVAL));
    }
    let wait = (timeout.tv_sec as u64).saturating_mul(1_000_000_000).saturating_add(timeout.tv_nsec as u64);
    Ok(Some(if wait == 0 { 0 } else { kernel::now_ns().saturating_add(wait) }))
}

/// A call that does not wait, with nothing to report, still lets in signals that its mask admits: `EINTR` if one was
/// handled.
pub fn let_signals_in(mask: &u64) -> Result<(), Errno> {
    let zero = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: a live timeout and mask.
    unsafe { kernel::ppoll(&mut [], &raw const zero, mask) }.map(|_| ())
}
