//! Namespaces of their own for all rounds, the rounds one after the other, and the account at the end.
//!
//! The program executes itself anew in a network, a process and a mount namespace (`unshare(1)`). There the first
//! process is only the parent of whoever has lost its own; the second one is the runner.

use super::Faults;
use super::board::Board;
use super::judge::{self, Tally};
use super::plan::{Gone, Kind, Plan, Round, Style};
use super::process;
use crate::child;
use anyhow::{Context, Result, bail, ensure};
use beeline_testkit::hostile::open_descriptors;
use beeline_testkit::preload;
use beeline_testkit::statistics::Carried;
use beeline_testkit::watch::{Ending, Group};
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, IsTerminal, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Connections in a round; a listener that goes has fewer.
const CONNECTIONS: usize = 240;
/// Rounds at the same time: most of a round's time is waiting.
const AT_ONCE: usize = 3;
const ROUND_LIMIT: Duration = Duration::from_secs(120);
/// How long what was told to end may take.
const PATIENCE: Duration = Duration::from_secs(8);
/// Half of what is kept otherwise: a leak shows sooner beside it.
const KEPT_OPTION: &str = "pool_lanes_max=16";
/// Descriptors and mappings that a library may keep for connections to come: 16 lanes, as many sides, and a few more.
const KEPT_MAX: usize = 40;
/// Processes after which nothing is left of those that were killed.
const SUCCESSORS_MAX: usize = 100;
const PROBLEMS_SHOWN: usize = 12;

/// Runs the rounds; true when nothing was found.
///
/// # Errors
/// When namespaces, directories or processes cannot be made.
pub fn run(faults: &Faults, library: Option<&Path>) -> Result<bool> {
    let seed = faults
        .seed
        .unwrap_or_else(|| SystemTime::now().duration_since(UNIX_EPOCH).map_or(1, |since| since.as_secs() % 1_000_000));
    if !faults.inside {
        return enter(faults, library, seed);
    }
    prepare_namespaces()?;
    let directory = std::env::temp_dir().join(format!("beeline-faults-{}", seed ^ u64::from(std::process::id())));
    std::fs::create_dir_all(&directory)?;
    // In the order in which every process of a round finds them.
    let wanted = |kind: &Kind| faults.kinds.is_empty() || faults.kinds.contains(kind);
    let kinds = Kind::ALL.into_iter().filter(wanted).collect();
    let lab = Lab { seed, kinds, library: library.map(Path::to_owned), directory, account: Mutex::default() };
    let good = lab.run_all(faults);
    let _ = std::fs::remove_dir_all(&lab.directory);
    good
}

/// Executes this program in namespaces, and waits for it.
fn enter(faults: &Faults, library: Option<&Path>, seed: u64) -> Result<bool> {
    let mut command = Command::new("unshare");
    command.args(["--net", "--pid", "--fork", "--mount", "--mount-proc", "--kill-child"]);
    // SAFETY: no preconditions.
    if unsafe { libc::geteuid() } != 0 {
        command.arg("--map-root-user");
    }
    command.arg(std::env::current_exe()?).args(["faults", "--inside", "--seed", &seed.to_string()]);
    command.args(["--connections", &faults.connections.to_string()]);
    if faults.tcp {
        command.arg("--tcp");
    }
    if let Some(round) = faults.round {
        command.args(["--round", &round.to_string()]);
    }
    if let Some(library) = library {
        command.arg("--library").arg(library);
    }
    if !faults.kinds.is_empty() {
        let names: Vec<String> = faults.kinds.iter().map(|kind| format!("{kind:?}").to_lowercase()).collect();
        command.args(["--kinds", &names.join(",")]);
    }
    let status = command.status().context("unshare (util-linux)")?;
    ensure!(status.code() != Some(2), "the rounds could not be run");
    Ok(status.success())
}

/// Files in `/dev/shm`, but for the one that outlives processes: what has been searched for system calls of its own.
fn left_files() -> Vec<PathBuf> {
    let mut files = Vec::new();
    list("/dev/shm".as_ref(), &mut files);
    files.retain(|file| !file.ends_with("cleared"));
    files
}

