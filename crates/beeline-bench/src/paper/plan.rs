//! The experiment as a file: which tables, with which axes, how often and how sure.
//!
//! Every wrong value is refused with its line, by the types of [`super::axis`] where one value is enough to see it, and
//! by [`PaperPlan::check`] where it takes several.

use std::collections::BTreeSet;

use anyhow::Result;
use beeline_stats::Tunables;
use serde::Deserialize;
use toml::Spanned;

use super::axis::{Beside, Buffer, Chunk, Mtu, Pace, Percent, Rails, Sizes, Streams, Turned};
use super::cell::{Cell, Completion, Load, Move, Place, Told, Work};
use super::coalesce::Coalescing;
use super::figure::{Figure, Phase};
use super::programs;
use super::published::Published;
use crate::hosts::place::Host;

/// The form of plans.
const FORMAT: i64 = 1;

/// An experiment.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PaperPlan {
    /// [`FORMAT`].
    format: Spanned<i64>,
    pub name: Spanned<String>,
    pub title: String,
    /// The document that the tables come from.
    pub document: String,
    pub rounds: Option<Spanned<u32>>,
    /// Rounds at most, where a confidence is asked for.
    pub rounds_max: Option<Spanned<u32>>,
    pub sample_ms: Option<Spanned<u64>>,
    pub confidence: Option<Percent>,
    pub within: Option<Percent>,
    /// The two hosts, and their bridges' administrator's sockets, as `--hosts` and `--bridge-sockets` take them.
    pub hosts: Option<Spanned<Vec<String>>>,
    pub bridge_sockets: Option<Spanned<Vec<String>>>,
    /// After so many minutes nothing more is begun.
    pub minutes_max: Option<Spanned<u32>>,
    #[serde(rename = "table")]
    pub tables: Vec<Table>,
    /// What the document gives, table by table; tables can have their own as well.
    #[serde(default)]
    published: Vec<Published>,
}

/// One table or figure of the document.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Table {
    pub id: Spanned<String>,
    pub title: String,
    /// Where it is in the document.
    pub source: String,
    pub work: Option<Work>,
    /// Why the table is not measured, where it has no work.
    pub not_measured: Option<String>,
    /// Programs of others, for work that they do.
    #[serde(default)]
    pub program: Vec<Spanned<String>>,
    /// Further columns.
    #[serde(default)]
    pub beside: Vec<Beside>,
    #[serde(default = "eight")]
    pub bytes: Sizes,
    #[serde(default)]
    pub streams: Vec<Streams>,
    #[serde(default)]
    pub completion: Vec<Completion>,
    #[serde(default)]
    pub pace: Vec<Pace>,
    #[serde(default)]
    pub buffer: Vec<Buffer>,
    #[serde(default)]
    pub options: Vec<Spanned<String>>,
    #[serde(default)]
    pub place: Vec<Place>,
    /// The place that gains are told over.
    pub gain_over: Option<Spanned<Place>>,
    #[serde(default)]
    pub load: Vec<Load>,
    #[serde(default, rename = "move")]
    pub moves: Vec<Move>,
    #[serde(default)]
    pub chunk: Vec<Chunk>,
    #[serde(default)]
    pub mtu: Vec<Mtu>,
    /// What `ethtool -C` sets at both ends of the way between two hosts.
    #[serde(default)]
    pub coalescing: Vec<Coalescing>,
    #[serde(default)]
    pub rails: Vec<Rails>,
    #[serde(default)]
    pub turn: Vec<Turned>,
    /// What the link carries one way, where neither tc nor the rails say so, or others than they say.
    peak: Option<Spanned<String>>,
    /// Columns of the table; the work's own, if there are none.
    #[serde(default)]
    pub figures: Vec<Spanned<Figure>>,
    /// What a reader must know to compare.
    pub note: Option<String>,
    #[serde(default)]
    pub published: Vec<Published>,
}

fn eight() -> Sizes {
    Sizes(vec![8])
}

/// A text with the name that errors give it.
pub struct Source<'a> {
    pub name: String,
    pub text: &'a str,
}

