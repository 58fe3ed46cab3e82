//! What a file of links says, read and checked: every wrong value is refused with its line.

use anyhow::{Result, anyhow};
use beeline_topo::fair::{FairError, shares};
use serde::Deserialize;
use toml::Spanned;

use super::model::{Case, Column, Flow, Link, Measured, Model, Protocol, Published};
use crate::paper::axis::{Message, Sizes};
use crate::paper::{Figure, Source};

const FORMAT: i64 = 1;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    format: Spanned<i64>,
    title: String,
    document: String,
    link: Vec<FileLink>,
    #[serde(default)]
    protocol: Vec<FileProtocol>,
    case: Vec<FileCase>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct FileLink {
    name: Spanned<String>,
    rate: Spanned<String>,
    /// What crossing it takes, where nothing is in the way.
    latency: Option<Spanned<String>>,
    /// Bytes of a frame that are the programs', and those around them.
    payload: Option<Message>,
    overhead: Option<Message>,
    /// What waits in front of it when it is full.
    queue: Option<Message>,
    /// CPU time of each end for 10^9 bytes that cross it.
    cpu_gb: Option<Spanned<String>>,
    /// Where the rate is from.
    source: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct FileProtocol {
    name: Spanned<String>,
    /// One way, from program to program, without the links.
    latency: Option<Spanned<String>>,
    /// What one stream does at most.
    rate: Option<Spanned<String>>,
    /// CPU time of each end for a message, and for 10^9 bytes.
    cpu_message: Option<Spanned<String>>,
    cpu_gb: Option<Spanned<String>>,
    source: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct FileCase {
    name: Spanned<String>,
    /// The case that it is compared with.
    against: Option<Spanned<String>>,
    /// What the document says of the comparison.
    published: Option<String>,
    published_latency: Option<String>,
    published_cpu: Option<String>,
    /// The link whose rate is called the peak, and what is said of the share.
    peak: Option<Spanned<String>>,
    published_peak: Option<String>,
    /// Sizes of messages whose latency is planned.
    bytes: Option<Sizes>,
    /// Whether latencies are those of messages among all the others.
    #[serde(default)]
    loaded: bool,
    /// The cell of a run that measures it, or several, and whose figures are meant.
    cell: Option<Cells>,
    #[serde(default)]
    column: Column,
    flow: Vec<FileFlow>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct FileFlow {
    name: String,
    over: Vec<Spanned<String>>,
    by: Option<Spanned<String>>,
    #[serde(default = "one")]
    streams: Spanned<u32>,
    /// What one stream can do at most.
    most: Option<Spanned<String>>,
    /// Whether it is part of the aggregate; load is not.
    #[serde(default = "yes")]
    counts: bool,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(untagged, expecting = "expected the name of a cell, or a list of such names")]
enum Cells {
    One(String),
    Several(Vec<String>),
}

impl From<Cells> for Vec<String> {
    fn from(cells: Cells) -> Self {
        match cells {
            Cells::One(cell) => vec![cell],
            Cells::Several(cells) => cells,
        }
    }
}

fn one() -> Spanned<u32> {
    Spanned::new(0..0, 1)
}

fn yes() -> bool {
    true
}

/// Reads one.
///
/// # Errors
/// With the line of what is wrong.
pub fn read(source: &Source) -> Result<Model> {
    let file: File = source.read()?;
    if *file.format.get_ref() != FORMAT {
        let what = format!("format {} is not understood: expected {FORMAT}", file.format.get_ref());
        return Err(source.error(file.format.span().start, &what));
    }
    let mut links = Vec::new();
    for link in &file.link {
        links.push(link.read(source)?);
    }
    is_single(file.link.iter().map(|link| &link.name), "links", source)?;
    let mut protocols = Vec::new();
    for protocol in &file.protocol {
        protocols.push(protocol.read(source)?);
    }
    is_single(file.protocol.iter().map(|protocol| &protocol.name), "protocols", source)?;
    is_single(file.case.iter().map(|case| &case.name), "cases", source)?;
    let mut model = Model { title: file.title, document: file.document, links, protocols, cases: Vec::new() };
    for case in &file.case {
        let read = case.read(&model, source)?;
        let (capacities, flows) = read.fair(&model.links, &model.protocols);
        if let Err(error) = shares(&capacities, &flows) {
            let error = match error {
                FairError::Unlimited(flow) => format!("nothing limits `{}`", case.flow[flow].name),
                other => other.to_string(),
            };
            return Err(source.error(case.name.span().start, &format!("{}: {error}", case.name.get_ref())));
        }
        model.cases.push(read);
    }
    Ok(model)
}

/// Whether no two have one name.
fn is_single<'a>(names: impl Iterator<Item = &'a Spanned<String>>, what: &str, source: &Source) -> Result<()> {
    let mut seen = std::collections::BTreeSet::new();
    for name in names {
        if !seen.insert(name.get_ref()) {
            return Err(source.error(name.span().start, &format!("there are two {what} called `{}`", name.get_ref())));
        }
    }
    Ok(())
}

fn value(text: &Spanned<String>, figure: Figure, source: &Source) -> Result<f64> {
    figure.parse(text.get_ref()).map_err(|what| source.error(text.span().start, &what))
}

/// A time in seconds; none where there is none.
fn seconds(text: Option<&Spanned<String>>, source: &Source) -> Result<f64> {
    text.map_or(Ok(0.0), |text| Ok(value(text, Figure::Mean, source)? / 1e9))
}

/// The place of a name in a list, or an error that names those that there are.
fn place<'a>(
    name: &Spanned<String>,
    known: impl Iterator<Item = &'a str> + Clone,
    what: &str,
    source: &Source,
) -> Result<usize> {
    known.clone().position(|known| known == name.get_ref()).ok_or_else(|| {
        let known: Vec<String> = known.map(|known| format!("`{known}`")).collect();
        let expected = if known.is_empty() { "none here".to_owned() } else { format!("one of {}", known.join(", ")) };
        let what = format!("there is no {what} `{}`: expected {expected}", name.get_ref());
        source.error(name.span().start, &what)
    })
}

impl FileLink {
    fn read(&self, source: &Source) -> Result<Link> {
        let raw = value(&self.rate, Figure::Throughput, source)?;
        let useful = match (self.payload, self.overhead) {
            (None, None) => 1.0,
            (Some(Message(payload)), Some(Message(overhead))) => payload as f64 / (payload + overhead) as f64,
            _ => {
                let what = format!("link `{}` has one of `payload` and `overhead`: expected both", self.name.get_ref());
                return Err(source.error(self.name.span().start, &what));
            }
        };
        Ok(Link {
            name: self.name.get_ref().clone(),
            raw_rate: raw,
            rate: raw * useful,
            latency: seconds(self.latency.as_ref(), source)?,
            queue: self.queue.map_or(0.0, |Message(bytes)| bytes as f64),
            cpu_per_byte: seconds(self.cpu_gb.as_ref(), source)? / 1e9,
            source: self.source.clone(),
        })
    }
}

impl FileProtocol {
    fn read(&self, source: &Source) -> Result<Protocol> {
        Ok(Protocol {
            name: self.name.get_ref().clone(),
            latency: seconds(self.latency.as_ref(), source)?,
            rate: self.rate.as_ref().map(|rate| value(rate, Figure::Throughput, source)).transpose()?,
            cpu_per_message: seconds(self.cpu_message.as_ref(), source)?,
            cpu_per_byte: seconds(self.cpu_gb.as_ref(), source)? / 1e9,
            source: self.source.clone(),
        })
    }
}

impl FileCase {
    fn read(&self, model: &Model, source: &Source) -> Result<Case> {
        let link = |name: &Spanned<String>| place(name, model.links.iter().map(|l| l.name.as_str()), "link", source);
        let mut flows = Vec::new();
        for flow in &self.flow {
            if *flow.streams.get_ref() == 0 {
                return Err(source.error(flow.streams.span().start, "expected one stream or more"));
            }
            let protocols = model.protocols.iter().map(|protocol| protocol.name.as_str());
            flows.push(Flow {
                name: flow.name.clone(),
                links: flow.over.iter().map(link).collect::<Result<_>>()?,
                protocol: flow.by.as_ref().map(|name| place(name, protocols, "protocol", source)).transpose()?,
                streams: *flow.streams.get_ref(),
                most: flow.most.as_ref().map(|most| value(most, Figure::Throughput, source)).transpose()?,
                counts: flow.counts,
            });
        }
        let before = model.cases.iter().map(|case| case.name.as_str());
        let against = self
            .against
            .as_ref()
            .map(|name| place(name, before, "case", source).map_err(|error| anyhow!("{error} before this one")));
        let published = |text: &Option<String>| text.clone();
        Ok(Case {
            name: self.name.get_ref().clone(),
            against: against.transpose()?,
            peak: self.peak.as_ref().map(link).transpose()?,
            sizes: self.bytes.as_ref().map(|sizes| sizes.0.clone()).unwrap_or_default(),
            is_loaded: self.loaded,
            published: Published {
                rate: published(&self.published),
                latency: published(&self.published_latency),
                cpu: published(&self.published_cpu),
                peak: published(&self.published_peak),
            },
            measured: self.cell.clone().map(|cells| Measured { cells: cells.into(), column: self.column }),
            flows,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "format = 1\ntitle = \"T\"\ndocument = \"D\"\n[[link]]\nname = \"a\"\nrate = \"1 GB/s\"\n\
        [[case]]\nname = \"c\"\nflow = [{ name = \"f\", over = [\"a\"] }]\n";

    #[test]
    fn what_is_wrong_is_told_with_its_line() {
        assert!(read(&Source { name: "f".into(), text: GOOD }).is_ok());
        let cases = [
            ("format = 1", "format = 3", "f:1:10: format 3"),
            ("1 GB/s", "1 mile", "f:6:8: `1 mile`"),
            ("\"1 GB/s\"", "\"1 GB/s\"\nlatency = \"1 GB/s\"", "f:7:11: `1 GB/s` is no value"),
            ("\"1 GB/s\"", "\"1 GB/s\"\npayload = 0", "f:7:11: a message of 0 bytes"),
            ("\"1 GB/s\"", "\"1 GB/s\"\npayload = 1", "f:5:8: link `a` has one of"),
            ("over = [\"a\"]", "over = [\"b\"]", "f:9:31: there is no link `b`: expected one of `a`"),
            ("over = [\"a\"]", "over = []", "f:8:8: c: nothing limits `f`"),
            ("over = [\"a\"]", "over = [\"a\"], by = \"p\"", "f:9:42: there is no protocol `p`: expected none here"),
            ("over = [\"a\"]", "over = [\"a\"], streams = 0", "f:9:47: expected one stream"),
            ("name = \"c\"", "name = \"c\"\nagainst = \"d\"", "f:9:11: there is no case"),
            ("name = \"c\"", "name = \"c\"\npeak = \"d\"", "f:9:8: there is no link"),
            ("name = \"c\"", "name = \"c\"\ncell = 3", "f:9:8: expected the name of a cell, or a list"),
            ("title", "tilte", "f:2:1: unknown field"),
        ];
        for (from, to, expected) in cases {
            let text = GOOD.replacen(from, to, 1);
            let error = read(&Source { name: "f".into(), text: &text }).unwrap_err().to_string();
            assert!(error.starts_with(expected), "{expected}: {error}");
        }
    }
}
