//! loom models of rings and wake protocol.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p beeline-lane --test loom --release`
//!
//! loom runs each model under every interleaving with up to `LOOM_MAX_PREEMPTIONS` preemptions (each model
//! names its own bound), and every value that the C++ memory model lets a relaxed load return.
//!
//! The kernel is a [`Kernel`]: per end a number of queued bells, a plugged flag and a closed flag under one
//! lock, and a condition variable on which `poll(2)` sleeps. Like `poll`, a sleeper looks at the level
//! again when it is woken, so a bell that somebody took out meanwhile wakes nobody. A model in which a
//! thread sleeps for ever is a deadlock, which loom reports.
//!
//! Death is a [`Fuse`]: it burns down by one at each access to lane memory or kernel and then unwinds the
//! thread, so that nothing of what a killed process would have done next takes place.
#![cfg(loom)]
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, clippy::arithmetic_side_effects)]
#![allow(unsafe_code)]

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use beeline_lane::{
    Armed, BellFault, Bells, End, Fault, Reader, RxState, Since, Sink, Source, Storage, TxState, Wake, Writer, flags,
};
use loom::cell::UnsafeCell;
use loom::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use loom::sync::atomic::{AtomicU32, AtomicU64, fence};
use loom::sync::{Arc, Condvar, Mutex};
use loom::thread;

/// Fences go with each eighth of a ring: the smallest ring that has an unfenced read is 16 bytes.
const RING: usize = 16;
/// Bells that fit into a socket at all.
const BELLS_MAX: u32 = 14;

/// A byte of a ring. loom reports accesses that the protocol fails to order.
struct Byte(UnsafeCell<u8>);

// SAFETY: loom checks at run time that no two accesses race.
unsafe impl Sync for Byte {}
// SAFETY: as above.
unsafe impl Send for Byte {}

#[derive(Default)]
struct Front {
    cursor: AtomicU64,
    head: AtomicU32,
    echo: AtomicU64,
    flags: AtomicU32,
    read_wake: AtomicU32,
    write_wake: AtomicU32,
}

#[derive(Default)]
struct KernelEnd {
    /// Bells queued for this end.
    queued: u32,
    /// This end's send buffer is the small one.
    small: bool,
    /// This end is closed.
    closed: bool,
    /// This end has shut down writing.
    half_closed: bool,
    /// An edge-triggered set that watches this end has an event to look at.
    edge: bool,
    /// Bells this end ever sent.
    sent: u32,
}

#[derive(Default)]
struct Kernel {
    ends: [KernelEnd; 2],
}

/// One side: the state shared by its holders. The lock tells whether the last holder died with it.
#[derive(Default)]
struct Side {
    tx: TxState,
    rx: RxState,
    tx_lock: Mutex<bool>,
    rx_lock: Mutex<bool>,
}

struct Lane {
    fronts: [Front; 2],
    rings: [Vec<Byte>; 2],
    sides: [Side; 2],
    kernel: Mutex<Kernel>,
    changed: Condvar,
}

impl Lane {
    fn new() -> Arc<Lane> {
        let ring = || (0..RING).map(|_| Byte(UnsafeCell::new(0xEE))).collect();
        Arc::new(Lane {
            fronts: Default::default(),
            rings: [ring(), ring()],
            sides: Default::default(),
            kernel: Mutex::new(Kernel::default()),
            changed: Condvar::new(),
        })
    }
}

/// Unwinds its thread after a number of steps. `None` never does.
#[derive(Default)]
struct Fuse(Cell<Option<u32>>);

struct Died;

impl Fuse {
    fn burn(&self) {
        match self.0.get() {
            Some(0) => resume_unwind(Box::new(Died)),
            Some(steps) => self.0.set(Some(steps - 1)),
            None => {}
        }
    }
}

/// One holder of one end.
struct Holder {
    lane: Arc<Lane>,
    end: End,
    fuse: Fuse,
}

