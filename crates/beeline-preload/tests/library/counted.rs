//! What the statistics say: connections on TCP are counted once, with their reason, and nobody is counted as silent who
//! spoke.

use super::*;

/// Runs a guest until it pauses; by then it has made so many connections on TCP as client and so many as server, with
/// their reason on record.
pub fn counts_each_connection_once(
    program: &Path,
    case: &str,
    reason: beeline_stats::Reason,
    [client, server]: [u64; 2],
) {
    use beeline_stats::{Counter, Role};
    let mut command = Command::new(program);
    command.arg(case).stdin(Stdio::piped()).stdout(Stdio::piped());
    preload::apply(&mut command, Some(library()));
    let mut group = Group::start(&mut command).expect("the guest starts");
    let (stdin, stdout, _) = group.pipes();
    let mut line = String::new();
    BufReader::new(stdout.expect("piped")).read_line(&mut line).expect("the guest speaks");
    if line == "ready\n" {
        let bytes = std::fs::read(statistics(group.id())).expect("the file can be read");
        let snapshot = beeline_stats::Snapshot::parse(&bytes).expect("the file is well-formed");
        assert_eq!(snapshot.reason(Role::Client, reason), client);
        assert_eq!(snapshot.reason(Role::Server, reason), server);
        assert_eq!(snapshot.counter(Counter::ConnectionsFallenBackClient), client);
        assert_eq!(snapshot.counter(Counter::ConnectionsFallenBackServer), server);
    }
    stdin.expect("piped").write_all(b"go\n").expect("the guest listens");
    assert_eq!(group.finish(LIMIT).expect("the guest ends"), Ending::Exit(0));
}

#[test]
fn connections_made_after_a_ring_are_counted() {
    // The one that was read through the ring, and two that came later.
    let reason = beeline_stats::Reason::IoUringDenied;
    counts_each_connection_once(&guest("rings"), "makes_connections_after_a_ring", reason, [3, 3]);
}

#[test]
fn connections_of_a_program_with_rings_of_its_own_are_counted() {
    let reason = beeline_stats::Reason::IoUringCarried;
    counts_each_connection_once(&guest("ownrings"), "has_its_own_rings_and_pauses", reason, [1, 1]);
}

#[test]
fn connections_that_come_after_a_ring_are_counted() {
    // One that was made, one that was accepted, and the accepted end of one that another process has passed on.
    counts_each_connection_once(&guest("leavers"), "is_counted", beeline_stats::Reason::IoUringDenied, [1, 2]);
}

#[test]
fn clients_who_come_while_a_door_opens_are_not_taken_for_silent() {
    let mut command = Command::new(guest("early"));
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    preload::apply(&mut command, Some(library()));
    let mut group = Group::start(&mut command).expect("the guest starts");
    let (stdin, stdout, _) = group.pipes();
    let mut line = String::new();
    BufReader::new(stdout.expect("piped")).read_line(&mut line).expect("the guest speaks");
    assert_eq!(line, "served\n");
    let bytes = std::fs::read(statistics(group.id())).expect("the file can be read");
    let snapshot = beeline_stats::Snapshot::parse(&bytes).expect("the file is well-formed");
    assert_eq!(snapshot.poison(beeline_stats::Poison::HelloSilent), 0);
    stdin.expect("piped").write_all(b"!").expect("the guest listens");
    assert_eq!(group.finish(LIMIT).expect("the guest ends"), Ending::Exit(0));
}

/// Short-lived connections to a server for which lanes are dear are compared with TCP, and left to it where that is
/// faster; those after a pause are not. The client's connections over lanes, and those on TCP for that reason, after
/// each of both.
fn short_lived(how: &[&str], options: &str) -> [(u64, u64); 2] {
    use beeline_stats::{Counter, Reason, Role};
    let mut command = Command::new(guest("brief"));
    command.args(how);
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    preload::apply(&mut command, Some(library()));
    command.env("BEELINE_OPTIONS", options);
    let mut group = Group::start(&mut command).expect("the guest starts");
    let (stdin, stdout, _) = group.pipes();
    let mut stdin = stdin.expect("piped");
    let mut lines = BufReader::new(stdout.expect("piped")).lines();
    let counted = ["asked", "asked again"].map(|said| {
        assert_eq!(lines.next().expect("the guest speaks").expect("in UTF-8"), said);
        let bytes = std::fs::read(statistics(group.id())).expect("the file can be read");
        let snapshot = beeline_stats::Snapshot::parse(&bytes).expect("the file is well-formed");
        stdin.write_all(b"!").expect("the guest listens");
        let lanes = snapshot.counter(Counter::ConnectionsAcceleratedClient);
        (lanes, snapshot.reason(Role::Client, Reason::ShortLived))
    });
    assert_eq!(group.finish(LIMIT).expect("the guest ends"), Ending::Exit(0));
    counted
}

#[test]
fn short_lived_connections_are_compared_with_tcp_until_there_is_a_pause() {
    for how in [&[][..], &["mapped"]] {
        let [(lanes, left), (more_lanes, still_left)] = short_lived(how, "");
        assert_ne!(left, 0, "none of 500 went by TCP, {how:?}");
        // The first ones may come before the server has opened its door.
        assert!(lanes + left > 450, "{lanes} over lanes, {left} left to TCP, {how:?}");
        assert_eq!((more_lanes - lanes, still_left), (8, left), "{how:?}");
    }
}

#[test]
fn short_lived_connections_stay_on_lanes_by_option() {
    let [(lanes, left), (more_lanes, still_left)] = short_lived(&[], "short_lived_lanes=on");
    assert!(lanes > 450, "{lanes} over lanes");
    assert_eq!((left, more_lanes - lanes, still_left), (0, 8, 0));
}

#[test]
fn parts_of_a_call_wake_the_reader_once() {
    use beeline_stats::Counter::{ConnectionsAcceleratedClient, ConnectionsAcceleratedServer, DoorbellsSent};
    let counters = [DoorbellsSent, ConnectionsAcceleratedClient, ConnectionsAcceleratedServer];
    // A server that gets no CPU for long leaves its client to TCP, which rings no bells.
    let over_a_lane = (0..10).find_map(|_| {
        let (trips, [bells, connected, accepted]) = super::near::figures("parts", "", "wait=wait", counters);
        (connected + accepted != 0).then_some((trips, bells))
    });
    let (trips, bells) = over_a_lane.expect("a lane in ten connections");
    assert!((trips..=trips + trips / 10).contains(&bells), "{bells} bells for {trips} calls");
}
