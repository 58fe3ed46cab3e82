//! What an account grows and shrinks by, seen through a waiter's budget. No case depends on how fast the machine is.

use super::*;
use crate::kernel;

/// A waiter with nothing but its account.
struct Waiter(SpinState);

impl Waiter {
    fn new() -> Self {
        let state = SpinState { ns: AtomicU32::new(0), skipped: AtomicU32::new(0), ledger: AtomicU64::new(0) };
        Self(state)
    }

    fn eager() -> Self {
        let waiter = Self::new();
        waiter.0.keep(Ledger::new(u8::MAX, longest()));
        waiter
    }

    fn budget(&self) -> Budget<'_> {
        Budget { state: &self.0, extra_ns: 0 }
    }
}

#[test]
fn spins_in_vain_are_paid_for_and_one_that_was_kept_from_running_ends_them() {
    let waiter = Waiter::eager();
    assert_eq!(waiter.budget().grant(), u64::from(longest()));
    assert_eq!(waiter.0.ns(), longest(), "a full account is told by one look");
    waiter.budget().failed(u64::from(longest()) * 3 / 2, false);
    assert_eq!(waiter.0.ns(), longest() / 2);
    waiter.budget().paid();
    assert_eq!(waiter.0.ns(), longest() / 2 + ledger::SOON_NS);
    waiter.budget().failed(0, true);
    assert_eq!((waiter.0.ns(), waiter.budget().grant()), (0, 0));
}

#[test]
fn what_sleeps_are_worth_more_is_spun_for_nothing() {
    let waiter = Waiter::eager();
    let budget = Budget { state: &waiter.0, extra_ns: 1_000_000 };
    budget.failed(1_000_000, false);
    assert_eq!(waiter.0.ns(), longest());
}

#[test]
fn what_a_wait_that_gave_way_was_told_is_no_reason_to_spin() {
    let waiter = Waiter::new();
    // It waited for no time at all.
    let mut patience = Patience { since_ns: kernel::now_ns() + 60_000_000_000, ..Patience::until(None) };
    patience.give_way();
    for _ in 0..100 {
        waiter.budget().slept(&patience, true);
    }
    assert_eq!(waiter.budget().grant(), 0);
}

#[test]
fn short_sleeps_in_a_row_that_end_with_news_of_lanes_bring_spins_back() {
    let waiter = Waiter::new();
    let mut patience = Patience::until(None);
    assert_eq!(waiter.budget().spin(&mut patience, || false), Spun::Nothing);
    // However long this machine takes from here on.
    patience.since_ns = u64::MAX;
    waiter.budget().slept(&patience, true);
    assert_eq!(waiter.budget().grant(), 0, "one is no reason");
    for _ in 0..20 {
        waiter.budget().slept(&patience, true);
    }
    assert_eq!(waiter.budget().grant(), u64::from(longest()));
    for _ in 0..20 {
        waiter.budget().slept(&patience, false);
    }
    assert_eq!(waiter.budget().grant(), 0, "news of others is no reason, however soon it comes");
}

#[test]
fn a_peer_on_the_same_cpu_ends_a_spin_at_once_and_the_account_stays() {
    let waiter = Waiter::eager();
    let mut patience = Patience::until(None);
    let mut looks = 0;
    let spun = waiter.budget().spin_by(1, &mut patience, || {
        looks += 1;
        if looks == 1 { Look::Nothing } else { Look::Near }
    });
    assert_eq!((spun, looks), (Spun::Nothing, 2));
    assert_eq!((waiter.0.ns(), patience.since_ns), (longest(), 0));
}

#[test]
fn news_of_others_that_ends_a_spin_is_none_of_lanes() {
    let waiter = Waiter::eager();
    let mut patience = Patience::until(None);
    for _ in 0..4 {
        assert_eq!(waiter.budget().spin_by(1, &mut patience, || Look::Foreign), Spun::News);
    }
    for _ in 0..4 {
        let _ = waiter.budget().spin_by(1, &mut patience, || Look::Foreign);
    }
    assert_eq!(waiter.budget().spin_by(1, &mut patience, || Look::Foreign), Spun::Nothing, "it sleeps at once");
}
