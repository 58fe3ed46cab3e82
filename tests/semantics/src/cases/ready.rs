//! poll and select over mixtures: connections, listeners, pipes, files, bad descriptors.

mod sets;

use crate::case::axes::{FAMILY, MODE, ONCE};
use crate::case::{Case, Group};
use crate::child::bad_fd;
use crate::trace;
use crate::traced::*;
use crate::variant::Variant;
use beeline_testkit::sys;
use std::time::{Duration, Instant};

pub const GROUP: Group = Group {
    name: "ready",
    cases: &[
        Case::new("poll_mixture", FAMILY, poll_mixture),
        Case::new("select_mixture", FAMILY, select_mixture),
        Case::new("poll_waits_for_the_pipe", ONCE, poll_waits_for_the_pipe),
        Case::new("poll_waits_for_the_listener", FAMILY, poll_waits_for_the_listener),
        Case::new("select_waits_for_the_listener", FAMILY, select_waits_for_the_listener),
        Case::new("poll_timeout_zero_and_positive", FAMILY | MODE, poll_timeout_zero_and_positive),
        Case::new("poll_skips_negative_entries", ONCE, poll_skips_negative_entries),
        Case::new("poll_bad_descriptor", ONCE, poll_bad_descriptor),
        Case::new("poll_same_descriptor_twice", FAMILY, poll_same_descriptor_twice),
        Case::new("poll_nothing_at_all", ONCE, poll_nothing_at_all),
        Case::new("poll_too_many", ONCE, poll_too_many),
        Case::new("poll_as_many_as_are_allowed", FAMILY, poll_as_many_as_are_allowed),
        Case::new("poll_bad_pointer", ONCE, poll_bad_pointer),
        Case::new("select_bad_descriptor", ONCE, select_bad_descriptor),
        Case::new("select_count_limits", ONCE, select_count_limits),
        Case::new("select_count_beyond_the_set", FAMILY, sets::count_beyond_the_set),
        Case::new("select_sets_beyond_the_usual_size", FAMILY, sets::sets_beyond_the_usual_size),
        Case::new("select_bits_above_the_count", FAMILY, sets::bits_above_the_count),
        Case::new("select_bad_sets", ONCE, sets::bad_sets),
        Case::new("select_leaves_time", ONCE, select_leaves_time),
        Case::new("select_clears_sets_on_timeout", ONCE, select_clears_sets_on_timeout),
        Case::new("many_connections_some_ready", FAMILY, many_connections_some_ready),
        Case::new("ready_while_another_waits_long", ONCE, ready_while_another_waits_long),
        Case::new("lane_and_plain_tcp", ONCE, lane_and_plain_tcp).on_any_path(),
        Case::new("negative_ppoll_time", ONCE, negative_ppoll_time),
        Case::new("poll_writable_after_drain", FAMILY, poll_writable_after_drain),
        Case::new("select_writable_after_drain", FAMILY, select_writable_after_drain),
        Case::new("room_that_comes_while_a_wait_begins", ONCE, room_that_comes_while_a_wait_begins),
    ],
};

const IN: i16 = libc::POLLIN;
const OUT: i16 = libc::POLLOUT;

pub(super) fn pipe() -> (Fd, Fd) {
    let (_, ends) = sys::pipe2(0);
    (Fd::new(ends[0], "reader"), Fd::new(ends[1], "writer"))
}

fn poll_mixture(v: Variant) {
    let listener = v.listener();
    let (client, server) = v.pair_on(listener);
    let (reader, writer) = pipe();
    let all = [(client, IN | OUT), (server, IN | OUT), (listener, IN | OUT), (reader, IN), (writer, OUT)];
    poll(&all, 0);
    write(writer, b"x");
    poll(&all, 0);
    send(client, b"x", 0);
    await_readable(server);
    poll(&all, 0);
    let other = v.client();
    connect(other, &v.address_of(listener));
    await_readable(listener);
    poll(&all, 0);
    read(reader, 1);
    recv(server, 1, 0);
    accept(listener, "third");
    poll(&all, 0);
    close(client);
    await_hangup(server);
    poll(&all[1..], 0);
}