impl Storage for Holder {
    fn ring_bytes(&self) -> u32 {
        RING as u32
    }
    fn cursor(&self, end: End) -> u64 {
        self.fuse.burn();
        self.lane.fronts[end as usize].cursor.load(Acquire)
    }
    fn set_cursor(&self, end: End, cursor: u64) {
        self.fuse.burn();
        self.lane.fronts[end as usize].cursor.store(cursor, Release);
        // A holder may die between publishing and noting it.
        self.fuse.burn();
    }
    fn head(&self, end: End) -> u32 {
        self.lane.fronts[end as usize].head.load(Acquire)
    }
    fn set_head(&self, end: End, head: u32) {
        self.fuse.burn();
        self.lane.fronts[end as usize].head.store(head, Release);
    }
    fn echo(&self, end: End) -> (u64, bool) {
        (self.lane.fronts[end as usize].echo.load(Acquire), false)
    }
    // Urgent bytes are not modelled: their words are published before the cursor that covers them, as bytes are.
    fn urgent(&self, _: End) -> u64 {
        0
    }
    fn set_urgent(&self, _: End, _: u64) {}
    fn passed(&self, _: End) -> u64 {
        0
    }
    fn set_passed(&self, _: End, _: u64) {}
    fn set_echo(&self, end: End, read: u64) {
        self.lane.fronts[end as usize].echo.store(read & 0xFFFF_FFFF_FFFF, Release);
    }
    fn wake(&self, end: End, wake: Wake) -> u32 {
        self.fuse.burn();
        self.word(end, wake).load(Relaxed)
    }
    fn set_wake(&self, end: End, wake: Wake, value: u32) {
        self.fuse.burn();
        // A store, on real memory. loom does not know that a compare-and-swap is followed by nothing else
        // than what it was tried before (it lets the peer's clearing of the old value come after the new
        // one), so the model swaps, which gives it the order that C11 guarantees.
        let _ = self.word(end, wake).swap(value, Relaxed);
    }
    fn clear_wake(&self, end: End, wake: Wake, seen: u32) {
        self.fuse.burn();
        let _ = self.word(end, wake).compare_exchange(seen, seen & !1, Relaxed, Relaxed);
    }
    fn copy_in(&self, end: End, position: u32, mut source: Source<'_>) {
        self.fuse.burn();
        let mut position = position as usize;
        while !source.is_empty() {
            let mut byte = [0];
            source.drain_into(&mut byte);
            // SAFETY: the pointer is valid for the closure, and loom checks for races.
            self.lane.rings[end as usize][position % RING].0.with_mut(|cell| unsafe { *cell = byte[0] });
            position += 1;
        }
    }
    fn copy_out(&self, end: End, position: u32, mut sink: Sink<'_>) {
        self.fuse.burn();
        let mut position = position as usize;
        while !sink.is_empty() {
            // SAFETY: the pointer is valid for the closure, and loom checks for races.
            sink.fill_from(&[self.lane.rings[end as usize][position % RING].0.with(|cell| unsafe { *cell })]);
            position += 1;
        }
    }
    fn discard_ring(&self, _end: End) {
        unreachable!("no model gives memory back");
    }
    fn full_fence(&self) {
        fence(SeqCst);
    }
}

impl Bells for Holder {
    fn ring(&self) -> Result<(), BellFault> {
        self.fuse.burn();
        self.change(|me, peer| match peer.closed {
            true => Err(BellFault::Gone),
            false => {
                send_bell(me, peer);
                Ok(())
            }
        })
    }
    fn queued(&self) -> Result<u32, BellFault> {
        self.fuse.burn();
        self.change(|me, peer| if peer.closed { Err(BellFault::Gone) } else { Ok(me.queued) })
    }
    fn drain(&self, count: u32) -> Result<(), BellFault> {
        self.fuse.burn();
        self.change(|me, _| me.queued -= count.min(me.queued));
        Ok(())
    }
    fn plug(&self) {
        self.fuse.burn();
        self.change(|me, _| me.small = true);
    }
    fn plugged(&self) -> bool {
        self.fuse.burn();
        self.change(|me, peer| me.small && peer.queued > 3)
    }
    fn unplug(&self) {
        self.fuse.burn();
        self.change(|me, _| me.small = false);
    }
}

