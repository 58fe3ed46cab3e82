//! Runs cases twice and compares.
//!
//! Each run is a process group of its own with a deadline; nothing of it survives. A case of two programs is one case
//! for each choice of interposed ends: Beeline on one side only must fall back and look the same.

use crate::across::Across;
use crate::case::{Body, Path as ExpectedPath};
use crate::cases::{self, Instance};
use crate::child::{self, PAIR_LIBRARY_VARIABLE};
use crate::compare::difference;
use crate::options::{Command as Verb, Options};
use crate::random::Plan;
use crate::sequences;
use crate::trace::Trace;
use crate::{faults, hostile};
use anyhow::{Context, Result, bail};
use beeline_testkit::preload;
use beeline_testkit::watch::{Ending, Group};
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// How often a case is run whose answer was chance: the kernel's, or that two are equal.
const CHANCES: usize = 3;
/// What [`crate::traced`] says of a wait that did not end.
const WAITED_IN_VAIN: &str = "waited in vain";

/// A busy machine may stall a server for longer than its client waits for it, who goes on over TCP then
/// (`hello_not_taken`): connections that should have been on lanes have failed to be when they were not so many times
/// in a row.
pub const PATH_TRIES: u32 = 3;

/// One comparison to make.
struct Job {
    name: String,
    program: String,
    /// Which ends of a pair of programs are interposed; none for one program.
    interposed: Option<&'static str>,
    path: ExpectedPath,
    deviation: Option<&'static str>,
}

/// What one process made of a program.
pub struct Run {
    pub trace: Trace,
    pub errors: String,
    pub ending: Ending,
}

/// Does what the command line asks for; true when all cases passed.
///
/// # Errors
/// When the runner itself cannot work: no library, no temporary directory, no processes.
pub fn main(options: &Options) -> Result<bool> {
    let jobs = match &options.command {
        Some(Verb::Child { program, trace, interposed }) => {
            child::run(program, trace, interposed.as_deref())?;
            return Ok(true);
        }
        Some(Verb::Random { .. } | Verb::Faults(_)) => Vec::new(),
        None => {
            let mut jobs = case_jobs(cases::instances());
            // Those stand at doors of this namespace.
            if !options.native_only && !Across::is_wanted() {
                jobs.extend(hostile_jobs());
            }
            jobs
        }
    };
    let wanted = |job: &Job| {
        !Across::leaves_out(&job.name)
            && options.filter.as_ref().is_none_or(|filter| job.name.contains(filter.as_str()))
    };
    let jobs: Vec<Job> = jobs.into_iter().filter(wanted).collect();
    if options.list {
        let names: String = jobs.iter().map(|job| job.name.clone() + "\n").collect();
        // Whoever reads them may have seen enough.
        let _ = io::stdout().write_all(names.as_bytes());
        return Ok(true);
    }
    let on_tcp = matches!(&options.command, Some(Verb::Faults(faults)) if faults.tcp);
    let library = match options.native_only || on_tcp {
        true => None,
        false => Some(
            options
                .library
                .clone()
                .or_else(preload::find_library)
                .context("no libbeeline.so: build it, or say --library PATH or --native-only")?
                .canonicalize()
                .context("the library")?,
        ),
    };
    if let Some(Verb::Faults(faults)) = &options.command {
        return faults::run_inside(faults, library.as_deref());
    }
    let lab = Lab { library, directory: Scratch::new()?, limit: Duration::from_secs(options.timeout) };
    if let Some(plans) = options.command.as_ref().and_then(plans) {
        return Ok(sequences::run_all(&lab, &plans, options.jobs));
    }
    Ok(Runner { options, lab, over_tcp: AtomicUsize::new(0) }.run_all(&jobs))
}

fn case_jobs(instances: Vec<Instance>) -> Vec<Job> {
    let mut jobs = Vec::new();
    for instance in instances {
        let program = format!("case:{}", instance.name);
        let path = instance.case.path;
        let deviation = instance.case.deviation.filter(|_| !Across::is_as_the_kernel(&instance.name));
        match instance.case.body {
            Body::Solo(_) => jobs.push(Job { name: instance.name, program, interposed: None, path, deviation }),
            Body::Duo { .. } => jobs.extend(["both", "server", "client"].map(|ends| Job {
                name: format!("{}+{ends}", instance.name),
                program: program.clone(),
                interposed: Some(ends),
                path: if ends == "both" { path } else { ExpectedPath::Any },
                deviation: deviation.filter(|_| ends == "both"),
            })),
        }
    }
    jobs
}

fn hostile_jobs() -> Vec<Job> {
    let job = |name: String| Job {
        program: format!("hostile:{name}"),
        name,
        interposed: Some("server"),
        path: ExpectedPath::Any,
        deviation: None,
    };
    hostile::names().into_iter().map(job).collect()
}

