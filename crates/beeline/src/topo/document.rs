//! What is known of a host: itself, its rails, and the paths that its connections take.

use std::path::Path;

use anyhow::Context;
use beeline_topo::host::Host;
use beeline_topo::report::{Connection, Report, Unused};
use beeline_topo::{Rail, sysfs, xml};
use serde::Serialize;

use super::paths::{Nearest, Towards};
use super::{bridge, paths};
use crate::cli::TopoArgs;
use crate::stat::namespaces::{self, Namespace};

/// What `--json` prints, and what is drawn.
#[derive(Serialize)]
pub struct Document {
    /// Of this document's form.
    pub version: u32,
    pub host: Host,
    pub rails: Vec<Rail>,
    /// Why there are no rails to choose from.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rails_unknown: Option<String>,
    pub unused: Vec<Unused>,
    /// For each peer, or for one that all rails reach.
    pub paths: Vec<Towards>,
    pub connections: Vec<Connection>,
    /// The ports that are nearest to the CPUs of each node.
    pub nearest: Vec<Nearest>,
    /// Network namespaces of this host, if there are processes with Beeline in others than the command's own.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub namespaces: Vec<Namespace>,
}

impl Document {
    pub fn of(arguments: &TopoArgs) -> anyhow::Result<Self> {
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
        let is_here = arguments.xml.is_none() && arguments.rails.is_none();
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
            namespaces: if is_here { namespaces::all() } else { Vec::new() },
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