fn send_bell(me: &mut KernelEnd, peer: &mut KernelEnd) {
    me.sent += 1;
    peer.queued = (peer.queued + 1).min(BELLS_MAX);
    peer.edge = true;
}

/// What a call ended with.
#[derive(Debug, PartialEq, Eq, Clone, Copy)]
enum Ended {
    Bytes(usize),
    Eof,
    Gone,
}

impl Holder {
    fn new(lane: &Arc<Lane>, end: End) -> Holder {
        Holder { lane: lane.clone(), end, fuse: Fuse::default() }
    }

    fn mortal(lane: &Arc<Lane>, end: End, steps: u32) -> Holder {
        Holder { fuse: Fuse(Cell::new(Some(steps))), ..Holder::new(lane, end) }
    }

    fn word(&self, end: End, wake: Wake) -> &AtomicU32 {
        let front = &self.lane.fronts[end as usize];
        match wake {
            Wake::Read => &front.read_wake,
            Wake::Write => &front.write_wake,
        }
    }

    fn side(&self) -> &Side {
        &self.lane.sides[self.end as usize]
    }

    /// One system call that changes the kernel's state.
    fn change<T>(&self, act: impl FnOnce(&mut KernelEnd, &mut KernelEnd) -> T) -> T {
        let mut kernel = self.lane.kernel.lock().unwrap();
        let [client, server] = &mut kernel.ends;
        let (me, peer) = if self.end == End::Client { (client, server) } else { (server, client) };
        let result = act(me, peer);
        self.lane.changed.notify_all();
        result
    }

    /// `poll(2)`: sleeps until `level` holds of us and the peer.
    fn sleep_until(&self, mut level: impl FnMut(&mut KernelEnd, &KernelEnd) -> bool) {
        let mut kernel = self.lane.kernel.lock().unwrap();
        loop {
            let [client, server] = &mut kernel.ends;
            let (me, peer) = if self.end == End::Client { (client, server) } else { (server, client) };
            if level(me, peer) {
                return;
            }
            kernel = self.lane.changed.wait(kernel).unwrap();
        }
    }

    fn sleep_readable(&self) {
        self.sleep_until(|me, peer| me.queued > 0 || peer.closed || peer.half_closed);
    }

    fn sleep_edge(&self) {
        self.sleep_until(|me, peer| std::mem::take(&mut me.edge) && (me.queued > 0 || peer.closed || peer.half_closed));
    }

    fn sleep_writable(&self) {
        self.sleep_until(|me, peer| !me.small || peer.queued <= 3 || peer.closed);
    }

    fn peer_is_gone(&self) -> bool {
        self.lane.kernel.lock().unwrap().ends[self.end.peer() as usize].closed
    }

