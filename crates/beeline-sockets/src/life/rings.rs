//! Rings of io_uring(7) that no hook hears of.
//!
//! A program that brings liburing with it, linked in, makes its rings by system calls in its own text. So before the
//! process gets its first lane its text is searched for such calls. Who carries one gets no lanes, whether it makes a ring
//! or not: when it makes one, it is too late to know.
//!
//! # What is found
//!
//! 1. In text of any loaded object but this library that can be read: the number of io_uring_setup(2) put into `eax`, and
//!    a `syscall` within [`NEAR`] bytes. That is how compilers write it for x86-64, whatever the language; of all programs and
//!    libraries on a Debian 12 with what this project's tests install, only liburing held one.
//! 2. liburing as a shared library, when nobody needs it by name: who opens it by hand asks it for its functions
//!    past our hooks. Those who are linked against it come to our hooks, and are let pass here.
//! 3. A ring that is open at that moment, unless liburing's functions made it, which our hooks see into.
//!
//! Not found are calls that are put together while the program runs, and code that libc loads by itself later.
//!
//! # When
//!
//! A search costs some milliseconds in a large program, so it is not made when the library starts, but where the process
//! is about to get something to do with lanes ([`allow_lanes`]): once, and again after it has loaded something. No lock of ours is held meanwhile: the dynamic linker
//! has its own, and others wait for ours while they hold that. Threads that come here together search each for itself.

use core::ops::ControlFlow;
use core::sync::atomic::{
    AtomicI32, AtomicU32, AtomicU64, AtomicUsize,
    Ordering::{Acquire, Relaxed, Release},
};

use beeline_shm::sys;
use beeline_stats::{Reason, Text};

use super::objects::{self, Object, Seen};
use super::{may_accelerate, open_fds, relay};

/// `mov eax, 425`: io_uring_setup(2), whose number is the same on all machines. With 64-bit operands, the constant and what
/// stands before it are the last of these bytes.
const NUMBER: [u8; 4] = 425u32.to_le_bytes();
const SYSCALL: [u8; 2] = [0x0f, 0x05];
/// Bytes between the number and the call, at most: other arguments are put into their registers there.
const NEAR: usize = 48;
/// How the file of liburing is called.
const LIBURING: &[u8] = b"liburing";

/// How often the program has loaded code, or may have; and how often it had when the text was searched and nothing found.
static LOADS: AtomicU32 = AtomicU32::new(1);
static CLEAN_AT: AtomicU32 = AtomicU32::new(0);
/// The objects that were searched then, packed.
static CLEAN: AtomicU64 = AtomicU64::new(0);

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

/// Whether the process may have lanes, as far as its code tells; gives up those it has if not. To be asked before it gets
/// something to do with lanes, outside of `changing`.
#[must_use]
pub fn allow_lanes() -> bool {
    if !may_accelerate() {
        return false;
    }
    is_clean() || search()
}

/// Lanes came from elsewhere, to a program that makes some itself or to one that does not: they are given up if the process
/// may have none.
pub(crate) fn settle_lanes() {
    if let Some(reason) = super::left_because() {
        leave(reason);
    } else if !super::has_stopped() && !is_clean() {
        search();
    }
}

/// The program loads something, or uses what it has loaded.
pub fn code_is_loaded() {
    LOADS.fetch_add(1, Release);
}

fn is_clean() -> bool {
    CLEAN_AT.load(Acquire) == LOADS.load(Acquire)
}

/// Before a fork: what has been loaded since the last search is searched here, because the child takes over what was found.
pub(super) fn before_fork() {
    if CLEAN_AT.load(Relaxed) != 0 && !is_clean() && may_accelerate() {
        search();
    }
}

/// In the child of a fork: another thread may have held the dynamic linker's lock, which nobody gives back here.
pub(super) fn forked() {
    if CLEAN_AT.load(Relaxed) != 0 {
        CLEAN_AT.store(LOADS.load(Relaxed), Relaxed);
    }
}

#[cold]
fn search() -> bool {
    let loads = LOADS.load(Acquire);
    let (clean, seen) = (Seen::unpack(CLEAN.load(Acquire)), objects::seen());
    let mut search = Search::default();
    if clean != seen {
        objects::each_since(clean, |object, is_new| search.look_at(object, is_new));
    }
    if clean == seen || !search.has_found() && !has_unknown_ring() {
        CLEAN.store(seen.pack(), Release);
        CLEAN_AT.store(loads, Release);
        return may_accelerate();
    }
    leave(Reason::IoUringCarried);
    false
}

fn leave(reason: Reason) {
    if let Err(reason) = relay::leave_lanes(reason) {
        crate::stats::fell_back(beeline_stats::Role::Client, reason);
    }
}

#[derive(Default)]
struct Search {
    own: bool,
    liburing: bool,
    needed: bool,
}

impl Search {
    fn has_found(&self) -> bool {
        self.own || self.liburing && !self.needed
    }

