//! The kernel primitives that `Bells` and the wake protocol rely upon, on real socket pairs.
//!
//! A bell is one byte in a message of its own. What a unix socket reports follows from a few lines of Linux
//! (net/unix/af_unix.c `unix_writable`, net/core/sock.c `sock_alloc_send_pskb`, `sk_setsockopt`):
//!
//! - it is writable while `4 * (charge + 1) <= sk_sndbuf`, where each queued bell is charged the same;
//! - `SO_SNDBUF` is doubled, and never below 4608;
//! - raising it wakes sleepers, and so does each bell that is taken out, if that leaves it writable.
//!
//! So "writable while at most three bells are queued" means `12 * charge + 4 <= sk_sndbuf < 16 * charge + 4`.
//! Linux 6.18 on x86-64 charges 768 bytes: any `SO_SNDBUF` from 4610 to 6145 will do, and seven charges,
//! 5376, is the middle.
#![cfg(not(loom))]
#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::arithmetic_side_effects, unsafe_code)]

use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::sync::mpsc;
use std::thread;

/// `sk_sndbuf` of which half is asked for, so that three bells leave the socket writable and four do not.
/// `None` where the kernel's floor of 4608 is too high for that.
fn send_buffer_for(charge: i32) -> Option<i32> {
    (288..1 << 20).contains(&charge).then(|| 7 * charge)
}

/// Whether a send buffer, as the kernel reports it back, does what it should.
fn send_buffer_fits(charge: i32, reported: i32) -> bool {
    12 * charge + 4 <= reported && reported < 16 * charge + 4
}

fn pair() -> (UnixStream, UnixStream) {
    let (ours, theirs) = UnixStream::pair().unwrap();
    ours.set_nonblocking(true).unwrap();
    theirs.set_nonblocking(true).unwrap();
    (ours, theirs)
}

fn ring(socket: &UnixStream, count: usize) {
    for _ in 0..count {
        (&mut &*socket).write_all(&[1]).unwrap();
    }
}

fn take(socket: &UnixStream, count: usize) -> usize {
    (&mut &*socket).read(&mut vec![0; count]).unwrap()
}

fn option(socket: &UnixStream, request: libc::Ioctl) -> i32 {
    let mut value = 0i32;
    // SAFETY: both requests used here write one int.
    assert_eq!(unsafe { libc::ioctl(socket.as_raw_fd(), request, &raw mut value) }, 0);
    value
}

fn queued(socket: &UnixStream) -> i32 {
    option(socket, libc::FIONREAD)
}

fn charged(socket: &UnixStream) -> i32 {
    option(socket, libc::TIOCOUTQ)
}

fn set_send_buffer(socket: &UnixStream, bytes: i32) {
    let size = size_of::<i32>() as libc::socklen_t;
    // SAFETY: passes one int of the size given.
    let set = unsafe {
        libc::setsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, libc::SO_SNDBUF, (&raw const bytes).cast(), size)
    };
    assert_eq!(set, 0);
}

fn send_buffer(socket: &UnixStream) -> i32 {
    let (mut bytes, mut size) = (0i32, size_of::<i32>() as libc::socklen_t);
    // SAFETY: room for one int of the size given.
    let got = unsafe {
        let value = (&raw mut bytes).cast();
        libc::getsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, libc::SO_SNDBUF, value, &raw mut size)
    };
    assert_eq!(got, 0);
    bytes
}

/// What `poll(2)` reports of `events` within `timeout` milliseconds.
fn poll(socket: &UnixStream, events: i16, timeout: i32) -> i16 {
    let mut fd = libc::pollfd { fd: socket.as_raw_fd(), events, revents: 0 };
    // SAFETY: one live pollfd.
    unsafe { libc::poll(&raw mut fd, 1, timeout) };
    fd.revents
}

fn writable(socket: &UnixStream) -> bool {
    poll(socket, libc::POLLOUT, 0) & libc::POLLOUT != 0
}

fn readable(socket: &UnixStream) -> bool {
    poll(socket, libc::POLLIN, 0) & libc::POLLIN != 0
}

