//! What a proxy does: of its waits every second ends with news of a kernel descriptor, and half of those for lanes are
//! long. News that came soon is no reason to spin there. Told by counts, however busy the machine is.

use beeline_stats::Counter;

use super::near::figures;

fn spins_in_vain_for_hardly_any_round(how: &str) {
    let (rounds, [vain, sleeps]) = figures("mixed", how, "", [Counter::SpinsFailed, Counter::Sleeps]);
    assert!(vain * 10 < rounds, "{vain} spins in vain in {rounds} rounds");
    // There was something to wait for at all.
    assert!(sleeps > rounds, "{sleeps} sleeps in {rounds} rounds");
}

#[test]
fn a_set_of_a_pipe_and_a_lane_is_hardly_spun_for() {
    spins_in_vain_for_hardly_any_round("epoll");
}

#[test]
fn a_poll_for_a_pipe_and_a_lane_hardly_spins() {
    spins_in_vain_for_hardly_any_round("poll");
}

/// No bell and no client can come in such a set, though the process has a lane.
#[test]
fn a_set_of_a_pipe_alone_is_never_spun_for() {
    let counters = [Counter::SpinsFailed, Counter::SpinsPaid, Counter::Sleeps];
    let (rounds, [vain, paid, sleeps]) = figures("mixed", "pipe", "", counters);
    assert_eq!(vain + paid, 0);
    assert!(sleeps >= rounds / 2, "{sleeps} sleeps in {rounds} rounds");
}
