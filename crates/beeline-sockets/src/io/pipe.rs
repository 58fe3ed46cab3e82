//! An end of the app's pipe, used without ever waiting, whatever the app made of it.
//!
//! 1. `RWF_NOWAIT` is the direct way. The kernel knows it for pipes since Linux 6.4, and takes it away for good from
//!    each end that splice(2) or tee(2) has ever used (`pipe_clear_nowait`, fs/splice.c), which is what proxies do all
//!    day.
//! 2. Then bytes take the way through a pipe of our own, between which and the app's splice(2) moves them, without
//!    waiting and without a copy. What the app's pipe does not take comes back out of ours. Our pipe lives for the
//!    call, so that nothing is ever left in it, nor shared with a child. It is closed, too, when a handler jumps out of
//!    the call, or the thread is cancelled in it.

use core::cell::Cell;

use beeline_shm::sys::{SysResult, call};

use crate::{Errno, cancel, hidden};

/// See the module.
pub(super) struct Pipe {
    pub(super) fd: i32,
    aside: Cell<Option<Aside>>,
}

impl Pipe {
    /// Runs a call with the app's pipe.
    pub(super) fn with<R>(fd: i32, body: impl FnOnce(&Self) -> R) -> R {
        let pipe = Self { fd, aside: Cell::new(None) };
        let result = cancel::undoing(&pipe, Self::end, || body(&pipe));
        pipe.end();
        result
    }

    fn end(&self) {
        if let Some(aside) = self.aside.take() {
            hidden::close_hidden(aside.reading);
            hidden::close_hidden(aside.writing);
        }
    }

    /// Writes `bytes`, as far as there is room. What the buffer holds afterwards is as before.
    pub(super) fn put(&self, bytes: &mut [u8]) -> Result<usize, Errno> {
        if self.aside.get().is_none() {
            match move_now(libc::SYS_pwritev2, self.fd, bytes) {
                Err(Errno(libc::EOPNOTSUPP)) => {}
                result => return result,
            }
        }
        let aside = self.aside()?;
        // Ours is empty here, so it takes some.
        let passing = aside.write(bytes)?;
        let result = splice_now(aside.reading, self.fd, passing);
        let mut left = *result.as_ref().unwrap_or(&0);
        while left < passing {
            match aside.read(&mut bytes[left..passing]) {
                Ok(count @ 1..) => left += count,
                _ => break,
            }
        }
        result
    }

    /// Reads what there is, up to the size of `buffer`.
    pub(super) fn take(&self, buffer: &mut [u8]) -> Result<usize, Errno> {
        if self.aside.get().is_none() {
            match move_now(libc::SYS_preadv2, self.fd, buffer) {
                Err(Errno(libc::EOPNOTSUPP)) => {}
                result => return result,
            }
        }
        let aside = self.aside()?;
        let passing = splice_now(self.fd, aside.writing, buffer.len())?;
        let mut taken = 0;
        while taken < passing {
            match aside.read(&mut buffer[taken..passing])? {
                0 => break,
                count => taken += count,
            }
        }
        Ok(taken)
    }

    fn aside(&self) -> Result<Aside, Errno> {
        if let Some(aside) = self.aside.get() {
            return Ok(aside);
        }
        let aside = Aside::make()?;
        self.aside.set(Some(aside));
        Ok(aside)
    }
}

/// A pipe of ours, for one call.
#[derive(Clone, Copy)]
struct Aside {
    reading: i32,
    writing: i32,
}

impl Aside {
    /// Without descriptors there is no memory, either: that is all splice(2) has to say about it.
    fn make() -> Result<Self, Errno> {
        let mut ends = [0i32; 2];
        let flags = libc::O_NONBLOCK | libc::O_CLOEXEC;
        // SAFETY: room for the two ends.
        unsafe { call(libc::SYS_pipe2, [ends.as_mut_ptr() as usize, flags as usize, 0, 0, 0, 0]) }
            .map_err(|_| Errno(libc::ENOMEM))?;
        Ok(Self { reading: hidden::hide(ends[0]), writing: hidden::hide(ends[1]) })
    }

    fn write(&self, bytes: &[u8]) -> SysResult {
        let args = [self.writing as usize, bytes.as_ptr() as usize, bytes.len(), 0, 0, 0];
        // SAFETY: the bytes are live.
        unsafe { call(libc::SYS_write, args) }
    }

    fn read(&self, buffer: &mut [u8]) -> SysResult {
        let args = [self.reading as usize, buffer.as_mut_ptr() as usize, buffer.len(), 0, 0, 0];
        // SAFETY: the buffer is live.
        unsafe { call(libc::SYS_read, args) }
    }
}

fn splice_now(from: i32, to: i32, count: usize) -> SysResult {
    let flags = libc::SPLICE_F_NONBLOCK | libc::SPLICE_F_MOVE;
    // SAFETY: no offsets, plain numbers otherwise.
    unsafe { call(libc::SYS_splice, [from as usize, 0, to as usize, 0, count, flags as usize]) }
}

/// `pwritev2(2)` or `preadv2(2)` at the present position, never waiting.
fn move_now(number: libc::c_long, pipe: i32, buffer: &mut [u8]) -> SysResult {
    let part = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
    let args = [pipe as usize, (&raw const part) as usize, 1, usize::MAX, usize::MAX, libc::RWF_NOWAIT as usize];
    // SAFETY: one iovec that describes the live buffer.
    unsafe { call(number, args) }
}
