//! splice between a connection and a pipe that splice has used before: the kernel no longer promises that such an end
//! can be asked without waiting, and moves bytes all the same. And a pipe that other threads empty meanwhile.

use crate::case::axes::{FAMILY, MODE, ONCE};
use crate::case::{Case, Group};
use crate::trace;
use crate::traced::*;
use crate::variant::Variant;
use beeline_testkit::sys;

pub const GROUP: Group = Group {
    name: "moving_pipes",
    cases: &[
        Case::new("spliced_into_before", FAMILY | MODE, spliced_into_before),
        Case::new("spliced_into_before_and_full", FAMILY, spliced_into_before_and_full),
        Case::new("spliced_out_before", FAMILY | MODE, spliced_out_before),
        Case::new("spliced_out_before_and_empty", FAMILY, spliced_out_before_and_empty),
        Case::new("spliced_out_by_several", ONCE, spliced_out_by_several),
    ],
};

const NOWAIT: u32 = libc::SPLICE_F_NONBLOCK;

fn a_pipe(out: &'static str, into: &'static str) -> (Fd, Fd) {
    let (_, ends) = sys::pipe2(0);
    (Fd::new(ends[0], out), Fd::new(ends[1], into))
}

fn splice(from: Fd, to: Fd, count: usize) {
    let ret = sys::splice(from.raw, None, to.raw, None, count, NOWAIT);
    trace!("splice({}, {}, {count}) = {ret}", from.name, to.name);
}

/// Two pipes between which bytes were spliced: what goes into `first` and came out of `second`.
fn spliced_pipes() -> [Fd; 4] {
    let (out, into) = a_pipe("first out", "first in");
    let (second_out, second_into) = a_pipe("second out", "second in");
    sys::write(into.raw, b"before");
    splice(out, second_into, 10);
    read(second_out, 10);
    [out, into, second_out, second_into]
}

fn spliced_into_before(v: Variant) {
    let (client, server) = v.pair();
    let [_, _, out, into] = spliced_pipes();
    for text in [&b"through a pipe"[..], b"and once again", &[b'x'; 40_000]] {
        send(client, text, 0);
        await_queued(server, text.len() as i32);
        splice(server, into, 9);
        splice(server, into, 100_000);
        fionread(server);
        read(out, 60_000);
    }
}

fn spliced_into_before_and_full(v: Variant) {
    let (client, server) = v.pair();
    let [_, _, out, into] = spliced_pipes();
    sys::fcntl(into.raw, libc::F_SETFL, libc::O_NONBLOCK);
    while sys::write(into.raw, &[b'p'; 4096]).is_ok() {}
    send(client, b"kept", 0);
    await_queued(server, 4);
    splice(server, into, 4);
    fionread(server);
    // One place in the pipe: a page of the two that are there.
    sys::read(out.raw, &mut [0; 4096]);
    splice(server, into, 3);
    fionread(server);
    // What is left of the first pages, and then the bytes.
    let mut taken = [0; 4096];
    while sys::read(out.raw, &mut taken).value == 4096 {}
    trace!("ends with {:?}", taken.get(..3));
    recv(server, 10, 0);
}

fn spliced_out_before(v: Variant) {
    let (client, server) = v.pair();
    let [out, into, ..] = spliced_pipes();
    for text in [&b"into a connection"[..], b"and once again", &[b'x'; 40_000]] {
        sys::write(into.raw, text);
        splice(out, client, 9);
        splice(out, client, 100_000);
        await_queued(server, text.len() as i32);
        recv(server, 60_000, 0);
    }
}

fn spliced_out_before_and_empty(v: Variant) {
    let (client, server) = v.pair();
    let [out, into, ..] = spliced_pipes();
    splice(out, client, 9);
    sys::write(into.raw, b"at last");
    splice(out, client, 9);
    close(into);
    splice(out, client, 9);
    await_queued(server, 7);
    recv(server, 10, 0);
}

/// Threads that wait for one pipe: a byte is for one of them, and the others go on waiting.
fn spliced_out_by_several(v: Variant) {
    const ROUNDS: i64 = 3000;
    let (client, server) = v.pair();
    let (out, into) = a_pipe("out", "in");
    let splicer = || {
        std::thread::spawn(move || {
            let mut moved = 0;
            loop {
                match sys::splice(out.raw, None, client.raw, None, 1, 0) {
                    ret if ret.value == 1 => moved += 1,
                    ret => return (moved, ret.to_string()),
                }
            }
        })
    };
    let splicers = [splicer(), splicer(), splicer()];
    let mut byte = [0];
    let came = (0..ROUNDS)
        .take_while(|_| sys::write(into.raw, b"x").value == 1 && sys::recv(server.raw, &mut byte, 0).value == 1)
        .count();
    close(into);
    let ends = splicers.map(|splicer| splicer.join().unwrap_or_default());
    let moved: i64 = ends.iter().map(|(moved, _)| moved).sum();
    trace!("came {came}, moved {moved}, ended with {:?}", ends.map(|(_, end)| end));
}
