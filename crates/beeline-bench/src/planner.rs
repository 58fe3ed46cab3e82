//! `beeline plan`: what links would give that are not here. A file names links with their rates, and cases with flows over them;
//! the rates are max-min fair ([`beeline_topo::fair`]). Nothing is measured: what is printed is called planned, and stands beside
//! what was published.

mod here;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, anyhow};
use beeline_topo::fair::{Flow, Share, shares};
use clap::{ArgGroup, Args};
use serde::{Deserialize, Serialize};
use toml::Spanned;

use crate::paper::{Figure, Source, new_table};
use crate::report::three_digits;

const FORMAT: i64 = 1;
/// The name of this host's plan.
const HERE: &str = "here";

/// The files that come with the program.
const BUILT_IN: [(&str, &str); 2] =
    [("vpi", include_str!("planner/vpi.toml")), ("socket-direct", include_str!("planner/socket-direct.toml"))];

const EXAMPLES: &str = "\
Examples:
  beeline plan vpi                           an Ethernet and an InfiniBand port, alone and together
  beeline plan socket-direct --json
  beeline plan here --between-nodes '160 Gbit/s'
                                             the ports of this host, as sysfs shows them
  beeline plan here --hwloc host.xml         those of the host on which `lstopo host.xml` was run
  beeline plan vpi --print-plan > mine.toml  links and flows to change
  beeline plan mine.toml";

/// Options of `beeline plan`.
#[derive(Args, Clone, Debug)]
#[command(after_help = EXAMPLES, group = ArgGroup::new("what").required(true).args(["plan", "list"]))]
pub struct PlanOptions {
    /// Links and flows: vpi, socket-direct, here (this host's ports), or a TOML file
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

