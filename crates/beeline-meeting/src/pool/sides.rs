//! Idle side pages, linked through their first words.
//!
//! When a page may be used again is rule 3 of the pool. Who shared a side with another process says so when it
//! retires it, and then it is unmapped.

use core::sync::atomic::{AtomicU32, AtomicUsize, Ordering::Relaxed};

use beeline_guest::{changing, limits, process};
use beeline_shm::{Errno, SideMemory};

use super::LOCK;
use crate::fd_cell::FdCell;
use crate::hidden;
use crate::side::SideState;

/// The address of the first idle page, used under [`LOCK`]; 0 for none.
#[unsafe(link_section = ".fork.locked")]
static FIRST: AtomicUsize = AtomicUsize::new(0);
/// Idle pages; written under [`LOCK`].
#[unsafe(link_section = ".fork.locked")]
pub(super) static COUNT: AtomicU32 = AtomicU32::new(0);
/// The generation of the process that has made a side last, so that nothing need be written in the child of a fork.
static MADE: AtomicU32 = AtomicU32::new(0);

/// A zeroed side page, and the side on it. When descriptors are short it has no memfd.
///
/// # Errors
/// Those of memfd_create(2), ftruncate(2) and mmap(2), but for `EMFILE` and `ENFILE`; `ENOSPC` where the kernel may
/// refuse the page when it is touched.
pub fn side() -> Result<Side, Errno> {
    if limits::counts_memory_strictly() {
        return Err(Errno(libc::ENOSPC));
    }
    let (page, memfd) = match take() {
        Some((page, memfd)) => {
            // SAFETY: an idle page has no user.
            unsafe { page.clear::<SideState>() };
            (page, memfd)
        }
        None => match SideMemory::create() {
            Ok((page, memfd)) => {
                MADE.store(process::generation(), Relaxed);
                (page, hidden::keep(memfd.give_away()))
            }
            Err(Errno(libc::EMFILE | libc::ENFILE)) => (SideMemory::without_file()?, None),
            Err(errno) => return Err(errno),
        },
    };
    // SAFETY: a side consists of atomics only and is valid when zeroed; it is unmapped in `Side::retire` only.
    Ok(Side { state: unsafe { page.as_ref::<SideState>() }, memfd })
}

/// A side page and its memfd, if that is kept.
#[derive(Clone, Copy)]
pub struct Side {
    pub state: &'static SideState,
    pub memfd: Option<i32>,
}

impl Side {
    /// The side has no user in this process any more. `alone` tells whether it never had one in another.
    pub fn retire(self, alone: bool) {
        // SAFETY: a side stands at the start of its page, which is mapped.
        let page = unsafe { SideMemory::from_address(core::ptr::from_ref(self.state) as usize) };
        if alone && u64::from(COUNT.load(Relaxed)) < super::room::idle_max() {
            let _guard = LOCK.lock();
            let link = link_of(page);
            link.next.store(FIRST.load(Relaxed), Relaxed);
            link.memfd.set(self.memfd);
            FIRST.store(core::ptr::from_ref(self.state) as usize, Relaxed);
            COUNT.fetch_add(1, Relaxed);
            return;
        }
        if let Some(memfd) = self.memfd {
            hidden::close_hidden(memfd);
        }
        // SAFETY: the caller gives up the last use.
        unsafe { page.unmap() };
    }

    /// No connection came to have the side, which this process made when it had forked `born` times: who was forked
    /// since then has it, too.
    pub fn put_back(self, born: u32) {
        // No fork comes between the look and the list.
        let _changing = changing::changing();
        self.retire(born == crate::forks());
    }
}

/// Whether this very process has made a side before.
#[must_use]
pub fn has_made_any() -> bool {
    MADE.load(Relaxed) == process::generation()
}

fn take() -> Option<(SideMemory, Option<i32>)> {
    let _guard = LOCK.lock();
    let address = FIRST.load(Relaxed);
    if address == 0 {
        return None;
    }
    // SAFETY: the list holds mapped pages only.
    let page = unsafe { SideMemory::from_address(address) };
    let link = link_of(page);
    FIRST.store(link.next.load(Relaxed), Relaxed);
    COUNT.fetch_sub(1, Relaxed);
    Some((page, link.memfd.get()))
}

/// The start of an idle page.
#[repr(C)]
struct Link {
    /// The address of the next idle page.
    next: AtomicUsize,
    /// The page's memfd, if it is kept.
    memfd: FdCell,
}

fn link_of(page: SideMemory) -> &'static Link {
    // SAFETY: atomics that are valid when zeroed; the page is idle, so its words are the list's.
    unsafe { page.as_ref::<Link>() }
}

/// Unmaps all idle pages. Returns whether any had a memfd.
pub(super) fn purge() -> bool {
    let mut any = false;
    if FIRST.load(Relaxed) == 0 {
        return any;
    }
    while let Some((page, memfd)) = take() {
        if let Some(memfd) = memfd {
            hidden::close_hidden(memfd);
            any = true;
        }
        // SAFETY: an idle page has no user.
        unsafe { page.unmap() };
    }
    any
}
