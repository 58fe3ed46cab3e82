//! `beeline stat` for people.

use std::fmt::Write;
use std::time::Duration;

use comfy_table::{Cell, CellAlignment, Table, presets};

use super::collect::Collected;
use super::process::{Cause, OpenConnection, Process};
use crate::cli::Selection;
use crate::output::{bytes, count};

/// How many connections of one process are listed; JSON has all of them.
const CONNECTIONS_SHOWN: usize = 20;

type Before<'a> = (&'a Collected, Duration);

pub fn render(collected: &Collected, selection: Selection, before: Option<Before<'_>>) -> String {
    if collected.processes.is_empty() {
        return nothing(collected, selection);
    }
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

fn new_table(header: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header(header);
    table
}

/// Numbers to the right; the columns `left` are words.
fn finish(text: &mut String, mut table: Table, left: &[usize]) {
    for (index, column) in table.column_iter_mut().enumerate() {
        column.set_padding((0, 2));
        if !left.contains(&index) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    for line in table.lines() {
        let _ = writeln!(text, "{}", line.trim_end());
    }
}

fn overview(collected: &Collected, before: Option<Before<'_>>) -> String {
    let mut header = vec!["PID", "PROGRAM", "ACCELERATED", "OPEN", "TCP", "SENT", "RECEIVED", "DOORBELLS", "SLEEPS"];
    if before.is_some() {
        header.extend(["SENT/s", "RECEIVED/s"]);
    }
    let mut table = new_table(&header);
    for process in &collected.processes {
        let program = if process.other_pid_namespace {
            format!("{} (in a container)", process.program)
        } else {
            process.program.clone()
        };
        let mut row = vec![
            Cell::new(process.pid),
            Cell::new(program),
            Cell::new(count(process.accelerated)),
            Cell::new(count(process.accelerated_open)),
            Cell::new(count(process.fallen_back)),
            Cell::new(bytes(process.bytes_sent)),
            Cell::new(bytes(process.bytes_received)),
            Cell::new(count(process.doorbells_sent)),
            Cell::new(count(process.sleeps)),
        ];
        if let Some((before, elapsed)) = before {
            let then = before
                .processes
                .iter()
                .find(|then| (then.uid, then.pid, then.start_ticks) == (process.uid, process.pid, process.start_ticks));
            let rate = |now: u64, of: fn(&Process) -> u64| {
                let then = then.map_or(now, of);
                Cell::new(bytes((now.saturating_sub(then) as f64 / elapsed.as_secs_f64()) as u64))
            };
            row.push(rate(process.bytes_sent, |process| process.bytes_sent));
            row.push(rate(process.bytes_received, |process| process.bytes_received));
        }
        table.add_row(row);
    }
    let mut text = String::new();
    finish(&mut text, table, &[1]);
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
    let mut table = new_table(&["FD", "ROLE", "LOCAL", "REMOTE", "PEER", "SENT", "RECEIVED", "DOORBELLS", "SLEEPS"]);
    for open in shown {
        table.add_row(vec![
            Cell::new(open.fd),
            Cell::new(open.role),
            Cell::new(&open.local),
            Cell::new(&open.remote),
            Cell::new(if open.peer_pid == 0 { "-".into() } else { open.peer_pid.to_string() }),
            Cell::new(bytes(open.bytes_sent)),
            Cell::new(bytes(open.bytes_received)),
            Cell::new(count(open.doorbells_sent)),
            Cell::new(count(open.sleeps)),
        ]);
    }
    let _ = writeln!(text, "\nOpen connections:");
    finish(text, table, &[1, 2, 3]);
    if more > 0 {
        let _ = writeln!(text, "and {more} more; --json lists them all");
    }
}
