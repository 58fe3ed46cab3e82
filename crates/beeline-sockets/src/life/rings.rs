//! Rings of io_uring(7) that no hook hears of.
//!
//! A program that brings liburing with it, linked in, makes its rings by system calls in its own text ([`super::code`]
//! finds those). Beside these there are:
//!
//! 1. liburing as a shared library, when nobody needs it by name: who opens it by hand asks it for its functions
//!    past our hooks. Those who are linked against it come to our hooks, and are let pass.
//! 2. A ring that is open, unless liburing's functions made it, which our hooks see into.

use core::sync::atomic::{AtomicI32, AtomicUsize, Ordering::Relaxed};

use beeline_shm::sys;
use beeline_stats::Text;

use super::objects::Object;
use super::open_fds;

/// How the file of liburing is called.
const LIBURING: &[u8] = b"liburing";
/// How that of libaio is, whose submissions (io_submit(2)) our hooks look at likewise.
const LIBAIO: &[u8] = b"libaio.so";

/// The numbers, plus one, of rings that our hooks see into; 0 for none. Of more rings than fit nothing is known.
static KNOWN: [AtomicI32; 8] = [const { AtomicI32::new(0) }; 8];
static KNOWN_NEXT: AtomicUsize = AtomicUsize::new(0);

/// A ring has been made under this number whose requests are looked at before they are submitted.
pub fn know_ring(fd: i32) {
    let next = KNOWN_NEXT.fetch_add(1, Relaxed);
    if let Some(place) = KNOWN.get(next) {
        place.store(fd.wrapping_add(1), Relaxed);
    }
}

fn is_known(fd: i32) -> bool {
    KNOWN_NEXT.load(Relaxed) > KNOWN.len() || KNOWN.iter().any(|place| place.load(Relaxed) == fd.wrapping_add(1))
}

/// Whether a path or name is one of liburing.
pub(super) fn is_liburing(path: &[u8]) -> bool {
    begins(path, LIBURING)
}

/// Whether it is one of libaio.
pub(super) fn is_libaio(path: &[u8]) -> bool {
    begins(path, LIBAIO)
}

fn begins(path: &[u8], start: &[u8]) -> bool {
    path.rsplit(|&byte| byte == b'/').next().is_some_and(|name| name.starts_with(start))
}

/// Whether an object names liburing among those it needs.
pub(super) fn needs_liburing(object: &Object) -> bool {
    object.needed().any(is_liburing)
}

/// Whether it names libaio there.
pub(super) fn needs_libaio(object: &Object) -> bool {
    object.needed().any(is_libaio)
}

/// Whether the process has a ring open that is not known.
pub(super) fn has_unknown_ring() -> bool {
    let mut found = false;
    open_fds::each(|fd| found = found || is_ring(b"/proc/self", fd) && !is_known(fd));
    found
}

/// Whether a process other than this one has a ring open, as far as this one may know.
pub(super) fn has_ring(pid: u32) -> bool {
    let Some(path) = Text::<32>::format(format_args!("/proc/{pid}/fd")) else { return false };
    let Some(directory) = path.as_str().strip_suffix("/fd") else { return false };
    let mut found = false;
    open_fds::each_in(path.as_c_str(), |fd, _| found = found || is_ring(directory.as_bytes(), fd));
    found
}

/// Whether liburing has made a ring in this process, or in one that it was forked from.
pub(super) fn has_made_ring() -> bool {
    KNOWN_NEXT.load(Relaxed) != 0
}

/// Whether a descriptor of the process with this directory is a ring.
fn is_ring(process: &[u8], fd: i32) -> bool {
    const RING: &[u8] = b"anon_inode:[io_uring]";
    let mut path = [0u8; 32];
    let mut target = [0u8; 32];
    write_path(&mut path, process, fd);
    let args = [libc::AT_FDCWD as usize, path.as_ptr() as usize, target.as_mut_ptr() as usize, target.len(), 0, 0];
    // SAFETY: a path that ends in NUL, and a live buffer of the length given.
    let length = unsafe { sys::call(libc::SYS_readlinkat, args) }.unwrap_or(0);
    target.get(..length) == Some(RING)
}

/// Writes where /proc has a descriptor of the process with this directory, and leaves at least one zero behind.
fn write_path(path: &mut [u8; 32], process: &[u8], fd: i32) {
    let mut digits = [0u8; 10];
    let mut count = 0usize;
    let mut left = fd.unsigned_abs();
    for digit in digits.iter_mut().rev() {
        *digit = b'0'.wrapping_add((left % 10) as u8);
        left /= 10;
        count = count.saturating_add(1);
        if left == 0 {
            break;
        }
    }
    let digits = digits.iter().skip(digits.len().saturating_sub(count));
    let last = path.len().saturating_sub(1);
    for (place, byte) in path.iter_mut().take(last).zip(process.iter().chain(b"/fd/").chain(digits)) {
        *place = *byte;
    }
}

#[cfg(test)]
mod tests {
    use core::ffi::CStr;

    use super::*;

    #[test]
    fn the_numbers_of_descriptors_are_written() {
        for fd in [0, 7, 10, 1234, i32::MAX] {
            let mut path = [0; 32];
            write_path(&mut path, b"/proc/self", fd);
            assert_eq!(CStr::from_bytes_until_nul(&path).unwrap().to_str().unwrap(), format!("/proc/self/fd/{fd}"));
        }
    }

    #[test]
    fn liburing_is_known_by_its_file() {
        assert!(is_liburing(b"/usr/lib/x86_64-linux-gnu/liburing.so.2") && is_liburing(b"liburing-ffi.so.2"));
        assert!(!is_liburing(b"/opt/liburing/libdisk.so") && !is_liburing(b""));
        assert!(is_libaio(b"/usr/lib/libaio.so.1t64") && !is_libaio(b"liburing.so.2") && !is_libaio(b"libaiocpp.so"));
    }

    #[test]
    fn this_program_has_no_ring() {
        assert!(!has_unknown_ring());
    }
}
