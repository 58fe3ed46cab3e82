//! Runs cases twice and compares.
//!
//! Each run is a process group of its own with a deadline; nothing of it survives. A case of two programs is one case
//! for each choice of interposed ends: Beeline on one side only must fall back and look the same.

use crate::case::{Body, Path as ExpectedPath};
use crate::cases::{self, Instance};
use crate::child::{self, PAIR_LIBRARY_VARIABLE};
use crate::compare::difference;
use crate::hostile;
use crate::options::{Command as Verb, Options};
use crate::random::{self, Calls};
use crate::trace::Trace;
use anyhow::{Context, Result, bail};
use beeline_testkit::preload;
use beeline_testkit::watch::{Ending, Group};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Further runs on kernel TCP before a random sequence counts as different.
const KERNEL_RUNS_MORE: usize = 3;

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
struct Run {
    trace: Trace,
    errors: String,
    ending: Ending,
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
        Some(Verb::Random { seed, ops, calls, count }) => random_jobs(*seed, *ops, *calls, *count),
        None => {
            let mut jobs = case_jobs(cases::instances());
            if !options.native_only {
                jobs.extend(hostile_jobs());
            }
            jobs
        }
    };
    let wanted = |job: &Job| options.filter.as_ref().is_none_or(|filter| job.name.contains(filter.as_str()));
    let jobs: Vec<Job> = jobs.into_iter().filter(wanted).collect();
    if options.list {
        jobs.iter().for_each(|job| println!("{}", job.name));
        return Ok(true);
    }
    let library = match options.native_only {
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
    let runner = Runner { options, library, directory: Scratch::new()? };
    Ok(runner.run_all(&jobs))
}

