//! What links give: rates, latencies and CPU time of flows, and what would pay.
//!
//! 1. Rates are max-min fair ([`beeline_topo::fair`]). A link's rate is what its frames leave to the programs' bytes. A
//!    stream does no more than its protocol copies in a second, than its CPU can, and than the file says.
//! 2. The latency of a message is its protocol's, and of each link the crossing and what waits before it, and its bytes
//!    over the slowest of all. It goes in pieces (cut-through): links are crossed at the same time. In a loaded case a
//!    full link has its whole queue before it, and one that is not full what the M/M/1 queue of frames has: one frame's
//!    time by ρ/(1-ρ), at most the queue.
//! 3. CPU time is each end's: for a message and for each byte, and for each byte what the links add that it crosses.

use beeline_topo::fair::{self, shares};
use serde::{Deserialize, Serialize};

/// From here on a link is full.
const FULL: f64 = 0.999;
/// Less is nothing.
const LEAST_GAIN: f64 = 1e-6;
/// What waits before a link that is not full, in bytes: large frames.
const FRAME: f64 = 9000.0;
/// The size of messages where nothing is said.
const MESSAGE: u64 = 65_536;

#[derive(Clone, Debug)]
pub struct Model {
    pub title: String,
    pub document: String,
    pub links: Vec<Link>,
    pub protocols: Vec<Protocol>,
    pub cases: Vec<Case>,
}

/// Rates in bytes a second, times in seconds.
#[derive(Clone, Debug)]
pub struct Link {
    pub name: String,
    pub raw_rate: f64,
    pub rate: f64,
    pub latency: f64,
    pub queue: f64,
    pub cpu_per_byte: f64,
    pub source: Option<String>,
}

#[derive(Clone, Debug)]
pub struct Protocol {
    pub name: String,
    pub latency: f64,
    pub rate: Option<f64>,
    pub cpu_per_message: f64,
    pub cpu_per_byte: f64,
    pub source: Option<String>,
}

#[derive(Clone, Debug)]
pub struct Case {
    pub name: String,
    pub against: Option<usize>,
    pub peak: Option<usize>,
    pub sizes: Vec<u64>,
    pub is_loaded: bool,
    pub published: Published,
    pub measured: Option<Measured>,
    pub flows: Vec<Flow>,
}

/// What the document says, by what it says it of.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Published {
    pub rate: Option<String>,
    pub latency: Option<String>,
    pub cpu: Option<String>,
    pub peak: Option<String>,
}

/// Whose figure.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Column {
    Tcp,
    #[default]
    Beeline,
}

/// Cells of a run.
#[derive(Clone, Debug)]
pub struct Measured {
    pub cells: Vec<String>,
    pub column: Column,
}

#[derive(Clone, Debug)]
pub struct Flow {
    pub name: String,
    pub links: Vec<usize>,
    pub protocol: Option<usize>,
    pub streams: u32,
    pub most: Option<f64>,
    pub counts: bool,
}

/// What is planned of a case.
#[derive(Clone, Debug, Serialize)]
pub struct Planned {
    pub name: String,
    pub flows: Vec<PlannedFlow>,
    pub aggregate_bytes_per_second: f64,
    pub against: Option<String>,
    /// The aggregate over that of the other case.
    pub ratio: Option<f64>,
    /// How much of the other case's latency is saved, on average over the sizes.
    pub latency_saved: Option<f64>,
    /// How much of the other case's CPU time for a byte is saved.
    pub cpu_saved: Option<f64>,
    /// The aggregate's share of the peak.
    pub share_of_peak: Option<f64>,
    /// What a link of twice the rate, or twice as many streams, would add to the aggregate.
    pub pays: Vec<(String, f64)>,
    pub published: Published,
}

#[derive(Clone, Debug, Serialize)]
pub struct PlannedFlow {
    pub name: String,
    pub bytes_per_second: f64,
    pub counts: bool,
    /// The link that keeps it from more; what else does, if there is none.
    pub held_by: String,
    /// CPUs that are busy at each end.
    pub cpus: f64,
    pub cpu_seconds_per_gb: f64,
    /// Bytes, and seconds.
    pub latencies: Vec<(u64, f64)>,
}

impl Model {
    /// With so many streams of each flow that counts.
    pub fn with_streams(&self, streams: u32) -> Model {
        let mut model = self.clone();
        for flow in model.cases.iter_mut().flat_map(|case| &mut case.flows).filter(|flow| flow.counts) {
            flow.streams = streams;
        }
        model
    }

