//! The fd table: which fds of this process lead to which description.
//!
//! Two levels, filled as fds are used, so that its size follows the numbers in use and not the limit. An
//! fd without an entry is the kernel's business alone. A lookup is two loads.
//!
//! Entries change under `LOCK`; lookups take no lock. An operation that found a description through an fd
//! locks it and looks the fd up again: if another thread has closed it meanwhile, the second look shows.

use core::sync::atomic::{AtomicUsize, Ordering};

use beeline_shm::sys;

use crate::desc::Desc;
use crate::kernel;
use crate::lock::Lock;
use crate::static_ref::StaticRef;

pub use crate::hidden::FDS;

const CHUNK_FDS: usize = 1024;
const CHUNKS: usize = FDS / CHUNK_FDS;

type Chunk = [StaticRef<Desc>; CHUNK_FDS];

static ROOT: [StaticRef<Chunk>; CHUNKS] = [const { StaticRef::none() }; CHUNKS];
#[unsafe(link_section = ".fork.locked")]
static LOCK: Lock = Lock::new();
/// One more than the highest fd that ever led somewhere: those who go through the table, as each fork does on both
/// sides, look no further.
#[unsafe(link_section = ".fork.written")]
static REACH: AtomicUsize = AtomicUsize::new(0);

/// The description that `fd` leads to, if it is one of ours.
#[must_use]
#[inline]
pub fn get(fd: i32) -> Option<&'static Desc> {
    entry(fd)?.load(Ordering::Acquire)
}

/// Whether a descriptor of this number can be ours.
#[must_use]
#[inline]
pub fn reaches(fd: i32) -> bool {
    (fd as u32 as usize) < FDS
}

/// A place of the table: the fast path of an operation looks through it before and after it locks.
#[derive(Clone, Copy)]
pub struct Place(&'static StaticRef<Desc>);

impl Place {
    /// The place of `fd`, if it has one.
    #[must_use]
    #[inline]
    pub fn of(fd: i32) -> Option<Place> {
        entry(fd).map(Place)
    }

    /// What the place leads to.
    #[must_use]
    #[inline]
    pub fn desc(self) -> Option<&'static Desc> {
        self.0.load(Ordering::Acquire)
    }

    /// Whether the place still leads to `desc`.
    #[must_use]
    #[inline]
    pub fn leads_to(self, desc: &'static Desc) -> bool {
        self.0.leads_to(desc, Ordering::Relaxed)
    }
}

/// Whether `fd` leads to `desc`.
#[must_use]
#[inline]
pub fn leads_to(fd: i32, desc: &'static Desc) -> bool {
    get(fd) == Some(desc)
}

/// A number that leads to `desc`, which the caller keeps: `fd`, if that does. `fd` if none does.
#[must_use]
pub fn number_of(desc: &'static Desc, fd: i32) -> i32 {
    if leads_to(fd, desc) {
        return fd;
    }
    let other = desc.fd.load(Ordering::Relaxed);
    if leads_to(other, desc) {
        return other;
    }
    // Another thread is just closing it.
    let _guard = LOCK.lock();
    find(desc).unwrap_or(fd)
}

