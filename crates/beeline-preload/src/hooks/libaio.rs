//! libaio's io_submit(3), which is assembly: the others of its functions need no look ([`super::aio`]).

use core::ffi::CStr;
use core::sync::atomic::{AtomicPtr, AtomicU8, AtomicU32, Ordering::Relaxed};

use beeline_sockets::life;
use libc::{c_long, c_void};

use super::aio::may_be_submitted;
use super::rings;
use super::syscall::submit;
use crate::real::{Real, keeping_errno};

/// Under which names libaio is known to the dynamic linker.
const LIBRARIES: [&CStr; 2] = [c"libaio.so.1", c"libaio.so.1t64"];

/// The next function of this name, or libaio's own; null if there is none. What was found is kept, and what was not is
/// looked for again only after the program may have loaded something: programs submit all the time.
fn real() -> *mut c_void {
    static REAL: Real = Real::new(c"io_submit");
    static FOUND: AtomicPtr<c_void> = AtomicPtr::new(core::ptr::null_mut());
    /// How often the program had loaded something when nothing was found.
    static MISSED_AT: AtomicU32 = AtomicU32::new(0);
    let known = FOUND.load(Relaxed);
    let loads = life::loads();
    if !known.is_null() || MISSED_AT.load(Relaxed) == loads {
        return known;
    }
    let found = rings::find(&REAL, c"io_submit", &LIBRARIES);
    FOUND.store(found, Relaxed);
    if found.is_null() {
        MISSED_AT.store(loads, Relaxed);
    }
    found
}

/// Returns a negative error number and leaves errno alone. A function of this name that is another library's is called
/// with whatever it was given.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn io_submit(a: usize, b: usize, c: usize, d: usize, e: usize, f: usize) -> usize {
    type Submit = unsafe extern "C" fn(usize, usize, usize, usize, usize, usize) -> usize;
    static IS_LIBAIOS: AtomicU8 = AtomicU8::new(UNKNOWN);
    const UNKNOWN: u8 = 0;
    const LIBAIOS: u8 = 1;
    const ANOTHERS: u8 = 2;
    // The dynamic linker and what libc does for us may change errno.
    let real = keeping_errno(|| {
        let real = real();
        if !real.is_null() && IS_LIBAIOS.load(Relaxed) == UNKNOWN {
            IS_LIBAIOS.store(if rings::is_of_library(real, b"libaio") { LIBAIOS } else { ANOTHERS }, Relaxed);
        }
        let is_anothers = !real.is_null() && IS_LIBAIOS.load(Relaxed) == ANOTHERS;
        // SAFETY: libaio's arguments, if it is the one that is called.
        if !is_anothers && !unsafe { may_be_submitted(c as _, b as c_long) } {
            return Err(-libc::EAGAIN as isize);
        }
        if real.is_null() {
            // It is somewhere out of sight, in a plugin say, that was linked with libaio.
            // SAFETY: libaio's arguments.
            return Err(unsafe { submit(a, b, c) });
        }
        Ok(real)
    });
    let real = match real {
        Ok(real) => real,
        Err(result) => return result.cast_unsigned(),
    };
    // SAFETY: a function of this name.
    let real: Submit = unsafe { core::mem::transmute(real) };
    // SAFETY: the program's arguments, passed on.
    unsafe { real(a, b, c, d, e, f) }
}
