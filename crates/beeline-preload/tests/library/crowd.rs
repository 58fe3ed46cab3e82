//! Many threads of one client at one time, with forks, duplicates and handlers among them.

use super::near::figures;
use beeline_stats::Counter;

#[test]
fn threads_connect_and_close_while_others_fork_duplicate_and_are_interrupted() {
    for threads in ["1", "4", "20"] {
        let (made, [over_lanes]) =
            figures("crowd", threads, "short_lived_lanes=on", [Counter::ConnectionsAcceleratedClient]);
        assert!(over_lanes > made / 2, "{threads} threads: {over_lanes} of {made} over lanes");
    }
}