/// Loopback, an empty `/dev/shm`, and a first process that reaps.
fn prepare_namespaces() -> Result<()> {
    // SAFETY: no preconditions.
    let child = unsafe { libc::fork() };
    if child != 0 {
        loop {
            if let Some((pid, status)) = process::reap(true)
                && pid == child
            {
                std::process::exit(if libc::WIFEXITED(status) { libc::WEXITSTATUS(status) } else { 2 });
            }
        }
    }
    // SAFETY: NUL-terminated strings; the request is valid for the call.
    unsafe {
        libc::mount(
            c"none".as_ptr(),
            c"/".as_ptr(),
            std::ptr::null(),
            libc::MS_REC | libc::MS_PRIVATE,
            std::ptr::null(),
        );
        let mode = c"mode=1777".as_ptr().cast();
        if libc::mount(c"tmpfs".as_ptr(), c"/dev/shm".as_ptr(), c"tmpfs".as_ptr(), 0, mode) != 0 {
            bail!("mounting /dev/shm: {}", std::io::Error::last_os_error());
        }
        let socket = libc::socket(libc::AF_INET, libc::SOCK_DGRAM, 0);
        let mut request: libc::ifreq = std::mem::zeroed();
        (request.ifr_name[0], request.ifr_name[1]) = (b'l' as libc::c_char, b'o' as libc::c_char);
        request.ifr_ifru.ifru_flags = (libc::IFF_UP | libc::IFF_RUNNING) as libc::c_short;
        if libc::ioctl(socket, libc::SIOCSIFFLAGS, &raw const request) != 0 {
            bail!("loopback: {}", std::io::Error::last_os_error());
        }
        libc::close(socket);
    }
    Ok(())
}

#[derive(Default)]
struct Account {
    tallies: BTreeMap<Kind, Tally>,
    problems: Vec<String>,
    lanes: u64,
    silent: u64,
}

struct Lab {
    seed: u64,
    kinds: Vec<Kind>,
    library: Option<PathBuf>,
    directory: PathBuf,
    account: Mutex<Account>,
}

impl Lab {
    fn account(&self) -> std::sync::MutexGuard<'_, Account> {
        self.account.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    fn run_all(&self, faults: &Faults) -> Result<bool> {
        let way = if self.library.is_some() { "Beeline" } else { "kernel TCP" };
        println!("{} connections over {way}, seed {}", faults.connections, self.seed);
        let (next, began) = (AtomicU64::new(faults.round.unwrap_or(0)), Instant::now());
        std::thread::scope(|scope| {
            for _ in 0..AT_ONCE {
                scope.spawn(|| {
                    loop {
                        let number = next.fetch_add(1, Relaxed);
                        let done = self.connections();
                        let alone = faults.round.is_some_and(|only| number > only);
                        if alone || done >= faults.connections as u64 {
                            break;
                        }
                        if let Err(error) = self.round(number, faults.connections) {
                            self.complain(&format!("round {number}: {error:#}"));
                        }
                    }
                });
            }
            scope.spawn(|| self.tell(faults, began));
        });
        self.look_around();
        Ok(self.report(faults, began))
    }

    fn connections(&self) -> u64 {
        self.account().tallies.values().map(|tally| tally.connections).sum()
    }

    fn complain(&self, text: &str) {
        let mut account = self.account();
        account.problems.push(text.to_owned());
        if account.problems.len() <= PROBLEMS_SHOWN {
            eprintln!("{}{text}", if std::io::stderr().is_terminal() { "\r\x1b[K" } else { "" });
        }
    }

    /// Progress, with the time that is left.
    fn tell(&self, faults: &Faults, began: Instant) {
        let terminal = std::io::stderr().is_terminal();
        let mut told = Instant::now();
        loop {
            let done = self.connections();
            if done >= faults.connections as u64 || faults.round.is_some() {
                break;
            }
            std::thread::sleep(Duration::from_millis(200));
            if done == 0 || told.elapsed() < Duration::from_secs(if terminal { 1 } else { 30 }) {
                continue;
            }
            told = Instant::now();
            let left = began.elapsed().mul_f64((faults.connections as f64 - done as f64) / done as f64).as_secs();
            let problems = self.account().problems.len();
            let line = format!(
                "{done} of {} connections, {problems} problems, {}:{:02} left",
                faults.connections,
                left / 60,
                left % 60
            );
            eprint!("{}{line}{}", if terminal { "\r" } else { "" }, if terminal { "\x1b[K" } else { "\n" });
        }
        if terminal {
            eprint!("\r\x1b[K");
        }
    }

