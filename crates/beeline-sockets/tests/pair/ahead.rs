//! A sender waits a moment for a reader that is far behind and has others to serve; once, if that was in vain.

use super::*;

const RING_BYTES: u32 = 4 << 20;
const PIECE: usize = 64 * 1024;
/// More than is wanted to lie unread, and room for some messages more.
const UNREAD: usize = 2 << 20;
/// As an end shows it that runs there.
const ANOTHER_CPU: u32 = 4000;
/// Messages that do not wait, after one that did so in vain.
const RESTS: usize = 256;

/// Sends a byte on a connection, and takes it as its set tells of it.
fn say(set: i32, [from, to]: [i32; 2]) {
    assert_eq!(send(from, b"x"), Outcome::Done(1));
    assert_eq!(wait(set, 1000), [(libc::EPOLLIN as u32, to as u64)]);
    let mut bytes = [0; 2];
    assert_eq!(recv(to, &mut bytes, libc::MSG_DONTWAIT), Outcome::Done(1));
    assert_eq!(recv(to, &mut bytes, libc::MSG_DONTWAIT), Outcome::fail(libc::EAGAIN));
}

/// So many sends that may block, and do not have to.
fn send_times(fd: i32, count: usize) {
    let piece = vec![7; PIECE];
    for _ in 0..count {
        assert_eq!(send(fd, &piece), Outcome::Done(PIECE as isize));
    }
}

/// How many messages more do not wait, because one has done so in vain. There are none afterwards.
fn take_rests(fd: i32) -> usize {
    let desc = table::get(fd).unwrap();
    std::iter::repeat_with(|| desc.pace.rests()).take_while(|rests| *rests).count()
}

/// A stream far ahead of its reader, to whose set others report as well if `beside`.
fn far_ahead(beside: bool) -> i32 {
    let (stream, other, set) = (lane_pair_of(RING_BYTES), lane_pair(), new_set());
    for [_, to] in [stream, other] {
        control(set, libc::EPOLL_CTL_ADD, to, libc::EPOLLIN | libc::EPOLLET);
    }
    for _ in 0..4 {
        say(set, stream);
        if beside {
            say(set, other);
        }
    }
    let piece = vec![7; UNREAD];
    // SAFETY: a live slice.
    let sent = unsafe { io::send(stream[0], piece.as_ptr(), piece.len(), libc::MSG_DONTWAIT) };
    assert_eq!(sent, Outcome::Done(UNREAD as isize));
    // The reader seems to be on another CPU.
    let reader = table::get(stream[1]).unwrap();
    reader.lane().cpu(reader.end()).store(ANOTHER_CPU, Relaxed);
    stream[0]
}

#[test]
fn a_sender_that_waited_in_vain_sends_on() {
    let fd = far_ahead(true);
    send_times(fd, 1 + 20);
    assert_eq!(take_rests(fd), RESTS - 20, "the first has waited and no other");
}

#[test]
fn who_is_not_to_spin_does_not_wait() {
    let fd = far_ahead(true);
    // The kernel is asked about options by a socket of the same family.
    table::get(fd).unwrap().side().family.store(libc::AF_INET as u32, Relaxed);
    let spin_us = |most: i32| {
        let (value, length) = ((&raw const most).cast(), size_of_val(&most) as u32);
        // SAFETY: a live number.
        let set = unsafe { options::setsockopt(fd, libc::SOL_SOCKET, libc::SO_BUSY_POLL, value, length) };
        assert_eq!(set, Outcome::OK);
    };
    spin_us(0);
    send_times(fd, 3);
    assert_eq!(take_rests(fd), 0);
    spin_us(50);
    send_times(fd, 1);
    assert_eq!(take_rests(fd), RESTS);
}

#[test]
fn nobody_waits_for_a_reader_that_has_nobody_else_to_serve() {
    let fd = far_ahead(false);
    send_times(fd, 20);
    assert_eq!(take_rests(fd), 0);
}
