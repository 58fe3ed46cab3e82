//! Programs that are given a connection as their standard input while a thread of this program waits on it.

use crate::case::axes::{FAMILY, ONCE};
use crate::case::{Case, Group};
use crate::cases::waiters::*;
use crate::trace;
use crate::traced::*;
use crate::variant::Variant;
use beeline_testkit::sys;
use std::os::fd::FromRawFd;
use std::process::{Command, Stdio};

pub const GROUP: Group = Group {
    name: "spawned",
    cases: &[
        Case::new("by_recv", ONCE, |v| beside(v, by_recv)),
        Case::new("by_readv", ONCE, |v| beside(v, by_readv)),
        Case::new("by_waitall", ONCE, |v| beside(v, by_waitall)),
        Case::new("by_peek", ONCE, |v| beside(v, by_peek)),
        Case::new("by_poll", ONCE, |v| beside(v, by_poll)),
        Case::new("by_select", ONCE, |v| beside(v, by_select)),
        Case::new("by_epoll", ONCE, |v| beside(v, by_epoll)),
        Case::new("sender", FAMILY, beside_a_sender),
    ],
};

/// The kernel may end this wait when a child ends, with EINTR and without a handler.
fn by_epoll(fd: Fd) {
    let set = epoll_create("set");
    epoll_add(set, fd, libc::EPOLLIN);
    let ready = loop {
        let (ready, _) = sys::epoll_wait(sys::EpollCall::Wait, set.raw, 4, -1, None);
        if !ready.is(libc::EINTR) {
            break ready;
        }
    };
    trace!("ready {ready}");
}

/// Runs a shell command with the connection as its standard input, to its end.
fn run(command: &str, fd: Fd) {
    // SAFETY: a descriptor of its own, made for this.
    let input = unsafe { Stdio::from_raw_fd(sys::dup(fd.raw).value as i32) };
    let status = Command::new("/bin/sh").args(["-c", command]).stdin(input).status();
    trace!("{command}: {:?}", status.map(|status| status.code()).ok());
}

fn beside(v: Variant, wait: Waiter) {
    let (client, server) = v.pair();
    let main = sys::thread_id();
    let thread = std::thread::spawn(move || {
        trace::set_actor("thread");
        await_asleep(main);
        run("echo hello >&0", client);
        recv(server, 16, 0);
        await_asleep(main);
        send(server, b"late", 0);
    });
    wait(client);
    let _ = thread.join();
    poll(&[(client, libc::POLLOUT)], 0);
    send(client, b"and on", 0);
    recv(server, 16, 0);
}

fn beside_a_sender(v: Variant) {
    let (client, server) = v.pair();
    let thread = once_asleep("thread", move || {
        run("exit 3", client);
        receive_stream(server, 27, 24 << 20, 1 << 20);
    });
    send_stream(client, 27, 24 << 20, 24 << 20);
    let _ = thread.join();
    close(client);
    await_hangup(server);
    recv(server, 8, 0);
}