fn charge_of_a_bell() -> i32 {
    let (ours, _theirs) = pair();
    ring(&ours, 1);
    charged(&ours)
}

/// A pair of which our end has the small send buffer.
fn small_pair() -> (UnixStream, UnixStream) {
    let (ours, theirs) = pair();
    set_send_buffer(&ours, send_buffer_for(charge_of_a_bell()).unwrap());
    (ours, theirs)
}

struct Set(i32);

impl Set {
    fn new(socket: &UnixStream, events: i32) -> Set {
        // SAFETY: plain numbers.
        let set = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
        let mut event = libc::epoll_event { events: events as u32, u64: 0 };
        // SAFETY: one live event.
        let added = unsafe { libc::epoll_ctl(set, libc::EPOLL_CTL_ADD, socket.as_raw_fd(), &raw mut event) };
        assert_eq!(added, 0);
        Set(set)
    }

    fn wait(&self, timeout: i32) -> u32 {
        let mut event = libc::epoll_event { events: 0, u64: 0 };
        // SAFETY: room for one event.
        match unsafe { libc::epoll_wait(self.0, &raw mut event, 1, timeout) } {
            1 => event.events,
            _ => 0,
        }
    }
}

impl Drop for Set {
    fn drop(&mut self) {
        // SAFETY: our own descriptor, not used afterwards.
        unsafe { libc::close(self.0) };
    }
}

#[test]
fn calibration_accepts_what_the_kernel_reports() {
    let charge = charge_of_a_bell();
    let (ours, _theirs) = small_pair();
    println!("a bell is charged {charge} bytes, the small send buffer is {}", send_buffer(&ours));
    assert_eq!(send_buffer(&ours), 14 * charge);
    assert!(send_buffer_fits(charge, send_buffer(&ours)));
    assert_eq!(send_buffer_for(200), None);
    assert!(!send_buffer_fits(charge, 4608) || charge < 384);
}

#[test]
fn each_bell_is_charged_and_counted_alone() {
    let (ours, theirs) = small_pair();
    let charge = charge_of_a_bell();
    for bells in 1..=7 {
        ring(&ours, 1);
        assert_eq!((charged(&ours), queued(&theirs)), (bells * charge, bells));
    }
}

#[test]
fn three_bells_leave_the_small_buffer_writable_and_four_do_not() {
    let (ours, theirs) = small_pair();
    for bells in 1..=7 {
        ring(&ours, 1);
        assert_eq!(writable(&ours), bells <= 3, "{bells} bells");
        assert!(readable(&theirs));
    }
    assert_eq!(take(&theirs, 6), 6);
    assert!(writable(&ours) && readable(&theirs));
    assert_eq!(take(&theirs, 9), 1);
    assert!(!readable(&theirs));
}

#[test]
fn a_large_buffer_is_writable_whatever_is_queued() {
    let (ours, _theirs) = small_pair();
    ring(&ours, 7);
    let edge = Set::new(&ours, libc::EPOLLOUT | libc::EPOLLET);
    assert_eq!((writable(&ours), edge.wait(0)), (false, 0));
    set_send_buffer(&ours, 64 * charge_of_a_bell());
    assert!(writable(&ours));
    assert_eq!(edge.wait(0), libc::EPOLLOUT as u32, "raising the buffer is an edge");
    assert_eq!(edge.wait(0), 0);
    set_send_buffer(&ours, send_buffer_for(charge_of_a_bell()).unwrap());
    assert!(!writable(&ours), "the small buffer plugs at once");
}

#[test]
fn draining_to_one_is_an_edge_for_the_writer() {
    let (ours, theirs) = small_pair();
    let edge = Set::new(&ours, libc::EPOLLOUT | libc::EPOLLET);
    assert_eq!(edge.wait(0), libc::EPOLLOUT as u32);
    ring(&ours, 4);
    assert_eq!(edge.wait(0), 0);
    assert_eq!(take(&theirs, 3), 3);
    assert_eq!(edge.wait(0), libc::EPOLLOUT as u32);
    assert_eq!(edge.wait(0), 0);
}

