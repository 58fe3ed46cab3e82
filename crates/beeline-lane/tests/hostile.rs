//! A peer that writes anything anywhere.
//!
//! Our calls are interleaved with arbitrary writes of arbitrary bytes to the lane's memory, from the same
//! thread between calls (each run can be had again from its seed) and from another one at any moment, and
//! with arbitrary bytes on a real anchor. Whatever the peer does, a call ends, stays within its buffer and
//! returns a possible result or a [`Fault`].
//!
//! `BEELINE_SEED=n` repeats a run, `BEELINE_STEPS=n` makes it longer. Under AddressSanitizer:
//!
//! ```text
//! RUSTFLAGS=-Zsanitizer=address cargo +nightly test -p beeline-lane --test hostile \
//!     --target x86_64-unknown-linux-gnu
//! ```
#![cfg(not(loom))]
#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::arithmetic_side_effects, unsafe_code)]

use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;

use beeline_lane::{
    Armed, BellFault, Bells, Cursor, End, Fault, LaneMemory, Reader, RxState, Since, Sink, Source, Storage, TxState,
    Wake, Writer,
};

const RING_BYTES: u32 = 1 << 16;
const LANE_BYTES: u64 = 2 * (RING_BYTES as u64 + 4096);
const BUFFER_BYTES: usize = 8192;
const BELL: u8 = 1;

/// SplitMix64 (Steele, Lea, Flood 2014).
struct Rng(u64);

impl Rng {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }
    fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }
    /// Lengths from nothing to a buffer, most of them small.
    fn length(&mut self) -> usize {
        let bits = self.below(14);
        self.below(1 << bits) as usize
    }
}

fn from_environment(name: &str, otherwise: u64) -> u64 {
    std::env::var(name).ok().and_then(|value| value.parse().ok()).unwrap_or(otherwise)
}

fn seed() -> u64 {
    let seed = from_environment("BEELINE_SEED", u64::from(std::process::id()) << 20);
    println!("BEELINE_SEED={seed}");
    seed
}

/// An anchor on a real socket, which believes nothing.
struct Anchor {
    socket: UnixStream,
}

impl Anchor {
    fn pair() -> (Anchor, UnixStream) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        ours.set_nonblocking(true).unwrap();
        theirs.set_nonblocking(true).unwrap();
        (Anchor { socket: ours }, theirs)
    }

    fn set_send_buffer(&self, bytes: i32) {
        let size = size_of::<i32>() as libc::socklen_t;
        // SAFETY: passes one int of the size given.
        unsafe {
            let value = (&raw const bytes).cast();
            libc::setsockopt(self.socket.as_raw_fd(), libc::SOL_SOCKET, libc::SO_SNDBUF, value, size);
        }
    }
}

impl Bells for Anchor {
    fn ring(&self) -> Result<(), BellFault> {
        match (&self.socket).write(&[BELL]) {
            Err(error) if error.kind() != ErrorKind::WouldBlock => Err(BellFault::Gone),
            _ => Ok(()),
        }
    }
    fn queued(&self) -> Result<u32, BellFault> {
        let mut bytes = 0i32;
        // SAFETY: the request writes one int.
        let asked = unsafe { libc::ioctl(self.socket.as_raw_fd(), libc::FIONREAD, &raw mut bytes) };
        if asked == 0 { Ok(bytes as u32) } else { Err(BellFault::Gone) }
    }
    fn drain(&self, count: u32) -> Result<(), BellFault> {
        let mut left = count as usize;
        while left != 0 {
            let mut bytes = [0; 64];
            let part = left.min(bytes.len());
            match (&self.socket).read(&mut bytes[..part]) {
                Ok(0) => return Ok(()),
                Ok(got) if bytes[..got].iter().all(|byte| *byte == BELL) => left -= got,
                Ok(_) => return Err(BellFault::BadBell),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(_) => return Err(BellFault::Gone),
            }
        }
        Ok(())
    }
    fn plug(&self) {
        self.set_send_buffer(5376);
    }
    fn plugged(&self) -> bool {
        let mut fd = libc::pollfd { fd: self.socket.as_raw_fd(), events: libc::POLLOUT, revents: 0 };
        // SAFETY: one live pollfd.
        unsafe { libc::poll(&raw mut fd, 1, 0) };
        fd.revents & libc::POLLOUT == 0
    }
    fn unplug(&self) {
        self.set_send_buffer(100_000);
    }
}

