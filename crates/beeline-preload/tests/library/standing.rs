//! Ends that are kept of closed connections, while something changes before the next one: who uses them, whether the
//! other one lives or runs, how many numbers there are.

use super::*;
use beeline_stats::Counter;

cases! { stands:
    a_client_that_changes_its_user_is_served
    a_client_of_another_user_is_served
    a_server_that_changes_its_user_serves
    a_server_of_another_user_serves
    a_server_that_drops_root_serves
    a_blocking_server_is_killed
    a_polling_server_is_killed
    a_watching_server_is_killed
    a_blocking_server_is_stopped
    a_polling_server_is_stopped
    a_watching_server_is_stopped
    all_numbers_are_for_files
    all_numbers_are_for_duplicates
    all_numbers_are_for_clients
    all_numbers_are_for_connections
    numbers_are_few_from_now_on;
}

/// Connections that a client has made, over ends that stand, and over lanes that a server has taken.
#[derive(Clone, Copy, Debug)]
struct Counts {
    made: u64,
    again: u64,
    over_lanes: u64,
}

/// What a client has counted each time it waits to be looked at.
fn stages(case: &str, options: &str) -> Vec<Counts> {
    let mut command = Command::new(guest("stands"));
    command.arg(case).stdin(Stdio::piped()).stdout(Stdio::piped());
    preload::apply(&mut command, Some(library()));
    command.env("BEELINE_OPTIONS", format!("standing=on,short_lived_lanes=on,{options}"));
    let mut group = Group::start(&mut command).expect("the guest starts");
    let (stdin, stdout, _) = group.pipes();
    let mut stdin = stdin.expect("piped");
    let looks = BufReader::new(stdout.expect("piped")).lines().map(|line| {
        let made = line.expect("in UTF-8").parse().expect("how many were made");
        let path = Some(statistics(group.id())).filter(|path| path.exists());
        let path = path.unwrap_or_else(|| statistics_of(group.id(), OTHER_USER));
        let bytes = std::fs::read(path).expect("the file can be read");
        let snapshot = beeline_stats::Snapshot::parse(&bytes).expect("the file is well-formed");
        stdin.write_all(b"!").expect("the guest listens");
        let late = snapshot.counter(Counter::LateFallbacks);
        let over_lanes = snapshot.counter(Counter::ConnectionsAcceleratedClient) - late;
        Counts { made, again: snapshot.counter(Counter::ConnectionsAgain), over_lanes }
    });
    let looks: Vec<_> = looks.collect();
    println!("{case} {options}: {looks:?}");
    assert_eq!(group.finish(LIMIT).expect("the guest ends"), Ending::Exit(0), "{case}");
    looks
}

/// Whether what a run has counted is as expected; or that of the next two, as some of it is not where a machine is so
/// busy that who is awake does not run for 80 ms.
fn are_mostly(case: &str, options: &str, expected: impl Fn(&[Counts]) -> bool) -> bool {
    (0..3).any(|_| expected(&stages(case, options)))
}

pub fn is_root() -> bool {
    // SAFETY: no arguments, no effect.
    let is_root = unsafe { libc::geteuid() == 0 };
    if !is_root {
        println!("skipped: only root can become another user");
    }
    is_root
}

/// Who the guest becomes before it connects first, in some cases.
const OTHER_USER: u32 = 1;

/// Connections of the guest after somebody has become another user.
const FEW: u64 = 4;

/// A client with ends of the user it was has lanes where one without any has, and uses none of those ends.
#[test]
fn no_end_serves_a_client_that_is_another_user_since() {
    for (foreign, lanes) in [("on", FEW), ("off", 0)] {
        let options = format!("foreign_uid={foreign}");
        let without = |counts: &[Counts]| matches!(counts, [once] if (once.again, once.over_lanes) == (0, lanes));
        let with = |counts: &[Counts]| match *counts {
            [warm, other, back] => {
                warm.again != 0
                    && (other.again, other.over_lanes) == (warm.again, warm.over_lanes + lanes)
                    && back.again > other.again
            }
            _ => false,
        };
        if is_root() {
            assert!(are_mostly("a_client_of_another_user_is_served", &options, without), "{options}");
            assert!(are_mostly("a_client_that_changes_its_user_is_served", &options, with), "{options}");
        }
    }
}

/// The same for a server. Its client cannot know, and says hello over the end that it has, once.
#[test]
fn no_end_serves_a_client_whose_server_is_another_user_since() {
    for (foreign, lanes) in [("on", FEW), ("off", 0)] {
        let options = format!("foreign_uid={foreign}");
        let without = |counts: &[Counts]| matches!(counts, [once] if (once.again, once.over_lanes) == (0, lanes));
        let with = |counts: &[Counts]| match *counts {
            [warm, other, _] => {
                let again = other.again - warm.again;
                warm.again != 0 && again <= 1 && other.over_lanes == warm.over_lanes + lanes
            }
            _ => false,
        };
        if is_root() {
            assert!(are_mostly("a_server_of_another_user_serves", &options, without), "{options}");
            assert!(are_mostly("a_server_that_changes_its_user_serves", &options, with), "{options}");
        }
    }
}

/// It has made its door before.
#[test]
fn ends_serve_the_client_of_a_server_that_drops_root() {
    let goes_on = |counts: &[Counts]| match *counts {
        [warm, other, _] => {
            let again = other.again - warm.again;
            warm.again != 0 && again != 0 && other.over_lanes == warm.over_lanes + FEW
        }
        _ => false,
    };
    for foreign in ["foreign_uid=on", "foreign_uid=off"] {
        assert!(!is_root() || are_mostly("a_server_that_drops_root_serves", foreign, goes_on), "{foreign}");
    }
}

/// Ends were in use before each change, of which the guest checks what comes of it.
fn were_kept(case: &str) {
    assert!(are_mostly(case, "", |counts| counts.first().is_some_and(|warm| warm.again * 2 > warm.made)), "{case}");
}

#[test]
fn a_server_that_keeps_ends_is_killed() {
    for way in ["blocking", "polling", "watching"] {
        were_kept(&format!("a_{way}_server_is_killed"));
    }
}

#[test]
fn a_server_that_keeps_ends_is_stopped() {
    for way in ["blocking", "polling", "watching"] {
        were_kept(&format!("a_{way}_server_is_stopped"));
    }
}

#[test]
fn ends_that_are_kept_take_nobodys_numbers() {
    for what in ["files", "duplicates", "clients", "connections"] {
        were_kept(&format!("all_numbers_are_for_{what}"));
    }
    were_kept("numbers_are_few_from_now_on");
}

/// The guest looks at the modes of both ends of each connection.
#[test]
fn ends_that_are_kept_do_not_keep_their_modes() {
    let mut over_tcp = Group::start(Command::new(guest("modes")).stdin(Stdio::piped()).stdout(Stdio::null()))
        .expect("the guest starts");
    let (stdin, _, _) = over_tcp.pipes();
    stdin.expect("piped").write_all(b"!").expect("the guest listens");
    assert_eq!(over_tcp.finish(LIMIT).expect("the guest ends"), Ending::Exit(0), "over TCP");
    let options = "standing=on,short_lived_lanes=on";
    let (made, [again]) = super::near::figures("modes", "", options, [Counter::ConnectionsAgain]);
    assert!(again * 2 > made, "{again} of {made}");
}
