//! Stopping without a reset: existing connections run until they end, for as long as they may.
//!
//! 1. From the word on nobody is taken in: not this host's clients, not a peer's. Both hear `leaving`, and go by TCP.
//! 2. The peers are told at once, so that their clients do not have to ask; what they have asked meanwhile is refused.
//! 3. It is over when the last connection has ended and its last words had [`LAST_WORDS_NS`] to arrive, or when
//!    `drain_s` have passed since the word; connections that are left are reset then. Lengthening `drain_s` meanwhile
//!    lengthens it.
//! 4. A second word ends it at once.

use beeline_status::document::Draining;

use super::Engine;
use super::state::Drain;
use crate::control::message::{Leaving, Message};
use crate::{log, notify};

/// Between two looks at how far it is.
const LOOK_NS: u64 = 100_000_000;
/// Between two lines of the log that tell how far it is.
const TELL_NS: u64 = 10_000_000_000;
/// The other bridge hears of the end of the last connection.
const LAST_WORDS_NS: u64 = 200_000_000;
/// What systemd is asked for, each time that it is asked: far more than the time until the next.
const EXTEND_S: u64 = 30;

impl Engine {
    /// Takes no new connections from now on. False if that was said before.
    pub fn drain(&mut self) -> bool {
        if self.leaving.is_some() {
            return false;
        }
        self.now_ns = super::monotonic_ns();
        self.leaving = Some(Drain { since_ns: self.now_ns, told_ns: self.now_ns, looked_ns: 0, empty_ns: 0 });
        notify::stopping();
        let peers: Vec<_> = self.peers.iter().flatten().map(|peer| peer.id).collect();
        for peer in peers {
            self.control.send(peer, Message::Leaving(Leaving {}));
        }
        if let Some(draining) = self.draining() {
            log::line(format_args!(
                "no new connections from now on; {} are left, for {} s at most",
                draining.connections, draining.left_s
            ));
        }
        true
    }

    /// How far it is, if it has begun.
    #[must_use]
    pub fn draining(&self) -> Option<Draining> {
        let drain = self.leaving.as_ref()?;
        let gone_s = self.now_ns.saturating_sub(drain.since_ns) / 1_000_000_000;
        let connections = self.connections.iter().filter(|(_, entry)| !entry.probe).count();
        Some(Draining { connections: connections as u64, left_s: self.tunables.drain_s.saturating_sub(gone_s) })
    }

    /// Whether it is over.
    pub(super) fn is_drained(&mut self) -> bool {
        let now_ns = self.now_ns;
        match &mut self.leaving {
            // The loop asks in each of its rounds.
            Some(drain) if now_ns.saturating_sub(drain.looked_ns) >= LOOK_NS => drain.looked_ns = now_ns,
            _ => return false,
        }
        let Some(Draining { connections, left_s }) = self.draining() else { return false };
        let Some(drain) = self.leaving.as_mut() else { return false };
        drain.empty_ns = if connections > 0 {
            0
        } else if drain.empty_ns == 0 {
            now_ns
        } else {
            drain.empty_ns
        };
        if left_s == 0 || drain.empty_ns != 0 && now_ns.saturating_sub(drain.empty_ns) >= LAST_WORDS_NS {
            return true;
        }
        if now_ns.saturating_sub(drain.told_ns) >= TELL_NS {
            drain.told_ns = now_ns;
            log::line(format_args!("{connections} connections are left, for {left_s} s at most"));
        }
        notify::extend(EXTEND_S);
        notify::status(&format!("{connections} connections are left, for {left_s} s at most"));
        false
    }
}
