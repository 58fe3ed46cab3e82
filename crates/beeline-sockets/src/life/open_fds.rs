//! Which descriptors a process has open, as /proc tells; its own it can find without.

use core::ffi::CStr;

use beeline_shm::sys;

use crate::kernel;

/// Bytes asked of getdents64(2) at a time.
const BUFFER_BYTES: usize = 2048;

#[repr(C, align(8))]
struct Buffer([u8; BUFFER_BYTES]);

/// Numbers that are tried, one by one, where there is no /proc: as many as a limit of descriptors mostly allows, in
/// some milliseconds.
const NUMBERS_MAX: u64 = 65_536;

/// Calls `f` with each open descriptor of this process. Where there is no /proc, or no number with which to read it,
/// with those below the limit.
pub(super) fn each(mut f: impl FnMut(i32)) {
    let is_listed = each_in(c"/proc/self/fd", |fd, directory| {
        if fd != directory {
            f(fd);
        }
    });
    if !is_listed {
        each_below(sys::limit(libc::RLIMIT_NOFILE), f);
    }
}

fn each_below(limit: u64, mut f: impl FnMut(i32)) {
    for fd in 0..limit.min(NUMBERS_MAX) as i32 {
        if kernel::is_close_on_exec(fd).is_ok() {
            f(fd);
        }
    }
}

/// Calls `f` with each descriptor that a directory of /proc lists, and with that under which this process reads the
/// directory. False, and not at all, where it may not be opened.
pub(super) fn each_in(path: &CStr, mut f: impl FnMut(i32, i32)) -> bool {
    let flags = libc::O_RDONLY | libc::O_DIRECTORY | libc::O_CLOEXEC;
    let args = [libc::AT_FDCWD as usize, path.as_ptr() as usize, flags as usize, 0, 0, 0];
    // SAFETY: a NUL-terminated string and plain numbers.
    let Ok(directory) = (unsafe { sys::call(libc::SYS_openat, args) }) else { return false };
    let mut buffer = Buffer([0; BUFFER_BYTES]);
    loop {
        let args = [directory, (&raw mut buffer.0) as usize, BUFFER_BYTES, 0, 0, 0];
        // SAFETY: a live buffer of the length given.
        let Ok(length) = (unsafe { sys::call(libc::SYS_getdents64, args) }) else { break };
        if length == 0 {
            break;
        }
        let mut rest = buffer.0.get(..length).unwrap_or_default();
        // struct linux_dirent64: u64 inode, u64 offset, u16 length, u8 type, NUL-terminated name.
        while let Some(&[low, high]) = rest.get(16..18) {
            let length = usize::from(u16::from_ne_bytes([low, high]));
            if length < 20 {
                break;
            }
            if let Some(fd) = rest.get(19..length).and_then(number) {
                f(fd, directory as i32);
            }
            rest = rest.get(length..).unwrap_or_default();
        }
    }
    let _ = sys::close(directory as i32);
    true
}

/// The decimal number at the start of a NUL-terminated name; `None` for other names.
fn number(name: &[u8]) -> Option<i32> {
    let digits = name.split(|&byte| byte == 0).next()?;
    if digits.is_empty() {
        return None;
    }
    digits.iter().try_fold(0i32, |value, &byte| {
        let digit = byte.checked_sub(b'0').filter(|digit| *digit < 10)?;
        value.checked_mul(10)?.checked_add(i32::from(digit))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_are_numbers_are_read() {
        assert_eq!(number(b"17\0\0\0"), Some(17));
        assert_eq!(number(b".\0"), None);
        assert_eq!(number(b"\0"), None);
        assert_eq!(number(b"99999999999\0"), None);
    }

    #[test]
    fn open_descriptors_are_found() {
        let pipe = std::io::pipe().unwrap();
        let mut found = Vec::new();
        each(|fd| found.push(fd));
        use std::os::fd::AsRawFd;
        assert!(found.contains(&pipe.0.as_raw_fd()) && found.contains(&pipe.1.as_raw_fd()));
    }

    #[test]
    fn open_descriptors_are_found_without_proc() {
        use std::os::fd::AsRawFd;
        let (end, other) = std::io::pipe().unwrap();
        let (end, other) = (end.as_raw_fd(), other.as_raw_fd());
        let found = |limit| {
            let mut found = Vec::new();
            each_below(limit, |fd| found.push(fd));
            found
        };
        let all = found(u64::MAX);
        assert!(all.contains(&end) && all.contains(&other) && !all.contains(&(NUMBERS_MAX as i32 - 1)));
        assert!(!found(end as u64).contains(&end) && found(end as u64 + 1).contains(&end));
        assert!(!each_in(c"/proc/self/no such directory", |_, _| ()) && each_in(c"/proc/self/fd", |_, _| ()));
    }
}
