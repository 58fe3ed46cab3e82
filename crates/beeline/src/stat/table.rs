//! `beeline stat` for people.

use std::fmt::Write;
use std::time::Duration;

use beeline_status::layout::{Table, or_nothing};
use beeline_status::number::{bytes, count};

use super::collect::Collected;
use super::process::{Cause, OpenConnection, Process};
use crate::cli::Selection;

/// How many connections of one process are listed; JSON has all of them.
const CONNECTIONS_SHOWN: usize = 20;

type Before<'a> = (&'a Collected, Duration);

/// The processes, and then the bridge.
pub fn render(collected: &Collected, selection: Selection, before: Option<Before<'_>>) -> String {
    let mut text = match collected.processes.is_empty() {
        true => nothing(collected, selection),
        false => processes(collected, selection, before),
    };
    text.push_str(&collected.bridge.render(selection, &collected.processes));
    text
}

fn processes(collected: &Collected, selection: Selection, before: Option<Before<'_>>) -> String {
    let mut text = overview(collected, before);
    for process in &collected.processes {
        causes(&mut text, process);
        if selection != Selection::All {
            connections(&mut text, process);
        }
    }
    text
}

fn nothing(collected: &Collected, selection: Selection) -> String {
    match selection {
        Selection::Pid(pid) => {
            format!("Process {pid} does not run with Beeline, has not used TCP yet, or is not yours to look at.\n")
        }
        Selection::All => {
            let whose = if collected.all_users { "No process" } else { "No process of yours" };
            format!("{whose} uses TCP with Beeline. Start one with `beeline run PROGRAM`.\n")
        }
    }
}

fn overview(collected: &Collected, before: Option<Before<'_>>) -> String {
    let mut heading = vec!["PID", "PROGRAM", "ACCELERATED", "OPEN", "TCP", "SENT", "RECEIVED", "DOORBELLS", "SLEEPS"];
    if before.is_some() {
        heading.extend(["SENT/s", "RECEIVED/s"]);
    }
    let mut table = Table::new(&heading, &[1]);
    for process in &collected.processes {
        let program = if process.other_pid_namespace {
            format!("{} (in a container)", process.program)
        } else {
            process.program.clone()
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
            let then = before
                .processes
                .iter()
                .find(|then| (then.uid, then.pid, then.start_ticks) == (process.uid, process.pid, process.start_ticks));
            let rate = |now: u64, of: fn(&Process) -> u64| {
                let then = then.map_or(now, of);
                bytes((now.saturating_sub(then) as f64 / elapsed.as_secs_f64()) as u64)
            };
            row.push(rate(process.bytes_sent, |process| process.bytes_sent));
            row.push(rate(process.bytes_received, |process| process.bytes_received));
        }
        table.row_of(&row);
    }
    let mut text = String::new();
    table.write_to(&mut text);
    text
}

fn causes(text: &mut String, process: &Process) {
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
            let _ = writeln!(text, "  {:>7}  {name}{role}: {sentence}", count(*times));
        }
    }
}

fn connections(text: &mut String, process: &Process) {
    if process.connections.is_empty() {
        return;
    }
    let mut shown: Vec<&OpenConnection> = process.connections.iter().collect();
    shown.sort_by_key(|open| std::cmp::Reverse(open.bytes_sent.saturating_add(open.bytes_received)));
    let more = shown.len().saturating_sub(CONNECTIONS_SHOWN);
    shown.truncate(CONNECTIONS_SHOWN);
    let heading = ["FD", "ROLE", "LOCAL", "REMOTE", "PEER", "SENT", "RECEIVED", "DOORBELLS", "SLEEPS"];
    let mut table = Table::new(&heading, &[1, 2, 3]);
    for open in shown {
        table.row([
            &open.fd,
            &open.role,
            &open.local,
            &open.remote,
            &or_nothing((open.peer_pid != 0).then_some(open.peer_pid)),
            &bytes(open.bytes_sent),
            &bytes(open.bytes_received),
            &count(open.doorbells_sent),
            &count(open.sleeps),
        ]);
    }
    text.push_str("\nOpen connections:\n");
    table.write_to(text);
    if more > 0 {
        let _ = writeln!(text, "and {more} more; --json lists them all");
    }
}
