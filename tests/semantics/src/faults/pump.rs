//! Moves the two streams of one end of a connection, in each way that programs have of waiting.
//!
//! Where the streams stand is on the board alone, so a pump can stop at any byte and another process can go on.
//! Whatever comes is compared with what is due at its place.

use super::board::{End, Ending};
use super::plan::{Mode, Plan, Role};
use beeline_testkit::sys::{self, EpollCall, FdSet, Ret, Sets};
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

/// What one call moves at most.
const CHUNK: usize = 48 * 1024;
/// An end that has not moved for so long has hung; whoever looks after the round kills it before.
const PATIENCE: Duration = Duration::from_secs(30);

/// Why a pump stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stop {
    /// It has moved as many bytes as it was told.
    Mark,
    /// Both streams are complete, and nothing was closed yet.
    Complete,
    /// The connection ended.
    Ended(Ending, i32),
    /// Nothing can be moved now.
    Blocked,
}

/// Which streams to move: a process may share the work with another that holds the same connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Streams {
    Both,
    Outgoing,
    Incoming,
}

/// One end of a connection in one process.
pub struct Pump<'a> {
    pub plan: &'a Plan,
    pub role: Role,
    pub end: &'a End,
    pub fd: i32,
    pub buffer: Vec<u8>,
}

impl<'a> Pump<'a> {
    #[must_use]
    pub fn new(plan: &'a Plan, role: Role, end: &'a End, fd: i32) -> Self {
        Self { plan, role, end, fd, buffer: vec![0; CHUNK] }
    }

    fn peer(&self) -> Role {
        match self.role {
            Role::Client => Role::Server,
            Role::Server => Role::Client,
        }
    }

    fn sent(&self) -> u64 {
        self.end.sent.load(Relaxed)
    }

    fn received(&self) -> u64 {
        self.end.received.load(Relaxed)
    }

    /// Sends up to `goal`, at most one call. None when the call would block.
    fn send_some(&mut self, goal: u64) -> Option<Stop> {
        let at = self.sent();
        let count = CHUNK.min((goal - at) as usize);
        self.plan.fill(self.role, at, &mut self.buffer[..count]);
        let since = Instant::now();
        let ret = sys::send(self.fd, &self.buffer[..count], libc::MSG_NOSIGNAL);
        self.end.waited(since);
        match ret.value {
            1.. => {
                self.end.sent.store(at + ret.size() as u64, Relaxed);
                Some(Stop::Mark)
            }
            _ if ret.is(libc::EAGAIN) => None,
            _ if ret.is(libc::EINTR) => Some(Stop::Mark),
            _ => Some(self.broken(ret)),
        }
    }

    /// Receives up to `goal`, at most one call. None when the call would block.
    fn receive_some(&mut self, goal: u64) -> Option<Stop> {
        let at = self.received();
        let count = CHUNK.min((goal - at) as usize);
        let since = Instant::now();
        let ret = sys::recv(self.fd, &mut self.buffer[..count], 0);
        self.end.waited(since);
        match ret.value {
            1.. => {
                let mut due = vec![0; ret.size()];
                self.plan.fill(self.peer(), at, &mut due);
                if due != self.buffer[..ret.size()] {
                    return Some(Stop::Ended(Ending::Wrong, 0));
                }
                self.end.received.store(at + ret.size() as u64, Relaxed);
                Some(Stop::Mark)
            }
            0 => Some(Stop::Ended(Ending::Early, 0)),
            _ if ret.is(libc::EAGAIN) => None,
            _ if ret.is(libc::EINTR) => Some(Stop::Mark),
            _ => Some(self.broken(ret)),
        }
    }

