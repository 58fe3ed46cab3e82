//! A clock that is cheap to read: the processor's counter of time stamps, where the kernel itself keeps time by it, and
//! so knows that it runs on at one rate and alike on all CPUs; else `CLOCK_MONOTONIC` (std's `Instant`). Neither is
//! ever set.

use std::time::{Duration, Instant};

/// What the kernel keeps time by.
const CLOCK_SOURCE: &str = "/sys/devices/system/clocksource/clocksource0/current_clocksource";
/// How long the counter is compared with the kernel's clock.
const COMPARED: Duration = Duration::from_millis(2);

/// Readings that are timed together.
const READINGS: u32 = 100_000;

/// A clock that runs.
#[derive(Clone, Copy, Debug)]
pub struct Ticks {
    begin: Instant,
    has_counter: bool,
    ns_per_tick: f64,
}

impl Ticks {
    /// Takes some milliseconds.
    pub fn new() -> Ticks {
        let mut ticks = Ticks { begin: Instant::now(), has_counter: has_counter(), ns_per_tick: 1.0 };
        if ticks.has_counter {
            let (begin, first) = (Instant::now(), ticks.now());
            while begin.elapsed() < COMPARED {
                std::hint::spin_loop();
            }
            let (took, last) = (begin.elapsed(), ticks.now());
            ticks.ns_per_tick = took.as_nanos() as f64 / last.saturating_sub(first).max(1) as f64;
        }
        ticks
    }

    /// Whether it is the processor's counter, which is read in some nanoseconds.
    #[cfg(test)]
    pub fn has_counter(&self) -> bool {
        self.has_counter
    }

    /// What it takes to read this clock once, of many readings right after each other.
    pub fn reading_ns(&self) -> f64 {
        let first = self.now();
        (0..READINGS).for_each(|_| {
            std::hint::black_box(self.now());
        });
        self.ns(self.now().saturating_sub(first)) / f64::from(READINGS)
    }

    /// Ticks since some time.
    #[inline]
    pub fn now(&self) -> u64 {
        match self.has_counter {
            true => counter(),
            false => self.begin.elapsed().as_nanos() as u64,
        }
    }

    pub fn ns(&self, ticks: u64) -> f64 {
        ticks as f64 * self.ns_per_tick
    }

    /// How many ticks that is.
    pub fn of(&self, duration: Duration) -> u64 {
        (duration.as_nanos() as f64 / self.ns_per_tick) as u64
    }
}

#[cfg(target_arch = "x86_64")]
fn has_counter() -> bool {
    std::fs::read_to_string(CLOCK_SOURCE).is_ok_and(|source| source.trim() == "tsc")
}

#[cfg(target_arch = "x86_64")]
#[inline]
fn counter() -> u64 {
    // SAFETY: every x86-64 processor has the instruction; the kernel that keeps time by it does not forbid it to
    // programs, as its own clock in the vDSO executes it there.
    unsafe { std::arch::x86_64::_rdtsc() }
}

#[cfg(not(target_arch = "x86_64"))]
fn has_counter() -> bool {
    let _ = CLOCK_SOURCE;
    false
}

#[cfg(not(target_arch = "x86_64"))]
fn counter() -> u64 {
    0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_runs_as_the_kernels_clock_does() {
        let ticks = Ticks::new();
        for ticks in [ticks, Ticks { has_counter: false, ns_per_tick: 1.0, ..ticks }] {
            let (begin, first) = (Instant::now(), ticks.now());
            std::thread::sleep(Duration::from_millis(20));
            let (last, took) = (ticks.now(), begin.elapsed().as_nanos() as f64);
            // The two are not read at one moment, and the machine may do something else between.
            let ratio = ticks.ns(last - first) / took;
            assert!((0.5..1.01).contains(&ratio), "{ratio}");
            let back = ticks.of(Duration::from_nanos(ticks.ns(1 << 30) as u64));
            assert!(back.abs_diff(1 << 30) < 8, "{back}");
        }
    }
}
