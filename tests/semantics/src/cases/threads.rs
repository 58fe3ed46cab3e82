//! Threads that share a connection, and streams long enough to go round every ring many times.

use crate::case::axes::{FAMILY, MODE, ONCE};
use crate::case::{Case, Group};
use crate::trace;
use crate::traced::*;
use crate::variant::Variant;
use beeline_testkit::sys;

pub const GROUP: Group = Group {
    name: "threads",
    cases: &[
        Case::new("one_sends_one_receives", FAMILY | MODE, one_sends_one_receives),
        Case::new("four_senders", FAMILY, four_senders),
        Case::new("four_receivers", FAMILY, four_receivers),
        Case::new("both_ways_at_full_speed", FAMILY | MODE, both_ways_at_full_speed),
        Case::new("both_ways_between_processes", FAMILY, both_ways_between_processes),
        Case::new("ping_pong_between_threads", FAMILY, ping_pong_between_threads),
        Case::new("ping_pong_by_poll", FAMILY, |v| ping_pong_waiting(v, wait_poll)),
        Case::new("ping_pong_by_select", FAMILY, |v| ping_pong_waiting(v, wait_select)),
        Case::new("ping_pong_by_epoll", FAMILY, |v| ping_pong_waiting(v, wait_epoll)),
        Case::new("ping_pong_between_processes", FAMILY, ping_pong_between_processes),
        Case::new("shutdown_ends_a_blocked_sender", FAMILY, shutdown_ends_a_blocked_sender),
        Case::new("peer_close_ends_a_blocked_sender", FAMILY, peer_close_ends_a_blocked_sender),
        Case::new("drain_wakes_a_blocked_sender", FAMILY, drain_wakes_a_blocked_sender),
        Case::new("close_by_another_thread", FAMILY, close_by_another_thread),
        Case::new("connections_come_and_go", ONCE, connections_come_and_go),
        Case::new("long_stream_tiny_chunks", ONCE, |v| long_stream(v, 2 << 20, 16, 4096)),
        Case::new("long_stream_tiny_reads", ONCE, |v| long_stream(v, 2 << 20, 4096, 16)),
        Case::new("long_stream_odd_chunks", FAMILY | MODE, |v| long_stream(v, 64 << 20, 70_001, 50_021)),
        Case::new("long_stream_large_chunks", FAMILY, |v| long_stream(v, 64 << 20, 3 << 20, 5 << 20)),
        Case::new("long_stream_by_vectors", ONCE, long_stream_by_vectors),
        Case::new("long_stream_with_peeks", ONCE, long_stream_with_peeks),
        Case::new("full_then_drained", FAMILY, full_then_drained),
        Case::new("full_both_ways", FAMILY, full_both_ways),
        Case::new("partial_write_when_almost_full", FAMILY, partial_write_when_almost_full),
    ],
};

fn in_thread(name: &'static str, body: impl FnOnce() + Send + 'static) -> std::thread::JoinHandle<()> {
    std::thread::spawn(move || {
        trace::set_actor(name);
        body();
    })
}

fn one_sends_one_receives(v: Variant) {
    let (client, server) = v.pair();
    let sender = in_thread("sender", move || send_stream(client, 31, 8 << 20, 30_000));
    receive_stream(server, 32, 8 << 20, 20_000);
    let _ = sender.join();
}

fn four_senders(v: Variant) {
    let (client, server) = v.pair();
    let senders = [b'a', b'b', b'c', b'd'].map(|letter| {
        std::thread::spawn(move || {
            for round in 0..5000_usize {
                let data = vec![letter; 1 + round % 50];
                let mut done = 0;
                while done < data.len() {
                    done += sys::send(client.raw, &data[done..], 0).size();
                }
            }
        })
    });
    let mut counts = [0_u64; 256];
    let mut buffer = vec![0; 10_000];
    let total: u64 = 4 * (0..5000).map(|round| 1 + round % 50).sum::<u64>();
    while counts.iter().sum::<u64>() < total {
        let ret = sys::recv(server.raw, &mut buffer, 0);
        if ret.value <= 0 {
            return trace!("recv {ret}");
        }
        buffer[..ret.size()].iter().for_each(|byte| counts[usize::from(*byte)] += 1);
    }
    for sender in senders {
        let _ = sender.join();
    }
    trace!("{:?}", b"abcd".map(|letter| counts[usize::from(letter)]));
}

