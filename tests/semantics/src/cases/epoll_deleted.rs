//! Members that were deleted from an epoll set, or are asked for less than before: whatever happens to their
//! connections, to their numbers and to the set, nobody hears of it, and who adds them again finds everything as it is.
//!
//! Beeline may leave such members in the kernel's set for a while, so each case has a doorbell on its way: the member
//! was waited for before, in vain.

mod closed;

use crate::case::axes::{ONCE, TRIGGER};
use crate::case::{Case, Group};
use crate::traced::*;
use crate::variant::Variant;
use crate::{child, trace};
use beeline_testkit::sys::{self, EpollCall};

pub const GROUP: Group = Group {
    name: "epoll_deleted",
    cases: &[
        Case::new("data_comes", TRIGGER, data_comes),
        Case::new("end_comes", TRIGGER, end_comes),
        Case::new("reset_comes", TRIGGER, reset_comes),
        Case::new("nothing_asked_data_comes", TRIGGER, nothing_asked_data_comes),
        Case::new("nothing_asked_end_comes", TRIGGER, nothing_asked_end_comes),
        Case::new("room_then_data_by_turns", TRIGGER, room_then_data_by_turns),
        Case::new("waiting_costs_nothing", TRIGGER, waiting_costs_nothing),
        Case::new("errors", TRIGGER, errors),
        Case::new("data_of_the_event_changes", ONCE, data_of_the_event_changes),
        Case::new("data_of_the_event_is_another_members", ONCE, data_of_the_event_is_another_members),
        Case::new("data_of_the_event_is_taken_by_a_pipe", ONCE, data_of_the_event_is_taken_by_a_pipe),
        Case::new("trigger_changes", ONCE, trigger_changes),
        Case::new("oneshot_again", TRIGGER, oneshot_again),
        Case::new("a_pipe_has_its_turn", ONCE, a_pipe_has_its_turn),
        Case::new("while_another_thread_waits", TRIGGER, while_another_thread_waits),
        Case::new("closed", TRIGGER, closed::closed),
        Case::new("closed_and_a_duplicate_stays", TRIGGER, closed::closed_and_a_duplicate_stays),
        Case::new("closed_by_a_stream_and_a_duplicate_stays", ONCE, closed::closed_by_a_stream_and_a_duplicate_stays),
        Case::new("number_leads_elsewhere", TRIGGER, closed::number_leads_elsewhere),
        Case::new("closed_and_a_child_has_it", TRIGGER, closed::closed_and_a_child_has_it),
        Case::new("closed_after_a_fork", TRIGGER, closed::closed_after_a_fork),
        Case::new("a_child_waits_on_the_set", TRIGGER, closed::a_child_waits_on_the_set),
        Case::new("the_set_is_duplicated", TRIGGER, the_set_is_duplicated),
        Case::new("the_set_is_duplicated_and_bytes_were_there", TRIGGER, the_set_is_duplicated_and_bytes_were_there),
        Case::new("the_set_is_polled", TRIGGER, the_set_is_polled),
        Case::new("the_set_is_a_member", TRIGGER, the_set_is_a_member),
        Case::new("the_set_is_sent", ONCE, the_set_is_sent),
        Case::new("the_set_is_to_survive_exec", ONCE, the_set_is_to_survive_exec),
        Case::new("the_set_was_to_survive_exec", ONCE, the_set_was_to_survive_exec),
        Case::new("the_next_shot_by_a_duplicate", ONCE, |v| the_next_shot_unseen(v, true)),
        Case::new("the_next_shot_in_the_next_program", ONCE, |v| the_next_shot_unseen(v, false)).deviates(
            "a set that is kept over execve(2) does not tell the next program of bytes that this one was told of and did not read",
        ),
    ],
};

const IN: i32 = libc::EPOLLIN;
const OUT: i32 = libc::EPOLLOUT;
const ET: i32 = libc::EPOLLET;
const ONESHOT: i32 = libc::EPOLLONESHOT;
/// Long enough for a thread to fall asleep.
const A_WHILE: i32 = 20;

