//! The servers of the rounds, one for each style.

use super::board::{End, Ending, WORKERS_MAX};
use super::ends::{self, Heir, World};
use super::plan::{Gone, HEADER_BYTES, Kind, Plan, Role, Style};
use super::process::{Lowered, Timer, execute_self, fork, leave, reap, signal_after};
use super::pump::{Pump, Stop, Streams};
use anyhow::{Context, Result};
use beeline_testkit::rng::Rng;
use beeline_testkit::sys::{self, EpollCall, RawAddress, Ret};
use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

/// How long a connection may be silent at its beginning.
const SILENCE_MS: i32 = 5000;
const WORKERS: usize = 4;

/// The listener's process is to become another program.
static SUMMONED: AtomicBool = AtomicBool::new(false);

extern "C" fn summon(_: i32) {
    SUMMONED.store(true, Relaxed);
}

/// Serves until it is killed: `BOARD:ROUND`, or `BOARD:ROUND:LISTENER` for one that another program left.
///
/// # Errors
/// When the words make no sense.
pub fn run(words: &str) -> Result<()> {
    // SAFETY: SIG_IGN is a valid disposition.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_IGN) };
    let words: Vec<&str> = words.split(':').collect();
    let world = World::new(words.first().context("no board")?, words.get(1).context("no round")?)?;
    if let Some(inherited) = words.get(2) {
        Server::new(world, inherited.parse()?, false).fork_each();
    }
    let listener = sys::socket(libc::AF_INET, libc::SOCK_STREAM, 0).value as i32;
    sys::bind(listener, &RawAddress::new(SocketAddr::from(([127, 0, 0, 1], 0))));
    sys::listen(listener, 512);
    let mut cookie = [0; 8];
    sys::getsockopt(listener, libc::SOL_SOCKET, libc::SO_COOKIE, &mut cookie);
    if let Some(address) = sys::getsockname(listener, 128).1.decode() {
        crate::hostile::announce(address, u64::from_ne_bytes(cookie));
    }
    let style = world.round.style;
    let leaves = world.round.kind == Some(Kind::Gone) && world.round.gone != Gone::Killed;
    let mut server = Server::new(world, listener, leaves);
    match style {
        Style::Fork => server.fork_each(),
        Style::Workers | Style::PollWorkers | Style::EpollWorkers => server.keep_workers(),
        Style::Threads => server.thread_each(),
        Style::Single => server.serve_all(),
    }
}

struct Server {
    world: &'static World,
    listener: i32,
    rng: Rng,
    /// It becomes another program when it is summoned.
    leaves: bool,
}

impl Server {
    fn new(world: World, listener: i32, leaves: bool) -> Self {
        if leaves {
            sys::sigaction(libc::SIGALRM, summon, 0);
            let _armed = signal_after(libc::SIGALRM, world.round.gone_after);
        }
        let rng = Rng::new(world.round.seed ^ u64::from(std::process::id()));
        Self { world: Box::leak(Box::new(world)), listener, rng, leaves }
    }

    /// One `accept`, now and then with nothing to spare; notes what no shortage explains.
    fn accept(&mut self) -> Option<i32> {
        let round = &self.world.round;
        let short = |rng: &mut Rng, kind| round.has(kind) && round.kind.is_none() && rng.chance(6);
        let shortage = if round.style == Style::Threads {
            None
        } else if short(&mut self.rng, Kind::Descriptors) {
            Some(Lowered::descriptors(self.rng.below(3) as u64))
        } else if short(&mut self.rng, Kind::Memory) {
            Some(Lowered::memory(self.rng.below(8) as u64 * 65_536))
        } else {
            None
        };
        let ret = sys::accept(self.listener);
        let was_short = shortage.is_some();
        drop(shortage);
        if ret.is_ok() {
            return Some(ret.value as i32);
        }
        let usual = [libc::EINTR, libc::ECONNABORTED].contains(&ret.errno)
            || ret.errno == libc::EAGAIN && matches!(round.style, Style::PollWorkers | Style::Single)
            || was_short && ret.errno == libc::EMFILE;
        if !usual {
            self.world.board.accept_failures.fetch_add(1, Relaxed);
            self.world.board.accept_errno.store(ret.errno, Relaxed);
        }
        None
    }

    fn fork_each(&mut self) -> ! {
        loop {
            if self.leaves && SUMMONED.load(Relaxed) {
                let words = format!("{}:{}:{}", self.world.path.display(), self.world.argument, self.listener);
                execute_self(&format!("fault_server:{words}"), self.world.round.gone == Gone::Executed);
            }
            if let Some(fd) = self.accept() {
                fork(|| {
                    sys::close(self.listener);
                    serve(self.world, fd, true, false);
                });
                sys::close(fd);
            }
            while let Some((_, status)) = reap(false) {
                self.judge(status);
            }
        }
    }