fn select_mixture(v: Variant) {
    let listener = v.listener();
    let (client, server) = v.pair_on(listener);
    let (reader, writer) = pipe();
    let inputs = [client, server, listener, reader];
    let outputs = [client, server, writer];
    select(&inputs, &outputs, &inputs, 0);
    write(writer, b"x");
    send(server, b"x", 0);
    await_readable(client);
    select(&inputs, &outputs, &[], 0);
    let other = v.client();
    connect(other, &v.address_of(listener));
    await_readable(listener);
    select(&inputs, &[], &[], -1);
    select(&inputs, &outputs, &inputs, 1000);
    select(&[listener], &[], &[], 0);
    select(&[server], &[], &[], 0);
}

/// Waits by `wait` while a thread makes `event` happen as soon as main sleeps.
fn eventually(event: impl FnOnce() + Send + 'static, wait: impl FnOnce()) {
    let thread = once_asleep("thread", move || {
        event();
    });
    wait();
    let _ = thread.join();
}

fn poll_waits_for_the_pipe(v: Variant) {
    let (client, server) = v.pair();
    let (reader, writer) = pipe();
    let all = [(client, IN), (reader, IN), (server, IN)];
    eventually(
        move || {
            write(writer, b"x");
        },
        || {
            poll(&all, -1);
        },
    );
    read(reader, 1);
    eventually(
        move || {
            send(client, b"x", 0);
        },
        || {
            poll(&all, -1);
        },
    );
}

fn poll_waits_for_the_listener(v: Variant) {
    let listener = v.listener();
    let (client, _server) = v.pair_on(listener);
    eventually(
        move || {
            connect(v.client(), &v.address_of(listener));
        },
        || {
            poll(&[(client, IN), (listener, IN)], -1);
        },
    );
    let second = accept(listener, "second");
    poll(&[(client, IN), (listener, IN), (second, OUT)], 0);
}

fn select_waits_for_the_listener(v: Variant) {
    let listener = v.listener();
    let (client, _server) = v.pair_on(listener);
    eventually(
        move || {
            connect(v.client(), &v.address_of(listener));
        },
        || {
            select(&[client, listener], &[], &[], -1);
        },
    );
    accept(listener, "second");
    select(&[client, listener], &[], &[], 0);
}

fn poll_timeout_zero_and_positive(v: Variant) {
    let (client, _server) = v.pair();
    poll(&[(client, IN)], 0);
    let start = Instant::now();
    poll(&[(client, IN)], 30);
    trace!("waited: {}", start.elapsed() >= Duration::from_millis(29));
    let start = Instant::now();
    ppoll(&[(client, IN)], 30, None);
    trace!("waited: {}", start.elapsed() >= Duration::from_millis(29));
    let start = Instant::now();
    select(&[client], &[], &[], 30);
    trace!("waited: {}", start.elapsed() >= Duration::from_millis(29));
    poll(&[(client, IN | OUT)], 30);
}

fn poll_skips_negative_entries(v: Variant) {
    let (client, server) = v.pair();
    send(server, b"x", 0);
    await_readable(client);
    let hidden = Fd::new(-client.raw, "hidden");
    poll(&[(hidden, IN), (client, IN), (Fd::new(-1, "minus"), IN)], 0);
    poll(&[(hidden, IN)], 0);
}

fn poll_bad_descriptor(v: Variant) {
    let (client, _server) = v.pair();
    poll(&[(bad_fd(), IN), (client, OUT)], 0);
    poll(&[(bad_fd(), 0)], -1);
    close(client);
    poll(&[(client, IN | OUT)], -1);
}

fn poll_same_descriptor_twice(v: Variant) {
    let (client, server) = v.pair();
    send(server, b"x", 0);
    await_readable(client);
    poll(&[(client, IN), (client.named("twin"), OUT), (client.named("third"), 0)], 0);
}

fn poll_nothing_at_all(_: Variant) {
    poll(&[], 0);
    let start = Instant::now();
    poll(&[], 20);
    trace!("waited: {}", start.elapsed() >= Duration::from_millis(19));
}

