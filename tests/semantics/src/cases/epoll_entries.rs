//! The entries of an epoll set: errors, coming and going, connections that are not connected yet, listeners.

use crate::case::axes::{FAMILY, ONCE, TRIGGER};
use crate::case::{Case, Group};
use crate::child::bad_fd;
use crate::trace;
use crate::traced::*;
use crate::variant::Variant;
use beeline_testkit::sys::{self, EpollCall};

pub const GROUP: Group = Group {
    name: "epoll_entries",
    cases: &[
        Case::new("control_errors", FAMILY, control_errors),
        Case::new("wait_errors", ONCE, wait_errors),
        Case::new("wait_unmapped_events", ONCE, wait_unmapped_events),
        Case::new("descriptors_that_cannot_be_added", ONCE, descriptors_that_cannot_be_added),
        Case::new("added_before_connect", FAMILY | TRIGGER, added_before_connect),
        Case::new("added_before_nonblocking_connect", FAMILY | TRIGGER, added_before_nonblocking_connect),
        Case::new("added_before_refused_connect", FAMILY | TRIGGER, added_before_refused_connect).on_any_path(),
        Case::new("added_when_readable", FAMILY | TRIGGER, added_when_readable),
        Case::new("modified_when_ready", FAMILY | TRIGGER, modified_when_ready),
        Case::new("deleted_when_ready", FAMILY | TRIGGER, deleted_when_ready),
        Case::new("closing_removes", FAMILY | TRIGGER, closing_removes),
        Case::new("closing_one_duplicate_keeps", FAMILY | TRIGGER, closing_one_duplicate_keeps),
        Case::new("duplicate_in_the_same_set", FAMILY | TRIGGER, duplicate_in_the_same_set),
        Case::new("number_reused_after_close", FAMILY | TRIGGER, number_reused_after_close),
        Case::new("dup2_over_an_entry", FAMILY | TRIGGER, dup2_over_an_entry),
        Case::new("listener_level", FAMILY, listener_level),
        Case::new("listener_edge", FAMILY, listener_edge),
        Case::new("listener_oneshot", FAMILY, listener_oneshot),
        Case::new("listener_added_before_listen", FAMILY, listener_added_before_listen).on_any_path(),
        Case::new("write_interest_toggled", FAMILY, write_interest_toggled),
        Case::new("data_survives_mod", ONCE, data_survives_mod),
    ],
};

const IN: i32 = libc::EPOLLIN;
const OUT: i32 = libc::EPOLLOUT;
const RDHUP: i32 = libc::EPOLLRDHUP;
const ET: i32 = libc::EPOLLET;
const ONESHOT: i32 = libc::EPOLLONESHOT;

fn trigger(v: Variant) -> i32 {
    if v.edge { ET } else { 0 }
}

fn control_errors(v: Variant) {
    let (client, server) = v.pair();
    let set = epoll_create("set");
    epoll_add(set, client, IN);
    epoll_add(set, client, OUT);
    epoll_mod(set, server, IN);
    epoll_del(set, server);
    epoll_add(set, bad_fd(), IN);
    epoll_mod(set, bad_fd(), IN);
    epoll_del(set, bad_fd());
    epoll_add(bad_fd(), client, IN);
    epoll_add(client, server, IN);
    epoll_add(set, set, IN);
    trace!("unknown operation: {}", sys::epoll_ctl(set.raw, 77, client.raw, 0, 0));
    trace!("add without event: {}", sys::epoll_ctl_null(set.raw, libc::EPOLL_CTL_ADD, server.raw));
    trace!("mod without event: {}", sys::epoll_ctl_null(set.raw, libc::EPOLL_CTL_MOD, client.raw));
    trace!("del without event: {}", sys::epoll_ctl_null(set.raw, libc::EPOLL_CTL_DEL, client.raw));
    epoll_del(set, client);
    epoll_add(set, client, IN);
    epoll_mod(set, client, IN | libc::EPOLLEXCLUSIVE);
    epoll_add(set, server, IN | libc::EPOLLEXCLUSIVE | ONESHOT);
    epoll_add(set, server, IN | libc::EPOLLEXCLUSIVE);
    epoll_mod(set, server, IN);
}

