//! A stream while which a threshold is turned, and turned back: [`Work::Turned`](super::cell::Work::Turned).
//!
//! 1. A sample has three phases, before, turned and back, of one sample's length each; the stream goes on all the
//!    while, and over TCP, where there is nothing to turn, it has the same three.
//! 2. On one host it is an option of the library that is turned, at both ends, as a user does it: by `beeline set`.
//!    Between hosts it is a setting of the bridges, which are as before when the sample ends.
//! 3. That it was turned is not taken from whoever was told, but from what is counted: a sample is none whose counts
//!    stayed what they were.

use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use beeline_stats::Counter;
use nix::unistd::Pid;

use super::axis::Turn;
use super::cell::{Cell, Place};
use super::figure::{Figure, Phase, Sample};
use crate::acceleration::{Carried, counter_of};
use crate::conductor::Pair;
use crate::hosts::{Bridges, Moved};
use crate::plan::find_beeline;
use crate::process::Guard;
use crate::worker::events::Outcome;
use crate::worker::turned::{FLOWING, NOTED};

/// Two questions a phase, one at each end of it.
pub const QUESTIONS: usize = 2 * Phase::ALL.len();
const PATIENCE: Duration = Duration::from_secs(10);
/// More pieces one way than the other, for a phase to be one of pushing or of pulling.
const MOSTLY: u64 = 10;

/// Who is told.
pub enum Turner<'a> {
    /// Nobody: kernel TCP.
    None,
    /// Both processes on this host.
    Library,
    Bridges(&'a Bridges),
}

/// What was counted in a phase.
enum Counted {
    Nothing,
    Library(Done),
    Moved(Moved),
}

/// What the two programs have done in a phase.
#[derive(Clone, Copy, Debug, Default)]
struct Done {
    /// By the sender.
    turns: u64,
    /// By the receiver.
    fetched: u64,
    fetches_refused: u64,
}

/// Runs the two ends through the phases.
pub fn conduct(mut pair: Pair, cell: &Cell, turner: &Turner, sample: Duration) -> Result<(Sample, Carried)> {
    let turn = cell.turn.as_deref().context("what is to be turned?")?;
    let turn = Turn::parse(turn).map_err(anyhow::Error::msg)?;
    let pids = [pair.client.pid(), pair.server.pid()];
    for worker in [&mut pair.server, &mut pair.client] {
        worker.reach(FLOWING)?;
    }
    let mut counted = Vec::new();
    for phase in Phase::ALL {
        match phase {
            Phase::Before => turn.from.as_deref().map_or(Ok(()), |value| turner.tell(pids, &turn.key, value))?,
            Phase::Turned => turner.tell(pids, &turn.key, &turn.to)?,
            Phase::Back => turner.tell(pids, &turn.key, turn.from.as_deref().unwrap_or("default"))?,
        }
        // What was under way goes on as it was begun.
        std::thread::sleep(sample / 8);
        let before = turner.count(pids)?;
        ask(&mut pair)?;
        std::thread::sleep(sample);
        ask(&mut pair)?;
        counted.push(turner.count(pids)?.since(before));
    }
    check(cell, &counted)?;
    let (client, server) = pair.finish()?;
    Ok((read(&client, &server)?, client.carried))
}

/// Both ends note where they are, the server first: the client ends after the last question.
fn ask(pair: &mut Pair) -> Result<()> {
    for worker in [&mut pair.server, &mut pair.client] {
        worker.go_on()?;
        worker.reach(NOTED)?;
    }
    Ok(())
}