fn trigger(v: Variant) -> i32 {
    if v.edge { ET } else { 0 }
}

fn say(client: Fd, server: Fd, text: &str) {
    let before = queued(server);
    send(client, text.as_bytes(), 0);
    await_queued(server, before + text.len() as i32);
}

/// A set in which `server` is waited for in vain.
fn waited_for(server: Fd, v: Variant) -> Fd {
    let set = epoll_create("set");
    epoll_add(set, server, IN | trigger(v));
    epoll_wait(set, 4, A_WHILE);
    set
}

/// What the kernel says of a set, in a call that no library sees, as in a program that has none.
fn kernel_says(set: Fd) {
    trace!("the kernel says of {}: {}", set.name, sys::epoll_wait_unseen(set.raw, 4));
}

/// A set from which `server` was deleted after it had been waited for in vain.
fn deleted_from(server: Fd, v: Variant) -> Fd {
    let set = waited_for(server, v);
    epoll_del(set, server);
    set
}

fn data_comes(v: Variant) {
    let (client, server) = v.pair();
    let set = deleted_from(server, v);
    say(client, server, "x");
    epoll_wait(set, 4, 0);
    epoll_wait(set, 4, A_WHILE);
    epoll_add(set, server, IN | trigger(v));
    epoll_wait(set, 4, -1);
    recv(server, 8, 0);
    epoll_wait(set, 4, A_WHILE);
    say(client, server, "y");
    epoll_wait(set, 4, -1);
}

fn end_comes(v: Variant) {
    let (client, server) = v.pair();
    let set = deleted_from(server, v);
    close(client);
    await_hangup(server);
    epoll_wait(set, 4, A_WHILE);
    epoll_add(set, server, IN | trigger(v));
    epoll_wait(set, 4, -1);
    epoll_del(set, server);
    epoll_wait(set, 4, A_WHILE);
}

fn reset_comes(v: Variant) {
    let (client, server) = v.pair();
    let set = deleted_from(server, v);
    set_linger(client, 1, 0);
    close(client);
    await_events(server, libc::POLLERR);
    epoll_wait(set, 4, A_WHILE);
    epoll_add(set, server, OUT | trigger(v));
    epoll_wait(set, 4, -1);
}

fn nothing_asked_data_comes(v: Variant) {
    let (client, server) = v.pair();
    let set = waited_for(server, v);
    epoll_mod(set, server, trigger(v));
    say(client, server, "x");
    epoll_wait(set, 4, A_WHILE);
    epoll_wait(set, 4, A_WHILE);
    epoll_mod(set, server, IN | trigger(v));
    epoll_wait(set, 4, -1);
}

fn nothing_asked_end_comes(v: Variant) {
    let (client, server) = v.pair();
    let set = waited_for(server, v);
    epoll_mod(set, server, trigger(v));
    shutdown(client, libc::SHUT_WR);
    await_hangup(server);
    epoll_wait(set, 4, A_WHILE);
    shutdown(server, libc::SHUT_WR);
    epoll_wait(set, 4, -1);
}

/// What redis-benchmark does.
fn room_then_data_by_turns(v: Variant) {
    let (client, server) = v.pair();
    let set = epoll_create("set");
    for round in 0..6 {
        epoll_add(set, client, OUT | trigger(v));
        epoll_wait(set, 4, -1);
        send(client, b"question", 0);
        epoll_del(set, client);
        epoll_add(set, client, IN | trigger(v));
        await_queued(server, 8);
        recv(server, 8, 0);
        if round % 2 == 0 {
            epoll_wait(set, 4, A_WHILE);
        }
        send(server, b"answer", 0);
        epoll_wait(set, 4, -1);
        recv(client, 8, 0);
        epoll_mod(set, client, IN | trigger(v));
        epoll_del(set, client);
    }
    epoll_wait(set, 4, A_WHILE);
    close(server);
    epoll_wait(set, 4, A_WHILE);
}

/// Waits in vain for a time of which the thread is to sleep the most.
fn sleep_on(set: Fd) {
    let before = sys::thread_cpu_ms();
    epoll_wait(set, 4, 10 * A_WHILE);
    trace!("slept: {}", sys::thread_cpu_ms() - before < i64::from(5 * A_WHILE));
}

