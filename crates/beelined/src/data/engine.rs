//! The bridge's one loop: lanes, rails and control connections, polled while there is news and slept on together when
//! there is none.
//!
//! # Rules
//!
//! 1. One thread does everything, and nothing in the loop waits: not for a client, a server, a peer or a disk.
//! 2. A connection is *hot* while something moves on it: its lane is looked at in each round. After a while without
//!    news it is armed and *cold*: a bell makes it hot again.
//! 3. The bridge sleeps only after everything was looked at once more since it was armed: lanes (their wake words),
//!    rails (`may_sleep`), acknowledgements that are due and messages that are written.
//! 4. On a host with few CPUs a spinning bridge keeps its own clients from running. There it spins only while that
//!    pays, unless waking a program is dear ([`spin`]), and asks them not to spin either. (`sched_yield` between looks
//!    would be worse: Linux 6.18 takes a slice for each, and then lets everybody else run first.) Where programs that
//!    compute want all CPUs it never spins, and takes a priority above theirs ([`crate::priority`]): what kernel TCP
//!    does it does in interrupts.
//! 5. What one peer, one client or one rail does wrong costs it its own connections, and nobody else's.

mod choose;
mod clients;
mod compared;
mod comparing;
mod door;
mod draining;
mod inward;
mod large;
mod leaving;
mod links;
mod outward;
mod peers;
mod place;
mod rails;
mod reach;
mod rings;
mod spin;
mod state;
mod status;
mod tag;
mod taken;
#[cfg(test)]
mod tests;
mod waiting;

use std::collections::HashMap;
use std::os::fd::{BorrowedFd, OwnedFd, RawFd};
use std::time::{Duration, Instant};

use anyhow::Context;
use beeline_fabric::{Completion, EndpointId, RegionId};
use beeline_topo::{Host, Segments};
use beeline_wire::Verdict;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};

use super::health::Asked;
use super::link::Link;
use super::own_time::{OwnTime, Round};
use super::table::Table;
use crate::control::{self, Control};
use crate::name::BridgeName;
use crate::priority;
use crate::tunables::Tunables;

use spin::Spin;
use state::{Door, Entry, Grant, Heard, KnownRing, Large, NO_PEER, OfferedRail, OpenRail, Peer, Pull};
use tag::Tag;

pub use state::Counts;

/// Rounds between two looks at what the kernel has, while there is other news; and the time, as a round may be long.
const ROUNDS_PER_LOOK: u32 = 64;
const LOOK_NS: u64 = 2_000_000;
/// Looks without news after which a lane is armed, if others keep the bridge awake; and looks in vain of one that waits
/// for a link.
const COLD_AFTER: u32 = 2048;
const WAITING_COLD_AFTER: u32 = 64;
/// How often links are looked after.
const CARE_NS: u64 = 100_000_000;
/// The longest sleep.
const SLEEP_MAX: Duration = Duration::from_secs(1);
/// Up to so many CPUs are few: on larger hosts the bridge has one for itself, mostly.
const FEW_CPUS: usize = 4;

/// See the module.
pub struct Engine {
    pub tunables: Tunables,
    pub counts: Counts,
    name: BridgeName,
    control: Control,
    epoll: Epoll,
    door: Door,
    host: Host,
    /// Subnets that routers connect.
    segments: Segments,
    rails: Vec<OpenRail>,
    links: Vec<Option<Link>>,
    by_endpoint: HashMap<(usize, EndpointId), usize>,
    peers: Vec<Option<Peer>>,
    connections: Table<Entry>,
    /// Connections that a peer has opened, by its number.
    theirs: HashMap<(usize, u64), u64>,
    /// Regions being closed, with their connections.
    closing: HashMap<(usize, RegionId), u64>,
    pulls: Table<Pull>,
    /// Clients that have come and not spoken, with the time until which they may.
    silent: HashMap<RawFd, u64>,
    hellos: state::Hellos,
    /// Clients refused, by the byte of the verdict; no verdict has 0.
    refusals: [u64; Verdict::COUNT + 1],
    hot: Vec<u64>,
    /// Empty: the memory of [`Engine::pump_hot`].
    behind: Vec<u64>,
    /// Connections of which something has come that is not acknowledged.
    owing: Vec<u64>,
    /// Connections that wait for a link of which nothing is known, and all that wait for one ([`waiting`]).
    waiting: Vec<u64>,
    waiters: usize,
    completions: Vec<Completion>,
    own_time: OwnTime,
    patience_ns: u64,
    now_ns: u64,
    next_link: u64,
    cared_ns: u64,
    /// When the control connections want to be looked after.
    control_due_ns: u64,
    started: Instant,
    /// Whether the host has so few CPUs that clients need the bridge's.
    few_cpus: bool,
    place: place::Place,
    /// Whether this round asks rails for events that no descriptor has told.
    asks_for_events: bool,
    /// What measures whether TCP is faster.
    comparer: compared::Comparer,
    /// The bridge is about to stop.
    leaving: Option<state::Drain>,
    /// Whether a client was rung in the last round that found something.
    rang: bool,
    /// The priority while CPUs are crowded; `None` for a bridge that was started with one of its own, which it keeps.
    nice: Option<i32>,
}

