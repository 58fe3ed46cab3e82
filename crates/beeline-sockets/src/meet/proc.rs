//! Small files of /proc, read without libc.

use core::ffi::CStr;

use beeline_shm::sys::{self, call};

/// Reads the beginning of a file. `None` when it cannot be opened or read.
pub(super) fn read<'a>(path: &CStr, buffer: &'a mut [u8]) -> Option<&'a [u8]> {
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
pub(super) fn numbers(text: &[u8]) -> impl Iterator<Item = u32> {
    text.split(u8::is_ascii_whitespace)
        .filter(|word| !word.is_empty())
        .map_while(|word| core::str::from_utf8(word).ok()?.parse().ok())
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
    fn a_file_is_read_and_a_missing_one_is_none() {
        let mut buffer = [0; 64];
        let text = read(c"/proc/sys/kernel/overflowuid", &mut buffer).unwrap();
        assert_eq!(numbers(text).next(), Some(65534));
        assert!(read(c"/proc/no/such/file", &mut [0; 8]).is_none());
    }
}
