//! The trace of a case: what is compared between the kernel and Beeline.
//!
//! 1. A trace is text, one line a step. It holds results, errnos, masks and data (or its hash), and nothing that may
//!    differ between two correct runs: no descriptor numbers, ports, process ids or times.
//! 2. Every line belongs to an actor: `main`, or the name that a forked child or a thread gave itself. The order of
//!    lines is compared inside an actor only, because the order between actors is up to the scheduler.
//! 3. Lines go to an appending file by one raw `write` each, so that they are whole, survive a crash of the writer, and
//!    do not pass through the calls under test.
//! 4. A line of the actor [`NOTE`] is for the runner (such as how many connections should have been accelerated) and is
//!    not compared.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::fmt;
use std::fs::OpenOptions;
use std::io;
use std::os::fd::IntoRawFd;
use std::path::Path;
use std::sync::atomic::{AtomicI32, Ordering};

/// The actor whose lines are not compared.
pub const NOTE: &str = "note";

/// Where the trace descriptor lives, out of the way of the low numbers that cases look at.
const TRACE_FD_MIN: i32 = 200;

static TRACE_FD: AtomicI32 = AtomicI32::new(-1);

thread_local! {
    static ACTOR: Cell<&'static str> = const { Cell::new("main") };
}

/// Opens the trace of this process.
///
/// # Errors
/// When the file cannot be opened for appending.
pub fn open(path: &Path) -> io::Result<()> {
    let low = OpenOptions::new().create(true).append(true).open(path)?.into_raw_fd();
    // SAFETY: F_DUPFD_CLOEXEC takes an integer; `low` is ours to duplicate and to close.
    let high = unsafe {
        let high = libc::fcntl(low, libc::F_DUPFD_CLOEXEC, TRACE_FD_MIN);
        libc::close(low);
        high
    };
    match high < 0 {
        true => Err(io::Error::last_os_error()),
        false => {
            TRACE_FD.store(high, Ordering::Relaxed);
            Ok(())
        }
    }
}

/// Names the actor of this thread (or of this forked child) for the lines that follow.
pub fn set_actor(name: &'static str) {
    ACTOR.with(|actor| actor.set(name));
}

pub fn write_line(text: fmt::Arguments<'_>) {
    append(ACTOR.with(Cell::get), &text.to_string());
}

pub fn write_note(text: fmt::Arguments<'_>) {
    append(NOTE, &text.to_string());
}

fn append(actor: &str, text: &str) {
    let line = format!("{actor}\t{}\n", text.replace('\n', " "));
    let fd = TRACE_FD.load(Ordering::Relaxed);
    // SAFETY: the pointer is valid for the length of the line.
    unsafe { libc::syscall(libc::SYS_write, fd, line.as_ptr(), line.len()) };
}

/// Adds a line to the trace.
#[macro_export]
macro_rules! trace {
    ($($argument:tt)*) => { $crate::trace::write_line(format_args!($($argument)*)) };
}

/// A trace as the runner reads it.
#[derive(Debug, Default, PartialEq, Eq, Clone)]
pub struct Trace {
    /// The lines to compare: actor by actor, in the order in which each actor wrote them.
    pub lines: Vec<String>,
    pub notes: Vec<String>,
}

impl Trace {
    #[must_use]
    pub fn parse(text: &str) -> Self {
        let mut actors: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        for line in text.lines() {
            let (actor, step) = line.split_once('\t').unwrap_or(("?", line));
            actors.entry(actor).or_default().push(step);
        }
        let notes = actors.remove(NOTE).unwrap_or_default().into_iter().map(str::to_owned).collect();
        let lines = actors
            .into_iter()
            .flat_map(|(actor, steps)| steps.into_iter().map(move |step| format!("{actor}: {step}")))
            .collect();
        Self { lines, notes }
    }

    /// The first place where two traces differ.
    #[must_use]
    pub fn first_difference(&self, other: &Self) -> Option<usize> {
        let longer = self.lines.len().max(other.lines.len());
        (0..longer).find(|at| self.lines.get(*at) != other.lines.get(*at))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn order_counts_inside_an_actor_only() {
        let one = Trace::parse("a\t1\nb\t1\na\t2\n");
        let two = Trace::parse("b\t1\na\t1\na\t2\n");
        let three = Trace::parse("b\t1\na\t2\na\t1\n");
        assert_eq!(one.first_difference(&two), None);
        assert_eq!(one.first_difference(&three), Some(0));
    }

    #[test]
    fn notes_are_not_compared() {
        assert_eq!(Trace::parse("note\tx\nmain\t1\n").lines, Trace::parse("main\t1\n").lines);
    }
}
