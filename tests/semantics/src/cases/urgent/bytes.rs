//! Urgent bytes in the stream: where they stand, who takes them, what reads and looks say of them.

use super::{OOB, at_mark, await_urgent, look, settle};
use crate::trace;
use crate::traced::*;
use crate::variant::Variant;
use beeline_testkit::sys;

pub(super) fn one_byte(v: Variant) {
    let (client, server) = v.pair();
    send(client, b"!", OOB);
    await_urgent(server);
    look(server);
    recv(server, 4, libc::MSG_DONTWAIT);
    recv(server, 4, OOB);
    look(server);
    send(client, b"more", 0);
    await_queued(server, 4);
    recv(server, 8, 0);
    look(server);
}

pub(super) fn last_of_many(v: Variant) {
    let (client, server) = v.pair();
    send(client, b"abcd!", OOB);
    await_urgent(server);
    look(server);
    recv(server, 8, OOB);
    look(server);
    recv(server, 8, 0);
    look(server);
    recv(server, 8, libc::MSG_DONTWAIT);
    look(server);
}

pub(super) fn in_the_middle(v: Variant) {
    let (client, server) = v.pair();
    send(client, b"before", 0);
    send(client, b"!", OOB);
    send(client, b"after", 0);
    await_urgent(server);
    settle(server);
    look(server);
    recv(server, 3, 0);
    look(server);
    recv(server, 20, 0);
    look(server);
    recv(server, 20, OOB);
    look(server);
    recv(server, 20, 0);
    look(server);
}

pub(super) fn waitall_stops_at_the_mark(v: Variant) {
    let (client, server) = v.pair();
    send(client, b"1234", 0);
    send(client, b"!", OOB);
    send(client, b"5678", 0);
    await_urgent(server);
    settle(server);
    recv(server, 8, libc::MSG_WAITALL);
    recv(server, 4, libc::MSG_WAITALL);
    look(server);
}

pub(super) fn read_past_unread(v: Variant) {
    let (client, server) = v.pair();
    send(client, b"ab", 0);
    send(client, b"!", OOB);
    send(client, b"cd", 0);
    await_urgent(server);
    settle(server);
    read(server, 8);
    read(server, 8);
    recv(server, 8, OOB);
    look(server);
}

pub(super) fn none_there(v: Variant) {
    let (client, server) = v.pair();
    recv(server, 1, OOB);
    recv(server, 0, OOB);
    recv(server, 1, OOB | libc::MSG_PEEK);
    at_mark(server);
    send(client, b"data", 0);
    await_queued(server, 4);
    recv(server, 1, OOB);
    look(server);
}

pub(super) fn taken_once(v: Variant) {
    let (client, server) = v.pair();
    send(client, b"!", OOB);
    await_urgent(server);
    recv(server, 0, OOB);
    recv(server, 1, OOB);
    recv(server, 1, OOB);
    send(client, b"?", OOB);
    await_urgent(server);
    recv(server, 1, OOB);
    look(server);
}

pub(super) fn peeked(v: Variant) {
    let (client, server) = v.pair();
    send(client, b"ab!", OOB);
    await_urgent(server);
    recv(server, 1, OOB | libc::MSG_PEEK);
    recv(server, 1, OOB | libc::MSG_PEEK);
    look(server);
    recv(server, 1, OOB);
    recv(server, 1, OOB | libc::MSG_PEEK);
}

pub(super) fn peeked_before_another(v: Variant) {
    let (client, server) = v.pair();
    send(client, b"1", OOB);
    await_urgent(server);
    recv(server, 1, OOB | libc::MSG_PEEK);
    send(client, b"2", OOB);
    settle(server);
    recv(server, 1, OOB | libc::MSG_PEEK);
    recv(server, 1, OOB);
    look(server);
}

pub(super) fn peek_of_data_at_the_mark(v: Variant) {
    let (client, server) = v.pair();
    send(client, b"ab", 0);
    send(client, b"!", OOB);
    send(client, b"cd", 0);
    await_urgent(server);
    settle(server);
    recv(server, 8, libc::MSG_PEEK);
    recv(server, 2, 0);
    recv(server, 8, libc::MSG_PEEK);
    look(server);
    recv(server, 8, libc::MSG_PEEK);
    recv(server, 8, 0);
    recv(server, 8, libc::MSG_PEEK | libc::MSG_DONTWAIT);
}

pub(super) fn two_in_a_row(v: Variant) {
    let (client, server) = v.pair();
    send(client, b"1", OOB);
    await_urgent(server);
    send(client, b"2", OOB);
    settle(server);
    look(server);
    recv(server, 1, OOB);
    send(client, b"x", 0);
    settle(server);
    recv(server, 8, libc::MSG_DONTWAIT);
    look(server);
}

pub(super) fn three_in_a_row(v: Variant) {
    let (client, server) = v.pair();
    send(client, b"a", 0);
    await_queued(server, 1);
    recv(server, 1, 0);
    for byte in [b"1", b"2", b"3"] {
        send(client, byte, OOB);
        settle(server);
    }
    look(server);
    send(client, b"rest", 0);
    settle(server);
    look(server);
    recv(server, 8, 0);
    look(server);
}