fn wait_errors(v: Variant) {
    let (client, _server) = v.pair();
    let set = epoll_create("set");
    epoll_add(set, client, OUT);
    epoll_wait(set, 0, 0);
    epoll_wait(set, -1, 0);
    epoll_wait(bad_fd(), 1, 0);
    epoll_wait(client, 1, 0);
    trace!("null: {}", sys::epoll_wait_at(set.raw, 0, 4, 0));
    trace!("huge room: {}", sys::epoll_wait_at(set.raw, 0x10, i32::MAX, 0));
    epoll_wait(set, 4, 0);
    trace!("create1 with odd flags: {}", sys::epoll_create1(1));
}

fn wait_unmapped_events(v: Variant) {
    let (client, _server) = v.pair();
    let set = epoll_create("set");
    epoll_add(set, client, OUT);
    trace!("unmapped: {}", sys::epoll_wait_at(set.raw, 0x10, 4, 0));
    epoll_wait(set, 4, 0);
}

fn descriptors_that_cannot_be_added(_: Variant) {
    let set = epoll_create("set");
    let file = std::fs::File::open("/proc/self/exe");
    if let Ok(file) = &file {
        epoll_add(set, Fd::new(std::os::fd::AsRawFd::as_raw_fd(file), "file"), IN);
    }
    let (_, ends) = sys::pipe2(0);
    epoll_add(set, Fd::new(ends[0], "reader"), IN);
    epoll_wait(set, 4, 0);
}

fn added_before_connect(v: Variant) {
    let listener = v.listener();
    let client = v.client();
    let set = epoll_create("set");
    epoll_add(set, client, IN | OUT | RDHUP | trigger(v));
    epoll_wait(set, 4, 0);
    epoll_wait(set, 4, 0);
    connect(client, &v.address_of(listener));
    epoll_wait(set, 4, -1);
    let server = accept(listener, "server");
    trace::write_note(format_args!("pair"));
    send(server, b"hello", 0);
    await_queued(client, 5);
    epoll_wait(set, 4, -1);
    recv(client, 16, 0);
    epoll_wait(set, 4, 0);
    epoll_mod(set, client, IN | trigger(v));
    epoll_wait(set, 4, 0);
    close(server);
    await_hangup(client);
    epoll_wait(set, 4, -1);
    epoll_del(set, client);
    epoll_wait(set, 4, 0);
}

fn added_before_nonblocking_connect(v: Variant) {
    let listener = v.listener();
    let client = v.client();
    sys::set_nonblocking(client.raw, true);
    let set = epoll_create("set");
    epoll_add(set, client, IN | OUT | trigger(v));
    epoll_wait(set, 4, 0);
    connect(client, &v.address_of(listener));
    await_writable(client);
    epoll_wait(set, 4, -1);
    so_error(client);
    epoll_wait(set, 4, 0);
    let server = accept(listener, "server");
    trace::write_note(format_args!("pair"));
    send(server, b"hello", 0);
    await_queued(client, 5);
    epoll_wait(set, 4, -1);
}

fn added_before_refused_connect(v: Variant) {
    let vacant = v.bound();
    let client = v.client();
    sys::set_nonblocking(client.raw, true);
    let set = epoll_create("set");
    epoll_add(set, client, IN | OUT | trigger(v));
    epoll_wait(set, 4, 0);
    connect(client, &v.address_of(vacant));
    await_events(client, libc::POLLERR);
    epoll_wait(set, 4, -1);
    so_error(client);
    epoll_wait(set, 4, 0);
}

