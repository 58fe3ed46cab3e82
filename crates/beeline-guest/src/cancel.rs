//! Thread cancellation (pthread_cancel(3), pthreads(7)).
//!
//! 1. A call that sleeps is a cancellation point, as in libc: a request that is pending acts when the call is about to
//!    sleep, and one that comes later ends the sleep. A call that does not sleep is left alone.
//! 2. A thread is cancelled only inside [`point`], around a system call that sleeps, where it holds no lock. libc then
//!    unwinds its stack. Our frames have no landing pads (the library is built with `panic = "abort"`), so nothing
//!    is dropped: what must be undone is said by [`undoing`], and libc runs it.
//! 3. libc runs it, too, when a handler of the app jumps out (siglongjmp(3)) past a frame that has said so.
//! 4. A thread that asked to be cancelled wherever it is (`PTHREAD_CANCEL_ASYNCHRONOUS`) would die with a lock in its
//!    hand, or with a pin. So it is not asynchronous while it is in a call of ours ([`hold`]): there it is cancelled as
//!    any other, and a request that came meanwhile acts when the call is over. For calls that are too short to be asked
//!    about that it is so while they hold a lock ([`hold_section`]): such a thread has no identity at hand, without
//!    which no lock is taken, and looks each time for what it was told once, out of the way of all others.

use core::ffi::{c_int, c_void};
use core::mem::MaybeUninit;
use core::sync::atomic::{
    AtomicBool, AtomicUsize,
    Ordering::{Acquire, Relaxed, Release, SeqCst},
    compiler_fence,
};

use crate::thread::{self, Thread};

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

/// libc's `pthread_setcanceltype`.
pub type RealSetType = unsafe extern "C" fn(c_int, *mut c_int) -> c_int;

static REAL: AtomicUsize = AtomicUsize::new(0);

/// Says where libc's own `pthread_setcanceltype` is, if the name leads to a function that calls [`note_type`].
pub fn set_real_set_type(real: RealSetType) {
    REAL.store(real as usize, Release);
}

fn set_type(kind: c_int) -> c_int {
    let mut old = DEFERRED;
    let real = match REAL.load(Acquire) {
        0 => pthread_setcanceltype,
        // SAFETY: stored by `set_real_set_type` from a function of this type.
        real => unsafe { core::mem::transmute::<usize, RealSetType>(real) },
    };
    // SAFETY: a live place for the old type.
    unsafe { real(kind, &raw mut old) };
    old
}

/// Whether any thread has ever asked to be cancelled wherever it is. Few programs have one that does.
#[unsafe(link_section = ".fork")]
static ANY_IS_ASYNCHRONOUS: AtomicBool = AtomicBool::new(false);

/// The app has set the calling thread's type.
pub fn note_type(kind: c_int) {
    thread::with(|thread| {
        thread.is_asynchronous.store(kind == ASYNCHRONOUS, Relaxed);
        thread.holds.store(0, Relaxed);
        if kind == ASYNCHRONOUS {
            thread.forget_identity();
        }
    });
    if kind != ASYNCHRONOUS {
        // At hand again at once: the child of a vfork, which has the thread's block, too, would leave its own there.
        thread::identity();
    }
    if kind == ASYNCHRONOUS {
        ANY_IS_ASYNCHRONOUS.store(true, Relaxed);
    }
}

/// The time in which the calling thread is not asynchronous although the app may want it to be: while this lives. A
/// handler's calls may lie within it, and do not end it. One that jumps out of it leaves the thread so, until the app
/// asks again.
#[must_use]
pub struct Held(());

/// Begins that time.
#[inline]
pub fn hold() -> Held {
    if ANY_IS_ASYNCHRONOUS.load(Relaxed) {
        hold_now();
    }
    Held(())
}

#[cold]
#[inline(never)]
fn hold_now() {
    let holds = thread::with(|thread| match thread.is_asynchronous.load(Relaxed) {
        true => thread.holds.fetch_add(1, Relaxed).wrapping_add(1),
        false => 0,
    });
    if holds == 1 {
        set_type(DEFERRED);
    }
}

impl Drop for Held {
    #[inline]
    fn drop(&mut self) {
        if ANY_IS_ASYNCHRONOUS.load(Relaxed) {
            let_go();
        }
    }
}

#[cold]
#[inline(never)]
fn let_go() {
    let is_over = thread::with(|thread| {
        let holds = thread.holds.load(Relaxed);
        thread.holds.store(holds.saturating_sub(1), Relaxed);
        holds == 1 && thread.is_asynchronous.load(Relaxed)
    });
    if is_over {
        // A request that came meanwhile acts here.
        set_type(ASYNCHRONOUS);
    }
}

/// The calling thread, which is asynchronous, is about to take a lock in a section: until that ends it is not, if it
/// still is.
pub(crate) fn hold_section(thread: &Thread) {
    if thread.depth.load(Relaxed) != 0 && thread.holds.load(Relaxed) == 0 {
        set_type(DEFERRED);
        thread.is_held_in_section.store(true, Relaxed);
        thread.deferred.store(true, Relaxed);
    }
}

/// The section has ended.
pub(crate) fn let_go_of_section(thread: &Thread) {
    thread.is_held_in_section.store(false, Relaxed);
    if thread.is_asynchronous.load(Relaxed) {
        set_type(ASYNCHRONOUS);
    }
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