/// One connection: our end is the client's; an honest peer is there, too, to bring us into deep states.
struct Connection {
    ours: (TxState, RxState, Anchor),
    theirs: (TxState, RxState, Anchor),
}

impl Connection {
    fn new(memory: &LaneMemory, rng: &mut Rng) -> Connection {
        memory.reset();
        let (client, server) = Anchor::pair();
        let starts = [0, 1].map(|_| if rng.below(2) == 0 { 0 } else { rng.next() });
        for (end, start) in [(End::Client, starts[0]), (End::Server, starts[1])] {
            memory.set_cursor(end, Cursor { tail: start as u32, base: start as u32 });
            memory.set_head(end.peer(), start as u32);
            memory.set_echo(end.peer(), start);
        }
        let [ours, theirs] = starts.map(|start| (TxState::starting_at(start), RxState::starting_at(start)));
        Connection { ours: (ours.0, theirs.1, client), theirs: (theirs.0, ours.1, Anchor { socket: server }) }
    }
}

struct Ours<'a> {
    memory: &'a LaneMemory,
    /// Room for calls, with a margin on both sides that must not change.
    buffer: Vec<u8>,
    results: [u64; 2],
}

impl Ours<'_> {
    const MARGIN: usize = 64;

    fn new(memory: &LaneMemory) -> Ours<'_> {
        Ours { memory, buffer: vec![0xC3; BUFFER_BYTES + 2 * Self::MARGIN], results: [0; 2] }
    }

    /// One arbitrary call of an end; false when the connection is poisoned.
    fn call(&mut self, end: End, (tx, rx, anchor): &(TxState, RxState, Anchor), rng: &mut Rng) -> bool {
        let length = rng.length();
        let (first, last) = (Self::MARGIN, Self::MARGIN + length);
        let reader = Reader::new(*self.memory, end, rx, tx);
        let writer = Writer::new(*self.memory, end, tx, rx);
        let sink = Sink::from(&mut self.buffer[first..last]);
        let outcome = match rng.below(14) {
            13 => reader.read_small(sink, 64, anchor).map(|count| assert!(count <= length.min(64))),
            0..3 => reader.read(sink, anchor).map(|count| assert!(count <= length)),
            3 => reader.peek(rng.length() * 9, sink).map(|count| assert!(count <= length)),
            4 => reader.skip(length, anchor).map(|count| assert!(count <= length)),
            5 => reader.arm(Since::Read, anchor).map(drop),
            6 => reader.arm(Since::Tail(reader.tail().wrapping_sub(rng.below(2) as u32)), anchor).map(drop),
            7 => {
                rx.note_bell();
                reader.unread().map(|unread| assert!(unread <= RING_BYTES))
            }
            8 => {
                let _ = writer.write_small(Source::from(&self.buffer[first..last]), anchor);
                Ok(())
            }
            9..11 => {
                writer.write(Source::from(&self.buffer[first..last]), anchor).map(|count| assert!(count <= length))
            }
            11 => writer.arm(anchor).map(|armed| assert!(armed == Armed::Ready || writer.unread() != Ok(0))),
            _ => match rng.below(4) {
                0 => writer.recover(),
                1 => reader.recover(anchor),
                2 => writer.copy_back(rng.length() as u32, sink).map(|count| assert!(count <= length)),
                _ => writer.unread().map(|unread| assert!(unread <= RING_BYTES)),
            },
        };
        let (before, after) = (&self.buffer[..first], &self.buffer[last..]);
        assert!(before.iter().all(|byte| *byte == 0xC3), "a call wrote before its buffer");
        assert!(after.iter().take(Self::MARGIN).all(|byte| *byte == 0xC3), "a call wrote behind its buffer");
        self.buffer[first..last].fill(0xC3);
        self.results[usize::from(outcome.is_err())] += 1;
        outcome.is_ok()
    }
}

