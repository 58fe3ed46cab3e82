//! Streams that libc has already where a connection gets a number: `dup2(connection, fileno(stream))`.
//!
//! Such a stream reads and writes past any hook. So libc's list of its streams is asked about a number that a program
//! puts a connection under.

use core::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use beeline_sockets::desc::Kind;
use beeline_sockets::{Outcome, kernel, life, table};
use libc::{FILE, c_int};

use crate::real::reals;

reals! {
    fn _IO_list_lock() -> ();
    fn _IO_list_unlock() -> ();
    fn _IO_iter_begin() -> *mut FILE;
    fn _IO_iter_next(stream: *mut FILE) -> *mut FILE;
}

/// Where `fileno` finds the fd: `_fileno` of glibc's `struct _IO_FILE` on 64-bit machines, part of its ABI.
pub(super) const FILENO_OFFSET: usize = 112;
/// Where a stream has the table of its functions: behind that structure, likewise.
const FUNCTIONS_OFFSET: usize = 216;
/// The table that streams of ours have, once there is one.
static OUR_FUNCTIONS: AtomicUsize = AtomicUsize::new(0);

/// Makes `to` lead where `from` does by `call`, and gives a connection up to a relay if libc has a stream of its own
/// with that number.
pub(super) fn with_stream(from: c_int, to: c_int, call: impl FnOnce() -> Outcome) -> Outcome {
    // Streams are asked for only where there may be one, as libc's list has a lock: while a thread flushes all streams
    // and one of them takes nothing, it is held.
    let may_have_one = is_ours(from) && from != to && to > 2 && kernel::is_close_on_exec(to).is_ok();
    let outcome = call();
    if may_have_one && matches!(outcome, Outcome::Done(_)) && has_stream(to) {
        life::give_to_stream(to);
    }
    outcome
}

/// Whether libc has a stream of its own with this number.
fn has_stream(fd: c_int) -> bool {
    let (Some(lock), Some(unlock), Some(begin), Some(next)) = (
        reals::_IO_list_lock.get(),
        reals::_IO_list_unlock.get(),
        reals::_IO_iter_begin.get(),
        reals::_IO_iter_next.get(),
    ) else {
        return false;
    };
    let mut found = false;
    // SAFETY: what is in the list is a stream as long as the lock is held, which the thread that holds it may take
    // again.
    unsafe {
        lock();
        let mut stream = begin();
        while !stream.is_null() && !found {
            let fields = stream.cast::<u8>();
            found = fields.add(FILENO_OFFSET).cast::<c_int>().read() == fd
                && fields.add(FUNCTIONS_OFFSET).cast::<usize>().read() != OUR_FUNCTIONS.load(Relaxed);
            stream = next(stream);
        }
        unlock();
    }
    found
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
