//! Comparing random sequences: many, quickly, and the first that differs made short.
//!
//! A sequence is run on kernel TCP and on Beeline ([`crate::random`]). Its trace on the kernel is a fact and not a
//! sample: the sequence waits until TCP has settled after each operation. So there is no second try; `--native-only`
//! shows that the kernel agrees with itself.

use crate::compare::difference;
use crate::random::{Plan, shrink};
use crate::runner::{Lab, PATH_TRIES, Run, check_path};
use crate::trace::Trace;
use anyhow::Result;
use beeline_testkit::watch::Ending;
use std::io::{IsTerminal, Write};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// Sequences at the same time for each of `--jobs`: they wait more than they work.
const THREADS_PER_JOB: usize = 3;

/// Shorter versions that are tried of a sequence that differs.
const TRIALS: usize = 500;

/// Differences after which there is no use in looking for more.
const FAILURES_MAX: usize = 10;

/// Runs all plans; true when none differed.
pub fn run_all(lab: &Lab, plans: &[Plan], jobs: usize) -> bool {
    let next = AtomicUsize::new(0);
    let running = AtomicUsize::new(0);
    let failed = Mutex::new(Vec::new());
    let failures = || failed.lock().map_or(FAILURES_MAX, |names: std::sync::MutexGuard<'_, Vec<String>>| names.len());
    let progress = Progress::new(plans.len());
    std::thread::scope(|scope| {
        for _ in 0..(jobs.max(1) * THREADS_PER_JOB).min(plans.len()) {
            running.fetch_add(1, Ordering::Relaxed);
            scope.spawn(|| {
                while failures() < FAILURES_MAX
                    && let Some((at, plan)) = plans.iter().enumerate().nth(next.fetch_add(1, Ordering::Relaxed))
                {
                    if let Some(report) = judge(lab, at, plan) {
                        progress.clear();
                        println!("FAIL  {}\n{}", plan.arguments(), report.trim_end());
                        if let Ok(mut names) = failed.lock() {
                            names.push(plan.arguments());
                        }
                    }
                }
                running.fetch_sub(1, Ordering::Relaxed);
            });
        }
        while running.load(Ordering::Relaxed) != 0 {
            progress.show(next.load(Ordering::Relaxed), failures());
            std::thread::sleep(Duration::from_millis(50));
        }
    });
    progress.clear();
    let failed = failed.into_inner().unwrap_or_default();
    let ended = next.into_inner().min(plans.len());
    let ops: usize = plans.iter().take(ended).map(|plan| plan.steps().len()).sum();
    let seeds = plans.first().zip(plans.get(ended.saturating_sub(1)));
    let seeds = seeds.map_or_else(String::new, |(first, last)| format!(", seeds {} to {}", first.seed, last.seed));
    println!("{ended} sequences of {ops} operations{seeds}: {} differ", failed.len());
    failed.is_empty()
}

/// What is wrong with a sequence, as a report; nothing if it does the same on both.
fn judge(lab: &Lab, at: usize, plan: &Plan) -> Option<String> {
    let first = match compare(lab, at, plan) {
        Ok(None) => return None,
        Ok(Some(report)) => report,
        Err(error) => return Some(format!("    {error:#}")),
    };
    let differs = |steps: &[usize]| {
        !steps.is_empty() && matches!(compare(lab, at, &plan.reduced_to(steps.to_vec())), Ok(Some(_)))
    };
    if !differs(&plan.steps()) {
        return Some(format!("{first}    it did not differ when it was run again\n"));
    }
    let short = plan.reduced_to(shrink(plan.steps(), TRIALS, differs));
    match compare(lab, at, &short) {
        Ok(Some(report)) => Some(format!("    shrunk: semantics {}\n{report}", short.arguments())),
        _ => Some(format!("{first}    it could not be shrunk: shorter versions differ only sometimes\n")),
    }
}

/// Runs a plan twice and tells the difference.
fn compare(lab: &Lab, at: usize, plan: &Plan) -> Result<Option<String>> {
    compare_within(PATH_TRIES, lab, at, plan)
}

/// The same, with so many tries at being on lanes.
fn compare_within(tries: u32, lab: &Lab, at: usize, plan: &Plan) -> Result<Option<String>> {
    let program = format!("random:{plan}");
    let kernel = lab.run(&format!("{at}-kernel"), &program, None, None)?;
    let mut other = lab.run(&format!("{at}-other"), &program, None, lab.library())?;
    forgive_forks(&mut other.trace);
    let other_name = if lab.library().is_some() { "beeline" } else { "kernel again" };
    for (name, run) in [("kernel", &kernel), (other_name, &other)] {
        if let Some(trouble) = trouble(run) {
            return Ok(Some(format!("    {name}: {trouble}\n{}", run.last_lines())));
        }
    }
    if let Some(text) = difference("kernel", &kernel.trace, other_name, &other.trace) {
        return Ok(Some(format!("{text}{}", other.errors)));
    }
    match lab.library().map(|_| check_path(&other)) {
        Some(Err(_)) if tries > 1 => compare_within(tries - 1, lab, at, plan),
        Some(Err(error)) => Ok(Some(format!("{error:#}\n"))),
        _ => Ok(None),
    }
}

/// Whom a listener has put aside goes on over TCP when the process forks, where parent and child may accept it.
fn forgive_forks(trace: &mut Trace) {
    const LEFT: &str = "fell back: door_died ";
    const CAME: &str = "fell back: came_over_tcp ";
    let count = |what: &str| {
        let told = trace.notes.iter().find_map(|note| note.strip_prefix(what));
        told.and_then(|count| count.parse::<usize>().ok()).unwrap_or(0)
    };
    if trace.lines.iter().any(|line| line.contains("fork: ")) && count(CAME) <= count(LEFT) {
        trace.notes.retain(|note| !note.starts_with(LEFT) && !note.starts_with(CAME));
    }
}

/// Why a run is no run to compare.
fn trouble(run: &Run) -> Option<String> {
    if run.ending != Ending::Exit(0) {
        return Some(format!("ended with {:?}", run.ending));
    }
    run.trace.notes.iter().find(|note| note.contains("in vain")).cloned()
}

/// One line on a terminal, rewritten.
struct Progress {
    all: usize,
    shown: bool,
}

impl Progress {
    fn new(all: usize) -> Self {
        Self { all, shown: std::io::stderr().is_terminal() && all > 1 }
    }

    fn show(&self, begun: usize, failures: usize) {
        if self.shown {
            let begun = begun.min(self.all);
            let percent = begun * 100 / self.all.max(1);
            let _ = write!(std::io::stderr(), "\r{percent:3} %  {begun} of {} sequences, {failures} differ", self.all);
        }
    }

    fn clear(&self) {
        if self.shown {
            let _ = write!(std::io::stderr(), "\r\x1b[K");
        }
    }
}
