//! Small files of /proc, read without libc.

use core::ffi::CStr;

use beeline_shm::sys::{self, call};

/// Reads the beginning of a file. `None` when it cannot be opened or read.
pub(crate) fn read<'a>(path: &CStr, buffer: &'a mut [u8]) -> Option<&'a [u8]> {
    let flags = libc::O_RDONLY | libc::O_CLOEXEC;
    let args = [libc::AT_FDCWD as usize, path.as_ptr() as usize, flags as usize, 0, 0, 0];
    // SAFETY: a NUL-terminated path and plain numbers.
    let fd = unsafe { call(libc::SYS_openat, args) }.ok()?;
    // SAFETY: a live buffer of the length given.
    let length = unsafe { call(libc::SYS_read, [fd, buffer.as_mut_ptr() as usize, buffer.len(), 0, 0, 0]) };
    let _ = sys::close(fd as i32);
    buffer.get(..length.ok()?)
}

/// The decimal numbers in a text, separated by white space; what is no number ends them.
pub(crate) fn numbers(text: &[u8]) -> impl Iterator<Item = u32> {
    text.split(u8::is_ascii_whitespace)
        .filter(|word| !word.is_empty())
        .map_while(|word| core::str::from_utf8(word).ok()?.parse().ok())
}

/// The state of a thread of this pid namespace as a letter, as in proc_pid_stat(5): `Z` for one that has ended and is
/// not yet waited for. `None` when there is no such thread, or /proc cannot be read.
pub(crate) fn state_of(tid: u32) -> Option<u8> {
    // Slashes more than needed mean nothing.
    let mut path = *b"/proc/////////////stat\0";
    let mut rest = tid;
    for place in path.get_mut(7..17)?.iter_mut().rev() {
        *place = b'0' + (rest % 10) as u8;
        rest /= 10;
        if rest == 0 {
            break;
        }
    }
    let mut buffer = [0; 128];
    let stat = read(CStr::from_bytes_with_nul(&path).ok()?, &mut buffer)?;
    // The program's name stands before it in parentheses and may contain some; only numbers follow.
    let end = stat.iter().rposition(|&byte| byte == b')')?;
    stat.get(end.checked_add(2)?).copied()
}

/// The inode of the process's pid namespace, 0 if unknown.
pub(crate) fn pid_namespace() -> u32 {
    // SAFETY: all-zero is a valid value of this plain C struct.
    let mut stat: libc::stat = unsafe { core::mem::zeroed() };
    let path = c"/proc/self/ns/pid".as_ptr() as usize;
    let args = [libc::AT_FDCWD as usize, path, (&raw mut stat) as usize, 0, 0, 0];
    // SAFETY: a NUL-terminated string; the kernel writes one `struct stat` into a live local of that type.
    match unsafe { call(libc::SYS_newfstatat, args) } {
        Ok(_) => u32::try_from(stat.st_ino).unwrap_or(0),
        Err(_) => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_end_where_text_begins() {
        assert!(numbers(b"32768\t60999\n").eq([32768, 60999]));
        assert!(numbers(b" 7 x 8").eq([7]));
        assert!(numbers(b"").eq([]));
    }

    #[test]
    fn a_running_thread_has_a_state_and_a_missing_one_has_none() {
        assert_eq!(state_of(sys::gettid()), Some(b'R'));
        assert!(matches!(state_of(1), Some(b'S' | b'R' | b'I' | b'D')));
        assert_eq!(state_of(u32::MAX), None);
    }

    #[test]
    fn a_file_is_read_and_a_missing_one_is_none() {
        let mut buffer = [0; 64];
        let text = read(c"/proc/sys/kernel/overflowuid", &mut buffer).unwrap();
        assert_eq!(numbers(text).next(), Some(65534));
        assert!(read(c"/proc/no/such/file", &mut [0; 8]).is_none());
    }
}