#[test]
fn each_bell_is_an_edge_for_the_reader() {
    let (ours, theirs) = small_pair();
    let edge = Set::new(&theirs, libc::EPOLLIN | libc::EPOLLET);
    for _ in 0..3 {
        ring(&ours, 1);
        assert_eq!(edge.wait(0), libc::EPOLLIN as u32);
        assert_eq!(edge.wait(0), 0);
    }
}

#[test]
fn a_full_queue_refuses_bells_and_stays_readable() {
    let (ours, theirs) = small_pair();
    let mut fitted = 0;
    while (&mut &ours).write(&[1]).is_ok() {
        fitted += 1;
        assert!(fitted < 1000);
    }
    println!("{fitted} bells fit the small buffer");
    assert!(fitted >= 7, "four bells of a plug on top of three must fit");
    assert!(readable(&theirs));
}

#[test]
fn bells_and_their_count_outlive_the_sender() {
    let (ours, theirs) = small_pair();
    ring(&ours, 3);
    drop(ours);
    assert_eq!(queued(&theirs), 3);
    assert_eq!(take(&theirs, 9), 3);
    assert_eq!(take(&theirs, 9), 0);
}

#[test]
fn unread_bells_make_the_close_an_error_for_the_peer() {
    let (ours, theirs) = small_pair();
    ring(&ours, 1);
    drop(theirs);
    assert_ne!(poll(&ours, libc::POLLIN | libc::POLLOUT, 0) & (libc::POLLHUP | libc::POLLERR), 0);
}

/// Waiters of every kind on one description are all woken by one bell, as long as nobody takes it out.
#[test]
fn all_waiters_are_woken_when_nobody_drains() {
    for _ in 0..20 {
        let (ours, theirs) = small_pair();
        let (asleep, sleepers) = mpsc::channel();
        thread::scope(|scope| {
            let theirs = &theirs;
            let waiters: [Box<dyn Fn() -> bool + Send>; 4] = [
                Box::new(|| poll(theirs, libc::POLLIN, -1) & libc::POLLIN != 0),
                Box::new(|| poll(theirs, libc::POLLIN, -1) & libc::POLLIN != 0),
                Box::new(|| Set::new(theirs, libc::EPOLLIN).wait(-1) != 0),
                Box::new(|| Set::new(theirs, libc::EPOLLIN | libc::EPOLLET).wait(-1) != 0),
            ];
            for waiter in waiters {
                let asleep = asleep.clone();
                scope.spawn(move || {
                    asleep.send(()).unwrap();
                    assert!(waiter());
                });
            }
            for _ in 0..4 {
                sleepers.recv().unwrap();
            }
            ring(&ours, 1);
        });
        assert_eq!(queued(&theirs), 1);
    }
}

/// Four bells and then the small buffer, in this order, with a reader that drains at any time: afterwards
/// the socket is writable if and only if the reader has drained since.
#[test]
fn a_plug_made_last_never_hides_room() {
    let charge = charge_of_a_bell();
    for round in 0..200 {
        let (ours, theirs) = pair();
        ring(&ours, 4);
        thread::scope(|scope| {
            scope.spawn(|| {
                assert_eq!(take(&theirs, 3), 3);
            });
            scope.spawn(|| set_send_buffer(&ours, send_buffer_for(charge).unwrap()));
            assert_ne!(poll(&ours, libc::POLLOUT, 10_000), 0, "round {round}");
        });
        assert!(writable(&ours));
    }
}

/// The peer sees the end when the last holder of the description is gone, and not before.
#[test]
fn the_last_close_is_what_the_peer_sees() {
    let (ours, theirs) = pair();
    let inherited = ours.try_clone().unwrap();
    drop(ours);
    assert_eq!(poll(&theirs, libc::POLLIN | libc::POLLRDHUP, 0), 0);
    drop(inherited);
    assert_ne!(poll(&theirs, libc::POLLIN | libc::POLLRDHUP, 0) & libc::POLLHUP, 0);
}
