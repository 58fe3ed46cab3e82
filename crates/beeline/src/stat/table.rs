//! `beeline stat` for people.

use std::fmt::Write;
use std::time::Duration;

use beeline_status::layout::{Table, or_nothing};
use beeline_status::number::{bytes, count};

use super::absent;
use super::collect::Collected;
use super::process::{Cause, OpenConnection, Peer, Process};
use super::unloaded::Unloaded;
use crate::cli::Selection;
use crate::output::{prose, width};

/// How many connections of one process are listed; JSON has all of them.
const CONNECTIONS_SHOWN: usize = 20;

/// The columns of what changes while one looks.
const RATES: [&str; 2] = ["SENT/s", "RECEIVED/s"];

type Before<'a> = (&'a Collected, Duration);

/// The processes, and then the bridge.
pub fn render(collected: &Collected, selection: &Selection, before: Option<Before<'_>>) -> String {
    let mut text = match (collected.is_empty(), collected.processes.is_empty()) {
        (true, _) => nothing(collected, selection),
        (false, true) => String::new(),
        (false, false) => processes(collected, selection, before),
    };
    unloaded(&mut text, &collected.unloaded);
    text.push_str(&collected.bridge.render(selection, &collected.processes));
    text
}

fn processes(collected: &Collected, selection: &Selection, before: Option<Before<'_>>) -> String {
    let mut text = overview(collected, before);
    for process in &collected.processes {
        causes(&mut text, process);
        if *selection != Selection::All {
            connections(&mut text, process, before);
        }
    }
    text
}

pub fn nothing(collected: &Collected, selection: &Selection) -> String {
    let whose = if collected.all_users { "No process" } else { "No process of yours" };
    prose(&match selection {
        Selection::Pid(pid) => absent::sentence(*pid),
        Selection::Program(name) => format!("{whose} with the name {name} uses TCP with Beeline.\n"),
        Selection::All => format!("{whose} uses TCP with Beeline. Start one with `beeline run PROGRAM`.\n"),
    })
}

fn overview(collected: &Collected, before: Option<Before<'_>>) -> String {
    let mut heading = vec!["PID", "PROGRAM", "ACCELERATED", "OPEN", "TCP", "SENT", "RECEIVED", "DOORBELLS", "SLEEPS"];
    // Before all that a narrow screen may not show.
    if before.is_some() {
        heading.splice(2..2, RATES);
    }
    let any_elsewhere = collected.processes.iter().any(|process| process.network_namespace.is_some());
    if any_elsewhere {
        heading.insert(2, "NETWORK");
    }
    let mut table = Table::new(&heading, if any_elsewhere { &[1, 2] } else { &[1] });
    for process in &collected.processes {
        let program = match (process.ended, process.other_pid_namespace) {
            (true, _) => format!("{} (ended)", process.program),
            (false, true) => format!("{} (in a container)", process.program),
            (false, false) => process.program.clone(),
        };
        let mut row = vec![
            process.pid.to_string(),
            program,
            count(process.accelerated),
            count(process.accelerated_open),
            count(process.fallen_back),
            bytes(process.bytes_sent),
            bytes(process.bytes_received),
            count(process.doorbells_sent),
            count(process.sleeps),
        ];
        if let Some((before, elapsed)) = before {
            let then = process.among(&before.processes);
            let rates = [
                rate(process.bytes_sent, then.map(|then| then.bytes_sent), elapsed),
                rate(process.bytes_received, then.map(|then| then.bytes_received), elapsed),
            ];
            row.splice(2..2, rates);
        }
        if any_elsewhere {
            row.insert(2, process.network_namespace.clone().unwrap_or_else(|| "-".into()));
        }
        table.row_of(&row);
    }
    let mut text = String::new();
    table.write_to(&mut text);
    text
}

/// Bytes a second. What was not there before has no rate yet.
fn rate(now: u64, then: Option<u64>, elapsed: Duration) -> String {
    or_nothing(then.map(|then| bytes((now.saturating_sub(then) as f64 / elapsed.as_secs_f64()) as u64)))
}

/// Processes without the library.
fn unloaded(text: &mut String, unloaded: &[Unloaded]) {
    for Unloaded { pid, program, reason, sentence, .. } in unloaded {
        if !text.is_empty() {
            text.push('\n');
        }
        let _ = writeln!(text, "{program} ({pid}): all connections are on TCP");
        wrapped(text, &format!("  {reason}: {sentence}"));
    }
}

