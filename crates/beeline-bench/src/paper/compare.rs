//! What differs between two runs, and how sure that is.
//!
//! 1. Cells that both runs have are compared by all of their figures: TCP's, Beeline's, and the gain of the one over
//!    the other. TCP is compared as well because it tells whether the machine was the same: where TCP differs, so may
//!    anything.
//! 2. Two sets of samples are compared by the test of Mann and Whitney, which assumes nothing of their distribution.
//! 3. Many comparisons find differences by chance. By the procedure of Benjamini and Hochberg at most `alpha` of the
//!    differences that are told are expected to be none. Main figures, one a cell, are one family of comparisons and
//!    all others are another, so that what is asked besides does not cost the power to see what the cell is about; the
//!    bound holds of each family by itself.
//! 4. A figure that is another one in other units (messages a second of a stream is its throughput) would be told
//!    twice, and one that is the same in all samples (the fairness of one stream) cannot differ: neither is counted.
//! 5. The figures of a cell depend on each other. The procedure is proven for independent ones and for those that rise
//!    together, as most here do; of others nobody has proven that it holds, so differences of other figures are where
//!    to look, and the main figure is what to claim.
//! 6. What else differs between the runs (machine, library, plan) is told before any figure: it may be the cause, or
//!    make figures incomparable.
//! 7. With few samples nothing can be significant: five against five give p = 0.008 at best, three against three 0.1.

use anyhow::{Result, anyhow, ensure};
use serde::Serialize;
use statrs::stats_tests::Alternative;
use statrs::stats_tests::mannwhitneyu::{MannWhitneyUMethod, mannwhitneyu};

use super::axis::Hundredths;
use super::cell::Cell;
use super::figure::Figure;
use super::store::Run;
use super::summary::{Known, values};
use crate::report::three_digits;
use crate::stats::median;

/// What is compared of a cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum What {
    Tcp,
    Beeline,
    Gain,
}

impl What {
    const ALL: [What; 3] = [What::Tcp, What::Beeline, What::Gain];
}

/// Ratios of figures that are the same in other units differ by no more than arithmetic does.
const ROUNDING: f64 = 1e-9;

/// One comparison.
#[derive(Clone, Debug, Serialize)]
pub struct Line {
    pub cell: String,
    pub figure: Figure,
    /// Whether it is the figure that the cell's work is about.
    pub is_main: bool,
    pub what: What,
    /// The medians of the two runs, and how many samples they are of.
    pub medians: [f64; 2],
    pub samples: [usize; 2],
    /// How many times better the second is; of figures of which nobody has the better one, how many times as much.
    pub change: f64,
    /// The probability of samples that differ as much although there is no difference.
    pub p: f64,
    pub differs: bool,
    /// Whether the intervals of the two medians meet.
    pub agrees: bool,
}

#[derive(Clone, Debug, Serialize)]
pub struct Comparison {
    pub schema: &'static str,
    /// What else differs than the figures, a sentence each.
    pub circumstances: Vec<String>,
    pub alpha: f64,
    pub lines: Vec<Line>,
    /// The share of the comparisons of main figures whose intervals meet.
    pub agreeing: f64,
    /// The same of all other figures; `None` where there are none.
    pub agreeing_others: Option<f64>,
    /// Cells of one run only, or without samples in one.
    pub not_compared: Vec<String>,
}

impl Comparison {
    pub fn differs(&self) -> bool {
        self.lines.iter().any(|line| line.differs)
    }
}

/// Compares two runs.
///
/// # Errors
/// When no cell has samples in both.
pub fn compare(runs: &[Run; 2], alpha: Hundredths) -> Result<Comparison> {
    let mut lines = Vec::new();
    let mut not_compared = Vec::new();
    for cell in &runs[0].cells {
        match runs[1].cells.contains(cell).then(|| compare_cell(runs, cell)).transpose()? {
            Some(own) if !own.is_empty() => lines.extend(own),
            _ => not_compared.push(cell.name()),
        }
    }
    not_compared.extend(runs[1].cells.iter().filter(|cell| !runs[0].cells.contains(cell)).map(Cell::name));
    let plans = runs.each_ref().map(|run| run.plan.name.get_ref());
    ensure!(
        !lines.is_empty(),
        "the two runs have no measured cell in common: the first is of the plan {}, the second of {}",
        plans[0],
        plans[1]
    );
    for is_main in [true, false] {
        let p: Vec<f64> = family(&lines, is_main).map(|line| line.p).collect();
        let limit = discovery_limit(&p, alpha.share());
        for line in lines.iter_mut().filter(|line| line.is_main == is_main) {
            line.differs = limit.is_some_and(|limit| line.p <= limit);
        }
    }
    Ok(Comparison {
        schema: "beeline-compare/2",
        circumstances: circumstances(runs),
        alpha: alpha.share(),
        agreeing: agreeing(&lines, true).unwrap_or(1.0),
        agreeing_others: agreeing(&lines, false),
        lines,
        not_compared,
    })
}

