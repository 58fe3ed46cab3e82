//! Parting: a thread that waits again and again for a peer on its own CPU goes to another one that is idle.
//!
//! Where both ends of a conversation share a CPU neither spins, and each message costs two switches. A kernel that
//! looks for an idle CPU at each wake-up parts them within milliseconds (Linux 6.18 mostly does), and nobody gets as
//! far as here. This is for those that it leaves together: each of them sleeps while the other runs, so none is seen to
//! wait for the CPU.
//!
//! 1. A thread counts how often it finds a peer near while it waits, or is about to ([`note`]): one to three times for
//!    each wait. After [`FINDS`] it looks, before it sleeps the next time, how long each CPU has been idle
//!    (/proc/stat), and once more after [`WINDOW_NS`] at least.
//! 2. If its own CPU had next to no time to spare in between, and another one that it may use had next to all of it,
//!    the thread goes there, and may use afterwards what it might before ([`cpus::move_to`]). The kernel may move it
//!    on.
//! 3. A thread goes once. Its process looks ever more rarely, so that looks are not what a busy machine does; the child
//!    of a fork goes on there.
//! 4. Of two ends the server goes: a client waits for twice as long between its looks. If both go nevertheless they
//!    meet again, and nothing is lost.
//! 5. Several threads take turns at looking, by compare-and-swap on the time of the next look. One that is kept from
//!    running for long may spoil the numbers of the next: that may send a thread to a CPU that is busy, once, and the
//!    kernel moves it on.
//! 6. Where there is no /proc, or it tells of other CPUs than the thread's own (a container may have it so), under
//!    filters of system calls, and where somebody has just said on which CPUs the thread is to run, nobody goes.

use core::sync::atomic::{
    AtomicU32, AtomicU64,
    Ordering::{AcqRel, Relaxed},
};

use beeline_stats::Counter;
use beeline_stats::tunables::option;

use crate::cpus::{self, Mask};
use crate::thread::{self, Section};
use crate::{kernel, proc, process, stats};

/// Finds after which a thread looks: a few milliseconds of a conversation without pauses.
const FINDS: u32 = 512;
/// In [`thread::Thread::near_finds`]: the thread has gone.
const GONE: u32 = u32::MAX;
/// The least time between two looks that are compared.
const WINDOW_NS: u64 = 50_000_000;
/// What was seen is compared with nothing later than this: the conversation is slow, or has paused.
const STALE_NS: u64 = 1_000_000_000;
/// After the second look of a process there is none for so long, then for twice as long, and so on.
const PAUSE_NS: u64 = 1_000_000_000;
/// How often that doubles.
const PAUSE_DOUBLINGS: u32 = 10;
/// A tick of /proc/stat (USER_HZ).
const TICK_NS: u64 = 10_000_000;
/// CPUs that are looked at.
const CPUS: usize = 256;

static PARTING: Parting = Parting {
    next_ns: AtomicU64::new(0),
    looked_ns: AtomicU64::new(0),
    pairs: AtomicU32::new(0),
    idle: [const { AtomicU32::new(0) }; CPUS],
};

/// This thread waits, or is about to, at a server's end or a client's, for a peer that is near.
pub fn note(server: bool) {
    thread::with(|thread| {
        let finds = thread.near_finds.load(Relaxed);
        if finds < FINDS {
            thread.near_finds.store(finds + 1, Relaxed);
            thread.is_near_server.store(server, Relaxed);
        }
    });
}

/// The thread is about to sleep, and holds no lock.
#[inline]
pub(super) fn consider() {
    if thread::with(|thread| thread.near_finds.load(Relaxed) == FINDS) {
        look_and_part();
    }
}

#[cold]
#[inline(never)]
fn look_and_part() {
    let server = thread::with(|thread| {
        thread.near_finds.store(0, Relaxed);
        thread.is_near_server.load(Relaxed)
    });
    let now_ns = kernel::now_ns();
    if now_ns < PARTING.next_ns.load(Relaxed) || !super::peers_are_near() || !crate::live(option::part_ends) {
        return;
    }
    // Filters that allow the rest may end who moves (`filters` of beeline).
    let is_free = || !process::is_sealed() && !process::is_guest_of_parent() && kernel::seccomp_mode() == Some(0);
    let Some(might) = is_free().then(Mask::of_thread).flatten().filter(|might| might.count() > 1) else { return };
    let idle = |f: &mut dyn FnMut(u32, u32)| proc::each_line(c"/proc/stat", |line| each_cpu(line, f)).is_some();
    look_and_go(&PARTING, now_ns, server, &might, idle, is_free);
}

