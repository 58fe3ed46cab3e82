//! Memory that somebody else can write.
//!
//! The memory of lanes and sides is mapped, loaded from, stored to and copied in this crate alone, so that the ring and
//! wake protocol (`beeline-lane`) can forbid `unsafe` and be modelled with loom. How long it lives is for those to see
//! to who keep it (`beeline-meeting`).
//!
//! Rules that the types here enforce:
//!
//! 1. No `&T` or `&[u8]` ever points into memory that a peer can write, except to atomics, which are
//!    sound to share with anybody.
//! 2. A value leaves shared memory by one load. What is checked is that copy, never the memory again.
//! 3. Offsets, never pointers, are stored in shared memory; an offset is reduced to the ring before use,
//!    so that no value a peer can write leads out of bounds.
//! 4. A memfd from another process is used only after its seals, file system and size were checked.
//!
//! The crate is `no_std`, allocates nothing and calls no libc function: it lives in other people's
//! processes, where libc calls may be interposed (by ourselves, too).
#![no_std]

#[cfg(test)]
extern crate std;

mod buffer;
mod copy;
mod fd;
mod lane_memory;
pub mod memfd;
mod side_memory;
pub mod sys;

pub use buffer::{Sink, Source};
pub use copy::{HAS_COPY_AROUND, full_fence, prefetch_write};
pub use fd::{Fd, socket_pair};
pub use lane_memory::{
    Cursor, End, FLAG_URGENT, INLINE_BYTES, LaneMemory, Lent, MapError, RING_BYTES_MAX, RING_BYTES_MIN, WAKE_ARMED,
    WAKE_ORDER, fetch, lane_bytes,
};
pub use side_memory::{STORE_BYTES, SideMemory};
pub use sys::Errno;
