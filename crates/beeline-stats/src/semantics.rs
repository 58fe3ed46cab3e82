//! What becomes of each libc function, flag, request and option: the table behind `docs/semantics.md`.
//!
//! 1. [`CALLS`] holds every name that `libbeeline.so` exports, and no other; [`OPTIONS`] every option that the library
//!    treats in a way of its own.
//! 2. A row says how it is handled on a connection that goes through shared memory, and which tests show that it
//!    behaves as on kernel TCP.
//! 3. Tests hold the table, the exports, the library's own table of options, the names of the cases in
//!    `tests/semantics` and the document against one another. A row that lacks a test cannot be written.
//!
//! A test is named `group/case` or `group/` for a whole group of `tests/semantics`, or `guest:case` for a case of
//! `crates/beeline-preload/tests/library.rs`.

mod calls;
mod flags;
mod options;

pub use calls::CALLS;
pub use flags::{FLAGS, REQUESTS};
pub use options::OPTIONS;

use crate::Reason;

/// How something is handled.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Handling {
    /// Done on the connection in shared memory, as kernel TCP does it.
    Accelerated,
    /// The kernel does it, or answers it; the library only keeps what it must know.
    Passed,
    /// A socket that has it, or asks for it, before it is connected stays on kernel TCP, for this reason. Asked of a
    /// connection in shared memory, it is refused as by a kernel that was built without it.
    FallsBack(Reason),
}

/// One row.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    /// The name, and others of the same meaning.
    pub names: &'static [&'static str],
    /// How it is handled.
    pub handling: Handling,
    /// What else is to be known; may be empty.
    pub note: &'static str,
    /// The tests that show it.
    pub tests: &'static [&'static str],
}

/// One option: a row with the numbers by which programs name it.
#[derive(Clone, Copy, Debug)]
pub struct OptionRow {
    /// Level and name, as for setsockopt(2).
    pub number: (i32, i32),
    /// The row.
    pub row: Row,
}

/// A difference from kernel TCP that a program can see: the case that shows it, without its variant, and what it is.
pub const DIFFERENCES: &[(&str, &str)] = &[
    (
        "accept/of_a_silent_client_put_off",
        "TCP_DEFER_ACCEPT is kept, and does not put off a client over a lane that says nothing",
    ),
    (
        "connect/dissolve_by_af_unspec",
        "after connecting to AF_UNSPEC the first send says EPIPE, not ECONNRESET: the fd is a fresh TCP socket",
    ),
    (
        "data/buffer_ends_in_nothing",
        "a buffer that begins well and ends in a page without access raises SIGSEGV: the copy is our own",
    ),
    (
        "epoll_deleted/the_next_shot_in_the_next_program",
        "a set that is kept over execve(2) does not tell the next program of bytes that this one was told of and did not read",
    ),
    ("names/client_port_is_not_free", "the client's port is reserved among lanes, not against an explicit bind in TCP"),
    ("options/peek_offset_set_late", "SO_PEEK_OFF cannot be switched on once a connection is a lane: ENOPROTOOPT"),
    (
        "options/send_buffer_set_late",
        "SO_SNDBUF set on a connection does not limit what is on its way: a ring holds 4 MiB",
    ),
    (
        "urgent/inline_at_the_mark_by_epoll",
        "SO_OOBINLINE set where the urgent byte is the next one: a level-triggered set tells at once that it can be read",
    ),
];

const fn row(
    names: &'static [&'static str],
    handling: Handling,
    note: &'static str,
    tests: &'static [&'static str],
) -> Row {
    Row { names, handling, note, tests }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn nothing_is_listed_twice() {
        for rows in [CALLS, FLAGS, REQUESTS] {
            let mut seen = BTreeSet::new();
            for name in rows.iter().flat_map(|row| row.names) {
                assert!(seen.insert(name), "{name}");
            }
        }
        let mut seen = BTreeSet::new();
        for option in OPTIONS {
            assert!(seen.insert(option.number), "{:?}", option.row.names);
        }
    }

    #[test]
    fn every_row_names_a_test() {
        let all = [CALLS, FLAGS, REQUESTS].into_iter().flatten().chain(OPTIONS.iter().map(|option| &option.row));
        for row in all {
            assert!(!row.names.is_empty() && !row.tests.is_empty(), "{row:?}");
            for test in row.tests {
                assert!(test.contains('/') || test.starts_with("guest:"), "{test}");
            }
        }
    }
}
