//! Which path the short-lived connections to a loopback address take.
//!
//! To make a lane costs less than a TCP connection in most places, and more in some, above all where the server forks
//! for each connection. One that says a few words and is gone never earns that back. No rule tells where it is so, and
//! it changes while programs run, so it is measured.
//!
//! 1. A connection over a lane was *short-lived* as [`Life::was_short`] has it, or if it sent at most [`SENDS_MAX`]
//!    times and was gone within [`BRIEF_NS`]: a log-in and some statements. Of one over TCP only its time is known: it
//!    was, if it was open for at most [`LONGER`] times as long as those over lanes, or for [`LONG_NS`].
//! 2. After [`RUN`] such ones in a row to one destination, without [`PAUSE_NS`] between two, the paths are compared, in
//!    [`TURNS`] turns: lanes, TCP, lanes again.
//! 3. A turn counts [`COUNTED`] connections at least, and lasts [`TURN_NS`], for much of what TCP costs comes later:
//!    sockets are freed after a grace period of RCU. As many as were open when it began go before them uncounted, so
//!    that those of the other path are over. Two times are taken: from the first `connect` to the last `close`, divided
//!    by the connections that ended meanwhile; and from `connect` to `close` of each. The first is what a client sees
//!    that begins again and again, the second one that comes by a clock of its own. Of [`MANY`] at once the second
//!    stands for both: they wait for each other, and the first depends on which of them happened to end.
//! 4. What else goes on makes a turn longer, never shorter: a path's best turn stands for it. TCP wins if it is shorter
//!    by a tenth in the first time, or not longer in the first and shorter by a fifth in the second. Where each takes
//!    [`SLOW_NS`] and more, it is the other way round. A lane spares no more than some wake-ups and the making of a TCP
//!    connection there, little of all that time, and can cost much, as memory that a server's child has to copy: TCP
//!    wins unless lanes are shorter by a fifth. Nobody wants to wait for many of those: [`RUN_SLOW`] are believed, and
//!    are the first turn of lanes, but where TCP is shorter by a third another one follows; [`TURNS_SLOW`] turns are a
//!    comparison, and one is over after [`COUNTED_SLOW`] connections if it has lasted [`TURN_SLOW_NS`]. As they differ
//!    from each other, the mean of a path's turns stands for it, over the last [`MEAN_TURNS`] of this comparison and
//!    those before.
//! 5. The path that won is kept for [`KEPT_NS_MIN`], [`KEPT_NS_MIN_SLOW`] where connections are slow; then they are
//!    compared again. That time doubles with each answer that is the same, up to [`KEPT_NS_MAX`].
//! 6. TCP has some 14,000 ports that it finds at once, and gives none of them to the same destination again within a
//!    second (`tcp_tw_reuse`; 60 seconds where the address is no loopback address). Faster than that it does well in
//!    each short measurement, and then looks through all its ports for each connection. So no more is left to it within
//!    a second than most of such ports ([`Share`]); what comes beyond that has lanes. Turns count, but have theirs in
//!    any case: they are short. A connection that the server has closed first has left its port by then, and counts no
//!    more ([`Ended`]). Where connections come more often than every [`share::EVERY_NS`] and fewer than [`MANY`] are
//!    open none is left to TCP: there one over TCP is mostly waiting. All this does not hold where the program has
//!    chosen the port ([`Port`]): those are compared however often they come, and apart from others. Where TCP has
//!    failed, lanes are kept.
//! 7. What lives longer wants a lane. So one connection that was not short-lived ends all of this, as a pause does, and
//!    as do more open connections over TCP than twice those of the comparison, or of the beginning of its turn.
//! 8. Where ends are not seen (a socket closed past us, or by another process), more seem to be open than are. That
//!    ends in rule 7.
//!
//! A process counts for itself, and one that connects seldom is not concerned.

mod share;
mod ticket;
mod times;

use super::brief::Life;
use share::Share;
pub use ticket::{Path, Port, Ticket, TicketCell};
use times::{Times, Turns, comes_too_often, shorter, tcp_wins};

