//! Thread cancellation (pthread_cancel(3), pthreads(7)).
//!
//! 1. A call that sleeps is a cancellation point, as in libc: a request that is pending acts when the call is about to
//!    sleep, and one that comes later ends the sleep. A call that does not sleep is left alone.
//! 2. A thread is cancelled only inside [`point`], around a system call that sleeps, where it holds no lock. libc then
//!    unwinds its stack. Our frames have no landing pads (the library is built with `panic = "abort"`), so nothing
//!    is dropped: what must be undone is said by [`undoing`], and libc runs it.
//! 3. libc runs it, too, when a handler of the app jumps out (siglongjmp(3)) past a frame that has said so.

use core::ffi::{c_int, c_void};
use core::mem::MaybeUninit;
use core::sync::atomic::{
    Ordering::{Relaxed, SeqCst},
    compiler_fence,
};

use crate::thread;

/// `struct _pthread_cleanup_buffer` of glibc, part of its ABI: routine, argument, type, link.
type Buffer = [usize; 4];

/// `PTHREAD_CANCEL_DEFERRED` of glibc.
const DEFERRED: c_int = 0;
/// `PTHREAD_CANCEL_ASYNCHRONOUS` of glibc.
const ASYNCHRONOUS: c_int = 1;

unsafe extern "C" {
    fn pthread_setcanceltype(kind: c_int, old: *mut c_int) -> c_int;
    fn _pthread_cleanup_push(buffer: *mut Buffer, routine: unsafe extern "C" fn(*mut c_void), argument: *mut c_void);
    fn _pthread_cleanup_pop(buffer: *mut Buffer, execute: c_int);
}

/// Makes a system call during which the thread may be cancelled, if it may be cancelled at all.
pub fn point<R>(call: impl FnOnce() -> R) -> R {
    thread::with(|thread| thread.at_cancellation_point.store(true, Relaxed));
    compiler_fence(SeqCst);
    // A thread that is cancelled here does not come back.
    let old = set_type(ASYNCHRONOUS);
    let result = call();
    set_type(old);
    compiler_fence(SeqCst);
    thread::with(|thread| thread.at_cancellation_point.store(false, Relaxed));
    result
}

/// A handler of the app interrupts [`point`]: while it runs, the thread is cancelled only where libc says, also if it
/// jumps out and never comes back. Returns what to [`restore`] when it does.
pub(crate) fn defer() -> c_int {
    set_type(DEFERRED)
}

/// See [`defer`].
pub(crate) fn restore(kind: c_int) {
    set_type(kind);
}

fn set_type(kind: c_int) -> c_int {
    let mut old = DEFERRED;
    // SAFETY: a live place for the old type.
    unsafe { pthread_setcanceltype(kind, &raw mut old) };
    old
}

/// What is to be done if a call does not come back.
struct Undo<'a, T> {
    undo: fn(&'a T),
    argument: &'a T,
}

impl<'a, T> Undo<'a, T> {
    /// # Safety
    /// `this` must point to one of these, which is live.
    unsafe extern "C" fn run(this: *mut c_void) {
        // SAFETY: the caller guarantees it.
        let this = unsafe { &*this.cast::<Undo<'a, T>>() };
        (this.undo)(this.argument);
    }
}

/// Runs `body`; if the thread is cancelled in it, or jumps out of it, `undo` is called with `argument`.
pub fn undoing<'a, T, R>(argument: &'a T, undo: fn(&'a T), body: impl FnOnce() -> R) -> R {
    let undo = Undo { undo, argument };
    let place = (&raw const undo).cast_mut().cast();
    let mut buffer = MaybeUninit::<Buffer>::uninit();
    // SAFETY: buffer and `undo` stay where they are until the first is popped, or until libc has unwound this frame and
    // run it.
    unsafe { _pthread_cleanup_push(buffer.as_mut_ptr(), Undo::<'a, T>::run, place) };
    let result = body();
    // SAFETY: pushed above, and all that was pushed later is popped.
    unsafe { _pthread_cleanup_pop(buffer.as_mut_ptr(), 0) };
    result
}
