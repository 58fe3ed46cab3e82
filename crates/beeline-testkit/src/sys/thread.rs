//! Threads that are cancelled.

use super::{Ret, call};

/// A thread of libc's own, because Rust's must not be cancelled.
#[derive(Debug, Clone, Copy)]
pub struct Cancellable {
    thread: libc::pthread_t,
}

unsafe extern "C" fn run(body: *mut libc::c_void) -> *mut libc::c_void {
    // SAFETY: what `start` passed, once. It is not freed when the thread is cancelled.
    let body: Box<Box<dyn FnOnce()>> = unsafe { Box::from_raw(body.cast()) };
    body();
    std::ptr::null_mut()
}

impl Cancellable {
    /// Starts a thread. When it is cancelled, nothing that `body` holds is dropped.
    #[must_use]
    pub fn start(body: impl FnOnce() + Send + 'static) -> Self {
        let body: Box<Box<dyn FnOnce()>> = Box::new(Box::new(body));
        let mut thread = 0;
        extern "C" fn entry(body: *mut libc::c_void) -> *mut libc::c_void {
            // SAFETY: `start` passes the body that it has boxed, to this thread alone.
            unsafe { run(body) }
        }
        // SAFETY: the thread takes over the body.
        let ret = unsafe { libc::pthread_create(&raw mut thread, std::ptr::null(), entry, Box::into_raw(body).cast()) };
        assert_eq!(ret, 0, "pthread_create");
        Self { thread }
    }

    /// `pthread_cancel`.
    pub fn cancel(self) -> Ret {
        // SAFETY: a thread that was not joined yet.
        call(|| -i64::from(unsafe { libc::pthread_cancel(self.thread) }))
    }

    /// `pthread_join`: whether it was cancelled.
    #[must_use]
    pub fn join(self) -> bool {
        let mut value = std::ptr::null_mut();
        // SAFETY: a thread that was not joined yet, and a place for its value.
        unsafe { libc::pthread_join(self.thread, &raw mut value) };
        value as isize == -1
    }
}

/// `pthread_setcancelstate` for this thread.
pub fn allow_cancellation(allow: bool) {
    unsafe extern "C" {
        fn pthread_setcancelstate(state: i32, old: *mut i32) -> i32;
    }
    // SAFETY: PTHREAD_CANCEL_ENABLE is 0, PTHREAD_CANCEL_DISABLE 1; the old state is not asked for.
    unsafe { pthread_setcancelstate(i32::from(!allow), std::ptr::null_mut()) };
}

/// How long the calling thread has run so far.
pub fn thread_cpu_ms() -> i64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: a live timespec.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
    time.tv_sec * 1_000 + time.tv_nsec / 1_000_000
}
