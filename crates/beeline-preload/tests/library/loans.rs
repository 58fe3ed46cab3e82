//! Long messages that are copied once, from the sender's memory to the receiver's: they are what was sent, whatever
//! happens to the two meanwhile, and where that cannot be, the ring carries them.

use super::near::figures;

use beeline_stats::Counter;

/// Runs a guest that is sent long messages; returns how many KiB it has got, what it has fetched, and how often it was
/// refused. It spins for them, however busy the machine is.
fn received(how: &str, options: &str) -> (u64, u64, u64) {
    let options = format!("wait=poll,short_lived_lanes=on,{options}");
    let (kilobytes, [fetched, refused]) = figures("loans", how, &options, [Counter::Fetched, Counter::FetchesRefused]);
    (kilobytes, fetched, refused)
}

const STREAM_KIB: u64 = 192 << 10;

/// Where others take the CPUs, a sender may find its receiver only now and then, and then tries it seldom: but all
/// comes, and some is fetched in one of some runs.
#[track_caller]
fn some_are_fetched(how: &str) {
    let fetches = |_| {
        let (kilobytes, fetched, _) = received(how, "zcopy_threshold_bytes=16K");
        assert!(kilobytes != 0);
        fetched != 0
    };
    assert!((0..30).any(fetches), "nothing was fetched");
}

#[track_caller]
fn none_is_fetched(how: &str, options: &str) -> u64 {
    let (kilobytes, fetched, refused) = received(how, options);
    assert_eq!((kilobytes, fetched), (STREAM_KIB, 0));
    refused
}

#[test]
fn messages_of_all_lengths_are_received_whole_by_each_call() {
    some_are_fetched("stream");
}

#[test]
fn a_threshold_beyond_the_message_leaves_all_to_the_ring() {
    some_are_fetched("fixed");
    none_is_fetched("fixed", "zcopy_threshold_bytes=257K");
    none_is_fetched("fixed", "zcopy_threshold_bytes=off");
    none_is_fetched("fixed", "stats=on");
}

#[test]
fn a_receiver_that_may_not_look_into_the_sender_asks_once() {
    // As in `some_are_fetched`: it may be lent nothing.
    let is_refused_once = |_| {
        let refused = none_is_fetched("refused", "zcopy_threshold_bytes=16K");
        assert!(refused <= 1, "{refused}");
        refused == 1
    };
    assert!((0..8).any(is_refused_once), "nothing was tried");
}

#[test]
fn nothing_is_fetched_from_another_user() {
    none_is_fetched("user", "zcopy_threshold_bytes=16K,foreign_uid=on");
}

/// The kernel knows who has connected, not who sends.
#[test]
fn a_child_that_goes_on_sending_is_not_taken_for_its_parent() {
    assert!(none_is_fetched("child", "zcopy_threshold_bytes=16K") <= 1);
}

#[test]
fn an_end_that_processes_share_lends_nothing() {
    none_is_fetched("shared", "zcopy_threshold_bytes=16K");
}

#[test]
fn a_sender_that_is_interrupted_sends_what_it_says() {
    some_are_fetched("signals");
}

#[test]
fn ends_that_are_stopped_lose_nothing() {
    some_are_fetched("stopped");
}

#[test]
fn what_a_killed_sender_has_lent_is_whole_or_not_there() {
    some_are_fetched("killed");
}

#[test]
fn the_memory_of_a_program_that_was_executed_meanwhile_is_not_taken_for_what_was_lent() {
    some_are_fetched("executes");
}

#[test]
fn memory_that_is_replaced_meanwhile_is_what_it_is_replaced_by() {
    some_are_fetched("remapped");
}
