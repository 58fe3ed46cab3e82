//! One process's statistics in the form in which they are shown: totals over closed and open
//! connections, and only those reasons that have happened.

use std::collections::BTreeMap;
use std::path::PathBuf;

use beeline_stats::tunables::{OptionSpec, Reach, Value};
use beeline_stats::{Connection, Counter, Poison, Reason, Role, Snapshot};
use serde::Serialize;

use crate::cli::Selection;

/// How much of a program's name the kernel keeps.
const COMM_BYTES: usize = 15;

/// A file: device and inode.
pub type Identity = (u64, u64);

#[derive(Serialize)]
pub struct Process {
    /// Its number here, if that is known; else that in its own pid namespace.
    pub pid: u32,
    /// Its number in its own pid namespace, if that is another one and its number here is known.
    pub pid_inside: Option<u32>,
    pub uid: u32,
    /// Its name, with everything escaped that could change a terminal.
    pub program: String,
    pub start_ticks: u64,
    pub since_unix_ns: u64,
    /// It is of another pid or mount namespace, such as a container.
    pub other_pid_namespace: bool,
    /// Its network namespace, if that is another one than the command's, and known.
    pub network_namespace: Option<String>,
    /// Which file has its statistics.
    #[serde(skip)]
    pub identity: Option<Identity>,
    /// Whether it was found among the processes of here.
    #[serde(skip)]
    pub is_found: bool,
    /// It is gone; see `--ended`.
    pub ended: bool,
    /// Connections that use lanes, since the start and now.
    pub accelerated: u64,
    pub accelerated_open: u64,
    /// Connections on TCP since the start.
    pub fallen_back: u64,
    /// Why none is accelerated any more.
    pub stopped: Option<Stop>,
    pub bytes_sent: u64,
    pub bytes_received: u64,
    pub doorbells_sent: u64,
    pub doorbells_drained: u64,
    pub sleeps: u64,
    pub reasons: Vec<Cause>,
    pub poisons: Vec<Cause>,
    /// As the process counts them: bytes and doorbells of closed connections only.
    pub counters: BTreeMap<&'static str, u64>,
    /// What was set while the process ran.
    pub settings: BTreeMap<&'static str, String>,
    pub connections: Vec<OpenConnection>,
    /// All options, in the order of their table.
    #[serde(skip)]
    pub options: Vec<OptionNow>,
    /// How many rules are for its program.
    #[serde(skip)]
    pub rules: u32,
    /// Where its statistics are; empty if that is in a container.
    #[serde(skip)]
    pub file: PathBuf,
}

/// An option of a process.
pub struct OptionNow {
    pub spec: OptionSpec,
    /// What the process began with; `None` if its library does not know the option.
    pub began: Option<Value>,
    /// Whether it was told so.
    pub said: bool,
    /// What was set while it ran.
    pub set: Option<Value>,
}

impl OptionNow {
    fn all(snapshot: &Snapshot<'_>) -> Vec<Self> {
        let specs = OptionSpec::all().into_iter().enumerate();
        let option = |(index, spec)| Self {
            spec,
            began: snapshot.option(index),
            said: snapshot.was_said(index),
            set: snapshot.setting(index),
        };
        specs.map(option).collect()
    }

    pub fn value(&self) -> Option<Value> {
        self.set.or(self.began)
    }
}

/// A reason that holds for all of a process.
#[derive(Serialize)]
pub struct Stop {
    pub name: &'static str,
    pub sentence: &'static str,
}

impl Stop {
    fn of(reason: Reason) -> Self {
        Self { name: reason.name(), sentence: reason.sentence() }
    }
}

/// A reason with how often it has happened.
#[derive(Serialize)]
pub struct Cause {
    pub name: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub role: Option<&'static str>,
    pub count: u64,
    pub sentence: &'static str,
}

#[derive(Serialize)]
pub struct OpenConnection {
    pub fd: i32,
    pub role: &'static str,
    pub local: String,
    pub remote: String,
    pub peer_pid: u32,
    pub bytes_sent: u64,
    pub bytes_received: u64,
    pub doorbells_sent: u64,
    pub doorbells_drained: u64,
    pub sleeps: u64,
    pub spins_paid: u64,
    pub opened_unix_ns: u64,
    pub lane_inode: u64,
    /// What holds for it alone.
    pub own: BTreeMap<&'static str, String>,
    /// How it waits, if that is not the default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wait: Option<String>,
    /// The number of its slot in the statistics.
    #[serde(skip)]
    pub slot: usize,
    /// Who has the other end, if that is one of the processes that were found.
    pub peer: Option<Peer>,
    /// How the ends have met, as far as it can be seen: `door`, within a network namespace, or `agent`, between two.
    pub path: Option<&'static str>,
}

/// The other end of a connection.
#[derive(Clone, Debug, Serialize)]
pub struct Peer {
    pub pid: u32,
    pub program: String,
    pub network_namespace: Option<String>,
}