fn poll_too_many(v: Variant) {
    let (client, _server) = v.pair();
    trace!("over the limit of descriptors: {}", sys::poll_at(0x10, u64::from(u32::MAX), 0));
    let many = vec![(client, OUT); 900];
    let found = poll_quietly(&many);
    trace!("900 entries: {found}");
    let before = descriptors_allowed(None);
    descriptors_allowed(Some(libc::rlimit { rlim_cur: 800, ..before }));
    let found = poll_quietly(&many);
    trace!("where 800 descriptors are allowed: {found}");
    let few = sets::page_before_nothing(libc::PROT_READ | libc::PROT_WRITE) + 4096 - size_of::<libc::pollfd>();
    trace!("more than there are: {} {}", sys::poll_at(few, 801, 0), sys::poll_at(few, u64::from(u32::MAX), 0));
    descriptors_allowed(Some(before));
    let found = poll_quietly(&many);
    trace!("as before: {found}");
}

/// What stands beside a listener unseen counts for nothing.
fn poll_as_many_as_are_allowed(v: Variant) {
    let (one, other) = (v.listener(), v.listener());
    let before = descriptors_allowed(None);
    descriptors_allowed(Some(libc::rlimit { rlim_cur: 64, ..before }));
    let entries = vec![(one, IN); 63].into_iter().chain([(other, IN)]).collect::<Vec<_>>();
    let nobody = poll_quietly(&entries);
    descriptors_allowed(Some(before));
    connect(v.client(), &v.address_of(other));
    descriptors_allowed(Some(libc::rlimit { rlim_cur: 64, ..before }));
    let mut found = 0;
    while found == 0 {
        found = poll_quietly(&entries);
    }
    descriptors_allowed(Some(before));
    trace!("nobody: {nobody}, somebody: {found}");
    accept(other, "came");
}

/// The limit of descriptors, and then another one.
fn descriptors_allowed(next: Option<libc::rlimit>) -> libc::rlimit {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: live structs.
    unsafe {
        libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit);
        if let Some(next) = next {
            libc::setrlimit(libc::RLIMIT_NOFILE, &raw const next);
        }
    }
    limit
}

fn poll_quietly(fds: &[(Fd, i16)]) -> i64 {
    let mut entries: Vec<libc::pollfd> =
        fds.iter().map(|(fd, events)| libc::pollfd { fd: fd.raw, events: *events, revents: 0 }).collect();
    sys::poll(&mut entries, 0).value
}

fn poll_bad_pointer(_: Variant) {
    trace!("null with entries: {}", sys::poll_at(0, 2, 0));
    trace!("unmapped: {}", sys::poll_at(0x10, 2, 0));
    trace!("null without entries: {}", sys::poll_at(0, 0, 0));
}

fn select_bad_descriptor(v: Variant) {
    let (client, _server) = v.pair();
    select(&[client, bad_fd()], &[], &[], 0);
    select(&[], &[client], &[bad_fd()], -1);
    close(client);
    select(&[client], &[], &[], -1);
}

fn select_count_limits(v: Variant) {
    let (client, server) = v.pair();
    send(server, b"x", 0);
    await_readable(client);
    let sets =
        || sys::Sets { read: sys::FdSet::of(&[client.raw]), write: sys::FdSet::of(&[]), except: sys::FdSet::of(&[]) };
    trace!("count just below: {}", sys::select(client.raw, &mut sets(), 0).0);
    trace!("count just right: {}", sys::select(client.raw + 1, &mut sets(), 0).0);
    trace!("count 1024: {}", sys::select(1024, &mut sets(), 0).0);
    trace!("count 0: {}", sys::select(0, &mut sets(), 0).0);
    trace!("count -1: {}", sys::select(-1, &mut sets(), 0).0);
    let mut both = sets();
    both.write = sys::FdSet::of(&[client.raw]);
    trace!("one descriptor in two sets counts twice: {}", sys::select(1024, &mut both, 0).0);
}

