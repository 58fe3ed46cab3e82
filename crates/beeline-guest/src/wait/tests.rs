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
        (0..).find(|_| self.budget().take_grant() != 0).unwrap_or(u32::MAX)
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
    let mut patience = waiting_since(kernel::now_ns() + 60_000_000_000);
    patience.give_way();
    account.budget().slept(&patience, true);
    assert_eq!(account.left(), 0);
}

#[test]
fn what_a_short_sleep_was_told_brings_the_budget_back() {
    let account = Account::of(0);
    let mut patience = Patience::until(None);
    assert_eq!(account.budget().spin(&mut patience, || false), Spun::Nothing);
    // However long this machine takes from here on.
    patience.since_ns = u64::MAX;
    account.budget().slept(&patience, true);
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

fn waiting_since(since_ns: u64) -> Patience {
    let mut patience = Patience::until(None);
    patience.since_ns = since_ns;
    patience
}

/// A sleep that began so long ago ended, with news of lanes or with something else.
fn sleep_of(account: &Account, took_ns: u64, news: bool) {
    let patience = waiting_since(kernel::now_ns() - took_ns);
    account.budget().slept(&patience, news);
}

/// One that was over at once, however long this machine takes.
fn short_sleep_of(account: &Account) {
    let patience = waiting_since(u64::MAX);
    account.budget().slept(&patience, true);
}

#[test]
fn a_short_sleep_brings_nothing_back_where_every_second_wait_ends_otherwise() {
    for (took_ns, news) in [(1_000, false), (5_000_000, true)] {
        let account = Account::of(longest());
        for _ in 0..8 {
            sleep_of(&account, took_ns, news);
            short_sleep_of(&account);
        }
        while account.left() != 0 {
            account.budget().failed(false);
        }
        short_sleep_of(&account);
        sleep_of(&account, took_ns, news);
        short_sleep_of(&account);
        assert_eq!(account.left(), 0);
        for _ in 0..8 {
            short_sleep_of(&account);
        }
        assert_eq!(account.left(), longest());
    }
}

#[test]
fn a_won_spin_keeps_what_is_left_and_brings_nothing_back_there() {
    let account = Account::of(longest());
    for _ in 0..8 {
        sleep_of(&account, 1_000, false);
    }
    account.budget().failed(false);
    assert_eq!(account.budget().spin(&mut Patience::until(None), || true), Spun::News);
    assert_eq!(account.left(), longest() / 2);
}

#[test]
fn nobody_probes_for_news_that_a_probe_could_not_win() {
    let account = Account::of(0);
    for _ in 0..8 {
        sleep_of(&account, 5_000_000, true);
    }
    assert!((0..10_000).all(|_| account.budget().take_grant() == 0));
    for _ in 0..16 {
        short_sleep_of(&account);
    }
    account.0.set_ns(0);
    assert!(account.waits_before_a_probe() < 64);
}

#[test]
fn two_who_slept_only_because_the_other_did_spin_after_one_won_probe() {
    let account = Account::of(0);
    for _ in 0..32 {
        account.0.note(Ended::Fair);
    }
    assert!(!account.0.is_mostly_soon());
    assert_eq!(account.waits_before_a_probe(), 63);
    account.budget().won();
    assert_eq!(account.left(), longest());
    account.budget().failed(true);
    short_sleep_of(&account);
    assert_eq!(account.left(), longest());
}

#[test]
fn whether_spins_have_paid_is_told_by_all_waits_and_not_by_the_last() {
    let account = Account::of(0);
    let begin = |spin_ns| {
        account.0.begin(Mode::of_process());
        account.0.set_ns(spin_ns);
        assert_eq!(account.0.have_paid(), None, "one that has not waited tells nothing");
    };
    let spin = |looks_in_vain: u32| {
        let mut looks = 0;
        let _ = account.budget().spin_by(1, &mut Patience::until(None), || {
            looks += 1;
            if looks > looks_in_vain { Look::News } else { Look::Nothing }
        });
    };
    begin(longest());
    account.budget().failed(false);
    sleep_of(&account, 0, true);
    assert_eq!(account.0.have_paid(), Some(false), "it slept in the end");
    begin(0);
    sleep_of(&account, 0, true);
    assert_eq!(account.0.have_paid(), Some(true), "it would have been a short spin");
    begin(0);
    sleep_of(&account, 60_000_000_000, true);
    assert_eq!(account.0.have_paid(), None);
    begin(longest());
    spin(0);
    assert_eq!(account.0.have_paid(), None, "news was there already");
    let spin_paid = || {
        let before = account.0.have_paid();
        spin(1);
        account.0.have_paid() != before
    };
    while account.0.have_paid() != Some(true) {
        begin(longest());
        spin(1);
    }
    account.budget().failed(true);
    assert_eq!(account.0.have_paid(), Some(false), "one of two is too few");
    account.0.set_ns(longest());
    while !spin_paid() {}
    assert_eq!(account.0.have_paid(), Some(true), "the last one waited for the end");
}
