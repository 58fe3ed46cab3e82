//! What a worker is told on its command line: which end of which program it is.

use std::ffi::OsString;
use std::net::IpAddr;
use std::time::Duration;

use clap::{Args, ValueEnum};

use crate::socket::LOOPBACK;
use crate::transport::Transport;

#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    Server,
    Client,
}

/// The programs a worker can be. Each has a server and a client half.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum Program {
    /// One message back and forth, blocking calls
    Pingpong,
    /// The same with `epoll_wait` before every `recv`, non-blocking sockets
    PingpongEpoll,
    /// The client sends as fast as it can, the server receives
    Stream,
    /// Both ends do both at once, from one thread
    Duplex,
    /// Connect, one byte each way, close; with messages of no bytes, connect and close
    Connect,
    /// Many connections in one epoll loop, a request outstanding on each
    Crowd,
    /// One busy connection, first alone, then among many idle ones
    Busy,
    /// Connections that say nothing
    Idle,
    /// The client sends until it has answered all --questions, and both ends say where they were at each
    Turned,
    /// Copies memory until it is told to end; talks to nobody
    Load,
}

#[derive(Args, Clone, Debug, PartialEq, Eq)]
pub struct WorkerArgs {
    #[arg(long)]
    pub role: Role,
    #[arg(long)]
    pub program: Program,
    /// `tcp` or `unix`: the address family that the program itself uses
    #[arg(long)]
    pub transport: Transport,
    /// Where the server listens; only for clients
    #[arg(long)]
    pub address: Option<String>,
    /// The address of this host that a TCP server listens on
    #[arg(long, default_value_t = LOOPBACK)]
    pub listen: IpAddr,
    #[arg(long)]
    pub cpu: Option<usize>,
    /// The CPU on which a client connects, before it moves to --cpu
    #[arg(long)]
    pub begin_cpu: Option<usize>,
    /// The NUMA node whose memory is copied
    #[arg(long)]
    pub memory_node: Option<u32>,
    #[arg(long, default_value_t = 8)]
    pub message_bytes: usize,
    #[arg(long, default_value_t = 1)]
    pub connections: usize,
    /// Streams at once, each on a connection and in a thread of its own
    #[arg(long, default_value_t = 1)]
    pub streams: usize,
    /// SO_SNDBUF and SO_RCVBUF of both ends, set before the connection is made
    #[arg(long)]
    pub buffer_bytes: Option<usize>,
    #[arg(long, default_value_t = 100)]
    pub duration_ms: u64,
    /// Instead of a duration: exactly so many messages (to count system calls)
    #[arg(long)]
    pub messages: Option<u64>,
    /// Wait for a line on standard input before the measured part
    #[arg(long)]
    pub start_together: bool,
    /// With the program `turned`: how often each end is asked where it is
    #[arg(long, default_value_t = 0)]
    pub questions: usize,
    /// Time each round trip on its own
    #[arg(long)]
    pub histogram: bool,
    /// With --histogram: say with the result how often each time came, so that those of several programs can be put
    /// together
    #[arg(long)]
    pub counts: bool,
    /// With --histogram: so many round trips a second, instead of as many as there can be
    #[arg(long)]
    pub pace: Option<u32>,
    /// Say with the result what the library's statistics say: the conductor cannot read them on another host
    #[arg(long)]
    pub tell_carried: bool,
}

impl WorkerArgs {
    pub fn new(program: Program) -> Self {
        WorkerArgs {
            role: Role::Server,
            program,
            transport: Transport::Tcp,
            address: None,
            listen: LOOPBACK,
            cpu: None,
            begin_cpu: None,
            memory_node: None,
            message_bytes: 8,
            connections: 1,
            streams: 1,
            buffer_bytes: None,
            duration_ms: 100,
            messages: None,
            start_together: false,
            questions: 0,
            histogram: false,
            counts: false,
            pace: None,
            tell_carried: false,
        }
    }

    pub fn duration(&self) -> Duration {
        Duration::from_millis(self.duration_ms)
    }

    /// The arguments that parse back into `self`.
    pub fn to_args(&self) -> Vec<OsString> {
        let mut args: Vec<OsString> = vec!["worker".into()];
        let mut flag = |name: &str, value: String| {
            args.push(name.into());
            args.push(value.into());
        };
        flag("--role", value_name(self.role));
        flag("--program", value_name(self.program));
        flag("--transport", value_name(self.transport));
        flag("--message-bytes", self.message_bytes.to_string());
        flag("--connections", self.connections.to_string());
        flag("--streams", self.streams.to_string());
        if let Some(bytes) = self.buffer_bytes {
            flag("--buffer-bytes", bytes.to_string());
        }
        flag("--listen", self.listen.to_string());
        flag("--duration-ms", self.duration_ms.to_string());
        if let Some(address) = &self.address {
            flag("--address", address.clone());
        }
        if let Some(cpu) = self.cpu {
            flag("--cpu", cpu.to_string());
        }
        if let Some(cpu) = self.begin_cpu {
            flag("--begin-cpu", cpu.to_string());
        }
        if let Some(node) = self.memory_node {
            flag("--memory-node", node.to_string());
        }
        if let Some(messages) = self.messages {
            flag("--messages", messages.to_string());
        }
        if let Some(pace) = self.pace {
            flag("--pace", pace.to_string());
        }
        if self.questions != 0 {
            flag("--questions", self.questions.to_string());
        }
        if self.start_together {
            args.push("--start-together".into());
        }
        if self.histogram {
            args.push("--histogram".into());
        }
        if self.counts {
            args.push("--counts".into());
        }
        if self.tell_carried {
            args.push("--tell-carried".into());
        }
        args
    }
}

fn value_name(value: impl ValueEnum) -> String {
    value.to_possible_value().map(|v| v.get_name().to_owned()).unwrap_or_default()
}
