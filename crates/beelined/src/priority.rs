//! The priority of the bridge among programs.
//!
//! Where all CPUs are busy the kernel lets everybody have a turn of milliseconds, and whoever has had its share waits
//! for the others' turns. What kernel TCP does for a message it does in interrupts, before any program: the bridge does
//! the same work as a program, twice a message, and each of its turns costs the message a wait. So it takes a priority
//! above that of programs then, and only then: where it spins, it must not keep from running those whom it waits for.
//! (Turns that are shorter, which the kernel gives to anybody since 6.12, have not helped: what lacks is a share.)

use nix::errno::Errno;
use nix::sys::resource::{Resource, getrlimit, setrlimit};

/// The priority while CPUs are crowded, when nobody says otherwise.
pub const DEFAULT: i32 = -10;

/// Sees to it that the priority may be taken, and again, also by the user whom root's bridge becomes. Where the kernel
/// does not let us, the bridge stays as ordinary as it is.
pub fn allow(nice: i32) {
    let wanted = u64::try_from(20 - nice).unwrap_or(0);
    if let Ok((soft, hard)) = getrlimit(Resource::RLIMIT_NICE)
        && soft < wanted
    {
        let _ = setrlimit(Resource::RLIMIT_NICE, wanted, hard.max(wanted))
            .or_else(|_| setrlimit(Resource::RLIMIT_NICE, hard.min(wanted), hard));
    }
}

/// Gives this thread the priority `nice`, or what the kernel lets it have of that. Returns the one that it has from
/// then on.
pub fn take(nice: i32) -> i32 {
    if !set(nice)
        && let Ok((limit, _)) = getrlimit(Resource::RLIMIT_NICE)
    {
        let most = 20_i32.saturating_sub(i32::try_from(limit).unwrap_or(i32::MAX));
        if (nice..current()).contains(&most) {
            set(most);
        }
    }
    current()
}

fn set(nice: i32) -> bool {
    // SAFETY: takes numbers alone; on Linux it is about the calling thread.
    (unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, nice) }) == 0
}

/// Makes this thread one as a program has, if its priority is above that: it measures for programs.
pub fn be_ordinary() {
    if current() < 0 {
        take(0);
    }
}

/// This thread's priority.
pub fn current() -> i32 {
    Errno::clear();
    // SAFETY: takes numbers alone. Of the calling thread it cannot fail.
    unsafe { libc::getpriority(libc::PRIO_PROCESS, 0) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_takes_a_priority_where_it_may_and_can_go_back() {
        // A thread of its own, as it may not get its old priority back.
        let told = std::thread::spawn(|| {
            let before = current();
            let lower = take(before + 1);
            be_ordinary();
            (before, lower, current(), take(-5))
        });
        let (before, lower, ordinary, raised) = told.join().unwrap();
        assert_eq!(lower, (before + 1).min(19));
        assert!(ordinary >= 0 && ordinary == lower.max(0));
        // Root alone may; nobody is told of a refusal.
        assert!(raised == -5 || raised == ordinary, "{raised}");
    }
}