impl Turner<'_> {
    fn tell(&self, pids: [Pid; 2], key: &str, value: &str) -> Result<()> {
        match self {
            Turner::None => Ok(()),
            Turner::Library => pids.into_iter().try_for_each(|pid| {
                let mut command = Command::new(find_beeline(None)?);
                command.args(["set", &pid.to_string(), &format!("{key}={value}")]);
                let output = Guard::start(command, true)?.output(PATIENCE)?;
                ensure!(output.status.success(), "{key} cannot be set while the stream runs: {output}");
                Ok(())
            }),
            Turner::Bridges(bridges) => {
                bridges.set_both(key, value.parse().with_context(|| format!("`{value}` is no number"))?)
            }
        }
    }

    fn count(&self, [client, server]: [Pid; 2]) -> Result<Counted> {
        let count = |pid, counter| counter_of(pid, counter).unwrap_or(0);
        Ok(match self {
            Turner::None => Counted::Nothing,
            Turner::Library => Counted::Library(Done {
                turns: count(client, Counter::Turns),
                fetched: count(server, Counter::Fetched),
                fetches_refused: count(server, Counter::FetchesRefused),
            }),
            Turner::Bridges(bridges) => Counted::Moved(bridges.totals()?),
        })
    }
}

impl Counted {
    fn since(self, before: Counted) -> Counted {
        match (self, before) {
            (Counted::Library(now), Counted::Library(before)) => Counted::Library(Done {
                turns: now.turns.saturating_sub(before.turns),
                fetched: now.fetched.saturating_sub(before.fetched),
                fetches_refused: now.fetches_refused.saturating_sub(before.fetches_refused),
            }),
            (Counted::Moved(now), Counted::Moved(before)) => Counted::Moved(now.since(&before)),
            _ => Counted::Nothing,
        }
    }
}

/// Whether what was counted says that the threshold was turned (rule 3). Between two CPUs nobody takes turns, and on
/// one nobody fetches. Other options are counted by nothing.
fn check(cell: &Cell, counted: &[Counted]) -> Result<()> {
    let key = cell.turn.as_deref().and_then(|turn| turn.split('=').next()).unwrap_or_default();
    match counted {
        [Counted::Library(before), Counted::Library(turned), Counted::Library(_)] => match (key, cell.place) {
            ("turn_bytes", Place::Same) => ensure!(
                turned.turns != before.turns,
                "{} turns were taken before and after the option was turned",
                turned.turns
            ),
            ("zcopy_threshold_bytes", Place::Apart | Place::Siblings | Place::Far) => ensure!(
                turned.fetched != before.fetched,
                "{} messages were fetched before and after the option was turned ({} refused)",
                turned.fetched,
                turned.fetches_refused
            ),
            _ => {}
        },
        [Counted::Moved(before), Counted::Moved(turned), Counted::Moved(back)] => {
            let is_pushed = |moved: &Moved| moved.pushes > MOSTLY * moved.pulls;
            let is_pulled = |moved: &Moved| moved.pulls > MOSTLY * moved.pushes;
            let is_turned = is_pushed(before) && is_pulled(turned) && is_pushed(back)
                || is_pulled(before) && is_pushed(turned) && is_pulled(back);
            let show = |moved: &Moved| format!("{} pushed and {} pulled", moved.pushes, moved.pulls);
            ensure!(
                is_turned,
                "turning it changed nothing: {} before, {} turned, {} back",
                show(before),
                show(turned),
                show(back)
            );
        }
        _ => {}
    }
    Ok(())
}