impl Source<'_> {
    /// What the text says.
    ///
    /// # Errors
    /// With the line of what is wrong.
    pub fn read<T: serde::de::DeserializeOwned>(&self) -> Result<T> {
        toml::from_str(self.text)
            .map_err(|error| self.error(error.span().map_or(0, |span| span.start), error.message()))
    }

    /// `file:line:column: what`.
    pub fn error(&self, at: usize, what: &str) -> anyhow::Error {
        let before = &self.text[..at.min(self.text.len())];
        let line = before.matches('\n').count() + 1;
        let column = before.rsplit('\n').next().unwrap_or_default().chars().count() + 1;
        anyhow::anyhow!("{}:{line}:{column}: {what}", self.name)
    }
}

impl PaperPlan {
    /// Reads and checks one.
    pub fn parse(source: &Source) -> Result<PaperPlan> {
        let mut plan: PaperPlan = source.read()?;
        plan.spread_published(source)?;
        plan.check(source)?;
        Ok(plan)
    }

    /// Gives each table what is published beside it.
    fn spread_published(&mut self, source: &Source) -> Result<()> {
        for published in std::mem::take(&mut self.published) {
            let Some(name) = published.table.clone() else {
                let what = "expected `table`, the id of the table that it stands beside";
                return Err(source.error(published.figure.span().start, what));
            };
            match self.tables.iter_mut().find(|table| table.id.get_ref() == name.get_ref()) {
                Some(table) => table.published.push(published),
                None => {
                    let what = format!("there is no table `{}`: expected the id of one", name.get_ref());
                    return Err(source.error(name.span().start, &what));
                }
            }
        }
        Ok(())
    }

    /// The hosts that the plan names.
    ///
    /// # Errors
    /// With the line, where they are not two.
    pub fn between(&self, source: &Source) -> Result<Option<[Host; 2]>> {
        let Some(hosts) = &self.hosts else { return Ok(None) };
        let two = Host::parse_two(&hosts.get_ref().join(","));
        two.map(Some).map_err(|what| source.error(hosts.span().start, &what))
    }

    fn check(&self, source: &Source) -> Result<()> {
        self.between(source)?;
        if let Some(sockets) = self.bridge_sockets.as_ref().filter(|sockets| sockets.get_ref().len() != 2) {
            return Err(source.error(sockets.span().start, "expected two sockets, one of each host's bridge"));
        }
        if *self.format.get_ref() != FORMAT {
            let what = format!("format {} is not understood: expected {FORMAT}", self.format.get_ref());
            return Err(source.error(self.format.span().start, &what));
        }
        check_word(&self.name, source)?;
        let positive = |number: &Option<Spanned<u32>>, least: u32, what: &str| match number {
            Some(number) if *number.get_ref() < least => {
                Err(source.error(number.span().start, &format!("expected {least} or more {what}")))
            }
            _ => Ok(()),
        };
        positive(&self.rounds, 1, "rounds")?;
        positive(&self.rounds_max, 1, "rounds")?;
        positive(&self.minutes_max, 1, "minutes")?;
        if let Some(sample) = self.sample_ms.as_ref().filter(|ms| !(5..=600_000).contains(ms.get_ref())) {
            return Err(source.error(sample.span().start, "expected samples of 5 to 600000 milliseconds"));
        }
        let mut seen = BTreeSet::new();
        for table in &self.tables {
            check_word(&table.id, source)?;
            if !seen.insert(table.id.get_ref()) {
                let what = format!("there are two tables called {}: expected another name", table.id.get_ref());
                return Err(source.error(table.id.span().start, &what));
            }
            table.check(source)?;
        }
        Ok(())
    }

    /// All combinations, table by table; of long axes only some sizes, if so asked.
    pub fn cells(&self, sizes_most: Option<usize>) -> Vec<Cell> {
        self.tables.iter().flat_map(|table| table.cells(sizes_most)).collect()
    }
}

/// Names go into names of files and of cells.
fn check_word(word: &Spanned<String>, source: &Source) -> Result<()> {
    let text = word.get_ref();
    let is_good = !text.is_empty() && text.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-');
    match is_good {
        true => Ok(()),
        false => Err(source.error(word.span().start, "expected a name of small letters, digits and hyphens")),
    }
}

