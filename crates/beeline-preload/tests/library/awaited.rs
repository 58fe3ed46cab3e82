//! Threads that wait in accept for one listener.

use super::near::figures;
use beeline_stats::Counter;

/// Clients of the guest, one after the other, for each of which sixteen threads sleep.
const CLIENTS: u64 = 1_000;

/// Over TCP one thread wakes for each. Here a second one may before the first has accepted; on a busy machine more do.
fn wakes_few(case: &str, are_over_lanes: bool) {
    let (woken, [over_lanes]) =
        figures("sleepers", case, "short_lived_lanes=on", [Counter::ConnectionsAcceleratedServer]);
    println!("{case}: {woken} waits ended for {CLIENTS} clients, {over_lanes} over lanes");
    assert!(woken < 6 * CLIENTS, "{woken} waits ended for {CLIENTS} clients");
    assert_eq!(over_lanes > CLIENTS / 2, are_over_lanes, "{over_lanes} over lanes");
}

#[test]
fn few_of_many_threads_wake_for_a_client_over_a_lane() {
    wakes_few("few_wake_for_each_client_over_a_lane", true);
}

#[test]
fn few_of_many_threads_wake_for_a_client_over_tcp() {
    wakes_few("few_wake_for_each_client_over_tcp", false);
}

cases! { sleepers:
    a_handler_ends_the_wait_of_its_thread
    who_was_stopped_waits_on
    a_timeout_ends_each_wait
    threads_are_cancelled
    a_listener_that_is_shut_ends_all_waits
    who_waits_for_what_is_closed_waits_on
    the_child_of_a_fork_waits_too
    numbers_run_short_while_threads_wait
    a_limit_that_is_lowered_keeps_nobody_waiting;
    few_wake_for_each_client_over_a_lane
    few_wake_for_each_client_over_tcp
}
