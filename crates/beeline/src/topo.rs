//! `beeline topo`: this host's packages, nodes and rails, and the path that connections take from each CPU.
//!
//! 1. The host and its rails are what the bridge says (`beelined rails --json`), because it is the bridge that chooses. Without
//!    a bridge the host is read from `/sys`, and the drawing says why rails are unknown.
//! 2. The paths are not asked of the bridge but chosen anew, by the same code and from what the bridge said.
//! 3. Nothing here needs libfabric or hwloc.

mod bridge;
mod draw;
mod paths;
mod tree;

use std::path::Path;
use std::process::ExitCode;

use anyhow::Context;
use beeline_topo::host::{Host, Override};
use beeline_topo::report::{Connection, Report, Unused};
use beeline_topo::{Rail, sysfs, xml};
use serde::Serialize;

use crate::cli::TopoArgs;
use crate::output;
use paths::{Nearest, Towards};
use tree::Style;

/// What `--json` prints, and what is drawn.
#[derive(Serialize)]
struct Document {
    /// Of this document's form.
    version: u32,
    host: Host,
    rails: Vec<Rail>,
    /// Why there are no rails to choose from.
    #[serde(skip_serializing_if = "Option::is_none")]
    rails_unknown: Option<String>,
    unused: Vec<Unused>,
    /// For each peer, or for one that all rails reach.
    paths: Vec<Towards>,
    connections: Vec<Connection>,
    /// The ports that are nearest to the CPUs of each node.
    nearest: Vec<Nearest>,
}

pub fn run(arguments: &TopoArgs) -> anyhow::Result<ExitCode> {
    let document = Document::of(arguments)?;
    let text = if arguments.json {
        serde_json::to_string_pretty(&document)? + "\n"
    } else {
        draw::draw(&document, arguments.why).render(&Style::of_terminal(arguments.ascii))
    };
    output::print(&text)?;
    Ok(ExitCode::SUCCESS)
}

impl Document {
    fn of(arguments: &TopoArgs) -> anyhow::Result<Self> {
        let (report, rails_unknown) = match report(arguments)? {
            Ok(report) => (Some(report), None),
            Err(why) => (None, Some(why)),
        };
        let mut report = report.unwrap_or_default();
        let mut host = match (&arguments.xml, report.host.take()) {
            (Some(file), _) => host_from_file(file)?,
            (None, Some(host)) => host,
            (None, None) => this_host()?,
        };
        host.apply(&arguments.near)?;
        Ok(Self {
            version: 1,
            paths: paths::towards(&host, &report),
            nearest: paths::nearest(&host),
            host,
            rails: report.rails,
            rails_unknown,
            unused: report.unused,
            connections: report.connections,
        })
    }
}

/// The bridge's report, or why there is none, which is no error.
fn report(arguments: &TopoArgs) -> anyhow::Result<Result<Report, String>> {
    if let Some(file) = &arguments.rails {
        let text = read(file)?;
        return Ok(Ok(Report::read(&text).with_context(|| file.display().to_string())?));
    }
    if arguments.xml.is_some() {
        return Ok(Err("the host was read from a file, and none was given for its rails (--rails)".into()));
    }
    Ok(bridge::ask(arguments.bridge.as_deref()))
}

fn this_host() -> anyhow::Result<Host> {
    let mut host = sysfs::read(Path::new("/sys")).context("cannot describe this host")?;
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    // What the kernel says before anybody has given it a name.
    host.name = Some(name.trim().to_owned()).filter(|name| !name.is_empty() && name != "(none)");
    Ok(host)
}

fn host_from_file(file: &Path) -> anyhow::Result<Host> {
    let mut host = xml::read(&read(file)?).with_context(|| file.display().to_string())?;
    host.source = file.display().to_string();
    Ok(host)
}

fn read(file: &Path) -> anyhow::Result<String> {
    std::fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))
}

/// `PORT=NODE,NODE`.
pub fn parse_near(text: &str) -> Result<Override, String> {
    let wrong = || "it is not of the form PORT=NODE or PORT=NODE,NODE".to_owned();
    let (port, nodes) = text.split_once('=').ok_or_else(wrong)?;
    let nodes: Vec<u32> = nodes.split(',').map(str::parse).collect::<Result<_, _>>().map_err(|_| wrong())?;
    if port.is_empty() {
        return Err(wrong());
    }
    Ok(Override { port: port.into(), nodes, speed_mbps: None })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_s_place_is_given_as_a_list_of_nodes() {
        let near = parse_near("eth0=1,3").unwrap();
        assert_eq!((near.port.as_str(), near.nodes), ("eth0", vec![1, 3]));
        for wrong in ["eth0", "=1", "eth0=", "eth0=1,", "eth0=x"] {
            assert!(parse_near(wrong).is_err(), "{wrong}");
        }
    }
}
