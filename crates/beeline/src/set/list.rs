//! `beeline set --list`: the options of processes as they are, and where they come from.

use std::fmt::Write;

use beeline_status::layout::{Table, or_nothing};
use serde::Serialize;

use crate::stat::process::{OpenConnection, OptionNow, Process};

#[derive(Serialize)]
struct Listed<'a> {
    pid: u32,
    uid: u32,
    program: &'a str,
    options: Vec<Row>,
    rules: u32,
    connections: Vec<&'a OpenConnection>,
}

#[derive(Serialize)]
struct Row {
    key: &'static str,
    value: Option<String>,
    /// `default`, `start` or `set`.
    from: Option<&'static str>,
    /// What it was at the start.
    began: Option<String>,
    reach: &'static str,
}

impl Row {
    fn of(option: &OptionNow) -> Self {
        let from = match (option.set, option.began) {
            (Some(_), Some(_)) => Some("set"),
            (None, Some(_)) if option.said => Some("start"),
            (None, Some(_)) => Some("default"),
            (_, None) => None,
        };
        Self {
            key: option.spec.key,
            value: option.began.and(option.value()).map(|value| value.to_string()),
            from,
            began: option.began.map(|value| value.to_string()),
            reach: option.spec.reach.sentence(),
        }
    }

    /// Where it comes from, for people.
    fn origin(&self) -> String {
        match (self.from, &self.began) {
            (Some("set"), Some(began)) => format!("set while it runs (began as {began})"),
            (Some("start"), _) => "options at the start".to_owned(),
            (Some(_), _) => "default".to_owned(),
            (None, _) => "not known to its library".to_owned(),
        }
    }
}

pub(super) fn render(processes: &[Process], json: bool) -> anyhow::Result<String> {
    let listed: Vec<Listed<'_>> = processes.iter().map(listed).collect();
    if json {
        return Ok(serde_json::to_string_pretty(&listed)? + "\n");
    }
    let texts: Vec<String> = listed.iter().map(people).collect();
    Ok(texts.join("\n"))
}

fn listed(process: &Process) -> Listed<'_> {
    Listed {
        pid: process.pid,
        uid: process.uid,
        program: &process.program,
        options: process.options.iter().map(Row::of).collect(),
        rules: process.rules,
        connections: process.connections.iter().filter(|open| !open.own.is_empty()).collect(),
    }
}

fn people(listed: &Listed<'_>) -> String {
    let mut text = format!("{} ({})\n", listed.program, listed.pid);
    let mut table = Table::new(&["OPTION", "VALUE", "FROM", "CAN BE SAID"], &[0, 1, 2, 3]);
    for row in &listed.options {
        let value = or_nothing(row.value.as_deref());
        table.row_of(&[row.key.to_owned(), value, row.origin(), row.reach.to_owned()]);
    }
    table.write_to(&mut text);
    if listed.rules != 0 {
        let _ = writeln!(text, "\n{} of the rules at the start are for this program.", listed.rules);
    }
    if !listed.connections.is_empty() {
        text.push_str("\nConnections with values of their own:\n");
        let mut table = Table::new(&["FD", "ROLE", "LOCAL", "REMOTE", "VALUES"], &[1, 2, 3, 4]);
        for open in &listed.connections {
            let own: Vec<String> = open.own.iter().map(|(key, value)| format!("{key}={value}")).collect();
            let [role, local, remote] = [open.role, &open.local, &open.remote].map(str::to_owned);
            table.row_of(&[open.fd.to_string(), role, local, remote, own.join(" ")]);
        }
        table.write_to(&mut text);
    }
    text
}
