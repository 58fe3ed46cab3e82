//! Connections of which halves are shut, or that are closed, and a thread that sleeps for what comes then.

use super::{ET, IN, ONESHOT, OUT, RDHUP, trigger};
use crate::cases::signals::{after_mask, pending_and_mask};
use crate::trace;
use crate::traced::*;
use crate::variant::Variant;
use beeline_testkit::sys::{self, EpollCall};
use std::thread::{JoinHandle, sleep, spawn};
use std::time::Duration;

/// `TCP_CLOSE_WAIT` of the kernel.
const HEARD_OF_THE_END: u8 = 8;
/// `TCP_FIN_WAIT2` of the kernel.
const HAS_ENDED: u8 = 5;
/// For whoever is woken in vain to sleep again, or for what is sent to arrive. What a case says depends on it only
/// where it is to fail.
const A_WHILE: Duration = Duration::from_millis(100);

/// Does `act` in another thread when this one sleeps.
fn when_asleep(act: impl FnOnce() + Send + 'static) -> JoinHandle<()> {
    let main = sys::thread_id();
    spawn(move || {
        trace::set_actor("thread");
        await_asleep(main);
        act();
    })
}

/// Shuts both halves of an end, until its peer has heard of it.
fn shut_both(fd: Fd, peer: Fd) {
    shutdown(fd, libc::SHUT_RDWR);
    until("the peer has heard of the end", || tcp_state(peer) == HEARD_OF_THE_END);
}

/// As [`fill_firmly`], by sends alone: nobody has waited for room by then.
fn fill_by_sends(fd: Fd) {
    let buffer = [0; 64 * 1024];
    let mut refused = 0;
    while refused < 3 {
        refused += 1;
        let mut length = buffer.len();
        while length != 0 {
            match sys::send(fd.raw, &buffer[..length], libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL).value {
                1.. => refused = 0,
                _ => length /= 2,
            }
        }
        sleep(A_WHILE / 2);
    }
}

fn read_all(fd: Fd) {
    let mut buffer = vec![0; 64 * 1024];
    while sys::recv(fd.raw, &mut buffer, libc::MSG_DONTWAIT).value > 0 {}
}

/// A thread sleeps for room at a peer that shuts both halves, which is no end: it hears of the reset that follows.
pub fn room_at_a_peer_that_shuts_both_halves_and_closes(v: Variant) {
    for extra in [0, libc::EPOLLEXCLUSIVE] {
        let (client, server) = v.pair();
        let set = epoll_create("set");
        epoll_add(set, client, OUT | extra | trigger(v));
        fill_firmly(client, 3);
        epoll_wait(set, 4, 20);
        let thread = when_asleep(move || {
            shut_both(server, client);
            sleep(A_WHILE * 5);
            close(server);
        });
        let before = sys::thread_cpu_ms();
        epoll_wait(set, 4, 5_000);
        trace!("busy: {}", sys::thread_cpu_ms() - before > 250);
        let _ = thread.join();
        close(set);
        close(client);
    }
}

/// The same, around a set that has a member of the kernel's as well.
pub fn room_in_a_set_inside_at_a_peer_that_closes(v: Variant) {
    let (client, server) = v.pair();
    let (_, ends) = sys::pipe2(0);
    let pipe = Fd::new(ends[0], "pipe");
    let (set, outer) = (epoll_create("set"), epoll_create("outer"));
    epoll_add(set, client, OUT | trigger(v));
    epoll_add(set, pipe, IN);
    epoll_add(outer, set, IN);
    fill_firmly(client, 3);
    epoll_wait(set, 4, 20);
    let thread = when_asleep(move || {
        shut_both(server, client);
        sleep(A_WHILE);
        close(server);
    });
    epoll_wait(outer, 4, 5_000);
    let _ = thread.join();
    epoll_wait(set, 4, 0);
}

/// A thread hears of room that such a peer makes, whether it has slept before the halves were shut, or sleeps only
/// then.
pub fn room_that_a_peer_makes_that_is_shut_both_ways(v: Variant) {
    for sleeps_before in [true, false] {
        let (client, server) = v.pair();
        let set = epoll_create("set");
        epoll_add(set, client, OUT | trigger(v));
        epoll_wait(set, 4, 0);
        fill_by_sends(client);
        if sleeps_before {
            epoll_wait(set, 4, 20);
        } else {
            shut_both(server, client);
        }
        let thread = when_asleep(move || {
            if sleeps_before {
                shut_both(server, client);
            }
            sleep(A_WHILE);
            // The kernel may send what it has still to send now, and be reset for it.
            read_all(server);
        });
        let (ret, events) = sys::epoll_wait(EpollCall::Wait, set.raw, 4, 5_000, None);
        let is_room = events.iter().all(|event| { event.events } & OUT as u32 != 0);
        trace!("told of room: {}", ret.value == 1 && is_room);
        let _ = thread.join();
        close(set);
        close(client);
        close(server);
    }
}