/// The random sequences that are asked for.
fn plans(verb: &Verb) -> Option<Vec<Plan>> {
    let Verb::Random { seed, ops, calls, count, ops_total, only } = verb else { return None };
    let clock = || SystemTime::now().duration_since(UNIX_EPOCH).map_or(1, |since| since.as_secs() * 1000);
    let first = seed.unwrap_or_else(clock);
    let count = ops_total.map_or(*count, |total| total.div_ceil((*ops).max(1) as u64));
    let only = (!only.is_empty()).then(|| only.clone());
    Some((first..first + count).map(|seed| Plan { seed, ops: *ops, calls: *calls, only: only.clone() }).collect())
}

/// A directory that is removed at the end.
struct Scratch(PathBuf);

impl Scratch {
    fn new() -> Result<Self> {
        let directory = std::env::temp_dir().join(format!("beeline-semantics-{}", std::process::id()));
        fs::create_dir_all(&directory).with_context(|| directory.display().to_string())?;
        Ok(Self(directory))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Where programs are run.
pub struct Lab {
    library: Option<PathBuf>,
    directory: Scratch,
    limit: Duration,
}

struct Runner<'a> {
    options: &'a Options,
    lab: Lab,
    /// Cases across namespaces that were right, but of which not all connections were on lanes: an agent has shares,
    /// and an offer that a busy machine lets nobody take in time goes by TCP.
    over_tcp: AtomicUsize,
}

impl Runner<'_> {
    fn run_all(&self, jobs: &[Job]) -> bool {
        let next = AtomicUsize::new(0);
        let failed = Mutex::new(Vec::new());
        std::thread::scope(|scope| {
            for _ in 0..self.options.jobs.max(1) {
                scope.spawn(|| {
                    while let Some((at, job)) = jobs.iter().enumerate().nth(next.fetch_add(1, Ordering::Relaxed)) {
                        let deviation = job.deviation.filter(|_| self.lab.library.is_some());
                        // What differs may be equal by chance, and not again and again.
                        let tries = if deviation.is_some() { CHANCES } else { 1 };
                        let mut results = (0..tries).map(|_| self.compare(at, job));
                        let result = results.find(|result| result.is_err()).unwrap_or(Ok(()));
                        match (result, deviation) {
                            (Err(_), Some(why)) => println!("known {}: {why}", job.name),
                            (Ok(()), Some(why)) => {
                                println!("FAIL  {}\n    equal, though it is listed as different: {why}", job.name);
                                if let Ok(mut names) = failed.lock() {
                                    names.push(job.name.clone());
                                }
                            }
                            (Ok(()), None) => println!("pass  {}", job.name),
                            (Err(why), None) => {
                                println!("FAIL  {}\n{}", job.name, format!("{why:#}").trim_end());
                                if let Ok(mut names) = failed.lock() {
                                    names.push(job.name.clone());
                                }
                            }
                        }
                    }
                });
            }
        });
        let failed = failed.into_inner().unwrap_or_default();
        if !failed.is_empty() {
            println!("\nfailed:");
            failed.iter().for_each(|name| println!("  {name}"));
        }
        if Across::is_wanted() {
            println!("{} not wholly over lanes", self.over_tcp.load(Ordering::Relaxed));
        }
        println!("{} passed, {} failed", jobs.len() - failed.len(), failed.len());
        failed.is_empty()
    }

    fn compare(&self, at: usize, job: &Job) -> Result<()> {
        if job.program.starts_with("hostile:") {
            let run = self.run_other(at, job)?;
            return match run.ending {
                Ending::Exit(0) => Ok(()),
                ending => bail!("    ended with {ending:?}\n{}", run.errors),
            };
        }
        let kernel = self.run_on_kernel(at, job)?;
        if self.options.show {
            let lines: String = kernel.trace.lines.iter().map(|line| format!("      {line}\n")).collect();
            print!("{}\n{lines}", job.name);
        }
        if kernel.ending != Ending::Exit(0) {
            bail!("    on kernel TCP the program ended with {:?}\n{}", kernel.ending, kernel.last_lines());
        }
        if let Some(line) = kernel.trace.lines.iter().find(|line| line.contains(WAITED_IN_VAIN)) {
            bail!("    on kernel TCP: {line}\n{}", kernel.last_lines());
        }
        let wants_lanes = self.lab.library.is_some() && job.path == ExpectedPath::Lane;
        for _ in 1..PATH_TRIES {
            let other = self.run_other(at, job)?;
            match self.check_same(&kernel, &other, job) {
                Err(_) if Across::may_differ_once(&job.name, check_path(&other).is_err()) => {
                    Across::rest();
                    continue;
                }
                found => found?,
            }
            if !wants_lanes || check_path(&other).is_ok() {
                return Ok(());
            }
            Across::rest();
        }
        let last = self.run_other(at, job)?;
        self.check_same(&kernel, &last, job)?;
        match check_path(&last) {
            Err(_) if Across::is_wanted() => {
                self.over_tcp.fetch_add(1, Ordering::Relaxed);
                Ok(())
            }
            path => path,
        }
    }

