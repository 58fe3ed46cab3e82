//! `sendfile` on lanes: the file is read part by part, and sent.

use core::cell::Cell;

use beeline_lane::Source;
use beeline_shm::sys::{SysResult, call};

use super::call::{TRANSFER_MAX, left};
use super::part::with_part;
use super::sending;
use super::transfer::{is_lane, splice};
use crate::app_memory::in_first_page;
use crate::desc::Pin;
use crate::{Errno, Outcome, cancel, guards, kernel, process, table};

/// `sendfile(2)` towards a lane: reads the file and sends what was read. The file position moves (or
/// `*offset`, if given) by what was sent, never by what was only read. From a lane into a pipe it is splice(2).
///
/// # Safety
/// `offset` must be null or valid, as for sendfile(2).
pub unsafe fn sendfile(out_fd: i32, in_fd: i32, offset: *mut i64, count: usize) -> Outcome {
    if is_lane(in_fd) {
        return sendfile_from_lane(out_fd, in_fd, !offset.is_null(), count);
    }
    if !is_lane(out_fd) {
        return Outcome::Kernel;
    }
    if !offset.is_null() && in_first_page(offset as usize) {
        return Outcome::fail(libc::EFAULT);
    }
    // SAFETY: null or valid, as the caller guarantees.
    let given = unsafe { offset.as_ref() }.copied();
    let start = match file_start(in_fd, given, count) {
        Ok(start) => start,
        Err(errno) => return Outcome::Fail(errno),
    };
    let file = File { fd: in_fd, given, start, count: count.min(TRANSFER_MAX) };
    // As in the kernel, the call is about the connection that it began with, whatever becomes of the number.
    let Some(desc) = table::get(out_fd) else { return Outcome::Kernel };
    let Some(pin) = guards::pin(out_fd, desc) else { return left(out_fd, desc, 0) };
    let progress = Progress { file: in_fd, offset, start, sent: Cell::new(0), generation: process::generation() };
    let outcome = cancel::undoing(&progress, Progress::store, || {
        pin.while_waiting(|| with_part(|part| file.send(out_fd, &pin, part, &progress.sent)))
    });
    progress.store();
    match progress.sent.get() {
        0 => outcome,
        sent => Outcome::Done(sent as isize),
    }
}

/// How far a sendfile(2) is.
struct Progress {
    file: i32,
    /// The program's, or null.
    offset: *mut i64,
    start: i64,
    sent: Cell<usize>,
    /// Of the process that made the call.
    generation: u32,
}

impl Progress {
    /// Moves the offset, or else the file's position, by what was sent: also when a handler jumps out of the call, or
    /// the thread is cancelled in it. The kernel leaves both alone where nothing was sent.
    fn store(&self) {
        let sent = self.sent.get();
        if sent == 0 {
            return;
        }
        let next = self.start + sent as i64;
        if !self.offset.is_null() {
            // SAFETY: valid, as the caller of sendfile(2) guarantees.
            unsafe { *self.offset = next };
        } else if self.generation == process::generation() {
            // The child of a handler's fork shares the position with its parent, whose call has it move.
            let _ = seek(self.file, next, libc::SEEK_SET);
        }
    }
}

/// What sendfile(2) is to send.
struct File {
    fd: i32,
    /// The offset that the call was given.
    given: Option<i64>,
    start: i64,
    count: usize,
}

impl File {
    /// Sends it part by part, and counts in `done` what was sent. Returns what the call returns if that is nothing.
    fn send(&self, given: i32, pin: &Pin, buffer: &mut [u8], done: &Cell<usize>) -> Outcome {
        loop {
            let before = done.get();
            if before >= self.count {
                break;
            }
            let want = buffer.len().min(self.count - before);
            let args = [self.fd as usize, buffer.as_mut_ptr() as usize, want, self.start as usize + before, 0, 0];
            // SAFETY: the buffer is live and `want` long.
            let read = match unsafe { call(libc::SYS_pread64, args) } {
                Ok(0) => break,
                Ok(read) => read,
                Err(errno) => return self.unreadable(errno),
            };
            // SAFETY: the buffer holds `read` bytes.
            let source = unsafe { Source::from_raw(buffer.as_ptr().cast(), read) };
            match sending::send_part(given, pin, 0, read, core::iter::once(source), Some(done)) {
                Outcome::Done(sent) => {
                    done.set(before + sent as usize);
                    if (sent as usize) < read {
                        break;
                    }
                }
                // Where the lane became TCP in between, the kernel goes on from here.
                outcome => return outcome,
            }
        }
        Outcome::OK
    }

    fn unreadable(&self, errno: Errno) -> Outcome {
        // A directory has no pages to send, and an epoll set has a position but no bytes.
        let no_pages = errno == Errno(libc::EISDIR) || errno == Errno(libc::ESPIPE) && self.given.is_none();
        let found = if no_pages { Errno(libc::EINVAL) } else { errno };
        Outcome::Fail(judged_start(self.fd, self.given, self.count).err().unwrap_or(found))
    }
}

fn seek(fd: i32, to: i64, whence: i32) -> SysResult {
    // SAFETY: plain numbers.
    unsafe { call(libc::SYS_lseek, [fd as usize, to as usize, whence as usize, 0, 0, 0]) }
}

/// Where sendfile(2) begins to read.
fn file_start(fd: i32, given: Option<i64>, count: usize) -> Result<i64, Errno> {
    match given {
        // As web servers call it. Whether the file can be read there, pread(2) finds.
        Some(offset) if offset >= 0 && count != 0 && ends(offset, count).is_some() => Ok(offset),
        _ => judged_start(fd, given, count),
    }
}

fn ends(start: i64, count: usize) -> Option<i64> {
    start.checked_add(i64::try_from(count).ok()?)
}

/// Where it begins, judged in the order of `do_sendfile` (Linux fs/read_write.c).
fn judged_start(fd: i32, given: Option<i64>, count: usize) -> Result<i64, Errno> {
    if kernel::status_flags(fd)? & libc::O_ACCMODE == libc::O_WRONLY {
        return Err(Errno(libc::EBADF));
    }
    let present = seek(fd, 0, libc::SEEK_CUR);
    let start = match (given, present) {
        (Some(_), Err(errno)) => return Err(errno),
        (None, Err(_)) => return Err(Errno(libc::EINVAL)),
        (Some(offset), Ok(_)) => offset,
        (None, Ok(position)) => position as i64,
    };
    match ends(start, count) {
        Some(_) if start >= 0 => Ok(start),
        _ => Err(Errno(libc::EINVAL)),
    }
}

/// A socket has no pages that sendfile(2) could read, but it can be spliced into a pipe.
fn sendfile_from_lane(out_fd: i32, in_fd: i32, has_offset: bool, count: usize) -> Outcome {
    if has_offset {
        return Outcome::fail(libc::ESPIPE);
    }
    match kernel::status_flags(out_fd) {
        Err(errno) => return Outcome::Fail(errno),
        Ok(flags) if flags & libc::O_ACCMODE == libc::O_RDONLY => return Outcome::fail(libc::EBADF),
        Ok(_) => {}
    }
    if !kernel::is_pipe(out_fd) {
        return Outcome::fail(libc::EINVAL);
    }
    // SAFETY: no offsets.
    unsafe { splice(in_fd, core::ptr::null(), out_fd, core::ptr::null(), count, 0) }
}