    pub fn plan(&self) -> Vec<Planned> {
        let mut planned: Vec<Planned> = Vec::new();
        for case in &self.cases {
            let flows = case.flows(&self.links, &self.protocols);
            let mut own = Planned {
                name: case.name.clone(),
                aggregate_bytes_per_second: aggregate(&flows),
                flows,
                against: None,
                ratio: None,
                latency_saved: None,
                cpu_saved: None,
                share_of_peak: None,
                pays: self.pays(case),
                published: case.published.clone(),
            };
            if let Some(peak) = case.peak {
                own.share_of_peak = finite(own.aggregate_bytes_per_second / self.links[peak].raw_rate);
            }
            if let Some(other) = case.against.and_then(|against| planned.get(against)) {
                own.against = Some(other.name.clone());
                own.ratio = finite(own.aggregate_bytes_per_second / other.aggregate_bytes_per_second);
                own.latency_saved = latency_saved(&own.flows, &other.flows);
                own.cpu_saved =
                    cpu_per_byte(&own.flows).zip(cpu_per_byte(&other.flows)).map(|(own, other)| 1.0 - own / other);
            }
            planned.push(own);
        }
        planned
    }

    /// What would pay, best first.
    fn pays(&self, case: &Case) -> Vec<(String, f64)> {
        let before = aggregate(&case.flows(&self.links, &self.protocols));
        let mut pays = Vec::new();
        let mut used: Vec<usize> = case.flows.iter().flat_map(|flow| flow.links.iter().copied()).collect();
        used.sort_unstable();
        used.dedup();
        let with_twice = |twice: &[usize]| {
            let mut links = self.links.clone();
            twice.iter().for_each(|&link| links[link].rate *= 2.0);
            aggregate(&case.flows(&links, &self.protocols)) / before - 1.0
        };
        for &link in &used {
            pays.push((format!("twice `{}`", self.links[link].name), with_twice(&[link])));
        }
        // Where several are full, one alone adds nothing.
        let full = case.full(&self.links, &self.protocols);
        if full.len() > 1 && pays.iter().all(|(_, gain)| *gain <= LEAST_GAIN) {
            let names: Vec<String> = full.iter().map(|&link| format!("`{}`", self.links[link].name)).collect();
            pays.push((format!("twice {} together", names.join(" and ")), with_twice(&full)));
        }
        let mut more = case.clone();
        more.flows.iter_mut().filter(|flow| flow.counts).for_each(|flow| flow.streams *= 2);
        let after = aggregate(&more.flows(&self.links, &self.protocols));
        pays.push(("twice the streams".into(), after / before - 1.0));
        pays.retain(|(_, gain)| gain.is_finite() && *gain > LEAST_GAIN);
        pays.sort_by(|(_, a), (_, b)| b.total_cmp(a));
        pays
    }
}

impl Case {
    /// As the fair shares are computed of it.
    pub fn fair(&self, links: &[Link], protocols: &[Protocol]) -> (Vec<f64>, Vec<fair::Flow>) {
        let flow = |flow: &Flow| fair::Flow {
            links: flow.links.clone(),
            streams: flow.streams,
            most: self.stream_limit(flow, links, protocols).map(|(most, _)| most),
        };
        (links.iter().map(|link| link.rate).collect(), self.flows.iter().map(flow).collect())
    }

    /// The links that are full.
    fn full(&self, links: &[Link], protocols: &[Protocol]) -> Vec<usize> {
        let (capacities, fair) = self.fair(links, protocols);
        let shares = shares(&capacities, &fair).unwrap_or_default();
        let used = self.used(links.len(), &shares);
        (0..links.len()).filter(|&link| used[link] >= FULL * links[link].rate && used[link] > 0.0).collect()
    }

    /// What goes over each link.
    fn used(&self, links: usize, shares: &[fair::Share]) -> Vec<f64> {
        let mut used = vec![0.0; links];
        for (flow, share) in self.flows.iter().zip(shares) {
            flow.links.iter().for_each(|&link| used[link] += share.rate);
        }
        used
    }

    fn message(&self) -> f64 {
        self.sizes.last().copied().unwrap_or(MESSAGE) as f64
    }

    /// CPU time of each end for a byte.
    fn cpu_per_byte(&self, flow: &Flow, links: &[Link], protocols: &[Protocol]) -> f64 {
        let own = flow.protocol.map_or(0.0, |protocol| {
            protocols[protocol].cpu_per_byte + protocols[protocol].cpu_per_message / self.message()
        });
        own + flow.links.iter().map(|&link| links[link].cpu_per_byte).sum::<f64>()
    }