/// Writes a line, and what goes beyond the terminal's width below it.
fn wrapped(text: &mut String, line: &str) {
    // Names have no spaces and are not broken.
    let options = textwrap::Options::new(width()).subsequent_indent("           ").break_words(false);
    textwrap::wrap(line, options).iter().for_each(|line| {
        let _ = writeln!(text, "{line}");
    });
}

fn causes(text: &mut String, process: &Process) {
    // A reason that stands below with its connections is enough.
    if let Some(stop) =
        process.stopped.as_ref().filter(|stop| process.reasons.iter().all(|cause| cause.name != stop.name))
    {
        let _ = writeln!(text, "\n{} ({}): all further connections are on TCP", process.program, process.pid);
        wrapped(text, &format!("  {}: {}", stop.name, stop.sentence));
    }
    let lists = [
        ("connections on TCP", &process.reasons),
        ("connections reset, because a peer broke the rules", &process.poisons),
    ];
    for (what, causes) in lists {
        if causes.is_empty() {
            continue;
        }
        let _ = writeln!(text, "\n{} ({}): {what}", process.program, process.pid);
        for Cause { name, role, count: times, sentence } in causes {
            let role = role.map(|role| format!(" as {role}")).unwrap_or_default();
            let line = format!("  {:>7}  {name}{role}: {sentence}", count(*times));
            wrapped(text, &line);
        }
    }
}

/// Who has a connection's other end: the process, and where it is.
fn peer(open: &OpenConnection) -> String {
    match &open.peer {
        Some(Peer { pid, program, network_namespace: Some(network) }) => format!("{pid} {program} in {network}"),
        Some(Peer { pid, program, .. }) => format!("{pid} {program}"),
        None => or_nothing((open.peer_pid != 0).then_some(open.peer_pid)),
    }
}

/// How a connection waits, and what else holds for it alone.
fn how_it_waits(open: &OpenConnection) -> String {
    let others = open.own.iter().filter(|(key, _)| **key != "wait").map(|(key, value)| format!("{key}={value}"));
    let parts: Vec<String> = open.wait.clone().into_iter().chain(others).collect();
    or_nothing((!parts.is_empty()).then(|| parts.join(" ")))
}

fn connections(text: &mut String, process: &Process, before: Option<Before<'_>>) {
    if process.connections.is_empty() {
        return;
    }
    let mut shown: Vec<&OpenConnection> = process.connections.iter().collect();
    shown.sort_by_key(|open| std::cmp::Reverse(open.bytes_sent.saturating_add(open.bytes_received)));
    let more = shown.len().saturating_sub(CONNECTIONS_SHOWN);
    shown.truncate(CONNECTIONS_SHOWN);
    let mut heading = vec!["FD", "ROLE", "LOCAL", "REMOTE", "PEER", "SENT", "RECEIVED", "DOORBELLS", "SLEEPS"];
    let mut left = vec![1, 2, 3];
    if before.is_some() {
        heading.splice(2..2, RATES);
        left = vec![1, 4, 5];
    }
    let shows_wait = shown.iter().any(|open| open.wait.is_some() || !open.own.is_empty());
    if shows_wait {
        left.push(heading.len());
        heading.push("WAIT");
    }
    let mut table = Table::new(&heading, &left);
    let then_open = before.map(|(before, _)| process.among(&before.processes));
    for open in shown {
        let mut row = vec![
            open.fd.to_string(),
            open.role.to_owned(),
            open.local.clone(),
            open.remote.clone(),
            peer(open),
            bytes(open.bytes_sent),
            bytes(open.bytes_received),
            count(open.doorbells_sent),
            count(open.sleeps),
        ];
        if let Some((_, elapsed)) = before {
            let then = then_open.flatten().and_then(|process| open.among(&process.connections));
            let rates = [
                rate(open.bytes_sent, then.map(|then| then.bytes_sent), elapsed),
                rate(open.bytes_received, then.map(|then| then.bytes_received), elapsed),
            ];
            row.splice(2..2, rates);
        }
        if shows_wait {
            row.push(how_it_waits(open));
        }
        table.row_of(&row);
    }
    text.push_str("\nOpen connections:\n");
    table.write_to(text);
    if more > 0 {
        let _ = writeln!(text, "and {more} more; --json lists them all");
    }
}
