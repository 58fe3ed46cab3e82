//! Both ends of a lane in one process, made without meeting: sending, receiving and waiting on their own.

use std::sync::atomic::{
    AtomicBool, AtomicU32,
    Ordering::{Acquire, Relaxed, Release},
};
use std::time::{Duration, Instant};

use beeline_lane::{End, LaneMemory};
use beeline_shm::SideMemory;
use beeline_sockets::desc::{DESCS, Kind};
use beeline_sockets::side::{SideState, state};
use beeline_sockets::{Outcome, calls, epoll, io, kernel, life, meet, options, table};

#[path = "pair/ahead.rs"]
mod ahead;
#[path = "pair/splices.rs"]
mod splices;

/// The two fds of a fresh lane: client's and server's.
fn lane_pair() -> [i32; 2] {
    lane_pair_of(1 << 20)
}

fn lane_pair_of(ring_bytes: u32) -> [i32; 2] {
    let mut fds = [-1; 2];
    // SAFETY: room for two descriptors.
    assert_eq!(unsafe { libc::socketpair(libc::AF_UNIX, libc::SOCK_STREAM, 0, fds.as_mut_ptr()) }, 0);
    let (lane, _) = LaneMemory::create(ring_bytes).unwrap();
    lane.set_flags(End::Server, beeline_lane::flags::TAKEN);
    for (fd, end) in fds.into_iter().zip([End::Client, End::Server]) {
        // SAFETY: a side is valid when zeroed and lives as long as the process.
        let side: &'static SideState = unsafe { SideMemory::create().unwrap().0.as_ref() };
        side.holders.store(1, std::sync::atomic::Ordering::Relaxed);
        side.rx.begin_armed();
        lane.read_wake(end).store(1, std::sync::atomic::Ordering::Relaxed);
        let desc = DESCS.take().unwrap();
        desc.begin(Kind::Tcp, fd, libc::AF_INET as u32, life::forks());
        meet::begin_bare(desc, lane, side, end);
        table::set(fd, Some(desc)).unwrap();
    }
    fds
}

fn send(fd: i32, bytes: &[u8]) -> Outcome {
    // SAFETY: a live slice.
    unsafe { io::send(fd, bytes.as_ptr(), bytes.len(), libc::MSG_NOSIGNAL) }
}

fn recv(fd: i32, bytes: &mut [u8], flags: i32) -> Outcome {
    // SAFETY: a live slice.
    unsafe { io::recv(fd, bytes.as_mut_ptr(), bytes.len(), flags) }
}

fn wait(set: i32, timeout_ms: i32) -> Vec<(u32, u64)> {
    let mut events = [libc::epoll_event { events: 0, u64: 0 }; 8];
    // SAFETY: room for eight events.
    match unsafe { epoll::wait(set, events.as_mut_ptr(), 8, timeout_ms) } {
        Outcome::Done(count) => events[..count as usize].iter().map(|event| (event.events, event.u64)).collect(),
        other => panic!("{other:?}"),
    }
}

fn control(set: i32, operation: i32, fd: i32, events: i32) -> Outcome {
    let mut event = libc::epoll_event { events: events as u32, u64: fd as u64 };
    // SAFETY: a live event.
    unsafe { calls::epoll_ctl(set, operation, fd, &raw mut event) }
}

fn new_set() -> i32 {
    match calls::epoll_create(libc::EPOLL_CLOEXEC) {
        Outcome::Done(fd) => fd as i32,
        other => panic!("{other:?}"),
    }
}

#[test]
fn bytes_go_both_ways_and_an_empty_lane_blocks_nobody_who_asked_not_to() {
    let [client, server] = lane_pair();
    assert_eq!(send(client, b"hello"), Outcome::Done(5));
    let mut bytes = [0; 16];
    assert_eq!(recv(server, &mut bytes, libc::MSG_PEEK), Outcome::Done(5));
    assert_eq!(recv(server, &mut bytes[..2], 0), Outcome::Done(2));
    assert_eq!(recv(server, &mut bytes[2..], 0), Outcome::Done(3));
    assert_eq!(&bytes[..5], b"hello");
    assert_eq!(recv(server, &mut bytes, libc::MSG_DONTWAIT), Outcome::fail(libc::EAGAIN));
    assert_eq!(send(server, b"x"), Outcome::Done(1));
    assert_eq!(recv(client, &mut bytes, 0), Outcome::Done(1));
}

