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
use beelined::config::{Admission, RailRules};
use beelined::ports;

/// A port with what the configuration says of it.
type Judged = (Rail, Admission);

/// Lists them.
pub fn list(arguments: &RailsArgs) -> anyhow::Result<()> {
    // Before there is a configuration, somebody wants to know what it could hold.
    let rules = arguments.config.read()?.map_or_else(RailRules::default, |config| config.rails);
    let ports = beeline_fabric::ports(&Filter::default()).context("cannot ask libfabric for this host's ports")?;
    let admission = |port: &Port| rules.admit(&port.provider, port.netdev.as_deref(), &[port.address]);
    let judged = ports.iter().map(|port| (ports::describe(port), admission(port)));
    let (admitted, left_out): (Vec<Judged>, Vec<Judged>) = judged.partition(|(_, said)| *said == Admission::Used);
    let admitted: Vec<Rail> = admitted.into_iter().map(|(rail, _)| rail).collect();
    if arguments.json {
        return print_json(&report(&rules, admitted, left_out, arguments));
    }
    print(&table(&admitted, &left_out))
}

/// All that `beeline topo` draws from. A host that hwloc cannot describe and a bridge that does not run or is not for
/// us to ask are left out: the rest is worth having.
fn report(rules: &RailRules, rails: Vec<Rail>, left_out: Vec<Judged>, arguments: &RailsArgs) -> Report {
    let unused = |(rail, said): Judged| Unused { name: rail.name, reason: said.sentence().into() };
    let mut report = Report {
        format: FORMAT,
        host: beeline_hwloc::discover().ok(),
        rails,
        unused: left_out.into_iter().map(unused).collect(),
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

fn table(rails: &[Rail], left_out: &[Judged]) -> String {
    if rails.is_empty() && left_out.is_empty() {
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
    for (index, rail) in rails.iter().enumerate() {
        let is_again = rails.iter().take(index).any(|other| other.name == rail.name);
        add(
            rail,
            if !rail.up {
                "down"
            } else if is_again {
                "the same port at another address"
            } else {
                ""
            },
        );
    }
    left_out.iter().for_each(|(rail, said)| add(rail, said.remark()));
    let mut text = String::new();
    table.write_to(&mut text);
    text
}
