//! readv, writev, sendmsg, recvmsg, sendmmsg, recvmmsg.

use crate::case::axes::{FAMILY, MODE, ONCE};
use crate::case::{Case, Group};
use crate::trace;
use crate::traced::*;
use crate::variant::Variant;
use beeline_testkit::sys::{self, Pieces};

pub const GROUP: Group = Group {
    name: "vectors",
    cases: &[
        Case::new("gather_and_scatter", FAMILY | MODE, gather_and_scatter),
        Case::new("small_pieces_come_together", FAMILY, small_pieces_come_together),
        Case::new("empty_pieces", FAMILY | MODE, empty_pieces),
        Case::new("count_zero", FAMILY, count_zero),
        Case::new("count_negative_or_too_large", ONCE, count_negative_or_too_large),
        Case::new("thousand_pieces", ONCE, thousand_pieces),
        Case::new("null_pieces", ONCE, null_pieces),
        Case::new("sendmsg_and_recvmsg", FAMILY | MODE, sendmsg_and_recvmsg),
        Case::new("recvmsg_fields", FAMILY, recvmsg_fields),
        Case::new("readv_at_the_end", FAMILY | MODE, readv_at_the_end),
        Case::new("sendmmsg_then_recv", FAMILY | MODE, sendmmsg_then_recv),
        Case::new("recvmmsg_takes_what_is_there", FAMILY | MODE, recvmmsg_takes_what_is_there),
        Case::new("more_than_1024_messages", ONCE, more_than_1024_messages),
        Case::new("recvmmsg_at_the_end", FAMILY, recvmmsg_at_the_end),
        Case::new("recvmmsg_errors", ONCE, recvmmsg_errors),
        Case::new("recvmmsg_timeouts", FAMILY, recvmmsg_timeouts),
        Case::new("writev_after_peer_left", FAMILY, writev_after_peer_left),
        Case::new("a_bad_piece_after_a_little", FAMILY, a_bad_piece_after_a_little),
        Case::new("a_bad_piece_after_much", FAMILY, a_bad_piece_after_much),
        Case::new("a_bad_piece_on_a_broken_connection", ONCE, a_bad_piece_on_a_broken_connection),
    ],
};

fn gather_and_scatter(v: Variant) {
    let (client, server) = v.pair();
    writev(client, &[b"one", b"two", b"three"]);
    await_queued(server, 11);
    readv(server, &[4, 4, 100]);
    writev(server, &[b"a"]);
    await_queued(client, 1);
    readv(client, &[1]);
}

/// What TCP sends as one segment is read at once by who waits for it.
fn small_pieces_come_together(v: Variant) {
    const ROUNDS: usize = 2000;
    let (client, server) = v.blocking_pair_on(v.listener(), "client", "server");
    let reader = std::thread::spawn(move || {
        let mut buffer = [0; 64];
        let whole = (0..ROUNDS).take_while(|_| {
            let got = sys::recv(server.raw, &mut buffer, 0);
            got.is_ok() && got.size() == 9 && sys::send(server.raw, b"!", 0).is_ok()
        });
        let whole = whole.count();
        // The client waits for an answer if one was missed.
        sys::close(server.raw);
        whole
    });
    let (mut answer, pieces) = ([0; 1], Pieces::of_data(&[b"a", b"bc", b"def", b"ghi"]));
    for _ in 0..ROUNDS {
        if !sys::writev(client.raw, &pieces).is_ok() || sys::recv(client.raw, &mut answer, 0).value != 1 {
            break;
        }
    }
    close(client);
    trace!("all came whole: {}", reader.join().is_ok_and(|whole| whole == ROUNDS));
}

fn empty_pieces(v: Variant) {
    let (client, server) = v.pair();
    writev(client, &[b"", b"ab", b"", b"cd", b""]);
    await_queued(server, 4);
    readv(server, &[0, 1, 0, 2, 0, 5]);
    writev(client, &[b"", b""]);
    poll_now(server);
    readv(server, &[0, 0]);
}

fn count_zero(v: Variant) {
    let (client, server) = v.pair();
    writev(client, &[]);
    readv(server, &[]);
    sendmsg(client, &[], 0);
    recvmsg(server, &[], libc::MSG_DONTWAIT);
    send(client, b"x", 0);
    await_queued(server, 1);
    readv(server, &[]);
    recvmsg(server, &[], 0);
    recv(server, 4, 0);
}

fn count_negative_or_too_large(v: Variant) {
    let (client, server) = v.pair();
    let pieces = Pieces::of_data(&[b"x"]);
    let place = pieces.vectors.as_ptr() as usize;
    trace!("writev -1: {}", sys::writev_at(client.raw, place, -1));
    trace!("readv -1: {}", sys::readv_at(server.raw, place, -1));
    let many: Vec<&[u8]> = vec![b"x"; 1025];
    writev(client, &many[..1024]);
    writev(client, &many);
    sendmsg(client, &many, libc::MSG_NOSIGNAL);
    await_queued(server, 1024);
    readv(server, &[1; 1025]);
    recvmsg(server, &[1; 1025], libc::MSG_DONTWAIT);
    readv(server, &[1; 1024]);
    let lengths_above_limit =
        [usize::MAX / 2, usize::MAX / 2].map(|iov_len| libc::iovec { iov_base: pieces.vectors[0].iov_base, iov_len });
    trace!("sum too large: {}", sys::writev_at(client.raw, lengths_above_limit.as_ptr() as usize, 2));
}

