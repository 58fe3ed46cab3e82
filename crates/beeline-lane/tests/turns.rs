//! Turns on real lane memory: how much a writer puts into the ring before the reader is to read, and where.
#![cfg(not(loom))]
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, clippy::arithmetic_side_effects, unsafe_code)]

use std::cell::Cell;

use beeline_lane::{Armed, BellFault, Bells, End, INLINE_BYTES, LaneMemory, Reader, RxState, Since, Sink, Source};
use beeline_lane::{Storage, TxState, Writer};

const RING_BYTES: u32 = 1 << 18;
const TURN: u32 = 1 << 16;

/// Counts bells, and loses them.
#[derive(Default)]
struct Counting(Cell<u32>);

impl Bells for Counting {
    fn ring(&self) -> Result<(), BellFault> {
        self.0.set(self.0.get() + 1);
        Ok(())
    }
    fn queued(&self) -> Result<u32, BellFault> {
        Ok(0)
    }
    fn drain(&self, _: u32) -> Result<(), BellFault> {
        Ok(())
    }
    fn plug(&self) {
        panic!("the ring is never full");
    }
    fn plugged(&self) -> bool {
        false
    }
    fn unplug(&self) {}
}

#[derive(Default)]
struct Side {
    tx: TxState,
    rx: RxState,
}

fn with_lane(test: impl FnOnce(&Writer<'_, LaneMemory>, &Reader<'_, LaneMemory>, &TxState)) {
    with_memory(|_, writer, reader, state| test(writer, reader, state));
}

fn with_memory(test: impl FnOnce(LaneMemory, &Writer<'_, LaneMemory>, &Reader<'_, LaneMemory>, &TxState)) {
    let (memory, _) = LaneMemory::create(RING_BYTES).unwrap();
    let (client, server) = (Side::default(), Side::default());
    let writer = Writer::new(memory, End::Client, &client.tx, &client.rx);
    test(memory, &writer, &Reader::new(memory, End::Server, &server.rx, &server.tx), &client.tx);
    // SAFETY: nobody uses the memory any more.
    unsafe { memory.unmap() };
}

#[test]
fn a_turn_ends_the_write_and_is_no_full_ring_to_anybody_else() {
    with_lane(|writer, _, _| {
        let bells = Counting::default();
        let message = vec![7; RING_BYTES as usize];
        assert_eq!(writer.in_turns(TURN).write(Source::from(&message[..]), &bells), Ok(TURN as usize));
        assert_eq!(writer.in_turns(TURN).write(Source::from(&message[..]), &bells), Ok(0));
        assert_eq!(writer.writable(), Ok(true));
        assert_eq!(writer.arm(&bells), Ok(Armed::Ready));
        // Without turns, or with one longer than the ring, the rest of the ring is to be had.
        assert_eq!(writer.in_turns(0).write(Source::from(&message[..9]), &bells), Ok(9));
        let rest = (RING_BYTES - TURN) as usize - 9;
        assert_eq!(writer.in_turns(RING_BYTES * 2).write(Source::from(&message[..]), &bells), Ok(rest));
    });
}

#[test]
fn turns_keep_to_the_beginning_of_the_ring() {
    with_lane(|writer, reader, state| {
        let bells = Counting::default();
        let mut back = vec![0; TURN as usize];
        for turn in 0..10_u8 {
            let message = vec![turn; RING_BYTES as usize];
            assert_eq!(writer.in_turns(TURN).write(Source::from(&message[..]), &bells), Ok(TURN as usize));
            assert_eq!(reader.read(Sink::from(&mut back[..]), &bells), Ok(TURN as usize));
            assert!(back.iter().all(|byte| *byte == turn));
        }
        assert!(state.reach() <= TURN + INLINE_BYTES, "{}", state.reach());
    });
}

#[test]
fn a_reader_is_rung_once_in_a_turn() {
    with_lane(|writer, reader, _| {
        let bells = Counting::default();
        let message = vec![7; TURN as usize];
        assert_eq!(reader.arm(Since::Read, &bells), Ok(Armed::Sleep));
        // A reader that got the processor for each chunk would arm anew before the next.
        let rearming = Rearming { bells: &bells, reader };
        assert_eq!(writer.in_turns(TURN).write(Source::from(&message[..]), &rearming), Ok(TURN as usize));
        assert_eq!(bells.0.get(), 1);
    });
}

#[test]
fn a_reader_on_the_writers_cpu_is_rung_once_and_finds_all_at_the_beginning_of_the_ring() {
    with_lane(|writer, reader, state| {
        let bells = Counting::default();
        let rearming = Rearming { bells: &bells, reader };
        let (message, mut back) = (vec![7; TURN as usize], vec![0; TURN as usize]);
        for rung in 1..10 {
            assert_eq!(reader.arm(Since::Read, &bells), Ok(Armed::Sleep));
            let written = writer.beside_reader(true).write(Source::from(&message[..]), &bells);
            assert_eq!((written, bells.0.get()), (Ok(TURN as usize), rung));
            assert_eq!(reader.read(Sink::from(&mut back[..]), &bells), Ok(TURN as usize));
        }
        // Also if it read and armed for each chunk.
        assert_eq!(reader.arm(Since::Read, &bells), Ok(Armed::Sleep));
        writer.beside_reader(true).write(Source::from(&message[..]), &rearming).unwrap();
        assert_eq!(bells.0.get(), 10);
        assert!(state.reach() <= TURN + INLINE_BYTES, "{}", state.reach());
        // One on another CPU is rung as soon as there is something to read.
        assert_eq!(reader.arm(Since::Read, &bells), Ok(Armed::Sleep));
        writer.write(Source::from(&message[..]), &rearming).unwrap();
        assert!(bells.0.get() > 11);
        // A full ring is as full as ever.
        let more = vec![7; RING_BYTES as usize];
        assert_eq!(writer.beside_reader(true).write(Source::from(&more[..]), &bells), Ok(RING_BYTES as usize));
    });
}