    /// One of the round's programs, in a process group of its own.
    fn program(&self, words: &str, library: bool) -> Command {
        let mut command = child::program(words);
        preload::apply(&mut command, self.library.as_deref().filter(|_| library));
        // Without the test kit's own options: paths change as in production.
        command.env("BEELINE_OPTIONS", KEPT_OPTION);
        command.stdin(Stdio::null());
        command
    }

    fn round(&self, number: u64, wanted: usize) -> Result<()> {
        let count =
            |kinds: &[Kind]| Round::of(self.seed, number, kinds, 0).kind.map_or(CONNECTIONS, |_| CONNECTIONS / 4);
        let connections = count(&self.kinds).min(wanted.max(1));
        let round = Round::of(self.seed, number, &self.kinds, connections);
        let argument = Round::argument(self.seed, number, &self.kinds, connections);
        let file = self.directory.join(number.to_string());
        let board = Board::open(&file)?;
        let told = format!("{}:{argument}", file.display());
        let mut server = Group::start(self.program(&format!("fault_server:{told}"), true).stdout(Stdio::piped()))?;
        let (_, out, _) = server.pipes();
        let mut line = String::new();
        BufReader::new(out.context("the server's output")?).read_line(&mut line)?;
        let (address, cookie) = line.trim().split_once(' ').context("the server did not start")?;
        let before = Footprint::of(server.id());
        let mut strangers = None;
        if round.kind == Some(Kind::Flood) {
            let door = if self.library.is_some() { "door" } else { "listener" };
            strangers = Some(Group::start(&mut self.program(&format!("fault_junk:{address};{cookie};{door}"), false))?);
        }
        let clients = Group::start(&mut self.program(&format!("fault_client:{told}:{address}"), true))?;
        if round.kind == Some(Kind::Gone) && round.gone == Gone::Killed {
            std::thread::sleep(round.gone_after);
            server.signal(libc::SIGKILL);
            // Its workers are the listener, too.
            server = {
                drop(server);
                Group::start(Command::new("/bin/true").stdout(Stdio::null()))?
            };
        }
        let ending = clients.finish(ROUND_LIMIT)?;
        drop(strangers);
        self.settle(board, connections);
        let leak = self.leak(&round, &server, &before);
        drop(server);
        self.close_round(number, &round, board, ending, leak);
        // SAFETY: the board is not used after this.
        unsafe { board.close() };
        std::fs::remove_file(&file)?;
        Ok(())
    }

