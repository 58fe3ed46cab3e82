//! `recvmmsg` and `sendmmsg` where connections may travel: one message after the other, as the kernel does it.

use super::is_unix;
use crate::process::is_sealed;
use crate::{kernel, wait};

/// Receives messages with `receive`, which gets each with its flags, and sets errno when it fails. Returns how many
/// came, -1 if already the first failed. `None`, with nothing done, if no descriptors come through the socket or the
/// kernel would refuse the timeout.
///
/// # Safety
/// `messages` must point to `count` valid entries and `timeout` be null or valid, as for recvmmsg(2).
pub unsafe fn receive_many(
    socket: i32,
    messages: *mut libc::mmsghdr,
    count: u32,
    flags: i32,
    timeout: *mut libc::timespec,
    mut receive: impl FnMut(*mut libc::msghdr, i32) -> isize,
) -> Option<isize> {
    // One message alone is received as by recvmsg(2), whatever the socket is. Of several the kernel takes all at once
    // where it may.
    if is_sealed() || count > 1 && !is_unix(socket) {
        return None;
    }
    // SAFETY: null or valid, as the caller guarantees.
    let mut timeout = unsafe { timeout.as_mut() };
    let deadline = wait::deadline(timeout.as_deref()).ok()?;
    let wait_for_one = flags & libc::MSG_WAITFORONE != 0;
    let mut flags = flags & !libc::MSG_WAITFORONE;
    let mut received = 0_isize;
    for index in 0..count as usize {
        // SAFETY: entry `index` of `count`.
        let message = unsafe { &mut *messages.add(index) };
        let length = receive(&raw mut message.msg_hdr, flags);
        if length < 0 {
            return Some(if received == 0 { -1 } else { received });
        }
        message.msg_len = length as u32;
        received += 1;
        // The kernel, too, looks at the time after each message and nowhere else.
        if let (Some(deadline), Some(timeout)) = (deadline, timeout.as_deref_mut()) {
            let left_ns = deadline.saturating_sub(kernel::now_ns());
            *timeout = wait::timespec(left_ns);
            if left_ns == 0 {
                break;
            }
        }
        if wait_for_one {
            flags |= libc::MSG_DONTWAIT;
        }
    }
    Some(received)
}

/// Sends messages with `send`, which sets errno when it fails. Returns how many went, -1 if already the first failed.
///
/// # Safety
/// `messages` must point to `count` valid entries, as for sendmmsg(2).
pub unsafe fn send_many(
    messages: *mut libc::mmsghdr,
    count: u32,
    mut send: impl FnMut(*const libc::msghdr) -> isize,
) -> isize {
    let mut sent = 0_isize;
    for index in 0..count as usize {
        // SAFETY: entry `index` of `count`.
        let message = unsafe { &mut *messages.add(index) };
        let length = send(&raw const message.msg_hdr);
        if length < 0 {
            return if sent == 0 { -1 } else { sent };
        }
        message.msg_len = length as u32;
        sent += 1;
    }
    sent
}
