//! Connections on which a set's only thread has slept many times: their bells are not taken out any more. Whatever
//! becomes of the set or the connection then, each is told what the kernel tells.

use super::super::cancel::{asleep_in, cancel};
use super::{ET, IN, OUT, say, trigger};
use crate::trace;
use crate::traced::*;
use crate::variant::Variant;
use beeline_testkit::sys::{self, EpollCall};

const ONESHOT: i32 = libc::EPOLLONESHOT;
/// More sleeps than it takes.
const SLEEPS: usize = 12;
/// More than a socket holds bells.
const MANY: usize = 320;

/// Sleeps on the set until a byte comes, and takes it. How many events that were.
fn sleep_once(set: Fd, client: Fd, server: Fd) -> i64 {
    let sender = once_asleep("sender", move || {
        sys::send(client.raw, b"x", 0);
    });
    let told = sys::epoll_wait(EpollCall::Wait, set.raw, 4, 5_000, None).0.value;
    let _ = sender.join();
    await_queued(server, 1);
    sys::recv(server.raw, &mut [0], 0);
    told
}

fn sleep_upon(set: Fd, client: Fd, server: Fd) {
    for _ in 0..SLEEPS {
        sleep_once(set, client, server);
    }
}

/// A connection in a set that has been slept upon.
fn slept_upon(v: Variant) -> (Fd, Fd, Fd) {
    let (client, server) = v.pair();
    let set = epoll_create("set");
    epoll_add(set, server, IN | trigger(v));
    sleep_upon(set, client, server);
    (client, server, set)
}

pub(super) fn told_again(v: Variant) {
    let (client, server, set) = slept_upon(v);
    epoll_wait(set, 4, 0);
    say(client, server, "ab");
    epoll_wait(set, 4, -1);
    epoll_wait(set, 4, 0);
    recv(server, 1, 0);
    epoll_wait(set, 4, 0);
    say(client, server, "c");
    epoll_wait(set, 4, -1);
    recv(server, 8, 0);
    epoll_wait(set, 4, 0);
    shutdown(client, libc::SHUT_WR);
    await_hangup(server);
    epoll_wait(set, 4, -1);
    epoll_wait(set, 4, 0);
    recv(server, 8, 0);
    close(client);
}

pub(super) fn reset_or_closed(v: Variant) {
    for linger in [true, false] {
        let (client, server, set) = slept_upon(v);
        if linger {
            set_linger(client, 1, 0);
        }
        close(client);
        await_hangup(server);
        epoll_wait(set, 4, -1);
        recv(server, 8, 0);
        close(server);
        close(set);
    }
}

/// Whoever of the two is woken first and reads nothing, the other one is told as well.
pub(super) fn by_two_threads(v: Variant) {
    let (client, server, set) = slept_upon(v);
    for who_sends_sleeps in [false, true] {
        let sleeper = std::thread::spawn(move || {
            trace::set_actor("thread");
            sys::epoll_wait(EpollCall::Wait, set.raw, 4, -1, None).0.value
        });
        if who_sends_sleeps {
            let sender = once_asleep("sender", move || {
                sys::send(client.raw, b"x", 0);
            });
            sys::epoll_wait(EpollCall::Wait, set.raw, 4, -1, None);
            let _ = sender.join();
        } else {
            say(client, server, "x");
            sys::epoll_wait(EpollCall::Wait, set.raw, 4, 1_000, None);
        }
        until("the other one is told, too", || sleeper.is_finished());
        trace!("told {}", sleeper.join().unwrap_or(-1));
    }
    epoll_wait(set, 4, -1);
    recv(server, 8, 0);
    epoll_wait(set, 4, 0);
}

pub(super) fn by_a_thread_that_is_cancelled(v: Variant) {
    let (client, server, set) = slept_upon(v);
    for text in ["a", "b"] {
        cancel(asleep_in(move || {
            sys::epoll_wait(EpollCall::Wait, set.raw, 4, -1, None);
        }));
        say(client, server, text);
        epoll_wait(set, 4, -1);
        recv(server, 8, 0);
    }
    sleep_upon(set, client, server);
    epoll_wait(set, 4, 0);
}