/// Writes arbitrary bytes to an arbitrary place, more often to those that mean something.
fn scribble(memory: &LaneMemory, file: &File, rng: &mut Rng) {
    let end = if rng.below(2) == 0 { End::Client } else { End::Server };
    // A value near the truth reaches more code than one that is refused at once.
    let near = |value: u32, rng: &mut Rng| match rng.below(3) {
        0 => rng.next() as u32,
        _ => value.wrapping_add(rng.below(2 * u64::from(RING_BYTES)) as u32).wrapping_sub(RING_BYTES),
    };
    match rng.below(8) {
        0 => {
            let cursor = memory.cursor(end);
            memory.set_cursor(end, Cursor { tail: near(cursor.tail, rng), base: near(cursor.base, rng) });
        }
        1 => memory.set_head(end, near(memory.head(end), rng)),
        2 => memory.set_echo(end, rng.next()),
        3 => memory.set_wake(end, Wake::Read, rng.next() as u32),
        4 => memory.set_wake(end, Wake::Write, rng.next() as u32),
        5 => memory.set_flags(end, rng.next() as u32),
        place => {
            let first = if place == 6 { rng.below(0x210) } else { rng.below(LANE_BYTES) };
            let bytes = rng.next().to_ne_bytes();
            let length = (1 + rng.below(8)).min(LANE_BYTES - first) as usize;
            file.write_all_at(&bytes[..length], first).unwrap();
        }
    }
}

/// Puts bells and worse on the anchor, or takes ours away, or closes it.
fn jangle(socket: &UnixStream, rng: &mut Rng) {
    let _ = match rng.below(12) {
        0 => (&mut &*socket).write(&[rng.next() as u8]),
        1 => (&mut &*socket).write(&[BELL; 40][..1 + rng.below(40) as usize]),
        2..8 => (&mut &*socket).write(&[BELL]),
        8..11 => (&mut &*socket).read(&mut [0; 8]),
        _ => {
            let _ = socket.shutdown([std::net::Shutdown::Write, std::net::Shutdown::Both][rng.below(2) as usize]);
            Ok(0)
        }
    };
}

/// Lane memory and its file, as a peer has it.
fn lane() -> (LaneMemory, File) {
    let (memory, fd) = LaneMemory::create(RING_BYTES).unwrap();
    let file = OpenOptions::new().read(true).write(true).open(format!("/proc/self/fd/{}", fd.get())).unwrap();
    (memory, file)
}

fn finish(memory: LaneMemory, results: [u64; 2]) {
    println!("{} calls went well, {} poisoned their connection", results[0], results[1]);
    assert!(results.iter().all(|count| *count > 100), "the mixture is too tame or too wild to test anything");
    // SAFETY: no copy of the mapping is used afterwards.
    unsafe { memory.unmap() };
}

struct SetOnDrop<'a>(&'a AtomicBool);

impl Drop for SetOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

#[test]
fn no_write_between_calls_does_more_than_poison() {
    let (memory, file) = lane();
    let mut rng = Rng(seed());
    let mut ours = Ours::new(&memory);
    let mut connection = Connection::new(&memory, &mut rng);
    for _ in 0..from_environment("BEELINE_STEPS", 3_000_000) {
        match rng.below(3) {
            // The peer in the shape of our own code: what it returns does not matter.
            0 => drop(ours.call(End::Server, &connection.theirs, &mut rng)),
            1 if rng.below(8) == 0 => jangle(&connection.theirs.2.socket, &mut rng),
            1 if rng.below(3) != 0 => {}
            _ => scribble(&memory, &file, &mut rng),
        }
        if !ours.call(End::Client, &connection.ours, &mut rng) {
            connection = Connection::new(&memory, &mut rng);
        }
    }
    finish(memory, ours.results);
}

