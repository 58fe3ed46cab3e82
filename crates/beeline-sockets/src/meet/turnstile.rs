//! One process of a crowd at a time.
//!
//! Processes that share a blocking listener must not sit in the TCP `accept` while the door has a client, and
//! there is no `accept` that does not block on a blocking listener. So a process looks whether the TCP queue
//! has a connection, and takes it, with nobody else between the two: it goes through a turnstile, which is a
//! record lock (fcntl(2), `F_SETLKW`) on a memory file that parent and children share. The kernel gives the
//! lock back when its holder dies, and a signal interrupts the wait for it.
//!
//! A process waits for connections with the turnstile held: the others sleep behind it, and each connection
//! wakes one of them, as `accept` on a TCP listener does. Record locks belong to a process, so its threads go
//! through together; among themselves they are kept apart by the listener's lock.

use core::sync::atomic::Ordering::Relaxed;

use beeline_shm::sys::{SysResult, call};

use super::listener::Listener;
use crate::{Errno, wait};

/// This thread is through the turnstile, or there is none.
#[must_use]
pub(super) struct Passed {
    listener: Option<&'static Listener>,
}

/// Why a thread did not get through.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Held {
    /// A handler of the app ran.
    Signal,
    /// Another process is inside, and this call has more to watch than the turnstile.
    Elsewhere,
}

/// Goes through the turnstile of a listener, if it is shared. A call that has a deadline, or clients of its own
/// that have yet to say hello, does not wait here.
///
/// # Errors
/// [`Held`].
pub(super) fn pass(listener: &'static Listener, patience: &wait::Patience) -> Result<Passed, Held> {
    let Some(file) = listener.turnstile.get().filter(|_| listener.is_shared()) else {
        return Ok(Passed { listener: None });
    };
    loop {
        {
            let _guard = listener.lock.lock();
            let inside = listener.inside.load(Relaxed);
            if inside != 0 || record_lock(file, libc::F_SETLK, libc::F_WRLCK).is_ok() {
                listener.inside.store(inside.saturating_add(1), Relaxed);
                return Ok(Passed { listener: Some(listener) });
            }
        }
        // A client that only this process can serve must not wait for the others to let it in.
        if patience.is_bounded() || listener.waiting.load(Relaxed) != 0 {
            return Err(Held::Elsewhere);
        }
        let wait = || crate::cancel::point(|| record_lock(file, libc::F_SETLKW, libc::F_WRLCK));
        match crate::cancel::undoing(let_next_in, listener, wait) {
            // Another thread of this process may give the lock back meanwhile: ask again, inside.
            Ok(_) => {}
            Err(Errno(libc::EINTR)) => return Err(Held::Signal),
            // No lock to be had (ENOLCK, or the file is gone): then there are no turns.
            Err(_) => return Ok(Passed { listener: None }),
        }
    }
}

impl Passed {
    /// Runs `wait`, a spin or a sleep; a thread that is cancelled in it, or jumps out, leaves the turnstile.
    pub(super) fn while_waiting<R>(&self, wait: impl FnOnce() -> R) -> R {
        unsafe extern "C" fn undo(listener: *mut core::ffi::c_void) {
            // SAFETY: the listener below, an object of a slab.
            leave(unsafe { &*listener.cast::<Listener>() });
        }
        match self.listener {
            Some(listener) => crate::cancel::undoing(undo, listener, wait),
            None => wait(),
        }
    }
}

impl Drop for Passed {
    fn drop(&mut self) {
        if let Some(listener) = self.listener {
            leave(listener);
        }
    }
}

fn leave(listener: &'static Listener) {
    let _guard = listener.lock.lock();
    let inside = listener.inside.load(Relaxed).saturating_sub(1);
    listener.inside.store(inside, Relaxed);
    release(listener, inside);
}

/// Gives the record lock back when no thread of this process is inside. The listener is locked.
fn release(listener: &Listener, inside: u32) {
    if inside == 0
        && let Some(file) = listener.turnstile.get()
    {
        let _ = record_lock(file, libc::F_SETLK, libc::F_UNLCK);
    }
}

/// A thread was cancelled while it waited for the record lock, which it may have got.
unsafe extern "C" fn let_next_in(listener: *mut core::ffi::c_void) {
    // SAFETY: the listener that `pass` waited for, an object of a slab.
    let listener: &'static Listener = unsafe { &*listener.cast() };
    let _guard = listener.lock.lock();
    release(listener, listener.inside.load(Relaxed));
}

/// fcntl(2) with a lock over the whole file.
fn record_lock(file: i32, command: i32, kind: i32) -> SysResult {
    // SAFETY: all-zero is a valid value of this plain C struct, and means "from the start to the end".
    let mut lock: libc::flock = unsafe { core::mem::zeroed() };
    lock.l_type = kind as i16;
    lock.l_whence = libc::SEEK_SET as i16;
    // SAFETY: a live lock description.
    unsafe { call(libc::SYS_fcntl, [file as usize, command as usize, (&raw mut lock) as usize, 0, 0, 0]) }
}
