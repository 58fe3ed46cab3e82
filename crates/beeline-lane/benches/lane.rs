//! What the lane itself can reach, without sockets: `cargo bench -p beeline-lane`.
//!
//! Two pinned threads and no bells. Beside each number stands what the machine does without a lane: two
//! cache lines handed back and forth, and memcpy between two buffers in L2. Rows alternate over some
//! rounds. What is shown is the median over batches of some hundred microseconds, so that a machine that
//! does other things now and then does not spoil a number.
//!
//! What was tried on a 2-CPU KVM guest (Xeon, Linux 6.18) that was busy with other work, so that only
//! differences count; cache line 130 ns, memcpy 40 GB/s:
//!
//! | what | 64 B sends | 64 KiB sends |
//! |---|---|---|
//! | as it is | 6 to 8 M/s | 18 GB/s |
//! | no fence in `Writer::wake_reader` (not correct: it shows what an asymmetric barrier could gain) | 20 to 30 M/s | 18 GB/s |
//! | a reader that pauses 8 / 32 times after a look that found nothing | 11 / 18 M/s | the same |
//! | the writer publishes each 16 / 64 / 128 KiB instead of 32 | the same | 15 / 18 / 18 GB/s |
//! | the same through a ring of 64 KiB | | 10 GB/s with 32 KiB, 5.5 with 64 |
//! | the reader publishes each 32 KiB instead of 64 | the same | 17 GB/s |
//! | the producer looks each 16 KiB whether it can rewind, instead of 2 | the same | the same |
//! | `cldemote` behind the writer; AVX-512 loop; `rep movsb` instead of memcpy | | 16; 16; 18 GB/s |
//! | rings of 512 KiB, 1, 2, 4, 8 MiB | | 17, 17, 18, 20, 24 GB/s |
//!
//! A stream of small messages is slow where the reader is faster than the writer: each look takes the
//! front's line from the writer, whose fence then waits until it has it back.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::arithmetic_side_effects, unsafe_code)]

use std::hint::{black_box, spin_loop};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use beeline_lane::{BellFault, Bells, End, LaneMemory, Reader, RxState, Sink, Source, TxState, Writer};

const ROUNDS: usize = 5;
const ROUND: Duration = Duration::from_millis(60);
/// Round trips in a batch.
const TRIPS: u64 = 500;

/// Nobody sleeps here.
struct NoBells;

impl Bells for NoBells {
    fn ring(&self) -> Result<(), BellFault> {
        Ok(())
    }
    fn queued(&self) -> Result<u32, BellFault> {
        Ok(0)
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

#[repr(align(128))]
#[derive(Default)]
struct Line<T>(T);

/// One end with its state, each on lines of its own.
struct Side {
    memory: LaneMemory,
    end: End,
    tx: Line<TxState>,
    rx: Line<RxState>,
}

impl Side {
    fn pair(ring_bytes: u32) -> [Side; 2] {
        let (memory, _) = LaneMemory::create(ring_bytes).unwrap();
        [End::Client, End::Server].map(|end| Side { memory, end, tx: Line::default(), rx: Line::default() })
    }

    /// As a socket does it: made anew for each call.
    #[inline(never)]
    fn send(&self, bytes: &[u8]) -> usize {
        let writer = Writer::new(self.memory, self.end, &self.tx.0, &self.rx.0);
        writer.write(Source::from(bytes), &NoBells).unwrap()
    }

    #[inline(never)]
    fn receive(&self, buffer: &mut [u8]) -> usize {
        let reader = Reader::new(self.memory, self.end, &self.rx.0, &self.tx.0);
        reader.read(Sink::from(buffer), &NoBells).unwrap()
    }

    fn send_all(&self, bytes: &[u8], over: &AtomicBool) {
        let mut done = 0;
        while done < bytes.len() && !over.load(Ordering::Relaxed) {
            let taken = self.send(&bytes[done..]);
            done += taken;
            if taken == 0 {
                spin_loop();
            }
        }
    }

    fn receive_some(&self, buffer: &mut [u8], over: &AtomicBool) -> usize {
        loop {
            let got = self.receive(buffer);
            if got != 0 || over.load(Ordering::Relaxed) {
                return got;
            }
            spin_loop();
        }
    }
}

fn pin(cpu: usize) {
    // SAFETY: all-zero is an empty set of this plain C type.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: a live set; the kernel reads the size given.
    let pinned = unsafe {
        libc::CPU_SET(cpu, &mut set);
        libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &raw const set)
    };
    assert_eq!(pinned, 0, "this needs CPU {cpu}");
}

/// Runs both halves for a round. `batch` does a part of its work each time and returns how much; the
/// results are how much that was a second.
fn race(mut batch: impl FnMut(&AtomicBool) -> u64 + Send, second: impl FnOnce(&AtomicBool) + Send) -> Vec<f64> {
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        let over = &over;
        scope.spawn(move || {
            pin(1);
            second(over);
        });
        let first = scope.spawn(move || {
            pin(0);
            let (begin, mut rates) = (Instant::now(), Vec::new());
            while begin.elapsed() < ROUND {
                let start = Instant::now();
                let done = batch(over);
                rates.push(done as f64 / start.elapsed().as_secs_f64());
            }
            over.store(true, Ordering::Relaxed);
            rates
        });
        first.join().unwrap()
    })
}

