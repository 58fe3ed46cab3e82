//! What the processes of a round tell each other and the runner: a file that all of them map.
//!
//! 1. One [`Record`] a connection, with an [`End`] for each of its two ends. An end's counts are written by whichever
//!    process goes on with that end at the moment, never by two at once, and after the call that they count has
//!    returned: a process that dies leaves a count that is at most one call behind.
//! 2. `sent` and `received` say where a stream stands, so a process that takes an end over needs nothing else.
//! 3. [`Ending`] is written once, by the process that ends the end. It stays `None` when that process was killed first.

use anyhow::{Context, Result};
use std::fs::OpenOptions;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, Ordering::Relaxed};
use std::time::Instant;

/// Connections in one round, at most.
pub const RECORDS_MAX: usize = 512;
/// Workers of one server, at most.
pub const WORKERS_MAX: usize = 8;

/// How one end of a connection ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum Ending {
    /// Its process ended before it could say.
    None,
    /// Everything was sent and received, and the end came when it was due.
    Done,
    /// The peer's end of the stream came early.
    Early,
    /// ECONNRESET or EPIPE.
    Reset,
    /// A byte was not the one due.
    Wrong,
    /// More bytes came than were due.
    Surplus,
    /// A call failed with an errno that no peer can cause.
    Failed,
    /// `connect` failed.
    Refused,
    /// The process left the connection to itself, as planned.
    Left,
}

impl Ending {
    const ALL: [Self; 9] = [
        Self::None,
        Self::Done,
        Self::Early,
        Self::Reset,
        Self::Wrong,
        Self::Surplus,
        Self::Failed,
        Self::Refused,
        Self::Left,
    ];
}

/// One end of a connection.
#[repr(C)]
pub struct End {
    pub pid: AtomicI32,
    ending: AtomicU32,
    pub errno: AtomicI32,
    pub sent: AtomicU64,
    pub received: AtomicU64,
    /// The longest wait in one call.
    pub wait_us_max: AtomicU64,
}

impl End {
    pub fn end(&self, ending: Ending, errno: i32) {
        self.errno.store(errno, Relaxed);
        self.ending.store(ending as u32, Relaxed);
    }

    #[must_use]
    pub fn ending(&self) -> Ending {
        Ending::ALL.get(self.ending.load(Relaxed) as usize).copied().unwrap_or(Ending::Failed)
    }

    #[must_use]
    pub fn progress(&self) -> u64 {
        self.sent.load(Relaxed) + self.received.load(Relaxed)
    }

    /// Notes how long a call took.
    pub fn waited(&self, since: Instant) {
        self.wait_us_max.fetch_max(since.elapsed().as_micros() as u64, Relaxed);
    }
}

/// One connection.
#[repr(C)]
pub struct Record {
    pub client: End,
    pub server: End,
    /// The client's process is through with it, however it ended.
    pub finished: AtomicU32,
    /// Its server's process was stopped for long with the connection already in its hands.
    pub excused: AtomicU32,
    /// It took too long and was killed.
    pub hung: AtomicU32,
}

/// The whole file. All zeroes is the state at the beginning.
#[repr(C)]
pub struct Board {
    records: [Record; RECORDS_MAX],
    /// The workers of a pre-forked server, to be stopped now and then.
    pub workers: [AtomicI32; WORKERS_MAX],
    /// Those of them that may be stopped in `accept`, for longer than any connection may wait.
    pub dozing: [AtomicI32; WORKERS_MAX],
    /// Failed calls of `accept` that no planned shortage explains.
    pub accept_failures: AtomicU32,
    pub accept_errno: AtomicI32,
    /// Connections whose client said nothing before it ended.
    pub silent: AtomicU32,
    /// Processes of the server that ended by a signal that nobody sent, or by a panic.
    pub crashes: AtomicU32,
}

impl Board {
    /// Maps the file, which is made if it is not there.
    ///
    /// # Errors
    /// Those of `open`, `ftruncate` and `mmap`.
    pub fn open(path: &Path) -> Result<&'static Self> {
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path)?;
        file.set_len(size_of::<Self>() as u64)?;
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: the file is as long as the mapping; the kernel chooses the place.
        let place = unsafe {
            libc::mmap(std::ptr::null_mut(), size_of::<Self>(), protection, libc::MAP_SHARED, file.as_raw_fd(), 0)
        };
        if place == libc::MAP_FAILED {
            return Err(std::io::Error::last_os_error()).context("mapping the board");
        }
        // SAFETY: the mapping is page-aligned, as long as a board, made of atomics for which every bit pattern is
        // valid, and is never unmapped in a process of a round. The runner makes few and unmaps them with `close`.
        Ok(unsafe { &*place.cast::<Self>() })
    }

    /// Unmaps it again.
    ///
    /// # Safety
    /// Nothing may use this board afterwards.
    pub unsafe fn close(&'static self) {
        // SAFETY: the caller guarantees that this mapping, made by `open`, is not used any more.
        unsafe { libc::munmap(std::ptr::from_ref(self).cast_mut().cast(), size_of::<Self>()) };
    }

    #[must_use]
    pub fn record(&self, id: usize) -> &Record {
        &self.records[id % RECORDS_MAX]
    }
}