    /// Runs `act` as the holder of the reading half; takes over from a holder that died.
    fn reading<T>(&self, act: impl FnOnce(&Reader<'_, Holder>) -> T) -> T {
        self.locked(&self.side().rx_lock, |died| {
            let reader = Reader::new(self, self.end, &self.side().rx, &self.side().tx);
            if died {
                let _ = reader.recover(self);
            }
            act(&reader)
        })
    }

    /// As [`Holder::reading`], for the writing half.
    fn writing<T>(&self, act: impl FnOnce(&Writer<'_, Holder>) -> T) -> T {
        self.locked(&self.side().tx_lock, |died| {
            let writer = Writer::new(self, self.end, &self.side().tx, &self.side().rx);
            if died {
                writer.recover().unwrap();
            }
            act(&writer)
        })
    }

    /// A robust lock: `act` learns whether the last holder died with it. (loom's own mutexes do not
    /// survive that.)
    fn locked<T>(&self, lock: &Mutex<bool>, act: impl FnOnce(bool) -> T) -> T {
        let mut died = lock.lock().unwrap();
        let result = catch_unwind(AssertUnwindSafe(|| act(*died)));
        *died = result.is_err();
        drop(died);
        result.unwrap_or_else(|reason| resume_unwind(reason))
    }

    /// Blocking `recv`.
    fn recv(&self, buffer: &mut [u8]) -> Ended {
        loop {
            let ended = self.reading(|reader| {
                // In this order, which is the peer's reversed: whoever sees the end has seen the flag, and
                // whoever sees the flag will see the last cursor.
                let gone = self.peer_is_gone();
                let finished = self.lane.fronts[self.end.peer() as usize].flags.load(Acquire) & flags::FIN != 0;
                match reader.read(Sink::from(&mut *buffer), self) {
                    Ok(0) if finished => return Some(Ended::Eof),
                    Ok(0) if gone => return Some(Ended::Gone),
                    Ok(0) => {}
                    Ok(count) => return Some(Ended::Bytes(count)),
                    Err(fault) => panic!("{fault:?}"),
                }
                match reader.arm(Since::Read, self) {
                    Ok(Armed::Sleep) => None,
                    Ok(Armed::Ready) | Err(Fault::Gone) => Some(Ended::Bytes(0)),
                    Err(fault) => panic!("{fault:?}"),
                }
            });
            match ended {
                Some(Ended::Bytes(0)) => {}
                Some(ended) => return ended,
                None => {
                    self.sleep_readable();
                    self.side().rx.note_bell();
                }
            }
        }
    }

    /// Blocking `recv` until the stream ends or `limit` bytes are there.
    fn recv_all(&self, limit: usize) -> (Vec<u8>, Option<Ended>) {
        let mut stream = Vec::new();
        while stream.len() < limit {
            let mut buffer = [0; 5];
            let room = buffer.len().min(limit - stream.len());
            match self.recv(&mut buffer[..room]) {
                Ended::Bytes(count) => stream.extend_from_slice(&buffer[..count]),
                ended => return (stream, Some(ended)),
            }
        }
        (stream, None)
    }

    /// Blocking `send` of all bytes; false when the peer is gone.
    fn send(&self, bytes: &[u8]) -> bool {
        let mut done = 0;
        while done < bytes.len() {
            let armed = self.writing(|writer| {
                // As the sockets do: the short way first.
                if writer.write_small(Source::from(&bytes[done..]), self) {
                    done = bytes.len();
                } else {
                    done += writer.write(Source::from(&bytes[done..]), self)?;
                }
                if done == bytes.len() {
                    return Ok(Armed::Ready);
                }
                writer.arm(self)
            });
            match armed {
                Ok(Armed::Ready) => {}
                Ok(Armed::Sleep) => {
                    self.sleep_writable();
                    if self.peer_is_gone() {
                        return false;
                    }
                }
                Err(Fault::Gone) => return false,
                Err(fault) => panic!("{fault:?}"),
            }
        }
        true
    }

    fn finish(&self) {
        self.lane.fronts[self.end as usize].flags.store(flags::FIN, Release);
        self.change(|me, _| me.half_closed = true);
    }

    /// The kernel closes the anchor: the last holder is gone.
    fn close(&self) {
        self.change(|me, peer| {
            me.closed = true;
            peer.edge = true;
        });
    }

    /// Runs `act`; false if the fuse burnt down meanwhile.
    fn lives_through(&self, act: impl FnOnce()) -> bool {
        match catch_unwind(AssertUnwindSafe(act)) {
            Ok(()) => true,
            Err(reason) if reason.is::<Died>() => {
                self.fuse.0.set(None);
                false
            }
            Err(reason) => resume_unwind(reason),
        }
    }
}

fn stream(range: std::ops::Range<u8>) -> Vec<u8> {
    range.collect()
}

/// Fills the client's ring before the threads start.
fn prefill(lane: &Arc<Lane>, bytes: u8) {
    let client = Holder::new(lane, End::Client);
    assert!(client.send(&stream(0..bytes)));
}

fn check(preemptions: usize, model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(builder.preemption_bound.unwrap_or(preemptions));
    builder.max_branches = 20_000;
    builder.check(model);
}

#[test]
fn a_stream_longer_than_the_ring_arrives_whole() {
    check(2, || {
        let lane = Lane::new();
        prefill(&lane, 14);
        let writer = Holder::new(&lane, End::Client);
        let thread = thread::spawn(move || {
            assert!(writer.send(&stream(14..24)));
        });
        let (bytes, _) = Holder::new(&lane, End::Server).recv_all(24);
        assert_eq!(bytes, stream(0..24));
        thread.join().unwrap();
    });
}

/// The ring runs empty and full: the reader sleeps for data, and the producer rewinds.
#[test]
fn a_sleeping_reader_is_woken_by_each_message() {
    check(3, || {
        let lane = Lane::new();
        let writer = Holder::new(&lane, End::Client);
        let thread = thread::spawn(move || {
            assert!(writer.send(&[1]));
            assert!(writer.send(&[2, 3]));
        });
        let (bytes, _) = Holder::new(&lane, End::Server).recv_all(3);
        assert_eq!(bytes, [1, 2, 3]);
        thread.join().unwrap();
        assert!(lane.kernel.lock().unwrap().ends[1].queued <= 3);
    });
}

#[test]
fn question_and_answer_use_both_directions_and_rewind() {
    check(2, || {
        let lane = Lane::new();
        let server = Holder::new(&lane, End::Server);
        let thread = thread::spawn(move || {
            for round in 0..2 {
                assert_eq!(server.recv_all(2).0, [round, 7]);
                assert!(server.send(&[round + 10]));
            }
        });
        let client = Holder::new(&lane, End::Client);
        for round in 0..2 {
            assert!(client.send(&[round, 7]));
            assert_eq!(client.recv_all(1).0, [round + 10]);
        }
        thread.join().unwrap();
    });
}

/// A look may find the echo of a reply whose cursor is not there yet. What it says is used all the same.
#[test]
fn an_echo_that_runs_ahead_of_its_cursor_orders_reads_before_reuse() {
    check(2, || {
        let lane = Lane::new();
        let server = Holder::new(&lane, End::Server);
        let thread = thread::spawn(move || {
            assert_eq!(server.recv_all(1).0, [1]);
            assert!(server.send(&[7]));
            assert_eq!(server.recv_all(1).0, [2]);
        });
        let client = Holder::new(&lane, End::Client);
        assert!(client.send(&[1]));
        client.reading(|reader| reader.unread()).unwrap();
        assert!(client.send(&[2]));
        thread.join().unwrap();
    });
}

#[test]
fn a_sleeping_writer_is_woken_by_room() {
    check(3, || {
        let lane = Lane::new();
        prefill(&lane, 16);
        let writer = Holder::new(&lane, End::Client);
        let thread = thread::spawn(move || {
            assert!(writer.send(&[16]));
        });
        // Exactly half of the ring is read, in small steps, and then nothing any more: that must do.
        let server = Holder::new(&lane, End::Server);
        for _ in 0..2 {
            let mut buffer = [0; 4];
            assert_eq!(server.recv(&mut buffer), Ended::Bytes(4));
        }
        thread.join().unwrap();
    });
}

/// The reader looks while the ring is half empty, and copies while the writer fills it and goes to sleep.
#[test]
fn a_reader_that_looked_before_the_ring_was_full_still_wakes_the_writer() {
    check(3, || {
        let lane = Lane::new();
        prefill(&lane, 7);
        let writer = Holder::new(&lane, End::Client);
        let thread = thread::spawn(move || {
            assert!(writer.send(&stream(7..17)));
        });
        let mut buffer = [0; 7];
        assert_eq!(Holder::new(&lane, End::Server).recv(&mut buffer), Ended::Bytes(7));
        thread.join().unwrap();
    });
}

#[test]
fn two_waiting_readers_share_what_comes() {
    check(2, || {
        let lane = Lane::new();
        let readers = [0, 1].map(|_| {
            let reader = Holder::new(&lane, End::Server);
            thread::spawn(move || {
                let mut byte = [0];
                assert_eq!(reader.recv(&mut byte), Ended::Bytes(1));
                byte[0]
            })
        });
        let writer = Holder::new(&lane, End::Client);
        assert!(writer.send(&[1]));
        assert!(writer.send(&[2]));
        let mut bytes = readers.map(|thread| thread.join().unwrap());
        bytes.sort_unstable();
        assert_eq!(bytes, [1, 2]);
    });
}

#[test]
fn two_waiting_readers_both_see_the_end() {
    check(2, || {
        let lane = Lane::new();
        let readers = [0, 1].map(|_| {
            let reader = Holder::new(&lane, End::Server);
            thread::spawn(move || reader.recv_all(9))
        });
        let writer = Holder::new(&lane, End::Client);
        assert!(writer.send(&[1]));
        writer.finish();
        let results = readers.map(|thread| thread.join().unwrap());
        assert!(results.iter().all(|(_, ended)| *ended == Some(Ended::Eof)));
        assert_eq!(results.iter().map(|(bytes, _)| bytes.len()).sum::<usize>(), 1);
    });
}

/// A second holder wakes, arms, drains and loses interest, whatever it was told. The first, which sleeps
/// in the kernel all the time, is nevertheless woken for the byte.
#[test]
fn a_holder_that_arms_and_leaves_takes_no_wake_up_with_it() {
    check(3, || {
        let lane = Lane::new();
        let sleeper = Holder::new(&lane, End::Server);
        let sleeper = thread::spawn(move || {
            let mut byte = [0];
            assert_eq!(sleeper.recv(&mut byte), Ended::Bytes(1));
        });
        let passer = Holder::new(&lane, End::Server);
        let passer = thread::spawn(move || {
            for _ in 0..2 {
                passer.side().rx.note_bell();
                passer.reading(|reader| reader.arm(Since::Read, &passer)).unwrap();
            }
        });
        assert!(Holder::new(&lane, End::Client).send(&[1]));
        sleeper.join().unwrap();
        passer.join().unwrap();
    });
}

/// As above with an edge-triggered holder, which leaves the byte unread.
#[test]
fn an_edge_triggered_holder_leaves_level_triggered_ones_awake() {
    check(2, || {
        let lane = Lane::new();
        let sleeper = Holder::new(&lane, End::Server);
        let sleeper = thread::spawn(move || {
            let mut byte = [0];
            assert_eq!(sleeper.recv(&mut byte), Ended::Bytes(1));
        });
        let edge = Holder::new(&lane, End::Server);
        let edge = thread::spawn(move || {
            let tail = edge.reading(|reader| reader.tail());
            edge.side().rx.note_bell();
            let _ = edge.reading(|reader| reader.arm(Since::Tail(tail), &edge)).unwrap();
        });
        assert!(Holder::new(&lane, End::Client).send(&[1]));
        sleeper.join().unwrap();
        edge.join().unwrap();
    });
}

/// An edge-triggered waiter that reads nothing learns of every tail, in the end of the last.
#[test]
fn an_edge_triggered_waiter_learns_of_news_beside_unread_data() {
    check(3, || {
        let lane = Lane::new();
        prefill(&lane, 1);
        let writer = Holder::new(&lane, End::Client);
        let thread = thread::spawn(move || {
            assert!(writer.send(&[1]));
            assert!(writer.send(&[2]));
        });
        let waiter = Holder::new(&lane, End::Server);
        let mut reported = 1;
        while reported != 3 {
            let armed = waiter.reading(|reader| reader.arm(Since::Tail(reported), &waiter)).unwrap();
            if armed == Armed::Sleep {
                waiter.sleep_edge();
                waiter.side().rx.note_bell();
            }
            reported = waiter.reading(|reader| reader.tail());
        }
        thread.join().unwrap();
    });
}

/// Both writers get on although the reader reads once and never touches the lane again.
#[test]
fn two_waiting_writers_both_find_the_room() {
    check(2, || {
        let lane = Lane::new();
        prefill(&lane, 16);
        let writers = [0, 1].map(|_| {
            let writer = Holder::new(&lane, End::Client);
            thread::spawn(move || {
                assert!(writer.send(&[99]));
            })
        });
        let mut buffer = [0; 12];
        assert_eq!(Holder::new(&lane, End::Server).recv(&mut buffer), Ended::Bytes(12));
        for thread in writers {
            thread.join().unwrap();
        }
    });
}

#[test]
fn close_after_send_delivers_all_then_the_end() {
    check(3, || {
        let lane = Lane::new();
        let writer = Holder::new(&lane, End::Client);
        let thread = thread::spawn(move || {
            assert!(writer.send(&[1, 2]));
            writer.finish();
            writer.close();
        });
        let (bytes, ended) = Holder::new(&lane, End::Server).recv_all(9);
        assert_eq!((bytes, ended), (vec![1, 2], Some(Ended::Eof)));
        thread.join().unwrap();
    });
}

#[test]
fn close_of_the_reader_ends_a_blocked_send() {
    check(3, || {
        let lane = Lane::new();
        prefill(&lane, 16);
        let writer = Holder::new(&lane, End::Client);
        let thread = thread::spawn(move || {
            assert!(!writer.send(&stream(0..17)));
        });
        Holder::new(&lane, End::Server).close();
        thread.join().unwrap();
    });
}

/// A holder of the writing side is killed at any step of a `send`; a second one goes on.
#[test]
fn a_writer_killed_at_any_step_leaves_a_lane_that_its_sibling_can_use() {
    for step in 0..12 {
        check(2, move || {
            let lane = Lane::new();
            let mortal = Holder::mortal(&lane, End::Client, step);
            let thread = thread::spawn(move || {
                mortal.lives_through(|| assert!(mortal.send(&[1, 2])));
                assert!(Holder::new(&mortal.lane, End::Client).send(&[9]));
            });
            let server = Holder::new(&lane, End::Server);
            let mut bytes = Vec::new();
            while bytes.last() != Some(&9) {
                bytes.extend(server.recv_all(1).0);
            }
            assert!(bytes == [9] || bytes == [1, 2, 9], "step {step}: {bytes:?}");
            thread.join().unwrap();
        });
    }
}

/// A writer is killed while it goes to sleep on a full ring; its sibling sleeps there, too, and the reader
/// reads twice and never touches the lane again.
#[test]
fn a_writer_killed_while_plugging_leaves_its_sibling_awake() {
    for step in 2..10 {
        check(2, move || {
            let lane = Lane::new();
            prefill(&lane, 16);
            let mortal = Holder::mortal(&lane, End::Client, step);
            let mortal = thread::spawn(move || {
                mortal.lives_through(|| assert!(mortal.send(&[9])));
            });
            let sibling = Holder::new(&lane, End::Client);
            let sibling = thread::spawn(move || assert!(sibling.send(&[8])));
            let server = Holder::new(&lane, End::Server);
            for _ in 0..2 {
                let mut buffer = [0; 8];
                assert!(matches!(server.recv(&mut buffer), Ended::Bytes(_)));
            }
            mortal.join().unwrap();
            sibling.join().unwrap();
        });
    }
}

/// The peer is killed at any step of going to sleep on a full ring: its bytes are read, although nobody
/// can be told of the room any more.
#[test]
fn a_peer_killed_while_waiting_for_room_leaves_its_bytes() {
    for step in 0..12 {
        check(2, move || {
            let lane = Lane::new();
            prefill(&lane, 16);
            let mortal = Holder::mortal(&lane, End::Client, step);
            let thread = thread::spawn(move || {
                mortal.lives_through(|| {
                    mortal.send(&[16]);
                });
                mortal.close();
            });
            let (bytes, ended) = Holder::new(&lane, End::Server).recv_all(99);
            thread.join().unwrap();
            let published = (lane.fronts[0].cursor.load(Acquire) >> 32) as u8;
            assert_eq!((bytes, ended), (stream(0..published), Some(Ended::Gone)));
        });
    }
}

/// A reader that goes to sleep itself tells the writer even of the smallest step across the threshold.
#[test]
fn a_reader_that_sleeps_beside_unread_data_tells_of_room() {
    check(3, || {
        let lane = Lane::new();
        prefill(&lane, 13);
        let writer = Holder::new(&lane, End::Client);
        let thread = thread::spawn(move || {
            // A poller that wants to know when there is room.
            while writer.writing(|end| end.arm(&writer)).unwrap() == Armed::Sleep {
                writer.sleep_writable();
            }
        });
        let server = Holder::new(&lane, End::Server);
        let mut buffer = [0];
        assert_eq!(server.recv(&mut buffer), Ended::Bytes(1));
        let armed = server.reading(|reader| reader.arm(Since::Tail(13), &server)).unwrap();
        assert_eq!(armed, Armed::Sleep);
        thread.join().unwrap();
    });
}

/// A holder of the reading side is killed at any step of a `recv` that sleeps; a second one goes on.
#[test]
fn a_reader_killed_at_any_step_leaves_a_lane_that_its_sibling_can_use() {
    for step in 0..14 {
        check(2, move || {
            let lane = Lane::new();
            let mortal = Holder::mortal(&lane, End::Server, step);
            let thread = thread::spawn(move || {
                mortal.lives_through(|| {
                    mortal.recv_all(2);
                });
                // What the dead one had taken is gone with it; what follows is not.
                let sibling = Holder::new(&mortal.lane, End::Server);
                let mut last = sibling.recv_all(1).0;
                while last != [3] {
                    let next = sibling.recv_all(1).0;
                    assert_eq!(next[0], last[0] + 1);
                    last = next;
                }
            });
            let writer = Holder::new(&lane, End::Client);
            assert!(writer.send(&[1]));
            assert!(writer.send(&[2, 3]));
            thread.join().unwrap();
        });
    }
}

/// A reader is killed between taking bytes and saying so, while the writer waits for room.
#[test]
fn a_reader_killed_while_it_makes_room_leaves_the_writer_to_its_sibling() {
    for step in 0..12 {
        check(1, move || {
            let lane = Lane::new();
            prefill(&lane, 16);
            let mortal = Holder::mortal(&lane, End::Server, step);
            let thread = thread::spawn(move || {
                mortal.lives_through(|| {
                    let mut buffer = [0; 16];
                    assert_eq!(mortal.recv(&mut buffer), Ended::Bytes(16));
                });
                let sibling = Holder::new(&mortal.lane, End::Server);
                while sibling.recv_all(1).0 != [16] {}
            });
            assert!(Holder::new(&lane, End::Client).send(&[16]));
            thread.join().unwrap();
        });
    }
}

/// The peer's last holder is killed at any step of a `send`: exactly what it published is read.
#[test]
fn a_peer_killed_while_sending_leaves_its_published_bytes() {
    for step in 0..14 {
        check(2, move || {
            let lane = Lane::new();
            let mortal = Holder::mortal(&lane, End::Client, step);
            let thread = thread::spawn(move || {
                mortal.lives_through(|| {
                    mortal.send(&[1, 2]);
                    mortal.send(&[3]);
                });
                mortal.close();
            });
            let (bytes, ended) = Holder::new(&lane, End::Server).recv_all(9);
            thread.join().unwrap();
            let published = (lane.fronts[0].cursor.load(Acquire) >> 32) as u8;
            assert_eq!((bytes, ended), (stream(1..published + 1), Some(Ended::Gone)));
        });
    }
}

/// The peer's last holder is killed at any step of a `recv`: a sender never sleeps for ever.
#[test]
fn a_peer_killed_while_receiving_ends_a_send() {
    for step in 0..14 {
        check(2, move || {
            let lane = Lane::new();
            prefill(&lane, 16);
            let mortal = Holder::mortal(&lane, End::Server, step);
            let thread = thread::spawn(move || {
                mortal.lives_through(|| {
                    mortal.recv_all(12);
                });
                mortal.close();
            });
            Holder::new(&lane, End::Client).send(&stream(0..18));
            thread.join().unwrap();
        });
    }
}
