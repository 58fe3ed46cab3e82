//! `beeline plan`: what links would give that are not here. A file ([`file`]) names links with their rates, protocols
//! with what they take, and cases with flows over them; rates, latencies and CPU time are computed ([`model`]). Nothing
//! is measured: what is printed is called planned, and stands beside what was published, and what a run measured if
//! there is one.

mod file;
mod here;
mod model;
mod show;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, anyhow};
use clap::{ArgGroup, Args};
use serde_json::{Value, json};

use crate::paper::Source;
use model::{Model, Planned};
use show::{Beside, Runs};

/// The name of this host's plan.
const HERE: &str = "here";

/// The files that come with the program.
const BUILT_IN: [(&str, &str); 5] = [
    ("socket-direct", include_str!("planner/socket-direct.toml")),
    ("vpi", include_str!("planner/vpi.toml")),
    ("forty-gig", include_str!("planner/forty-gig.toml")),
    ("namespaces", include_str!("planner/namespaces.toml")),
    ("virtual-machines", include_str!("planner/virtual-machines.toml")),
];

const EXAMPLES: &str = "\
Examples:
  beeline plan vpi                           an Ethernet and an InfiniBand port, alone and together
  beeline plan socket-direct --streams 1,2,4,8
  beeline plan forty-gig --json
  beeline plan namespaces --measured target/papers/hosts-vpi-both
                                             what was planned of two rails, and what they gave
  beeline plan here --between-nodes '160 Gbit/s'
                                             the ports of this host, as sysfs shows them
  beeline plan here --hwloc host.xml         those of the host on which `lstopo host.xml` was run
  beeline plan vpi --print-plan > mine.toml  links and flows to change
  beeline plan mine.toml";

/// Options of `beeline plan`.
#[derive(Args, Clone, Debug)]
#[command(after_help = EXAMPLES, group = ArgGroup::new("what").required(true).args(["plan", "list"]))]
pub struct PlanOptions {
    /// Links and flows: socket-direct, vpi, forty-gig, namespaces, virtual-machines, here (this host's ports), or a
    /// TOML file
    #[arg(value_name = "NAME|FILE")]
    pub plan: Option<String>,

    /// Show the files that come with the program and exit
    #[arg(long)]
    pub list: bool,

    /// Print the file, to be changed, and exit
    #[arg(long, requires = "plan")]
    pub print_plan: bool,

    /// With `here`: a host as hwloc describes it in XML, instead of this one
    #[arg(long, value_name = "FILE")]
    pub hwloc: Option<PathBuf>,

    /// With `here`: what the link between two NUMA nodes carries, which no host tells
    #[arg(long, value_name = "RATE")]
    pub between_nodes: Option<String>,

    /// Also with so many streams of each flow, instead of those of the file
    #[arg(long, value_name = "N,...", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub streams: Vec<u32>,

    /// Show beside each case that names a cell what a run of `beeline bench paper` measured (may be given several
    /// times)
    #[arg(long, value_name = "RUN")]
    pub measured: Vec<PathBuf>,

    /// Print what is planned as JSON
    #[arg(long)]
    pub json: bool,
}

/// Runs `beeline plan`.
///
/// # Errors
/// When the file cannot be read, or says what cannot be, with its line.
pub fn run(options: &PlanOptions) -> Result<ExitCode> {
    if options.list {
        for (name, text) in BUILT_IN {
            let model = file::read(&Source { name: name.to_owned(), text })?;
            say!("{name:<16} {} ({})", model.title, model.document);
        }
        return Ok(ExitCode::SUCCESS);
    }
    let name = options.plan.as_deref().context("which plan?")?;
    let is_here = name == HERE;
    if !is_here && (options.hwloc.is_some() || options.between_nodes.is_some()) {
        return Err(anyhow!("--hwloc and --between-nodes belong to `beeline plan {HERE}`"));
    }
    let (text, called) = match BUILT_IN.iter().find(|(own, _)| *own == name) {
        Some((_, text)) => ((*text).to_owned(), format!("{name}.toml (built in)")),
        None if is_here => (of_host(options)?, "this host".to_owned()),
        None => {
            let names = BUILT_IN.map(|(name, _)| name).join(", ");
            let text = std::fs::read_to_string(name);
            (
                text.with_context(|| format!("cannot read {name}: expected a file, `here`, or one of {names}"))?,
                name.to_owned(),
            )
        }
    };
    if options.print_plan {
        say!("{}", text.trim_end());
        return Ok(ExitCode::SUCCESS);
    }
    let model = file::read(&Source { name: called, text: &text })?;
    let planned = model.plan();
    let runs = Runs::read(&options.measured)?;
    let streams: Vec<(u32, Vec<Planned>)> =
        options.streams.iter().map(|&streams| (streams, model.with_streams(streams).plan())).collect();
    match options.json {
        true => say!("{}", serde_json::to_string_pretty(&document(&model, &planned, &streams, &runs))?),
        false => show::print(&model, &planned, &streams, &runs),
    }
    Ok(ExitCode::SUCCESS)
}