/// The child is told of a byte and leaves it, and by level its parent is told as well.
pub(super) fn by_a_child(v: Variant) {
    let (client, server, set) = slept_upon(v);
    for text in ["a", "b"] {
        let child = sys::fork(|| {
            trace::set_actor("child");
            epoll_wait(set, 4, -1);
            0
        });
        say(client, server, text);
        trace!("child: {}", sys::wait_for(child));
        epoll_wait(set, 4, -1);
        recv(server, 8, 0);
        epoll_wait(set, 4, 0);
        sleep_upon(set, client, server);
    }
}

pub(super) fn seen_from_outside(v: Variant) {
    let (client, server, set) = slept_upon(v);
    poll_now(set);
    let outer = epoll_create("outer");
    epoll_add(outer, set, IN);
    epoll_wait(outer, 4, 0);
    say(client, server, "a");
    epoll_wait(outer, 4, -1);
    epoll_wait(outer, 4, 0);
    poll_now(set);
    epoll_wait(set, 4, -1);
    recv(server, 8, 0);
    epoll_wait(set, 4, 0);
    epoll_wait(outer, 4, 0);
    poll_now(set);
}

pub(super) fn by_a_duplicate(v: Variant) {
    let (client, server, set) = slept_upon(v);
    let other = dup(set, "duplicate");
    epoll_wait(other, 4, 0);
    say(client, server, "a");
    epoll_wait(other, 4, -1);
    epoll_wait(set, 4, 0);
    recv(server, 8, 0);
    close(set);
    sleep_upon(other, client, server);
    epoll_wait(other, 4, 0);
}

pub(super) fn changed(v: Variant) {
    let (client, server, set) = slept_upon(v);
    epoll_mod(set, server, 0);
    say(client, server, "a");
    epoll_wait(set, 4, 0);
    epoll_mod(set, server, IN);
    epoll_wait(set, 4, -1);
    epoll_wait(set, 4, 0);
    recv(server, 8, 0);
    sleep_upon(set, client, server);
    epoll_mod(set, server, IN | ONESHOT);
    say(client, server, "b");
    epoll_wait(set, 4, -1);
    epoll_wait(set, 4, 0);
    epoll_mod(set, server, IN | ONESHOT);
    epoll_wait(set, 4, -1);
    recv(server, 8, 0);
    epoll_mod(set, server, IN | ET);
    sleep_upon(set, client, server);
    say(client, server, "c");
    epoll_wait(set, 4, -1);
    epoll_wait(set, 4, 0);
    epoll_mod(set, server, IN | OUT);
    epoll_wait(set, 4, -1);
    epoll_mod(set, server, IN);
    epoll_wait(set, 4, -1);
    recv(server, 8, 0);
    sleep_upon(set, client, server);
    epoll_del(set, server);
    say(client, server, "d");
    epoll_wait(set, 4, 0);
    epoll_add(set, server, IN);
    epoll_wait(set, 4, -1);
    recv(server, 8, 0);
    epoll_wait(set, 4, 0);
}

/// A pipe is told under the same data as the connection.
pub(super) fn beside_one_with_its_data(v: Variant) {
    let (client, server) = v.pair();
    let set = epoll_create("set");
    let (_, [reader, writer]) = sys::pipe2(0);
    for fd in [server.raw, reader] {
        sys::epoll_ctl(set.raw, libc::EPOLL_CTL_ADD, fd, (IN | trigger(v)) as u32, 7);
    }
    let told = |wait_ms| sys::epoll_wait(EpollCall::Wait, set.raw, 4, wait_ms, None).0.value;
    sleep_upon(set, client, server);
    trace!("nothing: {}", told(0));
    sys::write(writer, b"p");
    trace!("the pipe: {}", told(-1));
    sys::read(reader, &mut [0; 8]);
    trace!("nothing: {}", told(0));
    say(client, server, "a");
    trace!("the connection: {}", told(-1));
    sys::write(writer, b"p");
    trace!("both or the pipe: {}", told(-1));
    recv(server, 8, 0);
    sys::read(reader, &mut [0; 8]);
    trace!("nothing: {}", told(0));
    sleep_upon(set, client, server);
    trace!("nothing: {}", told(0));
}

