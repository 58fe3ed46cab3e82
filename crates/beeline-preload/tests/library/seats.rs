//! Ends that one of several processes keeps which accept from one listener.

use super::near::figures;
use super::*;
use beeline_stats::Counter;

/// What a client has made of connections to such a crowd, over ends that stand, and late over TCP. The same was run
/// over TCP.
fn connections(how: &str) -> [u64; 3] {
    let mut over_tcp = Group::start(Command::new(guest("seats")).arg(how).stdin(Stdio::piped()).stdout(Stdio::null()))
        .expect("the guest starts");
    let (stdin, _, _) = over_tcp.pipes();
    stdin.expect("piped").write_all(b"!").expect("the guest listens");
    assert_eq!(over_tcp.finish(LIMIT).expect("the guest ends"), Ending::Exit(0), "{how} over TCP");
    let counters = [Counter::ConnectionsAgain, Counter::LateFallbacks];
    let (made, [again, late]) = figures("seats", how, "short_lived_lanes=on", counters);
    println!("{how}: {made} connections, {again} over ends that stand, {late} late over TCP");
    [made, again, late]
}

/// Whether the counts of such a run are as `expected`, of `made`, `again` and `late`; or those of the next two, as some
/// are not where a machine is so busy that who is awake does not run for 80 ms.
fn are_mostly(how: &str, expected: impl Fn(u64, u64, u64) -> bool) -> bool {
    let run = || {
        let [made, again, late] = connections(how);
        expected(made, again, late)
    };
    run() || run() && run()
}

#[test]
fn a_client_of_a_crowd_comes_again_over_the_end_that_its_last_server_keeps() {
    assert!(are_mostly("again", |made, again, late| again * 3 > made && late == 0));
}

#[test]
fn whoever_waits_serves_a_client_while_the_server_of_the_last_one_is_at_something_else() {
    for how in ["busy", "threads", "handler", "jumps", "cancelled", "killed"] {
        // One that is killed may have been claimed.
        assert!(are_mostly(how, |_, again, late| again != 0 && late <= u64::from(how == "killed")), "{how}");
    }
}

/// It said that it waits, and nobody is told that it does not run: its client begins again over TCP in time.
#[test]
fn a_client_of_a_server_that_is_stopped_is_served_by_another() {
    assert!(are_mostly("stopped", |_, again, late| again != 0 && late <= 2));
}
