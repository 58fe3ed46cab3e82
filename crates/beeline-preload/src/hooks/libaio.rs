//! libaio's io_submit(3), which is assembly: the others of its functions need no look ([`super::aio`]).

use core::sync::atomic::{AtomicU8, Ordering::Relaxed};

use libc::c_long;

use super::aio::may_be_submitted;
use super::rings;
use super::syscall::submit;
use crate::real::Real;

/// Returns a negative error number and leaves errno alone. A function of this name that is another library's is called
/// with whatever it was given.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn io_submit(a: usize, b: usize, c: usize, d: usize, e: usize, f: usize) -> usize {
    type Submit = unsafe extern "C" fn(usize, usize, usize, usize, usize, usize) -> usize;
    static REAL: Real = Real::new(c"io_submit");
    static IS_LIBAIOS: AtomicU8 = AtomicU8::new(UNKNOWN);
    const UNKNOWN: u8 = 0;
    const LIBAIOS: u8 = 1;
    const ANOTHERS: u8 = 2;
    // SAFETY: libc's per-thread errno, which the dynamic linker and what libc does for us may change.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: as above.
    let kept = unsafe { *errno };
    let real = rings::find(&REAL, c"io_submit");
    if real.is_null() {
        // It is somewhere out of sight, in a plugin say, that was linked with libaio.
        // SAFETY: libaio's arguments.
        let may_go_on = unsafe { may_be_submitted(c as _, b as c_long) };
        // SAFETY: the same.
        let result = if may_go_on { unsafe { submit(a, b, c) } } else { -libc::EAGAIN as isize };
        // SAFETY: as above.
        unsafe { *errno = kept };
        return result.cast_unsigned();
    }
    if IS_LIBAIOS.load(Relaxed) == UNKNOWN {
        IS_LIBAIOS.store(if rings::is_of_library(real, b"libaio") { LIBAIOS } else { ANOTHERS }, Relaxed);
    }
    // SAFETY: libaio's arguments, if it is the one that is called.
    let may_go_on = IS_LIBAIOS.load(Relaxed) == ANOTHERS || unsafe { may_be_submitted(c as _, b as c_long) };
    // SAFETY: as above.
    unsafe { *errno = kept };
    if !may_go_on {
        return (-libc::EAGAIN) as isize as usize;
    }
    // SAFETY: a function of this name.
    let real: Submit = unsafe { core::mem::transmute(real) };
    // SAFETY: the program's arguments, passed on.
    unsafe { real(a, b, c, d, e, f) }
}
