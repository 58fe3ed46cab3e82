//! `sendfile` and `splice` on lanes.

use super::send::send;
use crate::{Outcome, table};
use beeline_shm::sys::call;

/// Bytes moved at a time; on the stack of the caller's thread.
const PART_BYTES: usize = 16 * 1024;

/// `sendfile(2)` towards a lane: reads the file and sends what was read. The file position moves (or
/// `*offset`, if given) by what was sent, never by what was only read.
///
/// # Safety
/// `offset` must be null or valid, as for sendfile(2).
pub unsafe fn sendfile(out_fd: i32, in_fd: i32, offset: *mut i64, count: usize) -> Outcome {
    let from_lane = table::get(in_fd).is_some_and(|desc| desc.is_lane());
    if from_lane {
        // The kernel cannot read a socket with sendfile(2), either.
        return Outcome::fail(libc::EINVAL);
    }
    if !table::get(out_fd).is_some_and(|desc| desc.is_lane()) {
        return Outcome::Kernel;
    }
    let seek = |to: i64, whence: i32| {
        // SAFETY: plain numbers.
        unsafe { call(libc::SYS_lseek, [in_fd as usize, to as usize, whence as usize, 0, 0, 0]) }
    };
    // SAFETY: null or valid by the caller's word.
    let given = unsafe { offset.as_mut() };
    let start = match &given {
        Some(offset) => **offset,
        None => match seek(0, libc::SEEK_CUR) {
            Ok(position) => position as i64,
            Err(_) => return Outcome::fail(libc::EINVAL),
        },
    };
    let mut done = 0usize;
    let mut outcome = Outcome::OK;
    let mut buffer = [0u8; PART_BYTES];
    while done < count {
        let want = PART_BYTES.min(count - done);
        let args = [in_fd as usize, buffer.as_mut_ptr() as usize, want, start as usize + done, 0, 0];
        // SAFETY: the buffer is live and `want` long.
        let read = match unsafe { call(libc::SYS_pread64, args) } {
            Ok(0) => break,
            Ok(read) => read,
            Err(errno) => {
                outcome = Outcome::Fail(errno);
                break;
            }
        };
        // SAFETY: the buffer holds `read` bytes.
        match unsafe { send(out_fd, buffer.as_ptr(), read, 0) } {
            Outcome::Done(sent) => {
                done += sent as usize;
                if (sent as usize) < read {
                    break;
                }
            }
            // The lane became TCP in between: the kernel goes on from here.
            Outcome::Kernel => break,
            failed @ Outcome::Fail(_) => {
                outcome = failed;
                break;
            }
        }
    }
    match given {
        Some(offset) => *offset = start + done as i64,
        None => {
            let _ = seek(start + done as i64, libc::SEEK_SET);
        }
    }
    if done != 0 { Outcome::Done(done as isize) } else { outcome }
}

/// `splice(2)` and `tee(2)`: the kernel would move bells instead of bytes, so a lane answers as a descriptor that
/// cannot be spliced; programs fall back to copying.
#[must_use]
pub fn splice(from: i32, to: i32) -> Outcome {
    let lane = |fd| table::get(fd).is_some_and(|desc: &crate::desc::Desc| desc.is_lane());
    if lane(from) || lane(to) { Outcome::fail(libc::EINVAL) } else { Outcome::Kernel }
}
