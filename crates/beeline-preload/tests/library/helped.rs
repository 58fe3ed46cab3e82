//! Servers that have run other programs meanwhile.

use super::near::figures;
use beeline_stats::Counter;

#[test]
fn a_server_that_has_run_a_helper_uses_lanes_again() {
    for how in ["system", "popen", "spawn", "vfork", "poll"] {
        let counters = [Counter::LanesReused, Counter::LanesCreated];
        let (made, [reused, created]) = figures("helped", how, "short_lived_lanes=on", counters);
        assert!(reused * 2 > made, "{how}: of {made} connections {reused} over lanes from before, {created} new ones");
    }
}
