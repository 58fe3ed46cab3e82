//! Nobody spins for a peer that needs the CPU on which the spin would go on. Told by counts, however busy the machine
//! is.

use super::*;

use beeline_stats::Counter;

/// Runs a guest, told `how` in words, that says how much it has done and waits to be looked at; returns that and the
/// counters asked for.
pub fn figures<const N: usize>(
    name: &'static str,
    how: &str,
    options: &str,
    counters: [Counter; N],
) -> (u64, [u64; N]) {
    let mut command = Command::new(guest(name));
    command.args(how.split(' ')).stdin(Stdio::piped()).stdout(Stdio::piped());
    preload::apply(&mut command, Some(library()));
    command.env("BEELINE_OPTIONS", options);
    let mut group = Group::start(&mut command).expect("the guest starts");
    let (stdin, stdout, _) = group.pipes();
    let mut line = String::new();
    BufReader::new(stdout.expect("piped")).read_line(&mut line).expect("the guest speaks");
    let done: u64 = line.trim().parse().expect("how much was done");
    let bytes = std::fs::read(statistics(group.id())).expect("the file can be read");
    let snapshot = beeline_stats::Snapshot::parse(&bytes).expect("the file is well-formed");
    stdin.expect("piped").write_all(b"!").expect("the guest listens");
    assert_eq!(group.finish(LIMIT).expect("the guest ends"), Ending::Exit(0));
    (done, counters.map(|counter| snapshot.counter(counter)))
}

fn spins_for_hardly_any_message(how: &str) {
    let counters = [Counter::SpinsFailed, Counter::SpinsPaid, Counter::Sleeps];
    let (trips, [failed, paid, sleeps]) = figures("near", how, "", counters);
    let spins = failed + paid;
    assert!(spins * 20 < trips, "{spins} spins in {trips} trips");
    // There was something to wait for at all.
    assert!(sleeps * 2 > trips, "{sleeps} sleeps in {trips} trips");
}

#[test]
fn blocking_calls_do_not_spin_for_a_peer_on_the_same_cpu() {
    spins_for_hardly_any_message("blocking");
}

#[test]
fn epoll_does_not_spin_for_a_peer_on_the_same_cpu() {
    spins_for_hardly_any_message("level");
}

#[test]
fn edges_do_not_spin_for_a_peer_on_the_same_cpu() {
    spins_for_hardly_any_message("edge");
}

#[test]
fn poll_does_not_spin_for_a_peer_on_the_same_cpu() {
    spins_for_hardly_any_message("poll");
}

#[test]
fn select_does_not_spin_for_a_peer_on_the_same_cpu() {
    spins_for_hardly_any_message("select");
}

/// How often a guest that streams on one CPU gave its receiver a turn.
fn turns(how: &str, option: &str) -> u64 {
    let (_, [turns]) = figures("turns", how, option, [Counter::Turns]);
    turns
}

/// How many are taken is told by how busy the machine is, but not whether any are.
#[test]
fn a_stream_on_one_cpu_goes_in_turns() {
    for how in ["blocking", "epoll"] {
        assert!(turns(how, "turn_bytes=256K") >= 1, "{how}");
        assert_eq!(turns(how, "turn_bytes=off"), 0, "{how}");
    }
}

/// They are tried after a hundred megabytes, or after two windows of which the second took twice as long, which a busy
/// machine can do to it. The guest sends less.
#[test]
fn turns_that_are_to_prove_themselves_are_not_what_a_stream_begins_with() {
    assert_eq!(turns("short", "turn_bytes=auto"), 0);
}

#[test]
fn a_send_that_must_not_wait_waits_for_no_turn() {
    assert_eq!(turns("nonblocking", "turn_bytes=256K"), 0);
}

/// The receiver never takes its turn. The sender waits for that once, and then fills the ring.
#[test]
fn a_stream_that_nobody_reads_fills_the_ring_and_not_one_turn() {
    assert_eq!(turns("late", "turn_bytes=256K"), 1);
}

/// A receiver takes its turns, but slowly, so that the sender waits again and again. The guest checks that its handler
/// ends that.
#[test]
fn a_signal_ends_a_send_in_turns_as_it_ends_one_that_waits_for_room() {
    assert!(turns("signal", "turn_bytes=256K") >= 1);
}

/// Whether a thread goes is told by how busy the machine is; what it may use is the same before and afterwards, at both
/// ends.
#[test]
fn who_is_parted_from_its_peer_may_use_the_cpus_that_it_might() {
    for (option, most) in [("part_ends=on", 1), ("part_ends=off", 0)] {
        let (trips, [parted]) = figures("parted", "", option, [Counter::ThreadsParted]);
        println!("{option}: {parted} in {trips} trips");
        assert!(parted <= most && trips != 0, "{option}: {parted} in {trips} trips");
    }
}