fn document(model: &Model, planned: &[Planned], streams: &[(u32, Vec<Planned>)], runs: &Runs) -> Value {
    let links: Vec<Value> = model
        .links
        .iter()
        .map(|link| json!({ "name": link.name, "bytes_per_second": link.rate, "source": link.source }))
        .collect();
    let measured: Vec<Value> = model
        .cases
        .iter()
        .zip(planned)
        .flat_map(|(case, own)| runs.of(case, own).into_iter().map(move |beside| (case, beside)))
        .map(|(case, Beside { cell, figure, measured, planned })| {
            json!({ "case": case.name, "cell": cell, "figure": figure, "measured": measured, "planned": planned })
        })
        .collect();
    let streams: Vec<Value> =
        streams.iter().map(|(streams, cases)| json!({ "streams": streams, "cases": cases })).collect();
    json!({
        "schema": "beeline-plan/2",
        "title": model.title,
        "document": model.document,
        "links": links,
        "cases": planned,
        "with_streams": streams,
        "measured": measured,
    })
}

/// The text of a plan of a host's ports.
fn of_host(options: &PlanOptions) -> Result<String> {
    let sysfs = Path::new("/sys");
    let (host, sysfs) = match &options.hwloc {
        None => (beeline_topo::sysfs::read(sysfs).context("cannot read /sys")?, Some(sysfs)),
        Some(file) => {
            let text = std::fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
            let host = beeline_topo::xml::read(&text);
            // Its slots are not those of this host.
            (host.with_context(|| format!("{} is not what lstopo writes", file.display()))?, None)
        }
    };
    here::text(&host, sysfs, options.between_nodes.as_deref()).map_err(|what| anyhow!(what))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(name: &str) -> Vec<Planned> {
        let (name, text) = BUILT_IN.into_iter().find(|(own, _)| *own == name).unwrap();
        file::read(&Source { name: name.into(), text }).unwrap().plan()
    }

    fn case<'a>(planned: &'a [Planned], name: &str) -> &'a Planned {
        planned.iter().find(|own| own.name.starts_with(name)).unwrap()
    }

    fn ratio(planned: &[Planned], name: &str) -> f64 {
        case(planned, name).ratio.unwrap()
    }

    #[test]
    fn two_fabrics_give_what_was_published() {
        let vpi = of("vpi");
        // 26.7 % more than Ethernet alone, with 1.2 % of the bus unused, which the planner does not know of.
        let both = ratio(&vpi, "Ethernet and SDP");
        assert!((1.267..1.267 * 1.012).contains(&both), "{both}");
        let flows = &vpi[1].flows;
        assert_eq!(flows[0].bytes_per_second, flows[1].bytes_per_second);
        assert_eq!(flows[0].held_by, "PCIe x8 1.1");
        // The bus holds both, so no other cable pays.
        assert!(vpi[1].pays.len() == 1 && vpi[1].pays[0].0.contains("PCIe"), "{:?}", vpi[1].pays);
    }

    #[test]
    fn the_faster_protocol_saves_as_much_latency_as_was_published() {
        let saved = case(&of("vpi"), "SDP alone").latency_saved.unwrap();
        // 54.4 % on average over the sizes.
        assert!((saved - 0.544).abs() < 0.015, "{saved}");
    }

    #[test]
    fn a_path_to_each_socket_gives_what_was_published() {
        let direct = of("socket-direct");
        assert!((ratio(&direct, "local") - 1.25).abs() < 1e-9 && (ratio(&direct, "direct: ") - 1.25).abs() < 1e-9);
        // 16 to 28 % more under load on the bus, 80 % less latency, half the CPU time.
        let loaded = case(&direct, "direct, with");
        assert!((1.16..1.28).contains(&loaded.ratio.unwrap()), "{loaded:?}");
        let saved = case(&direct, "direct: ").latency_saved.unwrap();
        assert!((saved - 0.8).abs() < 0.03, "{saved}");
        assert!(case(&direct, "remote").pays[0].0.contains("together"), "{:?}", direct[0].pays);
        let cpu = case(&direct, "direct: ").cpu_saved.unwrap();
        assert!((0.5..0.6).contains(&cpu), "{cpu}");
    }

    #[test]
    fn rails_of_virtual_machines_give_what_tc_leaves_of_them() {
        let planned = of("virtual-machines");
        // Of 40 and of 60 Mbit/s what frames leave, whatever the node.
        let rate = |name: &str| case(&planned, name).aggregate_bytes_per_second / 1e6;
        for (name, wanted) in [("remote", 4.73), ("local", 4.73), ("both", 7.10), ("one stream", 7.10)] {
            assert!((rate(name) - wanted).abs() < 0.01, "{name}: {}", rate(name));
        }
        assert_eq!(ratio(&planned, "local"), 1.0);
        // Its rails are those that the script sets.
        let script = include_str!("../../../tests/rdma/bench.sh");
        assert!(script.contains("limit 40mbit 20mbit"), "bench.sh sets other rates");
    }

    #[test]
    fn roce_fills_as_much_of_the_link_as_was_published() {
        let planned = of("forty-gig");
        // 92.2 % of the peak with jumbo frames, 86 % without.
        let [jumbo, usual] =
            ["RoCE, MTU 9000", "RoCE, MTU 1500"].map(|name| case(&planned, name).share_of_peak.unwrap());
        assert!((jumbo - 0.922).abs() < 0.015 && (usual - 0.86).abs() < 0.015, "{jumbo} {usual}");
    }
}
