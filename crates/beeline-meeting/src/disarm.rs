//! Getting rid of descriptors that a stranger has sent.

use crate::{control, kernel};

/// Closes all descriptors that came with a message, lingering cleared first so that no close can block.
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

/// Closes a descriptor received from a stranger.
pub fn disarm(fd: i32) {
    let off = libc::linger { l_onoff: 0, l_linger: 0 };
    let _ = kernel::setsockopt(fd, libc::SOL_SOCKET, libc::SO_LINGER, &off);
    let _ = beeline_shm::sys::close(fd);
}