/// Makes `fd` lead to `desc` (or to nothing), counting references. Returns what it led to before; the
/// caller settles that one's last reference.
///
/// Returns `Err` when there is no memory for the entry; nothing has changed then.
#[allow(clippy::result_unit_err)]
#[unsafe(link_section = ".text.served")]
pub fn set(fd: i32, desc: Option<&'static Desc>) -> Result<Option<&'static Desc>, ()> {
    let _guard = LOCK.lock();
    let entry = match (entry(fd), desc) {
        (Some(entry), _) => entry,
        (None, None) => return Ok(None),
        (None, Some(_)) => grow(fd).ok_or(())?,
    };
    if desc.is_some() && fd as usize >= REACH.load(Ordering::Relaxed) {
        REACH.store(fd as usize + 1, Ordering::Release);
    }
    let old = entry.swap(desc, Ordering::SeqCst);
    if let Some(desc) = desc {
        desc.keepers.gain_number();
        desc.fd.store(fd, Ordering::Relaxed);
    }
    if let Some(old) = old {
        let left = old.keepers.lose_number();
        if left != 0
            && old.fd.load(Ordering::Relaxed) == fd
            && let Some(other) = find(old)
        {
            old.fd.store(other, Ordering::Relaxed);
        }
    }
    Ok(old)
}

/// Calls `f` for every fd that leads somewhere.
pub fn for_each(mut f: impl FnMut(i32, &'static Desc)) {
    let _ = first(|fd, desc| {
        f(fd, desc);
        false
    });
}

/// The first fd that `is_wanted`, with what it leads to.
pub fn first(mut is_wanted: impl FnMut(i32, &'static Desc) -> bool) -> Option<(i32, &'static Desc)> {
    let reach = REACH.load(Ordering::Acquire);
    for (index, chunk) in ROOT.iter().take(reach.div_ceil(CHUNK_FDS)).enumerate() {
        let Some(chunk) = chunk.load(Ordering::Acquire) else { continue };
        let number = index * CHUNK_FDS;
        for (offset, entry) in chunk.iter().take(reach - number).enumerate() {
            if let Some(desc) = entry.load(Ordering::Acquire) {
                let fd = (number + offset) as i32;
                if is_wanted(fd, desc) {
                    return Some((fd, desc));
                }
            }
        }
    }
    None
}

/// Some fd that leads to `desc`.
fn find(desc: &'static Desc) -> Option<i32> {
    first(|_, other| desc == other).map(|(fd, _)| fd)
}

/// In the child of a `fork`: nobody holds the table's lock.
pub fn reset_after_fork() {
    LOCK.reset();
}

#[inline]
fn entry(fd: i32) -> Option<&'static StaticRef<Desc>> {
    // A negative fd is a huge index.
    let fd = fd as u32 as usize;
    ROOT.get(fd / CHUNK_FDS)?.load(Ordering::Acquire).and_then(|chunk| chunk.get(fd % CHUNK_FDS))
}

fn grow(fd: i32) -> Option<&'static StaticRef<Desc>> {
    let root = ROOT.get(usize::try_from(fd).ok()? / CHUNK_FDS)?;
    let chunk = sys::map_private(size_of::<Chunk>()).ok()?.cast::<Chunk>();
    // SAFETY: a mapping of that size that stays, and zeroed: every place leads nowhere.
    root.store(unsafe { chunk.as_ref() }, Ordering::Release);
    entry(fd)
}

/// Puts `file` under every fd that leads to `desc`, close-on-exec where the fd was. False when nothing was done.
/// Epoll registrations must be taken out before.
pub fn put_under(fd: i32, desc: &'static Desc, file: i32) -> bool {
    let mut refused = None;
    each_fd(fd, desc, |fd| {
        if refused.is_none() && !put(file, fd) {
            refused = Some(fd);
        }
    });
    let Some(refused) = refused else { return true };
    // All numbers lead to one file, or a program could tell. The old one is still under the number that was refused.
    let mut was_replaced = true;
    each_fd(fd, desc, |fd| {
        was_replaced &= fd != refused;
        if was_replaced {
            put(refused, fd);
        }
    });
    false
}

fn put(file: i32, fd: i32) -> bool {
    let flags = if kernel::is_close_on_exec(fd) == Ok(true) { libc::O_CLOEXEC } else { 0 };
    kernel::dup3(file, fd, flags).is_ok()
}

/// Whether [`put_under`] may be expected to do it, by a number that the kernel has just given out: it refuses those
/// beyond the limit, which may have been lowered since they were given out.
pub fn may_be_put_under(fd: i32, desc: &'static Desc, given: i32) -> bool {
    let mut may = true;
    each_fd(fd, desc, |fd| may &= fd < given || within_limit(fd));
    may
}

/// Calls `f` for every fd that leads to `desc`, of which `fd` is one.
pub fn each_fd(fd: i32, desc: &'static Desc, mut f: impl FnMut(i32)) {
    if desc.keepers.has_last_number() {
        return f(fd);
    }
    for_each(|fd, other| {
        if desc == other {
            f(fd);
        }
    });
}

/// Whether the kernel would accept `fd` as a target of dup2(2).
pub fn within_limit(fd: i32) -> bool {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    let args = [0, libc::RLIMIT_NOFILE as usize, 0, (&raw mut limit) as usize, 0, 0];
    // SAFETY: a live rlimit for the old value, none for the new one.
    let asked = unsafe { sys::call(libc::SYS_prlimit64, args) };
    fd >= 0 && (asked.is_err() || (fd as u64) < limit.rlim_cur)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::desc::{DESCS, Kind};

    #[test]
    fn numbers_are_counted_alike_everywhere() {
        let (last, beyond) = (FDS as i32 - 1, FDS as i32);
        let desc = DESCS.take().unwrap();
        desc.begin(Kind::Tcp, -1, 0, 0);
        assert_eq!(set(beyond, Some(desc)).err(), Some(()));
        assert!(set(last, Some(desc)).is_ok() && leads_to(last, desc) && get(beyond).is_none());
        assert!(set(last, None).is_ok());
        assert!(reaches(last) && !reaches(beyond) && !reaches(-1));
        for fd in [last, beyond] {
            crate::hidden::hidden_add(fd);
            assert_eq!(crate::hidden::is_hidden(fd), reaches(fd));
            crate::hidden::hidden_remove(fd);
        }
        desc.give_if_unused();
    }
}
