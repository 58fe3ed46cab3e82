//! The same calls under other names: libc's own aliases, the forms that `_FORTIFY_SOURCE` calls, the 64-bit names, and
//! numbers for syscall(2).

use crate::case::axes::{FAMILY, ONCE};
use crate::case::{Case, Group};
use crate::trace;
use crate::traced::*;
use crate::variant::Variant;
use beeline_testkit::sys::{self, Ret};

pub const GROUP: Group = Group {
    name: "forms",
    cases: &[
        Case::new("checked", FAMILY, checked),
        Case::new("checked_and_too_long", ONCE, checked_and_too_long),
        Case::new("aliases", FAMILY, aliases),
        Case::new("sixty_four_bit_names", ONCE, sixty_four_bit_names),
        Case::new("numbers", FAMILY, numbers),
        Case::new("numbers_that_wait", ONCE, numbers_that_wait),
        Case::new("numbers_of_descriptors", ONCE, numbers_of_descriptors),
    ],
};

/// Calls that the libc crate does not name.
mod other {
    use libc::{c_int, c_void, iovec, nfds_t, off_t, pollfd, sockaddr, socklen_t, timespec};
    unsafe extern "C" {
        pub fn __read_chk(fd: c_int, buffer: *mut c_void, length: usize, room: usize) -> isize;
        pub fn __recv_chk(fd: c_int, buffer: *mut c_void, length: usize, room: usize, flags: c_int) -> isize;
        pub fn __recvfrom_chk(
            fd: c_int,
            buffer: *mut c_void,
            length: usize,
            room: usize,
            flags: c_int,
            address: *mut sockaddr,
            address_length: *mut socklen_t,
        ) -> isize;
        pub fn __poll_chk(fds: *mut pollfd, count: nfds_t, timeout_ms: c_int, room: usize) -> c_int;
        pub fn __ppoll_chk(
            fds: *mut pollfd,
            count: nfds_t,
            timeout: *const timespec,
            mask: *const c_void,
            room: usize,
        ) -> c_int;
        pub fn __read(fd: c_int, buffer: *mut c_void, length: usize) -> isize;
        pub fn __write(fd: c_int, buffer: *const c_void, length: usize) -> isize;
        pub fn __send(fd: c_int, buffer: *const c_void, length: usize, flags: c_int) -> isize;
        pub fn __poll(fds: *mut pollfd, count: nfds_t, timeout_ms: c_int) -> c_int;
        pub fn __fcntl(fd: c_int, command: c_int, ...) -> c_int;
        pub fn __dup2(from: c_int, to: c_int) -> c_int;
        pub fn __close(fd: c_int) -> c_int;
        pub fn __connect(fd: c_int, address: *const sockaddr, length: socklen_t) -> c_int;
        pub fn __dprintf_chk(fd: c_int, flag: c_int, format: *const libc::c_char, ...) -> c_int;
        pub fn fcntl64(fd: c_int, command: c_int, ...) -> c_int;
        pub fn sendfile64(to: c_int, from: c_int, offset: *mut off_t, count: usize) -> isize;
        pub fn preadv64v2(fd: c_int, parts: *const iovec, count: c_int, offset: off_t, flags: c_int) -> isize;
        pub fn pwritev64v2(fd: c_int, parts: *const iovec, count: c_int, offset: off_t, flags: c_int) -> isize;
    }
}

/// What a call returned, and errno if it failed.
fn said(name: &str, value: i64) {
    let error = std::io::Error::last_os_error().raw_os_error().unwrap_or(0);
    match value < 0 {
        true => trace!("{name} = -1 {}", sys::errno_name(error)),
        false => trace!("{name} = {value}"),
    }
}

fn checked(v: Variant) {
    let (client, server) = v.pair();
    let mut buffer = [0_u8; 16];
    let place = buffer.as_mut_ptr().cast();
    send(client, b"one two three", 0);
    await_queued(server, 13);
    let mut entry = libc::pollfd { fd: server.raw, events: libc::POLLIN | libc::POLLOUT, revents: 0 };
    let zero = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: every buffer has the room that is stated.
    unsafe {
        said("__poll_chk", other::__poll_chk(&raw mut entry, 1, 0, size_of_val(&entry)).into());
        said(
            "__ppoll_chk",
            other::__ppoll_chk(&raw mut entry, 1, &raw const zero, std::ptr::null(), size_of_val(&entry)).into(),
        );
        said("__read_chk", other::__read_chk(server.raw, place, 4, 16) as i64);
        said("__recv_chk", other::__recv_chk(server.raw, place, 4, 16, libc::MSG_PEEK) as i64);
        said("__recv_chk", other::__recv_chk(server.raw, place, 4, 16, 0) as i64);
        let none = std::ptr::null_mut();
        said("__recvfrom_chk", other::__recvfrom_chk(server.raw, place, 16, 16, 0, none, none.cast()) as i64);
        said("__recv_chk", other::__recv_chk(server.raw, place, 4, 16, libc::MSG_DONTWAIT) as i64);
        said("__dprintf_chk", other::__dprintf_chk(client.raw, 1, c"%s %d".as_ptr(), c"words".as_ptr(), 42).into());
    }
    trace!("{}", shown(&buffer[..5]));
    await_queued(server, 8);
    recv(server, 16, 0);
}

