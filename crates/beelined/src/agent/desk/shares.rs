//! How much of what the desk has there is for each, and for how long.

use std::time::Duration;

use super::super::quotas::Limits;

/// A carrier that says nothing.
pub const SPEAKS_WITHIN: Duration = Duration::from_secs(4);
/// How long the answer to a client whose connection is a probe is kept for its server, which has to wake up.
pub const HELD: Duration = Duration::from_millis(1);
/// An offer whose client left so soon was not left lying: its client has closed it, or has died.
pub const HARDLY_OFFERED: Duration = Duration::from_millis(50);
pub const CARRIERS: Limits = Limits { all: 4096, of_user: 2048, of_holder: 512 };
/// Messages, carriers counted as such, in a second.
pub const MESSAGES: Limits = Limits { all: usize::MAX, of_user: 65_536, of_holder: 16_384 };
/// Carriers that end because more is asked than is read, in a second.
pub const UNREAD: Limits = Limits { all: usize::MAX, of_user: 256, of_holder: 64 };
/// Announcements, in a second.
pub const ANNOUNCED: Limits = Limits { all: 1024, of_user: 256, of_holder: 64 };
/// Probes, in a second.
pub const PROBES: Limits = Limits { all: 16, of_user: 8, of_holder: 4 };
/// Connections that a server may ask about, and that have no offer, in a second.
pub const MISSED: Limits = Limits { all: 4096, of_user: 2048, of_holder: 1024 };
/// The same of a server whose place is marked, or while there are probes: it asks because others are on their way.
pub const MISLED: Limits = Limits { all: 32_768, of_user: 16_384, of_holder: 8192 };
/// Connections that a client may show for an offer, and that are none by the kernel's word, in a second.
pub const UNPROVED: Limits = MISSED;
/// Servers that a client may let wait in vain, in a minute.
pub const VAIN_MAX: Limits = Limits { all: usize::MAX, of_user: 64, of_holder: 16 };
/// Offers in time that make up for one of those: who shares busy CPUs is late now and then.
pub const MAKES_UP: usize = 16;
/// How long servers may be kept waiting in vain at a listener, in a minute, by all clients together.
pub const STALLED_MAX: Duration = Duration::from_secs(5);
/// So many times as long counts a wait for a client that does not come to be in place.
pub const NEVER_IN_PLACE: u32 = 5;
/// What does not count of each wait: a client that makes haste takes as long.
pub const HASTE: Duration = Duration::from_millis(1);
/// A client for which others have waited so long is to blame even if it is in place then.
pub const TARDY: Duration = Duration::from_millis(10);
/// Messages on one carrier. A program has three at most: it finds out who is there, asks, and says that it is in place.
pub const SPEAKS_TIMES: u32 = 8;
