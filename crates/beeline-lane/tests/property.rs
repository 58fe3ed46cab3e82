//! Writer and reader on real lane memory against a `VecDeque<u8>`.
//!
//! Both ends are driven from one thread by arbitrary lists of calls; a failing list is shrunk and printed.
//! The kernel is a pair of counters ([`Anchor`]).
#![cfg(not(loom))]
#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::arithmetic_side_effects, unsafe_code)]

use std::cell::Cell;
use std::collections::VecDeque;

use beeline_lane::{
    Armed, BellFault, Bells, Cursor, End, Fault, LaneMemory, Reader, RxState, Since, Sink, Source, Storage, TxState,
    WAKE_ARMED, Wake, Writer, flags,
};
use proptest::prelude::*;

const ENDS: [End; 2] = [End::Client, End::Server];

/// The anchor's two ends: bells queued for each, and whose send buffer is small.
#[derive(Default)]
struct Wires {
    queued: [Cell<u32>; 2],
    small: [Cell<bool>; 2],
}

struct Anchor<'a>(&'a Wires, End);

impl Anchor<'_> {
    fn writable(&self) -> bool {
        !self.0.small[self.1 as usize].get() || self.0.queued[self.1.peer() as usize].get() <= 3
    }
    fn readable(&self) -> bool {
        self.0.queued[self.1 as usize].get() > 0
    }
}

impl Bells for Anchor<'_> {
    fn ring(&self) -> Result<(), BellFault> {
        let queued = &self.0.queued[self.1.peer() as usize];
        queued.set(queued.get() + 1);
        Ok(())
    }
    fn queued(&self) -> Result<u32, BellFault> {
        Ok(self.0.queued[self.1 as usize].get())
    }
    fn drain(&self, count: u32) -> Result<(), BellFault> {
        let queued = &self.0.queued[self.1 as usize];
        queued.set(queued.get().saturating_sub(count));
        Ok(())
    }
    fn plug(&self) {
        self.0.small[self.1 as usize].set(true);
    }
    fn plugged(&self) -> bool {
        !self.writable()
    }
    fn unplug(&self) {
        self.0.small[self.1 as usize].set(false);
    }
}

/// One direction as the test sees it: what is in the ring, and who has gone to sleep when.
#[derive(Default)]
struct Stream {
    bytes: VecDeque<u8>,
    written: u64,
    /// The tail that the sleeping reader knows.
    reader_sleeps: Option<u32>,
    reader_is_edge_triggered: bool,
    writer_sleeps: bool,
}

struct Lane {
    memory: LaneMemory,
    tx: [TxState; 2],
    rx: [RxState; 2],
    wires: Wires,
    /// By the end that writes.
    streams: [Stream; 2],
}

impl Drop for Lane {
    fn drop(&mut self) {
        // SAFETY: the only copy of the mapping ends with us.
        unsafe { self.memory.unmap() };
    }
}

impl Lane {
    fn new(ring_bytes: u32, starts: [u32; 2]) -> Lane {
        let (memory, _) = LaneMemory::create(ring_bytes).unwrap();
        for end in ENDS {
            let start = starts[end as usize];
            memory.set_cursor(end, Cursor { tail: start, base: start });
            memory.set_head(end.peer(), start);
            memory.set_echo(end.peer(), u64::from(start));
        }
        Lane {
            memory,
            tx: starts.map(|start| TxState::starting_at(start.into())),
            rx: [RxState::starting_at(starts[1].into()), RxState::starting_at(starts[0].into())],
            wires: Wires::default(),
            streams: Default::default(),
        }
    }