fn case_jobs(instances: Vec<Instance>) -> Vec<Job> {
    let mut jobs = Vec::new();
    for instance in instances {
        let program = format!("case:{}", instance.name);
        let path = instance.case.path;
        let deviation = instance.case.deviation;
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

fn random_jobs(seed: Option<u64>, ops: usize, calls: Calls, count: u64) -> Vec<Job> {
    let clock = || SystemTime::now().duration_since(UNIX_EPOCH).map_or(1, |since| since.as_secs() * 1000);
    let first = seed.unwrap_or_else(clock);
    (first..first + count)
        .map(|seed| Job {
            name: format!("random --seed {seed} --ops {ops} --calls {}", calls.name()),
            program: format!("random:{seed}:{ops}:{}", calls.name()),
            interposed: None,
            path: ExpectedPath::Any,
            deviation: None,
        })
        .collect()
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

struct Runner<'a> {
    options: &'a Options,
    library: Option<PathBuf>,
    directory: Scratch,
}

impl Runner<'_> {
    fn run_all(&self, jobs: &[Job]) -> bool {
        let next = AtomicUsize::new(0);
        let failed = Mutex::new(Vec::new());
        std::thread::scope(|scope| {
            for _ in 0..self.options.jobs.max(1) {
                scope.spawn(|| {
                    while let Some((at, job)) = jobs.iter().enumerate().nth(next.fetch_add(1, Ordering::Relaxed)) {
                        match (self.compare(at, job), job.deviation.filter(|_| self.library.is_some())) {
                            (Err(_), Some(why)) => println!("known {}: {why}", job.name),
                            (Ok(()), Some(why)) => {
                                println!("FAIL  {}\n    equal, though it is listed as different: {why}", job.name);
                                if let Ok(mut names) = failed.lock() {
                                    names.push(job.name.clone());
                                }
                            }
                            (Ok(()), None) => println!("pass  {}", job.name),
                            // The kernel is not always of one mind (an acknowledgement may or may not be an edge of its
                            // own), so a difference counts when it shows twice in a row.
                            (Err(first), None) if self.compare(at, job).is_ok() => {
                                println!("pass  {} (at the second try)\n{}", job.name, format!("{first:#}").trim_end());
                            }
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
        println!("{} passed, {} failed", jobs.len() - failed.len(), failed.len());
        failed.is_empty()
    }

    fn compare(&self, at: usize, job: &Job) -> Result<()> {
        if job.program.starts_with("hostile:") {
            let run = self.run_one(&format!("{at}-other"), job, self.library.as_deref())?;
            return match run.ending {
                Ending::Exit(0) => Ok(()),
                ending => bail!("    ended with {ending:?}\n{}", run.errors),
            };
        }
        let kernel = self.run_one(&format!("{at}-kernel"), job, None)?;
        if self.options.show {
            let lines: String = kernel.trace.lines.iter().map(|line| format!("      {line}\n")).collect();
            print!("{}\n{lines}", job.name);
        }
        if kernel.ending != Ending::Exit(0) {
            bail!("    on kernel TCP the program ended with {:?}\n{}", kernel.ending, last_lines(&kernel));
        }
        if let Some(note) = kernel.trace.notes.iter().find(|note| note.contains("in vain")) {
            bail!("    on kernel TCP: {note}\n{}", last_lines(&kernel));
        }
        if let Some(line) = kernel.trace.lines.iter().find(|line| line.contains("waited in vain")) {
            bail!("    on kernel TCP: {line}\n{}", last_lines(&kernel));
        }
        let other_name = if self.library.is_some() { "beeline" } else { "kernel again" };
        let other = self.run_one(&format!("{at}-other"), job, self.library.as_deref())?;
        if self.library.is_some() && self.kernel_can_do_that_too(at, job, &kernel, &other)? {
            return Ok(());
        }
        if let Some(mut text) = difference("kernel", &kernel.trace, other_name, &other.trace) {
            if job.program.starts_with("random:") {
                text.push_str(&story(&kernel.trace, &other.trace));
            }
            bail!("{text}    ({other_name} ended with {:?})\n{}", other.ending, other.errors);
        }
        if other.ending != kernel.ending {
            bail!("    {other_name} ended with {:?}\n{}", other.ending, last_lines(&other));
        }
        if self.library.is_some() && job.path == ExpectedPath::Lane {
            check_path(&other)?;
        }
        Ok(())
    }

    /// About one random sequence in two thousand differs between two runs on kernel TCP (an edge more or less, when an
    /// acknowledgement is late). What one of several kernel runs shows as well is right.
    fn kernel_can_do_that_too(&self, at: usize, job: &Job, kernel: &Run, other: &Run) -> Result<bool> {
        if !job.program.starts_with("random:") || kernel.trace.first_difference(&other.trace).is_none() {
            return Ok(false);
        }
        for again in 0..KERNEL_RUNS_MORE {
            let more = self.run_one(&format!("{at}-kernel-{again}"), job, None)?;
            if more.trace.first_difference(&other.trace).is_none() && more.ending == other.ending {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn run_one(&self, name: &str, job: &Job, library: Option<&Path>) -> Result<Run> {
        let trace_file = self.directory.0.join(format!("{name}.trace"));
        let error_file = self.directory.0.join(format!("{name}.errors"));
        let mut command = Command::new("/proc/self/exe");
        command.args(["child", &job.program, "--trace"]).arg(&trace_file);
        match job.interposed {
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
        let ending = Group::start(&mut command)?.finish(Duration::from_secs(self.options.timeout))?;
        let trace = Trace::parse(&String::from_utf8_lossy(&fs::read(&trace_file).unwrap_or_default()));
        let errors = String::from_utf8_lossy(&fs::read(&error_file)?).into_owned();
        Ok(Run { trace, errors, ending })
    }
}

/// What happened to the connection that two random sequences disagree about.
fn story(kernel: &Trace, other: &Trace) -> String {
    let at = kernel.first_difference(other).unwrap_or(0);
    let (Some(one), Some(two)) = (kernel.lines.get(at), other.lines.get(at)) else { return String::new() };
    let told = random::story::of_difference(&kernel.lines[..at], one, two);
    let lines: String = told.iter().map(|line| format!("      {line}\n")).collect();
    format!("    the connection's story:\n{lines}")
}

/// The end of a run that went wrong.
fn last_lines(run: &Run) -> String {
    let skipped = run.trace.lines.len().saturating_sub(8);
    let lines: String = run.trace.lines.iter().skip(skipped).map(|line| format!("      {line}\n")).collect();
    format!("{lines}{}", run.errors)
}

/// Whether the connections that should have been accelerated were: at least one end of each is counted in the process
/// that tells (the other may belong to a child of it), and none fell back.
fn check_path(run: &Run) -> Result<()> {
    let pairs = run.trace.notes.iter().filter(|note| *note == "pair").count();
    let counted: Vec<usize> =
        run.trace.notes.iter().filter_map(|note| note.strip_prefix("accelerated ")?.parse().ok()).collect();
    if pairs > 0 && counted.iter().sum::<usize>() < pairs {
        let told: String =
            run.trace.notes.iter().filter(|note| *note != "pair").map(|note| format!("    {note}\n")).collect();
        let told = if counted.is_empty() { "    no statistics: is the library loaded?\n".to_owned() } else { told };
        bail!("    equal, but not accelerated: {pairs} connections expected on lanes\n{told}");
    }
    // A connection that nobody would take is the kernel's to refuse.
    let wrong = |note: &&String| {
        note.starts_with("poisoned") || note.starts_with("fell back") && !note.starts_with("fell back: no_listener")
    };
    match run.trace.notes.iter().find(wrong) {
        Some(note) if pairs > 0 => bail!("    equal, but not all accelerated: {note}"),
        _ => Ok(()),
    }
}
