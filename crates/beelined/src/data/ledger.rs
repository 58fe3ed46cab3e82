//! Whether the bridge or TCP is faster to a peer's host, from what was measured over both.
//!
//! # Rules
//!
//! 1. What is compared is the time of the same exchanges between the same two threads, one at each host, over a lane
//!    and the bridges ("bridge") and over a TCP connection ("TCP"), a few of the one and a few of the other in turn, so
//!    that both see the host as it is ([`super::probe`]). A thread wakes and sleeps as a program does: what the bridge
//!    costs in wakes, and what it loses where all CPUs are busy, is in its times.
//! 2. There are three kinds of exchange ([`Kind`]): short there and back, much there, much back. Each has a verdict of
//!    its own.
//! 3. A round's times count until [`ROUNDS_MAX`] rounds have come after it, or the host has become another one
//!    ([`Ledger::forget_rounds`]). All times that count are one sample.
//! 4. The bridge is *slower* in a kind when its median, or its 95th percentile of short exchanges, is more than
//!    [`SLOWER`] hundredths of TCP's; and no longer when neither is more than [`EQUAL`] hundredths. Between the two it
//!    stays as it was. Before [`ROUNDS_MIN`] rounds it is not slower, or what it was when rounds were forgotten: then
//!    the medians that are told are those it rests on.
//! 5. A destination (address and port of a server) does what its last connection did: much there or much back if more
//!    than [`MUCH_BYTES`] went that way and at a rate of more than a quarter of what was measured for it, else short
//!    exchanges. One that is not known does short exchanges.
//! 6. A new connection goes by TCP when the bridge is slower in what its destination does. Of those to destinations
//!    that are not known or do short exchanges, one in [`TRIAL`] goes over the bridge nevertheless if that is not
//!    slower in everything: what goes by TCP is not seen, and may do something else by now.
//! 7. Memory is bounded: [`DESTINATIONS_MAX`] destinations, the oldest is forgotten.

use std::collections::VecDeque;
use std::net::SocketAddr;

/// Rounds that count.
pub const ROUNDS_MAX: usize = 5;
/// Rounds without which there is no verdict.
pub const ROUNDS_MIN: usize = 2;
/// Rule 4.
const SLOWER: u64 = 110;
const EQUAL: u64 = 100;
/// Rule 5.
pub const MUCH_BYTES: u64 = 4 << 20;
/// Bytes of an exchange of much.
pub const EXCHANGE_BYTES: u32 = 1 << 20;
/// Rule 6.
const TRIAL: u32 = 16;
/// Rule 7.
const DESTINATIONS_MAX: usize = 256;

/// What an exchange is like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A few bytes there and back.
    Short,
    /// Many bytes to the peer's host.
    There,
    /// Many bytes from it.
    Back,
}

/// All of them, in the order in which a round has them.
pub const KINDS: [Kind; 3] = [Kind::Short, Kind::There, Kind::Back];

/// Times of one kind in one round, in nanoseconds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Times {
    /// Over the bridges.
    pub bridge: Vec<u64>,
    /// Over TCP.
    pub tcp: Vec<u64>,
}

/// What was measured in one round: times by [`Kind`].
pub type Round = [Times; 3];

#[derive(Clone, Copy, Debug)]
struct Medians {
    bridge_ns: u64,
    tcp_ns: u64,
}

/// Medians of a kind, for the administrator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Told {
    /// Over the bridges.
    pub bridge_ns: u64,
    /// Over TCP.
    pub tcp_ns: u64,
    /// Rule 4.
    pub slower: bool,
}

/// See the module.
#[derive(Debug, Default)]
pub struct Ledger {
    rounds: VecDeque<Round>,
    slower: [bool; 3],
    /// The medians at the last verdict.
    judged: [Option<Medians>; 3],
    /// What destinations do, the newest last.
    destinations: VecDeque<(SocketAddr, Kind)>,
    left_out: u32,
}

