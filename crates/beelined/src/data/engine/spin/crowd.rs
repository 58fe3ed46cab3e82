//! Whether programs that compute want the CPUs which the bridge needs: then a spin takes a CPU from somebody who has
//! work, and the bridge waits for turns of others.
//!
//! 1. The kernel counts how long a thread was ready and did not run (`/proc/thread-self/schedstat`).
//! 2. Bridges, and the programs that wait for them, fill all CPUs of a small host as well, but whoever of them has a
//!    CPU gives it back after some tens of microseconds. Who computes keeps it for a turn, which is milliseconds. So
//!    only waits of [`LONG_NS`] between two looks count. How much the short ones are together over longer, and how idle
//!    CPUs are, says nothing: with spins nothing is idle.
//! 3. Something that took so long is a reason to ask the kernel whether it was such a wait. What it says is compared
//!    with what it said a millisecond ago, for which it is asked from time to time; of the difference, that millisecond
//!    is taken off.
//! 4. [`MANY`] within [`WITHIN_NS`], and the CPUs are crowded.
//! 5. Priority and sleeps take the long waits away, so these cannot tell when that is over. It is over when a fifth of
//!    a CPU is idle, as then the bridge does not spin; but not before an eighth of the time after which it is over
//!    anyhow: two seconds, and twice as long as before if the last one was not longer ago than that, up to
//!    [`HOLD_MAX_NS`]. That is judged for the whole host: a bridge that may use few of its CPUs, all of them taken,
//!    tries again and again whether it is over, a quarter of a second to four after each time.
//! 6. Where the kernel does not tell, they are never crowded.

use std::fs::File;
use std::os::unix::fs::FileExt;

/// A wait for a CPU that is another's turn.
const LONG_NS: u64 = 1_000_000;
/// How old the last answer of the kernel's may be. One takes half a microsecond.
const FRESH_NS: u64 = 1_000_000;
/// So many long waits within this time are no accident.
const MANY: usize = 3;
const WITHIN_NS: u64 = 200_000_000;
/// How long it is believed, and how often meanwhile it is looked whether something is idle.
const HOLD_MIN_NS: u64 = 2_000_000_000;
const HOLD_MAX_NS: u64 = 32_000_000_000;
const LOOK_NS: u64 = 200_000_000;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Crowd {
    delays: Option<File>,
    uptime: Option<File>,
    state: State,
    told: bool,
}

/// What is known, without the kernel.
#[derive(Debug, Default)]
struct State {
    /// When the bridge was last seen, and when the kernel was last asked, and for how long we had waited then.
    seen_ns: u64,
    asked_ns: u64,
    waited_ns: u64,
    /// The last long waits.
    long: [Option<u64>; MANY],
    /// Since when it is crowded, and for how long that counts.
    since_ns: Option<u64>,
    hold_ns: u64,
    /// When it was last over.
    over_ns: Option<u64>,
    /// When idleness was last read, and how much there had been.
    idle: Option<(u64, u64)>,
}

impl Crowd {
    /// As this thread meets with it on this host.
    pub(super) fn of_thread() -> Self {
        let open = |path| File::open(path).ok();
        Self { delays: open("/proc/thread-self/schedstat"), uptime: open("/proc/uptime"), ..Self::default() }
    }

    /// The bridge runs at this moment: called before and after everything that may take long.
    pub(super) fn pass(&mut self, now_ns: u64) {
        match self.state.asks(now_ns) {
            Asks::Nothing => {}
            Asks::Delay(long) => match self.delays.as_ref().and_then(|file| word(file, 1)?.parse().ok()) {
                Some(waited_ns) => self.state.waited(now_ns, waited_ns, long),
                None => self.delays = None,
            },
            Asks::Idle => self.state.idled(now_ns, self.uptime.as_ref().and_then(|file| hundredths(&word(file, 1)?))),
        }
        self.state.seen_ns = now_ns;
    }

