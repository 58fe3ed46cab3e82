//! Connections of which one end says first that it sends no more, and closes later: ends of those stand, too.

use super::near::figures;
use super::*;
use beeline_stats::Counter;

/// Runs the guest over TCP, then with ends that stand. How many connections it made, and of them over such ends.
fn runs(how: &'static str, when: &'static str) -> (u64, u64) {
    let mut over_tcp = Command::new(guest("finished"));
    over_tcp.args([how, when]).stdin(Stdio::piped()).stdout(Stdio::null());
    let mut over_tcp = Group::start(&mut over_tcp).expect("the guest starts");
    let (stdin, _, _) = over_tcp.pipes();
    stdin.expect("piped").write_all(b"!").expect("the guest listens");
    assert_eq!(over_tcp.finish(LIMIT).expect("the guest ends"), Ending::Exit(0), "{how} {when} over TCP");
    let options = "standing=on,short_lived_lanes=on";
    let (made, [again]) = figures("finished", &format!("{how} {when}"), options, [Counter::ConnectionsAgain]);
    println!("{how} {when}: {again} of {made}");
    (made, again)
}

/// In one of three runs at least: some connections are left to TCP where who is awake does not run for 80 ms.
fn stand(when: &'static str) {
    for how in ["recv", "poll", "level", "edge", "shot"] {
        let do_most = |(made, again)| again * 2 > made;
        assert!((0..3).any(|_| do_most(runs(how, when))), "{how} {when}");
    }
}

#[test]
fn ends_stand_whose_server_says_first_that_it_sends_no_more() {
    stand("once");
}

#[test]
fn ends_stand_that_both_say_that_they_send_no_more() {
    stand("twice");
}

/// They are not rung, so the kernel tells them, and their ends are of no more use.
#[test]
fn who_waits_for_nothing_but_the_end_hears_of_it() {
    for (how, when) in [("rdhup", "once"), ("rdhup", "twice"), ("ends", "once"), ("ends", "twice")] {
        runs(how, when);
    }
}

/// Both halves make an event of their own, and the kernel has to know both where it tells of it.
#[test]
fn who_waits_for_nothing_hears_when_both_halves_are_over() {
    for how in ["hup", "nothing"] {
        for when in ["held", "own", "halves", "forked"] {
            runs(how, when);
        }
    }
}

/// A bell wakes one of them, and the end of the stream is for all.
#[test]
fn all_who_watch_exclusively_hear_of_the_end() {
    for when in ["once", "twice"] {
        runs("two", when);
    }
}

#[test]
fn threads_that_sleep_at_the_end_that_says_so_sleep_on() {
    for when in ["thread", "poller"] {
        for how in ["recv", "level"] {
            runs(how, when);
        }
    }
}