#[test]
fn no_write_during_a_call_does_more_than_poison() {
    let (memory, file) = lane();
    let seed = seed();
    let mut rng = Rng(seed);
    let mut ours = Ours::new(&memory);
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        // Also when an assertion fails: the scope waits for the peer.
        let _over = SetOnDrop(&over);
        scope.spawn(|| {
            let mut rng = Rng(!seed);
            while !over.load(Relaxed) {
                scribble(&memory, &file, &mut rng);
                (0..rng.below(50)).for_each(|_| std::hint::spin_loop());
            }
        });
        let mut connection = Connection::new(&memory, &mut rng);
        for _ in 0..from_environment("BEELINE_STEPS", 3_000_000) {
            if rng.below(16) == 0 {
                jangle(&connection.theirs.2.socket, &mut rng);
            }
            if !ours.call(End::Client, &connection.ours, &mut rng) {
                connection = Connection::new(&memory, &mut rng);
            }
        }
    });
    finish(memory, ours.results);
}

#[test]
fn each_fault_is_named() {
    let (memory, _file) = lane();
    let mut rng = Rng(0);
    let connection = |rng: &mut Rng| {
        let connection = Connection::new(&memory, rng);
        memory.reset();
        Connection {
            ours: (TxState::default(), RxState::default(), connection.ours.2),
            theirs: (TxState::default(), RxState::default(), connection.theirs.2),
        }
    };
    let one = connection(&mut rng);
    let (tx, rx, anchor) = &one.ours;
    let reader = Reader::new(memory, End::Client, rx, tx);
    memory.set_cursor(End::Server, Cursor { tail: RING_BYTES + 1, base: 0 });
    assert_eq!(reader.unread(), Err(Fault::CursorBeyondRing));
    assert_eq!(reader.read(Sink::from(&mut [0; 8][..]), anchor), Err(Fault::CursorBeyondRing));
    memory.set_cursor(End::Server, Cursor::default());
    memory.set_head(End::Server, 1);
    let writer = Writer::new(memory, End::Client, tx, rx);
    assert_eq!(writer.unread(), Err(Fault::HeadBeyondTail));
    memory.set_head(End::Server, 0);
    (&one.theirs.2.socket).write_all(&[BELL + 1]).unwrap();
    rx.note_bell();
    assert_eq!(reader.arm(Since::Read, anchor), Err(Fault::BadBell));
    drop(one.theirs);
    memory.set_wake(End::Server, Wake::Read, 1);
    assert_eq!(writer.write(Source::from(&[1][..]), anchor), Err(Fault::Gone));
    // SAFETY: no copy of the mapping is used afterwards.
    unsafe { memory.unmap() };
}

#[test]
fn more_bells_than_a_peer_can_have_rung_are_not_taken_out_one_by_one() {
    let (memory, _file) = lane();
    let (tx, rx) = (TxState::default(), RxState::default());
    let (anchor, peer) = Anchor::pair();
    let reader = Reader::new(memory, End::Client, &rx, &tx);
    let ring = |count: usize| (&peer).write_all(&vec![BELL; count]).unwrap();
    ring(1000);
    rx.note_bell();
    assert_eq!((reader.arm(Since::Read, &anchor), anchor.queued()), (Ok(Armed::Sleep), Ok(0)));
    ring(50_000);
    rx.note_bell();
    assert_eq!(reader.arm(Since::Read, &anchor), Err(Fault::BadBell));
    memory.set_cursor(End::Server, Cursor { tail: 1, base: 0 });
    memory.set_wake(End::Server, Wake::Write, 1);
    assert_eq!(reader.read(Sink::from(&mut [0; 8][..]), &anchor), Err(Fault::BadBell));
    assert_eq!(anchor.queued(), Ok(50_000));
    // SAFETY: no copy of the mapping is used afterwards.
    unsafe { memory.unmap() };
}
