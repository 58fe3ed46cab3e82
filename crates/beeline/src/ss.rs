//! `beeline ss` and `beeline top`: open connections of programs that run with Beeline, each with the path that it
//! takes.

mod row;
mod tcp;

use std::collections::HashMap;
use std::io::IsTerminal;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use beeline_status::layout::{Table, or_nothing};
use beeline_status::number::bytes;
use serde::Serialize;

use row::{Key, Row};

use crate::cli::{Selection, SsArgs, TopArgs};
use crate::stat::bridge::Bridge;
use crate::stat::collect::{Collected, SHARED_MEMORY};
use crate::stat::table::nothing;
use crate::stat::terminal::Keys;
use crate::{configuration, output};

/// What `--json` prints.
#[derive(Serialize)]
struct Document {
    /// Of this document's form.
    version: u32,
    connections: Vec<Row>,
}

pub fn run(arguments: &SsArgs) -> anyhow::Result<ExitCode> {
    let collected = collect(&arguments.selection, Bridge::ask(&configuration::admin_socket()))?;
    let mut rows = row::all(&collected);
    rows.retain(|row| arguments.path.is_none_or(|path| row.path == path));
    if arguments.json {
        let document = Document { version: 1, connections: rows };
        output::print(&(serde_json::to_string_pretty(&document)? + "\n"))?;
    } else if collected.is_empty() {
        output::print(&nothing(&collected, &arguments.selection))?;
    } else if rows.is_empty() {
        output::print("There is no open connection.\n")?;
    } else {
        output::print(&table(&rows, None))?;
    }
    collected.complain();
    Ok(ExitCode::from(u8::from(is_missing(&collected, &arguments.selection))))
}

/// Shows the busiest connections again and again, until somebody wants it to end, or whom it is about has ended.
pub fn top(arguments: &TopArgs) -> anyhow::Result<ExitCode> {
    let keys = Keys::watch();
    let clears = std::io::stdout().is_terminal();
    let socket = configuration::admin_socket();
    let bridge = Bridge::ask(&socket);
    let mut at = Instant::now();
    let mut collected = collect(&arguments.selection, bridge)?;
    // Those of a look are what the next one is compared with: to read the kernel's tables takes as long as the rest.
    let mut rows = row::all(&collected);
    let mut shown = 0;
    let mut were_there = false;
    loop {
        were_there = were_there || !collected.is_empty();
        let before = Before::of(&rows);
        match &keys {
            Some(keys) if keys.end_within(arguments.delay) => return Ok(ExitCode::SUCCESS),
            Some(_) => {}
            None => std::thread::sleep(arguments.delay),
        }
        let bridge = collected.bridge.again(&socket);
        let since = at.elapsed();
        at = Instant::now();
        collected = collect(&arguments.selection, bridge)?;
        rows = row::all(&collected);
        rows.sort_by_cached_key(|row| std::cmp::Reverse((before.moved(row), row.total())));
        // More of them are not to be seen.
        let most = if clears { output::height() } else { usize::MAX };
        let seen = rows.get(..most).unwrap_or(&rows);
        let mut text =
            if seen.is_empty() { nothing_open(&collected, arguments) } else { table(seen, Some((&before, since))) };
        if clears {
            text = output::screen(&text, 0);
        }
        shown += 1;
        let is_read = output::print(&text)?;
        if is_missing(&collected, &arguments.selection) {
            return Ok(ExitCode::from(u8::from(!were_there)));
        }
        if !is_read || arguments.count == Some(shown) {
            return Ok(ExitCode::SUCCESS);
        }
    }
}

fn nothing_open(collected: &Collected, arguments: &TopArgs) -> String {
    if collected.is_empty() {
        nothing(collected, &arguments.selection)
    } else {
        "There is no open connection.\n".into()
    }
}

fn collect(selection: &Selection, bridge: Bridge) -> anyhow::Result<Collected> {
    Collected::of(std::path::Path::new(SHARED_MEMORY), bridge, selection, false)
}

/// Who asks for a process that is not there has asked in vain.
fn is_missing(collected: &Collected, selection: &Selection) -> bool {
    collected.is_empty() && *selection != Selection::All
}

/// What connections had carried when they were looked at before.
struct Before {
    carried: HashMap<Key, (u64, u64)>,
}

impl Before {
    fn of(rows: &[Row]) -> Self {
        let carried = rows.iter().filter_map(|row| Some((row.key(), row.carried()?))).collect();
        Self { carried }
    }

    /// Bytes sent and received since then, of a connection that was there.
    fn of_row(&self, row: &Row) -> Option<(u64, u64)> {
        let ((sent, received), then) = (row.carried()?, self.carried.get(&row.key())?);
        Some((sent.saturating_sub(then.0), received.saturating_sub(then.1)))
    }

    fn moved(&self, row: &Row) -> u64 {
        self.of_row(row).map_or(0, |(sent, received)| sent.saturating_add(received))
    }
}

fn table(rows: &[Row], before: Option<(&Before, Duration)>) -> String {
    let shows_network = rows.iter().any(|row| row.network_namespace.is_some());
    let mut heading = vec!["PATH", "PID", "PROGRAM", "FD", "LOCAL", "REMOTE", "PEER", "SENT", "RECEIVED"];
    let mut left = vec![0, 2, 4, 5, 6];
    if shows_network {
        heading.insert(3, "NETWORK");
        left = vec![0, 2, 3, 5, 6, 7];
    }
    // Before all that a narrow screen may not show.
    let rates_at = 3 + usize::from(shows_network);
    if before.is_some() {
        heading.splice(rates_at..rates_at, ["SENT/s", "RECEIVED/s"]);
        left.iter_mut().filter(|index| **index >= rates_at).for_each(|index| *index += 2);
    }
    let mut table = Table::new(&heading, &left);
    for row in rows {
        let mut cells = vec![
            row.path.name().to_owned(),
            row.pid.to_string(),
            row.program.clone(),
            row.fd.to_string(),
            row.local.clone(),
            row.remote.clone(),
            or_nothing(row.peer.as_ref().map(|peer| format!("{} {}", peer.pid, peer.program))),
            or_nothing(row.bytes_sent.map(bytes)),
            or_nothing(row.bytes_received.map(bytes)),
        ];
        if shows_network {
            cells.insert(3, or_nothing(row.network_namespace.as_ref()));
        }
        if let Some((before, since)) = before {
            let rate = |moved: u64| bytes((moved as f64 / since.as_secs_f64()) as u64);
            let moved = before.of_row(row);
            let rates = [moved.map(|(sent, _)| sent), moved.map(|(_, received)| received)];
            cells.splice(rates_at..rates_at, rates.map(|moved| or_nothing(moved.map(rate))));
        }
        table.row_of(&cells);
    }
    let mut text = String::new();
    table.write_to(&mut text);
    text
}