    /// Whether programs that compute want all CPUs.
    pub(super) fn is(&self) -> bool {
        self.state.since_ns.is_some()
    }

    /// The same, if that is another answer than the last time.
    pub(super) fn turned(&mut self) -> Option<bool> {
        let is = self.is();
        let before = std::mem::replace(&mut self.told, is);
        (before != is).then_some(is)
    }
}

/// What the kernel is to be asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Asks {
    Nothing,
    /// How long we have waited. `Some`: something took long, and so much time had passed between the last answer and
    /// its beginning.
    Delay(Option<u64>),
    /// How idle CPUs are.
    Idle,
}

impl State {
    fn asks(&self, now_ns: u64) -> Asks {
        if self.since_ns.is_some() {
            let looked_ns = self.idle.map_or(0, |(then_ns, _)| then_ns);
            return if now_ns.saturating_sub(looked_ns) < LOOK_NS { Asks::Nothing } else { Asks::Idle };
        }
        if now_ns.saturating_sub(self.seen_ns) >= LONG_NS {
            return Asks::Delay(Some(self.seen_ns.saturating_sub(self.asked_ns)));
        }
        if now_ns.saturating_sub(self.asked_ns) >= FRESH_NS { Asks::Delay(None) } else { Asks::Nothing }
    }

    fn waited(&mut self, now_ns: u64, waited_ns: u64, long: Option<u64>) {
        let waits = waited_ns.saturating_sub(self.waited_ns);
        let is_known = self.asked_ns != 0;
        (self.asked_ns, self.waited_ns) = (now_ns, waited_ns);
        if !is_known || long.is_none_or(|before_ns| waits.saturating_sub(before_ns) < LONG_NS) {
            return;
        }
        self.long.rotate_left(1);
        if let Some(last) = self.long.last_mut() {
            *last = Some(now_ns);
        }
        if self.long.iter().all(|then| then.is_some_and(|then| now_ns.saturating_sub(then) < WITHIN_NS)) {
            let is_again = self.over_ns.is_some_and(|then| now_ns.saturating_sub(then) < self.hold_ns);
            self.hold_ns = if is_again { (self.hold_ns * 2).min(HOLD_MAX_NS) } else { HOLD_MIN_NS };
            (self.since_ns, self.idle) = (Some(now_ns), None);
        }
    }

    fn idled(&mut self, now_ns: u64, idle_ns: Option<u64>) {
        let Some(since_ns) = self.since_ns else { return };
        let some = match (self.idle, idle_ns) {
            (Some((then_ns, before_ns)), Some(idle_ns)) => {
                idle_ns.saturating_sub(before_ns) >= now_ns.saturating_sub(then_ns) / 5
            }
            _ => false,
        };
        self.idle = Some((now_ns, idle_ns.unwrap_or(0)));
        let held_ns = now_ns.saturating_sub(since_ns);
        if held_ns >= self.hold_ns || some && held_ns >= self.hold_ns / 8 {
            *self = Self { over_ns: Some(now_ns), hold_ns: self.hold_ns, ..Self::default() };
        }
    }
}

/// A word of a short file of /proc.
fn word(file: &File, index: usize) -> Option<String> {
    let mut text = [0; 96];
    let count = file.read_at(&mut text, 0).ok()?;
    Some(std::str::from_utf8(text.get(..count)?).ok()?.split_ascii_whitespace().nth(index)?.to_owned())
}

/// Seconds and hundredths, in nanoseconds.
fn hundredths(word: &str) -> Option<u64> {
    let (seconds, hundredths) = word.split_once('.')?;
    let (seconds, hundredths): (u64, u64) = (seconds.parse().ok()?, hundredths.parse().ok()?);
    Some(seconds.checked_mul(1_000_000_000)?.saturating_add(hundredths.saturating_mul(10_000_000)))
}

#[cfg(test)]
mod tests;