fn checked_and_too_long(v: Variant) {
    let (client, server) = v.pair();
    send(client, b"data", 0);
    await_queued(server, 4);
    let none = std::ptr::null_mut();
    let calls: [fn(i32, *mut libc::c_void) -> i64; 3] = [
        // SAFETY: libc ends the program before anything is written.
        |fd, place| unsafe { other::__read_chk(fd, place, 5, 4) as i64 },
        // SAFETY: as above.
        |fd, place| unsafe { other::__recv_chk(fd, place, 5, 4, 0) as i64 },
        // SAFETY: as above.
        |fd, place| {
            let none = std::ptr::null_mut();
            // SAFETY: as above.
            unsafe { other::__recvfrom_chk(fd, place, 5, 4, 0, none, none.cast()) as i64 }
        },
    ];
    let _: *mut libc::c_void = none;
    for call in calls {
        let child = sys::fork(|| {
            let mut buffer = [0_u8; 4];
            i32::from(call(server.raw, buffer.as_mut_ptr().cast()) >= 0)
        });
        trace!("{}", sys::wait_for(child));
    }
    recv(server, 8, 0);
}

fn aliases(v: Variant) {
    let listener = v.listener();
    let client = v.client();
    let address = v.address_of(listener);
    // SAFETY: live buffers of the lengths stated.
    unsafe {
        said("__connect", other::__connect(client.raw, (&raw const address.storage).cast(), address.length).into());
        let server = accept(listener, "server");
        said("__write", other::__write(client.raw, b"abc".as_ptr().cast(), 3) as i64);
        said("__send", other::__send(client.raw, b"def".as_ptr().cast(), 3, 0) as i64);
        await_queued(server, 6);
        let mut entry = libc::pollfd { fd: server.raw, events: libc::POLLIN, revents: 0 };
        said("__poll", other::__poll(&raw mut entry, 1, 0).into());
        let mut buffer = [0_u8; 8];
        said("__read", other::__read(server.raw, buffer.as_mut_ptr().cast(), 8) as i64);
        trace!("{}", shown(&buffer[..6]));
        said("__fcntl", other::__fcntl(server.raw, libc::F_SETFL, libc::O_NONBLOCK).into());
        recv(server, 8, 0);
        said("__dup2", i64::from(other::__dup2(client.raw, 150) == 150));
        send(Fd::new(150, "copy"), b"ghi", 0);
        said("__close", other::__close(client.raw).into());
        await_queued(server, 3);
        recv(server, 8, 0);
        poll_now(server);
    }
}

fn sixty_four_bit_names(v: Variant) {
    let (client, server) = v.pair();
    let file = sys::file_with(b"0123456789");
    let mut buffer = [0_u8; 8];
    let part = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: 8 };
    // SAFETY: live buffers of the lengths stated.
    unsafe {
        said("sendfile64", other::sendfile64(client.raw, file, std::ptr::null_mut(), 6) as i64);
        await_queued(server, 6);
        said("preadv64v2", other::preadv64v2(server.raw, &raw const part, 1, 0, 0) as i64);
        said("preadv64v2", other::preadv64v2(server.raw, &raw const part, 1, -1, 0) as i64);
        said("pwritev64v2", other::pwritev64v2(client.raw, &raw const part, 1, -1, 0) as i64);
        said("pwritev64v2", other::pwritev64v2(client.raw, &raw const part, 1, 5, 0) as i64);
        said("fcntl64", other::fcntl64(server.raw, libc::F_SETFL, libc::O_NONBLOCK).into());
    }
    await_queued(server, 8);
    recv(server, 16, 0);
    recv(server, 16, 0);
}

fn by_number(name: &str, number: i64, arguments: [usize; 6]) -> Ret {
    // SAFETY: the callers pass numbers and addresses of live data.
    let ret = unsafe { sys::syscall(number, arguments) };
    trace!("{name} = {ret}");
    ret
}

