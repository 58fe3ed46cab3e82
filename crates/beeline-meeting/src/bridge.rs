//! What a bridge needs of this crate.
//!
//! A bridge is a server at a door of its own, to which this host's clients come, and a client at the doors of this
//! host's servers. It uses lanes as any program does, but not through sockets: it moves bytes between rings and
//! network cards, so it works on the rings themselves ([`LaneEnd`]).
//!
//! It is one thread, and knows nothing of `fork`, signals and shared ends: it takes no locks.

pub use crate::bridging::{LaneEnd, Readable, answer, connect_for, listen_for_clients, pair, shut, take_client};
pub use crate::limits::had_hostile_clients as has_hostile_clients;
pub use crate::lookup::{note_taken, note_untaken};
pub use crate::strangers::{close as close_client, close_all as close_clients};
pub use beeline_lane::{Armed, Fault, flags};
