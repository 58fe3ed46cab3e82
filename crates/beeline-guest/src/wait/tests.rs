//! What a budget grows and shrinks by. No case depends on how fast the machine is.

use super::*;
use crate::kernel;

/// A waiter with nothing but its budget.
struct Account(SpinState);

impl Account {
    fn of(spin_ns: u32) -> Self {
        Self(SpinState::new(spin_ns))
    }

    fn budget(&self) -> Budget<'_> {
        Budget { state: &self.0, extra_ns: 0 }
    }

    fn left(&self) -> u32 {
        self.0.ns()
    }

    /// Waits that pass without a spin before one is tried.
    fn waits_before_a_probe(&self) -> u32 {
        (0..).find(|_| self.budget().grant() != 0).unwrap_or(u32::MAX)
    }
}

fn longest() -> u32 {
    crate::config().spin_ns_max as u32
}

#[test]
fn spins_in_vain_halve_a_budget_and_one_that_was_kept_from_running_ends_it() {
    let account = Account::of(longest());
    account.budget().failed(false);
    assert_eq!(account.left(), longest() / 2);
    account.budget().failed(true);
    assert_eq!(account.left(), 0);
    account.budget().paid();
    assert_eq!(account.left(), longest());
}

#[test]
fn probes_in_vain_become_rare_until_one_pays() {
    let account = Account::of(0);
    let mut waits = Vec::new();
    for _ in 0..6 {
        waits.push(account.waits_before_a_probe());
        account.budget().failed(false);
    }
    assert_eq!(waits, [63, 127, 255, 511, 1023, 1023]);
    account.budget().paid();
    account.0.set_ns(0);
    assert_eq!(account.waits_before_a_probe(), 63);
}

#[test]
fn what_a_wait_that_gave_way_was_told_is_no_reason_to_spin() {
    let account = Account::of(0);
    // It waited for no time at all.
    let mut patience = Patience { since_ns: kernel::now_ns() + 60_000_000_000, ..Patience::until(None) };
    patience.give_way();
    account.budget().slept(&patience);
    assert_eq!(account.left(), 0);
}

#[test]
fn what_a_short_sleep_was_told_brings_the_budget_back() {
    let account = Account::of(0);
    let mut patience = Patience::until(None);
    assert_eq!(account.budget().spin(&mut patience, || false), Spun::Nothing);
    // However long this machine takes from here on.
    patience.since_ns = u64::MAX;
    account.budget().slept(&patience);
    assert_eq!(account.left(), longest());
}

#[test]
fn a_peer_on_the_same_cpu_ends_a_spin_at_once_and_the_budget_stays() {
    let account = Account::of(longest());
    let mut patience = Patience::until(None);
    let mut looks = 0;
    let spun = account.budget().spin_by(1, &mut patience, || {
        looks += 1;
        if looks == 1 { Look::Nothing } else { Look::Near }
    });
    assert_eq!((spun, looks), (Spun::Nothing, 2));
    assert_eq!((account.left(), patience.since_ns), (longest(), 0));
}
