//! Sleeping: one blocking call, its deadline, and the signals that end it.

use core::sync::atomic::{Ordering::Relaxed, compiler_fence};

use beeline_stats::Counter;
use beeline_stats::tunables::{Wait, option};

use super::parting;
use super::times::timespec;
use super::vain;
use crate::Errno;
use crate::cancel;
use crate::kernel;
use crate::stats;
use crate::thread;
use crate::upkeep;

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

/// One blocking call: until when it waits, and which signals it has seen.
pub struct Patience {
    pub(super) deadline_ns: Option<u64>,
    /// When the present wait began, on `CLOCK_MONOTONIC`; 0 if nobody looked at the clock.
    pub(super) since_ns: u64,
    handled: u32,
    interrupted: u32,
    /// Whether the thread may be cancelled in a sleep of this call.
    cancellable: bool,
    /// Whether the call polls on instead of sleeping, as the waiter of its present wait has it
    /// ([`super::Budget::begin`]). The process's own mode if there was none.
    pub(super) polls: Option<bool>,
    /// Whether a sleep of this call looks after connections that nobody has taken yet (`offers` of beeline-sockets).
    looks_after: bool,
    /// Whether a sleep of this call alone makes the process keep statistics.
    counts: bool,
    /// Whether the sleep has ended that goes on by another system call ([`Patience::sleep_within`]).
    pub(super) goes_on: bool,
    /// Whether the wait that begins is the rest of it.
    pub(super) is_rest: bool,
    /// Sleeps that ended with nothing to tell, each soon after the one before.
    vain: vain::Vain,
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
            polls: None,
            looks_after: true,
            counts: true,
            goes_on: false,
            is_rest: false,
            vain: vain::Vain::default(),
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

    /// From now on the call waits until `deadline_ns` at most. Whether it would have waited longer otherwise.
    pub fn end_by(&mut self, deadline_ns: u64) -> bool {
        let is_sooner = self.deadline_ns.is_none_or(|known_ns| deadline_ns <= known_ns);
        if is_sooner {
            self.deadline_ns = Some(deadline_ns);
        }
        is_sooner
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

    /// The kernel has ended a sleep of this call, and there seems to be nothing to tell. Whether the thread has rested
    /// for that, and is to look again.
    pub fn woke_in_vain(&mut self) -> bool {
        self.vain.count()
    }

    /// The wait that begins does not spin, and its end tells nothing about spinning.
    pub fn give_way(&mut self) {
        self.since_ns = 0;
    }

    /// What the call waits for has nothing to do with us: its sleeps are counted, but are no reason to begin to.
    pub fn count_only_if_open(&mut self) {
        self.counts = false;
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
    pub fn sleep_with(&mut self, call: impl FnOnce(*mut libc::timespec) -> beeline_shm::sys::SysResult) -> Woken {
        self.sleep_at_most(None, call)
    }

    /// As [`Patience::sleep_with`], for so long at most, and until the process is stopped, of which epoll_wait(2) tells
    /// and poll(2) does not: then nothing is ready, and the next sleep is the rest of this one.
    pub fn sleep_within(
        &mut self,
        most_ns: u64,
        call: impl FnOnce(*mut libc::timespec) -> beeline_shm::sys::SysResult,
    ) -> Woken {
        self.sleep_at_most(Some(most_ns), call)
    }

    fn sleep_at_most(
        &mut self,
        most_ns: Option<u64>,
        call: impl FnOnce(*mut libc::timespec) -> beeline_shm::sys::SysResult,
    ) -> Woken {
        if self.looks_after {
            parting::consider();
        }
        let polling = self.polls.unwrap_or_else(|| crate::live(option::wait) == Wait::Poll);
        let due_ns = if self.looks_after { upkeep::due_ns() } else { None };
        let until_ns = [self.deadline_ns, due_ns].into_iter().flatten().min();
        let left_ns = until_ns.map(|until_ns| until_ns.saturating_sub(kernel::now_ns()));
        let is_cut = most_ns.is_some_and(|most_ns| left_ns.is_none_or(|left_ns| most_ns < left_ns));
        let timeout = match if is_cut { most_ns } else { left_ns } {
            _ if polling => timespec(0),
            None => FOREVER,
            Some(left_ns) => timespec(left_ns),
        };
        match core::mem::take(&mut self.goes_on) | core::mem::take(&mut self.is_rest) {
            true => {}
            false if self.counts => stats::count(Counter::Sleeps, 1),
            false => stats::count_if_open(Counter::Sleeps),
        }
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
            Ok(0) if is_cut || until_ns != self.deadline_ns => {
                upkeep::look_after();
                let signal = self.signal();
                self.goes_on = is_cut && signal.is_none();
                signal.unwrap_or(Woken::Ready(0))
            }
            Ok(0) => self.signal().unwrap_or(Woken::TimedOut),
            Ok(count) => Woken::Ready(count),
            Err(Errno(libc::EINTR)) if most_ns.is_some() && !self.signalled() => {
                self.goes_on = true;
                Woken::Ready(0)
            }
            // Handlers that run without our seeing it restart calls: the C library's own, as for setuid(2) in a process
            // of threads, and those of runtimes that install them by system calls of their own.
            Err(Errno(libc::EINTR)) => self.signal().unwrap_or(Woken::Signal { restart: true }),
            Err(errno) => Woken::Failed(errno),
        }
    }
}

/// [`Patience::sleep`] for a call that does not spin, and that must come back: the thread is not cancelled in it.
pub fn sleep(fds: &mut [libc::pollfd], deadline_ns: Option<u64>, mask: Option<&u64>) -> Woken {
    Patience { cancellable: false, looks_after: false, ..Patience::until(deadline_ns) }.sleep(fds, mask)
}

/// Waits until poll(2) tells something of `fd`: what it tells, or 0 when the time is over or the call fails. Handlers
/// of the app may run meanwhile; the wait goes on. The thread is not cancelled in it.
pub fn for_events(fd: i32, events: i16, deadline_ns: u64) -> i16 {
    loop {
        let mut fds = [libc::pollfd { fd, events, revents: 0 }];
        match sleep(&mut fds, Some(deadline_ns), None) {
            Woken::Ready(_) if fds[0].revents != 0 => return fds[0].revents,
            Woken::Ready(_) | Woken::Signal { .. } if kernel::now_ns() < deadline_ns => {}
            _ => return 0,
        }
    }
}
