//! What the machine itself can do, measured in the same run.
//!
//! - *Hand-over*: two threads pinned to the two CPUs write and poll one cache line each, as the two directions of a
//!   connection do. Half a round trip is the least time in which one core can tell another anything.
//! - *memcpy*: one core copies a block to another block. A byte stream copies in and copies out, on two cores at once,
//!   so it can at best run at the speed of one copy.

use std::hint::{black_box, spin_loop};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::Result;

use crate::stats::median;
use crate::timing::measure;
use crate::worker::pin;

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

/// Bytes per second of copying one block of this size to another, on one CPU.
pub fn memcpy_bytes_per_second(cpu: usize, block_bytes: usize, duration: Duration) -> Result<f64> {
    std::thread::scope(|scope| {
        let copier = scope.spawn(move || -> Result<f64> {
            pin(cpu)?;
            let source = vec![1u8; block_bytes];
            let mut target = vec![0u8; block_bytes];
            let batches = measure(duration, |n| {
                for _ in 0..n {
                    black_box(&mut target).copy_from_slice(black_box(&source));
                }
                Ok(())
            })?;
            Ok(block_bytes as f64 * 1e9 / median(&batches.ns_per_op).unwrap_or(f64::NAN))
        });
        copier.join().map_err(|_| anyhow::anyhow!("the memcpy thread died"))?
    })
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
    fn hand_over_has_a_time() {
        if let [a, b, ..] = crate::machine::allowed_cpus().unwrap()[..] {
            let ns = hand_over_ns((a, b), Duration::from_millis(4)).unwrap();
            assert!(ns.is_finite() && ns > 0.0);
        }
    }
}