fn thousand_pieces(v: Variant) {
    let (client, server) = v.pair();
    let data: Vec<Vec<u8>> = (0..1000_usize).map(|at| vec![at as u8; at % 7]).collect();
    let pieces: Vec<&[u8]> = data.iter().map(Vec::as_slice).collect();
    let total: usize = data.iter().map(Vec::len).sum();
    writev(client, &pieces);
    await_queued(server, total as i32);
    let lengths: Vec<i64> = (0..1000).map(|at| at % 5).collect();
    readv(server, &lengths);
    recv(server, 10_000, libc::MSG_DONTWAIT);
}

fn null_pieces(v: Variant) {
    let (client, server) = v.pair();
    send(client, b"0123456789", 0);
    await_queued(server, 10);
    readv(server, &[-3]);
    recvmsg(server, &[-3], 0);
    readv(server, &[0, -2]);
    fionread(server);
    recv(server, 10, 0);
}

fn sendmsg_and_recvmsg(v: Variant) {
    let (client, server) = v.pair();
    sendmsg(client, &[b"head", b"", b"body"], 0);
    await_queued(server, 8);
    recvmsg(server, &[2, 100], 0);
    sendmsg(server, &[b"answer"], libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT);
    await_queued(client, 6);
    recvmsg(client, &[100], libc::MSG_WAITALL | libc::MSG_DONTWAIT);
    close(server);
    await_hangup(client);
    recvmsg(client, &[100], 0);
}

fn recvmsg_fields(v: Variant) {
    let (client, server) = v.pair();
    send(client, b"abcdef", 0);
    await_queued(server, 6);
    recvmsg(server, &[2], 0);
    recvmsg(server, &[2], libc::MSG_PEEK);
    recvmsg(server, &[2], libc::MSG_TRUNC);
    recvmsg(server, &[8], libc::MSG_CMSG_CLOEXEC);
    recvmsg(server, &[8], libc::MSG_DONTWAIT);
}

fn readv_at_the_end(v: Variant) {
    let (client, server) = v.pair();
    send(client, b"abc", 0);
    shutdown(client, libc::SHUT_WR);
    await_hangup(server);
    readv(server, &[2, 2]);
    readv(server, &[2, 2]);
}

fn sendmmsg_then_recv(v: Variant) {
    let (client, server) = v.pair();
    let mut messages =
        [Pieces::of_data(&[b"first ", b"message "]), Pieces::of_data(&[]), Pieces::of_data(&[b"second"])];
    let (ret, lengths) = sys::sendmmsg(client.raw, &mut messages, 0);
    trace!("sendmmsg {ret} {lengths:?}");
    await_queued(server, 20);
    recv(server, 100, 0);
}

fn recvmmsg_takes_what_is_there(v: Variant) {
    let (client, server) = v.pair();
    send(client, b"0123456789", 0);
    await_queued(server, 10);
    let mut messages = [4, 3, 8].map(|length| Pieces::of_lengths(&[length]));
    let (ret, lengths) = sys::recvmmsg(server.raw, &mut messages, libc::MSG_WAITFORONE, -1);
    let data: Vec<String> =
        messages.iter().zip(&lengths).map(|(pieces, length)| shown(&pieces.taken(*length as usize))).collect();
    trace!("recvmmsg {ret} {lengths:?} {data:?}");
    let (ret, _) = sys::recvmmsg(server.raw, &mut messages, libc::MSG_DONTWAIT, -1);
    trace!("recvmmsg {ret}");
}

/// `sendmmsg` sends 1024 at most; `recvmmsg` receives as many as are asked for.
fn more_than_1024_messages(v: Variant) {
    let (client, server) = v.pair();
    let mut messages: Vec<_> = (0..1030).map(|_| Pieces::of_data(&[b"x"])).collect();
    let (ret, _) = sys::sendmmsg(client.raw, &mut messages, 0);
    trace!("sendmmsg {ret}");
    send(client, b"sixmore", 0);
    await_queued(server, 1031);
    let mut messages: Vec<_> = (0..1030).map(|_| Pieces::of_lengths(&[1])).collect();
    let (ret, _) = sys::recvmmsg(server.raw, &mut messages, libc::MSG_DONTWAIT, -1);
    trace!("recvmmsg {ret}");
    recv(server, 8, 0);
}

fn recvmmsg_at_the_end(v: Variant) {
    let (client, server) = v.pair();
    send(client, b"012345", 0);
    close(client);
    await_hangup(server);
    let mut messages = [4, 4, 4, 4].map(|length| Pieces::of_lengths(&[length]));
    let (ret, lengths) = sys::recvmmsg(server.raw, &mut messages, 0, -1);
    trace!("recvmmsg {ret} {lengths:?}");
}