fn waiting_costs_nothing(v: Variant) {
    let (client, server) = v.pair();
    let set = waited_for(server, v);
    epoll_mod(set, server, trigger(v));
    say(client, server, "x");
    sleep_on(set);
    recv(server, 8, 0);
    epoll_mod(set, server, IN | trigger(v));
    epoll_wait(set, 4, A_WHILE);
    epoll_del(set, server);
    say(client, server, "y");
    sleep_on(set);
    recv(server, 8, 0);
    epoll_add(set, server, IN | trigger(v));
    epoll_wait(set, 4, A_WHILE);
    epoll_del(set, server);
    close(client);
    await_hangup(server);
    sleep_on(set);
}

fn errors(v: Variant) {
    let (_client, server) = v.pair();
    let set = deleted_from(server, v);
    epoll_del(set, server);
    epoll_mod(set, server, IN);
    epoll_add(set, server, IN | trigger(v));
    epoll_add(set, server, IN | trigger(v));
    epoll_del(set, server);
    trace!("add without event: {}", sys::epoll_ctl_null(set.raw, libc::EPOLL_CTL_ADD, server.raw));
    epoll_add(set, server, IN | ONESHOT | libc::EPOLLEXCLUSIVE);
    epoll_add(set, server, IN | libc::EPOLLEXCLUSIVE);
    epoll_mod(set, server, IN);
    epoll_del(set, server);
    close(server);
    epoll_del(set, server);
    epoll_mod(set, server, IN);
    epoll_add(set, server, IN);
}

fn by_data(set: Fd, timeout_ms: i32) {
    let (_, events) = sys::epoll_wait(EpollCall::Wait, set.raw, 4, timeout_ms, None);
    trace!("{:?}", events.iter().map(|event| (event.u64, event.events)).collect::<Vec<_>>());
}

fn data_of_the_event_changes(v: Variant) {
    let (client, server) = v.pair();
    let set = epoll_create("set");
    for data in [1, 2, 2, u64::MAX] {
        sys::epoll_ctl(set.raw, libc::EPOLL_CTL_ADD, server.raw, IN as u32, data);
        by_data(set, A_WHILE);
        say(client, server, "x");
        by_data(set, -1);
        recv(server, 8, 0);
        by_data(set, A_WHILE);
        epoll_del(set, server);
    }
    say(client, server, "x");
    by_data(set, A_WHILE);
}

fn data_of_the_event_is_another_members(v: Variant) {
    let listener = v.listener();
    let (client, server) = v.pair_on(listener);
    let (second_client, second) = v.blocking_pair_on(listener, "client2", "second");
    let set = epoll_create("set");
    sys::epoll_ctl(set.raw, libc::EPOLL_CTL_ADD, server.raw, IN as u32, 7);
    sys::epoll_ctl(set.raw, libc::EPOLL_CTL_ADD, second.raw, IN as u32, 7);
    by_data(set, A_WHILE);
    epoll_del(set, server);
    say(client, server, "x");
    by_data(set, A_WHILE);
    say(second_client, second, "y");
    by_data(set, -1);
    recv(second, 8, 0);
    by_data(set, A_WHILE);
}

/// Programs that use addresses as data use them again.
fn data_of_the_event_is_taken_by_a_pipe(v: Variant) {
    let listener = v.listener();
    let (_, ends) = sys::pipe2(0);
    for (taker, events) in [(ends[0], IN), (ends[0], IN | ET), (ends[0], 0), (ends[1], ET), (ends[0], IN | ONESHOT)] {
        let (client, server) = v.pair_on(listener);
        let set = epoll_create("set");
        sys::epoll_ctl(set.raw, libc::EPOLL_CTL_ADD, server.raw, 0, 7);
        by_data(set, A_WHILE);
        epoll_del(set, server);
        sys::epoll_ctl(set.raw, libc::EPOLL_CTL_ADD, taker, events as u32, 7);
        by_data(set, 0);
        send(client, b"x", 0);
        close(client);
        await_hangup(server);
        by_data(set, 0);
        by_data(set, A_WHILE);
        close(server);
        by_data(set, A_WHILE);
        close(set);
    }
}

