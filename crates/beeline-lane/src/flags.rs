//! Flags of a front. They are set after the last cursor they speak about.

/// No byte will follow the cursor: `shutdown(SHUT_WR)` or close.
pub const FIN: u32 = 1;
/// The end is closed: it will read no more, either.
pub const CLOSED: u32 = 2;
/// The end was closed with data unread, or aborted by `SO_LINGER` zero.
pub const RESET: u32 = 4;
/// The server's end has taken the hello ([`crate::offer`]).
pub const TAKEN: u32 = 8;
/// The end gives the lane back for reuse by the client that made it.
pub const RELEASED: u32 = 16;
/// The end reads no more: `shutdown(SHUT_RD)`.
pub const SHUT_RD: u32 = 32;
/// The end neither reads nor sends any more: it answers what comes now by a reset, as TCP does.
pub const SHUT_BOTH: u32 = FIN | SHUT_RD;
/// The end has marked a byte urgent.
pub const URGENT: u32 = beeline_shm::FLAG_URGENT;
/// The end wants a signal for each urgent byte: an out-of-band bell.
pub const SIGNALLED: u32 = 128;
/// Should the end vanish without setting [`CLOSED`], it is reset: `SO_LINGER` is zero, which the kernel heeds
/// whoever closes a socket last, and how.
pub const ABORTS: u32 = 256;
/// The end means to keep its anchor beyond its close, and hears of the peer's end without the kernel's word.
pub const STANDS: u32 = 512;