impl Table {
    fn check(&self, source: &Source) -> Result<()> {
        let wrong = |what: &str| Err(source.error(self.id.span().start, what));
        let id = self.id.get_ref();
        let work = match (self.work, &self.not_measured) {
            (Some(work), None) => work,
            (None, Some(_)) => return self.check_published(source, None),
            (None, None) => return wrong(&format!("table {id} has neither `work` nor `not_measured`: expected one")),
            (Some(_), Some(_)) => return wrong(&format!("table {id} has `work` and `not_measured`: expected one")),
        };
        if work.is_program() == self.program.is_empty() {
            let what = format!(
                "table {id}: expected `program` with work of programs (\"program-latency\", \"program-stream\"), and with no other"
            );
            return wrong(&what);
        }
        for program in &self.program {
            if let Some(what) = programs::objection(program.get_ref(), work) {
                return Err(source.error(program.span().start, &what));
            }
        }
        self.check_beside(work, source)?;
        if self.bytes.0.is_empty() {
            return wrong(&format!("table {id} has no sizes in `bytes`: expected at least one"));
        }
        if !work.has_streams() && self.streams.iter().any(|streams| streams.0 != 1) {
            return wrong(&format!("table {id} has several streams: expected `work` to be \"stream\" or \"both\""));
        }
        if work != Work::Latency && self.pace.iter().any(|pace| pace.0.is_some()) {
            return wrong(&format!("table {id} has a pace: expected `work` to be \"latency\""));
        }
        if (work == Work::Turned) == self.turn.is_empty() {
            return wrong(&format!("table {id}: expected `turn` with the work \"turned\", and with no other"));
        }
        if work == Work::Turned && self.moves.iter().any(|moves| *moves != Move::Any) {
            return wrong(&format!("table {id} says what is pushed or pulled, and turns it: expected no `move`"));
        }
        if work != Work::Both && self.moves.contains(&Move::Mixed) {
            return wrong(&format!("table {id} has one way: expected `move` \"mixed\" with the work \"both\" only"));
        }
        if !matches!(work, Work::Latency | Work::Stream | Work::Both)
            && self.place.iter().any(|place| place.pairs() > 1)
        {
            return wrong(&format!(
                "table {id} has two pairs of programs (`place` \"local\", \"remote\", \"both\"): expected `work` to be \"latency\", \"stream\" or \"both\""
            ));
        }
        if let Some(over) = &self.gain_over
            && (self.place.len() < 2 || !self.place.contains(over.get_ref()))
        {
            let what =
                format!("table {id} has nothing to tell gains of: expected one of several values of its `place`");
            return Err(source.error(over.span().start, &what));
        }
        let names: Vec<String> = self.cells(None).iter().map(Cell::name).collect();
        if let Some(name) = names.iter().enumerate().find(|(at, name)| names[..*at].contains(name)) {
            return wrong(&format!("table {id} has {} twice: expected each value of an axis once", name.1));
        }
        for list in &self.options {
            if let (_, Some(error)) = Tunables::parse_env(list.get_ref().as_bytes()) {
                let what = format!("`{}` are no options of the library: {error}", list.get_ref());
                return Err(source.error(list.span().start, &what));
            }
        }
        if let Some(peak) = &self.peak
            && self.peak().is_none_or(|peak| peak <= 0.0)
        {
            let what = format!("`{}` is no peak: expected a rate such as \"5 GB/s\" or \"40 Gbit/s\"", peak.get_ref());
            return Err(source.error(peak.span().start, &what));
        }
        for figure in &self.figures {
            if !work.has(*figure.get_ref()) {
                let what = format!("the work of table {id} has no figure \"{}\"", figure.get_ref().word());
                return Err(source.error(figure.span().start, &what));
            }
        }
        self.check_published(source, Some(work))
    }

    /// Programs bring what stands beside them; our own work has UCX, libfabric and verbs, one stream at a time.
    fn check_beside(&self, work: Work, source: &Source) -> Result<()> {
        let has_own = matches!(work, Work::Latency | Work::Stream) && self.streams.iter().all(|streams| streams.0 == 1);
        let is_wrong = |beside: &Beside| !work.is_program() && (!has_own || *beside == Beside::SharedMemory);
        match self.beside.iter().find(|beside| is_wrong(beside)) {
            None => Ok(()),
            Some(beside) => {
                let what = format!(
                    "table {} has nothing to measure for `beside` \"{}\": expected work of programs, or latency or one stream",
                    self.id.get_ref(),
                    crate::everyday::cell::word(*beside)
                );
                Err(source.error(self.id.span().start, &what))
            }
        }
    }