    fn writer(&self, end: End) -> Writer<'_, LaneMemory> {
        Writer::new(self.memory, end, &self.tx[end as usize], &self.rx[end as usize])
    }

    fn reader(&self, end: End) -> Reader<'_, LaneMemory> {
        Reader::new(self.memory, end, &self.rx[end as usize], &self.tx[end as usize])
    }

    fn anchor(&self, end: End) -> Anchor<'_> {
        Anchor(&self.wires, end)
    }

    /// `end` writes `length` bytes of its stream.
    fn write(&mut self, end: End, length: usize) {
        let stream = &self.streams[end as usize];
        let bytes: Vec<u8> = (stream.written..).map(|at| (at * 7 + (at >> 8)) as u8).take(length).collect();
        let room = self.memory.ring_bytes() as usize - stream.bytes.len();
        // The short way, where it is open, does the same.
        let short = length % 2 == 1 && self.writer(end).write_small(Source::from(&bytes[..]), &self.anchor(end));
        let written = match short {
            true => length,
            // And so does a holder whose bytes somebody else puts into the ring.
            false if length % 3 == 2 => self.lend(end, &bytes),
            false => self.writer(end).write(Source::from(&bytes[..]), &self.anchor(end)).unwrap(),
        };
        assert_eq!(written, length.min(room));
        let stream = &mut self.streams[end as usize];
        stream.bytes.extend(&bytes[..written]);
        stream.written += written as u64;
    }

    /// Stores what fits of `bytes` where `end`'s writer says, and publishes it. Returns how much.
    fn lend(&self, end: End, bytes: &[u8]) -> usize {
        let (free, position) = self.writer(end).rewound_room().unwrap();
        let count = bytes.len().min(free as usize);
        self.memory.copy_in(end, position, Source::from(&bytes[..count]));
        if count != 0 {
            self.writer(end).publish(count as u32, &self.anchor(end)).unwrap();
        }
        count
    }

    fn read(&mut self, end: End, length: usize) {
        let (unread, position) = self.reader(end).readable().unwrap().unwrap();
        let mut readable = vec![0; unread as usize];
        self.memory.copy_out(end.peer(), position, Sink::from(&mut readable[..]));
        assert!(self.streams[end.peer() as usize].bytes.iter().eq(&readable));
        let mut buffer = vec![0xA5; length];
        // The short way, where it is open, does the same.
        let limit = if length % 2 == 1 { SMALL_BYTES } else { 0 };
        let small = self.reader(end).read_small(Sink::from(&mut buffer[..]), limit, &self.anchor(end)).unwrap();
        let stream = &mut self.streams[end.peer() as usize];
        let there = length.min(stream.bytes.len());
        assert_eq!(small, if there <= limit as usize { there } else { 0 });
        let read = match small {
            0 => self.reader(end).read(Sink::from(&mut buffer[..]), &self.anchor(end)).unwrap(),
            _ => small,
        };
        let stream = &mut self.streams[end.peer() as usize];
        assert_eq!(read, length.min(stream.bytes.len()));
        assert!(stream.bytes.drain(..read).eq(buffer[..read].iter().copied()));
        assert!(buffer[read..].iter().all(|byte| *byte == 0xA5));
    }

    fn peek(&self, end: End, offset: usize, length: usize) {
        let mut buffer = vec![0xA5; length];
        let peeked = self.reader(end).peek(offset, Sink::from(&mut buffer[..])).unwrap();
        let stream = &self.streams[end.peer() as usize].bytes;
        assert_eq!(peeked, length.min(stream.len().saturating_sub(offset)));
        assert!(stream.iter().skip(offset).take(peeked).eq(&buffer[..peeked]));
        assert!(buffer[peeked..].iter().all(|byte| *byte == 0xA5));
    }

    fn skip(&mut self, end: End, length: usize) {
        let skipped = self.reader(end).skip(length, &self.anchor(end)).unwrap();
        let stream = &mut self.streams[end.peer() as usize].bytes;
        assert_eq!(skipped, length.min(stream.len()));
        drop(stream.drain(..skipped));
    }

    /// The reader of `end` is woken if it should be, arms and goes to sleep if it may.
    fn arm_reader(&mut self, end: End, edge_triggered: bool) {
        if self.anchor(end).readable() {
            self.rx[end as usize].note_bell();
        }
        let tail = self.reader(end).tail();
        let known = self.streams[end.peer() as usize].reader_sleeps.unwrap_or(tail);
        let since = if edge_triggered { Since::Tail(known) } else { Since::Read };
        let armed = self.reader(end).arm(since, &self.anchor(end)).unwrap();
        let stream = &mut self.streams[end.peer() as usize];
        let news = if edge_triggered { known != tail } else { !stream.bytes.is_empty() };
        assert_eq!(armed == Armed::Ready, news);
        stream.reader_sleeps = (armed == Armed::Sleep).then_some(tail);
        stream.reader_is_edge_triggered = edge_triggered;
        if armed == Armed::Sleep && stream.bytes.is_empty() {
            assert!(!self.anchor(end).readable(), "a level-triggered sleeper would spin");
        }
    }

    /// The reader of `end` is awake, alone, and takes its bells out: its next arming has none to ask for.
    fn drain_bells(&mut self, end: End) {
        self.streams[end.peer() as usize].reader_sleeps = None;
        self.reader(end).drain_bells(&self.anchor(end)).unwrap();
        let writer_waits = self.streams[end.peer() as usize].writer_sleeps && !self.anchor(end.peer()).writable();
        if !writer_waits {
            assert!(!self.anchor(end).readable(), "the kernel would tell of it again");
            assert!(!self.rx[end as usize].may_have_bells(&self.memory, end));
        }
    }

    fn arm_writer(&mut self, end: End) {
        let armed = self.writer(end).arm(&self.anchor(end)).unwrap();
        let ring = self.memory.ring_bytes() as usize;
        let stream = &mut self.streams[end as usize];
        assert_eq!(armed == Armed::Ready, stream.bytes.len() <= ring - ring / 4);
        stream.writer_sleeps = armed == Armed::Sleep;
        if stream.writer_sleeps {
            assert!(!self.anchor(end).writable(), "a sleeper would spin");
        }
    }

    /// What must hold after each call.
    fn check(&self) {
        let ring = self.memory.ring_bytes() as usize;
        for end in ENDS {
            let stream = &self.streams[end as usize];
            let unread = stream.bytes.len();
            assert_eq!(self.reader(end.peer()).unread().unwrap() as usize, unread);
            assert_eq!(self.writer(end).unread().unwrap() as usize, unread);
            let tail = self.reader(end.peer()).tail();
            if let Some(known) = stream.reader_sleeps {
                let news = if stream.reader_is_edge_triggered { known != tail && unread != 0 } else { unread != 0 };
                assert!(!news || self.anchor(end.peer()).readable(), "a reader sleeps beside news");
            }
            assert!(
                !stream.writer_sleeps || unread > ring - ring * 3 / 8 || self.anchor(end).writable(),
                "a writer sleeps beside room"
            );
            let queued = self.wires.queued[end.peer() as usize].get();
            let armed_ever = self.memory.wake(end, Wake::Write) != 0;
            assert!(queued <= if armed_ever { 7 } else { 3 }, "{queued} bells");
        }
    }
}

