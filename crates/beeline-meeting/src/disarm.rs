//! Closing descriptors that came where none should: beside a bell, or beside what the host's agent and a relay say.
//!
//! Lingering is switched off first, so that a socket's close waits for nothing that is unsent. Both can block all the
//! same where the socket's owner holds its lock, and so can the close of a file (FUSE). So this is for senders who can
//! stop us anyway: on a connection only our own user and root can send descriptors ([`crate::strangers`], rule 3).
//! What comes with a hello, or lies in an anchor that is no connection yet, is closed by [`crate::strangers`] alone.

use crate::{control, kernel};

/// Closes all descriptors that came with a message.
pub(crate) fn disarm_rights(message: &libc::msghdr) {
    each_right(message, disarm);
}

/// Calls `f` with each descriptor that came with a message.
pub(crate) fn each_right(message: &libc::msghdr, mut f: impl FnMut(i32)) {
    // SAFETY: the kernel filled in the control data of this message; as many descriptors lie there as the length says.
    unsafe {
        control::each(message, |header, data, bytes| {
            if control::is_rights(header) {
                for index in 0..bytes / size_of::<i32>() {
                    f(data.cast::<i32>().add(index).read_unaligned());
                }
            }
        });
    }
}

/// Closes a descriptor that nobody had to send, lingering cleared first.
pub fn disarm(fd: i32) {
    let off = libc::linger { l_onoff: 0, l_linger: 0 };
    let _ = kernel::setsockopt(fd, libc::SOL_SOCKET, libc::SO_LINGER, &off);
    let _ = beeline_shm::sys::close(fd);
}