    fn check_published(&self, source: &Source, work: Option<Work>) -> Result<()> {
        for published in &self.published {
            let figure = *published.figure.get_ref();
            if let Err((at, what)) = published.check() {
                return Err(source.error(at, &what));
            }
            if work.is_some_and(|work| !work.has(figure)) {
                let what = format!("the work of table {} has no figure \"{}\"", self.id.get_ref(), figure.word());
                return Err(source.error(published.figure.span().start, &what));
            }
        }
        Ok(())
    }

    /// What the plan says that the link carries one way, in bytes a second.
    pub fn peak(&self) -> Option<f64> {
        Figure::Throughput.parse(self.peak.as_ref()?.get_ref()).ok()
    }

    /// The axes along which the table's cells differ, whose values are told even where they are the usual ones.
    pub fn told(&self) -> Told {
        Told {
            completion: self.completion.len() > 1,
            pace: self.pace.len() > 1,
            buffer: self.buffer.len() > 1,
            place: self.place.len() > 1,
            load: self.load.len() > 1,
            moves: self.moves.len() > 1,
            chunk: self.chunk.len() > 1,
            mtu: self.mtu.len() > 1,
            coalescing: self.coalescing.len() > 1,
            rails: self.rails.len() > 1,
        }
    }

    /// The parts that each cell has a row for.
    pub fn phases(&self) -> &'static [Phase] {
        match self.work {
            Some(Work::Turned) => &Phase::ALL,
            _ => &Phase::ALL[..1],
        }
    }

    /// The columns.
    pub fn columns(&self) -> Vec<Figure> {
        match (self.figures.is_empty(), self.work) {
            (true, Some(work)) => work.figures(),
            _ => self.figures.iter().map(|figure| *figure.get_ref()).collect(),
        }
    }

    fn cells(&self, sizes_most: Option<usize>) -> Vec<Cell> {
        let Some(work) = self.work else { return Vec::new() };
        let sizes = match (work.has_messages(), sizes_most) {
            (false, _) => vec![1],
            (true, None) => self.bytes.0.clone(),
            (true, Some(most)) => self.bytes.thin(most),
        };
        let first = Cell {
            table: self.id.get_ref().clone(),
            work,
            program: None,
            bytes: 1,
            streams: 1,
            completion: Completion::Lazy,
            pace: None,
            buffer: None,
            options: String::new(),
            place: Place::Apart,
            load: Load::None,
            moves: Move::Any,
            chunk: None,
            mtu: None,
            coalescing: None,
            rails: None,
            turn: None,
        };
        // The first axis changes slowest: curves are measured as they are drawn.
        let mut cells = vec![first];
        spread(&mut cells, &self.turn, |cell, turn| cell.turn = Some(turn.0.clone()));
        spread(&mut cells, &self.rails, |cell, rails| cell.rails.clone_from(&rails.0));
        spread(&mut cells, &self.coalescing, |cell, coalescing| cell.coalescing.clone_from(&coalescing.0));
        spread(&mut cells, &self.mtu, |cell, mtu| cell.mtu = mtu.0);
        spread(&mut cells, &self.chunk, |cell, chunk| cell.chunk = chunk.0);
        spread(&mut cells, &self.moves, |cell, moves| cell.moves = *moves);
        spread(&mut cells, &self.load, |cell, load| cell.load = *load);
        spread(&mut cells, &self.place, |cell, place| cell.place = *place);
        spread(&mut cells, &self.options, |cell, options| cell.options.clone_from(options.get_ref()));
        spread(&mut cells, &self.buffer, |cell, buffer| cell.buffer = buffer.0);
        spread(&mut cells, &self.pace, |cell, pace| cell.pace = pace.0);
        spread(&mut cells, &self.completion, |cell, completion| cell.completion = *completion);
        spread(&mut cells, &self.program, |cell, program| cell.program = Some(program.get_ref().clone()));
        spread(&mut cells, &self.streams, |cell, streams| cell.streams = streams.0);
        spread(&mut cells, &sizes, |cell, bytes| cell.bytes = *bytes);
        cells
    }
}

/// Each cell with each value; as they are where an axis has no values.
fn spread<T>(cells: &mut Vec<Cell>, values: &[T], set: impl Fn(&mut Cell, &T)) {
    if values.is_empty() {
        return;
    }
    let each = |cell: &Cell| {
        let cell = cell.clone();
        let set = &set;
        values.iter().map(move |value| {
            let mut cell = cell.clone();
            set(&mut cell, value);
            cell
        })
    };
    *cells = cells.iter().flat_map(each).collect();
}

#[cfg(test)]
mod tests;
