//! Bits of [`super::SideState::state`].

/// `shutdown(SHUT_RD)` here.
pub const SHUT_RD: u32 = 1;
/// `shutdown(SHUT_WR)` here.
pub const SHUT_WR: u32 = 2;
/// The peer will send no more.
pub const PEER_FIN: u32 = 4;
/// The peer's end is closed.
pub const PEER_CLOSED: u32 = 8;
/// The connection was reset: both directions are dead.
pub const RESET: u32 = 16;
/// The peer broke the rules; the connection was reset for it.
pub const POISONED: u32 = 32;
/// The server has taken this client's hello.
pub const TAKEN: u32 = 64;
/// A non-blocking `connect` has succeeded, and no second call has been told.
pub const CONNECTING: u32 = 128;
/// The end was demoted: its ring is a relay's.
pub const RELAYED: u32 = 256;
/// More processes than can be listed share the end.
pub const CROWDED: u32 = 512;
/// The peer is a bridge, behind which the connection goes on to another host. If it vanishes without a word, what
/// it had not yet delivered is lost, so that is never the end of a stream; and its network card may know the
/// lane's pages, so none is given back.
pub const BRIDGED: u32 = 1024;
/// This client's hello lies at a door, and is not seen to be taken (`offers` of beeline-sockets).
pub const OFFERED: u32 = 2048;
/// The ends are in two network namespaces and hold the two ends of one TCP connection ([`crate::meet`], `agent`).
pub const MET: u32 = 4096;
/// The connection ends when that TCP connection does.
pub const CUTS: u32 = 8192;
/// There may be completions to be told, which [`super::SideState::has_completions`] knows for certain.
pub const COMPLETED: u32 = 16_384;
/// The connection began on TCP.
pub const MOVED: u32 = 32_768;
/// Bytes to this end still come over TCP: `docs/design/0009-moving.md`. [`super::SideState::cross`] says so, too.
pub const CROSSING: u32 = 65_536;