/// Short lives that are believed.
const RUN: u32 = 32;
/// A destination left alone for so long is a new one.
const PAUSE_NS: u64 = 1_000_000_000;
/// Turns of a comparison, both paths together.
const TURNS: u32 = 4;
/// Connections that a turn counts at least, and how long it lasts at least from the first of them on.
const COUNTED: u32 = 48;
const TURN_NS: u64 = 20_000_000;
/// The same where connections are slow.
const RUN_SLOW: u32 = 16;
const TURNS_SLOW: u32 = 2;
const COUNTED_SLOW: u32 = 16;
const TURN_SLOW_NS: u64 = 60_000_000;
/// Sends of a short-lived connection that was gone in this time.
const SENDS_MAX: u32 = 64;
const BRIEF_NS: u64 = 100_000_000;
/// Open connections that are many.
const MANY: u32 = 8;
/// How long the path that won is kept.
const KEPT_NS_MIN: u64 = 1_000_000_000;
const KEPT_NS_MIN_SLOW: u64 = 4_000_000_000;
const KEPT_NS_MAX: u64 = 32_000_000_000;
/// How much longer than over lanes a short life may be over TCP, and how long it always may be.
const LONGER: u64 = 16;
const LONG_NS: u64 = 10_000_000;
/// Connections that may always be open.
const OPEN_MIN: u32 = 16;

/// A turn of a comparison.
#[derive(Clone, Copy, Debug)]
struct Turn {
    /// Its number among all of the destination; lanes have the odd ones.
    number: u32,
    /// Whether many were open when it began, and how many still go before those that count.
    many: bool,
    open: u32,
    before: u32,
    /// Those that were counted: their first `connect`, how many have ended, how long they were open.
    first_ns: u64,
    ended: u32,
    lives_ns: u64,
    /// All that have ended since `first_ns`.
    ends: u32,
}

impl Turn {
    const fn path(&self) -> Path {
        if self.number % 2 == 1 { Path::Lane } else { Path::Tcp }
    }

    fn times(&self, now_ns: u64) -> Times {
        Times {
            each_ns: now_ns.saturating_sub(self.first_ns) / u64::from(self.ends.max(1)),
            life_ns: self.lives_ns / u64::from(self.ended.max(1)),
            many: self.many,
        }
    }

    /// Whether it has counted all that it counts (rules 3 and 4).
    fn is_over(&self, now_ns: u64) -> bool {
        let lasted_ns = now_ns.saturating_sub(self.first_ns);
        self.ended >= COUNTED && lasted_ns >= TURN_NS
            || self.ended >= COUNTED_SLOW && lasted_ns >= TURN_SLOW_NS && self.times(now_ns).are_slow()
    }
}

/// How a connection has ended.
#[derive(Clone, Copy, Debug)]
pub enum Ended {
    /// Over a lane, which was used so.
    Lane(Life),
    /// Over TCP, which has its port again already, or keeps it for a while.
    Tcp { port_is_free: bool },
}

#[derive(Clone, Copy, Debug)]
enum State {
    /// So many short lives in a row, the first of which ended then; how long those after it were open.
    Watching { run: u32, since_ns: u64, lives_ns: u64 },
    /// Turns are left.
    Comparing { turn: Turn, left: u32 },
    /// This path won, and is kept until then.
    Keeping { path: Path, until_ns: u64 },
}

/// What is known of one destination.
#[derive(Clone, Copy, Debug)]
pub(super) struct Paths {
    state: State,
    /// The number of the last turn.
    turns: u32,
    /// What turns took over lanes, and over TCP.
    spent: [Turns; 2],
    /// How long those over lanes were open in the last turn of lanes.
    lane_ns: u64,
    /// How long the winner is kept, and who won last.
    kept_ns: u64,
    won: Option<Path>,
    /// Of the connections that it is about.
    port: Port,
    /// Connections that have begun and not ended, and the most of them outside of rule 5.
    open: u32,
    open_max: u32,
    /// When a connection began or ended last.
    seen_ns: u64,
    /// What was left to TCP.
    share: Share,
}

