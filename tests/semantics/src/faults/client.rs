//! The clients of a round: a process for each connection, and one that makes them and looks after both ends.
//!
//! It continues what was stopped, stops idle workers of the server, and ends what hangs.

use super::board::{Ending, Record, WORKERS_MAX};
use super::ends::{self, Heir, World};
use super::plan::{Kind, Plan, Role};
use super::process::{Lowered, fork, leave, reap};
use anyhow::{Context, Result};
use beeline_testkit::rng::Rng;
use beeline_testkit::sys::{self, RawAddress};
use std::net::SocketAddr;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

/// Connections at the same time.
const AT_ONCE: usize = 8;
/// How long a worker is stopped that waits for a client.
const DOZE: Duration = Duration::from_millis(2500);
/// How long a server is waited for that has not come to its client yet.
const LATE: Duration = Duration::from_secs(3);
/// A connection that is not through after this hangs.
const LIMIT: Duration = Duration::from_secs(12);

/// The processes of one client, from its socket to its end.
fn one(world: &World, plan: &Plan, address: &RawAddress) {
    let end = &world.board.record(plan.id).client;
    end.pid.store(sys::process_id(), Relaxed);
    let heir = Heir::start(world, plan, Role::Client, None);
    ends::arm(plan, Role::Client);
    let fd = sys::socket(libc::AF_INET, libc::SOCK_STREAM, 0).value as i32;
    let here = plan.side == Role::Client;
    let shortage = match plan.kind {
        Kind::Descriptors if here => Some(Lowered::descriptors((plan.variant % 3) as u64)),
        Kind::Memory if here => Some(Lowered::memory((plan.variant % 8) as u64 * 65_536)),
        _ => None,
    };
    sys::set_nonblocking(fd, plan.nonblocking_connect);
    let since = Instant::now();
    let mut ret = sys::connect(fd, address);
    if ret.is(libc::EINPROGRESS) {
        sys::poll(&mut [libc::pollfd { fd, events: libc::POLLOUT, revents: 0 }], 10_000);
        let mut error = [0; 4];
        sys::getsockopt(fd, libc::SOL_SOCKET, libc::SO_ERROR, &mut error);
        ret.errno = i32::from_ne_bytes(error);
        ret.value = if ret.errno == 0 { 0 } else { -1 };
    }
    end.waited(since);
    drop(shortage);
    if !ret.is_ok() {
        end.end(Ending::Refused, ret.errno);
        return;
    }
    ends::run(world, plan, Role::Client, fd, heir);
}

/// A connection in progress.
struct Active {
    plan: Plan,
    pid: i32,
    since: Instant,
    gone: bool,
}

/// A process to be continued, again and again for a while: when exactly it is stopped is not known.
struct Stopped {
    pid: i32,
    from: Instant,
    until: Instant,
    /// A worker that nobody waits for.
    idle: bool,
}

struct Master {
    world: World,
    address: RawAddress,
    active: Vec<Active>,
    stopped: Vec<Stopped>,
    /// Connections of which an end will be stopped, and whose process is not known yet.
    awaited: Vec<Plan>,
    /// When the last client ended.
    over: Option<Instant>,
    next: usize,
    rng: Rng,
    mischief: Instant,
}

/// Makes all connections of the round, and returns when they are through.
///
/// # Errors
/// When the words make no sense.
pub fn run(words: &str) -> Result<()> {
    let (path, rest) = words.split_once(':').context("no board")?;
    let (argument, address) = rest.split_once(':').context("no address")?;
    let world = World::new(path, argument)?;
    let address = RawAddress::new(address.parse::<SocketAddr>()?);
    let rng = Rng::new(world.round.seed);
    let (active, stopped, awaited) = (Vec::new(), Vec::new(), Vec::new());
    let mut master =
        Master { world, address, active, stopped, awaited, over: None, next: 0, rng, mischief: Instant::now() };
    while master.is_busy() {
        master.turn();
        std::thread::sleep(Duration::from_micros(300));
    }
    // A worker may serve the last connection while it is stopped as an idle one.
    for stopped in &master.stopped {
        sys::kill(stopped.pid, libc::SIGCONT);
    }
    leave()
}

impl Master {
    fn is_busy(&mut self) -> bool {
        if self.next < self.world.round.connections || !self.active.is_empty() {
            return true;
        }
        // A server may come to a client that has been and gone.
        let over = *self.over.get_or_insert_with(Instant::now);
        !self.awaited.is_empty() && over.elapsed() < LATE || self.stopped.iter().any(|stopped| !stopped.idle)
    }

