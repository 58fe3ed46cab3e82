//! `beelined rails`: which fabric ports this host has, which of them are rails, and what the peers offer.

use anyhow::Context;
use beeline_fabric::{Filter, Port};
use beeline_topo::report::{FORMAT, Peer, Report, Unused};
use beeline_topo::{Rail, Segments};
use comfy_table::{Table, presets};

use super::{print, print_json, running};
use crate::cli::{RailsArgs, SocketArgs};
use beelined::admin::{self, Document, Request};
use beelined::config::{Config, RailRules};
use beelined::ports;

/// What is said of a port that the configuration leaves out.
const DENIED: &str = "It is denied by the configuration.";

/// Lists them.
pub fn list(arguments: &RailsArgs) -> anyhow::Result<()> {
    let path = &arguments.config.config;
    // Before there is a configuration, somebody wants to know what it could hold.
    let rules = if path.exists() { Config::read(path)?.rails } else { RailRules::default() };
    let ports = beeline_fabric::ports(&Filter::default()).context("cannot ask libfabric for this host's ports")?;
    let admits = |port: &Port| rules.admit(&port.provider, port.netdev.as_deref(), &[port.address]);
    let (admitted, denied): (Vec<Port>, Vec<Port>) = ports.into_iter().partition(admits);
    let describe = |ports: Vec<Port>| -> Vec<Rail> { ports.iter().map(ports::describe).collect() };
    if arguments.json {
        return print_json(&report(describe(admitted), describe(denied), arguments));
    }
    print(&table(&describe(admitted), &describe(denied)))
}

/// All that `beeline topo` draws from. A host that hwloc cannot describe and a bridge that does not run or is not for us
/// to ask are left out: the rest is worth having.
fn report(rails: Vec<Rail>, denied: Vec<Rail>, arguments: &RailsArgs) -> Report {
    let unused = |rail: Rail| Unused { name: rail.name, reason: DENIED.into() };
    Report {
        format: FORMAT,
        host: beeline_hwloc::discover().ok(),
        rails,
        unused: denied.into_iter().map(unused).collect(),
        segments: Segments::default(),
        peers: peers(arguments).unwrap_or_default(),
        connections: Vec::new(),
    }
}

/// The peers of the running bridge.
fn peers(arguments: &RailsArgs) -> anyhow::Result<Vec<Peer>> {
    let socket = running::socket(&SocketArgs { socket: None, config: arguments.config.clone() })?;
    let document: Document = serde_json::from_value(admin::ask(&socket, &Request::Status {})?)?;
    let up = document.peers.into_iter().filter(|peer| peer.is_up);
    Ok(up.map(|peer| Peer { name: peer.name, rails: peer.rails }).collect())
}

fn table(rails: &[Rail], denied: &[Rail]) -> String {
    if rails.is_empty() && denied.is_empty() {
        return "libfabric finds no port that could be a rail.\n".into();
    }
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header(["RAIL", "PROTOCOL", "ADDRESS", "DEVICE", "SPEED", "NODE", ""]);
    for rail in rails {
        table.add_row(cells(rail, if rail.up { "" } else { "down" }));
    }
    for rail in denied {
        table.add_row(cells(rail, "denied by the configuration"));
    }
    for column in table.column_iter_mut() {
        column.set_padding((0, 2));
    }
    table.lines().map(|line| line.trim_end().to_owned() + "\n").collect()
}

fn cells(rail: &Rail, remark: &str) -> [String; 7] {
    let or_dash = |text: Option<String>| text.unwrap_or_else(|| "-".into());
    [
        rail.name.clone(),
        rail.protocol.to_string(),
        rail.address.to_string(),
        or_dash(rail.netdev.clone()),
        or_dash(rail.speed_mbps.map(|mbps| format!("{mbps} Mb/s"))),
        or_dash(rail.node.map(|node| node.to_string())),
        remark.into(),
    ]
}
