//! Many threads of one client at one time, with forks, duplicates and handlers among them.

use super::near::figures;
use beeline_stats::Counter;

#[test]
fn threads_connect_and_close_while_others_fork_duplicate_and_are_interrupted() {
    for threads in ["1", "4", "20"] {
        let (made, [over_lanes]) =
            figures("crowd", threads, "short_lived_lanes=on", [Counter::ConnectionsAcceleratedClient]);
        // A socket that is copied by a fork before it is connected goes by TCP, and here somebody forks all the time.
        assert!(made != 0 && over_lanes != 0, "{threads} threads: {over_lanes} of {made} over lanes");
    }
}