/// The comparisons of main figures, or all others.
fn family(lines: &[Line], is_main: bool) -> impl Iterator<Item = &Line> {
    lines.iter().filter(move |line| line.is_main == is_main)
}

/// The share of a family whose intervals meet.
fn agreeing(lines: &[Line], is_main: bool) -> Option<f64> {
    let all = family(lines, is_main).count();
    (all > 0).then(|| family(lines, is_main).filter(|line| line.agrees).count() as f64 / all as f64)
}

/// What differs between the runs themselves, so that nobody takes it for what only one of it did.
fn circumstances(runs: &[Run; 2]) -> Vec<String> {
    let mut told = Vec::new();
    let mut tell = |what: &str, of: &dyn Fn(&Run) -> String, why: &str| {
        let [a, b] = runs.each_ref().map(of);
        if a != b {
            told.push(format!("{what}: {a} in A, {b} in B{why}"));
        }
    };
    let machine = |run: &Run| {
        let last = run.machines.last();
        last.map_or("unknown".to_owned(), |m| format!("{}, {} CPUs, Linux {}", m.cpu_model, m.cpus, m.kernel))
    };
    tell(
        "The machines differ",
        &machine,
        ". TCP's and Beeline's figures cannot be compared then, and gains only with care",
    );
    let library = |run: &Run| match (&run.libraries[..], &run.settings.library_hash) {
        ([], Some(hash)) => hash.clone(),
        ([], None) => "unknown".to_owned(),
        (hashes, _) => hashes.join(" and "),
    };
    tell("The releases differ", &|run| run.settings.version.clone(), "");
    tell("The libraries differ", &library, "");
    let packages = |run: &Run| match run.packages.is_empty() {
        true => "unknown".to_owned(),
        false => run.packages.join(", "),
    };
    tell("The programs' packages differ", &packages, "");
    tell("Options of the library differ", &|run| run.settings.options.clone().unwrap_or("none".into()), "");
    let hosts = |run: &Run| run.settings.hosts.as_ref().map_or("one host".to_owned(), |between| between.hosts.clone());
    tell("The hosts differ", &hosts, "");
    tell("Samples differ in length", &|run| format!("{} ms", run.settings.sample_ms), "");
    tell(
        "The plans differ",
        &|run| run.plan.name.get_ref().clone(),
        "; only cells of the same name and kind are compared",
    );
    if runs[0].plan.name.get_ref() == runs[1].plan.name.get_ref() && runs[0].text != runs[1].text {
        told.push(format!(
            "The plans differ although both are called {}: only cells of the same name and kind are compared",
            runs[0].plan.name.get_ref()
        ));
    }
    told
}

fn compare_cell(runs: &[Run; 2], cell: &Cell) -> Result<Vec<Line>> {
    let main = cell.work.main();
    let mut lines = Vec::new();
    let mut known: Vec<Samples> = Vec::new();
    // The main figure first, so that what says the same is the other one.
    for figure in std::iter::once(main).chain(Figure::ALL.into_iter().filter(|figure| *figure != main)) {
        let samples = Samples::of(runs, cell, figure);
        let is_new = !samples.is_constant() && !known.iter().any(|known| known.says_the_same(&samples));
        if figure == main || is_new {
            lines.extend(compare_figure(runs, cell, figure, &samples)?);
            known.push(samples);
        }
    }
    Ok(lines)
}

/// What two runs measured of a figure: TCP's and Beeline's of the one, then of the other.
struct Samples([[Vec<f64>; 2]; 2]);