impl Paths {
    /// Nothing is known yet.
    pub(super) const fn of(port: Port) -> Self {
        Self {
            state: State::Watching { run: 0, since_ns: 0, lives_ns: 0 },
            turns: 0,
            spent: [Turns::NONE; 2],
            lane_ns: 0,
            kept_ns: KEPT_NS_MIN,
            won: None,
            port,
            open: 0,
            open_max: 0,
            seen_ns: 0,
            share: Share::NONE,
        }
    }

    /// A connection begins. TCP finds so many `ports` at once. Which path it takes, and the turn that counts it, or 0.
    pub(super) fn begin(&mut self, now_ns: u64, ports: u32) -> (Path, u32) {
        self.age(now_ns);
        if let State::Keeping { path, until_ns } = self.state {
            let too_many = self.open > self.open_max.saturating_mul(2).saturating_add(OPEN_MIN);
            if path == Path::Tcp && too_many {
                self.forget();
            } else if now_ns >= until_ns {
                self.compare(self.spent.iter().all(|turns| turns.mean.are_slow()));
            }
        }
        if let State::Comparing { turn, .. } = self.state
            && turn.path() == Path::Tcp
            && self.open > turn.open.saturating_mul(2).saturating_add(OPEN_MIN)
        {
            self.forget();
        }
        let begun = match &mut self.state {
            State::Watching { .. } => (Path::Lane, 0),
            State::Keeping { path: Path::Tcp, .. }
                if self.port == Port::Kernels && !self.share.is_left(now_ns, ports) =>
            {
                (Path::Lane, 0)
            }
            State::Keeping { path, .. } => (*path, 0),
            State::Comparing { turn, .. } if turn.before != 0 => {
                turn.before -= 1;
                (turn.path(), 0)
            }
            State::Comparing { turn, .. } => {
                if turn.first_ns == 0 {
                    turn.first_ns = now_ns;
                }
                (turn.path(), turn.number)
            }
        };
        if begun.0 == Path::Tcp {
            self.share.take(now_ns);
        }
        self.open = self.open.saturating_add(1);
        if !matches!(self.state, State::Keeping { .. }) {
            self.open_max = self.open_max.max(self.open);
        }
        begun
    }

    /// One that had begun came to nothing on its path.
    pub(super) fn abandoned(&mut self) {
        self.open = self.open.saturating_sub(1);
    }

    /// One that was left to TCP was not connected when it was closed: it was reset, or never was. How soon it was over
    /// says nothing, and where TCP has no port to give lanes are the better path.
    pub(super) fn failed(&mut self) {
        self.abandoned();
        self.forget();
        self.state = State::Keeping { path: Path::Lane, until_ns: self.seen_ns.saturating_add(KEPT_NS_MAX) };
    }

    /// A connection has ended.
    pub(super) fn ended(&mut self, ticket: Ticket, how: Ended, now_ns: u64) {
        self.age(now_ns);
        self.open = self.open.saturating_sub(1);
        if matches!(how, Ended::Tcp { port_is_free: true }) {
            self.share.give_back(ticket.begun_ns, now_ns);
        }
        let life_ns = now_ns.saturating_sub(ticket.begun_ns);
        let short_ns = self.lane_ns.saturating_mul(LONGER).max(LONG_NS);
        let was_short = match how {
            Ended::Lane(life) => life.was_short() || life.is_within(SENDS_MAX) && life_ns <= BRIEF_NS,
            Ended::Tcp { .. } => life_ns <= short_ns,
        };
        let over_lane = matches!(how, Ended::Lane(_));
        if !was_short {
            return self.forget();
        }
        let are_many = self.are_many();
        match &mut self.state {
            State::Watching { run: run @ 0, since_ns, lives_ns } => {
                (*run, *since_ns, *lives_ns) = (over_lane.into(), now_ns, 0);
            }
            State::Watching { run, since_ns, lives_ns } if over_lane => {
                let after_first = u64::from(*run);
                *run += 1;
                *lives_ns = lives_ns.saturating_add(life_ns);
                let each_ns = now_ns.saturating_sub(*since_ns) / after_first;
                // Those that began at once end at once, and the run may begin or end amid them: how long each was open
                // says more.
                let times = Times { each_ns, life_ns: *lives_ns / after_first, many: true };
                if *run > RUN_SLOW && times.are_slow() {
                    self.begin_slow(times);
                } else if *run >= RUN && comes_too_often(self.port, each_ns) && !are_many {
                    *run = 0;
                } else if *run >= RUN {
                    self.compare(false);
                }
            }
            State::Comparing { turn, .. } if turn.first_ns != 0 => {
                turn.ends += 1;
                if ticket.turn == turn.number {
                    turn.ended += 1;
                    turn.lives_ns = turn.lives_ns.saturating_add(life_ns);
                }
                if turn.is_over(now_ns) {
                    self.turn_over(now_ns);
                }
            }
            State::Watching { .. } | State::Comparing { .. } | State::Keeping { .. } => {}
        }
    }