#[derive(Clone, Debug)]
enum Call {
    Write(usize),
    Read(usize),
    Peek(usize, usize),
    Skip(usize),
    ArmReader { edge_triggered: bool },
    DrainBells,
    ArmWriter,
}

/// Most bytes for the reader's short way, as in the sockets.
const SMALL_BYTES: u32 = 4096;

/// Lengths of small messages, of chunks, and of more than a ring.
fn length() -> impl Strategy<Value = usize> {
    prop_oneof![4 => 0..200usize, 2 => 0..10_000usize, 1 => 30_000..34_000usize, 1 => 0..300_000usize]
}

fn call() -> impl Strategy<Value = Call> {
    prop_oneof![
        6 => length().prop_map(Call::Write),
        5 => length().prop_map(Call::Read),
        1 => (length(), length()).prop_map(|(offset, length)| Call::Peek(offset, length)),
        1 => length().prop_map(Call::Skip),
        2 => any::<bool>().prop_map(|edge_triggered| Call::ArmReader { edge_triggered }),
        2 => Just(Call::DrainBells),
        2 => Just(Call::ArmWriter),
    ]
}

/// Counters at the beginning, in the middle and just before they wrap.
fn start() -> impl Strategy<Value = u32> {
    prop_oneof![Just(0), any::<u32>(), (0..300_000u32).prop_map(|before| 0u32.wrapping_sub(before))]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_calls_give_what_a_queue_gives(
        ring_bytes in prop_oneof![Just(1u32 << 16), Just(1 << 17), Just(1 << 20)],
        starts in [start(), start()],
        calls in prop::collection::vec((any::<bool>(), call()), 1..250),
    ) {
        let mut lane = Lane::new(ring_bytes, starts);
        for (server, call) in calls {
            let end = ENDS[usize::from(server)];
            match call {
                Call::Write(length) => lane.write(end, length),
                Call::Read(length) => lane.read(end, length),
                Call::Peek(offset, length) => lane.peek(end, offset, length),
                Call::Skip(length) => lane.skip(end, length),
                Call::ArmReader { edge_triggered } => lane.arm_reader(end, edge_triggered),
                Call::DrainBells => lane.drain_bells(end),
                Call::ArmWriter => lane.arm_writer(end),
            }
            lane.check();
        }
    }
}