    /// What one stream does at most, and why.
    fn stream_limit(&self, flow: &Flow, links: &[Link], protocols: &[Protocol]) -> Option<(f64, &'static str)> {
        let cpu = self.cpu_per_byte(flow, links, protocols);
        let limits = [
            (flow.most, "its own limit"),
            (flow.protocol.and_then(|protocol| protocols[protocol].rate), "its protocol"),
            ((cpu > 0.0).then(|| 1.0 / cpu), "its CPU"),
        ];
        let known = limits.into_iter().filter_map(|(most, why)| Some((most?, why)));
        known.min_by(|(a, _), (b, _)| a.total_cmp(b))
    }

    fn flows(&self, links: &[Link], protocols: &[Protocol]) -> Vec<PlannedFlow> {
        let (capacities, fair) = self.fair(links, protocols);
        // The file was read with these flows, so there are shares.
        let shares = shares(&capacities, &fair).unwrap_or_default();
        let used = self.used(links.len(), &shares);
        let planned = |(flow, share): (&Flow, &fair::Share)| {
            let cpu = self.cpu_per_byte(flow, links, protocols);
            let own = self.stream_limit(flow, links, protocols).map_or("nothing", |(_, why)| why);
            PlannedFlow {
                name: flow.name.clone(),
                bytes_per_second: share.rate,
                counts: flow.counts,
                held_by: share.held_by.map_or(own, |link| links[link].name.as_str()).to_owned(),
                cpus: cpu * share.rate,
                cpu_seconds_per_gb: cpu * 1e9,
                latencies: self.latencies(flow, share.rate, &used, links, protocols),
            }
        };
        self.flows.iter().zip(&shares).map(planned).collect()
    }

    fn latencies(
        &self,
        flow: &Flow,
        rate: f64,
        used: &[f64],
        links: &[Link],
        protocols: &[Protocol],
    ) -> Vec<(u64, f64)> {
        let protocol = flow.protocol.map(|protocol| &protocols[protocol]);
        let mut fixed = protocol.map_or(0.0, |protocol| protocol.latency);
        let mut slowest = self.stream_limit(flow, links, protocols).map_or(f64::INFINITY, |(most, _)| most);
        for &link in &flow.links {
            fixed += links[link].latency;
            slowest = slowest.min(links[link].rate);
            if self.is_loaded {
                fixed += links[link].wait(used[link] / links[link].rate);
            }
        }
        if self.is_loaded {
            slowest = slowest.min(rate / f64::from(flow.streams));
        }
        self.sizes.iter().map(|&bytes| (bytes, fixed + bytes as f64 / slowest)).collect()
    }
}

impl Link {
    /// What waits before it, in seconds.
    fn wait(&self, load: f64) -> f64 {
        let most = self.queue / self.rate;
        if load >= FULL { most } else { most.min(FRAME / self.rate * load / (1.0 - load)) }
    }
}

fn finite(number: f64) -> Option<f64> {
    number.is_finite().then_some(number)
}

fn counted(flows: &[PlannedFlow]) -> impl Iterator<Item = &PlannedFlow> {
    flows.iter().filter(|flow| flow.counts)
}

fn aggregate(flows: &[PlannedFlow]) -> f64 {
    counted(flows).map(|flow| flow.bytes_per_second).sum()
}

/// CPU time for a byte of all flows together; `None` where nothing is known of it.
pub(super) fn cpu_per_byte(flows: &[PlannedFlow]) -> Option<f64> {
    let cpus: f64 = counted(flows).map(|flow| flow.cpus).sum();
    Some(cpus / aggregate(flows)).filter(|cpu| cpu.is_finite() && *cpu > 0.0)
}

/// Of each size the mean over the flows, weighted by what they carry; then the mean of what is saved.
fn latency_saved(own: &[PlannedFlow], other: &[PlannedFlow]) -> Option<f64> {
    let mean = |flows: &[PlannedFlow], at: usize| {
        let mut sum = 0.0;
        for flow in counted(flows) {
            sum += flow.latencies.get(at)?.1 * flow.bytes_per_second;
        }
        Some(sum / aggregate(flows))
    };
    let sizes = counted(own).map(|flow| flow.latencies.len()).min()?;
    let saved: Vec<f64> = (0..sizes).map_while(|at| Some(1.0 - mean(own, at)? / mean(other, at)?)).collect();
    finite(saved.iter().sum::<f64>() / saved.len() as f64)
}