fn trigger_changes(v: Variant) {
    let (client, server) = v.pair();
    let set = deleted_from(server, v);
    for events in [IN | ET, IN, IN | ONESHOT, IN | ET | ONESHOT, IN] {
        epoll_add(set, server, events);
        epoll_wait(set, 4, A_WHILE);
        say(client, server, "x");
        epoll_wait(set, 4, -1);
        epoll_wait(set, 4, 0);
        recv(server, 1, 0);
        epoll_del(set, server);
    }
}

fn oneshot_again(v: Variant) {
    let (client, server) = v.pair();
    let set = epoll_create("set");
    epoll_add(set, server, IN | ONESHOT | trigger(v));
    for asleep in [true, false, true] {
        epoll_wait(set, 4, if asleep { A_WHILE } else { 0 });
        say(client, server, "x");
        epoll_wait(set, 4, -1);
        say(client, server, "y");
        epoll_wait(set, 4, A_WHILE);
        recv(server, 8, 0);
        epoll_mod(set, server, IN | ONESHOT | trigger(v));
    }
    epoll_del(set, server);
    say(client, server, "z");
    epoll_wait(set, 4, A_WHILE);
}

/// With room for one event, what is deleted does not take the place of what is there.
fn a_pipe_has_its_turn(v: Variant) {
    let listener = v.listener();
    let set = epoll_create("set");
    let (_, ends) = sys::pipe2(0);
    epoll_add(set, Fd::new(ends[0], "pipe"), IN);
    for _ in 0..3 {
        let (client, server) = v.blocking_pair_on(listener, "client", "server");
        epoll_add(set, server, IN);
        epoll_wait(set, 4, A_WHILE);
        epoll_del(set, server);
        say(client, server, "x");
    }
    sys::write(ends[1], b"x");
    epoll_wait(set, 1, 0);
}

fn while_another_thread_waits(v: Variant) {
    let (client, server) = v.pair();
    let set = epoll_create("set");
    epoll_add(set, server, IN | trigger(v));
    let (tell, told) = std::sync::mpsc::channel();
    let waiter = std::thread::spawn(move || {
        let _ = tell.send(sys::thread_id());
        trace::set_actor("thread");
        epoll_wait(set, 4, -1);
    });
    let thread = told.recv().unwrap_or(0);
    await_asleep(thread);
    epoll_del(set, server);
    say(client, server, "x");
    await_asleep(thread);
    recv(server, 8, 0);
    epoll_add(set, server, IN | trigger(v));
    await_asleep(thread);
    say(client, server, "y");
    let _ = waiter.join();
}

fn the_set_is_duplicated(v: Variant) {
    let (client, server) = v.pair();
    let set = deleted_from(server, v);
    let twin = dup(set, "twin");
    say(client, server, "x");
    kernel_says(twin);
    epoll_wait(twin, 4, A_WHILE);
    epoll_add(twin, server, IN | trigger(v));
    epoll_del(set, server);
    kernel_says(set);
}

fn the_set_is_duplicated_and_bytes_were_there(v: Variant) {
    let listener = v.listener();
    for asked in [false, true] {
        let client = v.client();
        connect(client, &v.address_of(listener));
        send(client, b"x", 0);
        let server = accept(listener, "server");
        await_queued(server, 1);
        let set = epoll_create("set");
        let twin = dup(set, "twin");
        epoll_add(twin, server, IN | trigger(v));
        if asked {
            kernel_says(twin);
        }
        epoll_del(set, server);
        kernel_says(set);
        epoll_add(set, server, IN | trigger(v));
        close(server);
        kernel_says(twin);
        close(client);
    }
}

/// A member of which only the kernel knows anything: it has nothing to tell.
fn add_a_pipe(set: Fd) {
    let (_, ends) = sys::pipe2(0);
    epoll_add(set, Fd::new(ends[0], "pipe"), IN);
}