    /// What an error means. What came before it is still there to be received.
    fn broken(&mut self, ret: Ret) -> Stop {
        if !ret.is(libc::ECONNRESET) && !ret.is(libc::EPIPE) {
            return Stop::Ended(Ending::Failed, ret.errno);
        }
        sys::set_nonblocking(self.fd, true);
        let goal = self.plan.total(self.peer());
        while self.received() < goal {
            match self.receive_once_more(goal) {
                Some(Stop::Mark) => {}
                Some(Stop::Ended(Ending::Wrong, _)) => return Stop::Ended(Ending::Wrong, 0),
                _ => break,
            }
        }
        Stop::Ended(Ending::Reset, ret.errno)
    }

    fn receive_once_more(&mut self, goal: u64) -> Option<Stop> {
        let at = self.received();
        let count = CHUNK.min((goal - at) as usize);
        let ret = sys::recv(self.fd, &mut self.buffer[..count], 0);
        let mut due = vec![0; ret.size()];
        self.plan.fill(self.peer(), at, &mut due);
        if due != self.buffer[..ret.size()] {
            return Some(Stop::Ended(Ending::Wrong, 0));
        }
        self.end.received.store(at + ret.size() as u64, Relaxed);
        (ret.size() > 0).then_some(Stop::Mark)
    }

    /// Moves bytes until this end's progress reaches `mark` or the streams are complete.
    pub fn run(&mut self, mark: u64, streams: Streams) -> Stop {
        match self.plan.mode(self.role) {
            Mode::Blocking if streams == Streams::Both => self.run_turns(mark),
            Mode::Blocking => self.run_one(streams),
            mode => self.run_waiting(mode, mark, streams),
        }
    }

    /// The dialogue, turn by turn, with calls that block.
    fn run_turns(&mut self, mark: u64) -> Stop {
        sys::set_nonblocking(self.fd, false);
        let turns = self.plan.turns.clone();
        for (to_server, to_client) in turns {
            let steps = match self.role {
                Role::Client => [(true, to_server), (false, to_client)],
                Role::Server => [(false, to_server), (true, to_client)],
            };
            for (outgoing, goal) in steps {
                while (if outgoing { self.sent() } else { self.received() }) < goal {
                    if self.end.progress() >= mark {
                        return Stop::Mark;
                    }
                    let stop = if outgoing { self.send_some(goal) } else { self.receive_some(goal) };
                    match stop {
                        Some(Stop::Mark) => {}
                        Some(stop) => return stop,
                        None => return Stop::Ended(Ending::Failed, libc::EAGAIN),
                    }
                }
            }
        }
        Stop::Complete
    }

    /// One stream to its end, with calls that block.
    fn run_one(&mut self, streams: Streams) -> Stop {
        sys::set_nonblocking(self.fd, false);
        loop {
            let (at, goal) = match streams {
                Streams::Outgoing => (self.sent(), self.plan.total(self.role)),
                _ => (self.received(), self.plan.total(self.peer())),
            };
            if at >= goal {
                return Stop::Complete;
            }
            let stop = match streams {
                Streams::Outgoing => self.send_some(goal),
                _ => self.receive_some(goal),
            };
            match stop {
                Some(Stop::Mark) => {}
                Some(stop) => return stop,
                None => return Stop::Ended(Ending::Failed, libc::EAGAIN),
            }
        }
    }

    /// Moves what can be moved now; the descriptor must not block.
    pub fn step(&mut self, mark: u64, streams: Streams) -> Stop {
        loop {
            if self.end.progress() >= mark {
                return Stop::Mark;
            }
            let (out, due) = (self.plan.total(self.role), self.plan.total(self.peer()));
            let outgoing = streams != Streams::Incoming && self.sent() < out;
            let incoming = streams != Streams::Outgoing && self.received() < due;
            if !outgoing && !incoming {
                return Stop::Complete;
            }
            let moved = [
                if outgoing { self.send_some(out) } else { None },
                if incoming { self.receive_some(due) } else { None },
            ];
            for stop in moved.into_iter().flatten() {
                if let Stop::Ended(..) = stop {
                    return stop;
                }
            }
            if moved == [None, None] {
                return Stop::Blocked;
            }
        }
    }

