//! Waiting for one connection: its spin budget, and whether its peer is near.

use core::sync::atomic::Ordering::{Acquire, Relaxed};

use beeline_lane::End;
use beeline_stats::layout::ConnectionSlot;
use beeline_stats::tunables::{Key, OptionType, option};

use super::Desc;
use crate::kernel;
use crate::wait::{ANY_CPU, Budget, Mode, Patience, Woken, is_near, note_near, note_wait_for_near, peers_are_near};

impl Desc {
    /// This connection's spin budget, for a wait that begins: how it waits is looked up anew.
    #[must_use]
    pub fn budget_anew(&self) -> Budget<'_> {
        self.spin.follow(self.wait_mode());
        self.budget()
    }

    /// What an option is for this connection at the moment: its own, else the process's.
    #[must_use]
    pub fn tunable<T: OptionType>(&self, key: Key<T>) -> T {
        self.own.value(key, self.slot()).unwrap_or_else(|| crate::live(key))
    }

    /// The program has set `SO_BUSY_POLL` on this connection.
    pub fn set_busy_poll(&self, microseconds: i32) {
        self.own.set_busy_poll(microseconds, self.slot());
    }

    fn slot(&self) -> Option<&'static ConnectionSlot> {
        // If the connection has just given it back, and another one has it already, it is only read or written as that
        // one's for a moment.
        self.slot.load(Acquire)
    }

    /// How a wait for this connection is to go at the moment.
    #[must_use]
    pub fn wait_mode(&self) -> Mode {
        Mode::new(self.tunable(option::wait), self.tunable(option::spin_ns_max))
    }

    /// This connection's spin budget.
    #[must_use]
    pub fn budget(&self) -> Budget<'_> {
        Budget { state: &self.spin, extra_ns: 0 }
    }

    /// A sleep for this connection ended, after a spin or instead of one.
    pub fn slept(&self, patience: &Patience, woken: Woken) {
        if !self.peer_is_near() {
            self.budget().slept(patience, matches!(woken, Woken::Ready(_)));
        }
    }

    /// Whether the description may be a connection to another host: a hint.
    #[must_use]
    #[inline]
    pub fn is_bridged(&self) -> bool {
        self.bridged.load(Relaxed)
    }

    /// Whether the peer needs the CPU that this thread runs on. Shows the peer which one that is.
    #[must_use]
    pub fn peer_is_near(&self) -> bool {
        let mine = self.show_cpu();
        let theirs = self.lane().cpu(self.end().peer()).load(Relaxed);
        let near = is_near(theirs, mine);
        if let Some(near) = near.filter(|_| theirs != ANY_CPU) {
            if near {
                note_wait_for_near(self.end() == End::Server);
            }
            if near != peers_are_near() {
                note_near(near);
            }
        }
        near.unwrap_or_else(peers_are_near)
    }

    /// The same by what both ends have shown: two loads, for a look that lasts a moment.
    #[must_use]
    #[inline]
    pub fn peer_was_near(&self) -> bool {
        let (lane, end) = (self.lane(), self.end());
        let theirs = lane.cpu(end.peer()).load(Relaxed);
        is_near(theirs, lane.cpu(end).load(Relaxed)).unwrap_or_else(peers_are_near)
    }

    /// Shows the peer on which CPU this end runs, and tells it as it is shown.
    pub fn show_cpu(&self) -> u32 {
        let mine = kernel::cpu_by_libc().wrapping_add(1);
        let lane = self.lane();
        let shown = lane.cpu(self.end());
        if shown.load(Relaxed) != mine {
            shown.store(mine, Relaxed);
        }
        mine
    }
}