fn four_receivers(v: Variant) {
    let (client, server) = v.pair();
    let receivers = [(); 4].map(|()| {
        std::thread::spawn(move || {
            let (mut sum, mut count) = (0_u64, 0_u64);
            let mut buffer = [0; 333];
            loop {
                let ret = sys::recv(server.raw, &mut buffer, 0);
                if ret.value <= 0 {
                    return (sum, count);
                }
                count += ret.value as u64;
                sum += buffer[..ret.size()].iter().map(|byte| u64::from(*byte)).sum::<u64>();
            }
        })
    });
    let mut expected = 0;
    for at in 0..20_000_u32 {
        let data = [at as u8; 13];
        expected += 13 * u64::from(at as u8);
        sys::send(client.raw, &data, 0);
    }
    close(client);
    let mut all = (0, 0);
    for (sum, count) in receivers.into_iter().filter_map(|receiver| receiver.join().ok()) {
        all = (all.0 + sum, all.1 + count);
    }
    trace!("bytes {}, sum right: {}", all.1, all.0 == expected);
}

fn both_ways_at_full_speed(v: Variant) {
    let (client, server) = v.pair();
    let threads = [
        in_thread("client sends", move || send_stream(client, 41, 16 << 20, 60_000)),
        in_thread("server sends", move || send_stream(server, 42, 16 << 20, 10_000)),
        in_thread("client receives", move || receive_stream(client, 43, 16 << 20, 40_000)),
        in_thread("server receives", move || receive_stream(server, 44, 16 << 20, 9000)),
    ];
    for thread in threads {
        let _ = thread.join();
    }
}

fn both_ways_between_processes(v: Variant) {
    let (client, server) = v.pair();
    let child = sys::fork(|| {
        trace::set_actor("child");
        sys::close(client.raw);
        let sender = in_thread("child sends", move || send_stream(server, 52, 16 << 20, 10_000));
        receive_stream(server, 54, 16 << 20, 9000);
        let _ = sender.join();
        0
    });
    close(server);
    let sender = in_thread("parent sends", move || send_stream(client, 51, 16 << 20, 60_000));
    receive_stream(client, 53, 16 << 20, 40_000);
    let _ = sender.join();
    trace!("child: {}", sys::wait_for(child));
    recv(client, 8, 0);
}

/// Answers each message of eight bytes with one more than its number.
fn answer(fd: Fd, rounds: u64, wait: fn(Fd)) {
    for _ in 0..rounds {
        wait(fd);
        let mut word = [0; 8];
        let ret = sys::recv(fd.raw, &mut word, libc::MSG_WAITALL);
        if ret.value != 8 {
            return trace!("recv {ret}");
        }
        sys::send(fd.raw, &(u64::from_le_bytes(word) + 1).to_le_bytes(), 0);
    }
}

fn ask(fd: Fd, rounds: u64, wait: fn(Fd)) {
    let mut wrong = 0;
    for round in 0..rounds {
        sys::send(fd.raw, &round.to_le_bytes(), 0);
        wait(fd);
        let mut word = [0; 8];
        let ret = sys::recv(fd.raw, &mut word, libc::MSG_WAITALL);
        wrong += u32::from(ret.value != 8 || u64::from_le_bytes(word) != round + 1);
    }
    trace!("{rounds} rounds, wrong {wrong}");
}

fn ping_pong_between_threads(v: Variant) {
    let (client, server) = v.pair();
    let thread = in_thread("thread", move || answer(server, 5000, |_| {}));
    ask(client, 5000, |_| {});
    let _ = thread.join();
}

fn wait_poll(fd: Fd) {
    sys::poll(&mut [libc::pollfd { fd: fd.raw, events: libc::POLLIN, revents: 0 }], -1);
}

