//! `beelined rails`: which fabric ports this host has, which of them are rails, and what the peers offer.

use anyhow::Context;
use beeline_fabric::{Filter, Port};
use beeline_status::document::{ConnectionStatus, Document, RailStatus};
use beeline_status::layout::{Table, or_nothing};
use beeline_status::number::speed;
use beeline_topo::Rail;
use beeline_topo::report::{Connection, FORMAT, Peer, Report, Unused};

use super::output::{print, print_json};
use super::running;
use crate::cli::{RailsArgs, SocketArgs};
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
        return print_json(&report(&rules, describe(admitted), describe(denied), arguments));
    }
    print(&table(&describe(admitted), &describe(denied)))
}

/// All that `beeline topo` draws from. A host that hwloc cannot describe and a bridge that does not run or is not for us
/// to ask are left out: the rest is worth having.
fn report(rules: &RailRules, rails: Vec<Rail>, denied: Vec<Rail>, arguments: &RailsArgs) -> Report {
    let unused = |rail: Rail| Unused { name: rail.name, reason: DENIED.into() };
    let mut report = Report {
        format: FORMAT,
        host: beeline_hwloc::discover().ok(),
        rails,
        unused: denied.into_iter().map(unused).collect(),
        segments: rules.segments(),
        peers: Vec::new(),
        connections: Vec::new(),
    };
    if let Ok(document) = ask(arguments) {
        add_running(&mut report, document);
    }
    report
}

fn ask(arguments: &RailsArgs) -> anyhow::Result<Document> {
    let socket = running::socket(&SocketArgs { socket: None, config: arguments.config.clone() })?;
    Ok(beeline_status::ask::status(&socket)?)
}

/// Adds what the running bridge alone knows: its peers, what is on its rails, and which connections it carries.
fn add_running(report: &mut Report, document: Document) {
    for RailStatus { rail: known, .. } in &document.data.rails {
        // By name and address: a port with two addresses is two rails.
        let own = report.rails.iter_mut().find(|rail| rail.name == known.name && rail.address == known.address);
        if let Some(rail) = own {
            (rail.up, rail.load) = (rail.up && known.up, known.load);
        }
    }
    let up = document.peers.into_iter().filter(|peer| peer.is_up);
    report.peers = up.map(|peer| Peer { name: peer.name, rails: peer.rails }).collect();
    report.connections = document.data.connections.into_iter().filter_map(connection).collect();
}

/// A connection that moves bytes, from this host's end.
fn connection(status: ConnectionStatus) -> Option<Connection> {
    if status.state != "open" {
        return None;
    }
    let (client, server) = (status.client.parse().ok()?, status.server.parse().ok()?);
    let (local, remote) = if status.client_is_here { (client, server) } else { (server, client) };
    Some(Connection { local, remote, peer: status.peer, cpu: status.cpu, paths: status.paths })
}

fn table(rails: &[Rail], denied: &[Rail]) -> String {
    if rails.is_empty() && denied.is_empty() {
        return "libfabric finds no port that could be a rail.\n".into();
    }
    let heading = ["RAIL", "PROTOCOL", "ADDRESS", "DEVICE", "SPEED", "NODE", ""];
    let mut table = Table::new(&heading, &[0, 1, 2, 3, 6]);
    let mut add = |rail: &Rail, remark: &str| {
        table.row([
            &rail.name,
            &rail.protocol,
            &rail.address,
            &or_nothing(rail.netdev.as_ref()),
            &or_nothing(rail.speed_mbps.map(|mbps| speed(mbps.into()))),
            &or_nothing(rail.node),
            &remark,
        ]);
    };
    rails.iter().for_each(|rail| add(rail, if rail.up { "" } else { "down" }));
    denied.iter().for_each(|rail| add(rail, "denied by the configuration"));
    let mut text = String::new();
    table.write_to(&mut text);
    text
}