/// Where both ends have shut their reading halves nothing has ended, and bytes are told of as ever.
pub fn bytes_where_both_ends_have_shut_their_reading_halves(v: Variant) {
    for extra in [RDHUP, libc::EPOLLEXCLUSIVE] {
        let (client, server) = v.pair();
        let set = epoll_create("set");
        epoll_add(set, server, IN | ET | extra);
        shutdown(server, libc::SHUT_RD);
        shutdown(client, libc::SHUT_RD);
        epoll_wait(set, 4, 0);
        epoll_wait(set, 4, 0);
        for _ in 0..2 {
            let thread = when_asleep(move || {
                send(client, b"x", 0);
            });
            epoll_wait(set, 4, 5_000);
            let _ = thread.join();
            epoll_wait(set, 4, 0);
        }
        close(set);
        close(client);
        close(server);
    }
}

/// Who has shut both halves hears of the reset that the peer's bytes are answered by.
pub fn reset_after_both_own_halves_are_shut(v: Variant) {
    let (client, server) = v.pair();
    let set = epoll_create("set");
    epoll_add(set, client, IN | OUT | RDHUP | ET);
    epoll_wait(set, 4, 0);
    shutdown(client, libc::SHUT_RDWR);
    until("the peer has answered", || tcp_state(client) == HAS_ENDED);
    epoll_wait(set, 4, 0);
    epoll_wait(set, 4, 0);
    let thread = when_asleep(move || {
        send(server, b"x", 0);
    });
    // The kernel may tell of it by two edges, between which this thread may look.
    epoll_wait(set, 4, 5_000);
    let _ = thread.join();
}

/// Who has shut both halves, with no room for more, is not kept awake by that.
pub fn own_halves_shut_without_room(v: Variant) {
    let (client, server) = v.pair();
    let set = epoll_create("set");
    epoll_add(set, client, OUT | ET);
    fill_firmly(client, 3);
    epoll_wait(set, 4, 20);
    shutdown(client, libc::SHUT_RDWR);
    epoll_wait(set, 4, 5_000);
    let before = sys::thread_cpu_ms();
    epoll_wait(set, 4, 300);
    trace!("busy: {}", sys::thread_cpu_ms() - before > 150);
    let thread = when_asleep(move || {
        close(server);
    });
    epoll_wait(set, 4, 5_000);
    let _ = thread.join();
}

/// A member that has fired is not told of halves that are shut, nor is anybody kept awake by them.
pub fn oneshot_disarmed_while_halves_are_shut(v: Variant) {
    let (client, server) = v.pair();
    let set = epoll_create("set");
    epoll_add(set, server, IN | ONESHOT | trigger(v));
    send(client, b"x", 0);
    await_queued(server, 1);
    epoll_wait(set, 4, -1);
    shut_both(client, server);
    let before = sys::thread_cpu_ms();
    epoll_wait(set, 4, 300);
    trace!("busy: {}", sys::thread_cpu_ms() - before > 150);
    epoll_mod(set, server, IN | RDHUP | ONESHOT | trigger(v));
    epoll_wait(set, 4, 5_000);
    epoll_wait(set, 4, 20);
}

/// A thread that knows of the peer's close hears of the reset that another one's send is answered by.
pub fn reset_by_a_send_after_the_close(v: Variant) {
    let (client, server) = v.pair();
    let set = epoll_create("set");
    epoll_add(set, client, IN | OUT | RDHUP | ET);
    epoll_wait(set, 4, 0);
    close(server);
    await_hangup(client);
    epoll_wait(set, 4, 0);
    epoll_wait(set, 4, 0);
    let thread = when_asleep(move || {
        send(client, b"x", 0);
    });
    // The kernel may tell of it by two edges, between which this thread may look.
    epoll_wait(set, 4, 5_000);
    let _ = thread.join();
}

/// Who waits for room at a peer that reads no more hears of signals that only the call's mask lets in.
pub fn a_mask_lets_signals_in_at_a_shut_reader(v: Variant) {
    let (client, server) = v.pair();
    let set = epoll_create("set");
    shutdown(server, libc::SHUT_RD);
    fill_firmly(client, 3);
    epoll_add(set, client, OUT);
    let mask = pending_and_mask();
    epoll_wait_by(EpollCall::Pwait, set, 4, -1, Some(&mask));
    after_mask();
    ppoll(&[(client, libc::POLLOUT)], -1, Some(&mask));
    after_mask();
}
