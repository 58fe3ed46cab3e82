//! Which connections lend long messages, and from whom they fetch them.

use core::sync::atomic::Ordering::Relaxed;

use beeline_guest::process;
use beeline_meeting::trust;
use beeline_stats::tunables::{Threshold, option};

use super::Desc;
use crate::kernel;
use crate::loans::{LENT_BYTES_AUTO, LENT_BYTES_MIN, Way};
use crate::side::state;

impl Desc {
    /// How a long message is sent to a receiver on another CPU, by a call that may block.
    #[must_use]
    pub fn lends(&self) -> Way {
        let (least_bytes, is_timed) = match self.tunable(option::zcopy_threshold_bytes) {
            Threshold::Off => return Way { least_bytes: None, is_timed: false },
            Threshold::Bytes(bytes) => (usize::try_from(bytes).unwrap_or(usize::MAX), false),
            Threshold::Auto => (LENT_BYTES_AUTO, true),
        };
        let lends = !self.shared.load(Relaxed)
            && !self.side().is(state::OFFERED | state::MET | state::BRIDGED)
            && self.loans.takes_message(is_timed);
        Way { least_bytes: lends.then_some(least_bytes.max(LENT_BYTES_MIN)), is_timed }
    }

    /// What a receive that waits, and has so much room, wants to find as the proof; 0 if it would fetch nothing.
    #[must_use]
    pub fn wants(&self, fd: i32, room: usize) -> u64 {
        let least_bytes = match self.tunable(option::zcopy_threshold_bytes) {
            Threshold::Off => usize::MAX,
            Threshold::Bytes(bytes) => usize::try_from(bytes).unwrap_or(usize::MAX),
            Threshold::Auto => LENT_BYTES_AUTO,
        };
        if room >= least_bytes.max(LENT_BYTES_MIN) && self.lender(fd).is_some() {
            return self.loans.begin_wait();
        }
        self.loans.wants_no_more();
        0
    }

    /// The process from which is fetched what the peer lends.
    #[must_use]
    pub fn lender(&self, fd: i32) -> Option<i32> {
        if self.shared.load(Relaxed) || process::is_sealed() {
            return None;
        }
        self.loans.lender(|| self.ask_lender(fd))
    }

    #[cold]
    fn ask_lender(&self, fd: i32) -> Option<i32> {
        // An agent or a bridge has made the anchor, and is what the kernel names.
        let is_direct = !self.side().is(state::MET | state::BRIDGED);
        let peer = kernel::getsockopt::<libc::ucred>(fd, libc::SOL_SOCKET, libc::SO_PEERCRED).ok()?;
        // A filter of system calls may end who makes one that lanes can do without.
        let is_filtered = kernel::seccomp_mode() != Some(0);
        (is_direct && peer.pid > 0 && peer.uid == trust::euid() && !is_filtered).then_some(peer.pid)
    }
}
