//! The statistics file over `execve`: process id and start time, and so the name, stay the same.
//!
//! 1. A program without the library would leave the file of its predecessor to be shown as its own, so the file is
//!    removed before it starts. If `execve` fails, a copy takes the file's place, mapped where the old one was.
//! 2. A program with the library finds the file when it starts. Its totals begin where its predecessor's ended: the
//!    figures of connections that were open then are added to the totals, as if they had been closed. Those that it
//!    goes on with are counted as taken over.
//! 3. A gauge ([`Counter::HiddenFds`]) begins anew.

use core::sync::atomic::{
    AtomicBool, AtomicU64,
    Ordering::{Acquire, Relaxed},
};

use beeline_shm::memfd;
use beeline_shm::sys::{self, call};
use beeline_stats::Counter;
use beeline_stats::layout::{self, ConnectionSlot, FILE_BYTES_MAX, FileName, HEADER_BYTES, SLOT_BYTES, StatsHeader};

use super::{FILE, HEADER, LOCK, SLOTS, allocate, header, open_new, stale, unlink};
use crate::files::open;
use crate::{Errno, process};

/// Whether the file was removed for a program that has not started.
static REMOVED: AtomicBool = AtomicBool::new(false);

/// This process is about to become a program that will not have the library.
pub fn before_strange_program() {
    let _guard = LOCK.lock();
    if FILE.pid.load(Relaxed) != 0 && !REMOVED.swap(true, Relaxed) {
        unlink(libc::AT_FDCWD, FILE.path().as_c_str());
    }
}

/// It has not become that program.
pub fn strange_program_failed() {
    let _guard = LOCK.lock();
    if REMOVED.swap(false, Relaxed) && restore().is_err() {
        // Without a file: figures go on into memory that nobody reads.
        FILE.pid.store(0, Relaxed);
    }
}

/// Puts a copy of the mapped file in the removed one's place. The lock is held.
fn restore() -> Result<(), Errno> {
    let base = HEADER.load(Acquire);
    let length = HEADER_BYTES + SLOTS.load(Relaxed) as usize * SLOT_BYTES;
    let file = open_new(libc::AT_FDCWD, FILE.path().as_c_str())?;
    let fd = file.get();
    let args = [fd as usize, base as usize, length, 0, 0, 0];
    allocate(fd, 0, length)
        // SAFETY: that much of the mapping is allocated.
        .and_then(|()| unsafe { call(libc::SYS_pwrite64, args) })
        .and_then(|_| {
            stale::lock(fd);
            memfd::identify(fd)
        })
        .and_then(|(id, _)| {
            FILE.device.store(id.device, Relaxed);
            FILE.inode.store(id.inode, Relaxed);
            // SAFETY: the mapping of the statistics file, of this length, with the same content.
            unsafe { sys::map_shared_over(base.cast(), fd, FILE_BYTES_MAX) }
        })
}

/// Goes on with the file of the program that ran in this process before, if there is one.
pub fn succeed() {
    if !process::config().stats {
        return;
    }
    let Ok((uid, name)) = super::own_name() else { return };
    if open(libc::AT_FDCWD, layout::file_path(uid, name).as_c_str(), libc::O_RDONLY, 0).is_ok() {
        let _ = header();
    }
}

/// Bytes of a file, aligned as its parts are.
#[repr(C, align(128))]
struct Copy<const WORDS: usize>([AtomicU64; WORDS]);

impl<const WORDS: usize> Copy<WORDS> {
    fn read(fd: i32, offset: usize) -> Option<Self> {
        let copy = Self([const { AtomicU64::new(0) }; WORDS]);
        let args = [fd as usize, copy.0.as_ptr() as usize, WORDS * 8, offset, 0, 0];
        // SAFETY: a live buffer of the length given, of atomics for which all bytes are valid.
        let read = unsafe { call(libc::SYS_pread64, args) };
        (read == Ok(WORDS * 8)).then_some(copy)
    }
}