impl Samples {
    fn of(runs: &[Run; 2], cell: &Cell, figure: Figure) -> Samples {
        Samples(runs.each_ref().map(|run| match run.of(cell) {
            Some(measured) => [values(&measured.tcp, figure), values(&measured.beeline, figure)],
            None => Default::default(),
        }))
    }

    fn all(&self) -> impl Iterator<Item = f64> + '_ {
        self.0.iter().flatten().flatten().copied()
    }

    /// Also of no samples at all.
    fn is_constant(&self) -> bool {
        let mut all = self.all();
        let first = all.next();
        all.all(|value| Some(value) == first)
    }

    /// Whether each sample is the same number of times the other's.
    fn says_the_same(&self, other: &Samples) -> bool {
        let shape = |samples: &Samples| samples.0.each_ref().map(|run| run.each_ref().map(Vec::len));
        let mut ratios = self.all().zip(other.all()).map(|(own, other)| own / other);
        let Some(first) = ratios.next().filter(|first| first.is_finite() && *first != 0.0) else { return false };
        shape(self) == shape(other) && ratios.all(|ratio| (ratio / first - 1.0).abs() < ROUNDING)
    }

    fn what(&self, run: usize, what: What, figure: Figure) -> Vec<f64> {
        let [tcp, beeline] = &self.0[run];
        match what {
            What::Tcp => tcp.clone(),
            What::Beeline => beeline.clone(),
            What::Gain => tcp.iter().zip(beeline).map(|(&theirs, &ours)| figure.gain(ours, theirs)).collect(),
        }
    }
}

fn compare_figure(runs: &[Run; 2], cell: &Cell, figure: Figure, samples: &Samples) -> Result<Vec<Line>> {
    let mut lines = Vec::new();
    let whats: &[What] = if figure.has_gain() { &What::ALL } else { &[What::Tcp, What::Beeline] };
    for &what in whats {
        let [first, second] = [0, 1].map(|run| samples.what(run, what, figure));
        let (Some(before), Some(after)) = (median(&first), median(&second)) else { continue };
        let (_, p) = mannwhitneyu(&first, &second, MannWhitneyUMethod::Automatic, Alternative::TwoSided)
            .map_err(|error| anyhow!("{}, {}: {error}", cell.name(), figure.title()))?;
        let change = match what {
            What::Tcp | What::Beeline if figure.has_gain() => figure.gain(after, before),
            _ => after / before,
        };
        lines.push(Line {
            cell: cell.name(),
            figure,
            is_main: figure == cell.work.main(),
            what,
            medians: [before, after],
            samples: [first.len(), second.len()],
            change,
            // Samples that are all alike differ by nothing, of which the test knows no probability.
            p: if p.is_finite() { p } else { 1.0 },
            differs: false,
            agrees: intervals_meet(&first, &second, runs),
        });
    }
    Ok(lines)
}

/// Whether each median's interval, at its run's confidence, has something in common with the other's.
fn intervals_meet(first: &[f64], second: &[f64], runs: &[Run; 2]) -> bool {
    let of = |values: &[f64], run: &Run| Known::of(values, run.settings.confidence).map(|known| known.interval);
    let both = of(first, &runs[0]).zip(of(second, &runs[1]));
    both.is_some_and(|(a, b)| a.low <= b.high && b.low <= a.high)
}

/// The largest probability that is told as a difference, so that of those told at most `alpha` are expected to be none.
/// Benjamini and Hochberg, J. R. Statist. Soc. B 57 (1995) 289.
fn discovery_limit(p: &[f64], alpha: f64) -> Option<f64> {
    let mut sorted = p.to_vec();
    sorted.sort_by(f64::total_cmp);
    let count = sorted.len() as f64;
    let passes = |&(rank, p): &(usize, f64)| p <= alpha * (rank + 1) as f64 / count;
    sorted.into_iter().enumerate().filter(passes).map(|(_, p)| p).next_back()
}