fn the_set_is_polled(v: Variant) {
    let (client, server) = v.pair();
    let set = deleted_from(server, v);
    add_a_pipe(set);
    say(client, server, "x");
    poll(&[(set, libc::POLLIN)], 0);
    kernel_says(set);
    poll(&[(set, libc::POLLIN)], A_WHILE);
    select(&[set], &[], &[], 0);
    recv(server, 8, 0);
    epoll_add(set, server, IN | trigger(v));
    epoll_wait(set, 4, A_WHILE);
    epoll_del(set, server);
    say(client, server, "y");
    poll(&[(set, libc::POLLIN)], A_WHILE);
    kernel_says(set);
}

fn the_set_is_a_member(v: Variant) {
    let (client, server) = v.pair();
    let inner = deleted_from(server, v);
    add_a_pipe(inner);
    let outer = epoll_create("outer");
    epoll_add(outer, inner, IN | trigger(v));
    say(client, server, "x");
    epoll_wait(outer, 4, A_WHILE);
    kernel_says(inner);
    recv(server, 8, 0);
    epoll_add(inner, server, IN | trigger(v));
    epoll_wait(outer, 4, A_WHILE);
    epoll_del(inner, server);
    say(client, server, "y");
    epoll_wait(outer, 4, A_WHILE);
    kernel_says(inner);
}

fn the_set_is_sent(v: Variant) {
    let (client, server) = v.pair();
    let set = deleted_from(server, v);
    let (_, ends) = sys::socketpair(libc::SOCK_STREAM);
    let sent = sys::sendmsg_with_control(ends[0], b"s", libc::SOL_SOCKET, libc::SCM_RIGHTS, set.raw);
    trace!("sent: {sent}");
    say(client, server, "x");
    kernel_says(set);
    epoll_wait(set, 4, A_WHILE);
    epoll_add(set, server, IN);
    epoll_wait(set, 4, -1);
    epoll_del(set, server);
    kernel_says(set);
}

fn the_set_is_to_survive_exec(v: Variant) {
    let (client, server) = v.pair();
    for by_fcntl in [true, false] {
        let set = deleted_from(server, v);
        if by_fcntl {
            fcntl(set, libc::F_SETFD, "F_SETFD", 0);
        } else {
            trace!("FIONCLEX: {}", sys::ioctl(set.raw, libc::FIONCLEX, &mut 0));
        }
        say(client, server, "x");
        kernel_says(set);
        recv(server, 8, 0);
        epoll_add(set, server, IN);
        epoll_wait(set, 4, A_WHILE);
        epoll_del(set, server);
        say(client, server, "y");
        kernel_says(set);
        recv(server, 8, 0);
    }
}

fn the_set_was_to_survive_exec(v: Variant) {
    let (client, server) = v.pair();
    let set = Fd::new(sys::epoll_create1(0).value as i32, "set");
    for _ in 0..2 {
        epoll_add(set, server, IN);
        epoll_wait(set, 4, A_WHILE);
        epoll_del(set, server);
        say(client, server, "x");
        epoll_wait(set, 4, A_WHILE);
        recv(server, 8, 0);
        kernel_says(set);
        fcntl(set, libc::F_SETFD, "F_SETFD", libc::FD_CLOEXEC);
    }
    epoll_add(set, child::bad_fd(), IN);
}

/// The bytes are unread when a program without the library, as this one may become, asks again to be told of them.
fn the_next_shot_unseen(v: Variant, is_duplicated: bool) {
    let (client, server) = v.pair();
    let set = Fd::new(sys::epoll_create1(if is_duplicated { libc::EPOLL_CLOEXEC } else { 0 }).value as i32, "set");
    let survives = if is_duplicated { dup(set, "survives") } else { set };
    epoll_add(set, server, IN | libc::EPOLLONESHOT);
    say(client, server, "x");
    epoll_wait(set, 4, -1);
    trace!("modified unseen: {}", sys::epoll_mod_unseen(survives.raw, server.raw, IN | libc::EPOLLONESHOT));
    kernel_says(survives);
}
