//! Flags of descriptors and descriptions, and ioctls.

use crate::trace;
use crate::traced::*;
use crate::variant::Variant;
use beeline_testkit::sys;

pub fn nonblocking_is_shared(v: Variant) {
    let (_client, server) = v.pair();
    let twin = dup(server, "twin");
    sys::set_nonblocking(twin.raw, true);
    fcntl(server, libc::F_GETFL, "F_GETFL", 0);
    recv(server, 8, 0);
    sys::set_nonblocking(server.raw, false);
    fcntl(twin, libc::F_GETFL, "F_GETFL", 0);
    recv(twin, 8, libc::MSG_DONTWAIT);
}

pub fn fionbio(v: Variant) {
    let (client, server) = v.pair();
    let twin = dup(server, "twin");
    trace!("on {}", sys::ioctl(twin.raw, libc::FIONBIO, &mut 1));
    fcntl(server, libc::F_GETFL, "F_GETFL", 0);
    recv(server, 8, 0);
    read(server, 8);
    trace!("off {}", sys::ioctl(server.raw, libc::FIONBIO, &mut 0));
    fcntl(twin, libc::F_GETFL, "F_GETFL", 0);
    send(client, b"x", 0);
    recv(server, 8, 0);
}

pub fn cloexec_is_not_shared(v: Variant) {
    let (_client, server) = v.pair();
    let twin = dup(server, "twin");
    sys::fcntl(server.raw, libc::F_SETFD, libc::FD_CLOEXEC);
    fcntl(server, libc::F_GETFD, "F_GETFD", 0);
    fcntl(twin, libc::F_GETFD, "F_GETFD", 0);
    let third = dup(server, "third");
    fcntl(third, libc::F_GETFD, "F_GETFD", 0);
}

pub fn status_flags(v: Variant) {
    let (client, server) = v.pair();
    for fd in [client, server] {
        let flags = fcntl(fd, libc::F_GETFL, "F_GETFL", 0).value as i32;
        fcntl(fd, libc::F_SETFL, "F_SETFL", flags ^ libc::O_NONBLOCK);
        fcntl(fd, libc::F_GETFL, "F_GETFL", 0);
        fcntl(fd, libc::F_SETFL, "F_SETFL", flags);
        fcntl(fd, libc::F_GETFL, "F_GETFL", 0);
    }
}

pub fn odd_status_flags(v: Variant) {
    let (client, _server) = v.pair();
    // Only some bits can be changed; the others are ignored.
    fcntl(client, libc::F_SETFL, "F_SETFL", libc::O_APPEND | libc::O_NONBLOCK | libc::O_CREAT);
    fcntl(client, libc::F_GETFL, "F_GETFL", 0);
    fcntl(client, libc::F_SETFL, "F_SETFL", 0);
    fcntl(client, libc::F_GETFL, "F_GETFL", 0);
    fcntl(client, libc::F_SETFD, "F_SETFD", 0x7f);
    fcntl(client, libc::F_GETFD, "F_GETFD", 0);
}

pub fn ioctls(v: Variant) {
    let (client, server) = v.pair();
    send(client, b"0123456789", 0);
    await_queued(server, 10);
    fionread(server);
    recv(server, 4, 0);
    fionread(server);
    fionread(client);
    let mut mark = -1;
    trace!("SIOCATMARK {} {mark}", sys::ioctl(server.raw, 0x8905, &mut mark));
}

pub fn fionread_counts(v: Variant) {
    let (client, server) = v.pair();
    fionread(server);
    send(client, b"abc", 0);
    await_queued(server, 3);
    fionread(server);
    shutdown(client, libc::SHUT_WR);
    await_hangup(server);
    fionread(server);
    recv(server, 2, 0);
    fionread(server);
    recv(server, 2, 0);
    fionread(server);
    recv(server, 2, 0);
    fionread(server);
}

pub fn tiocoutq(v: Variant) {
    let (client, server) = v.pair();
    let outq = |what: &str| {
        // What the peer has not yet acknowledged goes to zero by itself.
        until("the queue is empty", || {
            let mut count = -1;
            sys::ioctl(client.raw, libc::TIOCOUTQ, &mut count);
            count == 0
        });
        trace!("{what}: empty");
    };
    outq("fresh");
    send(client, b"abc", 0);
    await_queued(server, 3);
    // What has come is acknowledged, read or not.
    outq("before it was read");
    recv(server, 8, 0);
    outq("after it was read");
}

pub fn ioctl_errors(v: Variant) {
    let (client, _server) = v.pair();
    trace!("terminal: {}", sys::ioctl(client.raw, libc::TIOCGWINSZ, &mut 0));
    trace!("unknown: {}", sys::ioctl(client.raw, 0xdead_beef, &mut 0));
    trace!("bad fd: {}", sys::ioctl(199, libc::FIONREAD, &mut 0));
    let listener = v.listener();
    fionread(listener);
}

pub fn owner(v: Variant) {
    let (client, _server) = v.pair();
    let me = sys::process_id();
    trace!("F_GETOWN {}", sys::fcntl(client.raw, libc::F_GETOWN, 0));
    trace!("F_SETOWN {}", sys::fcntl(client.raw, libc::F_SETOWN, me));
    trace!("F_GETOWN is me: {}", sys::fcntl(client.raw, libc::F_GETOWN, 0).value == i64::from(me));
}
