//! What the machine itself can do, measured in the same run.
//!
//! - *Hand-over*: two threads pinned to the two CPUs write and poll one cache line each, as the two directions of a
//!   connection do. Half a round trip is the least time in which one core can tell another anything.
//! - *memcpy*: one core copies a block to another block. A byte stream copies in and copies out, on two cores at once,
//!   so it can at best run at the speed of one copy.
//! - *Bare ring*: that copy in and copy out, on two CPUs, with two cursors and nothing else: no socket, no wake-up, no
//!   check. What it lacks to *memcpy* is the way from one core's cache to the other's.

use std::hint::{black_box, spin_loop};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::Result;

use crate::stats::median;
use crate::timing::measure;
use crate::worker::itself::pin;

/// A cache line, with its neighbour that the adjacent-line prefetcher would drag along.
#[repr(align(128))]
struct Line(AtomicU64);

/// One-way nanoseconds of a cache-line hand-over between two CPUs.
pub fn hand_over_ns(cpus: (usize, usize), duration: Duration) -> Result<f64> {
    let (ping, pong) = (Line(AtomicU64::new(0)), Line(AtomicU64::new(0)));
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let (ping, pong, stop) = (&ping.0, &pong.0, &stop);
        let echo = scope.spawn(move || -> Result<()> {
            pin(cpus.1)?;
            let mut seen = 0;
            while !stop.load(Ordering::Relaxed) {
                let now = ping.load(Ordering::Acquire);
                if now != seen {
                    seen = now;
                    pong.store(now, Ordering::Release);
                } else {
                    spin_loop();
                }
            }
            Ok(())
        });
        let drive = scope.spawn(move || -> Result<f64> {
            pin(cpus.0)?;
            let mut number = 0;
            let deadline = Instant::now() + duration + Duration::from_secs(5);
            let batches = measure(duration, |n| {
                for _ in 0..n {
                    number += 1;
                    ping.store(number, Ordering::Release);
                    while pong.load(Ordering::Acquire) != number {
                        spin_loop();
                        // Only when the echo could not be pinned: it answers within a time slice otherwise.
                        if number == 1 && Instant::now() > deadline {
                            anyhow::bail!("no answer from CPU {}", cpus.1);
                        }
                    }
                }
                Ok(())
            });
            stop.store(true, Ordering::Relaxed);
            Ok(median(&batches?.ns_per_op).unwrap_or(f64::NAN) / 2.0)
        });
        let ns = drive.join().map_err(|_| anyhow::anyhow!("the hand-over thread died"))?;
        echo.join().map_err(|_| anyhow::anyhow!("the hand-over thread died"))??;
        ns
    })
}

/// Blocks begin with a page: one that begins 16 bytes further into its page than the other, as blocks from an allocator
/// do, is copied twenty times slower on some CPUs (see `beeline_shm`'s `copy`), which is no limit of the machine.
const PAGE_BYTES: usize = 4096;

/// Memory for a block, in which it begins with a page.
struct Block {
    memory: Vec<u8>,
    bytes: usize,
}

impl Block {
    fn new(bytes: usize) -> Self {
        Block { memory: vec![1; bytes + PAGE_BYTES], bytes }
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        let begin = self.memory.as_ptr().align_offset(PAGE_BYTES).min(PAGE_BYTES);
        &mut self.memory[begin..begin + self.bytes]
    }
}

/// Bytes per second of copying one block of this size to another, on one CPU.
pub fn memcpy_bytes_per_second(cpu: usize, block_bytes: usize, duration: Duration) -> Result<f64> {
    std::thread::scope(|scope| {
        let copier = scope.spawn(move || -> Result<f64> {
            pin(cpu)?;
            let (mut source, mut target) = (Block::new(block_bytes), Block::new(block_bytes));
            let (source, target) = (source.bytes_mut(), target.bytes_mut());
            let batches = measure(duration, |n| {
                for _ in 0..n {
                    black_box(&mut *target).copy_from_slice(black_box(&*source));
                }
                Ok(())
            })?;
            Ok(block_bytes as f64 * 1e9 / median(&batches.ns_per_op).unwrap_or(f64::NAN))
        });
        copier.join().map_err(|_| anyhow::anyhow!("the memcpy thread died"))?
    })
}

/// Bytes that are copied before a cursor moves.
const PIECE_BYTES: usize = 16 << 10;
/// Sizes of the ring: within a core's cache, and as large as Beeline's.
const RING_PIECES: [usize; 2] = [16, 256];