    /// Print the rates as JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    format: Spanned<i64>,
    title: String,
    document: String,
    link: Vec<Link>,
    case: Vec<Case>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Link {
    name: Spanned<String>,
    rate: Spanned<String>,
    /// Where the rate is from.
    source: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Case {
    name: Spanned<String>,
    /// The case that its aggregate is compared with.
    against: Option<Spanned<String>>,
    /// What the document says of the comparison.
    published: Option<String>,
    flow: Vec<CaseFlow>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct CaseFlow {
    name: String,
    over: Vec<Spanned<String>>,
    #[serde(default = "one")]
    streams: Spanned<u32>,
    /// What one stream can do at most.
    most: Option<Spanned<String>>,
    /// Whether it is part of the aggregate; load is not.
    #[serde(default = "yes")]
    counts: bool,
}

fn one() -> Spanned<u32> {
    Spanned::new(0..0, 1)
}

fn yes() -> bool {
    true
}

/// What a file says, with its rates.
#[derive(Debug, Serialize)]
struct Planned {
    schema: &'static str,
    title: String,
    document: String,
    links: Vec<PlannedLink>,
    cases: Vec<PlannedCase>,
}

#[derive(Debug, Serialize)]
struct PlannedLink {
    name: String,
    bytes_per_second: f64,
    source: Option<String>,
}

#[derive(Debug, Serialize)]
struct PlannedCase {
    name: String,
    flows: Vec<PlannedFlow>,
    aggregate_bytes_per_second: f64,
    against: Option<String>,
    /// The aggregate over that of the other case.
    ratio: Option<f64>,
    published: Option<String>,
}

#[derive(Debug, Serialize)]
struct PlannedFlow {
    name: String,
    bytes_per_second: f64,
    counts: bool,
    /// The link that keeps it from more; its own limit, if there is none.
    held_by: Option<String>,
}

/// Runs `beeline plan`.
///
/// # Errors
/// When the file cannot be read, or says what cannot be, with its line.
pub fn run(options: &PlanOptions) -> Result<ExitCode> {
    if options.list {
        for (name, text) in BUILT_IN {
            let planned = plan(&Source { name: name.to_owned(), text })?;
            say!("{name:<14} {} ({})", planned.title, planned.document);
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
            (text.with_context(|| format!("cannot read {name}: expected a file, or one of {names}"))?, name.to_owned())
        }
    };
    if options.print_plan {
        say!("{}", text.trim_end());
        return Ok(ExitCode::SUCCESS);
    }
    let planned = plan(&Source { name: called, text: &text })?;
    match options.json {
        true => say!("{}", serde_json::to_string_pretty(&planned)?),
        false => print(&planned),
    }
    Ok(ExitCode::SUCCESS)
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

fn plan(source: &Source) -> Result<Planned> {
    let file: File = source.read()?;
    if *file.format.get_ref() != FORMAT {
        let what = format!("format {} is not understood: expected {FORMAT}", file.format.get_ref());
        return Err(source.error(file.format.span().start, &what));
    }
    let rate = |text: &Spanned<String>| {
        Figure::Throughput.parse(text.get_ref()).map_err(|what| source.error(text.span().start, &what))
    };
    let mut links: Vec<PlannedLink> = Vec::new();
    for link in &file.link {
        let name = link.name.get_ref();
        if links.iter().any(|known| known.name == *name) {
            return Err(source.error(link.name.span().start, &format!("there are two links called `{name}`")));
        }
        links.push(PlannedLink {
            name: name.clone(),
            bytes_per_second: rate(&link.rate)?,
            source: link.source.clone(),
        });
    }
    let mut cases: Vec<PlannedCase> = Vec::new();
    for case in &file.case {
        let mut flows = Vec::new();
        for flow in &case.flow {
            if *flow.streams.get_ref() == 0 {
                return Err(source.error(flow.streams.span().start, "expected one stream or more"));
            }
            let place = |name: &Spanned<String>| {
                let found = links.iter().position(|link| link.name == *name.get_ref());
                found.ok_or_else(|| {
                    let known = links.iter().map(|link| format!("`{}`", link.name)).collect::<Vec<_>>().join(", ");
                    let what = format!("there is no link `{}`: expected one of {known}", name.get_ref());
                    source.error(name.span().start, &what)
                })
            };
            flows.push(Flow {
                links: flow.over.iter().map(place).collect::<Result<_>>()?,
                streams: *flow.streams.get_ref(),
                most: flow.most.as_ref().map(rate).transpose()?,
            });
        }
        let capacities: Vec<f64> = links.iter().map(|link| link.bytes_per_second).collect();
        let shares = shares(&capacities, &flows)
            .map_err(|error| source.error(case.name.span().start, &format!("{}: {error}", case.name.get_ref())))?;
        cases.push(PlannedCase::of(case, &shares, &links, &cases, source)?);
    }
    Ok(Planned { schema: "beeline-plan/1", title: file.title, document: file.document, links, cases })
}

impl PlannedCase {
    fn of(
        case: &Case,
        shares: &[Share],
        links: &[PlannedLink],
        before: &[PlannedCase],
        source: &Source,
    ) -> Result<PlannedCase> {
        let flows: Vec<PlannedFlow> = case
            .flow
            .iter()
            .zip(shares)
            .map(|(flow, share)| PlannedFlow {
                name: flow.name.clone(),
                bytes_per_second: share.rate,
                counts: flow.counts,
                held_by: share.held_by.and_then(|link| Some(links.get(link)?.name.clone())),
            })
            .collect();
        let aggregate = flows.iter().filter(|flow| flow.counts).map(|flow| flow.bytes_per_second).sum();
        let ratio = match &case.against {
            None => None,
            Some(against) => match before.iter().find(|other| other.name == *against.get_ref()) {
                Some(other) => Some(aggregate / other.aggregate_bytes_per_second),
                None => {
                    let what = format!("there is no case `{}` before this one", against.get_ref());
                    return Err(source.error(against.span().start, &what));
                }
            },
        };
        Ok(PlannedCase {
            name: case.name.get_ref().clone(),
            flows,
            aggregate_bytes_per_second: aggregate,
            against: case.against.as_ref().map(|against| against.get_ref().clone()),
            ratio: ratio.filter(|ratio| ratio.is_finite()),
            published: case.published.clone(),
        })
    }
}

fn print(planned: &Planned) {
    let show = |rate: f64| Figure::Throughput.unit().show(rate);
    say!("{}\nPlanned, not measured: max-min fair rates over links of", planned.title);
    for link in &planned.links {
        let source = link.source.as_ref().map(|source| format!(" ({source})")).unwrap_or_default();
        say!("  {}: {}{source}", link.name, show(link.bytes_per_second));
    }
    for case in &planned.cases {
        say!("\n{}", case.name);
        let mut table = new_table();
        table.set_header(["flow", "rate", "held by"]);
        for flow in &case.flows {
            let name = if flow.counts { flow.name.clone() } else { format!("{} (not counted)", flow.name) };
            let held_by = flow.held_by.clone().unwrap_or_else(|| "its own limit".into());
            table.add_row([name, show(flow.bytes_per_second), held_by]);
        }
        say!("{table}");
        say!("aggregate: {}", show(case.aggregate_bytes_per_second));
        if let (Some(ratio), Some(against)) = (case.ratio, &case.against) {
            say!("planned: {} times `{against}`, {:+.1} %", three_digits(ratio), (ratio - 1.0) * 100.0);
        }
        if let Some(published) = &case.published {
            say!("published: {published}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(name: &str) -> Planned {
        let (name, text) = BUILT_IN.into_iter().find(|(own, _)| *own == name).unwrap();
        plan(&Source { name: name.into(), text }).unwrap()
    }

    fn ratio(planned: &Planned, case: &str) -> f64 {
        planned.cases.iter().find(|own| own.name.starts_with(case)).unwrap().ratio.unwrap()
    }

    #[test]
    fn two_fabrics_give_what_was_published() {
        let vpi = of("vpi");
        // 26.7 % more than Ethernet alone, with 1.2 % of the bus unused, which the planner does not know of.
        let both = ratio(&vpi, "Ethernet and SDP");
        assert!((1.267..1.267 * 1.012).contains(&both), "{both}");
        let case = &vpi.cases[1];
        assert_eq!(case.flows[0].bytes_per_second, case.flows[1].bytes_per_second);
        assert_eq!(case.flows[0].held_by.as_deref(), Some("PCIe x8 1.1"));
    }

    #[test]
    fn a_path_to_each_socket_gives_what_was_published() {
        let direct = of("socket-direct");
        assert!((ratio(&direct, "local") - 1.25).abs() < 1e-9 && (ratio(&direct, "direct: ") - 1.25).abs() < 1e-9);
        let loaded = ratio(&direct, "direct, with");
        assert!((1.16..1.28).contains(&loaded), "{loaded}");
    }

    #[test]
    fn what_is_wrong_is_told_with_its_line() {
        let text = "format = 1\ntitle = \"T\"\ndocument = \"D\"\n[[link]]\nname = \"a\"\nrate = \"1 GB/s\"\n\
            [[case]]\nname = \"c\"\nflow = [{ name = \"f\", over = [\"a\"] }]\n";
        assert!(plan(&Source { name: "f".into(), text }).is_ok());
        let cases = [
            ("format = 1", "format = 3", "f:1:10: format 3"),
            ("1 GB/s", "1 mile", "f:6:8: `1 mile`"),
            ("over = [\"a\"]", "over = [\"b\"]", "f:9:31: there is no link `b`"),
            ("over = [\"a\"]", "over = []", "f:8:8: c: nothing limits"),
            ("over = [\"a\"]", "over = [\"a\"], streams = 0", "f:9:47: expected one stream"),
            ("name = \"c\"", "name = \"c\"\nagainst = \"d\"", "f:9:11: there is no case"),
            ("title", "tilte", "f:2:1: unknown field"),
        ];
        for (from, to, expected) in cases {
            let text = text.replacen(from, to, 1);
            let error = plan(&Source { name: "f".into(), text: &text }).unwrap_err().to_string();
            assert!(error.starts_with(expected), "{expected}: {error}");
        }
    }
}
