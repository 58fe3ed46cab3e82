//! The kernel is the oracle.
//!
//! `semantics` holds many small socket programs, the cases ([`cases`]). The runner ([`runner`]) runs each of them
//! twice, in processes of their own: on kernel TCP, and with Beeline in front of libc. A case records what it sees as a
//! trace ([`trace`]); the two traces must be equal, line by line. So there are no expected results in this program:
//! what Linux does is right by definition, and a surprise of the kernel is a surprise in both traces.
//!
//! Peers that break the rules have no counterpart on kernel TCP; what must hold is stated in [`hostile`].
//!
//! `semantics random` compares seeded sequences of operations in the same way ([`random`]). `semantics faults` makes
//! very many connections with a fault each, on one or the other ([`faults`]).

mod across;
mod case;
mod cases;
mod child;
mod compare;
mod faults;
mod hostile;
mod options;
mod random;
mod runner;
mod sequences;
mod trace;
mod traced;
mod variant;

use clap::Parser;
use std::process::ExitCode;

fn main() -> ExitCode {
    let options = options::Options::parse();
    match runner::main(&options) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("semantics: {error:#}");
            ExitCode::from(2)
        }
    }
}
