//! Lanes that a server knows by the name of their last connection, and takes before there is a hello.

use super::near::figures;
use beeline_stats::Counter;

/// What is kept without a hello being said is seen where the server runs at once when a client has come.
fn are_unsaid(workers: &str) {
    let options = "short_lived_lanes=on";
    let counters = [Counter::HellosUnsaid, Counter::LanesReused, Counter::ConnectionsAgain];
    let runs = [(); 3].map(|()| figures("unsaid", workers, options, counters));
    println!("{workers} workers: {runs:?}");
    assert!(runs.iter().any(|(made, [unsaid, ..])| unsaid * 4 > *made), "{runs:?}");
    for (made, [unsaid, reused, again]) in runs {
        assert!(unsaid <= reused && reused <= made && again == 0);
    }
}

#[test]
fn a_server_takes_a_lane_that_it_knows_before_there_is_a_hello() {
    are_unsaid("1");
}

#[test]
fn a_server_of_another_user_knows_lanes_as_well() {
    if super::standing::is_root() {
        are_unsaid("1u");
    }
}

#[test]
fn of_several_servers_each_takes_those_that_it_knows() {
    are_unsaid("3");
}