/// Of a connection and something else with its data one is told where one has news.
pub(super) fn beside_a_quiet_one_with_its_data(v: Variant) {
    let v = Variant { nonblocking: true, ..v };
    let (client, server) = v.pair();
    let set = epoll_create("set");
    let (_, [reader, _writer]) = sys::pipe2(0);
    for fd in [server.raw, reader] {
        sys::epoll_ctl(set.raw, libc::EPOLL_CTL_ADD, fd, (IN | trigger(v)) as u32, 7);
    }
    let mut events = 0;
    for _ in 0..MANY {
        events += sleep_once(set, client, server);
    }
    trace!("{events} events");
}

/// More bells than a socket holds come of sleeps of which each is upon a member that was just added.
pub(super) fn added_for_each_message(v: Variant) {
    let (client, server) = v.pair();
    let set = epoll_create("set");
    let mut events = 0;
    for _ in 0..MANY {
        sys::epoll_ctl(set.raw, libc::EPOLL_CTL_ADD, server.raw, (IN | trigger(v)) as u32, 7);
        events += sleep_once(set, client, server);
        sys::epoll_ctl(set.raw, libc::EPOLL_CTL_DEL, server.raw, 0, 0);
    }
    trace!("{events} events");
}

/// As many come of sleeps by turns with sleeps for room alone.
pub(super) fn for_room_by_turns(v: Variant) {
    let v = Variant { nonblocking: true, ..v };
    let (client, server, set) = slept_upon(v);
    set_option(server, libc::SOL_SOCKET, libc::SO_SNDBUF, "SO_SNDBUF", 4096);
    let mut events = 0;
    let block = [0; 1 << 16];
    for _ in 0..MANY {
        events += sleep_once(set, client, server);
        while sys::send(server.raw, &block, 0).is_ok() {}
        sys::epoll_ctl(set.raw, libc::EPOLL_CTL_MOD, server.raw, OUT as u32, 7);
        let reader = once_asleep("reader", move || {
            let mut room = [0; 1 << 16];
            while sys::recv(client.raw, &mut room, 0).is_ok() {}
        });
        sys::epoll_wait(EpollCall::Wait, set.raw, 4, -1, None);
        let _ = reader.join();
        let mut room = [0; 1 << 16];
        while sys::recv(client.raw, &mut room, 0).is_ok() {}
        sys::epoll_ctl(set.raw, libc::EPOLL_CTL_MOD, server.raw, (IN | trigger(v)) as u32, 7);
    }
    trace!("{events} events");
}

/// The kernel tells of the file under the number that it had.
pub(super) fn under_a_number_that_is_closed(v: Variant) {
    let (client, server, set) = slept_upon(v);
    let other = dup(server, "duplicate");
    close(server);
    epoll_wait(set, 4, 0);
    say(client, other, "a");
    epoll_wait(set, 4, -1);
    epoll_wait(set, 4, 0);
    recv(other, 8, 0);
    epoll_wait(set, 4, 0);
    sleep_upon(set, client, other);
    epoll_wait(set, 4, 0);
    close(client);
    await_hangup(other);
    epoll_wait(set, 4, -1);
}

/// The ring becomes full beside bells that lie there, and the peer learns of room.
pub(super) fn full_and_read(v: Variant) {
    let v = Variant { nonblocking: true, ..v };
    let (client, server, set) = slept_upon(v);
    let other = epoll_create("client's");
    epoll_add(other, client, OUT);
    for seed in 1..3 {
        let length = fill_firmly(client, seed);
        epoll_wait(other, 4, 0);
        epoll_wait(set, 4, -1);
        let reader = once_asleep("reader", move || drain(server, seed, length));
        epoll_wait(other, 4, -1);
        let _ = reader.join();
        epoll_wait(set, 4, 0);
        sleep_upon(set, client, server);
    }
}
