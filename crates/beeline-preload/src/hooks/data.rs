//! Sending and receiving.
//!
//! `pread`, `pwrite`, `tee`, `vmsplice` and `copy_file_range` need no hook: the kernel refuses them on an anchor
//! as it does on a TCP socket.

use beeline_sockets::{Outcome, io, life};
use libc::{c_int, c_uint, c_void, iovec, mmsghdr, msghdr, off_t, sockaddr, socklen_t, timespec};

use crate::real::hooks;

/// Whether a message has room for descriptors.
unsafe fn has_control(message: *const msghdr) -> bool {
    // SAFETY: the app's message; the first page is never mapped.
    message as usize >= 4096 && unsafe { (*message).msg_controllen } != 0
}

/// Calls `f` with each message of an array.
unsafe fn each_message(messages: *const mmsghdr, count: c_uint, f: impl Fn(*const msghdr)) {
    if messages as usize >= 4096 {
        for index in 0..count as usize {
            // SAFETY: the app's array has `count` entries.
            f(unsafe { &raw const (*messages.add(index)).msg_hdr });
        }
    }
}

unsafe fn any_has_control(messages: *const mmsghdr, count: c_uint) -> bool {
    let any = core::cell::Cell::new(false);
    // SAFETY: forwarded.
    unsafe { each_message(messages, count, |message| any.set(any.get() || has_control(message))) };
    any.get()
}

/// libc's `recvmsg`, with a look at what came.
unsafe fn receive_rights(fd: c_int, message: *mut msghdr, flags: c_int) -> Outcome {
    let real = reals::recvmsg.address();
    if real.is_null() || life::refusal(fd).is_some() {
        return Outcome::Kernel;
    }
    let real: unsafe extern "C" fn(c_int, *mut msghdr, c_int) -> isize =
        // SAFETY: libc's function of this name has this type.
        unsafe { core::mem::transmute(real) };
    // SAFETY: the app's arguments, passed on.
    unsafe {
        let result = real(fd, message, flags);
        if result >= 0 {
            life::received(message);
        }
        // A failure has set errno.
        Outcome::Done(result)
    }
}

/// libc's `recvmmsg`, likewise.
unsafe fn receive_many_rights(
    fd: c_int,
    messages: *mut mmsghdr,
    count: c_uint,
    flags: c_int,
    timeout: *mut timespec,
) -> Outcome {
    let real = reals::recvmmsg.address();
    if real.is_null() || life::refusal(fd).is_some() {
        return Outcome::Kernel;
    }
    let real: unsafe extern "C" fn(c_int, *mut mmsghdr, c_uint, c_int, *mut timespec) -> c_int =
        // SAFETY: libc's function of this name has this type.
        unsafe { core::mem::transmute(real) };
    // SAFETY: the app's arguments, passed on.
    unsafe {
        let result = real(fd, messages, count, flags, timeout);
        each_message(messages, result.max(0) as c_uint, |message| life::received(message));
        Outcome::Done(result as isize)
    }
}

hooks! {
    fn read | __read: (fd: c_int, buffer: *mut c_void, length: usize) -> isize [fd] =>
        io::read(fd, buffer.cast(), length);

    fn write | __write: (fd: c_int, buffer: *const c_void, length: usize) -> isize [fd] =>
        io::send(fd, buffer.cast(), length, 0);

    fn readv: (fd: c_int, parts: *const iovec, count: c_int) -> isize [fd] => io::readv(fd, parts, count);

    fn writev: (fd: c_int, parts: *const iovec, count: c_int) -> isize [fd] => io::writev(fd, parts, count);

    fn preadv2 | preadv64v2: (fd: c_int, parts: *const iovec, count: c_int, offset: off_t, flags: c_int) -> isize [fd] =>
        io::preadv2(fd, parts, count, offset, flags);

    fn pwritev2 | pwritev64v2: (fd: c_int, parts: *const iovec, count: c_int, offset: off_t, flags: c_int) -> isize [fd] =>
        io::pwritev2(fd, parts, count, offset, flags);

    fn recv: (fd: c_int, buffer: *mut c_void, length: usize, flags: c_int) -> isize [fd] =>
        io::recv(fd, buffer.cast(), length, flags);

    fn send | __send: (fd: c_int, buffer: *const c_void, length: usize, flags: c_int) -> isize [fd] =>
        io::send(fd, buffer.cast(), length, flags);

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
            Outcome::Kernel => {
                life::sends(message);
                Outcome::Kernel
            }
            outcome => outcome,
        };

    fn recvmmsg: (fd: c_int, messages: *mut mmsghdr, count: c_uint, flags: c_int, timeout: *mut timespec) -> c_int [fd] =>
        match io::recvmmsg(fd, messages, count, flags, timeout) {
            Outcome::Kernel if any_has_control(messages, count) => receive_many_rights(fd, messages, count, flags, timeout),
            outcome => outcome,
        };

    fn sendmmsg: (fd: c_int, messages: *mut mmsghdr, count: c_uint, flags: c_int) -> c_int [fd] =>
        match io::sendmmsg(fd, messages, count, flags) {
            Outcome::Kernel => {
                each_message(messages, count, |message| life::sends(message));
                Outcome::Kernel
            }
            outcome => outcome,
        };

    // The checked forms that _FORTIFY_SOURCE calls. When the check fails, libc's own ends the program.
    fn __read_chk: (fd: c_int, buffer: *mut c_void, length: usize, room: usize) -> isize [fd] =>
        if length > room { Outcome::Kernel } else { io::read(fd, buffer.cast(), length) };

    fn __recv_chk: (fd: c_int, buffer: *mut c_void, length: usize, room: usize, flags: c_int) -> isize [fd] =>
        if length > room { Outcome::Kernel } else { io::recv(fd, buffer.cast(), length, flags) };

    fn __recvfrom_chk: (fd: c_int, buffer: *mut c_void, length: usize, room: usize, flags: c_int, address: *mut sockaddr, address_length: *mut socklen_t) -> isize [fd] =>
        if length > room { Outcome::Kernel } else { io::recvfrom(fd, buffer.cast(), length, flags, address, address_length) };

    fn sendfile | sendfile64: (to: c_int, from: c_int, offset: *mut off_t, count: usize) -> isize [to] =>
        io::sendfile(to, from, offset, count);

    fn splice: (from: c_int, from_offset: *mut i64, to: c_int, to_offset: *mut i64, count: usize, flags: c_uint) -> isize [from] =>
        life::refusal(to).map_or_else(|| io::splice(from, from_offset, to, to_offset, count, flags), Outcome::Fail);
}
