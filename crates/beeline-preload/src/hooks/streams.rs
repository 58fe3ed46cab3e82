//! Streams that libc has already where a connection gets a number: `dup2(connection, fileno(stream))`.
//!
//! Such a stream reads and writes past any hook. So libc's list of its streams is asked about a number that a program
//! puts a connection under.

use core::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use beeline_sockets::desc::Kind;
use beeline_sockets::{Outcome, kernel, life, readable_bytes, table};
use libc::{FILE, c_int};

use crate::real::reals;

reals! {
    fn _IO_iter_begin() -> *mut FILE;
}

/// Streams that are looked at. A list that changes meanwhile might lead in a circle.
const STREAMS_MAX: usize = 4096;
/// Bytes of glibc's `struct _IO_FILE_plus` on 64-bit machines, part of its ABI.
const STREAM_BYTES: usize = 224;
/// Where a stream has the next one of the list.
const NEXT_OFFSET: usize = 104;

/// Where `fileno` finds the fd: `_fileno`.
pub(super) const FILENO_OFFSET: usize = 112;
/// Where a stream has the table of its functions: behind the rest.
const FUNCTIONS_OFFSET: usize = 216;
/// The table that streams of ours have, once there is one.
static OUR_FUNCTIONS: AtomicUsize = AtomicUsize::new(0);

/// Makes `to` lead where `from` does by `call`, and gives a connection up to a relay if libc has a stream of its own
/// with that number.
pub(super) fn with_stream(from: c_int, to: c_int, call: impl FnOnce() -> Outcome) -> Outcome {
    // Streams are asked for only where there may be one.
    let may_have_one = is_ours(from) && from != to && to > 2 && kernel::is_close_on_exec(to).is_ok();
    let outcome = call();
    if may_have_one && matches!(outcome, Outcome::Done(_)) && has_stream(to) {
        life::give_to_stream(to);
    }
    outcome
}

/// Whether libc has a stream of its own with this number.
fn has_stream(fd: c_int) -> bool {
    any_stream(|number, functions| number == fd && functions != OUR_FUNCTIONS.load(Relaxed))
}

/// Whether there is a stream of ours with this number.
pub fn has_stream_of_ours(fd: c_int) -> bool {
    let ours = OUR_FUNCTIONS.load(Relaxed);
    ours != 0 && any_stream(|number, functions| number == fd && functions == ours)
}

/// Whether libc has a stream that `is_it`, by its number and the table of its functions.
///
/// The list's lock is not taken: who flushes all streams has it for as long as one of them takes nothing, and waits
/// with it for a stream that the caller may have locked. So a stream may be closed or made meanwhile, which the program
/// could not tell from its being so before or after; and one is looked at only where there is memory.
fn any_stream(is_it: impl Fn(c_int, usize) -> bool) -> bool {
    let Some(begin) = reals::_IO_iter_begin.get() else { return false };
    // SAFETY: it returns where the list begins.
    let mut stream = unsafe { begin() }.cast::<u8>();
    for _ in 0..STREAMS_MAX {
        if stream.is_null() || readable_bytes(stream as usize, STREAM_BYTES) != STREAM_BYTES {
            return false;
        }
        // SAFETY: so many bytes can be read there, whatever they are by now.
        let (number, functions, next) = unsafe {
            (
                stream.add(FILENO_OFFSET).cast::<c_int>().read_unaligned(),
                stream.add(FUNCTIONS_OFFSET).cast::<usize>().read_unaligned(),
                stream.add(NEXT_OFFSET).cast::<*mut u8>().read_unaligned(),
            )
        };
        if is_it(number, functions) {
            return true;
        }
        stream = next;
    }
    false
}

/// A stream of ours has been made ([`super::stdio`]), which heeds its number by our functions.
///
/// # Safety
/// It must be one.
pub(super) unsafe fn note(stream: *mut FILE) {
    // SAFETY: the caller guarantees it.
    let functions = unsafe { stream.cast::<u8>().add(FUNCTIONS_OFFSET).cast::<usize>().read() };
    OUR_FUNCTIONS.store(functions, Relaxed);
}

/// Whether a number leads to a lane, or to what is left of one.
pub(super) fn is_ours(fd: c_int) -> bool {
    table::get(fd).is_some_and(|desc| matches!(desc.kind(), Kind::Lane | Kind::Orphan))
}