    fn turn(&mut self) {
        while self.active.len() < AT_ONCE && self.next < self.world.round.connections {
            let plan = Plan::of(&self.world.round, self.next);
            self.next += 1;
            let pid = fork(|| one(&self.world, &plan, &self.address));
            if plan.kind == Kind::Stop {
                self.awaited.push(plan.clone());
            }
            self.active.push(Active { plan, pid, since: Instant::now(), gone: false });
        }
        while let Some((pid, _)) = reap(false) {
            self.active.iter_mut().filter(|active| active.pid == pid).for_each(|active| active.gone = true);
        }
        self.keep_stops();
        self.look_after();
    }

    fn look_after(&mut self) {
        let board = self.world.board;
        self.active.retain(|active| {
            let record = board.record(active.plan.id);
            let late = active.since.elapsed() > LIMIT;
            if late {
                report_hang(active, record);
            }
            // An heir whose giver was killed goes on by itself.
            let orphan = active.plan.kind == Kind::Hand && active.plan.side == Role::Client;
            let through = active.gone && !(orphan && record.client.ending() == Ending::None && expects_heir(active));
            if through || late {
                record.finished.store(1, Relaxed);
            }
            !through && !late
        });
    }

    fn keep_stops(&mut self) {
        let now = Instant::now();
        let (board, stopped) = (self.world.board, &mut self.stopped);
        self.awaited.retain(|plan| {
            let record = board.record(plan.id);
            let end = if plan.side == Role::Client { &record.client } else { &record.server };
            let pid = end.pid.load(Relaxed);
            if pid != 0 {
                let until = now + plan.stop.max(plan.fault_after) + Duration::from_millis(60);
                stopped.push(Stopped { pid, from: now + plan.stop, until, idle: false });
            }
            pid == 0
        });
        if self.world.round.stops_workers() && now > self.mischief {
            self.mischief = now + Duration::from_millis(self.rng.between(5, 80) as u64);
            let pid = self.world.board.workers[self.rng.below(WORKERS_MAX)].load(Relaxed);
            if pid > 1 && self.next < self.world.round.connections {
                sys::kill(pid, libc::SIGSTOP);
                let from = now + Duration::from_millis(self.rng.between(1, 150) as u64);
                self.stopped.push(Stopped { pid, from, until: from, idle: true });
            }
        }
        for place in &self.world.board.dozing {
            let pid = place.load(Relaxed);
            if pid > 1 && !self.stopped.iter().any(|stopped| stopped.pid == pid && stopped.until > now) {
                let from = now + DOZE;
                self.stopped.push(Stopped { pid, from, until: from, idle: true });
            }
        }
        self.stopped.retain(|stopped| {
            if now >= stopped.from {
                sys::kill(stopped.pid, libc::SIGCONT);
            }
            // On a busy machine its timer may begin late: it is looked after as long as it lives.
            now < stopped.until || !stopped.idle && lives(stopped.pid)
        });
    }
}

fn lives(pid: i32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit(") ").next().is_some_and(|rest| !rest.is_empty() && !rest.starts_with('Z'))
}

fn expects_heir(active: &Active) -> bool {
    active.plan.variant % 5 == 3 && active.since.elapsed() < LIMIT
}

/// Says what a connection that hangs was doing, and ends it.
fn report_hang(active: &Active, record: &Record) {
    record.hung.store(1, Relaxed);
    for (role, end) in [("client", &record.client), ("server", &record.server)] {
        let pid = end.pid.load(Relaxed);
        let read = |name: &str| std::fs::read_to_string(format!("/proc/{pid}/{name}")).unwrap_or_default();
        let stat = read("stat");
        let state: Vec<&str> = stat.rsplit(") ").next().unwrap_or_default().split(' ').take(2).collect();
        eprintln!(
            "connection {} hangs: {role} {pid} sent {} received {} {:?}; state {state:?}, system call {}",
            active.plan.id,
            end.sent.load(Relaxed),
            end.received.load(Relaxed),
            end.ending(),
            read("syscall").trim()
        );
        if pid > 1 && !stat.is_empty() && end.ending() == Ending::None {
            sys::kill(pid, libc::SIGKILL);
        }
    }
}