/// Aligned as a ring in shared memory is.
#[repr(align(4096))]
struct Piece([u8; PIECE_BYTES]);

/// A cursor, in pieces.
#[repr(align(128))]
#[derive(Default)]
struct Cursor(AtomicUsize);

/// Pieces between two threads. The locks are never contended: the cursors say whose a piece is.
struct BareRing {
    pieces: Vec<Mutex<Piece>>,
    written: Cursor,
    read: Cursor,
    stop: AtomicBool,
}

impl BareRing {
    fn new(pieces: usize) -> Self {
        BareRing {
            pieces: (0..pieces).map(|_| Mutex::new(Piece([1; PIECE_BYTES]))).collect(),
            written: Cursor::default(),
            read: Cursor::default(),
            stop: AtomicBool::new(false),
        }
    }

    /// Waits until `ready`. `false` at the end.
    fn wait(&self, ready: impl Fn() -> bool) -> bool {
        while !ready() {
            if self.stop.load(Ordering::Relaxed) {
                return false;
            }
            spin_loop();
        }
        true
    }

    /// Copies a block in until the end.
    fn fill(&self, block: &[u8]) {
        for (at, source) in block.chunks_exact(PIECE_BYTES).cycle().enumerate() {
            if !self.wait(|| at - self.read.0.load(Ordering::Acquire) < self.pieces.len()) {
                return;
            }
            if let Ok(mut piece) = self.pieces[at % self.pieces.len()].lock() {
                piece.0.copy_from_slice(source);
            }
            self.written.0.store(at + 1, Ordering::Release);
        }
    }

    /// Copies out into a block for so long. Bytes per second.
    fn drain(&self, block: &mut [u8], duration: Duration) -> Result<f64> {
        let mut at = 0;
        let pieces_in_block = block.len() / PIECE_BYTES;
        let batches = measure(duration, |n| {
            for _ in 0..n {
                self.wait(|| self.written.0.load(Ordering::Acquire) > at);
                if let Ok(piece) = self.pieces[at % self.pieces.len()].lock() {
                    let begin = at % pieces_in_block * PIECE_BYTES;
                    block[begin..begin + PIECE_BYTES].copy_from_slice(&piece.0);
                }
                at += 1;
                self.read.0.store(at, Ordering::Release);
            }
            Ok(())
        });
        self.stop.store(true, Ordering::Relaxed);
        Ok(PIECE_BYTES as f64 * 1e9 / median(&batches?.ns_per_op).unwrap_or(f64::NAN))
    }
}

/// Bytes per second from blocks of this size on one CPU to such blocks on another, through the faster of two rings.
pub fn ring_bytes_per_second(cpus: (usize, usize), block_bytes: usize, duration: Duration) -> Result<f64> {
    let mut best = 0.0f64;
    for pieces in RING_PIECES {
        let ring = BareRing::new(pieces);
        let rate = std::thread::scope(|scope| {
            let ring = &ring;
            let writer = scope.spawn(move || -> Result<()> {
                pin(cpus.0).inspect_err(|_| ring.stop.store(true, Ordering::Relaxed))?;
                ring.fill(black_box(Block::new(block_bytes).bytes_mut()));
                Ok(())
            });
            let reader = scope.spawn(move || -> Result<f64> {
                let mut block = Block::new(block_bytes);
                let pinned = pin(cpus.1);
                let rate = ring.drain(black_box(block.bytes_mut()), duration / 2);
                pinned.and(rate)
            });
            let died = |_| anyhow::anyhow!("a thread of the ring died");
            writer.join().map_err(died)?.and(reader.join().map_err(died)?)
        })?;
        best = best.max(rate);
    }
    Ok(best)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memcpy_has_a_speed() {
        let cpu = crate::machine::allowed_cpus().unwrap()[0];
        let speed = memcpy_bytes_per_second(cpu, 4096, Duration::from_millis(4)).unwrap();
        assert!(speed.is_finite() && speed > 0.0);
    }

    #[test]
    fn a_ring_has_a_speed() {
        if let [a, b, ..] = crate::machine::allowed_cpus().unwrap()[..] {
            let speed = ring_bytes_per_second((a, b), 1 << 16, Duration::from_millis(8)).unwrap();
            assert!(speed.is_finite() && speed > 0.0);
        }
    }

    #[test]
    fn hand_over_has_a_time() {
        if let [a, b, ..] = crate::machine::allowed_cpus().unwrap()[..] {
            let ns = hand_over_ns((a, b), Duration::from_millis(4)).unwrap();
            assert!(ns.is_finite() && ns > 0.0);
        }
    }
}
