//! `sendmsg`, `recvmsg` and the calls that do several of them.

use beeline_lane::Sink;

use core::sync::atomic::Ordering::Relaxed;

use super::ancillary::Control;
use super::call::{check_iovecs, first_bogus, not_a_lane, sane};
use super::receive::receive_iovecs;
use super::send::send_iovecs;
use super::{urgent, zerocopy};
use crate::app_memory::{bogus, is_bogus_room};
use crate::ending::observe;
use crate::{Errno, Outcome, control, guards, kernel, table, wait};

/// `sendmsg(2)`. Ancillary data has no meaning on TCP; what the kernel knows at the socket's level is ignored, and
/// anything else there is an error (`sock_cmsg_send`, Linux net/core/sock.c).
///
/// # Safety
/// `message` must be valid as for sendmsg(2).
pub unsafe fn sendmsg(fd: i32, message: *const libc::msghdr, flags: i32) -> Outcome {
    let Some(desc) = table::get(fd) else { return Outcome::Kernel };
    if !desc.is_lane() {
        return not_a_lane(desc);
    }
    // SAFETY: valid unless it is nonsense, which the check refuses.
    let Some(message) = (unsafe { sane(message) }) else { return Outcome::fail(libc::EFAULT) };
    if message.msg_iovlen > libc::UIO_MAXIOV as usize {
        return Outcome::fail(libc::EMSGSIZE);
    }
    // SAFETY: a valid message, as the caller guarantees.
    if message.msg_controllen != 0 && !unsafe { control_is_known(message) } {
        return Outcome::fail(libc::EINVAL);
    }
    // SAFETY: the message's iovecs are valid, as the caller guarantees.
    unsafe { send_iovecs(fd, message.msg_iov, message.msg_iovlen, flags) }
}

/// Whether TCP takes all control messages of `message`.
///
/// # Safety
/// `message` must be valid as for sendmsg(2).
#[cold]
unsafe fn control_is_known(message: &libc::msghdr) -> bool {
    const KNOWN: [i32; 5] =
        [libc::SCM_RIGHTS, libc::SCM_CREDENTIALS, libc::SO_MARK, libc::SO_PRIORITY, libc::SO_TIMESTAMPING];
    if bogus(message.msg_control as usize, message.msg_controllen) {
        return false;
    }
    let mut known = true;
    // SAFETY: valid, as the caller guarantees.
    let walked = unsafe {
        control::each_of_app(message, |header, _, _| {
            known &= header.cmsg_level != libc::SOL_SOCKET || KNOWN.contains(&header.cmsg_type);
        })
    };
    known && walked.is_some()
}

/// `sendmmsg(2)`.
///
/// # Safety
/// `messages` must point to `count` valid entries, as for sendmmsg(2).
pub unsafe fn sendmmsg(fd: i32, messages: *mut libc::mmsghdr, count: u32, flags: i32) -> Outcome {
    let Some(desc) = table::get(fd) else { return Outcome::Kernel };
    if !desc.is_lane() {
        return not_a_lane(desc);
    }
    let mut done = 0;
    // The kernel sends no more at a time; it receives as many as are asked for.
    for index in 0..count.min(libc::UIO_MAXIOV as u32) as usize {
        // SAFETY: entry `index` of `count`.
        let entry = unsafe { &mut *messages.add(index) };
        // SAFETY: the caller guarantees it.
        match unsafe { sendmsg(fd, &raw const entry.msg_hdr, flags) } {
            Outcome::Done(sent) => entry.msg_len = sent as u32,
            other if done == 0 => return other,
            _ => break,
        }
        done += 1;
        // What comes after a message that was sent in part would stand in the middle of the stream.
        // SAFETY: the caller guarantees it.
        if (entry.msg_len as usize) < unsafe { length_of(&entry.msg_hdr) } {
            break;
        }
    }
    Outcome::Done(done)
}

/// How many bytes of a message that was sent a call would have sent at most.
///
/// # Safety
/// `message` must be valid as for sendmsg(2).
unsafe fn length_of(message: &libc::msghdr) -> usize {
    // SAFETY: the caller guarantees it; nonsense is refused.
    unsafe { check_iovecs(message.msg_iov, message.msg_iovlen) }.map_or(0, |(_, total)| total)
}

