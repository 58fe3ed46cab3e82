//! The status for people.

use std::fmt::{Display, Write};

use beeline_stats::Reason;
use beeline_topo::report::Path;

use crate::document::{ConnectionStatus, Counts, Document, Draining, PathStatus};
use crate::layout::{NOTHING, Table, harmless, or_nothing};
use crate::number::{bytes, count, speed, time};

/// How many connections are listed; JSON has all of them.
const CONNECTIONS_SHOWN: usize = 20;
/// A certificate that lives no longer is worth a warning.
const CERTIFICATE_DAYS_FEW: i64 = 30;

/// The whole status.
pub fn render(document: &Document) -> String {
    let mut text = head(document);
    peers(&mut text, document);
    rails(&mut text, document);
    links(&mut text, document);
    ways(&mut text, document);
    text.push_str(&connections(&document.data.connections));
    reasons(&mut text, &document.data.refusals);
    counts(&mut text, "Since the start", &document.data.totals);
    counts(&mut text, "Control connections ended", &document.control_ends);
    text
}

fn head(document: &Document) -> String {
    let mut text = format!(
        "{} (beelined {}, process {}), up for {}\n",
        document.name,
        document.version,
        document.pid,
        time(document.data.uptime_s)
    );
    if let Some(draining) = document.data.draining {
        let Draining { connections, left_s } = draining;
        let _ = writeln!(text, "STOPS: takes no new connections; {connections} are left, for {left_s} s at most");
    }
    let _ = writeln!(text, "speaks for {}", document.speaks_for.join(", "));
    let _ = writeln!(text, "control port at {}", document.listen.join(", "));
    match document.certificate_days {
        _ if document.insecure => text.push_str("INSECURE: peers are known by their addresses only\n"),
        Some(days) if days < CERTIFICATE_DAYS_FEW => {
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
    let heading = ["PEER", "STATE", "ADDRESS", "FOR", "PING", "RAILS", "SPEAKS FOR"];
    let mut table = Table::new(&heading, &[0, 1, 2, 6]);
    for peer in &document.peers {
        let addresses = peer.speaks_for.join(" ");
        let says = match peer.certificate_days {
            Some(days) if days < CERTIFICATE_DAYS_FEW => format!("{addresses} (certificate: {days} days)"),
            _ => addresses,
        };
        let unless_down = |what: &dyn Display| if peer.is_up { what.to_string() } else { NOTHING.into() };
        table.row([
            &peer.name,
            &if peer.is_up { "up" } else { "down" },
            &peer.address,
            &unless_down(&time(peer.up_s)),
            &or_nothing(peer.round_trip_us.map(|time| format!("{time} us"))),
            &unless_down(&ports(peer.rails.iter().map(|rail| rail.name.as_str()))),
            &unless_down(&says),
        ]);
    }
    text.push('\n');
    table.write_to(text);
    for peer in &document.peers {
        if let Some(why) = &peer.last_end {
            let _ = writeln!(text, "{}: {}", peer.name, harmless(why));
        }
    }
}

fn rails(text: &mut String, document: &Document) {
    if document.data.rails.is_empty() {
        text.push_str("\nThe bridge has no rails.\n");
        return;
    }
    let heading = ["RAIL", "NAME", "ADDRESS", "DEVICE", "SPEED", "NODE", "CONNECTIONS", "IN FLIGHT", "STATE"];
    let mut table = Table::new(&heading, &[1, 2, 3, 8]);
    for (index, status) in document.data.rails.iter().enumerate() {
        let rail = &status.rail;
        let first = document.data.rails.iter().take(index).find(|other| other.rail.name == rail.name);
        let again = first.map(|first| format!("another address of rail {}", first.id));
        table.row([
            &status.id,
            &rail.name,
            &rail.address,
            &or_nothing(rail.netdev.as_ref()),
            &or_nothing(rail.speed_mbps.map(|mbps| speed(mbps.into()))),
            &or_nothing(rail.node),
            &count(rail.load.connections.into()),
            &bytes(rail.load.in_flight_bytes),
            &status.trouble.as_deref().or(again.as_deref()).unwrap_or("open"),
        ]);
    }
    text.push('\n');
    table.write_to(text);
}

/// How many ports these rails are: the addresses of one, of both families say, have its name.
fn ports<'a>(names: impl Iterator<Item = &'a str>) -> usize {
    names.collect::<std::collections::BTreeSet<_>>().len()
}

/// The ways that were compared with TCP, or should be.
fn ways(text: &mut String, document: &Document) {
    let paths = &document.data.paths;
    let is_known = |path: &&PathStatus| path.short.is_some() || path.trouble.is_some();
    if !paths.iter().any(|path| is_known(&path)) {
        return;
    }
    let mut table =
        Table::new(&["WAY TO", "8 B, BRIDGE", "TCP", "1 MiB THERE", "TCP", "1 MiB BACK", "TCP", ""], &[0, 7]);
    for path in paths.iter().filter(is_known) {
        let kinds = [path.short, path.there, path.back];
        let microseconds = |ns: u64| format!("{}.{} us", ns / 1000, ns % 1000 / 100);
        let [short, there, back] = kinds.map(|times| {
            times.map_or([NOTHING.into(), NOTHING.into()], |times| [times.bridge_ns, times.tcp_ns].map(microseconds))
        });
        let slower = kinds.iter().flatten().filter(|times| times.slower).count();
        let remark = match (&path.trouble, slower) {
            (Some(why), _) => format!("not compared: {}", harmless(why)),
            (None, 0) => String::new(),
            (None, 3) => "TCP is faster, and used".into(),
            (None, _) => "TCP is faster for some".into(),
        };
        table.row([&path.peer, &short[0], &short[1], &there[0], &there[1], &back[0], &back[1], &remark]);
    }
    text.push('\n');
    table.write_to(text);
}

fn links(text: &mut String, document: &Document) {
    if document.data.links.is_empty() {
        return;
    }
    let heading =
        ["PEER", "OVER RAIL", "TO ITS RAIL", "STATE", "MESSAGES OUT", "IN", "BYTES OUT", "IN FLIGHT", "MEASURED"];
    let mut table = Table::new(&heading, &[0, 1, 2, 3]);
    for link in &document.data.links {
        table.row([
            &link.peer,
            &link.rail,
            &link.peer_rail_name,
            &if link.up { "up" } else { "down" },
            &link.messages_sent,
            &link.messages_received,
            &bytes(link.bytes_sent),
            &bytes(link.in_flight_bytes),
            &or_nothing(link.measured_mbps.map(speed)),
        ]);
    }
    text.push('\n');
    table.write_to(text);
}

/// The busiest connections with their rails; nothing if there are none.
pub fn connections(connections: &[ConnectionStatus]) -> String {
    if connections.is_empty() {
        return String::new();
    }
    let mut shown: Vec<&ConnectionStatus> = connections.iter().collect();
    shown.sort_by_key(|row| std::cmp::Reverse(row.bytes_sent.saturating_add(row.bytes_received)));
    let more = shown.len().saturating_sub(CONNECTIONS_SHOWN);
    shown.truncate(CONNECTIONS_SHOWN);
    let heading = ["CLIENT", "SERVER", "PEER", "STATE", "RAILS", "SENT", "RECEIVED", "AGE"];
    let mut table = Table::new(&heading, &[0, 1, 2, 3, 4]);
    for row in shown {
        let rails: Vec<&str> = row.paths.iter().map(|Path { rail, .. }| rail.as_str()).collect();
        table.row([
            &row.client,
            &row.server,
            &row.peer,
            &row.state,
            &if rails.is_empty() { NOTHING.to_owned() } else { rails.join(", ") },
            &bytes(row.bytes_sent),
            &bytes(row.bytes_received),
            &time(row.age_s),
        ]);
    }
    let mut text = String::from("\n");
    table.write_to(&mut text);
    if more > 0 {
        let _ = writeln!(text, "and {more} more; --json lists them all");
    }
    text
}

fn reasons(text: &mut String, refusals: &Counts) {
    let mut refusals: Vec<(&String, u64)> = refusals.iter().map(|(name, times)| (name, *times)).collect();
    refusals.retain(|(_, times)| *times > 0);
    refusals.sort_by_key(|(_, times)| std::cmp::Reverse(*times));
    if refusals.is_empty() {
        return;
    }
    text.push_str("\nClients left to TCP:\n");
    for (name, times) in refusals {
        let known = Reason::ALL.iter().find(|reason| reason.name().strip_prefix("bridge_") == Some(name));
        let sentence = known.map(|reason| format!(": {}", reason.sentence())).unwrap_or_default();
        let _ = writeln!(text, "  {:>7}  {name}{sentence}", count(times));
    }
}

fn counts(text: &mut String, what: &str, counts: &Counts) {
    let shown: Vec<String> = counts
        .iter()
        .filter(|(_, count)| **count > 0)
        .map(|(name, count)| format!("{} {count}", name.replace('_', " ")))
        .collect();
    if !shown.is_empty() {
        let _ = writeln!(text, "\n{what}: {}", shown.join(", "));
    }
}

#[cfg(test)]
mod tests;