/// The reader reads all, and arms again, as soon as it is rung.
struct Rearming<'a> {
    bells: &'a Counting,
    reader: &'a Reader<'a, LaneMemory>,
}

impl Bells for Rearming<'_> {
    fn ring(&self) -> Result<(), BellFault> {
        let mut buffer = vec![0; TURN as usize];
        self.reader.read(Sink::from(&mut buffer[..]), self.bells).unwrap();
        self.reader.arm(Since::Read, self.bells).unwrap();
        self.bells.ring()
    }
    fn queued(&self) -> Result<u32, BellFault> {
        self.bells.queued()
    }
    fn drain(&self, count: u32) -> Result<(), BellFault> {
        self.bells.drain(count)
    }
    fn plug(&self) {
        self.bells.plug();
    }
    fn plugged(&self) -> bool {
        false
    }
    fn unplug(&self) {}
}

#[test]
fn a_turn_is_over_when_the_reader_arms_or_has_read_half() {
    with_memory(|memory, writer, reader, _| {
        let bells = Counting::default();
        let message = vec![7; TURN as usize];
        let mut back = vec![0; TURN as usize];
        let waits = || memory.awaits_turn(End::Client);
        writer.in_turns(TURN).write(Source::from(&message[..]), &bells).unwrap();
        assert!(writer.ask_for_turn(TURN) && waits());
        // That it reads is not told; that there is no more to read is.
        reader.read(Sink::from(&mut back[..]), &bells).unwrap();
        assert!(waits());
        assert_eq!(reader.arm(Since::Read, &bells), Ok(Armed::Sleep));
        assert!(!waits());
        // A reader that is quicker is not waited for.
        writer.in_turns(TURN).write(Source::from(&message[..]), &bells).unwrap();
        reader.read(Sink::from(&mut back[..TURN as usize / 2]), &bells).unwrap();
        assert!(!writer.ask_for_turn(TURN) && !waits());
    });
}

/// What is left of a message may be too short for the producer to look at the head for another reason.
#[test]
fn the_short_rest_of_a_message_finds_the_room_that_a_turn_has_made() {
    with_lane(|writer, reader, _| {
        let bells = Counting::default();
        let message = vec![7; TURN as usize];
        let mut back = vec![0; TURN as usize];
        writer.in_turns(TURN).write(Source::from(&message[..]), &bells).unwrap();
        assert_eq!(writer.in_turns(TURN).write(Source::from(&message[..1]), &bells), Ok(0));
        reader.read(Sink::from(&mut back[..]), &bells).unwrap();
        assert!(!writer.ask_for_turn(TURN));
        assert_eq!(writer.in_turns(TURN).write(Source::from(&message[..1]), &bells), Ok(1));
    });
}

/// Bells that may be plugged.
struct Plugging(Cell<u32>, Cell<bool>);

impl Bells for Plugging {
    fn ring(&self) -> Result<(), BellFault> {
        self.0.set(self.0.get() + 1);
        Ok(())
    }
    fn queued(&self) -> Result<u32, BellFault> {
        Ok(self.0.get())
    }
    fn drain(&self, count: u32) -> Result<(), BellFault> {
        self.0.set(self.0.get() - count);
        Ok(())
    }
    fn plug(&self) {
        self.1.set(true);
    }
    fn plugged(&self) -> bool {
        self.1.get()
    }
    fn unplug(&self) {
        self.1.set(false);
    }
}

#[test]
fn a_writer_that_holds_back_waits_for_room_until_the_first_byte_is_read() {
    with_lane(|writer, reader, _| {
        let bells = Plugging(Cell::new(0), Cell::new(false));
        let message = vec![7; RING_BYTES as usize];
        let part = writer.holding_back(RING_BYTES - TURN);
        assert_eq!(part.free(), Ok(TURN));
        assert_eq!(part.write(Source::from(&message[..]), &bells), Ok(TURN as usize));
        assert_eq!((part.free(), part.writable()), (Ok(0), Ok(false)));
        assert_eq!(part.in_turns(RING_BYTES).write_urgent(Source::from(&message[..1]), &bells, || {}), Ok(0));
        assert_eq!(part.arm(&bells), Ok(Armed::Sleep));
        assert!(bells.0.get() > 1);
        let mut byte = [0u8];
        assert_eq!(reader.read(Sink::from(&mut byte[..]), &bells), Ok(1));
        // The kernel finds the anchor writable again.
        assert_eq!(bells.0.get(), 1);
        assert_eq!((part.writable(), writer.writable()), (Ok(false), Ok(true)));
        assert_eq!(writer.free(), Ok(RING_BYTES - TURN + 1));
    });
}
