//! The instrument of the five documents: their tables and figures, TCP beside Beeline, as plans in files say.
//!
//! 1. A plan ([`plan`]) has tables; a table has one kind of work and axes; a combination of their values is a cell
//!    ([`cell`]).
//! 2. A cell's sample is made by two fresh processes ([`sample`]), the same program for both columns. Rounds go over
//!    all cells, TCP and Beeline one right after the other, beginning with another of the two each round; gains are
//!    those of such pairs.
//! 3. What is measured is written down at once ([`store`]): a run that was ended, by whatever, goes on where it was. A
//!    run is one library on one machine; it does not go on with another.
//! 4. Figures are medians with intervals that assume nothing of the distribution ([`summary`]). With a confidence,
//!    rounds go on until the intervals are narrow enough, or it is said that they are not.
//! 5. What this host cannot have, and what the instrument does not run, is printed with the reason, never left out.

pub mod args;
pub mod axis;
mod built_in;
mod cell;
mod coalesce;
mod compare;
mod figure;
mod gains;
mod grid;
mod links;
mod loads;
mod pairs;
mod place;
mod plan;
mod programs;
mod published;
mod report;
mod run;
mod sample;
mod store;
mod summary;
mod turned;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::SystemTime;

use anyhow::{Context, Result, ensure};

use args::{CompareOptions, MpiOptions, PaperOptions, ReportOptions};

use crate::args::BenchOptions;
use crate::interrupt::{self, Second};
use crate::machine;
use crate::plan::find_library;
use crate::process::ensure_without_library;
use crate::say::complain;
use crate::ticks::Ticks;
use axis::Hundredths;
use built_in::BUILT_IN;
pub use figure::Figure;
pub use grid::new_table;
use plan::PaperPlan;
pub use plan::Source;
use run::Conductor;
use store::{Between, Run, Settings, WITHIN, Writer};

const QUICK_ROUNDS: u32 = 3;
const QUICK_SAMPLE_MS: u64 = 60;
const ROUNDS: u32 = 5;
const SAMPLE_MS: u64 = 150;
const ROUNDS_MAX: u32 = 30;
const CONFIDENCE: Hundredths = Hundredths(9500);

/// `beeline bench paper`.
///
/// # Errors
/// When the run cannot begin, or what is measured cannot be written down.
pub fn measure(options: &PaperOptions, mount: &[&str]) -> Result<ExitCode> {
    if options.list {
        for (name, text) in BUILT_IN {
            let plan = PaperPlan::parse(&Source { name: name.to_owned(), text })?;
            say!("{name:<14} {} ({})", plan.title, plan.document);
        }
        return Ok(ExitCode::SUCCESS);
    }
    if options.null {
        let own = crate::worker::own_cost_ns()?;
        say!(
            "{:.1} ns of each sample are the instrument's own ({:.1} of them the reading of the clock): {own:.1} ns of a latency, \
             which is half a trip",
            crate::worker::SAMPLE_TRIPS * own,
            Ticks::new().reading_ns()
        );
        return Ok(ExitCode::SUCCESS);
    }
    if !options.dry_run && !options.print_plan {
        ensure_without_library()?;
        interrupt::watch(if options.hosts.is_some() { Second::IsNoted } else { Second::Ends })?;
    }
    if options.all {
        return all(options, mount);
    }
    if let Some(directory) = &options.resume {
        return resume(directory, options, mount);
    }
    let name = options.plan.as_deref().context("which plan?")?;
    let (text, called) = built_in::text(name)?;
    if options.print_plan {
        say!("{}", text.trim_end());
        return Ok(ExitCode::SUCCESS);
    }
    let source = Source { name: called, text: &text };
    let plan = PaperPlan::parse(&source)?;
    let directory = options.into.clone().unwrap_or_else(|| directory(plan.name.get_ref()));
    let hosts = plan.hosts.clone().filter(|_| options.hosts.is_none());
    begin(&text, plan, &directory, options, mount).map_err(|error| match hosts {
        // What is wrong with hosts that the plan names is wrong in its line.
        Some(hosts) if error.is::<run::NoHosts>() => source.error(hosts.span().start, &format!("{error:#}")),
        _ => error,
    })
}

/// Every built-in plan, each in a directory below the given one. Those that are there go on.
fn all(options: &PaperOptions, mount: &[&str]) -> Result<ExitCode> {
    let above = options.into.clone().unwrap_or_else(|| directory("papers"));
    let mut worst = ExitCode::SUCCESS;
    // The MPIs are part of two papers' plans.
    for (name, text) in BUILT_IN.into_iter().filter(|(name, _)| *name != "mpi") {
        if interrupt::asked() {
            worst = ExitCode::from(1);
            break;
        }
        let directory = above.join(name);
        let code = if directory.join("settings.json").exists() && !options.dry_run {
            resume(&directory, options, mount)
        } else {
            let plan = PaperPlan::parse(&Source { name: name.to_owned(), text })?;
            begin(text, plan, &directory, options, mount)
        };
        // One plan that cannot be run does not keep the others from being run.
        let code = code.unwrap_or_else(|error| {
            complain(format_args!("{name}: {error:#}"));
            ExitCode::from(1)
        });
        if code != ExitCode::SUCCESS {
            worst = code;
        }
    }
    if !options.dry_run && !options.no_report {
        say!("All reports are in {}.", report::write_index(&above)?.display());
    }
    Ok(worst)
}

