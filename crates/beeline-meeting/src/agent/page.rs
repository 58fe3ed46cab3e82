//! The page on which the agent tells of offers: written by the agent, read by everybody. It says how many there are, and at
//! which places of a map their numbers lie, so that a server does not ask about connections that have none.
//!
//! Its size is sealed before it is passed on, and nobody can map it for writing after the agent has, so a look at it
//! can neither fail nor be lied to by another program.

use beeline_wire::agent::{PLACES, place_of};
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
const MAP_WORDS: usize = PLACES as usize / 32;
const _: () = assert!(size_of::<Words>() <= PAGE_BYTES);

/// The bit of a number, and the word of the map that it is in.
fn bit_of(number: u32) -> (usize, u32) {
    let place = place_of(number);
    ((place / 32) as usize, 1 << (place % 32))
}

/// What is written on it.
#[derive(Debug)]
#[repr(C)]
struct Words {
    /// Offers, and numbers without an offer that may still be asked after.
    offers: AtomicU32,
    /// A bit for each place, set while there is an offer whose number leads there.
    map: [AtomicU32; MAP_WORDS],
}

/// The agent's own mapping of the page.
#[derive(Debug)]
pub struct Page {
    words: &'static Words,
    memfd: i32,
    /// How many offers there are at each place.
    at_place: std::vec::Vec<u32>,
    offers: u32,
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
        Ok(Page { words, memfd, at_place: std::vec![0; PLACES as usize], offers: 0 })
    }

    /// The descriptor to pass on.
    #[must_use]
    pub fn memfd(&self) -> i32 {
        self.memfd
    }

    /// Tells of a number.
    pub fn add(&mut self, number: u32) {
        if let Some(count) = self.at_place.get_mut(place_of(number) as usize) {
            *count = count.saturating_add(1);
        }
        self.offers = self.offers.saturating_add(1);
        self.tell(number);
    }

    /// Takes a number back.
    pub fn remove(&mut self, number: u32) {
        if let Some(count) = self.at_place.get_mut(place_of(number) as usize) {
            *count = count.saturating_sub(1);
        }
        self.offers = self.offers.saturating_sub(1);
        self.tell(number);
    }

    fn tell(&self, number: u32) {
        let (word, bit) = bit_of(number);
        let any = self.at_place.get(place_of(number) as usize).is_some_and(|count| *count != 0);
        if let Some(word) = self.words.map.get(word) {
            let rest = word.load(Relaxed) & !bit;
            word.store(if any { rest | bit } else { rest }, Release);
        }
        self.words.offers.store(self.offers, Release);
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
pub fn tells_of_offers() -> bool {
    // SAFETY: null, or a page that stays mapped.
    unsafe { SEEN.load(Acquire).as_ref() }.is_some_and(|words| words.offers.load(Relaxed) != 0)
}

/// Whether one of them may have this number.
pub fn tells_of(number: u32) -> bool {
    let (word, bit) = bit_of(number);
    // SAFETY: null, or a page that stays mapped.
    let words = unsafe { SEEN.load(Acquire).as_ref() };
    words.and_then(|words| words.map.get(word)).is_some_and(|word| word.load(Relaxed) & bit != 0)
}

/// Takes the page that came as `memfd`, if it is sealed as a page is. The caller closes the descriptor.
pub fn take(memfd: i32) {
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
pub fn reset_after_fork() {
    LOCK.reset();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_agent_tells_is_seen_and_a_new_agents_page_replaces_the_old_one() {
        let mut first = Page::create().unwrap();
        take(first.memfd());
        assert!(!tells_of_offers());
        // Two that lead to one place.
        first.add(7);
        first.add(7 + PLACES);
        assert!(tells_of_offers() && tells_of(7) && tells_of(7 + 2 * PLACES) && !tells_of(8));
        first.remove(7);
        assert!(tells_of_offers() && tells_of(7));
        first.remove(7 + PLACES);
        assert!(!tells_of_offers() && !tells_of(7));
        first.add(8);
        take(first.memfd());
        let address = SEEN.load(Relaxed);
        let mut second = Page::create().unwrap();
        take(second.memfd());
        assert_eq!(SEEN.load(Relaxed), address);
        assert!(!tells_of_offers() && !tells_of(8));
        second.add(1);
        assert!(tells_of_offers());
        // Nobody but the agent writes it.
        assert!(map(second.memfd(), libc::PROT_READ | libc::PROT_WRITE, 0).is_err());
        // What is no page is not taken.
        let lane = beeline_lane::LaneMemory::create(1 << 16).unwrap();
        take(lane.1);
        assert!(tells_of_offers());
    }
}