fn select_leaves_time(v: Variant) {
    let (client, server) = v.pair();
    send(server, b"x", 0);
    await_readable(client);
    let mut sets =
        sys::Sets { read: sys::FdSet::of(&[client.raw]), write: sys::FdSet::of(&[]), except: sys::FdSet::of(&[]) };
    let (ret, left) = sys::select(1024, &mut sets, 10_000);
    trace!("ready: {ret}, time left: {}", left > 5000 && left <= 10_000);
    recv(client, 1, 0);
    let (ret, left) = sys::select(1024, &mut sets, 20);
    trace!("not ready: {ret}, time left: {left}");
}

fn select_clears_sets_on_timeout(v: Variant) {
    let (client, server) = v.pair();
    let fds = [client.raw, server.raw];
    let mut sets = sys::Sets { read: sys::FdSet::of(&fds), write: sys::FdSet::of(&[]), except: sys::FdSet::of(&fds) };
    let (ret, _) = sys::select(1024, &mut sets, 10);
    let left = fds.iter().any(|fd| sets.read.has(*fd) || sets.except.has(*fd));
    trace!("{ret}, something left: {left}");
    let mut sets =
        sys::Sets { read: sys::FdSet::of(&[client.raw, 150]), write: sys::FdSet::of(&[]), except: sys::FdSet::of(&[]) };
    let (ret, _) = sys::select(1024, &mut sets, 10);
    trace!("{ret}, sets stay as they were: {} {}", sets.read.has(client.raw), sets.read.has(150));
}

fn many_connections_some_ready(v: Variant) {
    let listener = v.listener();
    let pairs: Vec<(Fd, Fd)> = (0..40).map(|_| v.pair_on(listener)).collect();
    let indexes = |events: &[i16]| -> Vec<usize> {
        events.iter().enumerate().filter(|(_, event)| **event != 0).map(|(at, _)| at).collect()
    };
    for (at, (client, _)) in pairs.iter().enumerate() {
        if at % 7 == 3 {
            sys::send(client.raw, &[at as u8], 0);
        }
    }
    for (at, (_, server)) in pairs.iter().enumerate() {
        if at % 7 == 3 {
            await_readable(*server);
        }
    }
    let mut entries: Vec<libc::pollfd> =
        pairs.iter().map(|(_, server)| libc::pollfd { fd: server.raw, events: IN, revents: 0 }).collect();
    let ret = sys::poll(&mut entries, -1);
    trace!("poll {ret} {:?}", indexes(&entries.iter().map(|entry| entry.revents).collect::<Vec<_>>()));
    let fds: Vec<i32> = pairs.iter().map(|(_, server)| server.raw).collect();
    let mut sets = sys::Sets { read: sys::FdSet::of(&fds), write: sys::FdSet::of(&fds), except: sys::FdSet::of(&[]) };
    let (ret, _) = sys::select(1024, &mut sets, -1);
    trace!("select {ret} {:?}", (0..40).filter(|at| sets.read.has(fds[*at])).collect::<Vec<_>>());
}

fn ready_while_another_waits_long(v: Variant) {
    let listener = v.listener();
    let (client, server) = v.pair_on(listener);
    let (quiet, _other) = v.pair_on(listener);
    let main = sys::thread_id();
    let thread = std::thread::spawn(move || {
        trace::set_actor("thread");
        poll(&[(quiet, IN), (server, IN)], -1);
        recv(server, 8, 0);
    });
    until("main will wait", || main != 0);
    send(client, b"x", 0);
    let _ = thread.join();
    poll(&[(quiet, IN), (server, IN)], 0);
}

fn lane_and_plain_tcp(v: Variant) {
    // One of the two was bound to an explicit port, which Beeline leaves to the kernel.
    let listener = v.listener();
    let (client, server) = v.pair_on(listener);
    let bound = v.named_client("bound");
    bind(bound, &sys::RawAddress::new(v.target(0)));
    connect(bound, &v.address_of(listener));
    let plain = accept(listener, "plain");
    poll(&[(server, IN), (plain, IN)], 0);
    send(bound, b"tcp", 0);
    await_readable(plain);
    poll(&[(server, IN), (plain, IN)], -1);
    select(&[server, plain], &[], &[], -1);
    recv(plain, 8, 0);
    send(client, b"lane", 0);
    await_readable(server);
    poll(&[(server, IN), (plain, IN)], -1);
    select(&[server, plain], &[server, plain], &[], -1);
}