/// Adds what the file of the last program has counted to `header`, which is this one's. Apart, for its copies.
#[inline(never)]
pub(super) fn add_up(fd: i32, name: FileName, header: &StatsHeader) {
    let Some(copy) = Copy::<{ HEADER_BYTES / 8 }>::read(fd, 0) else { return };
    // SAFETY: a copy of the header's size and alignment; it consists of atomics for which all bytes are valid.
    let last = unsafe { &*(&raw const copy).cast::<StatsHeader>() };
    let same_lists = last.counters_len.load(Relaxed) as usize == Counter::COUNT
        && last.reasons_len.load(Relaxed) as usize == beeline_stats::Reason::COUNT
        && last.poisons_len.load(Relaxed) as usize == beeline_stats::Poison::COUNT;
    let is_own = last.magic.load(Relaxed) == layout::MAGIC
        && last.version.load(Relaxed) == layout::VERSION
        && last.pid.load(Relaxed) == name.pid
        && last.start_ticks.load(Relaxed) == name.start_ticks;
    if !same_lists || !is_own {
        return;
    }
    for (index, (target, source)) in header.counters.iter().zip(&last.counters).enumerate() {
        if index != Counter::HiddenFds.index() {
            target.fetch_add(source.load(Relaxed), Relaxed);
        }
    }
    let lists = [
        (&header.reasons_client, &last.reasons_client),
        (&header.reasons_server, &last.reasons_server),
        (&header.poisons, &last.poisons),
    ];
    for (target, source) in lists.into_iter().flat_map(|(targets, sources)| targets.iter().zip(sources)) {
        target.fetch_add(source.load(Relaxed), Relaxed);
    }
    // What was set while the last program ran holds for this one.
    for (target, source) in header.settings.iter().zip(&last.settings) {
        target.store(source.load(Relaxed), Relaxed);
    }
    for index in 0..last.slots_high_water.load(Relaxed) as usize {
        let Some(copy) = Copy::<{ SLOT_BYTES / 8 }>::read(fd, HEADER_BYTES + index * SLOT_BYTES) else { return };
        // SAFETY: as for the header.
        let slot = unsafe { &*(&raw const copy).cast::<ConnectionSlot>() };
        if slot.state.load(Relaxed) == layout::SLOT_LIVE {
            slot.close(header);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_next_program_begins_where_the_last_one_ended() {
        // SAFETY: all-zero is a valid header and a valid slot.
        let (last, slot, next): (StatsHeader, ConnectionSlot, StatsHeader) = unsafe { core::mem::zeroed() };
        let name = FileName { pid: 7, start_ticks: 8 };
        last.publish(name, 0, 0, b"last");
        last.add(Counter::BytesSent, 5);
        last.add(Counter::HiddenFds, 9);
        last.raise_high_water(1);
        last.settings[1].store(3, Relaxed);
        slot.state.store(layout::SLOT_LIVE, Relaxed);
        slot.tx_bytes.store(6, Relaxed);
        let path = std::env::temp_dir().join(format!("beeline-succession-{}", std::process::id()));
        let bytes = |start: *const u8, length: usize| {
            // SAFETY: the whole of a live object.
            unsafe { core::slice::from_raw_parts(start, length) }.to_vec()
        };
        let mut content = bytes((&raw const last).cast(), HEADER_BYTES);
        content.extend(bytes((&raw const slot).cast(), SLOT_BYTES));
        std::fs::write(&path, content).unwrap();
        let file = std::fs::File::open(&path).unwrap();
        let fd = std::os::fd::AsRawFd::as_raw_fd(&file);
        let counted = |counter: Counter| next.counters[counter.index()].load(Relaxed);
        add_up(fd, FileName { pid: 7, start_ticks: 9 }, &next);
        assert_eq!(counted(Counter::BytesSent), 0, "another process");
        add_up(fd, name, &next);
        assert_eq!(counted(Counter::BytesSent), 11);
        assert_eq!(counted(Counter::ConnectionsClosed), 1);
        assert_eq!(counted(Counter::HiddenFds), 0);
        assert_eq!(next.settings[1].load(Relaxed), 3);
        std::fs::remove_file(path).unwrap();
    }
}
