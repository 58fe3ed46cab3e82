//! One end of a connection with what happens to it.

use super::board::{Board, End, Ending};
use super::plan::{Kind, Plan, Role, Round};
use super::process::{self, execute, execute_self, fork, leave, pass, signal_after, take, wait_for};
use super::pump::{Pump, Stop, Streams};
use anyhow::{Context, Result};
use beeline_testkit::sys;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// What every process of a round knows.
pub struct World {
    pub board: &'static Board,
    pub path: PathBuf,
    pub round: Round,
    pub argument: String,
}

impl World {
    /// From the words that a process was started with: the board's file and the round.
    ///
    /// # Errors
    /// When they make no sense.
    pub fn new(path: &str, argument: &str) -> Result<Self> {
        let round = Round::parse(argument).context("the round")?;
        Ok(Self { board: Board::open(Path::new(path))?, path: path.into(), round, argument: argument.to_owned() })
    }

    fn end(&self, plan: &Plan, role: Role) -> &'static End {
        let record = self.board.record(plan.id);
        match role {
            Role::Client => &record.client,
            Role::Server => &record.server,
        }
    }

    /// How a program of ours is told to go on with an end, or to take it from a socket first.
    fn program(&self, what: &str, plan: &Plan, role: Role, fd: i32) -> String {
        let role = if role == Role::Client { "client" } else { "server" };
        format!("{what}:{}:{}:{}:{role}:{fd}", self.path.display(), self.argument, plan.id)
    }
}

/// A process that stands ready to take a connection.
pub struct Heir {
    pid: i32,
    socket: i32,
}

impl Heir {
    /// Starts the heir that `plan` wants for this end, if it wants one. It does not keep `connection`.
    #[must_use]
    pub fn start(world: &World, plan: &Plan, role: Role, connection: Option<i32>) -> Option<Self> {
        if plan.kind != Kind::Hand || plan.side != role {
            return None;
        }
        let (_, [mine, its]) = sys::socketpair(libc::SOCK_STREAM);
        let pid = fork(|| {
            sys::close(mine);
            if let Some(fd) = connection {
                sys::close(fd);
            }
            match plan.variant % 5 {
                1 => execute_self(&world.program("fault_heir", plan, role, its), true),
                2 => execute_self(&world.program("fault_heir", plan, role, its), false),
                // It ends with what was passed to it still in its socket.
                4 => {
                    sys::poll(&mut [libc::pollfd { fd: its, events: libc::POLLIN, revents: 0 }], 5000);
                    leave();
                }
                _ => {}
            }
            inherit(world, plan, role, its);
        });
        sys::close(its);
        Some(Self { pid, socket: mine })
    }

    /// Gives the connection away.
    fn give(self, plan: &Plan, fd: i32) {
        pass(self.socket, fd);
        if plan.variant % 5 == 3 {
            sys::kill(sys::process_id(), libc::SIGKILL);
        }
        sys::close(fd);
        sys::close(self.socket);
        wait_for(self.pid);
    }

    /// The connection ended before it could be given away.
    fn dismiss(self) {
        sys::close(self.socket);
        wait_for(self.pid);
    }
}

/// An heir's life.
fn inherit(world: &World, plan: &Plan, role: Role, socket: i32) {
    if let Some(fd) = take(socket) {
        sys::close(socket);
        go_on(world, plan, role, fd);
    }
}

/// Moves what is left, and ends the connection.
fn go_on(world: &World, plan: &Plan, role: Role, fd: i32) {
    let mut pump = Pump::new(plan, role, world.end(plan, role), fd);
    let stop = pump.run(u64::MAX, Streams::Both);
    conclude(&mut pump, stop);
}

fn conclude(pump: &mut Pump, stop: Stop) {
    let (ending, errno) = match stop {
        Stop::Complete => pump.finish(),
        Stop::Ended(ending, errno) => {
            sys::close(pump.fd);
            (ending, errno)
        }
        Stop::Mark | Stop::Blocked => (Ending::Failed, 0),
    };
    pump.end.end(ending, errno);
}

/// Arms the faults that come from outside, whatever the process does.
pub fn arm(plan: &Plan, role: Role) {
    if plan.side != role {
        return;
    }
    match plan.kind {
        Kind::Kill => drop(signal_after(libc::SIGKILL, plan.fault_after)),
        Kind::Stop => drop(signal_after(libc::SIGSTOP, plan.fault_after)),
        _ => {}
    }
}