impl Process {
    pub fn of(snapshot: &Snapshot<'_>, uid: u32, other_pid_namespace: bool) -> Self {
        let options = OptionNow::all(snapshot);
        let connections: Vec<OpenConnection> =
            snapshot.connections().map(|connection| OpenConnection::of(connection, &options)).collect();
        // Sums saturate: the numbers are the process's own, and it may write what it likes.
        let with_open = |counter, of: fn(&OpenConnection) -> u64| {
            connections.iter().map(of).fold(snapshot.counter(counter), u64::saturating_add)
        };
        let sum = |first, second| snapshot.counter(first).saturating_add(snapshot.counter(second));
        let reasons = [Role::Client, Role::Server].into_iter().flat_map(|role| {
            Reason::ALL.iter().map(move |reason| Cause {
                name: reason.name(),
                role: Some(role_name(role)),
                count: snapshot.reason(role, *reason),
                sentence: reason.sentence(),
            })
        });
        let poisons = Poison::ALL.iter().map(|poison| Cause {
            name: poison.name(),
            role: None,
            count: snapshot.poison(*poison),
            sentence: poison.sentence(),
        });
        Self {
            pid: snapshot.pid(),
            pid_inside: None,
            uid,
            program: printable(snapshot.program()),
            start_ticks: snapshot.start_ticks(),
            since_unix_ns: snapshot.created_unix_ns(),
            other_pid_namespace,
            network_namespace: None,
            identity: None,
            is_found: false,
            ended: false,
            accelerated: sum(Counter::ConnectionsAcceleratedClient, Counter::ConnectionsAcceleratedServer),
            accelerated_open: connections.len() as u64,
            stopped: snapshot.stopped().map(Stop::of),
            fallen_back: sum(Counter::ConnectionsFallenBackClient, Counter::ConnectionsFallenBackServer),
            bytes_sent: with_open(Counter::BytesSent, |open| open.bytes_sent),
            bytes_received: with_open(Counter::BytesReceived, |open| open.bytes_received),
            doorbells_sent: with_open(Counter::DoorbellsSent, |open| open.doorbells_sent),
            doorbells_drained: with_open(Counter::DoorbellsDrained, |open| open.doorbells_drained),
            sleeps: snapshot.counter(Counter::Sleeps),
            reasons: happened(reasons),
            poisons: happened(poisons),
            counters: Counter::ALL.iter().map(|counter| (counter.name(), snapshot.counter(*counter))).collect(),
            settings: options.iter().filter_map(|option| Some((option.spec.key, option.set?.to_string()))).collect(),
            connections,
            options,
            rules: snapshot.rules(),
            file: PathBuf::new(),
        }
    }
}

impl Process {
    /// What it is called here is known.
    pub fn is_called(&mut self, pid: u32) {
        self.pid_inside = (self.pid != pid).then_some(self.pid);
        self.pid = pid;
        self.is_found = true;
    }

    /// Whether its number is one of here, and it lives.
    pub fn is_known_here(&self) -> bool {
        (self.is_found || !self.other_pid_namespace) && !self.ended
    }

    /// It, as the other end of a connection.
    pub fn as_peer(&self) -> Peer {
        Peer { pid: self.pid, program: self.program.clone(), network_namespace: self.network_namespace.clone() }
    }

    /// The same process as it was before.
    pub fn among<'a>(&self, before: &'a [Process]) -> Option<&'a Process> {
        before.iter().find(|then| (then.uid, then.pid, then.start_ticks) == (self.uid, self.pid, self.start_ticks))
    }
}

impl OpenConnection {
    /// The same connection as it was before.
    pub fn among<'a>(&self, before: &'a [OpenConnection]) -> Option<&'a OpenConnection> {
        before.iter().find(|then| {
            (then.fd, then.opened_unix_ns, &then.local, &then.remote)
                == (self.fd, self.opened_unix_ns, &self.local, &self.remote)
        })
    }
}

impl Selection {
    /// Whether a process is asked for.
    pub fn has(&self, process: &Process) -> bool {
        match self {
            Selection::All => true,
            Selection::Pid(pid) => process.pid == *pid,
            Selection::Program(_) => self.names(&process.program),
        }
    }

    /// Whether a program with this name is asked for, or any.
    pub fn names(&self, program: &str) -> bool {
        match self {
            Selection::All | Selection::Pid(_) => true,
            // The kernel keeps the beginning of a long name.
            Selection::Program(name) => program == name || program.len() == COMM_BYTES && name.starts_with(program),
        }
    }
}

/// The options that may be said for one connection, each with its place among them.
pub fn connection_options() -> impl Iterator<Item = (usize, &'static str)> {
    let specs = OptionSpec::all().into_iter().filter(|spec| spec.reach == Reach::Connection);
    specs.enumerate().map(|(place, spec)| (place, spec.key))
}

/// A program's name with everything escaped that could change a terminal.
pub fn printable(name: &[u8]) -> String {
    String::from_utf8_lossy(name).chars().flat_map(char::escape_debug).collect()
}

/// Those that have happened, the most frequent first.
fn happened(causes: impl Iterator<Item = Cause>) -> Vec<Cause> {
    let mut causes: Vec<Cause> = causes.filter(|cause| cause.count > 0).collect();
    causes.sort_by_key(|cause| std::cmp::Reverse(cause.count));
    causes
}

fn role_name(role: Role) -> &'static str {
    match role {
        Role::Client => "client",
        Role::Server => "server",
    }
}

impl OpenConnection {
    fn of(connection: Connection, options: &[OptionNow]) -> Self {
        let own = connection_options().filter_map(|(place, key)| Some((key, connection.own(place)?.to_string())));
        let own: BTreeMap<&'static str, String> = own.collect();
        let wait = own.get("wait").cloned().or_else(|| {
            let wait = options.iter().find(|option| option.spec.key == "wait")?;
            wait.value().filter(|value| *value != wait.spec.default).map(|value| value.to_string())
        });
        Self {
            fd: connection.fd,
            role: role_name(connection.role),
            local: connection.local.to_string(),
            remote: connection.remote.to_string(),
            peer_pid: connection.peer_pid,
            bytes_sent: connection.tx_bytes,
            bytes_received: connection.rx_bytes,
            doorbells_sent: connection.tx_bells,
            doorbells_drained: connection.rx_bells,
            sleeps: connection.sleeps,
            spins_paid: connection.spins_paid,
            opened_unix_ns: connection.opened_unix_ns,
            lane_inode: connection.lane_inode,
            own,
            wait,
            slot: connection.slot,
            peer: None,
            path: None,
        }
    }
}
