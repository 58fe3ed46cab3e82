//! The status for people.
//!
//! The data plane's part is read leniently: what it does not tell is not shown.

use std::collections::BTreeMap;
use std::fmt::{Display, Write};

use comfy_table::{Cell, CellAlignment, Table, presets};
use serde::Deserialize;

use super::Document;

/// How many connections are listed; JSON has all of them.
const CONNECTIONS_SHOWN: usize = 20;

#[derive(Default, Deserialize)]
#[serde(default)]
struct Data {
    uptime_s: u64,
    rails: Vec<RailRow>,
    links: Vec<LinkRow>,
    connections: Vec<ConnectionRow>,
    refusals: BTreeMap<String, u64>,
    totals: BTreeMap<String, u64>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct RailRow {
    id: u32,
    rail: RailDescription,
    trouble: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct RailDescription {
    name: String,
    address: String,
    netdev: Option<String>,
    node: Option<u32>,
    speed_mbps: Option<u32>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct LinkRow {
    peer: String,
    rail: String,
    up: bool,
    messages_sent: u64,
    messages_received: u64,
    bytes_sent: u64,
    in_flight_bytes: u64,
    measured_mbps: Option<u64>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct ConnectionRow {
    client: String,
    server: String,
    peer: String,
    state: String,
    rail: Option<String>,
    bytes_sent: u64,
    bytes_received: u64,
    age_s: u64,
}

/// The whole status.
pub fn render(document: &Document) -> String {
    let data: Data = serde_json::from_value(document.data.clone()).unwrap_or_default();
    let mut text = head(document, &data);
    peers(&mut text, document);
    rails(&mut text, &data);
    links(&mut text, &data);
    connections(&mut text, &data);
    counts(&mut text, "Clients left to TCP", &data.refusals);
    counts(&mut text, "Since the start", &data.totals);
    counts(&mut text, "Control connections ended", &document.control_ends);
    text
}

fn head(document: &Document, data: &Data) -> String {
    let mut text = format!(
        "{} (beelined {}, process {}), up for {}\n",
        document.name,
        document.version,
        document.pid,
        time(data.uptime_s)
    );
    let _ = writeln!(text, "speaks for {}", document.speaks_for.join(", "));
    let _ = writeln!(text, "control port at {}", document.listen.join(", "));
    match document.certificate_days {
        _ if document.insecure => text.push_str("INSECURE: peers are known by their addresses only\n"),
        Some(days) if days < 30 => {
            let _ = writeln!(text, "ITS CERTIFICATE EXPIRES IN {days} DAYS: make another with `beelined keygen`");
        }
        _ => {}
    }
    text
}

fn peers(text: &mut String, document: &Document) {
    if document.peers.is_empty() {
        text.push_str("\nNo peer is configured, and none has come.\n");
        return;
    }
    let mut table = new_table(&["PEER", "STATE", "ADDRESS", "FOR", "PING", "RAILS", "SPEAKS FOR"]);
    for peer in &document.peers {
        let says = match (&peer.last_end, peer.certificate_days) {
            _ if !peer.is_up => "-".to_owned(),
            (_, Some(days)) if days < 30 => format!("{} (certificate: {days} days)", peer.speaks_for.join(" ")),
            _ => peer.speaks_for.join(" "),
        };
        let unless_down = |what: String| if peer.is_up { what } else { "-".into() };
        table.add_row(vec![
            Cell::new(&peer.name),
            Cell::new(if peer.is_up { "up" } else { "down" }),
            Cell::new(&peer.address),
            Cell::new(unless_down(time(peer.up_s))),
            Cell::new(peer.round_trip_us.map_or("-".into(), |time| format!("{time} us"))),
            Cell::new(unless_down(peer.rails.len().to_string())),
            Cell::new(says),
        ]);
    }
    text.push('\n');
    finish(text, table, &[0, 1, 2, 6]);
    for peer in &document.peers {
        if let Some(why) = &peer.last_end {
            let _ = writeln!(text, "{}: {why}", peer.name);
        }
    }
}

fn rails(text: &mut String, data: &Data) {
    if data.rails.is_empty() {
        return;
    }
    let mut table = new_table(&["RAIL", "NAME", "ADDRESS", "DEVICE", "SPEED", "NODE", "STATE"]);
    for RailRow { id, rail, trouble } in &data.rails {
        table.add_row(vec![
            Cell::new(id),
            Cell::new(&rail.name),
            Cell::new(&rail.address),
            Cell::new(rail.netdev.as_deref().unwrap_or("-")),
            Cell::new(rail.speed_mbps.map_or("-".into(), |speed| rate(u64::from(speed)))),
            Cell::new(or_dash(rail.node)),
            Cell::new(trouble.as_deref().unwrap_or("open")),
        ]);
    }
    text.push('\n');
    finish(text, table, &[1, 2, 3, 6]);
}

fn links(text: &mut String, data: &Data) {
    if data.links.is_empty() {
        return;
    }
    let header = ["PEER", "OVER RAIL", "STATE", "MESSAGES OUT", "IN", "BYTES OUT", "IN FLIGHT", "MEASURED"];
    let mut table = new_table(&header);
    for link in &data.links {
        table.add_row(vec![
            Cell::new(&link.peer),
            Cell::new(&link.rail),
            Cell::new(if link.up { "up" } else { "down" }),
            Cell::new(link.messages_sent),
            Cell::new(link.messages_received),
            Cell::new(bytes(link.bytes_sent)),
            Cell::new(bytes(link.in_flight_bytes)),
            Cell::new(link.measured_mbps.map_or("-".into(), rate)),
        ]);
    }
    text.push('\n');
    finish(text, table, &[0, 1, 2]);
}

fn connections(text: &mut String, data: &Data) {
    if data.connections.is_empty() {
        return;
    }
    let mut shown: Vec<&ConnectionRow> = data.connections.iter().collect();
    shown.sort_by_key(|row| std::cmp::Reverse(row.bytes_sent.saturating_add(row.bytes_received)));
    let more = shown.len().saturating_sub(CONNECTIONS_SHOWN);
    shown.truncate(CONNECTIONS_SHOWN);
    let mut table = new_table(&["CLIENT", "SERVER", "PEER", "STATE", "RAIL", "SENT", "RECEIVED", "AGE"]);
    for row in shown {
        table.add_row(vec![
            Cell::new(&row.client),
            Cell::new(&row.server),
            Cell::new(&row.peer),
            Cell::new(&row.state),
            Cell::new(row.rail.as_deref().unwrap_or("-")),
            Cell::new(bytes(row.bytes_sent)),
            Cell::new(bytes(row.bytes_received)),
            Cell::new(time(row.age_s)),
        ]);
    }
    text.push('\n');
    finish(text, table, &[0, 1, 2, 3, 4]);
    if more > 0 {
        let _ = writeln!(text, "and {more} more; --json lists them all");
    }
}

fn counts(text: &mut String, what: &str, counts: &BTreeMap<String, u64>) {
    let shown: Vec<String> = counts
        .iter()
        .filter(|(_, count)| **count > 0)
        .map(|(name, count)| format!("{} {count}", name.replace('_', " ")))
        .collect();
    if !shown.is_empty() {
        let _ = writeln!(text, "\n{what}: {}", shown.join(", "));
    }
}

fn or_dash(value: Option<impl Display>) -> String {
    value.map_or("-".into(), |value| value.to_string())
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

/// Seconds in the unit that suits them.
fn time(seconds: u64) -> String {
    match seconds {
        0..120 => format!("{seconds} s"),
        120..7200 => format!("{} min", seconds / 60),
        7200..172_800 => format!("{} h", seconds / 3600),
        _ => format!("{} d", seconds / 86_400),
    }
}

/// Bytes with a binary unit.
fn bytes(number: u64) -> String {
    const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    let mut scaled = number as f64;
    let mut shown = None;
    for unit in UNITS {
        if scaled < 1024.0 {
            break;
        }
        scaled /= 1024.0;
        shown = Some(unit);
    }
    match shown {
        None => format!("{number} B"),
        Some(unit) if scaled < 10.0 => format!("{scaled:.2} {unit}"),
        Some(unit) if scaled < 100.0 => format!("{scaled:.1} {unit}"),
        Some(unit) => format!("{scaled:.0} {unit}"),
    }
}

/// Mbit/s, or Gbit/s when there are many.
fn rate(mbps: u64) -> String {
    if mbps >= 10_000 { format!("{} Gb/s", mbps / 1000) } else { format!("{mbps} Mb/s") }
}
