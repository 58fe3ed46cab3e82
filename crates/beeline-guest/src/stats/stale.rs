//! Files of processes that are gone: a process that is killed cannot remove its own.
//!
//! 1. Each process locks its file (rule 8 of `beeline_stats::layout`). The lock goes with the last mapping, however the
//!    process ends, and can be seen from any pid namespace.
//! 2. Who makes a file looks at a few others of its user, beginning at another one each time, and removes those that
//!    nobody holds. So they become fewer by themselves where processes come and go, and no start costs more than some
//!    microseconds. `beeline stat` looks at all. The children of a server that forks for each connection are many, and
//!    begin while a client waits: one in [`LOOKS`] of them looks, at [`LOOKS`] files and more. So what they can leave
//!    still is what they remove.
//! 3. A process that runs another program gives its lock up and takes it again when the library starts in the new
//!    program. So a file is kept, too, if a process of this pid namespace has its number and began when it did.

use core::ffi::CStr;

use beeline_shm::sys::call;
use beeline_stats::layout::{self, FileName, IS_LOCKED_OFFSET};

use super::unlink;
use crate::files::open;
use crate::proc;

/// Files that one process looks at.
const LOOKS: usize = 8;

fn whole_file(kind: i32) -> libc::flock {
    // SAFETY: all-zero is a valid value of this plain C struct.
    let mut lock: libc::flock = unsafe { core::mem::zeroed() };
    lock.l_type = kind as i16;
    lock.l_whence = libc::SEEK_SET as i16;
    lock.l_len = 1;
    lock
}

/// Locks a file for as long as it is mapped. Nobody else ever locks it, so this does not fail but for want of memory.
pub(super) fn lock(fd: i32) -> bool {
    let lock = whole_file(libc::F_WRLCK);
    let args = [fd as usize, libc::F_OFD_SETLK as usize, (&raw const lock) as usize, 0, 0, 0];
    // SAFETY: a live lock, which the kernel reads.
    unsafe { call(libc::SYS_fcntl, args) }.is_ok()
}

/// Whether somebody has locked the file.
fn is_held(fd: i32) -> bool {
    let mut lock = whole_file(libc::F_RDLCK);
    let args = [fd as usize, libc::F_OFD_GETLK as usize, (&raw mut lock) as usize, 0, 0, 0];
    // SAFETY: a live lock, which the kernel reads and writes.
    let asked = unsafe { call(libc::SYS_fcntl, args) };
    asked.is_err() || i32::from(lock.l_type) != libc::F_UNLCK
}

/// Whether a process that makes a file looks at others.
pub(super) fn looks(own: FileName, is_child: bool) -> bool {
    !is_child || (own.pid as usize).is_multiple_of(LOOKS)
}

/// Removes some of the files in a user's directory whose processes are gone.
pub(super) fn sweep(directory: i32, own: FileName) {
    // Which files come first is the directory's order; the skip is another one for each process, also among those whose
    // numbers are multiples. Where there are few, all are looked at.
    let skip = (own.pid as usize + own.pid as usize / LOOKS) % LOOKS;
    if sweep_from(directory, own, skip) < LOOKS && skip != 0 {
        // SAFETY: the call takes no pointers.
        let rewound = unsafe { call(libc::SYS_lseek, [directory as usize, 0, libc::SEEK_SET as usize, 0, 0, 0]) };
        if rewound.is_ok() {
            sweep_from(directory, own, 0);
        }
    }
}

/// Looks at files behind the first `skip` of a directory. Returns at how many.
fn sweep_from(directory: i32, own: FileName, mut skip: usize) -> usize {
    /// An entry is its name and 20 bytes, `struct linux_dirent64`.
    const NAME_OFFSET: usize = 19;
    let mut buffer = [0_u64; 128];
    let mut looks = 0;
    while looks < LOOKS {
        let args = [directory as usize, buffer.as_mut_ptr() as usize, size_of_val(&buffer), 0, 0, 0];
        // SAFETY: a live buffer of the length given.
        let Ok(length @ 1..) = (unsafe { call(libc::SYS_getdents64, args) }) else { return looks };
        // SAFETY: the kernel has filled so many bytes of the buffer; integers are bytes.
        let bytes = unsafe { core::slice::from_raw_parts(buffer.as_ptr().cast::<u8>(), length) };
        let mut rest = bytes;
        while let Some(&[low, high]) = rest.get(16..18) {
            let record = usize::from(u16::from_ne_bytes([low, high]));
            let name = rest.get(NAME_OFFSET..record).and_then(|name| CStr::from_bytes_until_nul(name).ok());
            rest = rest.get(record.max(1)..).unwrap_or_default();
            let Some(name) = name else { continue };
            let Some(parsed) = FileName::parse(name.to_bytes()).filter(|parsed| *parsed != own) else { continue };
            if skip != 0 {
                skip -= 1;
                continue;
            }
            looks += 1;
            if is_abandoned(directory, name, parsed) {
                unlink(directory, name);
            }
            if looks >= LOOKS {
                return looks;
            }
        }
    }
    looks
}

