//! What a short message costs, in instructions: a count, and so the same on every machine, as long as nothing else runs
//! beside it. That is why these tests are a program of their own.

mod common;

use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};

use beeline_testkit::preload;
use common::{guest, library};

/// Instructions that `steps` takes for `count` messages, as callgrind counts them.
fn instructions(count: u64, flags: &[&str]) -> u64 {
    let mut command = Command::new("valgrind");
    command.args(["--tool=callgrind", "--callgrind-out-file=/dev/null"]);
    command.arg(guest("steps")).arg(count.to_string()).args(flags);
    preload::apply(&mut command, Some(library()));
    // The library does not hide from valgrind, a static program, that its own are to be loaded into what it runs.
    preload::options(&mut command, "follow=off");
    let output = command.output().expect("valgrind runs");
    let report = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{report}");
    let total = report.split("Collected :").nth(1).and_then(|rest| rest.split_whitespace().next());
    total.and_then(|total| total.parse().ok()).unwrap_or_else(|| panic!("{report}"))
}

/// Instructions that one message takes, sent and received.
fn instructions_of_a_message(flags: &[&str]) -> u64 {
    const FEW: u64 = 2_000;
    const MANY: u64 = 22_000;
    (instructions(MANY, flags) - instructions(FEW, flags)) / (MANY - FEW)
}

/// Two counts at once would have the CPUs in turns.
static ALONE: Mutex<()> = Mutex::new(());

fn alone() -> MutexGuard<'static, ()> {
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whoever makes the path longer shall notice. 463, 850 and 935 were counted with the release profile, one more through
/// epoll while others have the CPUs.
#[test]
fn a_short_message_takes_few_instructions() {
    let _turn = alone();
    let factor = if library().iter().any(|part| part == "debug") { 2 } else { 1 };
    for (flags, most) in [(&[][..], 500 * factor), (&["epoll"], 855 * factor), (&["crowd"], 970 * factor)] {
        // What is looked at by the clock is looked at more often per message while others have the CPUs.
        let each = (0..20).map(|_| instructions_of_a_message(flags)).find(|each| *each <= most);
        let each = each.unwrap_or_else(|| instructions_of_a_message(flags));
        assert!(each <= most, "{each} instructions for a send and a recv {flags:?}, {most} at most");
    }
}

/// An end that processes share takes more than twice as many.
#[test]
fn a_fork_that_fails_costs_the_messages_after_it_nothing() {
    let _turn = alone();
    let few = |flags| (0..4).map(|_| instructions_of_a_message(flags)).min().unwrap_or(0);
    let (before, after) = (few(&[]), few(&["fork"]));
    assert!(after <= before + before / 10, "{after} instructions for a send and a recv, {before} without the fork");
}
