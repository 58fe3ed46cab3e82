//! Nobody spins for a peer that needs the CPU on which the spin would go on. Told by counts, however busy the machine is.

use super::*;

fn spins_for_hardly_any_message(how: &str) {
    use beeline_stats::Counter;
    let mut command = Command::new(guest("near"));
    command.arg(how).stdin(Stdio::piped()).stdout(Stdio::piped());
    preload::apply(&mut command, Some(library()));
    let mut group = Group::start(&mut command).expect("the guest starts");
    let (stdin, stdout, _) = group.pipes();
    let mut line = String::new();
    BufReader::new(stdout.expect("piped")).read_line(&mut line).expect("the guest speaks");
    let trips: u64 = line.trim().parse().expect("the number of trips");
    let bytes = std::fs::read(statistics(group.id())).expect("the file can be read");
    let snapshot = beeline_stats::Snapshot::parse(&bytes).expect("the file is well-formed");
    let count = |counter| snapshot.counter(counter);
    let spins = count(Counter::SpinsFailed) + count(Counter::SpinsPaid);
    assert!(spins * 20 < trips, "{spins} spins in {trips} trips");
    // There was something to wait for at all.
    let sleeps = count(Counter::Sleeps);
    assert!(sleeps * 2 > trips, "{sleeps} sleeps in {trips} trips");
    stdin.expect("piped").write_all(b"!").expect("the guest listens");
    assert_eq!(group.finish(LIMIT).expect("the guest ends"), Ending::Exit(0));
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