/// `recvmsg(2)`. A stream has no address here, and no ancillary data but what `TCP_INQ` and `MSG_ERRQUEUE` give.
///
/// # Safety
/// `message` must be valid as for recvmsg(2).
pub unsafe fn recvmsg(fd: i32, message: *mut libc::msghdr, flags: i32) -> Outcome {
    let Some(desc) = table::get(fd) else { return Outcome::Kernel };
    if !desc.is_lane() {
        return not_a_lane(desc);
    }
    // SAFETY: valid unless it is nonsense, which the check refuses.
    let Some(header) = (unsafe { sane(message.cast_const()) }) else { return Outcome::fail(libc::EFAULT) };
    if header.msg_iovlen > libc::UIO_MAXIOV as usize {
        return Outcome::fail(libc::EMSGSIZE);
    }
    let mut told = flags & libc::MSG_CMSG_CLOEXEC;
    let mut left = None;
    // SAFETY: the caller guarantees that the message's room for control messages is writable.
    let mut control = unsafe { Control::of(header) };
    let outcome = if flags & libc::MSG_ERRQUEUE != 0 {
        match zerocopy::take(fd, desc) {
            Err(outcome) => outcome,
            Ok(range) => {
                told |= libc::MSG_ERRQUEUE;
                zerocopy::tell(range, &mut control);
                Outcome::OK
            }
        }
    } else if flags & libc::MSG_OOB != 0 {
        // SAFETY: the caller guarantees it; `check_iovecs` refuses nonsense.
        match unsafe { check_iovecs(header.msg_iov, header.msg_iovlen) } {
            Err(outcome) => outcome,
            Ok((parts, _)) if flags & libc::MSG_TRUNC == 0 && first_bogus(parts, is_bogus_room).is_some() => {
                Outcome::fail(libc::EFAULT)
            }
            Ok((parts, _)) => {
                // SAFETY: each iovec's buffer is writable, as the caller guarantees.
                let sinks = parts.iter().map(|part| unsafe { Sink::from_raw(part.iov_base.cast(), part.iov_len) });
                let taken = urgent::receive(fd, desc, flags, sinks);
                told |= taken.flags;
                left = guards::pin(fd, desc).and_then(|pin| urgent::left_to_read(pin.desc()));
                taken.outcome
            }
        }
    } else {
        // SAFETY: the message's iovecs are valid, as the caller guarantees.
        unsafe {
            receive_iovecs(fd, header.msg_iov, header.msg_iovlen, flags, |desc| left = urgent::left_to_read(desc))
        }
    };
    if let Outcome::Done(_) = outcome {
        if let Some(left) = left {
            control.put(libc::IPPROTO_TCP, libc::TCP_INQ, &left.to_ne_bytes());
        }
        // SAFETY: a valid message, as the caller guarantees.
        unsafe {
            (*message).msg_namelen = 0;
            (*message).msg_controllen = control.filled();
            (*message).msg_flags = told | control.flags();
        }
    }
    outcome
}

/// `recvmmsg(2)`. The timeout is looked at after each message, as the kernel does.
///
/// # Safety
/// `messages` must point to `count` valid entries and `timeout` be null or valid, as for recvmmsg(2).
pub unsafe fn recvmmsg(
    fd: i32,
    messages: *mut libc::mmsghdr,
    count: u32,
    flags: i32,
    timeout: *mut libc::timespec,
) -> Outcome {
    let Some(desc) = table::get(fd) else { return Outcome::Kernel };
    if !desc.is_lane() {
        return not_a_lane(desc);
    }
    // SAFETY: null or valid, as the caller guarantees.
    let mut timeout = unsafe { timeout.as_mut() };
    let deadline = match wait::deadline(timeout.as_deref()) {
        Ok(deadline) => deadline,
        Err(errno) => return Outcome::Fail(errno),
    };
    let Some(pin) = guards::pin(fd, desc).filter(|_| desc.is_lane()) else { return Outcome::Kernel };
    // do_recvmmsg() takes the pending error first, and leaves one that ends a call with messages for the next.
    let side = desc.side();
    observe(desc, side);
    if flags & libc::MSG_ERRQUEUE == 0
        && let Some(errno) = side.take_error()
    {
        return Outcome::Fail(errno);
    }
    // All of it is one wait, as any message's may not come back.
    pin.while_waiting(|| {
        let mut done = 0;
        let mut flags = flags;
        for index in 0..count as usize {
            // SAFETY: entry `index` of `count`.
            let entry = unsafe { &mut *messages.add(index) };
            // SAFETY: the caller guarantees it.
            match unsafe { recvmsg(fd, &raw mut entry.msg_hdr, flags & !libc::MSG_WAITFORONE) } {
                Outcome::Done(got) => entry.msg_len = got as u32,
                other if done == 0 => return other,
                Outcome::Fail(errno) if errno != Errno(libc::EAGAIN) => {
                    side.error.store(errno.0, Relaxed);
                    break;
                }
                _ => break,
            }
            done += 1;
            if flags & libc::MSG_WAITFORONE != 0 {
                flags |= libc::MSG_DONTWAIT;
            }
            if let (Some(deadline), Some(timeout)) = (deadline, timeout.as_deref_mut()) {
                let left_ns = deadline.saturating_sub(kernel::now_ns());
                *timeout = wait::timespec(left_ns);
                if left_ns == 0 {
                    break;
                }
            }
            if entry.msg_hdr.msg_flags & libc::MSG_OOB != 0 {
                break;
            }
        }
        Outcome::Done(done)
    })
}