/// Looks, and goes where that tells to, unless the thread is not free by then or might use other CPUs: the look takes
/// its time. Whether it went.
fn look_and_go(
    parting: &Parting,
    now_ns: u64,
    server: bool,
    might: &Mask,
    idle: impl FnOnce(&mut dyn FnMut(u32, u32)) -> bool,
    is_free: impl FnOnce() -> bool,
) -> bool {
    // A handler that jumps out would leave the thread bound, or a file open.
    let _section = Section::enter();
    let Some(target) = parting.look(now_ns, server, kernel::cpu(), might, idle) else { return false };
    let is_as_before = is_free() && Mask::of_thread().as_ref() == Some(might);
    let goes = is_as_before && cpus::move_to(target.cpu, might, target.of_all);
    if goes {
        thread::with(|thread| thread.near_finds.store(GONE, Relaxed));
        stats::count(Counter::ThreadsParted, 1);
    }
    goes
}

/// Of a line of /proc/stat: which CPU it is about, and its idle ticks. False after the last CPU.
fn each_cpu(line: &[u8], f: &mut dyn FnMut(u32, u32)) -> bool {
    let Some(rest) = line.strip_prefix(b"cpu") else { return false };
    let mut words = rest.split(u8::is_ascii_whitespace);
    let mut next = || core::str::from_utf8(words.next()?).ok()?.parse::<u64>().ok();
    // The first line is about all of them.
    let Some(cpu) = next().and_then(|cpu| u32::try_from(cpu).ok()) else { return true };
    // user nice system idle iowait
    let ticks = [next(), next(), next(), next(), next()];
    if let [.., Some(idle), Some(waiting)] = ticks {
        // Only differences are of interest.
        f(cpu, idle.wrapping_add(waiting) as u32);
    }
    true
}

/// Where a thread is to go.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Target {
    cpu: u32,
    /// Whether it may use all CPUs that there are.
    of_all: bool,
}

/// What the process has seen. See the module.
struct Parting {
    /// When somebody may look next.
    next_ns: AtomicU64,
    /// When somebody looked last; 0 if there is nothing to compare with.
    looked_ns: AtomicU64,
    /// Second looks so far.
    pairs: AtomicU32,
    /// What the idle ticks of each CPU were then.
    idle: [AtomicU32; CPUS],
}

impl Parting {
    /// Where a thread that runs on the CPU `own` is to go, if this look and the one before tell that it had better.
    /// `idle` calls its argument with each CPU and its idle ticks; false if they cannot be read.
    fn look(
        &self,
        now_ns: u64,
        server: bool,
        own: u32,
        might: &Mask,
        idle: impl FnOnce(&mut dyn FnMut(u32, u32)) -> bool,
    ) -> Option<Target> {
        let next_ns = self.next_ns.load(Relaxed);
        let window_ns = if server { WINDOW_NS } else { 2 * WINDOW_NS };
        let is_mine =
            || self.next_ns.compare_exchange(next_ns, now_ns.saturating_add(window_ns), AcqRel, Relaxed).is_ok();
        if now_ns < next_ns || !is_mine() {
            return None;
        }
        let looked_ns = self.looked_ns.swap(now_ns, Relaxed);
        let elapsed = now_ns.saturating_sub(looked_ns) / TICK_NS;
        let (mut own_idle, mut target, mut of_all) = (None, None, true);
        let is_read = idle(&mut |cpu, ticks| {
            of_all &= might.has(cpu);
            let Some(known) = self.idle.get(cpu as usize) else { return };
            let idle = ticks.wrapping_sub(known.swap(ticks, Relaxed));
            if cpu == own {
                own_idle = Some(idle);
            } else if might.has(cpu) && is_idle(idle, elapsed) {
                // What is next to it has most in common with it.
                target = [target, Some(cpu)].into_iter().flatten().min_by_key(|cpu| cpu.abs_diff(own));
            }
        });
        if is_read && looked_ns == 0 {
            // There is nothing to compare with yet.
            return None;
        }
        let is_stale = now_ns.saturating_sub(looked_ns) > STALE_NS;
        self.looked_ns.store(0, Relaxed);
        let doublings = self.pairs.fetch_add(1, Relaxed).min(PAUSE_DOUBLINGS);
        self.next_ns.store(now_ns.saturating_add(PAUSE_NS << doublings), Relaxed);
        let is_crowded = is_read && !is_stale && own_idle.is_some_and(|idle| is_busy(idle, elapsed));
        target.filter(|_| is_crowded).map(|cpu| Target { cpu, of_all })
    }
}

