//! The writer of the statistics file (its layout is `beeline_stats::layout`).
//!
//! 1. The file is made when there is something to count for the first time, so a process that does nothing with TCP
//!    leaves no trace, unless it is one that could do so past us ([`appear`]). Until then, and for ever when the file
//!    cannot be made, figures go to a header of ours that nobody reads.
//! 2. Space is allocated before it is mapped into use: a full `/dev/shm` is an error here and never a SIGBUS
//!    in the app.
//! 3. No descriptor is kept. To grow, the file is opened again by name and recognised by its inode.
//! 4. `HEADER` is stored once per process; a child of `fork` begins anew.
//! 5. What others set in the file, and what this process tells of its options there, is in [`settings`].
//! 6. What becomes of the file over `execve` is in [`succession`], of files of processes that were killed in [`stale`].

mod inherited;
pub(crate) mod settings;
mod stale;
mod succession;

use core::sync::atomic::{
    AtomicBool, AtomicPtr, AtomicU32, AtomicU64,
    Ordering::{Acquire, Relaxed, Release},
};

use beeline_shm::Fd;
use beeline_shm::memfd::{self, FileId};
use beeline_shm::sys::{self, call};
use beeline_stats::layout::{
    self, ConnectionSlot, FILE_BYTES_MAX, FileName, HEADER_BYTES, SLOT_BYTES, SLOT_LIVE, SLOTS_MAX, SLOTS_PER_PAGE,
    StatsHeader,
};
use beeline_stats::{Counter, Poison, Reason, Role};

pub use self::inherited::unmap as unmap_inherited;
pub use self::settings::{keep_for_child, refused};
pub use self::succession::{before_strange_program, strange_program_failed, succeed};
use crate::files::{self, open, open_directory};
use crate::lock::Lock;
use crate::{Errno, hidden, proc, process};

/// Where figures go when there is no file.
#[repr(C, align(4096))]
struct Nowhere([AtomicU64; HEADER_BYTES / 8]);

static NOWHERE: Nowhere = Nowhere([const { AtomicU64::new(0) }; HEADER_BYTES / 8]);

/// The header in use; null until something is counted.
#[unsafe(link_section = ".fork")]
static HEADER: AtomicPtr<StatsHeader> = AtomicPtr::new(core::ptr::null_mut());
/// Serialises making, growing and removing the file.
#[unsafe(link_section = ".fork")]
static LOCK: Lock = Lock::new();
/// Slots whose pages exist.
#[unsafe(link_section = ".fork")]
static SLOTS: AtomicU32 = AtomicU32::new(0);
/// Slots in use.
static LIVE: AtomicU32 = AtomicU32::new(0);
/// Where to look for a free slot first.
static HINT: AtomicU32 = AtomicU32::new(0);
/// Whether this process came from a `fork` and has executed no program since.
#[unsafe(link_section = ".fork")]
static IS_CHILD: AtomicBool = AtomicBool::new(false);

/// The file's identity, for opening it again.
#[unsafe(link_section = ".fork")]
static FILE: FileRecord = FileRecord {
    pid: AtomicU32::new(0),
    uid: AtomicU32::new(0),
    start_ticks: AtomicU64::new(0),
    device: AtomicU64::new(0),
    inode: AtomicU64::new(0),
};

struct FileRecord {
    /// The process that made the file; 0 if there is none.
    pid: AtomicU32,
    uid: AtomicU32,
    start_ticks: AtomicU64,
    device: AtomicU64,
    inode: AtomicU64,
}

impl FileRecord {
    fn name(&self) -> FileName {
        FileName { pid: self.pid.load(Relaxed), start_ticks: self.start_ticks.load(Relaxed) }
    }

    fn path(&self) -> beeline_stats::Text<128> {
        layout::file_path(self.uid.load(Relaxed), self.name())
    }

    fn id(&self) -> FileId {
        FileId { device: self.device.load(Relaxed), inode: self.inode.load(Relaxed) }
    }
}

#[inline]
fn header() -> &'static StatsHeader {
    let header = HEADER.load(Acquire);
    if header.is_null() {
        return begin();
    }
    // SAFETY: `HEADER` holds null, `NOWHERE`, or a mapping that lives until the process forks or ends; in a
    // forked child it is replaced before anything else runs.
    unsafe { &*header }
}

fn nowhere() -> &'static StatsHeader {
    // SAFETY: a static of atomics of the header's size and alignment, for which zero is valid.
    unsafe { &*(&raw const NOWHERE).cast::<StatsHeader>() }
}