fn directory(name: &str) -> PathBuf {
    let now = humantime::format_rfc3339_seconds(SystemTime::now()).to_string();
    let digits: String = now.chars().filter(char::is_ascii_digit).collect();
    let (date, time) = digits.split_at(digits.len().min(8));
    let first = format!("beeline-{name}-{date}-{time}");
    // A clock that was set back comes to the same second again.
    let names = std::iter::once(first.clone()).chain((2..).map(|number| format!("{first}-{number}")));
    names.map(PathBuf::from).find(|path| !path.exists()).unwrap_or_else(|| first.into())
}

fn begin(text: &str, plan: PaperPlan, directory: &Path, options: &PaperOptions, mount: &[&str]) -> Result<ExitCode> {
    let settings = settings(&plan, options)?;
    let cells = settings.cells(&plan);
    let is_unmeasured = settings.only.is_empty() && plan.tables.iter().all(|table| table.not_measured.is_some());
    ensure!(!cells.is_empty() || is_unmeasured, "no cell has such a name; --dry-run shows them");
    let conductor = Conductor::new(&settings, mount)?;
    if options.dry_run {
        run::describe(&plan, &cells, &settings, &conductor);
        return Ok(ExitCode::SUCCESS);
    }
    let writer = Writer::create(directory, text, &settings)?;
    let run = Run::read(directory)?;
    finish(conductor.execute(run, writer)?, options)
}

fn resume(directory: &Path, options: &PaperOptions, mount: &[&str]) -> Result<ExitCode> {
    let run = Run::read(directory)?;
    let settings = &run.settings;
    let version = env!("CARGO_PKG_VERSION");
    ensure!(settings.version == version, "the run was begun by Beeline {}, this is {version}", settings.version);
    if let Some(library) = &settings.library {
        ensure!(
            Some(machine::hash(library)?) == settings.library_hash,
            "{} is not the library that the run was begun with: begin a new one, and compare them",
            library.display()
        );
    }
    let here = crate::machine::Machine::describe()?;
    if let Some(there) = run.machines.last() {
        let [then, now] = [there, &here].map(|machine| (&machine.cpu_model, &machine.kernel, machine.cpus));
        ensure!(then == now, "the run was begun on another machine: {} (this is {})", there.line(), here.line());
    }
    let conductor = Conductor::new(settings, mount)?;
    ensure!(
        run.libraries.is_empty() || run.libraries == conductor.libraries(settings),
        "the library at one of the hosts is not that with which the run was begun: begin a new one, and compare them"
    );
    if options.dry_run {
        run::describe(&run.plan, &run.cells, settings, &conductor);
        return Ok(ExitCode::SUCCESS);
    }
    let writer = Writer::open(directory)?;
    finish(conductor.execute(run, writer)?, options)
}

/// What the command line and the plan want, the command line first.
fn settings(plan: &PaperPlan, options: &PaperOptions) -> Result<Settings> {
    let number = |spanned: &Option<toml::Spanned<u32>>| spanned.as_ref().map(|number| *number.get_ref());
    let (rounds, sample_ms) = match options.quick {
        true => (QUICK_ROUNDS, QUICK_SAMPLE_MS),
        false => (
            number(&plan.rounds).unwrap_or(ROUNDS),
            plan.sample_ms.as_ref().map_or(SAMPLE_MS, |sample| *sample.get_ref()),
        ),
    };
    let rounds = options.rounds.unwrap_or(rounds);
    let asked = options.confidence.is_some().then_some(WITHIN);
    let hosts = match (&options.hosts, &plan.hosts) {
        (Some(hosts), _) => Some(format!("{},{}", hosts[0], hosts[1])),
        (None, hosts) => hosts.as_ref().map(|hosts| hosts.get_ref().join(",")),
    };
    let sockets = plan.bridge_sockets.as_ref().and_then(|two| <[String; 2]>::try_from(two.get_ref().clone()).ok());
    let library = match hosts {
        Some(_) => options.library.clone(),
        None => Some(find_library(options.library.as_deref())?),
    };
    Ok(Settings {
        schema: Settings::schema(),
        version: env!("CARGO_PKG_VERSION").into(),
        quick: options.quick,
        rounds,
        sample_ms: options.duration.unwrap_or(sample_ms),
        confidence: options.confidence.or(plan.confidence.map(|percent| percent.0)).unwrap_or(CONFIDENCE),
        within: options.within.or(asked).or(plan.within.map(|percent| percent.0)),
        rounds_max: options.rounds_max.or(number(&plan.rounds_max)).unwrap_or(ROUNDS_MAX).max(rounds),
        only: options.only.clone(),
        cpus: options.cpus,
        // Of another host's library nothing is known here.
        library_hash: library.as_deref().filter(|path| path.exists()).map(machine::hash).transpose()?,
        library,
        options: options.options.clone(),
        minutes_max: options.minutes_max.or(number(&plan.minutes_max)),
        hosts: hosts.map(|hosts| Between {
            hosts,
            address: options.address,
            bridge_sockets: options.bridge_sockets.clone().or(sockets),
            patience: options.patience,
            remote: options.remote.clone(),
        }),
    })
}

