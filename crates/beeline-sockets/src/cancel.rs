//! Thread cancellation (pthread_cancel(3), pthreads(7)).
//!
//! 1. A call that sleeps is a cancellation point, as in libc: a request that is pending acts when the call is about to
//!    sleep, and one that comes later ends the sleep. A call that does not sleep is left alone.
//! 2. A thread is cancelled only inside [`point`], around a system call that sleeps, where it holds no lock. libc then
//!    unwinds its stack. Our frames have no landing pads (the library is built with `panic = "abort"`), so nothing
//!    is dropped: what must be undone is said by [`undoing`], and libc runs it.

use core::ffi::{c_int, c_void};
use core::mem::MaybeUninit;

/// `struct _pthread_cleanup_buffer` of glibc, part of its ABI: routine, argument, type, link.
type Buffer = [usize; 4];

/// `PTHREAD_CANCEL_ASYNCHRONOUS` of glibc.
const ASYNCHRONOUS: c_int = 1;

unsafe extern "C" {
    fn pthread_setcanceltype(kind: c_int, old: *mut c_int) -> c_int;
    fn _pthread_cleanup_push(buffer: *mut Buffer, routine: unsafe extern "C" fn(*mut c_void), argument: *mut c_void);
    fn _pthread_cleanup_pop(buffer: *mut Buffer, execute: c_int);
}

/// Makes a system call during which the thread may be cancelled, if it may be cancelled at all.
pub(crate) fn point<R>(call: impl FnOnce() -> R) -> R {
    let mut old = 0;
    // SAFETY: a live place for the old type; a thread that is cancelled here does not come back.
    unsafe { pthread_setcanceltype(ASYNCHRONOUS, &raw mut old) };
    let result = call();
    // SAFETY: the type that was in force before.
    unsafe { pthread_setcanceltype(old, &raw mut old) };
    result
}

/// Runs `body`; if the thread is cancelled in it, `undo` is called with `argument`.
pub(crate) fn undoing<T, R>(
    undo: unsafe extern "C" fn(*mut c_void),
    argument: &'static T,
    body: impl FnOnce() -> R,
) -> R {
    let mut buffer = MaybeUninit::<Buffer>::uninit();
    // SAFETY: the buffer stays where it is until it is popped, or until libc has unwound this frame and run `undo`.
    unsafe { _pthread_cleanup_push(buffer.as_mut_ptr(), undo, core::ptr::from_ref(argument).cast_mut().cast()) };
    let result = body();
    // SAFETY: pushed above, and all that was pushed later is popped.
    unsafe { _pthread_cleanup_pop(buffer.as_mut_ptr(), 0) };
    result
}
