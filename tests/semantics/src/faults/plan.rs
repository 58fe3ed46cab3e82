//! What becomes of each connection: a pure function of the seed of its round and its number in it.

use beeline_testkit::rng::{Rng, stream_byte};
use clap::ValueEnum;
use std::time::Duration;

/// A kind of fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub enum Kind {
    /// An end's process is killed.
    Kill,
    /// It is stopped and continued.
    Stop,
    /// It forks, and both halves hold the connection.
    Fork,
    /// It executes a program that goes on with the connection, or one that does not.
    Exec,
    /// The connection is handed to another process.
    Hand,
    /// There are no descriptors left at `connect` or `accept`.
    Descriptors,
    /// There is no address space left.
    Memory,
    /// Strangers flood the listener and its door with junk.
    Flood,
    /// The listener's process ends, or becomes another program.
    Gone,
}

impl Kind {
    pub const ALL: [Self; 9] = [
        Self::Kill,
        Self::Stop,
        Self::Fork,
        Self::Exec,
        Self::Hand,
        Self::Descriptors,
        Self::Memory,
        Self::Flood,
        Self::Gone,
    ];

    /// Whether it happens to a whole round.
    #[must_use]
    pub fn is_of_round(self) -> bool {
        matches!(self, Self::Flood | Self::Gone)
    }
}

/// How an end waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    Blocking,
    Poll,
    Select,
    Level,
    Edge,
}

const MODES: [Mode; 6] = [Mode::Blocking, Mode::Blocking, Mode::Poll, Mode::Select, Mode::Level, Mode::Edge];

/// How a server accepts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Style {
    /// A process for each connection.
    Fork,
    /// Workers that sleep in `accept`.
    Workers,
    /// Workers that poll a listener that does not block.
    PollWorkers,
    /// Workers with an epoll set each; the listener blocks.
    EpollWorkers,
    /// A thread for each connection.
    Threads,
    /// One thread for everything.
    Single,
}

const STYLES: [Style; 6] =
    [Style::Fork, Style::Workers, Style::PollWorkers, Style::EpollWorkers, Style::Threads, Style::Single];

impl Style {
    /// Whether a connection has a process of its own, to which faults may happen.
    #[must_use]
    pub fn has_processes(self) -> bool {
        !matches!(self, Self::Threads | Self::Single)
    }
}

/// Which end of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    Client,
    Server,
}

/// What becomes of the listener in a round of [`Kind::Gone`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Gone {
    Killed,
    /// It becomes a new server on the same listener.
    Executed,
    /// The same without the library.
    ExecutedBare,
}

/// A round: one server and its clients.
#[derive(Debug, Clone, Copy)]
pub struct Round {
    pub seed: u64,
    pub style: Style,
    pub kind: Option<Kind>,
    pub gone: Gone,
    /// When the listener goes, in a round of that kind.
    pub gone_after: Duration,
    pub connections: usize,
    /// A bit for each kind that takes part.
    kinds: u32,
}

impl Round {
    /// The round with this number.
    #[must_use]
    pub fn of(seed: u64, number: u64, kinds: &[Kind], connections: usize) -> Self {
        let seed = seed.wrapping_mul(1_000_003).wrapping_add(number);
        let mut rng = Rng::new(seed);
        let chosen = *rng.pick(kinds);
        let kind = Some(chosen).filter(|kind| kind.is_of_round());
        let bits = kinds.iter().filter(|kind| !kind.is_of_round()).fold(0, |bits, kind| bits | 1 << *kind as u32);
        let mut style = *rng.pick(&STYLES);
        let gone = *rng.pick(&[Gone::Killed, Gone::Executed, Gone::ExecutedBare]);
        // Only a server whose connections are its children's can become another program without losing them.
        if kind == Some(Kind::Gone) && gone != Gone::Killed {
            style = Style::Fork;
        }
        let gone_after = Duration::from_micros(log_uniform(&mut rng, 1000, 100_000));
        Self { seed, style, kind, gone, gone_after, connections, kinds: bits }
    }

    /// Whether this kind takes part.
    #[must_use]
    pub fn has(&self, kind: Kind) -> bool {
        self.kinds & 1 << kind as u32 != 0
    }

    /// Whether idle workers are stopped and continued.
    #[must_use]
    pub fn stops_workers(&self) -> bool {
        let workers = matches!(self.style, Style::Workers | Style::PollWorkers | Style::EpollWorkers);
        workers && self.kind.is_none() && self.has(Kind::Stop)
    }

    /// The round as its processes are told of it.
    #[must_use]
    pub fn argument(seed: u64, number: u64, kinds: &[Kind], connections: usize) -> String {
        let kinds = kinds.iter().fold(0_u32, |bits, kind| bits | 1 << *kind as u32);
        format!("{seed},{number},{kinds},{connections}")
    }

    /// The other way round.
    #[must_use]
    pub fn parse(argument: &str) -> Option<Self> {
        let mut words = argument.split(',');
        let mut next = || words.next()?.parse::<u64>().ok();
        let (seed, number, bits, connections) = (next()?, next()?, next()?, next()?);
        let kinds: Vec<Kind> = Kind::ALL.into_iter().filter(|kind| bits & 1 << *kind as u64 != 0).collect();
        Some(Self::of(seed, number, &kinds, connections as usize))
    }
}