fn wait_select(fd: Fd) {
    let mut sets =
        sys::Sets { read: sys::FdSet::of(&[fd.raw]), write: sys::FdSet::of(&[]), except: sys::FdSet::of(&[]) };
    sys::select(fd.raw + 1, &mut sets, -1);
}

/// A set that lives for one wait: entries that come and go all the time.
fn wait_epoll(fd: Fd) {
    let set = sys::epoll_create1(0).value as i32;
    sys::epoll_ctl(set, libc::EPOLL_CTL_ADD, fd.raw, libc::EPOLLIN as u32, 0);
    sys::epoll_wait(sys::EpollCall::Wait, set, 1, -1, None);
    sys::close(set);
}

fn ping_pong_waiting(v: Variant, wait: fn(Fd)) {
    let (client, server) = v.pair();
    let thread = in_thread("thread", move || answer(server, 2000, wait));
    ask(client, 2000, wait);
    let _ = thread.join();
}

fn ping_pong_between_processes(v: Variant) {
    let (client, server) = v.pair();
    let child = sys::fork(|| {
        sys::close(client.raw);
        answer(server, 5000, |_| {});
        0
    });
    close(server);
    ask(client, 5000, |_| {});
    trace!("child: {}", sys::wait_for(child));
}

/// A thread that sends until it cannot; `end` happens once it sleeps. How much it sent is its own affair.
fn blocked_sender(client: Fd, end: impl FnOnce()) {
    let (tell, told) = std::sync::mpsc::channel();
    let sender = in_thread("sender", move || {
        let _ = tell.send(sys::thread_id());
        let data = vec![1; 64 << 20];
        let first = sys::send(client.raw, &data, libc::MSG_NOSIGNAL);
        trace!("first send took some: {}", first.value > 0 && first.size() < data.len());
        send(client, b"second", libc::MSG_NOSIGNAL);
        send(client, b"third", libc::MSG_NOSIGNAL);
    });
    if let Ok(thread) = told.recv() {
        await_asleep(thread);
    }
    end();
    let _ = sender.join();
}

fn shutdown_ends_a_blocked_sender(v: Variant) {
    let (client, server) = v.pair();
    blocked_sender(client, || {
        await_readable(server);
        shutdown(client, libc::SHUT_WR);
    });
}

fn peer_close_ends_a_blocked_sender(v: Variant) {
    let (client, server) = v.pair();
    blocked_sender(client, || {
        await_readable(server);
        close(server);
    });
    poll_now(client);
}

fn drain_wakes_a_blocked_sender(v: Variant) {
    let (client, server) = v.pair();
    let (tell, told) = std::sync::mpsc::channel();
    let sender = in_thread("sender", move || {
        let _ = tell.send(sys::thread_id());
        send_stream(client, 61, 32 << 20, 20 << 20);
        close(client);
    });
    if let Ok(thread) = told.recv() {
        await_asleep(thread);
    }
    receive_stream(server, 62, 32 << 20, 1 << 20);
    let _ = sender.join();
    await_hangup(server);
    recv(server, 8, 0);
}

fn close_by_another_thread(v: Variant) {
    // The blocked receiver is not woken by a close in its own process; the data still reaches it, and the connection
    // ends only when it has returned.
    let (client, server) = v.pair();
    let main = sys::thread_id();
    let thread = in_thread("thread", move || {
        await_asleep(main);
        close(client);
        send(server, b"late", 0);
    });
    recv(client, 8, 0);
    let _ = thread.join();
    await_hangup(server);
    recv(server, 8, 0);
    recv(client, 8, 0);
}

fn connections_come_and_go(v: Variant) {
    let listener = v.listener();
    let server = in_thread("server", move || {
        for _ in 0..200 {
            let fd = crate::across::accept(listener.raw).value as i32;
            let mut buffer = [0; 64];
            let got = sys::recv(fd, &mut buffer, 0).size();
            sys::send(fd, &buffer[..got], 0);
            sys::recv(fd, &mut buffer, 0);
            sys::close(fd);
        }
    });
    let mut right = 0;
    for round in 0..200_u32 {
        let client = v.client();
        sys::connect(client.raw, &v.address_of(listener));
        trace::write_note(format_args!("pair"));
        sys::send(client.raw, &round.to_le_bytes(), 0);
        let mut back = [0; 4];
        sys::recv(client.raw, &mut back, libc::MSG_WAITALL);
        right += u32::from(back == round.to_le_bytes());
        sys::close(client.raw);
    }
    let _ = server.join();
    trace!("right {right}");
}

