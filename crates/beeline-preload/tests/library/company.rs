//! Many connections whose peers all send while the one thread that waits for them sleeps.

use super::near::figures;
use super::*;
use beeline_stats::Counter;

/// Messages that were answered, and bells that were rung for them. The same was run over TCP.
fn answered(how: &str) -> (u64, u64) {
    let mut over_tcp =
        Group::start(Command::new(guest("company")).arg(how).stdin(Stdio::piped()).stdout(Stdio::null()))
            .expect("the guest starts");
    let (stdin, _, _) = over_tcp.pipes();
    stdin.expect("piped").write_all(b"!").expect("the guest listens");
    assert_eq!(over_tcp.finish(LIMIT).expect("the guest ends"), Ending::Exit(0), "{how} over TCP");
    let (messages, [bells]) = figures("company", how, "", [Counter::DoorbellsSent]);
    println!("{how}: {messages} messages, {bells} bells");
    (messages, bells)
}

/// Runs it until so few bells in a hundred messages were rung: where others have the CPU, who asks is kept from asking
/// further, and who answers goes to sleep in between.
fn rings_for_few(how: &str, percent_max: u64) {
    const TRIES: usize = 5;
    let rings = |(messages, bells)| bells * 100 >= messages * percent_max;
    let dear: Vec<_> = (0..TRIES).map(|_| answered(how)).take_while(|answered| rings(*answered)).collect();
    assert!(dear.len() < TRIES, "{how}: messages and bells {dear:?}");
}

#[test]
fn a_bell_for_one_of_many_connections_tells_of_all() {
    for how in ["alone", "edges", "poll-alone"] {
        // Each answer is waited for by itself, and rings.
        rings_for_few(how, 75);
    }
}

#[test]
fn a_bell_tells_of_all_after_programs_were_started_too() {
    for how in ["spawned", "poll-spawned"] {
        // No answer rings.
        rings_for_few(how, 10);
    }
}

#[test]
fn a_set_that_a_copy_of_its_process_has_has_each_message_ring() {
    let (messages, bells) = answered("cloned");
    assert!(bells * 4 > messages, "{bells} bells for {messages} messages");
}

#[test]
fn a_bell_tells_of_all_after_a_child_that_had_the_set_is_gone() {
    for how in ["saved", "uses", "drops", "becomes"] {
        // No answer rings. A member that was taken out rings beside the others.
        rings_for_few(how, 25);
    }
}

#[test]
fn each_connection_rings_as_long_as_a_program_may_have_the_set() {
    for how in ["passes", "inherits"] {
        let (messages, bells) = answered(how);
        // All but the answers do.
        assert!(bells * 3 > messages, "{how}: {bells} bells for {messages} messages");
    }
}

#[test]
fn no_message_is_missed_while_another_thread_meddles_with_the_set_or_the_connections() {
    for how in [
        "modifies",
        "moves",
        "second",
        "polls",
        "peeks",
        "reads",
        "duplicates",
        "waits",
        "watches",
        "forks",
        "saves",
        "closes",
    ] {
        let (messages, _) = answered(how);
        assert!(messages != 0, "{how}");
    }
    for how in ["second", "polls", "peeks", "reads", "duplicates", "forks"] {
        let how = format!("poll-{how}");
        assert!(answered(&how).0 != 0, "{how}");
    }
}