    /// Runs a case on kernel TCP. That says nothing where it kept somebody waiting for ever: its timers for a window
    /// that is closed count up to minutes, and now and then a case meets one.
    fn run_on_kernel(&self, at: usize, job: &Job) -> Result<Run> {
        let run = || self.run_one(&format!("{at}-kernel"), job, None);
        for _ in 1..CHANCES {
            let kernel = run()?;
            if !kernel.trace.lines.iter().any(|line| line.contains(WAITED_IN_VAIN)) {
                return Ok(kernel);
            }
        }
        run()
    }

    /// Runs a case as its job says.
    fn run_other(&self, at: usize, job: &Job) -> Result<Run> {
        self.run_one(&format!("{at}-other"), job, self.lab.library())
    }

    /// Compares what it saw with what it saw on the kernel.
    fn check_same(&self, kernel: &Run, other: &Run, job: &Job) -> Result<()> {
        let other_name = if self.lab.library.is_some() { "beeline" } else { "kernel again" };
        let path = || match check_path(other) {
            Err(why) if self.lab.library.is_some() && job.path == ExpectedPath::Lane => format!("{why:#}\n"),
            _ => String::new(),
        };
        if let Some(text) = difference("kernel", &kernel.trace, other_name, &other.trace) {
            bail!("{text}    ({other_name} ended with {:?})\n{}{}", other.ending, path(), other.errors);
        }
        if other.ending != kernel.ending {
            bail!("    {other_name} ended with {:?}\n{}{}", other.ending, path(), other.last_lines());
        }
        Ok(())
    }

    fn run_one(&self, name: &str, job: &Job, library: Option<&Path>) -> Result<Run> {
        self.lab.run(name, &job.program, job.interposed, library)
    }
}

impl Lab {
    /// The library to test; none when the kernel is compared with itself.
    pub fn library(&self) -> Option<&Path> {
        self.library.as_deref()
    }

    /// Runs a program once, with or without the library; `interposed` tells which of two programs have it.
    ///
    /// # Errors
    /// When there is no process or no file to be had.
    pub fn run(&self, name: &str, program: &str, interposed: Option<&str>, library: Option<&Path>) -> Result<Run> {
        let trace_file = self.directory.0.join(format!("{name}.trace"));
        let error_file = self.directory.0.join(format!("{name}.errors"));
        let mut command = Command::new("/proc/self/exe");
        command.args(["child", program, "--trace"]).arg(&trace_file);
        match interposed {
            None => preload::apply(&mut command, library),
            Some(ends) => {
                preload::apply(&mut command, None);
                command.args(["--interposed", ends]);
                if let Some(path) = library {
                    command.env(PAIR_LIBRARY_VARIABLE, path);
                }
            }
        }
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(fs::File::create(&error_file)?);
        let ending = Group::start(&mut command)?.finish(self.limit)?;
        let trace = Trace::parse(&String::from_utf8_lossy(&fs::read(&trace_file).unwrap_or_default()));
        // The next run may have the same name.
        let _ = fs::remove_file(&trace_file);
        let errors = String::from_utf8_lossy(&fs::read(&error_file)?).into_owned();
        Ok(Run { trace, errors, ending })
    }
}

impl Run {
    /// The end of a run that went wrong.
    pub fn last_lines(&self) -> String {
        let skipped = self.trace.lines.len().saturating_sub(8);
        let lines: String = self.trace.lines.iter().skip(skipped).map(|line| format!("      {line}\n")).collect();
        format!("{lines}{}", self.errors)
    }
}

/// Whether the connections that should have been accelerated were: at least one end of each is counted in the process
/// that tells (the other may belong to a child of it), and none fell back.
pub fn check_path(run: &Run) -> Result<()> {
    let pairs = run.trace.notes.iter().filter(|note| *note == "pair").count();
    let counted: Vec<usize> =
        run.trace.notes.iter().filter_map(|note| note.strip_prefix("accelerated ")?.parse().ok()).collect();
    if pairs > 0 && counted.iter().sum::<usize>() < pairs {
        let told: String =
            run.trace.notes.iter().filter(|note| *note != "pair").map(|note| format!("    {note}\n")).collect();
        let told = if counted.is_empty() { "    no statistics: is the library loaded?\n".to_owned() } else { told };
        bail!("    not accelerated: {pairs} connections expected on lanes\n{told}");
    }
    // A connection that nobody would take is the kernel's to refuse.
    let wrong = |note: &&String| {
        note.starts_with("poisoned") || note.starts_with("fell back") && !note.starts_with("fell back: no_listener")
    };
    match run.trace.notes.iter().find(wrong) {
        Some(note) if pairs > 0 => bail!("    not all accelerated: {note}"),
        _ => Ok(()),
    }
}