/// Whether the file was locked by a process and is no longer, or was left before that.
fn is_abandoned(directory: i32, name: &CStr, parsed: FileName) -> bool {
    // Whatever has the name may be a pipe.
    let Ok(file) = open(directory, name, libc::O_RDONLY | libc::O_NONBLOCK, 0) else { return false };
    let fd = file.get();
    let word = |offset: usize| {
        let mut word = 0_u64;
        let args = [fd as usize, (&raw mut word) as usize, 8, offset, 0, 0];
        // SAFETY: a live word.
        (unsafe { call(libc::SYS_pread64, args) } == Ok(8)).then_some(word)
    };
    let was_locked = word(0) == Some(layout::MAGIC) && word(IS_LOCKED_OFFSET) == Some(1);
    // Its process was killed before it had written anything. One of another pid namespace may be about to: then it
    // loses its statistics, and nothing else.
    let is_blank = word(0).is_none_or(|word| word == 0);
    (was_locked || is_blank) && !is_held(fd) && !runs(parsed)
}

/// Whether a process of this pid namespace has the number and began when the file says.
fn runs(name: FileName) -> bool {
    let Some(path) = beeline_stats::Text::<48>::format(format_args!("/proc/{}/stat", name.pid)) else { return false };
    let mut buffer = [0; 512];
    let stat = proc::read(path.as_c_str(), &mut buffer);
    stat.and_then(layout::start_ticks_from_proc_stat) == Some(name.start_ticks)
}

#[cfg(test)]
mod tests {
    use super::*;
    use beeline_shm::sys;
    use std::os::fd::AsRawFd;

    struct Place(std::path::PathBuf);

    impl Drop for Place {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    fn put(place: &Place, name: FileName, is_locked: u32) -> std::path::PathBuf {
        let path = place.0.join(name.text().as_str());
        let mut content = [0_u8; 4096];
        content[..8].copy_from_slice(&layout::MAGIC.to_ne_bytes());
        content[IS_LOCKED_OFFSET..IS_LOCKED_OFFSET + 4].copy_from_slice(&is_locked.to_ne_bytes());
        std::fs::write(&path, content).unwrap();
        path
    }

    #[test]
    fn only_files_that_were_locked_and_are_free_go() {
        let place = Place(std::env::temp_dir().join(format!("beeline-stale-{}", std::process::id())));
        std::fs::create_dir(&place.0).unwrap();
        let name = |pid| FileName { pid, start_ticks: 1 };
        let free = put(&place, name(4_000_000_001), 1);
        let unmarked = put(&place, name(4_000_000_002), 0);
        let held = put(&place, name(4_000_000_003), 1);
        let own = put(&place, name(4_000_000_008), 1);
        let file = std::fs::File::options().read(true).write(true).open(&held).unwrap();
        assert!(lock(file.as_raw_fd()));
        let base = sys::map_shared(file.as_raw_fd(), 4096).unwrap();
        drop(file);
        let look = || {
            let directory = std::fs::File::open(&place.0).unwrap();
            sweep(directory.as_raw_fd(), name(4_000_000_008));
        };
        look();
        assert!(!free.exists() && unmarked.exists() && own.exists());
        assert!(held.exists(), "the mapping keeps the lock");
        // SAFETY: mapped above, with no other user.
        unsafe { sys::unmap(base, 4096) };
        // A child that another test has just forked may have the mapping, too, for a moment.
        let until = std::time::Instant::now() + std::time::Duration::from_secs(5);
        while held.exists() {
            assert!(std::time::Instant::now() < until);
            look();
        }
    }

    #[test]
    fn no_start_looks_at_more_than_a_few() {
        let place = Place(std::env::temp_dir().join(format!("beeline-stale-many-{}", std::process::id())));
        std::fs::create_dir(&place.0).unwrap();
        for pid in 4_000_000_000..4_000_000_100_u32 {
            put(&place, FileName { pid, start_ticks: 1 }, 1);
        }
        let count = || std::fs::read_dir(&place.0).unwrap().count();
        let mut before = count();
        while before > 0 {
            let directory = std::fs::File::open(&place.0).unwrap();
            // One that begins at the beginning, so that the last few are found, too.
            sweep(directory.as_raw_fd(), FileName { pid: 64, start_ticks: 1 });
            let after = count();
            assert!(after < before && after + LOOKS >= before, "{before} {after}");
            before = after;
        }
    }

    #[test]
    fn children_of_a_fork_remove_together_as_much_as_they_leave() {
        let children = (4_000_000_000..4_000_000_080_u32).map(|pid| FileName { pid, start_ticks: 1 });
        let looking: Vec<_> = children.filter(|child| looks(*child, true)).collect();
        assert_eq!(looking.len() * LOOKS, 80);
        assert!(
            (0..LOOKS as u32).all(|pid| looks(FileName { pid: 1 + pid, start_ticks: 1 }, false)),
            "programs all look"
        );
        let place = Place(std::env::temp_dir().join(format!("beeline-stale-children-{}", std::process::id())));
        std::fs::create_dir(&place.0).unwrap();
        let count = || std::fs::read_dir(&place.0).unwrap().count();
        for child in 0..80 {
            // Killed before it could remove its own.
            let own = FileName { pid: 4_000_000_000 + child, start_ticks: 1 };
            put(&place, own, 1);
            if looks(own, true) {
                let directory = std::fs::File::open(&place.0).unwrap();
                sweep(directory.as_raw_fd(), own);
            }
            assert!(count() <= 3 * LOOKS, "{child}: {}", count());
        }
    }
}
