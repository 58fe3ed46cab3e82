//! What turns have taken, and which path wins by that (rules 3 and 4).

use super::share;
use super::ticket::Port;

/// Where each takes so long, connections are slow.
const SLOW_NS: u64 = 500_000;
/// Turns whose mean counts there.
const MEAN_TURNS: u64 = 4;

/// What turns of a path have taken, by rule 3.
#[derive(Clone, Copy, Debug)]
pub(super) struct Times {
    pub each_ns: u64,
    pub life_ns: u64,
    /// The second stands for both.
    pub many: bool,
}

impl Times {
    pub const NONE: Self = Self { each_ns: u64::MAX, life_ns: u64::MAX, many: false };

    fn first(self) -> u64 {
        if self.many { self.life_ns } else { self.each_ns }
    }

    /// Whether each takes long, and not only comes seldom; not of those that were never taken.
    pub fn are_slow(self) -> bool {
        (SLOW_NS..u64::MAX).contains(&self.each_ns.min(self.life_ns))
    }
}

/// A path's turns.
#[derive(Clone, Copy, Debug)]
pub(super) struct Turns {
    pub best: Times,
    /// Over the last ones of all comparisons.
    pub mean: Times,
    /// How many that are.
    pub count: u64,
}

impl Turns {
    pub const NONE: Self = Self { best: Times::NONE, mean: Times::NONE, count: 0 };

    pub fn add(&mut self, turn: Times) {
        self.best.each_ns = self.best.each_ns.min(turn.each_ns);
        self.best.life_ns = self.best.life_ns.min(turn.life_ns);
        self.best.many |= turn.many;
        self.count = (self.count + 1).min(MEAN_TURNS);
        let mixed = |mean: u64, turn: u64| {
            if self.count == 1 { turn } else { (mean / self.count).saturating_mul(self.count - 1) + turn / self.count }
        };
        let (each_ns, life_ns) = (mixed(self.mean.each_ns, turn.each_ns), mixed(self.mean.life_ns, turn.life_ns));
        self.mean = Times { each_ns, life_ns, many: turn.many };
    }
}

pub(super) fn shorter(path_ns: u64, other_ns: u64, part: u64) -> bool {
    path_ns < other_ns - other_ns / part
}

/// Whether TCP wins (rules 4 and 6).
pub(super) fn tcp_wins(port: Port, lane: Turns, tcp: Turns) -> bool {
    if lane.mean.are_slow() && tcp.mean.are_slow() {
        let (lane, tcp) = of_one_kind(lane.mean, tcp.mean);
        return !shorter(lane.first(), tcp.first(), 5) && !shorter(lane.life_ns, tcp.life_ns, 5);
    }
    let (lane, tcp) = of_one_kind(lane.best, tcp.best);
    let not_longer = tcp.first() <= lane.first().saturating_add(lane.first() / 16);
    let better = shorter(tcp.first(), lane.first(), 10) || not_longer && shorter(tcp.life_ns, lane.life_ns, 5);
    better && (tcp.many || !comes_too_often(port, tcp.each_ns))
}

/// Whether connections come too often for TCP to keep up with them (rule 6).
pub(super) fn comes_too_often(port: Port, each_ns: u64) -> bool {
    port == Port::Kernels && each_ns < share::EVERY_NS
}

fn of_one_kind(lane: Times, tcp: Times) -> (Times, Times) {
    let many = lane.many || tcp.many;
    (Times { many, ..lane }, Times { many, ..tcp })
}