    fn run_waiting(&mut self, mode: Mode, mark: u64, streams: Streams) -> Stop {
        sys::set_nonblocking(self.fd, true);
        let waiter = Waiter::new(mode, self.fd);
        let deadline = Instant::now() + PATIENCE;
        let stop = loop {
            let stop = self.step(mark, streams);
            if stop != Stop::Blocked {
                break stop;
            }
            let out = streams != Streams::Incoming && self.sent() < self.plan.total(self.role);
            let input = streams != Streams::Outgoing && self.received() < self.plan.total(self.peer());
            let since = Instant::now();
            waiter.wait(self.fd, input, out);
            self.end.waited(since);
            if Instant::now() > deadline {
                break Stop::Ended(Ending::Failed, libc::ETIMEDOUT);
            }
        };
        waiter.close();
        stop
    }

    /// Ends a connection whose streams are complete: one end closes, the other sees it.
    pub fn finish(&mut self) -> (Ending, i32) {
        if self.plan.closer == self.role {
            if !self.plan.half_close {
                sys::close(self.fd);
                return (Ending::Done, 0);
            }
            sys::shutdown(self.fd, libc::SHUT_WR);
        }
        sys::set_nonblocking(self.fd, false);
        let since = Instant::now();
        let ret = sys::recv(self.fd, &mut self.buffer[..1], 0);
        self.end.waited(since);
        sys::close(self.fd);
        match ret.value {
            0 => (Ending::Done, 0),
            1.. => (Ending::Surplus, 0),
            _ if ret.is(libc::ECONNRESET) => (Ending::Reset, ret.errno),
            _ => (Ending::Failed, ret.errno),
        }
    }
}

/// A way of waiting for one descriptor.
struct Waiter {
    mode: Mode,
    set: i32,
}

impl Waiter {
    fn new(mode: Mode, fd: i32) -> Self {
        let set = match mode {
            Mode::Edge => {
                let set = sys::epoll_create1(libc::EPOLL_CLOEXEC).value as i32;
                let events = libc::EPOLLIN | libc::EPOLLOUT | libc::EPOLLRDHUP | libc::EPOLLET;
                sys::epoll_ctl(set, libc::EPOLL_CTL_ADD, fd, events as u32, 0);
                set
            }
            Mode::Level => {
                let set = sys::epoll_create1(libc::EPOLL_CLOEXEC).value as i32;
                sys::epoll_ctl(set, libc::EPOLL_CTL_ADD, fd, 0, 0);
                set
            }
            _ => -1,
        };
        Self { mode, set }
    }

    fn wait(&self, fd: i32, input: bool, out: bool) {
        let limit = PATIENCE.as_millis() as i32;
        match self.mode {
            Mode::Edge => {
                sys::epoll_wait(EpollCall::Wait, self.set, 4, limit, None);
            }
            Mode::Level => {
                let events = if input { libc::EPOLLIN } else { 0 } | if out { libc::EPOLLOUT } else { 0 };
                sys::epoll_ctl(self.set, libc::EPOLL_CTL_MOD, fd, events as u32, 0);
                sys::epoll_wait(EpollCall::Wait, self.set, 4, limit, None);
            }
            Mode::Select => {
                let of = |wanted: bool| FdSet::of(if wanted { std::slice::from_ref(&fd) } else { &[] });
                let mut sets = Sets { read: of(input), write: of(out), except: of(false) };
                sys::select(fd + 1, &mut sets, i64::from(limit));
            }
            Mode::Poll | Mode::Blocking => {
                let events = if input { libc::POLLIN } else { 0 } | if out { libc::POLLOUT } else { 0 };
                sys::poll(&mut [libc::pollfd { fd, events, revents: 0 }], limit);
            }
        }
    }

    fn close(&self) {
        if self.set >= 0 {
            sys::close(self.set);
        }
    }
}