/// For people: what differs first.
pub fn print(runs: &[Run; 2], comparison: &Comparison) {
    for (letter, run) in ["A", "B"].into_iter().zip(runs) {
        let machine = run.machines.last().map(|machine| machine.line()).unwrap_or_default();
        say!("{letter}: {}, Beeline {}, {machine}", run.directory.display(), run.settings.version);
    }
    comparison.circumstances.iter().for_each(|sentence| say!("{sentence}."));
    let mut differing: Vec<&Line> = comparison.lines.iter().filter(|line| line.differs).collect();
    differing.sort_by(|a, b| b.is_main.cmp(&a.is_main).then(a.p.total_cmp(&b.p)));
    say!();
    let alpha = Hundredths((comparison.alpha * 1e4).round() as u32);
    for (is_main, what) in [(true, "main figures"), (false, "other figures")] {
        let count = |of: fn(&Line) -> bool| family(&comparison.lines, is_main).filter(|line| of(line)).count();
        let all = count(|_| true);
        if all > 0 {
            let (differ, agree) = (count(|line| line.differs), count(|line| line.agrees));
            say!(
                "Of {all} comparisons of {what} {differ} differ, of which at most {alpha} are expected to be chance; in {agree} the intervals of both runs meet: {:.0} %.",
                agree as f64 / all as f64 * 100.0
            );
        }
    }
    let least = comparison.lines.iter().map(|line| line.samples[0].min(line.samples[1])).min().unwrap_or(0);
    if least < 4 {
        say!("Some cells have {least} samples only: no difference of theirs could be told from chance.");
    }
    if !differing.is_empty() {
        let mut table = super::grid::new_table();
        table.set_header(["cell", "figure", "of", "A", "B", "B is better by", "p"]);
        for line in differing {
            let show = |value: f64| match line.what {
                What::Gain => three_digits(value),
                _ => line.figure.unit().show(value),
            };
            table.add_row([
                line.cell.clone(),
                line.figure.title().to_owned(),
                format!("{:?}", line.what),
                show(line.medians[0]),
                show(line.medians[1]),
                format!("{} times{}", three_digits(line.change), if line.figure.has_gain() { "" } else { " as much" }),
                format!("{:.4}", line.p),
            ]);
        }
        say!("{table}");
    }
    if !comparison.not_compared.is_empty() {
        say!("Not compared, as one of the two has no samples: {}", comparison.not_compared.join(", "));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::paper::store::tests::{PLAN_TEXT, pair, settings};
    use crate::paper::store::{Record, Writer};

    fn run(of: impl Fn(u32) -> (f64, f64)) -> (tempfile::TempDir, Run) {
        let directory = tempfile::tempdir().unwrap();
        let mut writer = Writer::create(directory.path(), PLAN_TEXT, &settings()).unwrap();
        for round in 0..12 {
            let (tcp, beeline) = of(round);
            writer.add(&pair("t/bytes=8", round, tcp, beeline)).unwrap();
        }
        let run = Run::read(directory.path()).unwrap();
        (directory, run)
    }

    fn noise(round: u32) -> f64 {
        f64::from(round * 7 % 12) / 10.0
    }

    #[test]
    fn what_became_faster_is_told_and_what_did_not_is_not() {
        let (_a, first) = run(|round| (100.0 + noise(round), 10.0 + noise(round)));
        let (_b, second) = run(|round| (100.0 + noise(round + 5) + 0.01, 8.0 + noise(round + 3)));
        let comparison = compare(&[first, second], Hundredths(500)).unwrap();
        let line = |what| comparison.lines.iter().find(|line| line.is_main && line.what == what).unwrap();
        assert!(!line(What::Tcp).differs, "{:?}", line(What::Tcp));
        assert!(line(What::Beeline).differs && line(What::Beeline).p < 0.001, "{:?}", line(What::Beeline));
        assert!(line(What::Tcp).agrees && !line(What::Beeline).agrees, "{:?}", comparison.lines);
        assert!(line(What::Beeline).change > 1.2 && line(What::Gain).differs && comparison.differs());
        // Of three cells one has samples.
        assert_eq!(comparison.not_compared.len(), 2);
    }

    #[test]
    fn every_figure_is_compared_once_and_main_figures_by_themselves() {
        let of = |p99: f64| {
            let directory = tempfile::tempdir().unwrap();
            let mut writer = Writer::create(directory.path(), PLAN_TEXT, &settings()).unwrap();
            for round in 0..12 {
                let mut record = pair("t/bytes=8", round, 100.0 + noise(round), 10.0 + noise(round));
                let Record::Pair { tcp, beeline, .. } = &mut record else { panic!() };
                for sample in [tcp, beeline] {
                    let p50 = sample[&Figure::P50];
                    sample.insert(Figure::P99, p99 + noise(round + 3));
                    // The main figure in other units, and one that is always the same.
                    sample.insert(Figure::Mean, 3.0 * p50);
                    sample.insert(Figure::Fairness, 1.0);
                    sample.insert(Figure::CpuShareClient, 0.5 + noise(round) / 10.0);
                }
                writer.add(&record).unwrap();
            }
            let run = Run::read(directory.path()).unwrap();
            (directory, run)
        };
        let ((_a, first), (_b, second)) = (of(500.0), of(900.0));
        let comparison = compare(&[first, second], Hundredths(500)).unwrap();
        let lines = |figure| comparison.lines.iter().filter(move |line| line.figure == figure).count();
        assert_eq!((lines(Figure::P50), lines(Figure::P99), lines(Figure::CpuShareClient)), (3, 3, 2));
        assert_eq!((lines(Figure::Mean), lines(Figure::Fairness)), (0, 0), "{:?}", comparison.lines);
        let differs = |figure, what| {
            let own = |line: &&Line| line.figure == figure && line.what == what;
            comparison.lines.iter().find(own).unwrap().differs
        };
        assert!(differs(Figure::P99, What::Tcp) && differs(Figure::P99, What::Beeline) && comparison.differs());
        // Both columns changed alike, and what the cell is about did not.
        assert!(!differs(Figure::P99, What::Gain) && !comparison.lines.iter().any(|line| line.is_main && line.differs));
        assert_eq!(comparison.agreeing, 1.0);
        assert!(comparison.agreeing_others.is_some_and(|share| share < 1.0));
    }

    #[test]
    fn what_the_runs_were_made_with_is_told() {
        let (_a, first) = run(|_| (100.0, 10.0));
        let (_b, mut second) = run(|_| (100.0, 10.0));
        let told = |first: &Run, second: &Run| circumstances(&[first.clone(), second.clone()]);
        assert_eq!(told(&first, &second), Vec::<String>::new());
        second.settings.version = "1".into();
        second.libraries = vec!["0123".into()];
        second.packages = vec!["mpich 4.0.2".into()];
        second.text.push('#');
        let mut machine = crate::machine::Machine::describe().unwrap();
        second.machines.push(machine.clone());
        let all = told(&first, &second);
        assert_eq!(all.len(), 5, "{all:?}");
        for word in [
            "cannot be compared",
            "releases differ: 0 in A, 1 in B",
            "libraries differ: unknown in A, 0123 in B",
            "packages differ: unknown in A, mpich 4.0.2 in B",
        ] {
            assert!(all.iter().any(|sentence| sentence.contains(word)), "{word}: {all:?}");
        }
        let mut first = second.clone();
        machine.date = "2099-01-01T00:00:00Z".into();
        machine.load_before = 5.0;
        first.machines.push(machine);
        assert_eq!(told(&first, &second), Vec::<String>::new());
    }

    #[test]
    fn a_run_does_not_differ_from_itself_and_like_samples_do_no_harm() {
        let (_a, first) = run(|_| (100.0, 10.0));
        let (_b, second) = run(|_| (100.0, 10.0));
        let comparison = compare(&[first, second], Hundredths(500)).unwrap();
        assert!(!comparison.differs(), "{comparison:?}");
        assert!(serde_json::to_string(&comparison).unwrap().contains("\"what\":\"gain\""));
    }

    #[test]
    fn chance_is_not_told_as_a_difference() {
        // The example of Benjamini and Hochberg's paper, section 3.3: 15 comparisons, of which four are told.
        let p = [
            0.0001, 0.0004, 0.0019, 0.0095, 0.0201, 0.0278, 0.0298, 0.0344, 0.0459, 0.3240, 0.4262, 0.5719, 0.6528,
            0.7590, 1.0,
        ];
        assert_eq!(discovery_limit(&p, 0.05), Some(0.0095));
        assert_eq!(discovery_limit(&[0.04, 0.5], 0.05), None);
        assert_eq!(discovery_limit(&[], 0.05), None);
    }
}
