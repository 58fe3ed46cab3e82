//! Sending and receiving.
//!
//! `pread`, `pwrite`, `tee`, `vmsplice` and `copy_file_range` need no hook: the kernel refuses them on an anchor
//! as it does on a TCP socket.

use beeline_sockets::{Outcome, in_first_page, io, life};
use libc::{c_int, c_uint, c_void, iovec, mmsghdr, msghdr, off_t, sockaddr, socklen_t, timespec};

use crate::real::hooks;

/// The most messages that one `sendmmsg` sends, as in the kernel (sendmmsg(2)).
const MESSAGES_MAX: c_uint = libc::UIO_MAXIOV as c_uint;

/// Whether a message has room for descriptors.
///
/// # Safety
/// `message` must be readable, unless it lies in the first page, which is never mapped.
unsafe fn has_control(message: *const msghdr) -> bool {
    // SAFETY: the caller guarantees that it can be read, as it does not lie in the first page.
    !in_first_page(message as usize) && unsafe { !(*message).msg_control.is_null() && (*message).msg_controllen != 0 }
}

/// Whether `is_such` holds for any message of an array.
///
/// # Safety
/// `messages` must point to `count` entries, unless it lies in the first page, which is never mapped.
unsafe fn any_message(messages: *const mmsghdr, count: c_uint, is_such: impl Fn(*const msghdr) -> bool) -> bool {
    !in_first_page(messages as usize)
        && (0..count as usize).any(|index| {
            // SAFETY: `index` is below `count`, so the entry lies within the caller's array. Nothing is read here.
            is_such(unsafe { &raw const (*messages.add(index)).msg_hdr })
        })
}

/// libc's `recvmsg` on what is no lane, for a message that may bring connections.
///
/// # Safety
/// As for recvmsg(2).
#[inline(never)]
unsafe fn receive_rights(fd: c_int, message: *mut msghdr, flags: c_int) -> Outcome {
    let Some(recvmsg) = reals::recvmsg.get().filter(|_| life::refusal(fd).is_none()) else { return Outcome::Kernel };
    // SAFETY: the app's arguments, passed on. A failure has set errno.
    unsafe { life::receive(fd, message, flags, |message| recvmsg(fd, message, flags)) }
        .map_or(Outcome::Kernel, Outcome::Done)
}

/// libc's `recvmmsg`, likewise.
///
/// # Safety
/// As for recvmmsg(2).
#[inline(never)]
unsafe fn receive_many_rights(
    fd: c_int,
    messages: *mut mmsghdr,
    count: c_uint,
    flags: c_int,
    timeout: *mut timespec,
) -> Outcome {
    // SAFETY: the app's arguments, passed on. Called by its own name, so that every answer of the kernel's comes back
    // here.
    unsafe { life::receive_many(fd, messages, count, flags, timeout, |message, flags| recvmsg(fd, message, flags)) }
        .map_or(Outcome::Kernel, Outcome::Done)
}

/// libc's `sendmsg` on what is no lane, for a message that may carry connections.
///
/// # Safety
/// As for sendmsg(2).
#[inline(never)]
unsafe fn send_rights(fd: c_int, message: *const msghdr, flags: c_int) -> Outcome {
    let Some(sendmsg) = reals::sendmsg.get().filter(|_| life::refusal(fd).is_none()) else { return Outcome::Kernel };
    // SAFETY: the app's arguments, passed on. A failure has set errno.
    unsafe { life::send(fd, message, |message| sendmsg(fd, message, flags)) }.map_or(Outcome::Kernel, Outcome::Done)
}

/// libc's `sendmmsg`, likewise.
///
/// # Safety
/// As for sendmmsg(2).
#[inline(never)]
unsafe fn send_many_rights(fd: c_int, messages: *mut mmsghdr, count: c_uint, flags: c_int) -> Outcome {
    // SAFETY: the app's arguments, passed on. Called by its own name, so that every answer of the kernel's comes back
    // here.
    Outcome::Done(unsafe { life::send_many(messages, count, |message| sendmsg(fd, message, flags)) })
}

/// `outcome`, where the kernel may be asked to do the call with this number as well.
fn kernel_with(fd: c_int, outcome: Outcome) -> Outcome {
    match outcome {
        Outcome::Kernel => life::refusal(fd).map_or(Outcome::Kernel, Outcome::Fail),
        outcome => outcome,
    }
}