/// `beeline bench mpi`: the plan of that name.
///
/// # Errors
/// Those of [`measure`].
pub fn mpi(own: &MpiOptions, mount: &[&str]) -> Result<ExitCode> {
    let plain = BenchOptions {
        quick: own.quick,
        only: own.only.clone(),
        rounds: own.rounds,
        cpus: own.cpus,
        library: own.library.clone(),
        options: own.options.clone(),
        ..BenchOptions::plain()
    };
    let options = PaperOptions {
        into: own.into.clone(),
        dry_run: own.dry_run,
        no_report: own.no_report,
        confidence: own.confidence,
        within: own.within,
        ..of_plan("mpi", &plain)
    };
    measure(&options, mount)
}

/// `beeline bench --modes`: the plan of that name.
///
/// # Errors
/// Those of [`measure`].
pub fn modes(plain: &BenchOptions, mount: &[&str]) -> Result<ExitCode> {
    measure(&of_plan("modes", plain), mount)
}

/// A built-in plan with options of a plain run.
fn of_plan(name: &str, plain: &BenchOptions) -> PaperOptions {
    PaperOptions {
        plan: Some(name.into()),
        all: false,
        list: false,
        resume: None,
        null: false,
        print_plan: false,
        dry_run: false,
        quick: plain.quick,
        only: plain.only.clone(),
        into: None,
        rounds: plain.rounds,
        duration: plain.duration,
        confidence: None,
        within: None,
        rounds_max: None,
        minutes_max: None,
        cpus: plain.cpus,
        library: plain.library.clone(),
        options: plain.options.clone(),
        hosts: None,
        address: None,
        bridge_sockets: None,
        patience: plain.patience,
        remote: plain.remote.clone(),
        no_report: false,
    }
}

/// Shows what there is, and writes the report.
fn finish(run: Run, options: &PaperOptions) -> Result<ExitCode> {
    grid::print(&run);
    let told = if options.no_report { None } else { Some(report::write(&run, &run.directory)?) };
    say!("Samples are in {}.", run.directory.display());
    if let Some(html) = told {
        say!("The report is {}.", html.display());
    }
    let is_bad = run.ended_early.is_some()
        || run.cells.iter().any(|cell| run.of(cell).is_some_and(|measured| !measured.errors.is_empty()))
        || !run::unsure(&run).is_empty();
    Ok(ExitCode::from(u8::from(is_bad)))
}

/// `beeline bench compare`.
///
/// # Errors
/// When one of the two is no run, or they have nothing in common.
pub fn compare(options: &CompareOptions) -> Result<ExitCode> {
    let runs = [Run::read(&options.first)?, Run::read(&options.second)?];
    let comparison = compare::compare(&runs, options.alpha)?;
    match options.json {
        true => say!("{}", serde_json::to_string_pretty(&comparison)?),
        false => compare::print(&runs, &comparison),
    }
    Ok(ExitCode::from(u8::from(comparison.differs())))
}

/// The median of a cell's figure.
pub struct Median {
    pub cell: String,
    pub bytes: u64,
    /// The figure that the cell is about.
    pub main: Figure,
    pub figure: Figure,
    pub tcp: f64,
    pub beeline: f64,
}

/// What a run measured, for those who compare it with something else.
///
/// # Errors
/// When there is no run.
pub fn medians(directory: &Path) -> Result<Vec<Median>> {
    let run = Run::read(directory)?;
    let of = |cell: &cell::Cell, figure: Figure| {
        let both = summary::both(run.of(cell)?, figure, run.settings.confidence)?;
        let (tcp, beeline) = (both.tcp.median, both.beeline.median);
        Some(Median { cell: cell.name(), bytes: cell.bytes, main: cell.work.main(), figure, tcp, beeline })
    };
    let all = |cell| Figure::ALL.into_iter().filter_map(move |figure| of(cell, figure));
    Ok(run.cells.iter().flat_map(all).collect())
}

/// `beeline bench report`.
///
/// # Errors
/// When there is no run, or its report cannot be written.
pub fn report(options: &ReportOptions) -> Result<ExitCode> {
    let run = Run::read(&options.run)?;
    let into = options.into.as_deref().unwrap_or(&options.run);
    say!("{}", report::write(&run, into)?.display());
    Ok(ExitCode::SUCCESS)
}