fn added_when_readable(v: Variant) {
    let (client, server) = v.pair();
    send(client, b"x", 0);
    await_queued(server, 1);
    let set = epoll_create("set");
    epoll_add(set, server, IN | trigger(v));
    epoll_wait(set, 4, -1);
    epoll_wait(set, 4, 0);
}

fn modified_when_ready(v: Variant) {
    let (client, server) = v.pair();
    let set = epoll_create("set");
    epoll_add(set, server, trigger(v));
    send(client, b"x", 0);
    await_queued(server, 1);
    epoll_wait(set, 4, 0);
    epoll_mod(set, server, IN | trigger(v));
    epoll_wait(set, 4, -1);
    epoll_mod(set, server, OUT | trigger(v));
    epoll_wait(set, 4, -1);
    epoll_mod(set, server, trigger(v));
    epoll_wait(set, 4, 0);
}

fn deleted_when_ready(v: Variant) {
    let (client, server) = v.pair();
    let set = epoll_create("set");
    epoll_add(set, server, IN | trigger(v));
    send(client, b"x", 0);
    await_queued(server, 1);
    epoll_del(set, server);
    epoll_wait(set, 4, 0);
    epoll_add(set, server, IN | trigger(v));
    epoll_wait(set, 4, -1);
    epoll_del(set, server);
    epoll_wait(set, 4, 0);
}

fn closing_removes(v: Variant) {
    let (client, server) = v.pair();
    let set = epoll_create("set");
    epoll_add(set, server, IN | OUT | trigger(v));
    epoll_wait(set, 4, -1);
    send(client, b"x", 0);
    await_queued(server, 1);
    close(server);
    epoll_wait(set, 4, 0);
    epoll_mod(set, server, IN);
    epoll_del(set, server);
}

fn closing_one_duplicate_keeps(v: Variant) {
    let (client, server) = v.pair();
    let set = epoll_create("set");
    epoll_add(set, server, IN | trigger(v));
    let twin = dup(server, "twin");
    close(server);
    send(client, b"x", 0);
    await_queued(twin, 1);
    epoll_wait(set, 4, -1);
    epoll_mod(set, server, IN);
    epoll_add(set, twin, IN | trigger(v));
    epoll_wait(set, 4, -1);
    close(twin);
    epoll_wait(set, 4, 0);
}

fn duplicate_in_the_same_set(v: Variant) {
    let (client, server) = v.pair();
    let twin = dup(server, "twin");
    let set = epoll_create("set");
    epoll_add(set, server, IN | trigger(v));
    epoll_add(set, twin, IN | OUT | trigger(v));
    epoll_wait(set, 4, -1);
    send(client, b"x", 0);
    await_queued(server, 1);
    epoll_wait(set, 4, -1);
    epoll_wait(set, 4, 0);
    recv(twin, 8, 0);
    epoll_wait(set, 4, 0);
    epoll_del(set, server);
    send(client, b"y", 0);
    await_queued(twin, 1);
    epoll_wait(set, 4, -1);
}

fn number_reused_after_close(v: Variant) {
    let listener = v.listener();
    let (client, server) = v.pair_on(listener);
    let set = epoll_create("set");
    epoll_add(set, server, IN | trigger(v));
    send(client, b"x", 0);
    await_queued(server, 1);
    close(server);
    let (second_client, second) = v.blocking_pair_on(listener, "client2", "second");
    trace!("{}", second_client.raw == server.raw || second.raw == server.raw);
    epoll_wait(set, 4, 0);
    epoll_add(set, second, IN | trigger(v));
    epoll_wait(set, 4, 0);
    send(second_client, b"z", 0);
    await_queued(second, 1);
    epoll_wait(set, 4, -1);
}