#[cold]
fn begin() -> &'static StatsHeader {
    if process::is_guest_of_parent() {
        return nowhere();
    }
    let _guard = LOCK.lock();
    let found = HEADER.load(Acquire);
    if !found.is_null() {
        // SAFETY: as in `header`.
        return unsafe { &*found };
    }
    let made = if process::config().stats { create().ok() } else { None };
    let header = made.unwrap_or_else(nowhere);
    HEADER.store(core::ptr::from_ref(header).cast_mut(), Release);
    header
}

fn unlink(directory: i32, path: &core::ffi::CStr) {
    // SAFETY: a NUL-terminated string and plain numbers.
    let _ = unsafe { call(libc::SYS_unlinkat, [directory as usize, path.as_ptr() as usize, 0, 0, 0, 0]) };
}

fn allocate(fd: i32, offset: usize, length: usize) -> Result<(), Errno> {
    if !files::may_be_long(offset + length) {
        return Err(Errno(libc::EFBIG));
    }
    // SAFETY: plain numbers.
    unsafe { call(libc::SYS_fallocate, [fd as usize, 0, offset, length, 0, 0]) }.map(drop)
}

/// Makes, maps and publishes the file. The lock is held.
fn create() -> Result<&'static StatsHeader, Errno> {
    let mut stat = [0u8; 512];
    let stat = own_stat(&mut stat)?;
    let (uid, name) = own_name_in(stat)?;
    let directory = open_directory(uid)?;
    let last = open(directory.get(), name.text().as_c_str(), libc::O_RDONLY, 0).ok();
    let file = open_new(directory.get(), name.text().as_c_str())?;
    let (base, id) = map_new(file.get()).inspect_err(|_| unlink(directory.get(), name.text().as_c_str()))?;
    drop(file);
    if stale::looks(name, IS_CHILD.load(Relaxed)) {
        stale::sweep(directory.get(), name);
    }
    Ok(publish(base, id, uid, name, stat, last.as_ref()))
}

/// What /proc says of this process.
fn own_stat(buffer: &mut [u8; 512]) -> Result<&[u8], Errno> {
    let length = read_small(c"/proc/self/stat", buffer)?;
    Ok(buffer.get(..length).unwrap_or_default())
}

/// Whose file this process has, and its name.
fn own_name() -> Result<(u32, FileName), Errno> {
    own_name_in(own_stat(&mut [0; 512])?)
}

fn own_name_in(stat: &[u8]) -> Result<(u32, FileName), Errno> {
    let uid = files::user()?;
    let start_ticks = layout::start_ticks_from_proc_stat(stat).ok_or(Errno(libc::ENODATA))?;
    Ok((uid, FileName { pid: sys::getpid(), start_ticks }))
}

/// Shows the new file to readers, with what the last program of this process has counted.
fn publish(
    base: *mut u8,
    id: FileId,
    uid: u32,
    name: FileName,
    stat: &[u8],
    last: Option<&Fd>,
) -> &'static StatsHeader {
    FILE.uid.store(uid, Relaxed);
    FILE.start_ticks.store(name.start_ticks, Relaxed);
    FILE.device.store(id.device, Relaxed);
    FILE.inode.store(id.inode, Relaxed);
    FILE.pid.store(name.pid, Relaxed);
    SLOTS.store(SLOTS_PER_PAGE as u32, Relaxed);
    LIVE.store(0, Relaxed);
    HINT.store(0, Relaxed);
    // SAFETY: the first page of the mapping is allocated, zeroed, page-aligned, and never unmapped in this
    // process; zero is a valid header.
    let header = unsafe { &*base.cast::<StatsHeader>() };
    header.pid_namespace.store(proc::pid_namespace(), Relaxed);
    header.add(Counter::HiddenFds, u64::from(hidden::hidden_count()));
    if let Some(last) = last {
        succession::add_up(last.get(), name, header);
    }
    if let Some(reason) = process::stopped_because() {
        header.stop(reason);
    }
    settings::show(header);
    header.publish(name, uid, unix_ns(), program_name(stat));
    header
}

fn open_new(directory: i32, name: &core::ffi::CStr) -> Result<Fd, Errno> {
    let flags = libc::O_RDWR | libc::O_CREAT | libc::O_EXCL;
    match open(directory, name, flags, 0o600) {
        // The name is this very process's: the program it ran before `exec` left the file.
        Err(Errno(libc::EEXIST)) => {
            unlink(directory, name);
            open(directory, name, flags, 0o600)
        }
        result => result,
    }
}