    /// A run of slow ones over lanes has ended, which took so long: the next turn is one of TCP.
    fn begin_slow(&mut self, times: Times) {
        // A proper turn takes its place later.
        let [lane, _] = &mut self.spent;
        *lane = Turns { best: times, mean: times, count: 0 };
        self.lane_ns = times.life_ns;
        self.turns = self.turns.wrapping_add(1) | 1;
        self.begin_turn(TURNS_SLOW - 1);
    }

    fn compare(&mut self, slow: bool) {
        self.spent.iter_mut().for_each(|turns| turns.best = Times::NONE);
        // A comparison begins with lanes.
        self.turns = self.turns.wrapping_add(self.turns % 2);
        self.begin_turn(if slow { TURNS_SLOW } else { TURNS });
    }

    /// Whether many are open, with the one that has just ended or is about to begin.
    fn are_many(&self) -> bool {
        self.open.saturating_add(1) >= MANY
    }

    fn begin_turn(&mut self, left: u32) {
        self.turns = self.turns.wrapping_add(1).max(1);
        let (number, many, before) = (self.turns, self.are_many(), self.open);
        let turn = Turn { number, many, open: self.open, before, first_ns: 0, ended: 0, lives_ns: 0, ends: 0 };
        self.state = State::Comparing { turn, left };
    }

    /// The turn has counted all that it counts.
    fn turn_over(&mut self, now_ns: u64) {
        let State::Comparing { turn, left } = self.state else { return };
        let times = turn.times(now_ns);
        let [lane, tcp] = &mut self.spent;
        match turn.path() {
            Path::Lane => {
                lane.add(times);
                self.lane_ns = times.life_ns;
            }
            Path::Tcp => tcp.add(times),
        }
        // A run may have been slow because it was the first, of server and client.
        if lane.count == 0 && shorter(tcp.mean.life_ns, lane.mean.life_ns, 3) {
            *lane = Turns::NONE;
            return self.begin_turn(1);
        }
        if left > 1 {
            return self.begin_turn(left - 1);
        }
        let [lane, tcp] = self.spent;
        let path = if tcp_wins(self.port, lane, tcp) { Path::Tcp } else { Path::Lane };
        let same = self.won.replace(path) == Some(path);
        let slow = lane.mean.are_slow() && tcp.mean.are_slow();
        let kept_ns_min = if slow { KEPT_NS_MIN_SLOW } else { KEPT_NS_MIN };
        self.kept_ns = if same { self.kept_ns.saturating_mul(2).clamp(kept_ns_min, KEPT_NS_MAX) } else { kept_ns_min };
        self.state = State::Keeping { path, until_ns: now_ns.saturating_add(self.kept_ns) };
    }

    /// Lanes from now on, until there is another run. What is open stays counted.
    fn forget(&mut self) {
        let (turns, open, seen_ns, share) = (self.turns, self.open, self.seen_ns, self.share);
        *self = Self { turns, open, seen_ns, share, ..Self::of(self.port) };
    }

    fn age(&mut self, now_ns: u64) {
        if now_ns.saturating_sub(self.seen_ns) > PAUSE_NS {
            self.forget();
            self.open = 0;
        }
        self.seen_ns = now_ns;
    }
}

#[cfg(test)]
mod tests;