/// A stream that goes on long enough to use every position and to wrap the counters.
#[test]
fn counters_wrap_in_the_middle_of_a_stream() {
    let mut lane = Lane::new(1 << 16, [u32::MAX - 100_000, u32::MAX - 7]);
    for round in 0..2_000usize {
        for end in ENDS {
            lane.write(end, round * 37 % 5_000);
            lane.read(end.peer(), round * 31 % 6_000);
            lane.check();
        }
    }
}

/// An echo from the last time round of the 32-bit counters is not taken for one of now: the ring is not
/// empty, and nothing is rewound.
#[test]
fn an_echo_from_the_last_wrap_rewinds_nothing() {
    let mut lane = Lane::new(1 << 16, [5, 0]);
    // The client has written a whole turn of the counter and 5 bytes; the echo it saw last is 105.
    lane.tx[0] = TxState::starting_at((1 << 32) + 5);
    lane.memory.set_echo(End::Server, 105);
    assert_eq!(lane.reader(End::Client).unread(), Ok(0));
    lane.write(End::Client, 100);
    lane.write(End::Client, 100);
    lane.read(End::Server, 200);
}

#[test]
fn small_questions_and_answers_stay_in_the_first_line() {
    let mut lane = Lane::new(1 << 20, [0, 0]);
    for _ in 0..10_000 {
        for end in ENDS {
            lane.write(end, 48);
            let cursor = lane.memory.cursor(end);
            assert_eq!(cursor.tail.wrapping_sub(cursor.base), 48);
            lane.read(end.peer(), 48);
        }
    }
}

/// A writer that writes each time the reader has counted its bells and not yet armed.
struct Racing<'a> {
    reader: Anchor<'a>,
    write: &'a dyn Fn(),
}

impl Bells for Racing<'_> {
    fn ring(&self) -> Result<(), BellFault> {
        self.reader.ring()
    }
    fn queued(&self) -> Result<u32, BellFault> {
        let queued = self.reader.queued();
        (self.write)();
        queued
    }
    fn drain(&self, count: u32) -> Result<(), BellFault> {
        self.reader.drain(count)
    }
    fn plug(&self) {
        self.reader.plug();
    }
    fn plugged(&self) -> bool {
        self.reader.plugged()
    }
    fn unplug(&self) {
        self.reader.unplug();
    }
}

/// Bells do not heap up, or one would find the socket full and be lost.
#[test]
fn a_reader_that_finds_news_whenever_it_arms_takes_the_bells_out() {
    let lane = Lane::new(1 << 16, [0, 0]);
    let write = || {
        let written = lane.writer(End::Client).write(Source::from(&[7][..]), &lane.anchor(End::Client));
        assert_eq!(written, Ok(1));
    };
    let racing = Racing { reader: lane.anchor(End::Server), write: &write };
    for _ in 0..100 {
        lane.rx[End::Server as usize].note_bell();
        assert_eq!(lane.reader(End::Server).arm(Since::Read, &racing), Ok(Armed::Ready));
        assert_eq!(lane.reader(End::Server).read(Sink::from(&mut [0; 8][..]), &racing.reader), Ok(1));
        lane.check();
    }
}