#[test]
fn a_half_close_is_the_end_of_the_stream_after_the_data() {
    let [client, server] = lane_pair();
    assert_eq!(send(client, b"last"), Outcome::Done(4));
    assert_eq!(calls::shutdown(client, libc::SHUT_WR), Outcome::OK);
    let mut bytes = [0; 16];
    assert_eq!(recv(server, &mut bytes, 0), Outcome::Done(4));
    assert_eq!(recv(server, &mut bytes, 0), Outcome::Done(0));
    assert_eq!(send(client, b"more"), Outcome::fail(libc::EPIPE));
    assert_eq!(send(server, b"reply"), Outcome::Done(5));
    assert_eq!(recv(client, &mut bytes, 0), Outcome::Done(5));
}

#[test]
fn a_blocked_writer_and_a_sleeping_reader_find_each_other() {
    let [client, server] = lane_pair();
    let total: usize = 64 << 20;
    let writer = std::thread::spawn(move || {
        let bytes: Vec<u8> = (0..1_000_003u32).map(|i| (i % 251) as u8).collect();
        let mut sent = 0usize;
        while sent < total {
            let from = sent % bytes.len();
            let part = &bytes[from..bytes.len().min(from + total - sent)];
            match send(client, part) {
                Outcome::Done(count) => sent += count as usize,
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(calls::shutdown(client, libc::SHUT_WR), Outcome::OK);
    });
    let mut got = 0usize;
    let mut bytes = vec![0u8; 300_000];
    loop {
        match recv(server, &mut bytes, 0) {
            Outcome::Done(0) => break,
            Outcome::Done(count) => {
                for (index, byte) in bytes[..count as usize].iter().enumerate() {
                    assert_eq!(*byte, ((got + index) % 1_000_003 % 251) as u8);
                }
                got += count as usize;
            }
            other => panic!("{other:?}"),
        }
        if got.is_multiple_of(7) {
            std::thread::yield_now();
        }
    }
    writer.join().unwrap();
    assert_eq!(got, total);
}

/// A peer that always has some news which is none ends no wait, and keeps no call beyond its time.
#[test]
fn a_peer_that_never_rests_does_not_hold_up_a_receive_with_a_timeout() {
    let [client, server] = lane_pair();
    let lane = table::get(server).unwrap().lane();
    let time = libc::timeval { tv_sec: 0, tv_usec: 50_000 };
    let (value, length) = ((&raw const time).cast(), size_of_val(&time) as u32);
    // SAFETY: a live value of the length given.
    let set = unsafe { options::setsockopt(server, libc::SOL_SOCKET, libc::SO_RCVTIMEO, value, length) };
    assert_eq!(set, Outcome::OK);
    static OVER: AtomicBool = AtomicBool::new(false);
    let peer = std::thread::spawn(move || {
        let mut flags = 0;
        while !OVER.load(Relaxed) {
            flags ^= beeline_lane::flags::SIGNALLED;
            lane.set_flags(End::Client, flags);
        }
    });
    let began = Instant::now();
    assert_eq!(recv(server, &mut [0; 16], 0), Outcome::fail(libc::EAGAIN));
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
    OVER.store(true, Relaxed);
    peer.join().unwrap();
    assert_eq!(send(client, b"x"), Outcome::Done(1));
    assert_eq!(recv(server, &mut [0; 16], 0), Outcome::Done(1));
}

/// It stands at the next byte, and its number is another one at each look.
#[test]
fn a_peer_that_moves_its_urgent_mark_for_ever_keeps_no_receive() {
    static OVER: AtomicBool = AtomicBool::new(false);
    let [client, server] = lane_pair();
    let side = table::get(server).unwrap().side();
    side.rx.set_urgent_inline(true);
    assert_eq!(send(client, b"x"), Outcome::Done(1));
    let lane = table::get(client).unwrap().lane();
    lane.set_flags(End::Client, lane.flags(End::Client) | beeline_lane::flags::URGENT);
    let peer = std::thread::spawn(move || {
        // Not for ever: a receive that is kept is to be told from one that is not.
        for number in 2..u32::MAX {
            lane.set_urgent(End::Client, u64::from(number) << 32);
            if OVER.load(Relaxed) {
                break;
            }
        }
    });
    let began = Instant::now();
    while recv(server, &mut [0; 16], libc::MSG_DONTWAIT) == Outcome::fail(libc::EAGAIN) {
        if began.elapsed() > Duration::from_millis(200) {
            break;
        }
    }
    assert!(began.elapsed() < Duration::from_secs(2), "{:?}", began.elapsed());
    OVER.store(true, Relaxed);
    peer.join().unwrap();
}

#[test]
fn epoll_reports_levels_again_and_edges_once() {
    let [client, server] = lane_pair();
    let (level, edge) = (new_set(), new_set());
    assert_eq!(control(level, libc::EPOLL_CTL_ADD, server, libc::EPOLLIN), Outcome::OK);
    assert_eq!(control(edge, libc::EPOLL_CTL_ADD, server, libc::EPOLLIN | libc::EPOLLET), Outcome::OK);
    assert_eq!(control(edge, libc::EPOLL_CTL_ADD, server, libc::EPOLLIN), Outcome::fail(libc::EEXIST));
    assert!(wait(level, 0).is_empty() && wait(edge, 20).is_empty());
    send(client, b"ab");
    let input = vec![(libc::EPOLLIN as u32, server as u64)];
    assert_eq!((wait(level, -1), wait(edge, -1)), (input.clone(), input.clone()));
    assert_eq!((wait(level, -1), wait(edge, 10)), (input.clone(), vec![]));
    send(client, b"c");
    assert_eq!(wait(edge, 1000), input);
    let mut bytes = [0; 16];
    assert_eq!(recv(server, &mut bytes, 0), Outcome::Done(3));
    assert!(wait(level, 10).is_empty() && wait(edge, 10).is_empty());
    let sender = std::thread::spawn(move || {
        std::thread::sleep(std::time::Duration::from_millis(30));
        send(client, b"d");
    });
    assert_eq!(wait(level, 5000), input);
    sender.join().unwrap();
    assert_eq!(wait(edge, 5000), input);
}

#[test]
fn poll_sees_data_room_and_the_end() {
    let [client, server] = lane_pair();
    let ask = |events: i16, timeout: i32| {
        let mut fds = [libc::pollfd { fd: server, events, revents: 0 }];
        // SAFETY: one entry.
        let outcome = unsafe { calls::poll(fds.as_mut_ptr(), 1, timeout) };
        (outcome, fds[0].revents)
    };
    assert_eq!(ask(libc::POLLIN, 0), (Outcome::OK, 0));
    assert_eq!(ask(libc::POLLOUT, 0), (Outcome::Done(1), libc::POLLOUT));
    send(client, b"x");
    assert_eq!(ask(libc::POLLIN, -1), (Outcome::Done(1), libc::POLLIN));
    let block = vec![7u8; 1 << 16];
    // SAFETY: a live slice.
    while let Outcome::Done(_) = unsafe { io::send(server, block.as_ptr(), block.len(), libc::MSG_DONTWAIT) } {}
    assert_eq!(ask(libc::POLLOUT, 10), (Outcome::OK, 0));
    let reader = std::thread::spawn(move || {
        let mut bytes = vec![0u8; 1 << 20];
        std::thread::sleep(std::time::Duration::from_millis(20));
        recv(client, &mut bytes, 0)
    });
    assert_eq!(ask(libc::POLLOUT, 5000), (Outcome::Done(1), libc::POLLOUT));
    reader.join().unwrap();
    let _ = kernel::now_ns();
}

/// Not a test of speed, but the place to look at it: `cargo test --release --test pair -- --ignored --nocapture`.
#[test]
#[ignore = "prints figures; run by hand on a quiet machine"]
fn figures() {
    let [client, server] = lane_pair();
    let rounds = 2_000_000u32;
    pin(0);
    let mut bytes = [0; 8];
    let start = std::time::Instant::now();
    for _ in 0..rounds {
        send(client, &[1; 8]);
        recv(server, &mut bytes, 0);
    }
    println!("send and recv on one CPU: {:.1} ns", start.elapsed().as_nanos() as f64 / f64::from(rounds));
    let set = new_set();
    control(set, libc::EPOLL_CTL_ADD, server, libc::EPOLLIN);
    let start = std::time::Instant::now();
    let mut events = [libc::epoll_event { events: 0, u64: 0 }; 1];
    for _ in 0..rounds {
        send(client, &[1; 8]);
        // SAFETY: room for one event.
        assert_eq!(unsafe { epoll::wait(set, events.as_mut_ptr(), 1, -1) }, Outcome::Done(1));
        recv(server, &mut bytes, 0);
    }
    println!("with epoll_wait between them: {:.1} ns", start.elapsed().as_nanos() as f64 / f64::from(rounds));
    control(set, libc::EPOLL_CTL_DEL, server, 0);
    let flag = std::sync::Arc::new(std::sync::atomic::AtomicU32::new(0));
    let other = flag.clone();
    let hand = move |flag: &std::sync::atomic::AtomicU32, mine: u32| {
        for round in 0..rounds {
            while flag.load(std::sync::atomic::Ordering::Acquire) != 2 * round + mine {}
            flag.store(2 * round + mine + 1, std::sync::atomic::Ordering::Release);
        }
    };
    // The partner inherits this thread's CPU, which a spinner of real-time priority would never leave to it.
    pin(1);
    let partner = std::thread::spawn(move || hand(&other, 1));
    pin(0);
    let start = std::time::Instant::now();
    hand(&flag, 0);
    partner.join().unwrap();
    println!("cache line handed over: {:.1} ns", start.elapsed().as_nanos() as f64 / f64::from(rounds) / 2.0);
    pin(1);
    let echo = std::thread::spawn(move || {
        let mut bytes = [0; 8];
        for _ in 0..rounds {
            assert_eq!(recv(server, &mut bytes, 0), Outcome::Done(8));
            send(server, &bytes);
        }
    });
    pin(0);
    let start = std::time::Instant::now();
    let mut bytes = [0; 8];
    for _ in 0..rounds {
        send(client, &[1; 8]);
        recv(client, &mut bytes, 0);
    }
    println!("8 B one way: {:.1} ns", start.elapsed().as_nanos() as f64 / f64::from(rounds) / 2.0);
    echo.join().unwrap();
    for (size, count) in [(64usize, 20_000_000usize), (1024, 5_000_000), (65536, 400_000), (1 << 20, 20_000)] {
        stream(size, count);
    }
}

/// Puts this thread on one CPU.
fn pin(cpu: usize) {
    // SAFETY: a zeroed cpu_set_t is valid.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(cpu, &mut set);
        libc::sched_setaffinity(0, size_of_val(&set), &raw const set);
    }
}

/// Streams `count` blocks of `size` bytes and prints how fast that went.
fn stream(size: usize, count: usize) {
    let [client, server] = lane_pair();
    pin(1);
    let reader = std::thread::spawn(move || {
        let mut bytes = vec![0u8; size.max(65536)];
        let mut left = size * count;
        while left != 0 {
            match recv(server, &mut bytes, 0) {
                Outcome::Done(got) => left -= got as usize,
                other => panic!("{other:?}"),
            }
        }
    });
    pin(0);
    let block = vec![1u8; size];
    let start = std::time::Instant::now();
    for _ in 0..count {
        assert_eq!(send(client, &block), Outcome::Done(size as isize));
    }
    reader.join().unwrap();
    let seconds = start.elapsed().as_secs_f64();
    println!("{size} B: {:.1} M/s, {:.1} GB/s", count as f64 / seconds / 1e6, (size * count) as f64 / seconds / 1e9);
}

/// Bytes of shared memory this process has resident.
fn shared_bytes() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("RssShmem:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<usize>().unwrap() * 1024
}

/// Messages of 64 KiB through `pairs`, each sent with `flags` before it is received.
fn exchange(pairs: &[[i32; 2]], times: usize, flags: i32) {
    let message: Vec<u8> = (0..64 * 1024).map(|at: u32| (at % 251) as u8).collect();
    let mut got = vec![0; message.len()];
    for [client, server] in pairs {
        for _ in 0..times {
            // SAFETY: a live slice.
            let sent = unsafe { io::send(*client, message.as_ptr(), message.len(), flags) };
            assert_eq!(sent, Outcome::Done(message.len() as isize));
            assert_eq!(recv(*server, &mut got, libc::MSG_WAITALL), Outcome::Done(message.len() as isize));
            assert_eq!(got, message);
        }
    }
}
#[test]
fn idle_connections_give_the_memory_of_their_streams_back() {
    // More than `stream_bytes_max` in all, with rings of a megabyte. Sends that must not block fill them to their ends;
    // with turns a ring would stay at its beginning.
    let flags = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT;
    let before = shared_bytes();
    let pairs: Vec<_> = (0..300).map(|_| lane_pair()).collect();
    exchange(&pairs, 17, flags);
    let held = shared_bytes() - before;
    assert!(held < 100 << 20, "{held} bytes");
    exchange(&pairs, 1, flags);
}

/// What a send comes to if the peer closes before it is rung, and the error that is left on the socket. The peer has
/// read `read` of the five bytes by that time.
fn send_to_one_that_goes(read: u32) -> (Outcome, i32) {
    let [client, server] = lane_pair();
    let desc = table::get(client).unwrap();
    // Nobody can come between the announcement and the bell, so the peer has done it all before.
    desc.lane().set_head(End::Server, read);
    table::set(server, None).unwrap();
    // SAFETY: ours, and nothing leads there any more.
    unsafe { libc::close(server) };
    let sent = send(client, b"hello");
    assert_eq!(recv(client, &mut [0; 8], 0), Outcome::OK);
    (sent, desc.side().error.load(std::sync::atomic::Ordering::Relaxed))
}

#[test]
fn a_peer_that_reads_all_and_closes_before_its_bell_is_rung_has_closed_in_good_order() {
    assert_eq!(send_to_one_that_goes(5), (Outcome::Done(5), 0));
    assert_eq!(send_to_one_that_goes(0), (Outcome::Done(5), libc::EPIPE));
}

/// The door has died, and another thread is about to begin again over TCP: what is sent meanwhile, and rings as at the
/// bridge's door, stays in the ring, as that thread will find it.
#[test]
fn a_send_while_another_thread_begins_again_resets_nothing() {
    let [client, server] = lane_pair();
    let desc = table::get(client).unwrap();
    desc.lane().set_flags(End::Server, 0);
    table::set(server, None).unwrap();
    // SAFETY: ours, and nothing leads there any more.
    unsafe { libc::close(server) };
    desc.leaving.store(true, Relaxed);
    assert_eq!(send(client, b"hello"), Outcome::Done(5));
    assert_eq!(send(client, b"again"), Outcome::Done(5));
    let side = desc.side();
    assert!(!side.is(state::RESET | state::PEER_CLOSED));
    assert_eq!((side.error.load(Relaxed), side.tx.tail()), (0, 10));
    desc.leaving.store(false, Relaxed);
}

/// A peer that sends a byte and shuts its half, again and again, while another thread peeks without rest: a look at the
/// ring that came too early for the byte is not the last one before the end is told.
#[test]
fn a_peek_does_not_tell_of_the_end_before_the_last_byte() {
    const ROUNDS: u32 = 200_000;
    static ROUND: AtomicU32 = AtomicU32::new(0);
    let [_client, server] = lane_pair();
    let (lane, side) = (table::get(server).unwrap().lane(), table::get(server).unwrap().side());
    let peer = std::thread::spawn(move || {
        for round in 1..ROUNDS {
            while ROUND.load(Acquire) < round {
                std::hint::spin_loop();
            }
            if ROUND.load(Acquire) == ROUNDS {
                break;
            }
            (0..round % 64).for_each(|_| std::hint::spin_loop());
            lane.set_cursor(End::Client, beeline_lane::Cursor { tail: round, base: 0 });
            lane.set_flags(End::Client, beeline_lane::flags::FIN);
        }
    });
    let (began, mut early) = (Instant::now(), 0);
    for round in (1..ROUNDS).take_while(|_| began.elapsed() < Duration::from_secs(2)) {
        ROUND.store(round, Release);
        let mut byte = [0; 1];
        let seen = loop {
            let outcome = recv(server, &mut byte, libc::MSG_PEEK | libc::MSG_DONTWAIT);
            if outcome != Outcome::fail(libc::EAGAIN) {
                break outcome;
            }
        };
        early += u32::from(seen != Outcome::Done(1));
        assert_eq!(recv(server, &mut byte, 0), Outcome::Done(1));
        while lane.flags(End::Client) & beeline_lane::flags::FIN == 0 {
            std::hint::spin_loop();
        }
        lane.set_flags(End::Client, 0);
        side.state.fetch_and(!state::PEER_FIN, Relaxed);
    }
    ROUND.store(ROUNDS, Release);
    peer.join().unwrap();
    assert_eq!(early, 0);
}