/// Whether a CPU with so many idle ticks in so many has spared none.
fn is_busy(idle: u32, elapsed: u64) -> bool {
    // They may go back a little, where the CPU waits for a disk.
    u64::from(idle) <= slack(elapsed) || idle.cast_signed() < 0
}

/// Whether it has spared all.
fn is_idle(idle: u32, elapsed: u64) -> bool {
    u64::from(idle).abs_diff(elapsed) <= slack(elapsed)
}

fn slack(elapsed: u64) -> u64 {
    1 + elapsed / 16
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND_NS: u64 = 1_000_000_000;

    fn parting() -> Parting {
        Parting {
            next_ns: AtomicU64::new(0),
            looked_ns: AtomicU64::new(0),
            pairs: AtomicU32::new(0),
            idle: [const { AtomicU32::new(0) }; CPUS],
        }
    }

    /// A look by a thread on CPU 1, which may use the first four, where the CPUs have these idle ticks.
    fn look(parting: &Parting, now_ns: u64, server: bool, idle: &[u32]) -> Option<u32> {
        let might = Mask::with([0, 1, 2, 3]);
        let target = parting.look(now_ns, server, 1, &might, |f| {
            (0..).zip(idle).for_each(|(cpu, ticks)| f(cpu, *ticks));
            true
        });
        target.map(|target| {
            assert_eq!(target.of_all, idle.len() <= 4);
            target.cpu
        })
    }

    #[test]
    fn a_thread_goes_to_the_nearest_cpu_that_was_idle_between_two_looks() {
        let parting = parting();
        let begin = 10 * SECOND_NS;
        assert_eq!(look(&parting, begin, true, &[0, 7, 0, 0, 0]), None, "there is nothing to compare with");
        assert_eq!(look(&parting, begin + WINDOW_NS - 1, true, &[5, 7, 5, 5, 5]), None, "it is too soon");
        assert_eq!(look(&parting, begin + WINDOW_NS, true, &[2, 8, 1, 5]), Some(3));
        let next = begin + WINDOW_NS + PAUSE_NS;
        assert_eq!(look(&parting, next - 1, true, &[90; 5]), None, "it looks ever more rarely");
        assert_eq!(look(&parting, next, true, &[100; 5]), None, "what was seen before the pause is not compared");
        assert_eq!(look(&parting, next + WINDOW_NS, true, &[105, 100, 105, 105, 105]), Some(0));
        assert_eq!(parting.next_ns.load(Relaxed), next + WINDOW_NS + 2 * PAUSE_NS);
    }

    #[test]
    fn nobody_goes_where_no_cpu_is_idle_or_its_own_is() {
        let cases: [(&[u32], &str); 6] = [
            (&[1, 0, 1, 1, 1], "all are busy"),
            (&[5, 5, 5, 5, 5], "its own is idle, too"),
            (&[1, 0, 1, 1, 5], "it may not use the idle one"),
            (&[5], "its own is not told of"),
            (&[u32::MAX, 0, 1, 1, 1], "the numbers have gone back"),
            (&[9000, 0, 1, 1, 1], "the CPU was not there before"),
        ];
        for (idle, why) in cases {
            let parting = parting();
            let begin = 10 * SECOND_NS;
            assert_eq!(look(&parting, begin, true, &[0; 5]), None);
            assert_eq!(look(&parting, begin + WINDOW_NS, true, idle), None, "{why}");
        }
    }

    #[test]
    fn a_client_looks_later_than_its_server() {
        let parting = parting();
        let begin = 10 * SECOND_NS;
        assert_eq!(look(&parting, begin, false, &[0; 5]), None);
        assert_eq!(look(&parting, begin + WINDOW_NS, false, &[5, 0, 5, 5, 5]), None, "its server's time");
        assert_eq!(look(&parting, begin + 2 * WINDOW_NS, false, &[10, 0, 10, 10, 10]), Some(0));
    }

    #[test]
    fn a_slow_conversation_is_looked_at_ever_more_rarely() {
        let parting = parting();
        let begin = 10 * SECOND_NS;
        assert_eq!(look(&parting, begin, true, &[0; 5]), None);
        let second = begin + STALE_NS + 1;
        assert_eq!(look(&parting, second, true, &[100, 0, 100, 100, 100]), None, "what was seen is too old");
        assert_eq!(parting.next_ns.load(Relaxed), second + PAUSE_NS);
        let third = second + PAUSE_NS;
        assert_eq!(look(&parting, third, true, &[200, 0, 200, 200, 200]), None, "there is nothing to compare with");
        assert_eq!(look(&parting, third + WINDOW_NS, true, &[205, 0, 205, 205, 205]), Some(0));
        assert_eq!(parting.next_ns.load(Relaxed), third + WINDOW_NS + 2 * PAUSE_NS);
    }

    #[test]
    fn a_thread_goes_once_and_may_use_what_it_might() {
        let might = Mask::of_thread().unwrap();
        let goes = |is_free| {
            let parting = parting();
            let idle = |is_second: bool| {
                let (own, might) = (kernel::cpu(), might.clone());
                move |f: &mut dyn FnMut(u32, u32)| {
                    (0..1024)
                        .filter(|cpu| might.has(*cpu))
                        .for_each(|cpu| f(cpu, 5 * u32::from(is_second && cpu != own)));
                    true
                }
            };
            let begin = 10 * SECOND_NS;
            assert!(!look_and_go(&parting, begin, true, &might, idle(false), || true));
            look_and_go(&parting, begin + WINDOW_NS, true, &might, idle(true), || is_free)
        };
        std::thread::scope(|scope| {
            let mover = scope.spawn(|| {
                assert!(!goes(false) && thread::with(|thread| thread.near_finds.load(Relaxed)) != GONE);
                // The kernel may move it while it looks.
                let is_gone = (0..100).any(|_| goes(true));
                assert_eq!(is_gone, might.count() > 1);
                assert_eq!(is_gone, thread::with(|thread| thread.near_finds.load(Relaxed)) == GONE);
                assert_eq!(Mask::of_thread(), Some(might.clone()));
                note(true);
                assert_eq!(
                    is_gone,
                    thread::with(|thread| thread.near_finds.load(Relaxed)) == GONE,
                    "it counts no more"
                );
            });
            mover.join().unwrap();
        });
    }

    #[test]
    fn nobody_goes_by_what_cannot_be_read() {
        let (parting, might) = (parting(), Mask::with([0, 1]));
        assert_eq!(parting.look(SECOND_NS, true, 0, &might, |_| false), None);
        assert_eq!(parting.looked_ns.load(Relaxed), 0);
        assert!(parting.next_ns.load(Relaxed) >= SECOND_NS + PAUSE_NS, "and it is not tried again for a while");
    }

    #[test]
    fn the_lines_of_proc_stat_are_understood() {
        let mut seen = Vec::new();
        let lines = ["cpu  9 9 9 9 9", "cpu0 1 2 3 40 5 6 7 8 9 10", "cpu17 1 2 3 4294967297 1", "cpu3 1", "intr 5"];
        let more: Vec<_> =
            lines.iter().map(|line| each_cpu(line.as_bytes(), &mut |cpu, idle| seen.push((cpu, idle)))).collect();
        assert_eq!(more, [true, true, true, true, false]);
        assert_eq!(seen, [(0, 45), (17, 2)]);
        let mut cpus = 0;
        proc::each_line(c"/proc/stat", |line| each_cpu(line, &mut |_, _| cpus += 1)).unwrap();
        assert!(cpus != 0);
    }
}