    /// Looks at an object; at the text of one that is new.
    fn look_at(&mut self, object: &Object, is_new: bool) -> ControlFlow<()> {
        self.needed |= needs_liburing(object);
        let is_liburing = is_liburing(object.name());
        self.liburing |= is_liburing && (!is_new || carries_setup(object));
        self.own |= is_new && !is_liburing && carries_setup(object);
        if self.own { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }
}

/// Whether a path or name is one of liburing.
fn is_liburing(path: &[u8]) -> bool {
    path.rsplit(|&byte| byte == b'/').next().is_some_and(|name| name.starts_with(LIBURING))
}

/// Whether the text of an object holds the call.
fn carries_setup(object: &Object) -> bool {
    object.segments(libc::PT_LOAD).any(|segment| {
        if segment.p_flags & (libc::PF_X | libc::PF_R) != libc::PF_X | libc::PF_R {
            return false;
        }
        let (start, length) = (object.address(segment), segment.p_filesz as usize);
        // This library hands the call on for others.
        if (allow_lanes as fn() -> bool as usize).wrapping_sub(start) < length {
            return false;
        }
        // SAFETY: a loaded segment, which can be read, and which nothing unmaps while it is listed. The dynamic linker may be
        // relocating text of an object that another thread loads: then a search finds what is there.
        holds_setup(unsafe { core::slice::from_raw_parts(start as *const u8, length) })
    })
}

/// Whether this text holds the call.
fn holds_setup(text: &[u8]) -> bool {
    let mut rest = text;
    let mut before = 0usize;
    while let Some(at) = find_number(rest) {
        let place = before.saturating_add(at);
        let next = place.saturating_add(1);
        if is_setup(text, place) {
            return true;
        }
        before = next;
        rest = text.get(next..).unwrap_or_default();
    }
    false
}

/// Where the number's first byte stands next, which is a rare one in text. libc's function is some ten times faster
/// than one of ours.
fn find_number(text: &[u8]) -> Option<usize> {
    // SAFETY: as many bytes as the slice has.
    let found = unsafe { libc::memchr(text.as_ptr().cast(), NUMBER[0].into(), text.len()) };
    (!found.is_null()).then(|| (found as usize).wrapping_sub(text.as_ptr() as usize))
}

/// Whether the number stands here, goes into `eax`, and the call follows.
fn is_setup(text: &[u8], place: usize) -> bool {
    if text.get(place..).is_none_or(|rest| !rest.starts_with(&NUMBER)) {
        return false;
    }
    let before = text.get(..place).unwrap_or_default();
    // mov eax, imm32; mov rax, imm32
    if !before.ends_with(&[0xb8]) && !before.ends_with(&[0x48, 0xc7, 0xc0]) {
        return false;
    }
    let after = place.saturating_add(NUMBER.len());
    let end = after.saturating_add(NEAR).saturating_add(SYSCALL.len()).min(text.len());
    text.get(after..end).is_some_and(|near| near.windows(SYSCALL.len()).any(|bytes| bytes == SYSCALL))
}

/// Whether an object names liburing among those it needs.
fn needs_liburing(object: &Object) -> bool {
    object.needed().any(is_liburing)
}

/// Whether the process has a ring open that is not known.
fn has_unknown_ring() -> bool {
    let mut found = false;
    open_fds::each(|fd| found |= is_ring(b"/proc/self", fd) && !is_known(fd));
    found
}

/// Whether a process other than this one has a ring open, as far as this one may know.
pub(super) fn has_ring(pid: u32) -> bool {
    let Some(path) = Text::<32>::format(format_args!("/proc/{pid}/fd")) else { return false };
    let Some(directory) = path.as_str().strip_suffix("/fd") else { return false };
    let mut found = false;
    open_fds::each_in(path.as_c_str(), |fd, _| found |= is_ring(directory.as_bytes(), fd));
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
    fn calls_are_told_from_numbers() {
        // As liburing has it, alone and with registers being filled in between.
        assert!(holds_setup(b"\x90\xb8\xa9\x01\x00\x00\x0f\x05\xc3"));
        assert!(holds_setup(b"\xb8\xa9\x01\x00\x00\x48\x89\xc6\x44\x89\xe7\x48\x89\xd3\x0f\x05"));
        assert!(holds_setup(b"\xa9\xa9\x01\x48\xc7\xc0\xa9\x01\x00\x00\x0f\x05"));
        // An argument of libc's syscall(2), another number, a number alone, a call that is far away.
        assert!(!holds_setup(b"\xbf\xa9\x01\x00\x00\x31\xc0\x0f\x05"));
        assert!(!holds_setup(b"\xb8\xaa\x01\x00\x00\x0f\x05"));
        assert!(!holds_setup(b"\xb8\xa9\x01\x00\x00"));
        assert!(!holds_setup(b"\xa9\x01\x00\x00\x0f\x05"));
        assert!(!holds_setup(&[b"\xb8\xa9\x01\x00\x00".as_slice(), &[0x90; NEAR + 1], b"\x0f\x05"].concat()));
        assert!(!holds_setup(b""));
    }

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
    }

    #[test]
    fn this_program_carries_none_and_has_no_ring() {
        let mut search = Search::default();
        let mut objects = 0;
        objects::each(|object| {
            objects += 1;
            search.look_at(object, true)
        });
        assert!(!search.has_found() && objects >= 3);
        assert!(!has_unknown_ring());
    }
}