hooks! {
    fn read: (fd: c_int, buffer: *mut c_void, length: usize) -> isize [fd, at_once io::recv_at_once(fd, buffer.cast(), length, 0)] =>
        io::read_the_long_way(fd, buffer.cast(), length);

    fn write: (fd: c_int, buffer: *const c_void, length: usize) -> isize [fd, at_once io::send_at_once(fd, buffer.cast(), length, 0)] =>
        io::write_the_long_way(fd, buffer.cast(), length);

    // Names that few programs call.
    fn __read: (fd: c_int, buffer: *mut c_void, length: usize) -> isize [fd] => io::read(fd, buffer.cast(), length);

    fn __write: (fd: c_int, buffer: *const c_void, length: usize) -> isize [fd] => io::write(fd, buffer.cast(), length);

    fn __send: (fd: c_int, buffer: *const c_void, length: usize, flags: c_int) -> isize [fd] =>
        io::send(fd, buffer.cast(), length, flags);

    fn readv: (fd: c_int, parts: *const iovec, count: c_int) -> isize [fd] => io::readv(fd, parts, count);

    fn writev: (fd: c_int, parts: *const iovec, count: c_int) -> isize [fd] => io::writev(fd, parts, count);

    fn preadv2 | preadv64v2: (fd: c_int, parts: *const iovec, count: c_int, offset: off_t, flags: c_int) -> isize [fd] =>
        io::preadv2(fd, parts, count, offset, flags);

    fn pwritev2 | pwritev64v2: (fd: c_int, parts: *const iovec, count: c_int, offset: off_t, flags: c_int) -> isize [fd] =>
        io::pwritev2(fd, parts, count, offset, flags);

    fn recv: (fd: c_int, buffer: *mut c_void, length: usize, flags: c_int) -> isize [fd, at_once io::recv_at_once(fd, buffer.cast(), length, flags)] =>
        io::recv_the_long_way(fd, buffer.cast(), length, flags);

    fn send: (fd: c_int, buffer: *const c_void, length: usize, flags: c_int) -> isize [fd, at_once io::send_at_once(fd, buffer.cast(), length, flags)] =>
        io::send_the_long_way(fd, buffer.cast(), length, flags);

    fn recvfrom: (fd: c_int, buffer: *mut c_void, length: usize, flags: c_int, address: *mut sockaddr, address_length: *mut socklen_t) -> isize [fd] =>
        io::recvfrom(fd, buffer.cast(), length, flags, address, address_length);

    fn sendto: (fd: c_int, buffer: *const c_void, length: usize, flags: c_int, address: *const sockaddr, address_length: socklen_t) -> isize [fd] =>
        io::sendto(fd, buffer.cast(), length, flags, address, address_length);

    fn recvmsg: (fd: c_int, message: *mut msghdr, flags: c_int) -> isize [fd] =>
        match io::recvmsg(fd, message, flags) {
            Outcome::Kernel if has_control(message) => receive_rights(fd, message, flags),
            outcome => outcome,
        };

    fn sendmsg: (fd: c_int, message: *const msghdr, flags: c_int) -> isize [fd] =>
        match io::sendmsg(fd, message, flags) {
            Outcome::Kernel if has_control(message) => send_rights(fd, message, flags),
            outcome => outcome,
        };

    fn recvmmsg: (fd: c_int, messages: *mut mmsghdr, count: c_uint, flags: c_int, timeout: *mut timespec) -> c_int [fd] =>
        match io::recvmmsg(fd, messages, count, flags, timeout) {
            Outcome::Kernel if any_message(messages, count, |message| has_control(message)) => receive_many_rights(fd, messages, count, flags, timeout),
            outcome => outcome,
        };

    fn sendmmsg: (fd: c_int, messages: *mut mmsghdr, count: c_uint, flags: c_int) -> c_int [fd] =>
        match io::sendmmsg(fd, messages, count, flags) {
            Outcome::Kernel if any_message(messages, count.min(MESSAGES_MAX), |message| life::passes_sockets(message)) =>
                send_many_rights(fd, messages, count.min(MESSAGES_MAX), flags),
            outcome => outcome,
        };

    // The checked forms that _FORTIFY_SOURCE calls. When the check fails, libc's own ends the program.
    fn __read_chk: (fd: c_int, buffer: *mut c_void, length: usize, room: usize) -> isize [fd] =>
        if length > room { Outcome::Kernel } else { io::read(fd, buffer.cast(), length) };

    fn __recv_chk: (fd: c_int, buffer: *mut c_void, length: usize, room: usize, flags: c_int) -> isize [fd] =>
        if length > room { Outcome::Kernel } else { io::recv(fd, buffer.cast(), length, flags) };

    fn __recvfrom_chk: (fd: c_int, buffer: *mut c_void, length: usize, room: usize, flags: c_int, address: *mut sockaddr, address_length: *mut socklen_t) -> isize [fd] =>
        if length > room { Outcome::Kernel } else { io::recvfrom(fd, buffer.cast(), length, flags, address, address_length) };

    // Of these two numbers either may be a lane, which another holder may have demoted during the call, too.
    fn sendfile | sendfile64: (to: c_int, from: c_int, offset: *mut off_t, count: usize) -> isize [to] =>
        kernel_with(from, io::sendfile(to, from, offset, count));

    fn splice: (from: c_int, from_offset: *mut i64, to: c_int, to_offset: *mut i64, count: usize, flags: c_uint) -> isize [from] =>
        life::refusal(to).map_or_else(|| kernel_with(to, io::splice(from, from_offset, to, to_offset, count, flags)), Outcome::Fail);
}