fn read(client: &Outcome, server: &Outcome) -> Result<Sample> {
    let mut sample = Sample::new();
    for (index, phase) in Phase::ALL.into_iter().enumerate() {
        let value = |outcome: &Outcome, name: &str| {
            let name = format!("{name}_{index}");
            outcome.values.get(&name).copied().with_context(|| format!("a worker did not report {name}"))
        };
        let bytes = value(server, "bytes")?;
        let is_long = bytes > 0.0 && value(server, "seconds")? > 0.0 && value(client, "bytes")? > 0.0;
        ensure!(is_long, "nothing came in a phase ({}): samples are too short", phase.title());
        sample.insert(phase.of(Figure::Throughput), bytes / value(server, "seconds")?);
        for (outcome, figure) in [(client, Figure::CpuGbClient), (server, Figure::CpuGbServer)] {
            sample.insert(phase.of(figure), value(outcome, "cpu")? * 1e9 / (value(outcome, "bytes")? / 1e9));
        }
    }
    ensure!(sample.values().all(|value| value.is_finite()), "the programs reported what is no number: {sample:?}");
    Ok(sample)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::paper::plan::{PaperPlan, Source};

    fn cell(place: &str, turn: &str) -> Cell {
        let text = format!(
            "format = 1\nname = \"p\"\ntitle = \"P\"\ndocument = \"D\"\n[[table]]\nid = \"t\"\ntitle = \"T\"\nsource = \"S\"\n\
             work = \"turned\"\nbytes = [1000]\nplace = [\"{place}\"]\nturn = [\"{turn}\"]\n"
        );
        PaperPlan::parse(&Source { name: "p".into(), text: &text }).unwrap().cells(None).remove(0)
    }

    fn moved(pushes: u64, pulls: u64) -> Counted {
        Counted::Moved(Moved { pushes, pulls, ..Moved::default() })
    }

    #[test]
    fn a_threshold_that_was_not_turned_makes_no_sample() {
        let apart = cell("apart", "pull_min=64M..4K");
        assert!(check(&apart, &[moved(100, 0), moved(1, 100), moved(100, 1)]).is_ok());
        assert!(check(&apart, &[moved(0, 100), moved(100, 1), moved(1, 100)]).is_ok());
        let error = check(&apart, &[moved(100, 0), moved(100, 0), moved(100, 0)]).unwrap_err().to_string();
        assert!(error.contains("changed nothing"), "{error}");
        assert!(check(&apart, &[moved(100, 0), moved(0, 100), moved(0, 100)]).is_err());
    }

    #[test]
    fn an_option_that_was_not_turned_makes_no_sample() {
        let turns = |each: [u64; 3]| each.map(|turns| Counted::Library(Done { turns, ..Done::default() }));
        let is_turn = |place, each| check(&cell(place, "turn_bytes=off..256K"), &turns(each)).is_ok();
        assert!(is_turn("same", [0, 9, 0]) && !is_turn("same", [0, 0, 0]) && is_turn("apart", [0, 0, 0]));
        let fetched = |each: [u64; 3]| each.map(|fetched| Counted::Library(Done { fetched, ..Done::default() }));
        let is_fetch = |place, each| check(&cell(place, "zcopy_threshold_bytes=off..64K"), &fetched(each)).is_ok();
        assert!(is_fetch("apart", [0, 9, 0]) && !is_fetch("apart", [0, 0, 0]) && is_fetch("same", [0, 0, 0]));
        // It is the option that is turned whose count must change.
        assert!(check(&cell("apart", "zcopy_threshold_bytes=off..64K"), &turns([0, 9, 0])).is_err());
        assert!(check(&cell("same", "wait=lazy..poll"), &turns([0, 0, 0])).is_ok());
    }

    #[test]
    fn each_phase_has_its_figures() {
        let end = |bytes: [f64; 3], cpu: f64| {
            let mut outcome = Outcome::default();
            for (index, bytes) in bytes.into_iter().enumerate() {
                for (name, value) in [("bytes", bytes), ("seconds", 0.5), ("cpu", cpu)] {
                    outcome.values.insert(format!("{name}_{index}"), value);
                }
            }
            outcome
        };
        let sample = read(&end([2e9, 4e9, 1e9], 1.0), &end([1e9, 2e9, 3e9], 0.25)).unwrap();
        let of = |phase: Phase, figure| sample[&phase.of(figure)];
        assert_eq!(Phase::ALL.map(|phase| of(phase, Figure::Throughput)), [2e9, 4e9, 6e9]);
        assert_eq!(Phase::ALL.map(|phase| of(phase, Figure::CpuGbClient)), [5e8, 2.5e8, 1e9]);
        assert_eq!(of(Phase::Turned, Figure::CpuGbServer), 1.25e8);
        assert!(read(&end([0.0; 3], 1.0), &end([0.0; 3], 1.0)).is_err());
        assert!(read(&Outcome::default(), &Outcome::default()).is_err());
    }
}
