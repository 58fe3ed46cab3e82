//! What it costs to wake a program that sleeps on another CPU of this host.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::thread::Builder;
use std::time::{Duration, Instant};

use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;

/// Round trips that are made. Half a millisecond to three, as the host is.
const TRIPS: usize = 64;
/// A host that is too busy for an answer within this tells nothing.
const PATIENCE: Duration = Duration::from_millis(200);

/// Nanoseconds from a write to the moment when a thread that slept on it on another CPU runs: half the median round
/// trip. `None` if there is no other CPU, or it cannot be found out.
pub(super) fn cost_ns() -> Option<u64> {
    let allowed = sched_getaffinity(Pid::from_raw(0)).ok()?;
    let mut cpus = (0..CpuSet::count()).filter(|cpu| allowed.is_set(*cpu).unwrap_or(false));
    let (here, there) = (cpus.next()?, cpus.next()?);
    let (near, far) = UnixStream::pair().ok()?;
    near.set_read_timeout(Some(PATIENCE)).ok()?;
    // Threads of their own: where the bridge runs is not for this to say.
    std::thread::scope(|scope| {
        Builder::new().spawn_scoped(scope, move || echo(there, far)).ok()?;
        Builder::new().spawn_scoped(scope, move || drive(here, near)).ok()?.join().ok().flatten()
    })
}

/// Answers until the other end closes.
fn echo(cpu: usize, mut far: UnixStream) -> Option<()> {
    pin(cpu)?;
    let mut byte = [0];
    while far.read_exact(&mut byte).is_ok() {
        far.write_all(&byte).ok()?;
    }
    Some(())
}

fn drive(cpu: usize, mut near: UnixStream) -> Option<u64> {
    pin(cpu)?;
    let mut trips = Vec::with_capacity(TRIPS);
    for _ in 0..TRIPS {
        let began = Instant::now();
        near.write_all(&[0]).ok()?;
        near.read_exact(&mut [0]).ok()?;
        trips.push(began.elapsed());
    }
    trips.sort_unstable();
    let median = trips.get(TRIPS / 2)?;
    u64::try_from(median.as_nanos() / 2).ok()
}

fn pin(cpu: usize) -> Option<()> {
    let mut only = CpuSet::new();
    only.set(cpu).ok()?;
    sched_setaffinity(Pid::from_raw(0), &only).ok()
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_wake_takes_some_time_and_not_for_ever() {
        if let Some(cost_ns) = super::cost_ns() {
            assert!((100..200_000_000).contains(&cost_ns), "{cost_ns}");
        }
    }
}