fn negative_ppoll_time(v: Variant) {
    let (client, _server) = v.pair();
    let mut entry = [libc::pollfd { fd: client.raw, events: IN, revents: 0 }];
    let odd = libc::timespec { tv_sec: 0, tv_nsec: 2_000_000_000 };
    // SAFETY: the entry and the (invalid) time are valid for reading.
    let ret = unsafe { libc::ppoll(entry.as_mut_ptr(), 1, &raw const odd, std::ptr::null()) };
    trace!("ppoll with too many nanoseconds: {ret}");
}

fn poll_writable_after_drain(v: Variant) {
    let (client, server) = v.pair();
    let sent = fill_firmly(client, 9);
    poll(&[(client, OUT), (server, IN | OUT)], 0);
    eventually(
        move || {
            drain(server, 9, sent);
        },
        || {
            poll(&[(client, OUT)], -1);
        },
    );
    await_writable(client);
    poll(&[(client, IN | OUT), (server, IN | OUT)], 0);
    send(client, b"again", libc::MSG_DONTWAIT);
}

fn select_writable_after_drain(v: Variant) {
    let (client, server) = v.pair();
    let sent = fill_firmly(client, 9);
    select(&[client], &[client], &[], 0);
    eventually(
        move || {
            drain(server, 9, sent);
        },
        || {
            select(&[client], &[client], &[], -1);
        },
    );
}

/// A wait over many descriptors takes long to begin. Room that comes meanwhile ends it all the same.
fn room_that_comes_while_a_wait_begins(v: Variant) {
    const WAITS: usize = 3000;
    const PIECE: usize = 8192;
    let limit = libc::timespec { tv_sec: 2, tv_nsec: 0 };
    let (client, server) = v.pair();
    let reader = std::thread::spawn(move || {
        let mut piece = [0u8; PIECE];
        let mut random = 1u32;
        loop {
            random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let until = Instant::now() + Duration::from_micros(u64::from(random >> 16) % 400 + 50);
            while Instant::now() < until {
                std::hint::spin_loop();
            }
            // SAFETY: the buffer is this thread's own.
            if unsafe { libc::recv(server.raw, piece.as_mut_ptr().cast(), PIECE, 0) } <= 0 {
                break;
            }
        }
    });
    // SAFETY: takes and gives numbers.
    let duplicate = || unsafe { libc::dup(client.raw) };
    let mut entries = vec![libc::pollfd { fd: client.raw, events: OUT, revents: 0 }];
    entries.resize_with(800, || libc::pollfd { fd: duplicate(), events: IN, revents: 0 });
    // A wait with a mask goes to the kernel at once.
    // SAFETY: zero is the empty set of signals.
    let none: libc::sigset_t = unsafe { std::mem::zeroed() };
    let mut longest = Duration::ZERO;
    let mut wrong = 0;
    for _ in 0..WAITS {
        let began = Instant::now();
        // SAFETY: entries, time and mask are live.
        let ready =
            unsafe { libc::ppoll(entries.as_mut_ptr(), entries.len() as u64, &raw const limit, &raw const none) };
        longest = longest.max(began.elapsed());
        // SAFETY: the bytes are live.
        let sent = unsafe { libc::send(client.raw, [7u8; PIECE].as_ptr().cast(), PIECE, libc::MSG_DONTWAIT) };
        wrong += usize::from(ready != 1 || sent <= 0);
    }
    trace!("waits that ended with anything but room: {wrong}");
    trace!("each ended in time: {}", longest < Duration::from_millis(1900));
    for entry in &entries[1..] {
        // SAFETY: the number was made here.
        unsafe { libc::close(entry.fd) };
    }
    shutdown(client, libc::SHUT_WR);
    let _ = reader.join();
}
