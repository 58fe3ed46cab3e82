//! Socket semantics over lanes.
//!
//! This crate is what `libbeeline.so` does when an app calls into it; `beeline-preload` only gives each
//! function its libc name. Each entry point takes what the libc function takes and answers with an
//! [`Outcome`]: done, failed with an errno, or "not ours, let the kernel do it".
//!
//! # Life in somebody else's process
//!
//! 1. Nothing here allocates from libc's heap, takes a lock that a signal handler or a `fork` child could
//!    find taken for ever, starts a thread, or prints. Memory comes from mappings that are never given
//!    back to be something else ([`slab`]), so a stale pointer meets a recycled object, never garbage.
//! 2. Kernel calls are made directly ([`kernel`]): libc's names are the ones we interpose.
//! 3. A *critical section* ([`thread::Section`]) is short, never blocks, and is never interrupted by the
//!    app's signal handlers: they are put off until it ends ([`signals`]).
//! 4. A section commits by single stores, so that a process that is killed in one leaves a consistent
//!    connection to whoever shares it.
//!
//! # Lock order
//!
//! epoll set, then listener, then a description's `tx`, then its `rx`; the fd table's lock is innermost.
//! Nobody sleeps in the kernel with any of them held.

pub mod agent;
mod app_memory;
pub mod bridge;
pub mod cancel;
pub mod desc;
pub mod epoll;
pub mod io;
pub mod kernel;
pub mod life;
pub mod limits;
pub mod lock;
pub mod meet;
pub mod options;
pub mod poll;
mod proc;
mod reclaim;
pub mod side;
pub mod signals;
pub mod slab;
pub mod stats;
pub mod table;
pub mod thread;
pub mod wait;

pub use life::{config, forks};

pub use beeline_shm::Errno;

/// What an entry point answers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// Not ours: the hook calls the real function.
    Kernel,
    /// The value to return.
    Done(isize),
    /// Return -1 with this errno.
    Fail(Errno),
}

impl Outcome {
    /// Success with nothing to say.
    pub const OK: Outcome = Outcome::Done(0);

    /// A failure by number, as in errno(3).
    #[must_use]
    pub const fn fail(errno: i32) -> Outcome {
        Outcome::Fail(Errno(errno))
    }
}

impl From<beeline_shm::sys::SysResult> for Outcome {
    fn from(result: beeline_shm::sys::SysResult) -> Self {
        match result {
            Ok(value) => Outcome::Done(value as isize),
            Err(errno) => Outcome::Fail(errno),
        }
    }
}
