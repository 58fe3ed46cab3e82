//! Getting rid of descriptors that a stranger has sent.

use crate::kernel;

/// Closes all descriptors that came with a message, lingering cleared first so that no close can block.
pub(crate) fn disarm_rights(message: &libc::msghdr) {
    // SAFETY: the kernel filled in the control data of this message; the CMSG walk stays within it.
    unsafe {
        let mut header = libc::CMSG_FIRSTHDR(message);
        while let Some(control) = header.as_ref() {
            if control.cmsg_level == libc::SOL_SOCKET && control.cmsg_type == libc::SCM_RIGHTS {
                let data = libc::CMSG_DATA(header).cast::<i32>();
                let bytes = control.cmsg_len.saturating_sub(libc::CMSG_LEN(0) as usize);
                for index in 0..bytes / size_of::<i32>() {
                    disarm(data.add(index).read_unaligned());
                }
            }
            header = libc::CMSG_NXTHDR(message, header);
        }
    }
}

/// Closes a descriptor received from a stranger.
pub fn disarm(fd: i32) {
    let off = libc::linger { l_onoff: 0, l_linger: 0 };
    let _ = kernel::setsockopt(fd, libc::SOL_SOCKET, libc::SO_LINGER, &off);
    let _ = beeline_shm::sys::close(fd);
}