fn map_new(fd: i32) -> Result<(*mut u8, FileId), Errno> {
    inherited::unmap();
    allocate(fd, 0, HEADER_BYTES + SLOTS_PER_PAGE * SLOT_BYTES)?;
    let (id, _) = memfd::identify(fd)?;
    // Before anybody can see that the file should be locked.
    let is_locked = stale::lock(fd);
    // The mapping reaches beyond the file; those pages are not touched before they are allocated.
    let base = sys::map_shared(fd, FILE_BYTES_MAX)?;
    // SAFETY: the mapping's beginning. It is a file's, where the contents stay.
    if unsafe { sys::is_locked(base) } {
        // A program that locks what it maps means its own memory.
        sys::unlock(base, FILE_BYTES_MAX);
    }
    // SAFETY: the first page is allocated and zeroed; zero is a valid header.
    unsafe { &*base.cast::<StatsHeader>() }.is_locked.store(u32::from(is_locked), Relaxed);
    Ok((base, id))
}

/// Reads the start of a small file.
fn read_small(path: &core::ffi::CStr, buffer: &mut [u8]) -> Result<usize, Errno> {
    let file = open(libc::AT_FDCWD, path, libc::O_RDONLY, 0)?;
    sys::read_at(file.get(), buffer, 0)
}

/// The name in `/proc/self/stat`: between the first and the last parenthesis.
fn program_name(stat: &[u8]) -> &[u8] {
    let open = stat.iter().position(|&byte| byte == b'(');
    let close = stat.iter().rposition(|&byte| byte == b')');
    match (open, close) {
        (Some(open), Some(close)) => stat.get(open + 1..close).unwrap_or_default(),
        _ => b"",
    }
}

pub fn unix_ns() -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: a live timespec. The vDSO's clock takes no lock.
    unsafe { libc::clock_gettime(libc::CLOCK_REALTIME, &raw mut now) };
    (now.tv_sec as u64).wrapping_mul(1_000_000_000).wrapping_add(now.tv_nsec as u64)
}

/// Adds to a counter.
pub fn count(counter: Counter, amount: u64) {
    header().add(counter, amount);
}

/// Counts one, if there is a file already: for what every process does, and for what the file takes over
/// when it is made.
pub fn count_if_open(counter: Counter) {
    if !HEADER.load(Acquire).is_null() {
        header().add(counter, 1);
    }
}

/// Takes one from a counter that goes up and down, likewise.
pub fn uncount_if_open(counter: Counter) {
    if !HEADER.load(Acquire).is_null() {
        header().subtract(counter, 1);
    }
}

/// Nothing is accelerated in this process from now on. What is already is not touched.
pub fn stop_accelerating(reason: Reason) {
    process::stop(reason);
    if !HEADER.load(Acquire).is_null()
        && let Some(reason) = process::stopped_because()
    {
        header().stop(reason);
    }
}

/// Makes the file although there is nothing to count: for the reason in it.
pub fn appear() {
    let _ = header();
}

/// Counts a connection that stays on TCP, or goes there.
pub fn fell_back(role: Role, reason: Reason) {
    header().fell_back(role, reason);
}

/// Counts a connection that its peer has poisoned.
pub fn poisoned(poison: Poison) {
    header().poisoned(poison);
}

/// Adds a slot's figures to the totals and frees it.
pub fn give_slot(slot: &ConnectionSlot) {
    let header = header();
    let index = (core::ptr::from_ref(slot) as usize)
        .wrapping_sub(core::ptr::from_ref(header) as usize + HEADER_BYTES)
        .wrapping_div(SLOT_BYTES);
    slot.close(header);
    HINT.store(index as u32, Relaxed);
    LIVE.fetch_sub(1, Relaxed);
}

/// One of the slots of a file, if it has so many.
fn slot(header: &'static StatsHeader, index: u32) -> Option<&'static ConnectionSlot> {
    let first = core::ptr::from_ref(header).cast::<u8>().wrapping_add(HEADER_BYTES).cast::<ConnectionSlot>();
    // SAFETY: slots below `SLOTS` lie in allocated pages of the mapping; they are atomics, valid when zeroed.
    (index < SLOTS.load(Acquire)).then(|| unsafe { &*first.add(index as usize) })
}

/// A free slot, if there is a file with room for one.
pub fn take_slot() -> Option<&'static ConnectionSlot> {
    let header = header();
    if core::ptr::eq(header, nowhere()) {
        return None;
    }
    let live = LIVE.fetch_add(1, Relaxed) + 1;
    if live > SLOTS.load(Relaxed) && !grow(live) {
        LIVE.fetch_sub(1, Relaxed);
        return None;
    }
    let slots = SLOTS.load(Acquire);
    let hint = HINT.load(Relaxed);
    for step in 0..slots {
        let index = hint.wrapping_add(step) % slots;
        if let Some(slot) = slot(header, index).filter(|slot| slot.try_take()) {
            header.raise_high_water(index + 1);
            HINT.store(index + 1, Relaxed);
            return Some(slot);
        }
    }
    LIVE.fetch_sub(1, Relaxed);
    None
}

