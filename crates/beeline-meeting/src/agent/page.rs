//! The page on which the agent tells of itself and of offers: memory that the agent alone writes, and everybody reads.
//! It says when the agent ran last, and on which places of a map listeners lie that a client is on its way to, so that
//! a server does not ask about connections that have no offer.
//!
//! It is a hint. Whoever could send a wrong one, root of the host or of a container that has put its own socket file
//! where the agent's is to be, holds up its own readers, and nobody else. Its length cannot change.

use beeline_wire::agent::PLACES;
use core::sync::atomic::{
    AtomicU32, AtomicU64,
    Ordering::{Acquire, Relaxed, Release},
};
use std::os::fd::OwnedFd;
use std::sync::Arc;

use beeline_shm::memfd;
use beeline_shm::sys::call;

use super::host;
use crate::lock::Lock;
use crate::static_ref::StaticRef;
use crate::{Errno, kernel};

const PAGE_BYTES: usize = 4096;
/// `FUTEX_OWNER_DIED`, which the kernel sets.
const DEAD: u32 = 0x4000_0000;
const MAP_WORDS: usize = PLACES as usize / 32;
const _: () = assert!(size_of::<Words>() <= PAGE_BYTES);

/// The bit of a place, and the word of the map that it is in.
fn bit_of(place: u32) -> (usize, u32) {
    ((place / 32) as usize, 1 << (place % 32))
}

/// What is written on it.
#[derive(Debug)]
#[repr(C)]
struct Words {
    /// When the agent ran last, by the monotonic clock.
    beat_ns: AtomicU64,
    /// The thread that shows that ([`Page::is_this_threads`]); [`DEAD`] when it has ended.
    owner: AtomicU32,
    /// Offers, and clients that are on their way.
    offers: AtomicU32,
    /// Clients of whom nobody knows where they will come out.
    probes: AtomicU32,
    /// A bit for each place, set while there is an offer for a listener whose place it is.
    map: [AtomicU32; MAP_WORDS],
}

/// The agent's own mapping of the page.
#[derive(Debug)]
pub struct Page {
    words: &'static Words,
    file: Arc<OwnedFd>,
    is_shut: bool,
    /// How many offers there are at each place.
    at_place: std::vec::Vec<u32>,
    offers: u32,
    probes: u32,
}

impl Page {
    /// A page with nothing on it but that the agent runs.
    ///
    /// # Errors
    /// Those of memfd_create(2) and mmap(2).
    pub fn create() -> std::io::Result<Page> {
        let map = |file| map(file, libc::PROT_READ | libc::PROT_WRITE, 0);
        let published = memfd::publish(c"beeline-agent", PAGE_BYTES, map);
        let (file, words) = published.map_err(|errno| std::io::Error::from_raw_os_error(errno.0))?;
        let file = Arc::new(host::own(file.give_away()));
        let is_shut = host::shut(&file);
        let page = Page { words, file, is_shut, at_place: std::vec![0; PLACES as usize], offers: 0, probes: 0 };
        page.beat();
        Ok(page)
    }

    /// Whether nobody can leave anything at it.
    #[must_use]
    pub fn is_shut(&self) -> bool {
        self.is_shut
    }

    /// What to send to those who want to read it.
    #[must_use]
    pub fn file(&self) -> Arc<OwnedFd> {
        Arc::clone(&self.file)
    }

    /// The agent runs.
    pub fn beat(&self) {
        self.words.beat_ns.store(kernel::now_ns(), Release);
    }

    /// This thread shows that the agent runs. When it ends, however it does, the kernel says so on the page, and nobody
    /// takes it for the page of an agent that runs.
    pub fn is_this_threads(&self) {
        host::mark_this_threads_end(&self.words.owner);
    }

    /// The agent runs no more.
    pub fn end(&self) {
        self.words.beat_ns.store(0, Release);
    }

    /// A client is on its way to a listener with this place.
    pub fn add(&mut self, place: u32) {
        if let Some(count) = self.at_place.get_mut(place as usize) {
            *count = count.saturating_add(1);
        }
        self.offers = self.offers.saturating_add(1);
        self.tell(place);
    }

    /// It is no more.
    pub fn remove(&mut self, place: u32) {
        if let Some(count) = self.at_place.get_mut(place as usize) {
            *count = count.saturating_sub(1);
        }
        self.offers = self.offers.saturating_sub(1);
        self.tell(place);
    }

    /// Whether it tells whoever asks at this place to ask.
    #[must_use]
    pub fn tells_of(&self, place: u32) -> bool {
        self.probes != 0 || self.at_place.get(place as usize).is_some_and(|count| *count != 0)
    }

    /// So many clients are on their way to nobody knows where.
    pub fn set_probes(&mut self, probes: u32) {
        self.probes = probes;
        self.words.probes.store(probes, Release);
        self.words.offers.store(self.offers.saturating_add(probes), Release);
    }

    fn tell(&self, place: u32) {
        let (word, bit) = bit_of(place);
        let any = self.at_place.get(place as usize).is_some_and(|count| *count != 0);
        if let Some(word) = self.words.map.get(word) {
            let rest = word.load(Relaxed) & !bit;
            word.store(if any { rest | bit } else { rest }, Release);
        }
        self.words.offers.store(self.offers.saturating_add(self.probes), Release);
    }
}

