//! Hostile and unlucky peers: a server under the library meets what no correct client sends.
//!
//! These cases have no counterpart on kernel TCP, so nothing is compared. Each states what must hold: the server goes
//! on serving honest clients over lanes, it drops the offender, counts why, and neither blocks nor leaks. The offender
//! ([`beeline_testkit::hostile`]) runs without the library, in the process of the case; the server is a child with it.
//!
//! Every case runs against two servers: one that sleeps in `accept` and gives each connection a thread, and one that
//! waits for everything in one `epoll` set. Some cases start others of their own.

mod crashes;
mod doors;
mod hellos;
mod lanes;
mod limits;
mod servers;

use crate::child::{self, PAIR_LIBRARY_VARIABLE};
use anyhow::{Context, Result, bail, ensure};
use beeline_testkit::statistics::Carried;
use beeline_testkit::watch::{Ending, Group};
use beeline_testkit::{hostile, preload};
use std::io::{BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// How long anything may take that should happen at once.
pub const PATIENCE: Duration = Duration::from_secs(10);

/// One case.
pub struct Case {
    pub name: &'static str,
    pub body: fn(&mut Target) -> Result<()>,
}

const GROUPS: &[&[Case]] = &[hellos::CASES, doors::CASES, lanes::CASES, crashes::CASES, limits::CASES];

/// The servers under attack.
pub const SERVERS: [&str; 2] = ["blocking", "epoll"];

/// `hostile/NAME@SERVER` for every case.
#[must_use]
pub fn names() -> Vec<String> {
    let cases = GROUPS.iter().flat_map(|group| group.iter());
    cases.flat_map(|case| SERVERS.map(|server| format!("hostile/{}@{server}", case.name))).collect()
}

/// Runs one case; an error says what did not hold.
///
/// # Errors
/// What did not hold.
pub fn run(name: &str) -> Result<()> {
    let (case, server) = name.trim_start_matches("hostile/").split_once('@').context("a name without a server")?;
    let case = GROUPS.iter().flat_map(|group| group.iter()).find(|known| known.name == case).context("no such case")?;
    let library = std::env::var_os(PAIR_LIBRARY_VARIABLE).map(PathBuf::from).context("no library")?;
    let mut target = Target::start(server, &library)?;
    target.expect_honest_service("before")?;
    (case.body)(&mut target)?;
    target.expect_honest_service("after")
}

/// A server under attack.
pub struct Target {
    pub library: PathBuf,
    pub process: Group,
    pub address: SocketAddr,
    /// `SO_COOKIE` of its listener: the name of its door.
    pub cookie: u64,
    next_port: u16,
}

impl Target {
    /// Starts a server with the library.
    ///
    /// # Errors
    /// When it does not start or does not say where it listens.
    pub fn start(kind: &str, library: &Path) -> Result<Self> {
        // What is lost shows soon beside what is kept for the next client.
        Self::start_with(kind, library, "pool_lanes_max=8")
    }

    /// The same with other options.
    ///
    /// # Errors
    /// As [`Target::start`].
    pub fn start_with(kind: &str, library: &Path, options: &str) -> Result<Self> {
        let mut command = child::program(&format!("serve:{kind}"));
        preload::apply(&mut command, Some(library));
        preload::options(&mut command, options);
        Self::from_command(&mut command, library)
    }

    fn from_command(command: &mut Command, library: &Path) -> Result<Self> {
        let mut process = Group::start(command.stdout(Stdio::piped()))?;
        let (_, out, _) = process.pipes();
        let mut line = String::new();
        BufReader::new(out.context("the server's output")?).read_line(&mut line)?;
        let mut words = line.split_whitespace();
        let address = words.next().context("no address")?.parse()?;
        let cookie = words.next().context("no cookie")?.parse()?;
        Ok(Self { library: library.to_owned(), process, address, cookie, next_port: 20_000 })
    }

    /// A client address that no other client of this case has taken.
    pub fn claim(&mut self) -> SocketAddr {
        self.next_port += 1;
        SocketAddr::new(self.address.ip(), self.next_port)
    }

    /// A raw client that has connected and reserved its address as a correct one does.
    ///
    /// # Errors
    /// When the door does not take it.
    pub fn client(&mut self) -> Result<hostile::Client> {
        let claim = self.claim();
        hostile::Client::claiming(self.cookie, claim, self.address).context("the door")
    }

    /// Starts a client program with the library.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn client_program(&self, kind: &str) -> Result<Group> {
        let mut command = child::program(&format!("{kind}:{}", self.address));
        preload::apply(&mut command, Some(&self.library));
        Ok(Group::start(&mut command)?)
    }

    /// An honest client under the library is served over a lane, and one without the library over TCP, both soon.
    ///
    /// # Errors
    /// When they are not.
    pub fn expect_honest_service(&mut self, when: &str) -> Result<()> {
        /// On a machine that stands still for a tenth of a second, a client goes by TCP, and the next one does not.
        const VISITS: usize = 3;
        let before = self.carried()?.accelerated;
        for _ in 0..VISITS {
            let ending = self.client_program("honest")?.finish(PATIENCE)?;
            ensure!(ending == Ending::Exit(0), "{when}: an honest client with the library ended with {ending:?}");
            if self.carried()?.accelerated > before {
                break;
            }
        }
        self.expect_within("the lane is counted", |target| Ok(target.carried()?.accelerated > before))?;
        servers::ask(self.address, PATIENCE).with_context(|| format!("{when}: an honest client over TCP"))
    }

    /// CPU time that the server has used.
    ///
    /// # Errors
    /// When it is gone.
    pub fn cpu_time(&self) -> Result<Duration> {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.process.id()))?;
        // From the state on, proc_pid_stat(5): utime and stime are the twelfth and thirteenth.
        let fields = stat.rsplit(") ").next().unwrap_or_default().split(' ');
        let ticks: u64 = fields.skip(11).take(2).filter_map(|ticks| ticks.parse::<u64>().ok()).sum();
        // SAFETY: no preconditions.
        let ticks_per_second = u64::try_from(unsafe { libc::sysconf(libc::_SC_CLK_TCK) })?;
        Ok(Duration::from_millis(ticks * 1000 / ticks_per_second.max(1)))
    }

    /// What the server's library counted.
    ///
    /// # Errors
    /// When there are no statistics: the library is not loaded, or the server is gone.
    pub fn carried(&self) -> Result<Carried> {
        Carried::of(self.process.id()).context("the server has no statistics")
    }

    /// Waits until the server has counted this offence at least `count` times.
    ///
    /// # Errors
    /// When it does not within [`PATIENCE`].
    pub fn expect_poison(&self, name: &str, count: u64) -> Result<()> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let carried = self.carried()?;
            if carried.poisoned.get(name).is_some_and(|counted| *counted >= count) {
                return Ok(());
            }
            if Instant::now() > deadline {
                bail!("expected {count} times {name}, counted: {carried}");
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Repeats `look` until it holds.
    ///
    /// # Errors
    /// When it does not within [`PATIENCE`].
    pub fn expect_within(&self, what: &str, look: impl Fn(&Self) -> Result<bool>) -> Result<()> {
        let deadline = Instant::now() + PATIENCE;
        while !look(self)? {
            if Instant::now() > deadline {
                bail!("not within {PATIENCE:?}: {what}");
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }

    /// Pokes a server that looks at its door only when somebody comes: an honest visit makes it look.
    ///
    /// # Errors
    /// When the visit fails.
    pub fn visit(&self) -> Result<()> {
        servers::ask(self.address, PATIENCE)
    }

    /// The server's descriptors go back to `baseline` once its guests are gone.
    ///
    /// # Errors
    /// When they do not.
    pub fn expect_descriptors(&self, baseline: usize) -> Result<()> {
        self.expect_within(&format!("back to {baseline} descriptors"), |target| {
            target.visit()?;
            Ok(hostile::open_descriptors(target.process.id()) <= baseline)
        })
    }
}

/// Runs one of the programs of these cases; false when `kind` is none.
///
/// # Errors
/// What the program found wrong.
pub fn run_program(kind: &str, argument: &str) -> Result<bool> {
    match kind {
        "hostile" => run(argument)?,
        "serve" => servers::serve(argument),
        "serve_later" => servers::serve_later()?,
        "honest" => servers::honest_client(argument)?,
        "restless" => servers::restless_client(argument)?,
        "any_path" => servers::any_path_client(argument)?,
        "hundred_knocks" => servers::knocking_client(argument, 100)?,
        "thousand" => servers::crowd_client(argument, 1000, 1000)?,
        "twenty_thousand" => servers::crowd_client(argument, 20_000, 900)?,
        _ => return Ok(false),
    }
    Ok(true)
}

/// Says where a server listens.
pub fn announce(address: SocketAddr, cookie: u64) {
    let mut out = std::io::stdout();
    let _ = writeln!(out, "{address} {cookie}");
    let _ = out.flush();
}