    /// A child that aborted has found something wrong.
    fn judge(&self, status: i32) {
        if libc::WIFSIGNALED(status) && ![libc::SIGKILL, libc::SIGALRM].contains(&libc::WTERMSIG(status)) {
            self.world.board.crashes.fetch_add(1, Relaxed);
        }
    }

    fn keep_workers(&mut self) -> ! {
        let places = &self.world.board.workers;
        if self.world.round.style == Style::PollWorkers {
            sys::set_nonblocking(self.listener, true);
        }
        loop {
            for (number, place) in places[..WORKERS.min(WORKERS_MAX)].iter().enumerate() {
                if place.load(Relaxed) == 0 {
                    self.world.board.dozing[number].store(0, Relaxed);
                    place.store(fork(|| self.work(number)), Relaxed);
                }
            }
            if let Some((pid, status)) = reap(true) {
                self.judge(status);
                places.iter().filter(|place| place.load(Relaxed) == pid).for_each(|place| place.store(0, Relaxed));
            }
        }
    }

    fn work(&mut self, number: usize) {
        self.rng = Rng::new(self.world.round.seed ^ u64::from(std::process::id()));
        let set = match self.world.round.style {
            Style::EpollWorkers => {
                let set = sys::epoll_create1(libc::EPOLL_CLOEXEC).value as i32;
                sys::epoll_ctl(set, libc::EPOLL_CTL_ADD, self.listener, libc::EPOLLIN as u32, 0);
                Some(set)
            }
            _ => None,
        };
        loop {
            match (self.world.round.style, set) {
                (_, Some(set)) => drop(sys::epoll_wait(EpollCall::Wait, set, 4, -1, None)),
                (Style::PollWorkers, _) => {
                    sys::poll(&mut [libc::pollfd { fd: self.listener, events: libc::POLLIN, revents: 0 }], -1);
                }
                _ => {}
            }
            let doze = self.doze(number);
            let accepted = self.accept();
            let was_stopped = doze.is_some_and(Timer::stop);
            self.world.board.dozing[number].store(0, Relaxed);
            if accepted.is_some_and(|fd| serve(self.world, fd, true, was_stopped)) {
                // What this connection armed is not for the next.
                leave();
            }
        }
    }

    /// Now and then, a worker is stopped while it waits for a client, and for long: that is nobody else's business.
    fn doze(&mut self, number: usize) -> Option<Timer> {
        if !self.world.round.stops_workers() || !self.rng.chance(40) {
            return None;
        }
        self.world.board.dozing[number].store(sys::process_id(), Relaxed);
        Some(signal_after(libc::SIGSTOP, Duration::from_micros(self.rng.between(1, 20_000) as u64)))
    }

    fn thread_each(&mut self) -> ! {
        loop {
            if let Some(fd) = self.accept() {
                let world = self.world;
                std::thread::spawn(move || serve(world, fd, false, false));
            }
        }
    }

    fn serve_all(&mut self) -> ! {
        sys::set_nonblocking(self.listener, true);
        let set = sys::epoll_create1(libc::EPOLL_CLOEXEC).value as i32;
        sys::epoll_ctl(set, libc::EPOLL_CTL_ADD, self.listener, libc::EPOLLIN as u32, self.listener as u64);
        let mut guests: HashMap<i32, Guest> = HashMap::new();
        let edge = self.rng.chance(2);
        loop {
            let (_, events) = sys::epoll_wait(EpollCall::Wait, set, 16, -1, None);
            for event in events {
                let fd = { event.u64 } as i32;
                if fd == self.listener {
                    while let Some(fd) = self.accept() {
                        sys::set_nonblocking(fd, true);
                        let wanted =
                            libc::EPOLLIN | libc::EPOLLRDHUP | if edge { libc::EPOLLET | libc::EPOLLOUT } else { 0 };
                        sys::epoll_ctl(set, libc::EPOLL_CTL_ADD, fd, wanted as u32, fd as u64);
                        guests.insert(fd, Guest { header: Vec::new(), known: None, closing: false });
                    }
                } else if let Some(guest) = guests.get_mut(&fd) {
                    match guest.turn(self.world, fd) {
                        Turn::Over => {
                            sys::close(fd);
                            guests.remove(&fd);
                        }
                        Turn::Wants(out) if !edge => {
                            let wanted = libc::EPOLLIN | if out { libc::EPOLLOUT } else { 0 };
                            sys::epoll_ctl(set, libc::EPOLL_CTL_MOD, fd, wanted as u32, fd as u64);
                        }
                        Turn::Wants(_) => {}
                    }
                }
            }
        }
    }
}

