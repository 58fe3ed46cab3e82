//! Whether all CPUs of the host are busy: then a spin takes the CPU from somebody who has work, and nobody is sooner for it.
//!
//! 1. The kernel counts the time in which CPUs were idle. The bridge reads that once in a while, when it is about to spin.
//! 2. Where next to nothing of one CPU was idle since the last reading, that may be the bridge's own doing: its spins are no idleness. So it
//!    leaves them out until the next reading (a trial). If a fifth of a CPU is idle then, nobody wanted what they took, and the next
//!    trial is later: ever later, as it costs what spins win. If not, the host is crowded.
//! 3. It is so until a fifth of a CPU is idle.
//! 4. Where that is not told, no host is crowded.

use std::fs::File;
use std::os::unix::fs::FileExt;

/// The least time between two readings. One takes a microsecond, and counts hundredths of a second.
const PAUSE_NS: u64 = 200_000_000;

/// Readings between two trials, at least and at most, if they are in vain.
const TRIALS_MIN: u32 = 4;
const TRIALS_MAX: u32 = 32;

/// What is known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    /// No more than that there is no reason not to spin.
    #[default]
    Free,
    /// Whether anything is idle without spins is to be seen.
    Trial,
    /// All CPUs are busy.
    Crowded,
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Crowd {
    uptime: Option<File>,
    /// The last reading: when, and how much was idle until then.
    last: Option<(u64, u64)>,
    state: State,
    /// Readings until the next trial, and from one that is in vain to the next.
    wait: u32,
    pause: u32,
    /// Whether it was told that the host is crowded.
    told: bool,
}

impl Crowd {
    /// Of this host.
    pub(super) fn of_host() -> Self {
        Self { uptime: File::open("/proc/uptime").ok(), ..Self::default() }
    }

    /// Whether not to spin.
    pub(super) fn forbids(&mut self, now_ns: u64) -> bool {
        if self.last.is_none_or(|(then_ns, _)| now_ns.saturating_sub(then_ns) >= PAUSE_NS)
            && let Some(idle_ns) = self.uptime.as_ref().and_then(idle_ns)
        {
            self.read(now_ns, idle_ns);
        }
        self.state != State::Free
    }

    /// Whether all CPUs are busy, if that is another answer than the last time.
    pub(super) fn turned(&mut self) -> Option<bool> {
        let is = self.state == State::Crowded;
        let before = std::mem::replace(&mut self.told, is);
        (before != is).then_some(is)
    }

    fn read(&mut self, now_ns: u64, idle_ns: u64) {
        let Some((then_ns, before_ns)) = self.last.replace((now_ns, idle_ns)) else { return };
        let (passed, idle) = (now_ns.saturating_sub(then_ns), idle_ns.saturating_sub(before_ns));
        // Nothing, or the hundredth of a second that is as good as nothing.
        let (none, some) = (idle <= passed / 20, idle >= passed / 5);
        self.wait = self.wait.saturating_sub(1);
        self.state = match self.state {
            State::Free if none && self.wait == 0 => State::Trial,
            State::Trial if some => {
                self.pause = (self.pause * 2).clamp(TRIALS_MIN, TRIALS_MAX);
                self.wait = self.pause;
                State::Free
            }
            State::Trial => {
                self.pause = 0;
                State::Crowded
            }
            State::Crowded if some => State::Free,
            state => state,
        };
    }
}

/// The time in which CPUs were idle, all together, as the second word of `/proc/uptime` tells it.
fn idle_ns(uptime: &File) -> Option<u64> {
    let mut text = [0; 64];
    let count = uptime.read_at(&mut text, 0).ok()?;
    parse(text.get(..count)?)
}

fn parse(text: &[u8]) -> Option<u64> {
    let word = std::str::from_utf8(text).ok()?.split_ascii_whitespace().nth(1)?;
    let (seconds, hundredths) = word.split_once('.')?;
    let (seconds, hundredths): (u64, u64) = (seconds.parse().ok()?, hundredths.parse().ok()?);
    Some(seconds.checked_mul(1_000_000_000)?.saturating_add(hundredths.saturating_mul(10_000_000)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn this_host_tells() {
        let mut crowd = Crowd::of_host();
        assert!(!crowd.forbids(0), "nothing is known yet");
        assert!(crowd.last.is_some(), "and now it is");
    }

    #[test]
    fn words_are_read() {
        assert_eq!(parse(b"26460.61 48711.09\n"), Some(48_711_090 * MS));
        for bad in [&b""[..], b"1.0", b"1.0 x.y\n", b"1.0 17\n", b"1.0 \xff"] {
            assert_eq!(parse(bad), None);
        }
    }

    /// A host that is looked at every 200 ms.
    #[derive(Default)]
    struct Host {
        crowd: Crowd,
        now: u64,
        idle: u64,
    }

    impl Host {
        /// So many milliseconds were idle, on all CPUs together.
        fn pass(&mut self, idle_ms: u64) -> State {
            (self.now, self.idle) = (self.now + 200 * MS, self.idle + idle_ms * MS);
            self.crowd.read(self.now, self.idle);
            self.crowd.state
        }
    }

    #[test]
    fn it_begins_where_nothing_is_idle_and_ends_where_some_is() {
        use State::*;
        let mut host = Host::default();
        let (mut states, mut turns) = (Vec::new(), Vec::new());
        // The first reading tells nothing.
        for idle_ms in [0, 150, 20, 10, 30, 10, 0, 39, 40, 20, 0, 0] {
            states.push(host.pass(idle_ms));
            turns.extend(host.crowd.turned());
            assert_eq!(host.crowd.turned(), None, "it is told once");
        }
        let expected = [Free, Free, Free, Trial, Crowded, Crowded, Crowded, Crowded, Free, Free, Trial, Crowded];
        assert_eq!((states, turns), (expected.to_vec(), vec![true, false, true]));
    }

    #[test]
    fn a_host_that_the_bridge_fills_itself_is_tried_ever_more_rarely() {
        let mut host = Host::default();
        let (mut trials, mut state) = (Vec::new(), State::Free);
        for round in 0..200 {
            // What a trial leaves out is idle.
            state = host.pass(if state == State::Trial { 150 } else { 0 });
            assert_ne!(state, State::Crowded);
            assert_eq!(host.crowd.turned(), None);
            if state == State::Trial {
                trials.push(round);
            }
        }
        let pauses: Vec<u32> = trials.windows(2).map(|pair| pair[1] - pair[0]).collect();
        assert_eq!(pauses, [5, 9, 17, 33, 33, 33, 33, 33], "{trials:?}");
    }

    #[test]
    fn a_host_that_tells_nothing_is_not_crowded() {
        let mut crowd = Crowd::default();
        assert!((0..10).all(|round| !crowd.forbids(round * 1000 * MS)));
    }
}