/// Bytes before the streams proper: a constant and the connection's number.
pub const HEADER_BYTES: u64 = 16;
const MAGIC: u64 = 0x7374_6c75_6166_2121;

/// One connection.
#[derive(Debug, Clone)]
pub struct Plan {
    pub id: usize,
    seed: u64,
    pub kind: Kind,
    /// Which end the fault happens to.
    pub side: Role,
    pub variant: usize,
    client_mode: Mode,
    server_mode: Mode,
    /// Where each turn of the dialogue ends, in both streams; the last one is the end.
    pub turns: Vec<(u64, u64)>,
    /// The end that closes first.
    pub closer: Role,
    /// It says so with `shutdown` first.
    pub half_close: bool,
    pub nonblocking_connect: bool,
    /// The fault's place, in bytes that its end has sent and received.
    pub fault_at: u64,
    /// The fault's time, for those that need none of the process's own steps.
    pub fault_after: Duration,
    /// How long a stop lasts.
    pub stop: Duration,
}

fn log_uniform(rng: &mut Rng, low: u64, high: u64) -> u64 {
    let steps = (high / low).max(2).ilog2();
    let base = low << rng.below(steps as usize + 1);
    (base + rng.next_u64() % base.max(1)).min(high)
}

fn length(rng: &mut Rng) -> u64 {
    match rng.below(10) {
        0..=4 => rng.between(0, 2000) as u64,
        5..=7 => rng.between(0, 30_000) as u64,
        8 => rng.between(0, 150_000) as u64,
        _ => rng.between(0, 800_000) as u64,
    }
}

impl Plan {
    #[must_use]
    pub fn of(round: &Round, id: usize) -> Self {
        let mut rng = Rng::new(round.seed.wrapping_mul(0x9e37_79b9).wrapping_add(id as u64));
        let kinds: Vec<Kind> = Kind::ALL.into_iter().filter(|kind| round.kinds & 1 << *kind as u32 != 0).collect();
        let kind = round.kind.unwrap_or_else(|| *rng.pick(&kinds));
        let server_side = rng.chance(2) && round.style.has_processes();
        let (mut sent, mut answered) = (HEADER_BYTES + length(&mut rng), length(&mut rng));
        let count = rng.between(1, 6) as u64;
        let mut turns: Vec<(u64, u64)> =
            (1..count).map(|turn| (HEADER_BYTES.max(sent * turn / count), answered * turn / count)).collect();
        if kind.is_of_round() {
            (sent, answered) = (sent.min(40_000), answered.min(40_000));
            turns.clear();
        }
        turns.push((sent, answered));
        Self {
            id,
            seed: rng.next_u64(),
            kind,
            side: if server_side { Role::Server } else { Role::Client },
            variant: rng.below(60),
            client_mode: *rng.pick(&MODES),
            server_mode: *rng.pick(&MODES),
            turns,
            closer: if rng.chance(2) { Role::Client } else { Role::Server },
            half_close: rng.chance(3),
            nonblocking_connect: rng.chance(3),
            fault_at: rng.next_u64() % (sent + answered + 1),
            fault_after: Duration::from_micros(log_uniform(&mut rng, 8, 20_000)),
            stop: Duration::from_millis(log_uniform(&mut rng, 4, 250)),
        }
    }

    #[must_use]
    pub fn mode(&self, role: Role) -> Mode {
        match role {
            Role::Client => self.client_mode,
            Role::Server => self.server_mode,
        }
    }

    /// How much `role` has to send.
    #[must_use]
    pub fn total(&self, role: Role) -> u64 {
        let (to_server, to_client) = self.turns.last().copied().unwrap_or_default();
        match role {
            Role::Client => to_server,
            Role::Server => to_client,
        }
    }

    /// What `role` sends at `position`, as much as there is room for.
    pub fn fill(&self, role: Role, position: u64, buffer: &mut [u8]) {
        let seed = self.seed ^ role as u64;
        for (at, byte) in buffer.iter_mut().enumerate() {
            let position = position + at as u64;
            *byte = match (role, position) {
                (Role::Client, 0..8) => MAGIC.to_le_bytes()[position as usize],
                (Role::Client, 8..16) => (self.id as u64).to_le_bytes()[position as usize - 8],
                _ => stream_byte(seed, position),
            };
        }
    }

    /// The number of the connection whose client begins with these bytes; none for a stranger.
    #[must_use]
    pub fn id_of(header: [u8; HEADER_BYTES as usize]) -> Option<usize> {
        let (magic, id) = header.split_at(8);
        if magic != MAGIC.to_le_bytes() {
            return None;
        }
        Some(u64::from_le_bytes(id.try_into().ok()?) as usize)
    }

    /// Whether the fault ends the connection early, for the end that it happens to.
    #[must_use]
    pub fn ends_early(&self) -> bool {
        match self.kind {
            Kind::Kill => true,
            Kind::Exec => self.variant % 4 == 2,
            Kind::Hand => self.variant % 5 == 4,
            _ => false,
        }
    }
}