impl Ledger {
    /// A round was measured.
    pub fn add(&mut self, round: Round) {
        if self.rounds.len() == ROUNDS_MAX {
            self.rounds.pop_front();
        }
        self.rounds.push_back(round);
        if self.rounds.len() < ROUNDS_MIN {
            return;
        }
        for kind in KINDS {
            let (bridge, tcp) = self.times(kind);
            if let Some(judged) = self.judged.get_mut(kind as usize) {
                *judged = medians(&bridge, &tcp).or(*judged);
            }
            let mut parts = vec![percent(&bridge, &tcp, 50)];
            if kind == Kind::Short {
                parts.push(percent(&bridge, &tcp, 95));
            }
            let Some(worst) = parts.into_iter().collect::<Option<Vec<u64>>>().and_then(|parts| parts.into_iter().max())
            else {
                continue;
            };
            if let Some(slower) = self.slower.get_mut(kind as usize) {
                *slower = if *slower { worst > EQUAL } else { worst > SLOWER };
            }
        }
    }

    /// What was measured holds no more. The verdicts do until something is measured.
    pub fn forget_rounds(&mut self) {
        self.rounds.clear();
    }

    /// All times of a kind that count, in order: over the bridge, and over TCP.
    fn times(&self, kind: Kind) -> (Vec<u64>, Vec<u64>) {
        let all = |which: fn(&Times) -> &Vec<u64>| {
            let mut times: Vec<u64> =
                self.rounds.iter().filter_map(|round| round.get(kind as usize)).flat_map(which).copied().collect();
            times.sort_unstable();
            times
        };
        (all(|times| &times.bridge), all(|times| &times.tcp))
    }

    /// How many rounds count.
    #[must_use]
    pub fn rounds(&self) -> usize {
        self.rounds.len()
    }

    /// Whether the bridge is slower in this.
    #[must_use]
    pub fn is_slower(&self, kind: Kind) -> bool {
        self.slower.get(kind as usize).copied().unwrap_or(false)
    }

    /// The medians that the verdict rests on, or those of what was measured before the first.
    #[must_use]
    pub fn told(&self, kind: Kind) -> Option<Told> {
        let judged = self.judged.get(kind as usize).copied().flatten();
        let Medians { bridge_ns, tcp_ns } = judged.or_else(|| {
            let (bridge, tcp) = self.times(kind);
            medians(&bridge, &tcp)
        })?;
        Some(Told { bridge_ns, tcp_ns, slower: self.is_slower(kind) })
    }

    /// A connection to a server has ended: so many bytes went there and came back in that time.
    pub fn ended(&mut self, server: SocketAddr, there: u64, back: u64, age_ns: u64) {
        let is_much = |kind: Kind, bytes: u64| {
            // Before anything was measured every rate will do.
            let due_ns = self
                .told(kind)
                .map_or(0, |told| u128::from(told.bridge_ns) * u128::from(bytes) / u128::from(EXCHANGE_BYTES) * 4);
            bytes > MUCH_BYTES && (due_ns == 0 || u128::from(age_ns) < due_ns)
        };
        let kind = if is_much(Kind::There, there) && there >= back {
            Kind::There
        } else if is_much(Kind::Back, back) {
            Kind::Back
        } else {
            Kind::Short
        };
        self.destinations.retain(|(known, _)| *known != server);
        if self.destinations.len() == DESTINATIONS_MAX {
            self.destinations.pop_front();
        }
        self.destinations.push_back((server, kind));
    }

    /// Whether a new connection to this server goes by TCP (rule 6).
    pub fn prefers_tcp(&mut self, server: SocketAddr) -> bool {
        let known = self.destinations.iter().find(|(known, _)| *known == server).map(|(_, kind)| *kind);
        let kind = known.unwrap_or(Kind::Short);
        if !self.is_slower(kind) {
            return false;
        }
        if kind != Kind::Short || self.slower == [true; 3] {
            return true;
        }
        self.left_out = self.left_out.wrapping_add(1) % TRIAL;
        self.left_out != 0
    }
}

/// Those of times in order.
fn medians(bridge: &[u64], tcp: &[u64]) -> Option<Medians> {
    Some(Medians { bridge_ns: quantile(bridge, 50)?, tcp_ns: quantile(tcp, 50)? })
}

/// A quantile of times in order.
fn quantile(times: &[u64], percent: usize) -> Option<u64> {
    let last = times.len().checked_sub(1)?;
    times.get(last * percent / 100).copied()
}

/// The bridge's quantile in hundredths of TCP's.
fn percent(bridge: &[u64], tcp: &[u64], quantile_percent: usize) -> Option<u64> {
    let (bridge, tcp) = (quantile(bridge, quantile_percent)?, quantile(tcp, quantile_percent)?);
    Some(bridge.saturating_mul(100) / tcp.max(1))
}

#[cfg(test)]
mod tests;
