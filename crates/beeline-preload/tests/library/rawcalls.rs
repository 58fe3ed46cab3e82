//! Programs that make some of their system calls themselves: they end as on the kernel, and their connections are
//! counted.
//!
//! Without the search for such calls those that accept, poll, read, write or duplicate hang, or their clients are
//! reset.

use beeline_stats::Reason;

use super::*;

/// One program for each kind of call (`CALL` of the source).
const KINDS: [(&str, &str); 9] = [
    ("rawcalls-accept", "-DCALL=ACCEPT"),
    ("rawcalls-wait", "-DCALL=WAIT"),
    ("rawcalls-control", "-DCALL=CONTROL"),
    ("rawcalls-poll", "-DCALL=POLL"),
    ("rawcalls-read", "-DCALL=READ"),
    ("rawcalls-write", "-DCALL=WRITE"),
    ("rawcalls-close", "-DCALL=CLOSE"),
    ("rawcalls-dup", "-DCALL=DUP"),
    ("rawcalls-any", "-DCALL=ANY"),
];

/// How compilers put the number of a call where it belongs differs with this.
const LEVELS: [&str; 3] = ["-O0", "-O2", "-Os"];

fn each_program(mut f: impl FnMut(&Path)) {
    for (name, kind) in KINDS {
        f(&compile("rawcalls", name, &[kind]));
    }
    for (name, level) in [("rawcalls-O0", LEVELS[0]), ("rawcalls-O2", LEVELS[1]), ("rawcalls-Os", LEVELS[2])] {
        f(&compile("rawcalls", name, &["-DCALL=ACCEPT", level]));
    }
}

#[test]
fn clients_of_programs_with_calls_of_their_own_are_served() {
    each_program(|program| {
        run_program(program, "a_client_is_served", None).expect("what the case expects is what the kernel does");
        run_program(program, "a_client_is_served", Some(library())).expect("a program cannot tell");
    });
}

#[test]
fn connections_of_programs_with_calls_of_their_own_are_counted() {
    each_program(|program| counted::counts_each_connection_once(program, "pauses", Reason::RawSystemCalls, [1, 1]));
}

/// The same program keeps its lanes when it makes none of them itself.
#[test]
fn programs_without_calls_of_their_own_keep_lanes() {
    let program = compile("rawcalls", "rawcalls-none", &["-DCALL=NONE"]);
    run_program(&program, "makes_a_connection", Some(library())).expect("both ends are lanes");
    run_program(&program, "a_client_is_served", Some(library())).expect("a program cannot tell");
}
