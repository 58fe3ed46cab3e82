//! Descriptors that travel between processes (`SCM_RIGHTS`, unix(7)).
//!
//! A connection cannot be handed over yet. What must not happen meanwhile is that its stream ends as if all
//! had been said: the receiver gets an orphan ([`super::orphan`]), and when the sender closes its end, which
//! it thinks another process has now, the peer sees a reset.

use core::sync::atomic::Ordering::Relaxed;

use beeline_stats::Reason;

use super::{changing, is_guest_of_parent, orphan};
use crate::desc::Kind;
use crate::{meet, options, table};

/// Notes what becomes of the descriptors in a message that the app is about to send.
///
/// # Safety
/// `message` must be null or valid, as for sendmsg(2).
pub unsafe fn sends(message: *const libc::msghdr) {
    // SAFETY: forwarded.
    unsafe { each(message, send_one) }
}

/// Notes the descriptors in a message that the app has received.
///
/// # Safety
/// `message` must be null or one that recvmsg(2) has filled.
pub unsafe fn received(message: *const libc::msghdr) {
    // SAFETY: forwarded.
    unsafe { each(message, receive_one) }
}

fn send_one(fd: i32) {
    let Some(desc) = table::get(fd) else { return };
    match desc.kind() {
        Kind::Lane => {
            let _both = desc.lock_both();
            if desc.is_lane() {
                desc.side().linger.store(1, Relaxed);
            }
        }
        Kind::Tcp => options::block(desc, Reason::SharedBeforeConnect),
        _ => {}
    }
}

fn receive_one(fd: i32) {
    if is_guest_of_parent() {
        return;
    }
    // The number is new: whatever it led to was closed past us.
    meet::fd_reborn(fd);
    let _changing = changing();
    if orphan::is_anchor(fd) {
        orphan::mark(fd);
    }
}

/// Calls `f` with each descriptor in a message.
///
/// # Safety
/// `message` must be null or valid.
unsafe fn each(message: *const libc::msghdr, f: fn(i32)) {
    if (message as usize) < 4096 {
        return;
    }
    // SAFETY: valid by the caller's word. The macros stay within the control buffer.
    unsafe {
        if (*message).msg_controllen < size_of::<libc::cmsghdr>() || ((*message).msg_control as usize) < 4096 {
            return;
        }
        let mut header = libc::CMSG_FIRSTHDR(message);
        while !header.is_null() {
            if (*header).cmsg_level == libc::SOL_SOCKET && (*header).cmsg_type == libc::SCM_RIGHTS {
                let fds = libc::CMSG_DATA(header).cast::<i32>();
                let start = libc::CMSG_LEN(0) as usize;
                let room = ((*message).msg_control as usize)
                    .saturating_add((*message).msg_controllen)
                    .saturating_sub(header as usize);
                let count = (*header).cmsg_len.min(room).saturating_sub(start) / size_of::<i32>();
                for index in 0..count {
                    f(fds.add(index).read_unaligned());
                }
            }
            header = libc::CMSG_NXTHDR(message, header);
        }
    }
}