/// An edge-triggered reader that has no use for data sleeps beside a writer that waits for room. Neither
/// may wake the other again and again.
#[test]
fn an_edge_triggered_reader_leaves_a_plug_alone() {
    let mut lane = Lane::new(1 << 16, [0, 0]);
    lane.write(End::Client, 1 << 16);
    lane.arm_writer(End::Client);
    lane.arm_reader(End::Server, true);
    lane.arm_reader(End::Server, true);
    assert!(!lane.anchor(End::Client).writable());
    lane.read(End::Server, 1 << 15);
    assert!(lane.anchor(End::Client).writable());
}

/// Bells lie nowhere at an end that reads no more. Those that lay there before it said so plug as ever.
#[test]
fn a_writer_that_waits_for_an_end_that_reads_no_more_rings_in_vain_no_more() {
    let mut lane = Lane::new(1 << 16, [0, 0]);
    lane.write(End::Client, 1 << 16);
    lane.arm_writer(End::Client);
    lane.memory.set_flags(End::Server, flags::SHUT_RD);
    lane.arm_writer(End::Client);
    lane.read(End::Server, 1 << 15);
    assert!(lane.anchor(End::Client).writable(), "it was plugged, and is told");

    lane.write(End::Client, 1 << 16);
    let queued = lane.wires.queued[End::Server as usize].get();
    assert_eq!(lane.writer(End::Client).arm(&lane.anchor(End::Client)), Ok(Armed::Sleep));
    assert_eq!(lane.wires.queued[End::Server as usize].get(), queued);
    assert!(lane.anchor(End::Client).writable(), "or nothing would tell it");
}

/// An end that says that it is shut both ways arms. A small write that has found it awake just before rings it, and
/// leaves it armed: the next one does not go the short way, and finds what it said.
#[test]
fn an_end_that_is_shut_both_ways_stays_armed_when_it_is_rung() {
    for said in [0, flags::FIN, flags::SHUT_RD, flags::SHUT_BOTH] {
        let lane = Lane::new(1 << 16, [0, 0]);
        let (writer, anchor) = (lane.writer(End::Client), lane.anchor(End::Client));
        assert!(writer.write_small(Source::from(&[7][..]), &anchor));
        lane.memory.set_flags(End::Server, said);
        lane.memory.set_wake(End::Server, Wake::Read, 1 << 30 | WAKE_ARMED);
        assert_eq!(writer.write(Source::from(&[8][..]), &anchor), Ok(1));
        let goes_on = writer.write_small(Source::from(&[9][..]), &anchor);
        assert_eq!(goes_on, said != flags::SHUT_BOTH, "an end that has said {said}");
    }
}

/// The anchor of a peer that is gone.
struct NobodyThere;

impl Bells for NobodyThere {
    fn ring(&self) -> Result<(), BellFault> {
        Err(BellFault::Gone)
    }
    fn queued(&self) -> Result<u32, BellFault> {
        Err(BellFault::Gone)
    }
    fn drain(&self, _: u32) -> Result<(), BellFault> {
        Ok(())
    }
    fn plug(&self) {}
    fn plugged(&self) -> bool {
        false
    }
    fn unplug(&self) {}
}

/// What was published stays published, so it counts, whichever part of the message it was that found nobody.
#[test]
fn what_was_written_before_the_peer_was_found_gone_is_counted() {
    for length in [1, 40_000, 1 << 20] {
        let lane = Lane::new(1 << 16, [0, 0]);
        lane.memory.set_wake(End::Server, Wake::Read, 1 << 30 | WAKE_ARMED);
        let bytes = vec![7; length];
        assert_eq!(lane.writer(End::Client).write(Source::from(&bytes[..]), &NobodyThere), Err(Fault::Gone));
        let published = lane.memory.cursor(End::Client).tail;
        assert!(published != 0);
        assert_eq!(lane.tx[End::Client as usize].bytes(), u64::from(published));
    }
}

#[test]
fn bytes_that_a_writer_wants_back_are_copied_unchanged() {
    let mut lane = Lane::new(1 << 16, [u32::MAX - 40, 0]);
    lane.write(End::Client, 100);
    lane.read(End::Server, 30);
    let mut buffer = [0; 100];
    let count = lane.writer(End::Client).copy_back(10, Sink::from(&mut buffer[..])).unwrap();
    assert_eq!(count, 60);
    assert!(lane.streams[0].bytes.iter().skip(10).eq(&buffer[..60]));
}
