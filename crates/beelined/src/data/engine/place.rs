//! Where the bridge runs, on a host with few CPUs.
//!
//! Waking a program on another CPU that is asleep costs more than all the bridge does for a message (25 us on a virtual
//! machine, against 2 us for a switch on the same CPU). So when one bell after the other comes from clients on
//! another CPU, the bridge hops there. It does not stay bound: the kernel may move it again.

use nix::sched::{CpuSet, sched_getaffinity, sched_getcpu, sched_setaffinity};
use nix::unistd::Pid;

/// Bells in a row from another CPU that make the bridge hop.
const BELLS: u32 = 16;
/// The least time between two hops.
const PAUSE_NS: u64 = 2_000_000;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Place {
    elsewhere: u32,
    hopped_ns: u64,
}

impl Place {
    /// A bell has come from a client that was last on this CPU.
    pub(super) fn rung(&mut self, client: Option<u32>, now_ns: u64) {
        let (Some(client), Ok(ours)) = (client, sched_getcpu()) else { return };
        if client as usize == ours {
            self.elsewhere = 0;
            return;
        }
        self.elsewhere = self.elsewhere.saturating_add(1);
        if self.elsewhere >= BELLS && now_ns.saturating_sub(self.hopped_ns) > PAUSE_NS {
            self.elsewhere = 0;
            self.hopped_ns = now_ns;
            hop(client as usize);
        }
    }
}

/// Moves the thread to a CPU that it may use, and leaves it free to be moved on.
fn hop(cpu: usize) {
    let this = Pid::from_raw(0);
    let Ok(allowed) = sched_getaffinity(this) else { return };
    let mut only = CpuSet::new();
    if allowed.is_set(cpu) == Ok(true) && only.set(cpu).is_ok() && sched_setaffinity(this, &only).is_ok() {
        let _ = sched_setaffinity(this, &allowed);
    }
}
