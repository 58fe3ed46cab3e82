//! How long the bridge looks for news before it sleeps.
//!
//! 1. On a host with many CPUs it spins for `spin_us` after each piece of news.
//! 2. On one with few, a spin may keep from running those whom it waits for: its clients, and a peer bridge on the same
//!    host. There it spins only while that pays: a spin in vain costs twice as many of the following as the one
//!    before, and one that found news an eighth less. So it goes on where five of six find something.
//! 3. After it has rung for a client it does not spin there at all.
//! 4. Rules 2 and 3 hold where a sleeping program wakes within a few microseconds. Where the host takes idle virtual
//!    CPUs away, each of the three wakes of a message costs tens of microseconds, which no spin does: there the bridge
//!    spins as on a host with many CPUs. (Two hosts of two CPUs each, 8 B one way: 63 us spinning and 8 not where a
//!    program wakes within 6 us; 37 to 53 spinning and 121 to 172 not where it takes 25 and more.)
//! 5. Where programs that compute want all CPUs it does not spin at all, whatever the host: it would take a CPU from
//!    somebody who has work, and a wake there is a switch on a CPU that runs ([`crowd`]).

mod crowd;
mod wake;

use crowd::Crowd;

/// Spins that are left out after the first in vain.
const SKIPPED_MIN: u32 = 8;
/// Most spins that are left out in a row.
const SKIPPED_MAX: u32 = 256;

/// A wake that takes so long is dear (rule 4).
const DEAR_WAKE_NS: u64 = 15_000;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Spin {
    /// Whether each spin has to earn the next one.
    must_pay: bool,
    /// When the bridge ran out of news, and whether it spins since then.
    idle: Option<(u64, bool)>,
    /// Spins to leave out after one in vain.
    price: u32,
    /// Spins still to be left out.
    skip: u32,
    crowd: Crowd,
    /// Spins that were begun.
    begun: u64,
}

impl Spin {
    /// For this host.
    pub(super) fn for_host(few_cpus: bool) -> Self {
        let cheap = || wake::cost_ns().is_none_or(|cost_ns| cost_ns < DEAR_WAKE_NS);
        Self { crowd: Crowd::of_thread(), ..Self::new(few_cpus && cheap()) }
    }

    fn new(must_pay: bool) -> Self {
        Self { must_pay, ..Self::default() }
    }

    /// There is news.
    pub(super) fn news(&mut self) {
        if let Some((_, true)) = self.idle.take() {
            self.price -= self.price.div_ceil(8);
        }
    }

    /// There is none. Whether to look again at once instead of going to sleep; `rang` if a client was rung for.
    pub(super) fn goes_on(&mut self, now_ns: u64, spin_us: u64, rang: bool) -> bool {
        if self.crowd.is() {
            return false;
        }
        if !self.must_pay {
            let since = match self.idle {
                Some((since, _)) => since,
                None => self.begin(now_ns, spin_us != 0),
            };
            return is_within(since, now_ns, spin_us);
        }
        if rang {
            return false;
        }
        let (since, spins) = match self.idle {
            Some(idle) => idle,
            None => {
                let spins = self.skip == 0;
                self.skip = self.skip.saturating_sub(1);
                (self.begin(now_ns, spins), spins)
            }
        };
        if spins && !is_within(since, now_ns, spin_us) {
            self.price = (self.price * 2).clamp(SKIPPED_MIN, SKIPPED_MAX);
            self.skip = self.price;
            self.idle = Some((since, false));
            return false;
        }
        spins
    }

    /// The bridge is idle from now on. Returns since when.
    fn begin(&mut self, now_ns: u64, spins: bool) -> u64 {
        self.begun = self.begun.saturating_add(spins.into());
        self.idle = Some((now_ns, spins && self.must_pay));
        now_ns
    }

    /// Spins that were begun so far.
    pub(super) fn begun(&self) -> u64 {
        self.begun
    }

    /// The bridge runs at this moment: called before and after everything that may take long.
    pub(super) fn pass(&mut self, now_ns: u64) {
        self.crowd.pass(now_ns);
    }

    /// Whether programs that compute want all CPUs by now, if that is news.
    pub(super) fn crowd_turned(&mut self) -> Option<bool> {
        self.crowd.turned()
    }
}

fn is_within(since_ns: u64, now_ns: u64, spin_us: u64) -> bool {
    now_ns.saturating_sub(since_ns) < spin_us.saturating_mul(1000)
}

#[cfg(test)]
mod tests {
    use super::*;

    const US: u64 = 1000;

    /// Lets the bridge be idle from `now_ns` on until it would sleep. How long it spun.
    fn spin_in_vain(spin: &mut Spin, now_ns: u64) -> u64 {
        let mut then = now_ns;
        while spin.goes_on(then, 50, false) {
            then += US;
        }
        then - now_ns
    }

    #[test]
    fn with_many_cpus_each_spin_is_whole() {
        let mut spin = Spin::new(false);
        for round in 0..10 {
            assert_eq!(spin_in_vain(&mut spin, round * 1_000 * US), 50 * US);
            spin.news();
        }
        assert!(spin.goes_on(0, 50, true), "a ring does not matter");
    }

    #[test]
    fn with_few_cpus_spins_in_vain_become_rare() {
        let mut spin = Spin::new(true);
        let mut spun = 0;
        for round in 0..10_000 {
            spun += u64::from(spin_in_vain(&mut spin, round * 1_000 * US) != 0);
            spin.news();
        }
        assert!((10..60).contains(&spun), "{spun} of 10,000");
    }

    #[test]
    fn a_spin_that_pays_earns_the_next() {
        let mut spin = Spin::new(true);
        for round in 0..100 {
            spin_in_vain(&mut spin, round * 1_000 * US);
            spin.news();
        }
        let mut now = 1_000_000 * US;
        let mut spins = 0;
        for wait in 0..10_000 {
            let spun = spin.goes_on(now, 50, false);
            spins = if spun { spins + 1 } else { 0 };
            spin.news();
            now += 100 * US;
            if wait == 5_000 {
                assert!(spins > 1_000, "all pay, and of the last only {spins} were made");
            }
        }
        assert!(spins > 5_000, "{spins}");
    }

    #[test]
    fn where_half_the_spins_pay_they_are_rare() {
        let mut spin = Spin::new(true);
        let mut made = 0;
        for wait in 0..10_000 {
            let now = wait * 1_000 * US;
            let pays = made % 2 == 0;
            if spin.goes_on(now, 50, false) {
                made += 1;
                if !pays {
                    spin_in_vain(&mut spin, now);
                }
            }
            spin.news();
        }
        assert!(made < 300, "{made} of 10,000");
    }

    #[test]
    fn with_few_cpus_a_ring_ends_it() {
        let mut spin = Spin::new(true);
        assert!(!spin.goes_on(0, 50, true));
        spin.news();
        assert!(spin.goes_on(0, 50, false));
    }

    #[test]
    fn no_time_is_no_spin() {
        for must_pay in [false, true] {
            assert!(!Spin::new(must_pay).goes_on(7, 0, false));
        }
    }
}