fn recvmmsg_errors(v: Variant) {
    let (_client, server) = v.pair();
    let mut messages = [Pieces::of_lengths(&[4])];
    trace!("nothing there: {}", sys::recvmmsg(server.raw, &mut messages, libc::MSG_DONTWAIT, -1).0);
    trace!("bad fd: {}", sys::recvmmsg(199, &mut messages, 0, -1).0);
    trace!("no messages: {}", sys::recvmmsg(server.raw, &mut [], libc::MSG_DONTWAIT, -1).0);
    trace!("no messages to send: {}", sys::sendmmsg(server.raw, &mut [], 0).0);
}

/// What a timeout may be, and what is left in it afterwards: the seconds, rounded.
fn recvmmsg_timeouts(v: Variant) {
    let (client, server) = v.pair();
    for (tv_sec, tv_nsec) in
        [(-1, 0), (0, -1), (0, 1_000_000_000), (0, 0), (0, 1), (100, 0), (1 << 62, 0), (i64::MAX, 5)]
    {
        send(client, b"0123456789", 0);
        await_queued(server, 10);
        let mut messages = [4, 6].map(|length| Pieces::of_lengths(&[length]));
        let mut timeout = libc::timespec { tv_sec, tv_nsec };
        let (ret, lengths) = sys::recvmmsg_within(server.raw, &mut messages, 0, Some(&mut timeout));
        trace!("{tv_sec} s {tv_nsec} ns: {ret} {lengths:?}");
        if tv_sec < 1000 {
            trace!("left: {} s", (timeout.tv_sec * 1000 + timeout.tv_nsec / 1_000_000 + 500).div_euclid(1000));
        }
        recv(server, 16, libc::MSG_DONTWAIT);
    }
}

fn writev_after_peer_left(v: Variant) {
    let (client, server) = v.pair();
    close(server);
    await_hangup(client);
    sys::sigaction(libc::SIGPIPE, super::ignore_signal, 0);
    writev(client, &[b"one", b"two"]);
    await_events(client, libc::POLLHUP);
    writev(client, &[b"one", b"two"]);
    sendmsg(client, &[b"one"], libc::MSG_NOSIGNAL);
    // Nothing at all is written without looking at the connection; as a message it is not.
    writev(client, &[b"", b""]);
    write(client, b"");
    sendmsg(client, &[b""], libc::MSG_NOSIGNAL);
}

/// The data, and then a piece that is nowhere.
fn with_a_bad_piece(data: &[u8]) -> Pieces {
    let mut pieces = Pieces::of_data(&[data, b"nowhere", b"after it"]);
    pieces.vectors[1].iov_base = std::ptr::null_mut();
    pieces
}

/// Nothing is sent of a little.
fn a_bad_piece_after_a_little(v: Variant) {
    let (client, server) = v.pair();
    for length in [0, 10, 1000, 10_000] {
        let mut pieces = with_a_bad_piece(&vec![b'x'; length]);
        trace!("writev {length}: {}", sys::writev(client.raw, &pieces));
        trace!("sendmsg {length}: {}", sys::sendmsg(client.raw, &mut pieces, 0));
    }
    send(client, b"all that comes", 0);
    await_queued(server, 14);
    recv(server, 20, 0);
}

/// Some of much is sent; how much is the kernel's own business.
fn a_bad_piece_after_much(v: Variant) {
    let mut data = vec![0; 256_000];
    beeline_testkit::rng::fill_stream(5, 0, &mut data);
    for by_writev in [true, false] {
        let (client, server) = v.pair();
        let reader = std::thread::spawn(move || {
            let (mut all, mut buffer) = (Vec::new(), vec![0; 1 << 16]);
            while let ret @ 1.. = sys::recv(server.raw, &mut buffer, 0).value {
                all.extend_from_slice(&buffer[..ret as usize]);
            }
            all
        });
        let mut pieces = with_a_bad_piece(&data);
        let ret = if by_writev { sys::writev(client.raw, &pieces) } else { sys::sendmsg(client.raw, &mut pieces, 0) };
        close(client);
        let all = reader.join().unwrap_or_default();
        let is_some = ret.value > 0 && ret.size() <= data.len();
        trace!("some: {is_some}, all that came: {}", is_some && all == data[..ret.size()]);
    }
}

/// What is wrong with the connection comes first.
fn a_bad_piece_on_a_broken_connection(v: Variant) {
    sys::sigaction(libc::SIGPIPE, super::ignore_signal, 0);
    let try_both = |client: Fd| {
        for length in [10, 256_000] {
            trace!("writev {length}: {}", sys::writev(client.raw, &with_a_bad_piece(&vec![b'x'; length])));
        }
    };
    let (client, _server) = v.pair();
    shutdown(client, libc::SHUT_WR);
    try_both(client);
    let (client, server) = v.pair();
    set_linger(server, 1, 0);
    close(server);
    await_hangup(client);
    try_both(client);
    so_error(client);
}