fn numbers(v: Variant) {
    let (client, server) = v.pair();
    let (to, from) = (client.raw as usize, server.raw as usize);
    let data = b"some data";
    let mut buffer = [0_u8; 32];
    let part = [libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: 4 }];
    let (text, place, parts) = (data.as_ptr() as usize, buffer.as_mut_ptr() as usize, part.as_ptr() as usize);
    by_number("write", libc::SYS_write, [to, text, 9, 0, 0, 0]);
    by_number("sendto", libc::SYS_sendto, [to, text, 9, 0, 0, 0]);
    by_number("writev", libc::SYS_writev, [to, parts, 1, 0, 0, 0]);
    await_queued(server, 22);
    by_number("read", libc::SYS_read, [from, place, 5, 0, 0, 0]);
    by_number("recvfrom", libc::SYS_recvfrom, [from, place, 4, libc::MSG_PEEK as usize, 0, 0]);
    by_number("readv", libc::SYS_readv, [from, parts, 1, 0, 0, 0]);
    // SAFETY: msghdr is plain data for which zeroes are a valid value.
    let mut header: libc::mmsghdr = unsafe { std::mem::zeroed() };
    header.msg_hdr.msg_iov = part.as_ptr().cast_mut();
    header.msg_hdr.msg_iovlen = 1;
    let message = (&raw mut header) as usize;
    by_number("recvmsg", libc::SYS_recvmsg, [from, message, 0, 0, 0, 0]);
    by_number("recvmmsg", libc::SYS_recvmmsg, [from, message, 1, 0, 0, 0]);
    trace!("length {}", header.msg_len);
    by_number("sendmsg", libc::SYS_sendmsg, [to, message, 0, 0, 0, 0]);
    by_number("sendmmsg", libc::SYS_sendmmsg, [to, message, 1, 0, 0, 0]);
    await_queued(server, 13);
    by_number("recvfrom", libc::SYS_recvfrom, [from, place, 32, 0, 0, 0]);
    by_number("recvfrom", libc::SYS_recvfrom, [from, place, 32, libc::MSG_DONTWAIT as usize, 0, 0]);
    by_number("shutdown", libc::SYS_shutdown, [to, libc::SHUT_WR as usize, 0, 0, 0, 0]);
    await_hangup(server);
    by_number("read", libc::SYS_read, [from, place, 5, 0, 0, 0]);
}

fn numbers_that_wait(v: Variant) {
    let (client, server) = v.pair();
    send(client, b"x", 0);
    await_queued(server, 1);
    let mut entry = libc::pollfd { fd: server.raw, events: libc::POLLIN, revents: 0 };
    let zero = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    let (entry_at, zero_at) = ((&raw mut entry) as usize, (&raw const zero) as usize);
    by_number("poll", libc::SYS_poll, [entry_at, 1, 0, 0, 0, 0]);
    by_number("ppoll", libc::SYS_ppoll, [entry_at, 1, zero_at, 0, 8, 0]);
    let mut sets = [0_u64; 16];
    sets[server.raw as usize / 64] = 1 << (server.raw % 64);
    by_number("pselect6", libc::SYS_pselect6, [server.raw as usize + 1, sets.as_mut_ptr() as usize, 0, 0, zero_at, 0]);
    let set = by_number_quiet(libc::SYS_epoll_create1, [0; 6]);
    let event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: 7 };
    let mut events = [libc::epoll_event { events: 0, u64: 0 }; 4];
    let add = libc::EPOLL_CTL_ADD as usize;
    by_number("epoll_ctl", libc::SYS_epoll_ctl, [set, add, server.raw as usize, (&raw const event) as usize, 0, 0]);
    let place = events.as_mut_ptr() as usize;
    by_number("epoll_wait", libc::SYS_epoll_wait, [set, place, 4, 0, 0, 0]);
    by_number("epoll_pwait", libc::SYS_epoll_pwait, [set, place, 4, 0, 0, 8]);
    by_number("epoll_pwait2", libc::SYS_epoll_pwait2, [set, place, 4, zero_at, 0, 8]);
    let [first, ..] = events;
    trace!("{:?}", (first.events, first.u64));
}

/// A descriptor, which is not traced.
fn by_number_quiet(number: i64, arguments: [usize; 6]) -> usize {
    // SAFETY: the callers pass numbers.
    unsafe { sys::syscall(number, arguments) }.value as usize
}

fn numbers_of_descriptors(v: Variant) {
    let (client, server) = v.pair();
    let copy = by_number_quiet(libc::SYS_dup, [client.raw as usize, 0, 0, 0, 0, 0]);
    by_number("close", libc::SYS_close, [client.raw as usize, 0, 0, 0, 0, 0]);
    by_number("close", libc::SYS_close, [client.raw as usize, 0, 0, 0, 0, 0]);
    by_number("dup3", libc::SYS_dup3, [copy, 160, libc::O_CLOEXEC as usize, 0, 0, 0]);
    by_number("fcntl", libc::SYS_fcntl, [160, libc::F_GETFD as usize, 0, 0, 0, 0]);
    let mut count = -1;
    send(Fd::new(160, "copy"), b"abc", 0);
    await_queued(server, 3);
    by_number(
        "ioctl",
        libc::SYS_ioctl,
        [server.raw as usize, libc::FIONREAD as usize, (&raw mut count) as usize, 0, 0, 0],
    );
    trace!("{count}");
    by_number("close_range", libc::SYS_close_range, [copy.min(160), 160, 0, 0, 0, 0]);
}