pub(super) fn two_with_data_between(v: Variant) {
    let (client, server) = v.pair();
    send(client, b"ab", 0);
    send(client, b"1", OOB);
    settle(server);
    send(client, b"cd", 0);
    send(client, b"2", OOB);
    settle(server);
    look(server);
    recv(server, 20, 0);
    look(server);
    recv(server, 20, OOB);
    recv(server, 20, libc::MSG_DONTWAIT);
    look(server);
}

pub(super) fn a_second_after_the_first_was_taken(v: Variant) {
    let (client, server) = v.pair();
    send(client, b"ab1", OOB);
    await_urgent(server);
    recv(server, 8, OOB);
    recv(server, 8, 0);
    look(server);
    send(client, b"cd2", OOB);
    await_urgent(server);
    look(server);
    recv(server, 8, 0);
    recv(server, 8, OOB);
    look(server);
}

pub(super) fn by_messages(v: Variant) {
    let (client, server) = v.pair();
    sendmsg(client, &[b"ab", b"c!"], OOB);
    await_urgent(server);
    recvmsg(server, &[4], OOB | libc::MSG_PEEK);
    recvmsg(server, &[0], OOB | libc::MSG_PEEK);
    recvmsg(server, &[1, 1], OOB);
    recvmsg(server, &[1], OOB);
    recvmsg(server, &[2, 8], 0);
    look(server);
}

pub(super) fn skipped_by_trunc(v: Variant) {
    let (client, server) = v.pair();
    send(client, b"ab", 0);
    send(client, b"!", OOB);
    send(client, b"cd", 0);
    await_urgent(server);
    settle(server);
    recv(server, 8, OOB | libc::MSG_PEEK | libc::MSG_TRUNC);
    recv(server, 8, libc::MSG_TRUNC);
    recv(server, 1, libc::MSG_TRUNC);
    look(server);
    recv(server, 8, 0);
}

pub(super) fn after_the_end(v: Variant) {
    let (client, server) = v.pair();
    send(client, b"ab!", OOB);
    shutdown(client, libc::SHUT_WR);
    await_hangup(server);
    look(server);
    recv(server, 8, 0);
    look(server);
    recv(server, 8, OOB);
    recv(server, 8, 0);
    recv(server, 8, 0);
    recv(server, 8, OOB);
    look(server);
}

pub(super) fn to_a_peer_that_left(v: Variant) {
    let (client, server) = v.pair();
    sys::sigaction(libc::SIGPIPE, crate::cases::ignore_signal, 0);
    close(server);
    await_hangup(client);
    send(client, b"!", OOB);
    poll(&[(client, 0)], 10_000);
    send(client, b"!", OOB);
    send(client, b"!", OOB | libc::MSG_NOSIGNAL);
}

pub(super) fn of_no_bytes(v: Variant) {
    let (client, server) = v.pair();
    send(client, b"", OOB);
    send(client, b"x", 0);
    await_queued(server, 1);
    look(server);
    recv(server, 1, OOB);
}

pub(super) fn close_with_it_unread(v: Variant) {
    let (client, server) = v.pair();
    send(client, b"!", OOB);
    await_urgent(server);
    recv(server, 1, OOB);
    close(server);
    await_hangup(client);
    recv(client, 1, 0);
}

pub(super) fn spliced(v: Variant) {
    let (client, server) = v.pair();
    let (_, ends) = sys::pipe2(0);
    send(client, b"ab", 0);
    send(client, b"!", OOB);
    send(client, b"cd", 0);
    await_urgent(server);
    settle(server);
    trace!("splice {}", sys::splice(server.raw, None, ends[1], None, 10, 0));
    look(server);
}

/// The reader stands at the first urgent byte, which the second one makes pass, also for who splices.
pub(super) fn spliced_after_a_second(v: Variant) {
    let (client, server) = v.pair();
    let (_, ends) = sys::pipe2(0);
    send(client, b"ab1", OOB);
    await_urgent(server);
    recv(server, 8, 0);
    send(client, b"cd2", OOB);
    settle(server);
    for _ in 0..2 {
        trace!("splice {}", sys::splice(server.raw, None, ends[1], None, 10, 0));
        look(server);
    }
    read(Fd::new(ends[0], "pipe"), 16);
    recv(server, 8, OOB);
    send(client, b"ef", 0);
    recv(server, 8, 0);
}

pub(super) fn many_rounds(v: Variant) {
    let (client, server) = v.pair();
    let mut right = true;
    for round in 0..3000_usize {
        let data = vec![b'a' + (round % 26) as u8; 1 + round % 700];
        sys::send(client.raw, &data, 0);
        sys::send(client.raw, b"!", OOB);
        let mut urgent = [0; 1];
        let mut buffer = [0; 800];
        let mut got = 0;
        while got < data.len() {
            got += sys::recv(server.raw, &mut buffer[got..], 0).size();
        }
        while sys::recv(server.raw, &mut urgent, OOB).value != 1 {}
        right &= buffer[..got] == data[..] && urgent == *b"!";
    }
    trace!("all right {right}");
    look(server);
}
