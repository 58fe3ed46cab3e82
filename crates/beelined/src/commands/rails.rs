//! `beelined rails`: which fabric ports this host has.

use anyhow::Context;
use beeline_fabric::{Filter, Port};
use comfy_table::{Table, presets};
use serde::Serialize;

use super::{print, print_json};
use crate::cli::RailsArgs;
use beelined::config::{Config, RailRules};

#[derive(Serialize)]
struct Row {
    provider: String,
    domain: String,
    fabric: String,
    address: String,
    netdev: Option<String>,
    numa_node: Option<u32>,
    link_bits_per_second: Option<u64>,
    link_up: Option<bool>,
    /// Whether the configuration admits it.
    admitted: bool,
}

impl Row {
    fn new(port: Port, rules: &RailRules) -> Self {
        let admitted = rules.admit(&port.provider, port.netdev.as_deref(), &[port.address]);
        Self {
            provider: port.provider,
            domain: port.domain,
            fabric: port.fabric,
            address: port.address.to_string(),
            netdev: port.netdev,
            numa_node: port.numa_node,
            link_bits_per_second: port.link_bits_per_second,
            link_up: port.link_up,
            admitted,
        }
    }

    fn cells(&self) -> [String; 7] {
        let or_dash = |text: Option<String>| text.unwrap_or_else(|| "-".into());
        [
            self.provider.clone(),
            self.domain.clone(),
            self.address.clone(),
            or_dash(self.netdev.clone()),
            or_dash(self.link_bits_per_second.map(|bits| format!("{} Mb/s", bits / 1_000_000))),
            or_dash(self.numa_node.map(|node| node.to_string())),
            match (self.admitted, self.link_up) {
                (false, _) => "denied by the configuration",
                (true, Some(false)) => "down",
                (true, _) => "",
            }
            .into(),
        ]
    }
}

/// Lists them.
pub fn list(arguments: &RailsArgs) -> anyhow::Result<()> {
    let path = &arguments.config.config;
    // Before there is a configuration, somebody wants to know what it could hold.
    let rules = if path.exists() { Config::read(path)?.rails } else { RailRules::default() };
    let ports = beeline_fabric::ports(&Filter::default()).context("cannot ask libfabric for this host's ports")?;
    let rows: Vec<Row> = ports.into_iter().map(|port| Row::new(port, &rules)).collect();
    if arguments.json {
        return print_json(&rows);
    }
    if rows.is_empty() {
        return print("libfabric finds no port that could be a rail.\n");
    }
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header(["PROVIDER", "DOMAIN", "ADDRESS", "DEVICE", "SPEED", "NODE", ""]);
    rows.iter().for_each(|row| {
        table.add_row(row.cells());
    });
    for column in table.column_iter_mut() {
        column.set_padding((0, 2));
    }
    let lines: Vec<String> = table.lines().map(|line| line.trim_end().to_owned() + "\n").collect();
    print(&lines.concat())
}