/// Maps the page, at `place` if that is not 0.
fn map(file: i32, protection: i32, place: usize) -> Result<&'static Words, Errno> {
    let kind = if place == 0 { libc::MAP_SHARED } else { libc::MAP_SHARED | libc::MAP_FIXED };
    let args = [place, PAGE_BYTES, protection as usize, kind as usize, file as usize, 0];
    // SAFETY: a new mapping, where the kernel likes, or in place of one of this module, which readers may be at: they
    // find the new page's words, and never nothing.
    let address = unsafe { call(libc::SYS_mmap, args) }?;
    // SAFETY: mapped above, aligned as pages are, and never unmapped; atomics are valid whatever their bytes.
    Ok(unsafe { &*(address as *const Words) })
}

/// The page that this process has found last, and mapped.
static SEEN: StaticRef<Words> = StaticRef::none();
/// The inode of its memory.
static INODE: AtomicU64 = AtomicU64::new(0);
/// Guards both against another thread that takes a page.
#[unsafe(link_section = ".fork")]
static LOCK: Lock = Lock::new();

fn words() -> Option<&'static Words> {
    SEEN.load(Acquire)
}

/// Whether the agent has shown itself within this time. Without a page it has not.
#[inline]
pub fn is_fresh(now_ns: u64, within_ns: u64) -> bool {
    let Some(words) = words() else { return false };
    let beat_ns = words.beat_ns.load(Relaxed);
    // A clock that is another one, in a time namespace, tells nothing.
    beat_ns != 0 && words.owner.load(Relaxed) & DEAD == 0 && now_ns.abs_diff(beat_ns) < within_ns
}

/// Whether there are offers for a listener with this place, perhaps.
#[inline]
pub fn tells_of(place: u32) -> bool {
    let Some(words) = words() else { return false };
    if words.offers.load(Relaxed) == 0 {
        return false;
    }
    let (word, bit) = bit_of(place);
    words.probes.load(Relaxed) != 0 || words.map.get(word).is_some_and(|word| word.load(Relaxed) & bit != 0)
}

/// Takes a page that the agent has sent, if it is one. The caller closes the descriptor.
pub(super) fn take(file: i32) {
    let Ok(id) = memfd::check_published(file, PAGE_BYTES) else { return };
    let _guard = LOCK.lock();
    let old = SEEN.load(Relaxed).map_or(0, |words| core::ptr::from_ref(words) as usize);
    if old != 0 && INODE.load(Relaxed) == id.inode {
        return;
    }
    if let Ok(words) = map(file, libc::PROT_READ, old) {
        SEEN.store(Some(words), Release);
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
    use std::fs::File;
    use std::io::Write;
    use std::os::fd::AsRawFd;

    const SOON_NS: u64 = 3_600_000_000_000;

    fn taken(page: &Page) {
        take(page.file.as_raw_fd());
    }

    #[test]
    fn what_the_agent_tells_is_seen_and_a_new_agents_page_replaces_the_old_one() {
        let fresh = || is_fresh(kernel::now_ns(), SOON_NS);
        assert!(!fresh() && !tells_of(7));
        let mut first = Page::create().unwrap();
        taken(&first);
        assert!(fresh() && !tells_of(7));
        first.add(7);
        first.add(7);
        assert!(tells_of(7) && !tells_of(8));
        first.remove(7);
        assert!(tells_of(7) && first.tells_of(7) && !first.tells_of(8));
        first.remove(7);
        assert!(!tells_of(7));
        // Nobody knows where: it may be anywhere.
        first.set_probes(1);
        assert!(tells_of(7) && tells_of(8));
        first.set_probes(0);
        assert!(!tells_of(7));
        first.add(8);
        first.end();
        assert!(!fresh());
        let address = SEEN.load(Relaxed).map(core::ptr::from_ref);
        first.beat();
        assert!(fresh());
        let mut second = Page::create().unwrap();
        taken(&second);
        assert_eq!(SEEN.load(Relaxed).map(core::ptr::from_ref), address);
        assert!(fresh() && !tells_of(8));
        second.add(1);
        assert!(tells_of(1));
        // The agent's death is told by the kernel.
        std::thread::scope(|scope| {
            let shows = scope.spawn(|| {
                second.is_this_threads();
                fresh()
            });
            // Its end, and not only that of what it does.
            assert!(shows.join().unwrap());
        });
        second.beat();
        assert!(!fresh());
        // What is no page is not taken: other memory, that of a lane, a device, nothing.
        let other = memfd::create(c"other", PAGE_BYTES).unwrap();
        take(other.get());
        take(beeline_shm::LaneMemory::create(1 << 16).unwrap().1.get());
        take(File::open("/dev/null").unwrap().as_raw_fd());
        take(-1);
        assert!(tells_of(1));
    }

    #[test]
    fn who_reads_the_page_cannot_write_it_nor_make_it_shorter() {
        let page = Page::create().unwrap();
        let descriptor = page.file.as_raw_fd();
        assert!(map(descriptor, libc::PROT_READ | libc::PROT_WRITE, 0).is_err());
        if let Ok(mut again) = File::options().write(true).open(std::format!("/proc/self/fd/{descriptor}")) {
            assert!(again.write(b"x").is_err() && again.set_len(1).is_err());
        }
        let (name, value) = (c"user.x", b"x");
        let args = [descriptor as usize, name.as_ptr() as usize, value.as_ptr() as usize, value.len(), 0, 0];
        // SAFETY: a NUL-terminated name, and live bytes.
        let left = unsafe { call(libc::SYS_fsetxattr, args) };
        assert!(left.is_err() || !page.is_shut(), "what somebody leaves there stays for as long as the page");
        page.beat();
    }
}