/// Bytes that connections have moved, both ways; none if nobody counts them.
pub(crate) fn moved() -> Option<u64> {
    /// More are not added up while they are open.
    const SLOTS_MOST: u32 = 1024;
    // SAFETY: as in `header`.
    let header = unsafe { HEADER.load(Acquire).as_ref() }.filter(|header| !core::ptr::eq(*header, nowhere()))?;
    let closed = [Counter::BytesSent, Counter::BytesReceived].map(|counter| header.counter(counter));
    let used = header.slots_high_water.load(Relaxed).min(SLOTS_MOST);
    let live = (0..used).filter_map(|index| slot(header, index)).filter(|slot| slot.state.load(Acquire) == SLOT_LIVE);
    let live = live.flat_map(|slot| [&slot.tx_bytes, &slot.rx_bytes]);
    Some(live.fold(closed[0].wrapping_add(closed[1]), |sum, bytes| sum.wrapping_add(bytes.load(Relaxed))))
}

/// Allocates pages until there are `wanted` slots, half as much again as there are at a time.
#[cold]
fn grow(wanted: u32) -> bool {
    let _guard = LOCK.lock();
    let slots = SLOTS.load(Relaxed);
    if wanted <= slots {
        return true;
    }
    let step = (slots as usize / 2).next_multiple_of(SLOTS_PER_PAGE);
    let target = (slots as usize + step).min(SLOTS_MAX);
    if (wanted as usize) > target || FILE.pid.load(Relaxed) == 0 {
        return false;
    }
    let Ok(file) = open(libc::AT_FDCWD, FILE.path().as_c_str(), libc::O_RDWR, 0) else { return false };
    let same = memfd::identify(file.get()).is_ok_and(|(id, _)| id == FILE.id());
    let offset = HEADER_BYTES + slots as usize * SLOT_BYTES;
    let grown = same && allocate(file.get(), offset, (target - slots as usize) * SLOT_BYTES).is_ok();
    if grown {
        SLOTS.store(target as u32, Release);
    }
    grown
}

/// Removes the file: the process is about to end.
#[unsafe(link_section = ".text.fork")]
pub fn remove_file() {
    let pid = FILE.pid.load(Relaxed);
    // A vfork child that exits is not the process the file is about.
    if pid != 0 && sys::getpid() == pid {
        FILE.pid.store(0, Relaxed);
        unlink(
            libc::AT_FDCWD,
            layout::file_path(FILE.uid.load(Relaxed), FileName { pid, start_ticks: FILE.start_ticks.load(Relaxed) })
                .as_c_str(),
        );
    }
}

/// The file is not removed when the process ends.
pub fn keep_file() {
    FILE.pid.store(0, Relaxed);
}

/// In the child of a `fork`: the file is the parent's.
pub fn reset_after_fork() {
    LOCK.reset();
    IS_CHILD.store(true, Relaxed);
    FILE.pid.store(0, Relaxed);
    SLOTS.store(0, Relaxed);
    settings::leave_file();
    let header = HEADER.swap(core::ptr::null_mut(), Relaxed);
    if !core::ptr::eq(header, nowhere()) {
        inherited::keep(header);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_name_may_hold_parentheses() {
        assert_eq!(program_name(b"42 (a (b) c) S 1"), b"a (b) c");
        assert_eq!(program_name(b"42"), b"");
    }

    #[test]
    fn figures_reach_the_file_and_the_file_goes_away() {
        count(Counter::LanesCreated, 3);
        let path = FILE.path();
        let path = std::path::Path::new(path.as_str());
        let bytes = std::fs::read(path).expect("the file exists once something is counted");
        let snapshot = beeline_stats::Snapshot::parse(&bytes);
        assert!(snapshot.is_ok());
        let slot = take_slot().expect("the file has slots");
        slot.state.store(SLOT_LIVE, Relaxed);
        slot.tx_bytes.store(11, Relaxed);
        slot.rx_bytes.store(12, Relaxed);
        assert_eq!(moved(), Some(23));
        give_slot(slot);
        assert_eq!(moved(), Some(23), "counted once when it is closed, too");
        let before = SLOTS.load(Relaxed);
        let taken: Vec<_> = (0..before * 2).map(|_| take_slot().expect("the file grows")).collect();
        assert!(SLOTS.load(Relaxed) >= before * 2);
        assert_eq!(
            std::fs::metadata(path).unwrap().len() as usize,
            HEADER_BYTES + SLOTS.load(Relaxed) as usize * SLOT_BYTES
        );
        drop(taken);
        remove_file();
        assert!(!path.exists());
    }
}