    /// Waits until the servers' ends have seen the end of their clients.
    fn settle(&self, board: &Board, connections: usize) {
        let deadline = Instant::now() + PATIENCE;
        while Instant::now() < deadline && !(0..connections).all(|id| judge::is_settled(board.record(id))) {
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// What a server of one process has kept of connections that are no more.
    fn leak(&self, round: &Round, server: &Group, before: &Footprint) -> Option<String> {
        let lasting = matches!(round.style, Style::Threads | Style::Single) && round.kind != Some(Kind::Gone);
        if !lasting {
            return None;
        }
        if let Some(carried) = Carried::of(server.id()) {
            self.account().lanes += carried.accelerated;
        }
        let deadline = Instant::now() + PATIENCE;
        loop {
            let now = Footprint::of(server.id());
            if now.descriptors <= before.descriptors + KEPT_MAX && now.lanes <= KEPT_MAX {
                return None;
            }
            if Instant::now() > deadline {
                return Some(format!("a server has {now:?} after its clients, {before:?} before"));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn close_round(&self, number: u64, round: &Round, board: &Board, ending: Ending, leak: Option<String>) {
        let told = |problem: String| format!("round {number} ({:?}, {:?}): {problem}", round.style, round.kind);
        if ending != Ending::Exit(0) {
            self.complain(&told(format!("the clients ended with {ending:?}")));
        }
        if let Some(problem) = leak {
            self.complain(&told(problem));
        }
        let (failures, crashes) = (board.accept_failures.load(Relaxed), board.crashes.load(Relaxed));
        if failures > 0 {
            let errno = board.accept_errno.load(Relaxed);
            self.complain(&told(format!("accept failed {failures} times, at last with errno {errno}")));
        }
        if crashes > 0 {
            self.complain(&told(format!("{crashes} processes of the server crashed")));
        }
        for id in 0..round.connections {
            let plan = Plan::of(round, id);
            let mut tally = Tally::default();
            let problem = judge::judge(board, round, &plan, &mut tally);
            self.account().tallies.entry(plan.kind).or_default().add(&tally);
            if let Some(problem) = problem {
                self.complain(&told(problem));
            }
        }
        self.account().silent += u64::from(board.silent.load(Relaxed));
    }

    /// Nothing is left once every round is over.
    fn look_around(&self) {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let left = strangers();
            if left.is_empty() {
                break;
            }
            if Instant::now() > deadline {
                self.complain(&format!("{} processes are left: {}", left.len(), left.join(", ")));
                break;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        // What processes that were killed left of their statistics, those that come later take away, some files each.
        let mut files = left_files();
        for _ in 0..SUCCESSORS_MAX {
            if files.is_empty() {
                break;
            }
            if let Ok(next) = Group::start(&mut self.program("fault_visit:", true)) {
                let _ = next.finish(PATIENCE);
            }
            files = left_files();
        }
        if !files.is_empty() {
            let some: Vec<_> = files.iter().take(5).map(|file| file.display().to_string()).collect();
            self.complain(&format!("{} files are left in /dev/shm: {}", files.len(), some.join(", ")));
        }
    }

    fn report(&self, faults: &Faults, began: Instant) -> bool {
        let account = self.account();
        println!(
            "\n{:<12} {:>11} {:>9} {:>7} {:>7} {:>8} {:>9} {:>9} {:>9}",
            "fault", "connections", "complete", "early", "reset", "refused", "MB", "max wait", "problems"
        );
        let mut all = Tally::default();
        let row = |name: &str, tally: &Tally| {
            println!(
                "{name:<12} {:>11} {:>9} {:>7} {:>7} {:>8} {:>9.1} {:>6} ms {:>9}",
                tally.connections,
                tally.complete,
                tally.early,
                tally.reset,
                tally.refused,
                tally.bytes as f64 / 1e6,
                tally.wait_us_max / 1000,
                tally.problems
            );
        };
        for (kind, tally) in &account.tallies {
            row(&format!("{kind:?}").to_lowercase(), tally);
            all.add(tally);
        }
        row("all", &all);
        let took = began.elapsed().as_secs();
        println!("\n{}:{:02} minutes, {} problems; seed {}", took / 60, took % 60, account.problems.len(), self.seed);
        if self.library.is_some() {
            println!("servers of one process took {} connections over lanes", account.lanes);
        }
        let _ = std::io::stdout().flush();
        let lanes = self.library.is_none() || account.lanes > 0 || faults.connections < 5000;
        if !lanes {
            println!("no connection went over a lane");
        }
        account.problems.is_empty() && lanes
    }
}

/// Makes one connection to itself, and ends.
///
/// # Errors
/// Those of the socket calls.
pub fn visit_oneself() -> Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let client = TcpStream::connect(listener.local_addr()?)?;
    let server = listener.accept()?;
    drop((client, server));
    Ok(())
}

/// What a process holds.
#[derive(Debug)]
struct Footprint {
    descriptors: usize,
    lanes: usize,
}

impl Footprint {
    fn of(process: u32) -> Self {
        let maps = std::fs::read_to_string(format!("/proc/{process}/maps")).unwrap_or_default();
        Self {
            descriptors: open_descriptors(process),
            lanes: maps.lines().filter(|line| line.contains("memfd:")).count(),
        }
    }
}

/// Processes in this namespace beside the first one and this one.
fn strangers() -> Vec<String> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else { continue };
        if pid == 1 || pid == std::process::id() {
            continue;
        }
        let words = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let words = String::from_utf8_lossy(&words).replace('\0', " ");
        if !words.is_empty() {
            found.push(format!("{pid} {}", words.trim()));
        }
    }
    found
}

fn list(directory: &Path, files: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(directory).into_iter().flatten().flatten() {
        match entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            true => list(&entry.path(), files),
            false => files.push(entry.path()),
        }
    }
}