fn dup2_over_an_entry(v: Variant) {
    let listener = v.listener();
    let (client, server) = v.pair_on(listener);
    let (_client2, second) = v.blocking_pair_on(listener, "client2", "second");
    let set = epoll_create("set");
    epoll_add(set, server, IN | OUT | trigger(v));
    epoll_wait(set, 4, -1);
    let ret = sys::dup2(second.raw, server.raw);
    trace!("dup2 took the number: {}", ret.value == i64::from(server.raw));
    await_hangup(client);
    epoll_wait(set, 4, 0);
    epoll_mod(set, server, IN);
    epoll_add(set, server, IN | OUT | trigger(v));
    epoll_wait(set, 4, -1);
}

fn listener_level(v: Variant) {
    let listener = v.listener();
    let set = epoll_create("set");
    epoll_add(set, listener, IN);
    epoll_wait(set, 4, 0);
    for name in ["one", "two"] {
        connect(v.named_client(name), &v.address_of(listener));
    }
    await_readable(listener);
    epoll_wait(set, 4, -1);
    accept(listener, "first");
    await_readable(listener);
    epoll_wait(set, 4, -1);
    accept(listener, "second");
    epoll_wait(set, 4, 0);
}

fn listener_edge(v: Variant) {
    let listener = v.listener();
    let set = epoll_create("set");
    epoll_add(set, listener, IN | ET);
    epoll_wait(set, 4, 0);
    connect(v.named_client("one"), &v.address_of(listener));
    await_readable(listener);
    epoll_wait(set, 4, -1);
    epoll_wait(set, 4, 0);
    connect(v.named_client("two"), &v.address_of(listener));
    // The second arrival is an edge as well, though the first was not taken.
    epoll_wait(set, 4, -1);
    epoll_wait(set, 4, 0);
    accept(listener, "first");
    accept(listener, "second");
    epoll_wait(set, 4, 0);
    connect(v.named_client("three"), &v.address_of(listener));
    epoll_wait(set, 4, -1);
    accept(listener, "third");
}

fn listener_oneshot(v: Variant) {
    let listener = v.listener();
    let set = epoll_create("set");
    epoll_add(set, listener, IN | ONESHOT);
    connect(v.named_client("one"), &v.address_of(listener));
    await_readable(listener);
    epoll_wait(set, 4, -1);
    epoll_wait(set, 4, 0);
    connect(v.named_client("two"), &v.address_of(listener));
    epoll_wait(set, 4, 0);
    epoll_mod(set, listener, IN | ONESHOT);
    epoll_wait(set, 4, -1);
    epoll_wait(set, 4, 0);
    accept(listener, "first");
    accept(listener, "second");
}

fn listener_added_before_listen(v: Variant) {
    let listener = v.bound();
    let set = epoll_create("set");
    epoll_add(set, listener, IN);
    epoll_wait(set, 4, 0);
    listen(listener, 8);
    epoll_wait(set, 4, 0);
    connect(v.client(), &v.address_of(listener));
    epoll_wait(set, 4, -1);
    accept(listener, "server");
    epoll_wait(set, 4, 0);
}

fn write_interest_toggled(v: Variant) {
    let (client, server) = v.pair();
    let set = epoll_create("set");
    epoll_add(set, client, IN);
    for _ in 0..3 {
        epoll_wait(set, 4, 0);
        epoll_mod(set, client, IN | OUT);
        epoll_wait(set, 4, -1);
        epoll_mod(set, client, IN);
    }
    send(server, b"x", 0);
    await_queued(client, 1);
    epoll_wait(set, 4, -1);
}

fn data_survives_mod(v: Variant) {
    let (client, _server) = v.pair();
    let set = epoll_create("set");
    for data in [0, 1, u64::MAX, 1 << 63] {
        sys::epoll_ctl(set.raw, libc::EPOLL_CTL_ADD, client.raw, OUT as u32, 7);
        sys::epoll_ctl(set.raw, libc::EPOLL_CTL_MOD, client.raw, OUT as u32, data);
        let (_, events) = sys::epoll_wait(EpollCall::Wait, set.raw, 4, 0, None);
        trace!("{:?}", events.iter().map(|event| event.u64).collect::<Vec<_>>());
    }
}