/// An end of a connection, with the fault that is planned for it, to its end.
pub fn run(world: &World, plan: &Plan, role: Role, fd: i32, heir: Option<Heir>) {
    let mut pump = Pump::new(plan, role, world.end(plan, role), fd);
    let planned = plan.side == role && matches!(plan.kind, Kind::Fork | Kind::Exec | Kind::Hand);
    let stop = pump.run(if planned { plan.fault_at } else { u64::MAX }, Streams::Both);
    if stop != Stop::Mark {
        conclude(&mut pump, stop);
        if let Some(heir) = heir {
            heir.dismiss();
        }
        return;
    }
    match (plan.kind, heir) {
        (Kind::Hand, Some(heir)) => heir.give(plan, fd),
        (Kind::Exec, _) => exec(world, &mut pump),
        _ => share(world, &mut pump),
    }
}

fn exec(world: &World, pump: &mut Pump) {
    let program = world.program("fault_end", pump.plan, pump.role, pump.fd);
    match pump.plan.variant % 4 {
        0 => execute_self(&program, true),
        1 => execute_self(&program, false),
        2 => {
            pump.end.end(Ending::Left, 0);
            execute("/bin/true", &["true"], true);
        }
        _ => execute("/nonexistent", &["nothing"], true),
    }
    go_on(world, pump.plan, pump.role, pump.fd);
}

/// Two processes hold the connection; who moves the bytes differs.
fn share(world: &World, pump: &mut Pump) {
    let (plan, role, fd) = (pump.plan, pump.role, pump.fd);
    match plan.variant % 6 {
        // The child goes on, and the parent holds a descriptor meanwhile, or does not.
        held @ 0..=1 => {
            let child = fork(|| go_on(world, plan, role, fd));
            if held == 1 {
                sys::close(fd);
            }
            wait_for(child);
            sys::close(fd);
        }
        // They take turns.
        2 => {
            let total = plan.total(Role::Client) + plan.total(Role::Server);
            let mark = u64::midpoint(plan.fault_at, total);
            let child = fork(|| {
                let stop = pump.run(mark, Streams::Both);
                if let Stop::Ended(ending, errno) = stop {
                    pump.end.end(ending, errno);
                }
            });
            wait_for(child);
            if pump.end.ending() == Ending::None {
                go_on(world, plan, role, fd);
            }
        }
        // One sends and the other receives.
        3 => {
            let child = fork(|| {
                if let Stop::Ended(ending, errno) = pump.run(u64::MAX, Streams::Incoming) {
                    pump.end.end(ending, errno);
                }
            });
            let stop = pump.run(u64::MAX, Streams::Outgoing);
            wait_for(child);
            if pump.end.ending() == Ending::None {
                conclude(pump, stop);
            }
        }
        // The child looks at the connection again and again, until it is killed or stopped at it.
        variant => {
            let signal = if variant == 4 { libc::SIGKILL } else { libc::SIGSTOP };
            let child = fork(|| look(fd, signal, plan.fault_after));
            // Who is stopped at the very instruction that matters may hold others up, but not for ever.
            let waker = fork(|| {
                sys::close(fd);
                std::thread::sleep(plan.fault_after + plan.stop);
                sys::kill(child, libc::SIGCONT);
            });
            let stop = pump.run(u64::MAX, Streams::Both);
            sys::kill(child, libc::SIGKILL);
            wait_for(child);
            sys::kill(waker, libc::SIGKILL);
            wait_for(waker);
            conclude(pump, stop);
        }
    }
}

/// Polls and peeks until `signal` ends that.
fn look(fd: i32, signal: i32, after: Duration) {
    let _armed = signal_after(signal, after);
    let until = Instant::now() + Duration::from_secs(10);
    let mut buffer = [0; 64];
    while Instant::now() < until {
        sys::poll(&mut [libc::pollfd { fd, events: libc::POLLIN | libc::POLLOUT, revents: 0 }], 1);
        sys::recv(fd, &mut buffer, libc::MSG_PEEK | libc::MSG_DONTWAIT);
    }
}

/// The programs that go on with an end: `fault_end` with a connection, `fault_heir` with a socket that it comes by.
///
/// # Errors
/// When the words make no sense.
pub fn resume(kind: &str, words: &str) -> Result<()> {
    let words: Vec<&str> = words.split(':').collect();
    let [path, argument, id, role, fd] = words[..] else { anyhow::bail!("an end is told with five words") };
    let world = World::new(path, argument)?;
    let plan = Plan::of(&world.round, id.parse()?);
    let role = if role == "client" { Role::Client } else { Role::Server };
    let fd = fd.parse()?;
    match kind {
        "fault_heir" => inherit(&world, &plan, role, fd),
        _ => go_on(&world, &plan, role, fd),
    }
    process::leave()
}
