//! Waiting: a bounded spin, then sleep, and signals noticed in both.
//!
//! Interrupts when idle, polling when busy. A wait for a connection spins first if that has paid lately:
//!
//! 1. Each connection has a budget. A wait that ends with news within `spin_ns_max`, spinning or asleep, makes it
//!    `spin_ns_max` where most waits of late ended so ([`state`]); a spin that ends with nothing halves it, and so does
//!    one that ends with news of a kernel socket, a timer or a pipe beside lanes, of which a sleep would have heard as
//!    soon. A waiter whose sleep costs more than that of one connection, an epoll set with many, spins longer by as
//!    much; so does every waiter where system calls are dear, as under a tracer: see [`priced`].
//! 2. Both ends of a conversation may be asleep at each message only because the other is: neither hears within its
//!    budget what takes two wake-ups. So a connection whose budget fell to nothing spins long, nevertheless, once in
//!    [`PROBE_EVERY`] waits; less and less often the more of these probes are in vain, so that they are not what the
//!    slowest in a hundred messages wait for, and not where most waits end late or with other news than a probe could
//!    win.
//! 3. There is no spin for a peer that runs on this very CPU, nor is what came after such a wait a reason to spin
//!    ([`near`]).
//! 4. There is no spin in a crowd of threads that wait ([`crowd`]), nor where more gets done without ([`without`]).
//! 5. A gap in the spinner's own time means that the kernel ran something else on this CPU: there is more
//!    work than CPUs. The spin ends, and nothing is left of the budget.
//! 6. How a waiter waits is its [`Mode`], one word, which whoever is about to wait brings up to date: by what was set
//!    for the connection, by rule, or for the process ([`SpinState::follow`]). Here only that word is asked.
//! 7. A handler of the app that runs meanwhile ends a spin as it ends a sleep.
//! 8. A thread whose peer stays near goes to another CPU, once, if one is idle ([`parting`]).

mod crowd;
pub mod fresh;
pub mod looks;
mod mode;
mod near;
mod parting;
mod patience;
mod price;
mod state;
mod times;
mod vain;
mod without;

pub use times::{deadline, timespec};

#[cfg(test)]
mod tests;

use core::sync::atomic::Ordering::Relaxed;

pub use beeline_shm::sys::ticks;
use beeline_stats::Counter;
use beeline_stats::tunables::Wait;

use crate::Errno;
use crate::kernel;
use crate::stats;

pub use mode::Mode;
pub use near::{
    ANY_CPU, clients_are_near, is_near, note_client_over_lane, note_client_over_tcp, note_near, peers_are_near,
};
pub use parting::note as note_wait_for_near;
pub use patience::{Patience, Woken, for_events, sleep};
pub use price::{priced, priced_without};
pub use state::SpinState;

use state::{DOUBLING, Ended, HEARD_SOON, SPIN_FAILED, SPIN_PAID};

/// A budget below this is none.
const SPIN_NS_MIN: u32 = 1_000;
/// Waits without a spin between two probes.
const PROBE_EVERY: u32 = 64;
/// How often probes in vain double that.
const PROBE_DOUBLINGS: u32 = 4;
/// How many times longer than the longest spin a probe is.
const PROBE_FACTOR: u64 = 4;
/// Checks between two looks at the clock.
const CHECKS_PER_LOOK: u32 = 32;
/// A gap between two looks at the clock that means another task ran here.
const GAP_NS: u64 = 20_000;
/// The same with a system call in between, which may take its time: under a tracer it does.
const CALL_GAP_NS: u64 = 200_000;
/// How long a call that is to poll on spins between two looks at the kernel, which alone tells of a peer that was
/// killed and of other descriptors.
const POLL_NS: u64 = 100_000;

/// What one check of a spin has seen.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Look {
    /// There is news.
    News,
    /// There is news that nobody has to spin for: the kernel would have told of it as soon.
    Foreign,
    /// There is news that was there before the spin, and says nothing of it.
    Before,
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

