//! The page on which the agent tells how many offers there are: written by the agent, read by everybody.
//!
//! Its size is sealed before it is passed on, and nobody can map it for writing after the agent has, so a look at it
//! can neither fail nor be lied to by another program.

use core::sync::atomic::{
    AtomicPtr, AtomicU32, AtomicU64,
    Ordering::{Acquire, Relaxed, Release},
};

use beeline_shm::sys::call;

use crate::lock::Lock;
use crate::{Errno, kernel};

const PAGE_BYTES: usize = 4096;
/// `F_SEAL_FUTURE_WRITE` of fcntl(2).
const F_SEAL_FUTURE_WRITE: i32 = 0x10;

/// What is written on it.
#[repr(C)]
struct Words {
    /// Offers, and numbers without an offer that may still be asked after.
    offers: AtomicU32,
}

/// The agent's own mapping of the page.
pub struct Page {
    words: &'static Words,
    memfd: i32,
}

impl Page {
    /// Makes the page. It stays for as long as the process does.
    ///
    /// # Errors
    /// Those of memfd_create(2), ftruncate(2), mmap(2) and fcntl(2).
    pub fn create() -> Result<Page, Errno> {
        let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
        let name = c"beeline-agent";
        // SAFETY: a live string and a number.
        let memfd =
            unsafe { call(libc::SYS_memfd_create, [name.as_ptr() as usize, flags as usize, 0, 0, 0, 0]) }? as i32;
        // SAFETY: plain numbers.
        unsafe { call(libc::SYS_ftruncate, [memfd as usize, PAGE_BYTES, 0, 0, 0, 0]) }?;
        let words = map(memfd, libc::PROT_READ | libc::PROT_WRITE, 0)?;
        let seals = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | F_SEAL_FUTURE_WRITE | libc::F_SEAL_SEAL;
        kernel::fcntl(memfd, libc::F_ADD_SEALS, seals as usize)?;
        Ok(Page { words, memfd })
    }

    /// The descriptor to pass on.
    #[must_use]
    pub fn memfd(&self) -> i32 {
        self.memfd
    }

    /// Tells how many offers there are.
    pub fn tell(&self, offers: usize) {
        self.words.offers.store(u32::try_from(offers).unwrap_or(u32::MAX), Release);
    }
}

/// Maps the page, at `place` if that is not 0.
fn map(memfd: i32, protection: i32, place: usize) -> Result<&'static Words, Errno> {
    let kind = if place == 0 { libc::MAP_SHARED } else { libc::MAP_SHARED | libc::MAP_FIXED };
    let args = [place, PAGE_BYTES, protection as usize, kind as usize, memfd as usize, 0];
    // SAFETY: a new mapping, where the kernel likes, or in place of one of this module, which readers may be at: they
    // find the new page's words, and never nothing.
    let address = unsafe { call(libc::SYS_mmap, args) }?;
    // SAFETY: mapped above, aligned as pages are, and never unmapped; atomics are valid whatever their bytes.
    Ok(unsafe { &*(address as *const Words) })
}

/// Where this process has mapped the page of the agent that it asked last; null for nowhere.
static SEEN: AtomicPtr<Words> = AtomicPtr::new(core::ptr::null_mut());
/// The inode of that page's memory file.
static INODE: AtomicU64 = AtomicU64::new(0);
/// Guards both against another thread that takes a page.
static LOCK: Lock = Lock::new();

/// Whether the agent says that there are offers. Without a page there are none.
pub(super) fn tells_of_offers() -> bool {
    // SAFETY: null, or a page that stays mapped.
    unsafe { SEEN.load(Acquire).as_ref() }.is_some_and(|words| words.offers.load(Relaxed) != 0)
}

/// Takes the page that came as `memfd`, if it is sealed as a page is. The caller closes the descriptor.
pub(super) fn take(memfd: i32) {
    let wanted = libc::F_SEAL_SHRINK | libc::F_SEAL_SEAL;
    if !kernel::fcntl(memfd, libc::F_GET_SEALS, 0).is_ok_and(|seals| seals as i32 & wanted == wanted) {
        return;
    }
    let Ok((id, size)) = beeline_shm::memfd::identify(memfd) else { return };
    if size != PAGE_BYTES as u64 {
        return;
    }
    let _guard = LOCK.lock();
    let old = SEEN.load(Relaxed) as usize;
    if old != 0 && INODE.load(Relaxed) == id.inode {
        return;
    }
    if let Ok(words) = map(memfd, libc::PROT_READ, old) {
        SEEN.store(core::ptr::from_ref(words).cast_mut(), Release);
        INODE.store(id.inode, Relaxed);
    }
}

/// In the child of a `fork`: nobody holds the lock.
pub(super) fn reset_after_fork() {
    LOCK.reset();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_agent_tells_is_seen_and_a_new_agents_page_replaces_the_old_one() {
        let first = Page::create().unwrap();
        take(first.memfd());
        assert!(!tells_of_offers());
        first.tell(2);
        assert!(tells_of_offers());
        take(first.memfd());
        let address = SEEN.load(Relaxed);
        let second = Page::create().unwrap();
        take(second.memfd());
        assert_eq!(SEEN.load(Relaxed), address);
        assert!(!tells_of_offers());
        second.tell(1);
        assert!(tells_of_offers());
        // Nobody but the agent writes it.
        assert!(map(second.memfd(), libc::PROT_READ | libc::PROT_WRITE, 0).is_err());
        // What is no page is not taken.
        let lane = beeline_lane::LaneMemory::create(1 << 16).unwrap();
        take(lane.1);
        assert!(tells_of_offers());
    }
}