fn long_stream(v: Variant, length: u64, send_max: usize, receive_max: usize) {
    let (client, server) = v.pair();
    let sender = in_thread("sender", move || {
        send_stream(client, 71, length, send_max);
        close(client);
    });
    receive_stream(server, 72, length, receive_max);
    let _ = sender.join();
    await_hangup(server);
    recv(server, 8, 0);
}

fn long_stream_by_vectors(v: Variant) {
    let (client, server) = v.pair();
    let sender = in_thread("sender", move || {
        let mut at: u64 = 0;
        for round in 0..3000_usize {
            let lengths = [round % 7, 100, 0, round % 991, 1];
            let data: Vec<Vec<u8>> = lengths
                .iter()
                .map(|length| {
                    let mut piece = vec![0; *length];
                    beeline_testkit::rng::fill_stream(9, at, &mut piece);
                    at += *length as u64;
                    piece
                })
                .collect();
            let pieces: Vec<&[u8]> = data.iter().map(Vec::as_slice).collect();
            let whole: usize = lengths.iter().sum();
            let ret = sys::writev(client.raw, &sys::Pieces::of_data(&pieces));
            if ret.size() != whole {
                return trace!("writev {ret} of {whole}");
            }
        }
        close(client);
    });
    let mut hash = beeline_testkit::rng::Hash::default();
    let mut got = 0;
    loop {
        let mut pieces = sys::Pieces::of_lengths(&[1, 0, 700, 3, 5000]);
        let ret = sys::readv(server.raw, &mut pieces);
        if ret.value <= 0 {
            break;
        }
        hash.feed(&pieces.taken(ret.size()));
        got += ret.value;
    }
    let _ = sender.join();
    trace!("{got} bytes {:016x}", hash.0);
}

fn long_stream_with_peeks(v: Variant) {
    let (client, server) = v.pair();
    let sender = in_thread("sender", move || {
        send_stream(client, 81, 4 << 20, 10_000);
        close(client);
    });
    let mut differences = 0;
    let mut got = 0;
    loop {
        let (mut peeked, mut taken) = ([0; 3000], [0; 3000]);
        let seen = sys::recv(server.raw, &mut peeked, libc::MSG_PEEK).size();
        if seen == 0 {
            break;
        }
        let count = sys::recv(server.raw, &mut taken[..seen], 0).size();
        differences += u32::from(count != seen || peeked[..seen] != taken[..seen]);
        got += count;
    }
    let _ = sender.join();
    trace!("{got} bytes, differences {differences}");
}

fn full_then_drained(v: Variant) {
    let (client, server) = v.pair();
    for round in 0..3 {
        let sent = fill_firmly(client, round);
        trace!("took some: {}", sent > 0);
        poll(&[(client, libc::POLLOUT)], 0);
        drain(server, round, sent);
        await_writable(client);
        poll_now(client);
        fionread(server);
    }
}

fn full_both_ways(v: Variant) {
    let (client, server) = v.pair();
    let up = fill_firmly(client, 1);
    let down = fill_firmly(server, 2);
    poll_now(client);
    poll_now(server);
    drain(client, 2, down);
    drain(server, 1, up);
    await_writable(client);
    await_writable(server);
    poll_now(client);
    poll_now(server);
}

fn partial_write_when_almost_full(v: Variant) {
    // A non-blocking write of more than fits is taken in part, and that part is a prefix.
    let (client, server) = v.pair();
    let mut data = vec![0; 64 << 20];
    beeline_testkit::rng::fill_stream(5, 0, &mut data);
    let ret = sys::send(client.raw, &data, libc::MSG_DONTWAIT);
    trace!("in part: {}", ret.value > 0 && ret.size() < data.len());
    drain(server, 5, ret.value as u64);
    await_writable(client);
    fionread(server);
}