/// The adaptive budget of one wait.
pub struct Budget<'a> {
    /// What the waiter knows.
    pub state: &'a SpinState,
    /// How much longer than the budget a spin is worth while, because the sleep would cost that.
    pub extra_ns: u64,
}

impl Budget<'_> {
    /// How much longer a spin is worth while than the budget says.
    fn beyond_budget_ns(&self) -> u64 {
        self.extra_ns + price::of_sleep_ns()
    }

    /// Nanoseconds that the coming wait may spin. One that may not is counted, and now and then is a probe (rule 2).
    fn take_grant(&self) -> u64 {
        let mode = self.state.mode();
        match mode.wait() {
            Wait::Poll => return POLL_NS,
            Wait::Sleep => return 0,
            Wait::Lazy => {}
        }
        let budget = self.state.ns.load(Relaxed);
        if budget >= SPIN_NS_MIN {
            return u64::from(budget.min(mode.spin_ns_max()));
        }
        if !self.state.is_mostly_fair() {
            return 0;
        }
        let skipped = self.state.skipped.load(Relaxed) + 1;
        self.state.skipped.store(skipped, Relaxed);
        let doublings = skipped / DOUBLING;
        if skipped % DOUBLING < PROBE_EVERY << doublings {
            return 0;
        }
        self.state.skipped.store(doublings * DOUBLING, Relaxed);
        u64::from(mode.spin_ns_max()).saturating_mul(PROBE_FACTOR)
    }

    /// Whether a wait that begins now would spin, a probe aside.
    pub fn is_open(&self) -> bool {
        self.state.mode().wait() == Wait::Poll || self.state.ns.load(Relaxed) >= SPIN_NS_MIN
    }

    /// The wait ended with news while a longest spin would still have gone on.
    #[inline]
    pub fn paid(&self) {
        if self.state.ns.load(Relaxed) != self.state.mode().spin_ns_max() || !self.state.is_always_soon() {
            self.paid_now();
        }
    }

    fn paid_now(&self) {
        self.state.note(Ended::Soon);
        if self.state.is_mostly_soon() {
            self.state.ns.store(self.state.mode().spin_ns_max(), Relaxed);
            self.state.skipped.store(0, Relaxed);
        }
    }

    /// A spin ended with news. A probe has shown that both ends slept only because the other did.
    #[inline]
    fn won(&self) {
        if self.state.ns.load(Relaxed) < SPIN_NS_MIN {
            self.state.assume_soon();
        }
        self.paid();
    }

    /// A spin was in vain, or `preempted`: others want this CPU.
    fn failed(&self, preempted: bool) {
        self.state.show(SPIN_FAILED);
        let budget = self.state.ns.load(Relaxed);
        if budget < SPIN_NS_MIN {
            let doublings = (self.state.skipped.load(Relaxed) / DOUBLING + 1).min(PROBE_DOUBLINGS);
            self.state.skipped.store(doublings * DOUBLING, Relaxed);
        }
        let left = if preempted { 0 } else { budget / 2 };
        self.state.ns.store(if left < SPIN_NS_MIN { 0 } else { left }, Relaxed);
    }

    /// A sleep that followed [`Budget::spin`] ended: with `news` of lanes from a peer that is not near, or with
    /// something else.
    pub fn slept(&self, patience: &Patience, news: bool) {
        if patience.since_ns == 0 || patience.goes_on {
            return;
        }
        let took_ns = kernel::now_ns().saturating_sub(patience.since_ns);
        let (max_ns, beyond_ns) = (u64::from(self.state.mode().spin_ns_max()), self.beyond_budget_ns());
        // Both ends may have had to wake up.
        let fair_ns = max_ns.saturating_mul(2 * PROBE_FACTOR);
        match news {
            true if took_ns <= max_ns.saturating_add(beyond_ns) => {
                self.state.show(HEARD_SOON);
                self.paid();
            }
            true if took_ns <= fair_ns.saturating_add(beyond_ns) => self.state.note(Ended::Fair),
            _ => self.state.note(Ended::Otherwise),
        }
    }

    /// A wait for this waiter begins: the call polls on, or sleeps, as the waiter does.
    pub fn begin(&self, patience: &mut Patience) {
        patience.polls = Some(self.state.mode().wait() == Wait::Poll);
    }

    /// A wait for this waiter begins that does not spin ([`Patience::give_way`]).
    pub fn give_way(&self, patience: &mut Patience) {
        self.begin(patience);
        patience.give_way();
    }

    /// Spins until `news` or the budget is spent. `news` is called often and must be cheap.
    pub fn spin(&self, patience: &mut Patience, mut news: impl FnMut() -> bool) -> Spun {
        self.spin_by(CHECKS_PER_LOOK, patience, || if news() { Look::News } else { Look::Nothing })
    }

    /// Whether a wait that has found nothing at first is to spin on. That may take a while: the clock is to be read
    /// after it. Inlined, as each wait in epoll_wait(2) had an instruction more otherwise.
    #[inline(always)]
    fn begins_to_spin(&self, patience: &mut Patience) -> bool {
        if self.state.mode().wait() != Wait::Lazy {
            crowd::note();
        } else if spares_cpus() {
            patience.give_way();
            return false;
        }
        true
    }

    /// As [`Budget::spin`], with `checks` calls of `look` between two looks at the clock.
    pub fn spin_by(&self, checks: u32, patience: &mut Patience, mut look: impl FnMut() -> Look) -> Spun {
        self.begin(patience);
        patience.is_rest = core::mem::take(&mut patience.goes_on);
        if patience.is_rest {
            return Spun::Nothing;
        }
        let grant = match self.take_grant() {
            0 => 0,
            grant => grant.saturating_add(self.beyond_budget_ns()),
        };
        patience.since_ns = 0;
        if grant == 0 {
            if self.state.mode().wait() == Wait::Lazy {
                crowd::note();
                let _ = without::note_and_ask();
                patience.since_ns = kernel::now_ns();
            }
            return Spun::Nothing;
        }
        let mut last = 0;
        loop {
            let mut gap = GAP_NS;
            for _ in 0..checks {
                match look() {
                    Look::News => {
                        self.won();
                        if patience.since_ns != 0 {
                            self.state.show(SPIN_PAID);
                            stats::count(Counter::SpinsPaid, 1);
                        }
                        return Spun::News;
                    }
                    Look::Foreign => {
                        self.failed(false);
                        self.state.note(Ended::Otherwise);
                        stats::count(Counter::SpinsFailed, 1);
                        return Spun::News;
                    }
                    Look::Before => return Spun::News,
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
            let mut now = kernel::now_ns();
            if patience.since_ns == 0 {
                if !self.begins_to_spin(patience) {
                    return Spun::Nothing;
                }
                now = kernel::now_ns();
                (patience.since_ns, last) = (now, now);
            }
            let preempted = now - last > gap;
            let expired =
                now - patience.since_ns >= grant || patience.deadline_ns.is_some_and(|deadline| now >= deadline);
            if preempted || expired {
                self.failed(preempted);
                stats::count(Counter::SpinsFailed, 1);
                return Spun::Nothing;
            }
            last = now;
        }
    }
}

/// Whether a lazy wait that goes on is to leave its CPU to others, whatever it would win by a spin.
pub fn spares_cpus() -> bool {
    // Both are to hear of the wait.
    let (is_crowded, is_without) = (crowd::note_and_ask(), without::note_and_ask());
    let spares = is_crowded || is_without;
    if spares {
        stats::count(Counter::SpinsSpared, 1);
    }
    spares
}

/// A call that does not wait, with nothing to report, still lets in signals that its mask admits: `EINTR` if one was
/// handled.
pub fn let_signals_in(mask: &u64) -> Result<(), Errno> {
    let mut zero = timespec(0);
    // SAFETY: a live timeout and mask.
    unsafe { kernel::ppoll(&mut [], &raw mut zero, mask) }.map(|_| ())
}
