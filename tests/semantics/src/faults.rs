//! `semantics faults`: very many connections, each with a fault, on kernel TCP or on Beeline.
//!
//! 1. A round is a server of some style ([`plan::Style`]) and some hundred clients, one after the other, eight at a
//!    time. What becomes of each connection is a pure function of the seed, the round and its number ([`plan::Plan`]):
//!    how much is said in turns, how each end waits, which end closes first, and the fault: its kind, its end, its
//!    place or time.
//! 2. Both streams of a connection depend on the position, and each byte that comes is compared ([`pump`]). What each
//!    end sent and received, and how it ended, stands on a board that all processes of the round map ([`board`]).
//! 3. An end whose process is killed, or leaves the connection, lets the other see an early end; whatever had been sent
//!    before arrives unless the connection was reset. Everything else must be complete at both ends ([`judge`]).
//! 4. No wait takes longer than two seconds: what is stopped is continued after a quarter of a second at most.
//! 5. Everything happens in namespaces of its own ([`lab`]). At the end there are no processes left in them, and no
//!    files in `/dev/shm`; a server of one process has as many descriptors and mappings as before its clients came.
//!
//! The same on kernel TCP (`--tcp`) is the oracle: there, nothing at all may be found.

mod board;
mod client;
mod ends;
mod judge;
mod junk;
mod lab;
mod plan;
mod process;
mod pump;
mod server;

pub use lab::run as run_inside;
pub use plan::Kind;

use anyhow::Result;

/// What is asked for.
#[derive(Debug, Clone, clap::Args)]
pub struct Faults {
    /// How many connections
    #[arg(long, default_value_t = 100_000)]
    pub connections: usize,

    /// The seed [default: from the clock]
    #[arg(long)]
    pub seed: Option<u64>,

    /// The kinds of faults [default: all]
    #[arg(long, value_enum, value_delimiter = ',')]
    pub kinds: Vec<Kind>,

    /// Kernel TCP: the oracle
    #[arg(long)]
    pub tcp: bool,

    /// One round alone, as it is named in a complaint
    #[arg(long)]
    pub round: Option<u64>,

    /// Where this program finds itself in namespaces of its own (used by the program)
    #[arg(long, hide = true)]
    pub inside: bool,
}

/// Runs one of the programs of a round; false when `kind` is none.
///
/// # Errors
/// When it does not understand its words.
pub fn run_program(kind: &str, words: &str) -> Result<bool> {
    match kind {
        "fault_server" => server::run(words)?,
        "fault_client" => client::run(words)?,
        "fault_end" | "fault_heir" => ends::resume(kind, words)?,
        "fault_junk" => junk::run(words)?,
        "fault_visit" => lab::visit_oneself()?,
        _ => return Ok(false),
    }
    Ok(true)
}