/// What the engine is made of.
pub struct Parts {
    pub name: BridgeName,
    pub control: Control,
    pub tunables: Tunables,
    /// The door, listening.
    pub door: OwnedFd,
    pub host: Host,
    /// Ports to open, the filter of the configuration applied.
    pub ports: Vec<beeline_fabric::Port>,
    /// Subnets that routers connect, as the configuration says.
    pub segments: Segments,
    /// How long a link may be silent though asked.
    pub patience: Duration,
    /// The priority while CPUs are crowded, where the bridge may have that.
    pub nice: i32,
}

impl Engine {
    /// Opens the rails and offers them.
    ///
    /// # Errors
    /// When the kernel gives no epoll set.
    pub fn new(parts: Parts) -> anyhow::Result<Engine> {
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).context("cannot make an epoll set")?;
        let (comparer, measure_port) = compared::Comparer::new(parts.tunables.compare_s != 0);
        let mut engine = Engine {
            tunables: parts.tunables,
            counts: Counts::default(),
            name: parts.name,
            control: parts.control,
            epoll,
            door: Door::new(parts.door),
            host: parts.host,
            segments: parts.segments,
            rails: Vec::new(),
            links: Vec::new(),
            by_endpoint: HashMap::new(),
            peers: Vec::new(),
            connections: Table::default(),
            theirs: HashMap::new(),
            closing: HashMap::new(),
            pulls: Table::default(),
            silent: HashMap::new(),
            hellos: state::Hellos::default(),
            refusals: [0; Verdict::COUNT + 1],
            hot: Vec::new(),
            behind: Vec::new(),
            owing: Vec::new(),
            waiting: Vec::new(),
            waiters: 0,
            completions: Vec::new(),
            own_time: OwnTime::default(),
            patience_ns: u64::try_from(parts.patience.as_nanos()).unwrap_or(u64::MAX),
            now_ns: 0,
            next_link: u64::from(rand_u32()) << 32,
            cared_ns: 0,
            control_due_ns: 0,
            started: Instant::now(),
            few_cpus: std::thread::available_parallelism().is_ok_and(|cpus| cpus.get() <= FEW_CPUS),
            place: place::Place::default(),
            asks_for_events: true,
            comparer,
            leaving: None,
            rang: false,
            nice: (priority::current() == 0).then_some(parts.nice),
        };
        engine.control.set_measure_port(measure_port);
        if let Some(door) = engine.door.open() {
            engine.watch(door, EpollFlags::EPOLLIN, Tag::Door)?;
        }
        engine.watch(engine.control.as_fd(), EpollFlags::EPOLLIN, Tag::Control)?;
        engine.open_rails(&parts.ports)?;
        Ok(engine)
    }

    /// Wakes the loop when `fd` is readable: [`Engine::run`] then calls its `outside`.
    ///
    /// # Errors
    /// Those of epoll_ctl(2).
    pub fn watch_outside(&self, fd: BorrowedFd<'_>) -> anyhow::Result<()> {
        self.watch(fd, EpollFlags::EPOLLIN, Tag::Outside)
    }

    fn watch(&self, fd: BorrowedFd<'_>, events: EpollFlags, tag: Tag) -> anyhow::Result<()> {
        self.epoll.add(fd, EpollEvent::new(events, tag.pack())).context("cannot watch a descriptor")
    }

    /// Before it is closed here: of what another process has, too, the kernel would go on telling.
    fn unwatch(&self, fd: BorrowedFd<'_>) {
        let _ = self.epoll.delete(fd);
    }

    /// Runs until `outside` says so: it is called when one of the descriptors of [`Engine::watch_outside`] is readable,
    /// and once in a while.
    ///
    /// # Errors
    /// When the kernel fails in a way that nothing can be done about.
    pub fn run(&mut self, mut outside: impl FnMut(&mut Engine) -> bool) -> anyhow::Result<()> {
        let mut spin = Spin::for_host(self.few_cpus);
        let mut round = 0_u32;
        let mut busy = false;
        let mut looked_ns = 0;
        let mut asked_again = false;
        loop {
            round = round.wrapping_add(1);
            self.asks_for_events = round.is_multiple_of(ROUNDS_PER_LOOK);
            busy = self.look_at_memory(busy);
            if busy {
                spin.news();
                if !round.is_multiple_of(ROUNDS_PER_LOOK) && monotonic_ns().saturating_sub(looked_ns) < LOOK_NS {
                    continue;
                }
            }
            self.now_ns = monotonic_ns();
            looked_ns = self.now_ns;
            spin.pass(self.now_ns);
            let awake = busy || spin.goes_on(self.now_ns, self.tunables.spin_us, self.rang);
            self.counts.spins = spin.begun();
            if let Some(crowded) = spin.crowd_turned() {
                self.crowd_turned(crowded);
            }
            let Some(timeout) = self.timeout(awake, &mut asked_again) else { continue };
            let heard = self.hear_kernel(timeout, &mut outside)?;
            spin.pass(self.now_ns);
            match heard {
                Heard::Nothing => {}
                Heard::News => spin.news(),
                Heard::Stop => return Ok(()),
            }
            if self.care() && outside(self) || self.is_drained() {
                return Ok(());
            }
        }
    }

    /// How long the kernel may wait for something to tell. `None` if memory has news when the bridge is about to sleep:
    /// it is looked at again with nothing in between, but only once (`asked_again`) before the kernel is heard.
    fn timeout(&mut self, awake: bool, asked_again: &mut bool) -> Option<Duration> {
        let timeout = if awake {
            Duration::ZERO
        } else if self.may_sleep() {
            self.counts.sleeps = self.counts.sleeps.saturating_add(1);
            self.sleep_time()
        } else if *asked_again {
            Duration::ZERO
        } else {
            *asked_again = true;
            return None;
        };
        *asked_again = false;
        Some(timeout)
    }

    /// Programs that compute want all CPUs, or do not any more: what was measured tells of another host than this one
    /// is now.
    fn crowd_turned(&mut self, crowded: bool) {
        self.counts.crowds = self.counts.crowds.saturating_add(crowded.into());
        if let Some(nice) = self.nice {
            priority::take(if crowded { nice } else { 0 });
        }
        self.comparer.crowded = crowded;
    }

    /// One look at everything that is in memory. Whether something was found.
    fn look_at_memory(&mut self, was_busy: bool) -> bool {
        let rang = std::mem::take(&mut self.rang);
        self.own_time.set(self.tunables.measure != 0);
        self.own_time.begin(monotonic_ns);
        let came = self.poll_rails(was_busy);
        self.place_again();
        let asked_ns = self.own_time.outside_ns();
        let mut round = Round { came: self.own_time.lap(came, monotonic_ns), ..Round::default() };
        let moved = self.pump_hot();
        round.moved = self.own_time.lap(moved, monotonic_ns);
        let sent = self.flush_links();
        round.sent = self.own_time.lap(sent, monotonic_ns);
        self.own_time.end(round, asked_ns);
        let busy = came | moved | sent;
        self.rang |= rang && !busy;
        busy
    }

    /// Hears what the kernel has.
    fn hear_kernel(
        &mut self,
        timeout: Duration,
        outside: &mut impl FnMut(&mut Engine) -> bool,
    ) -> anyhow::Result<Heard> {
        let mut events = [EpollEvent::empty(); 64];
        let timeout = EpollTimeout::try_from(timeout).unwrap_or(EpollTimeout::ZERO);
        let count = match self.epoll.wait(&mut events, timeout) {
            Ok(count) => count,
            Err(nix::errno::Errno::EINTR) => 0,
            Err(error) => return Err(error).context("cannot wait for events"),
        };
        self.now_ns = monotonic_ns();
        let mut news = false;
        for event in events.iter().take(count) {
            let tag = Tag::unpack(event.data());
            news |= !matches!(tag, Some(Tag::Rail(_) | Tag::RailEvents(_)) | None);
            match tag {
                Some(Tag::Door) => self.take_clients(),
                Some(Tag::Control) => self.turn_control(),
                Some(Tag::Outside) if outside(self) => return Ok(Heard::Stop),
                Some(Tag::Outside) => {}
                Some(Tag::Silent(fd)) => self.hear_client(fd),
                // Only a poll tells news: a descriptor may stay readable until the rail is asked whether one may sleep.
                Some(Tag::Rail(index)) => {
                    if let Some(rail) = self.rails.get_mut(index) {
                        rail.ready = true;
                    }
                }
                Some(Tag::RailEvents(index)) => {
                    if let Some(rail) = self.rails.get_mut(index) {
                        rail.events_ready = true;
                    }
                }
                None => {}
                Some(Tag::Connection(number)) => self.hear_connection(number, event.events()),
            }
        }
        Ok(if news { Heard::News } else { Heard::Nothing })
    }

    /// How long to sleep at most.
    fn sleep_time(&self) -> Duration {
        let control = Duration::from_nanos(self.control_due_ns.saturating_sub(self.now_ns));
        let cares = self.door.rests || self.leaving.is_some() || self.peers.iter().flatten().next().is_some();
        let care = if cares { Duration::from_nanos(CARE_NS) } else { SLEEP_MAX };
        // A millisecond more than nothing: a deadline that has come is found by the next look.
        control.min(care).max(Duration::from_millis(1))
    }

    /// Prepares everything for a sleep. `false` when there is something to do.
    fn may_sleep(&mut self) -> bool {
        if !self.arm_hot() {
            return false;
        }
        self.flush_links();
        // A link that still has something waits for credits or for a queue: completions will tell.
        let mut quiet = true;
        let mut failed = None;
        for (index, rail) in self.rails.iter_mut().enumerate().filter(|(_, rail)| !rail.retired) {
            match rail.rail.may_sleep() {
                Ok(true) => {
                    rail.answered(Asked::MaySleep);
                    continue;
                }
                Ok(false) => {}
                Err(error) => failed = Some((index, error)),
            }
            // It has news in memory, of which no descriptor will tell: the next round asks for them.
            (rail.ready, rail.events_ready) = (true, true);
            quiet = false;
        }
        if let Some((index, error)) = failed {
            self.rail_failed(index, Asked::MaySleep, &error);
        }
        quiet && !self.has_to_place()
    }

    fn turn_control(&mut self) {
        for event in self.control.turn(Instant::now()) {
            match event {
                control::Event::PeerUp(up) => self.peer_up(*up),
                control::Event::PeerDown { peer, why } => self.peer_down(peer, &why.to_string()),
                control::Event::Message(peer, message) => self.peer_said(peer, message),
            }
        }
        // Several links of a peer may have gone at once; the status may be next.
        self.place_again();
    }

    /// What has to be done from time to time. Whether it was time.
    fn care(&mut self) -> bool {
        if self.now_ns < self.control_due_ns && self.now_ns.saturating_sub(self.cared_ns) < CARE_NS {
            return false;
        }
        self.cared_ns = self.now_ns;
        self.turn_control();
        let now = Instant::now();
        let until = self.control.deadline(now).saturating_duration_since(now);
        self.control_due_ns = self.now_ns.saturating_add(u64::try_from(until.as_nanos()).unwrap_or(u64::MAX));
        self.heat_waiting();
        self.acknowledge_all();
        self.care_for_clients();
        self.care_for_rings();
        self.care_for_links();
        self.care_for_retired();
        self.care_for_comparisons();
        true
    }

    /// Makes a connection hot.
    fn heat(&mut self, number: u64) {
        if let Some(entry) = self.connections.get_mut(number) {
            entry.idle = 0;
            if !entry.hot {
                entry.hot = true;
                self.hot.push(number);
            }
        }
    }

    /// The control connections, for the status.
    #[must_use]
    pub fn control(&self) -> &Control {
        &self.control
    }

    /// The control connections, to read certificates again.
    pub fn control_mut(&mut self) -> &mut Control {
        &mut self.control
    }

    /// Says good-bye: connections are reset, peers hear that we go.
    pub fn stop(&mut self) {
        for number in self.connections.numbers().collect::<Vec<_>>() {
            self.reset(number);
        }
        self.pump_hot();
        self.flush_links();
        self.control.stop();
        self.control.turn(Instant::now());
    }
}

/// Nanoseconds of the monotonic clock.
fn monotonic_ns() -> u64 {
    nix::time::clock_gettime(nix::time::ClockId::CLOCK_MONOTONIC).map_or(0, |time| {
        let (seconds, nanoseconds) = (time.tv_sec().unsigned_abs(), time.tv_nsec().unsigned_abs());
        seconds.saturating_mul(1_000_000_000).saturating_add(nanoseconds)
    })
}

/// A number that two starts of a bridge do not share.
fn rand_u32() -> u32 {
    use ring::rand::SecureRandom;
    let mut bytes = [0; 4];
    // Without randomness there were no keys either, and the bridge would not have come so far.
    let _ = ring::rand::SystemRandom::new().fill(&mut bytes);
    u32::from_ne_bytes(bytes)
}