/// One way of a cache line handed back and forth, in nanoseconds.
fn hand_over() -> Vec<f64> {
    let lines = [Line(AtomicU64::new(0)), Line(AtomicU64::new(0))];
    let [there, back] = &lines;
    let wait = |line: &Line<AtomicU64>, value: u64, over: &AtomicBool| {
        while line.0.load(Ordering::Acquire) != value && !over.load(Ordering::Relaxed) {
            spin_loop();
        }
    };
    let mut round = 0;
    race(
        move |over| {
            for _ in 0..TRIPS {
                round += 1;
                there.0.store(round, Ordering::Release);
                wait(back, round, over);
            }
            TRIPS
        },
        |over| {
            let mut round = 0;
            while !over.load(Ordering::Relaxed) {
                round += 1;
                wait(there, round, over);
                back.0.store(round, Ordering::Release);
            }
        },
    )
}

/// One way of a message sent back and forth, in nanoseconds.
fn ping_pong(ring_bytes: u32, length: usize) -> Vec<f64> {
    let sides = Side::pair(ring_bytes);
    let [client, server] = &sides;
    let turn = |side: &Side, buffer: &mut [u8], over: &AtomicBool| {
        let mut done = 0;
        while done < buffer.len() && !over.load(Ordering::Relaxed) {
            done += side.receive_some(&mut buffer[done..], over);
        }
    };
    let mut buffer = vec![1; length];
    race(
        move |over| {
            for _ in 0..TRIPS {
                client.send_all(&buffer, over);
                turn(client, &mut buffer, over);
            }
            TRIPS
        },
        |over| {
            let mut buffer = vec![1; length];
            while !over.load(Ordering::Relaxed) {
                turn(server, &mut buffer, over);
                server.send_all(&buffer, over);
            }
        },
    )
}

/// Bytes a second of a stream in sends and receives of these lengths.
fn stream(ring_bytes: u32, send: usize, receive: usize) -> Vec<f64> {
    let sides = Side::pair(ring_bytes);
    let [client, server] = &sides;
    let mut buffer = vec![0; receive];
    race(
        move |over| {
            let mut bytes = 0;
            while bytes < 1 << 20 {
                bytes += server.receive_some(&mut buffer, over) as u64;
                black_box(&buffer);
            }
            bytes
        },
        |over| {
            let buffer = vec![1; send];
            while !over.load(Ordering::Relaxed) {
                client.send_all(&buffer, over);
            }
        },
    )
}

/// Bytes a second of memcpy between two buffers of 256 KiB.
fn copy() -> Vec<f64> {
    let (from, mut to) = (vec![1u8; 256 << 10], vec![0u8; 256 << 10]);
    race(
        move |_| {
            for _ in 0..16 {
                to.copy_from_slice(black_box(&from));
                black_box(&mut to);
            }
            16 * from.len() as u64
        },
        |_| {},
    )
}

/// Name, unit, what makes a rate a number in that unit, and the measurement.
type Row = (&'static str, &'static str, fn(f64) -> f64, fn() -> Vec<f64>);

fn nanoseconds(trips: f64) -> f64 {
    1e9 / trips / 2.0
}

fn gigabytes(bytes: f64) -> f64 {
    bytes / 1e9
}

fn million_64_bytes(bytes: f64) -> f64 {
    bytes / 64e6
}

const ROWS: [Row; 13] = [
    ("cache line, one way", "ns", nanoseconds, hand_over),
    ("8 B, one way", "ns", nanoseconds, || ping_pong(1 << 20, 8)),
    ("48 B, one way", "ns", nanoseconds, || ping_pong(1 << 20, 48)),
    ("64 B, one way", "ns", nanoseconds, || ping_pong(1 << 20, 64)),
    ("1 KiB, one way", "ns", nanoseconds, || ping_pong(1 << 20, 1024)),
    ("memcpy in L2", "GB/s", gigabytes, copy),
    ("64 B sends, 64 B receives", "M/s", million_64_bytes, || stream(1 << 20, 64, 64)),
    ("64 B sends, 64 KiB receives", "M/s", million_64_bytes, || stream(1 << 20, 64, 64 << 10)),
    ("1 KiB sends, 64 KiB receives", "GB/s", gigabytes, || stream(1 << 20, 1 << 10, 64 << 10)),
    ("64 KiB sends, 64 KiB receives", "GB/s", gigabytes, || stream(1 << 20, 64 << 10, 64 << 10)),
    ("the same, 256 KiB ring", "GB/s", gigabytes, || stream(1 << 18, 64 << 10, 64 << 10)),
    ("the same, 64 KiB ring", "GB/s", gigabytes, || stream(1 << 16, 64 << 10, 64 << 10)),
    ("1 MiB sends, 128 KiB receives", "GB/s", gigabytes, || stream(1 << 20, 1 << 20, 128 << 10)),
];

fn main() {
    let mut results = ROWS.map(|_| Vec::new());
    for _ in 0..ROUNDS {
        for (rates, (.., measure)) in results.iter_mut().zip(ROWS) {
            rates.extend(measure());
        }
    }
    for (mut rates, (name, unit, number, _)) in results.into_iter().zip(ROWS) {
        rates.sort_by(f64::total_cmp);
        let at = |part: usize| number(rates[(rates.len() - 1) * part / 10]);
        println!("{name:32} {:8.1} {unit:5} (tenths 2 to 8: {:.1} to {:.1})", at(5), at(2), at(8));
    }
}