/// Reads what a client begins with; none when it is no client of ours.
fn header(fd: i32) -> Option<usize> {
    let mut header = [0; HEADER_BYTES as usize];
    let mut got = 0;
    while got < header.len() {
        if sys::poll(&mut [libc::pollfd { fd, events: libc::POLLIN, revents: 0 }], SILENCE_MS).value <= 0 {
            return None;
        }
        let ret = sys::recv(fd, &mut header[got..], 0);
        match ret.value {
            1.. => got += ret.size(),
            _ if ret.is(libc::EAGAIN) || ret.is(libc::EINTR) => {}
            _ => return None,
        }
    }
    Plan::id_of(header)
}

/// Claims the server's end of a connection; none when another process has it, which cannot be.
fn claim(world: &World, id: usize) -> (Plan, &'static End) {
    let plan = Plan::of(&world.round, id);
    let end = &world.board.record(id).server;
    end.received.store(HEADER_BYTES, Relaxed);
    end.pid.store(sys::process_id(), Relaxed);
    (plan, end)
}

/// Serves one connection; true when its plan armed something.
fn serve(world: &'static World, fd: i32, alone: bool, was_stopped: bool) -> bool {
    let Some(id) = header(fd) else {
        world.board.silent.fetch_add(1, Relaxed);
        sys::close(fd);
        return false;
    };
    let (plan, _) = claim(world, id);
    world.board.record(id).excused.fetch_max(u32::from(was_stopped), Relaxed);
    if !alone {
        ends::run(world, &plan, Role::Server, fd, None);
        return false;
    }
    let heir = Heir::start(world, &plan, Role::Server, Some(fd));
    ends::arm(&plan, Role::Server);
    ends::run(world, &plan, Role::Server, fd, heir);
    plan.side == Role::Server
}

/// A connection of the server that does everything in one thread.
struct Guest {
    header: Vec<u8>,
    known: Option<(Plan, &'static End)>,
    /// Its streams are complete, and its end is awaited.
    closing: bool,
}

enum Turn {
    Over,
    Wants(bool),
}

impl Guest {
    fn turn(&mut self, world: &World, fd: i32) -> Turn {
        if self.known.is_none() {
            let mut rest = vec![0; HEADER_BYTES as usize - self.header.len()];
            let ret = sys::recv(fd, &mut rest, 0);
            self.header.extend_from_slice(&rest[..ret.size()]);
            if self.header.len() < HEADER_BYTES as usize {
                return self.silent(world, ret);
            }
            let id = self.header.as_slice().try_into().ok().and_then(Plan::id_of);
            let Some(id) = id else { return self.silent(world, Ret { value: 0, ..ret }) };
            self.known = Some(claim(world, id));
        }
        let Some((plan, end)) = &self.known else { return Turn::Over };
        if !self.closing {
            let mut pump = Pump::new(plan, Role::Server, end, fd);
            match pump.step(u64::MAX, Streams::Both) {
                Stop::Ended(ending, errno) => {
                    end.end(ending, errno);
                    return Turn::Over;
                }
                Stop::Blocked | Stop::Mark => return Turn::Wants(end.sent.load(Relaxed) < plan.total(Role::Server)),
                Stop::Complete => {}
            }
            self.closing = true;
            if plan.closer == Role::Server && !plan.half_close {
                end.end(Ending::Done, 0);
                return Turn::Over;
            }
            if plan.closer == Role::Server {
                sys::shutdown(fd, libc::SHUT_WR);
            }
        }
        let ret = sys::recv(fd, &mut [0], 0);
        match ret.value {
            0 => end.end(Ending::Done, 0),
            1.. => end.end(Ending::Surplus, 0),
            _ if ret.is(libc::EAGAIN) => return Turn::Wants(false),
            _ if ret.is(libc::ECONNRESET) => end.end(Ending::Reset, ret.errno),
            _ => end.end(Ending::Failed, ret.errno),
        }
        Turn::Over
    }

    fn silent(&self, world: &World, ret: Ret) -> Turn {
        if ret.value > 0 || ret.is(libc::EAGAIN) {
            return Turn::Wants(false);
        }
        world.board.silent.fetch_add(1, Relaxed);
        Turn::Over
    }
}
