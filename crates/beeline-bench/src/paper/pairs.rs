//! The pairs of programs of a sample, and the rails that carry them.
//!
//! 1. Most cells are one client and one server. The layouts of programs and rails are two of each, as one program
//!    cannot be at two NUMA nodes; they begin together, and their figures are put together: rates and CPU time are
//!    added up, quantiles are those of all messages.
//! 2. Where a cell says which rail is meant, nothing is striped over several, and the bridges' counts must say that the
//!    rail carried the pair.

use anyhow::{Result, ensure};

use super::cell::{Cell, Work};
use super::figure::Sample;
use super::place::Stand;
use crate::acceleration::Carried;
use crate::conductor::{Launcher, Pair};
use crate::hosts::{Bridges, Moved};
use crate::socket::LOOPBACK;
use crate::transport::Transport;
use crate::worker::args::WorkerArgs;
use crate::worker::events::Outcome;
use crate::worker::times;

/// More than any piece has, for the bridges' `stripe_min`.
const NEVER: u64 = u32::MAX as u64;
/// Where less was sent, what idle links say twice a second is seen.
const FEW: u64 = 16 << 10;
/// What the rail of a pair must have carried of what the pair moved.
const MOST: f64 = 0.9;

/// A sample, and what is looked at of it.
pub struct Made {
    pub sample: Sample,
    pub carried: Carried,
    /// What each pair moved: bytes, or messages of one size.
    pub moved: Vec<f64>,
}

/// Starts a pair where it is to stand.
pub fn start(launcher: &Launcher, column: Transport, args: &WorkerArgs, stand: &Stand) -> Result<Pair> {
    let args = WorkerArgs {
        begin_cpu: stand.begin,
        // The bridges take any address; for TCP it says which rail.
        listen: stand.over.as_ref().filter(|_| column == Transport::Tcp).map_or(LOOPBACK, |over| over.address),
        ..args.clone()
    };
    launcher.pair(column, &args, stand.cpus)
}

/// Waits for all, which begin together where there are several. What client and server report, put together, and what
/// each pair moved.
pub fn finish(mut pairs: Vec<Pair>, cell: &Cell) -> Result<([Outcome; 2], Vec<f64>)> {
    if pairs.len() > 1 {
        pairs.iter_mut().try_for_each(|pair| pair.client.reach("start"))?;
        pairs.iter_mut().try_for_each(|pair| pair.client.go_on())?;
    }
    let ends = pairs.into_iter().map(Pair::finish).collect::<Result<Vec<_>>>()?;
    let moved = |client: &Outcome| ["bytes_sent", "messages"].iter().find_map(|name| client.values.get(*name).copied());
    let each = ends.iter().map(|(client, _)| moved(client).unwrap_or_default()).collect();
    let (clients, servers) = ends.into_iter().unzip();
    Ok(([together(clients, cell)?, together(servers, cell)?], each))
}

/// What several programs report, as if they were one.
fn together(mut outcomes: Vec<Outcome>, cell: &Cell) -> Result<Outcome> {
    if outcomes.len() == 1 {
        return Ok(outcomes.remove(0));
    }
    let mut all = Outcome::default();
    for outcome in &outcomes {
        for (name, value) in outcome.values.iter().filter(|(name, _)| !name.ends_with("_ns")) {
            *all.values.entry(name.clone()).or_default() += value;
        }
        // Of one stream they are pieces of time.
        match cell.streams {
            1 => all.samples.extend(outcome.values.get("bytes_per_second")),
            _ => all.samples.extend(&outcome.samples),
        }
        all.carried.add(&outcome.carried);
    }
    if outcomes.iter().any(|outcome| !outcome.counts.is_empty()) {
        times::together(&outcomes, &mut all)?;
    }
    Ok(all)
}

/// Runs something, and looks whether the rails carried it over which it was to go. Answers take the way that the client
/// chose. What each pair moved, `each` tells: nothing where nothing came about.
pub fn over_their_rails<T>(
    bridges: &Bridges,
    cell: &Cell,
    stand: &Stand,
    run: impl FnOnce() -> Result<T>,
    each: impl FnOnce(&T) -> Vec<f64>,
) -> Result<T> {
    if stand.over.is_none() {
        return run();
    }
    let (made, moved) = bridges.with_setting("stripe_min", NEVER, || bridges.watch("paper", run))?;
    let each = each(&made);
    if !each.is_empty() {
        check(cell, stand, &each, &moved)?;
    }
    Ok(made)
}

/// Whether each pair's rail has carried what the pair moved; of several pairs over one rail, all of it.
fn check(cell: &Cell, stand: &Stand, each: &[f64], moved: &Moved) -> Result<()> {
    let all: f64 = each.iter().sum();
    let rails = || stand.all().filter_map(|stand| stand.over.as_ref());
    for over in rails() {
        let own = rails().zip(each).filter(|(other, _)| *other == over).map(|(_, moved)| moved);
        let wanted = if all > 0.0 { MOST * own.sum::<f64>() / all } else { MOST };
        let names = over.rails.each_ref().map(String::as_str);
        for ((way, rail), share) in ["there", "back"].into_iter().zip(names).zip(moved.shares_of(names)) {
            // One way there are acknowledgements, which are nobody's.
            let is_asked = way == "there" || matches!(cell.work, Work::Latency | Work::Both | Work::ProgramLatency);
            ensure!(!is_asked || share >= wanted, "{}", not_its_rail(rail, way, [share, wanted], moved));
        }
    }
    Ok(())
}

fn not_its_rail(rail: &str, way: &str, shares: [f64; 2], moved: &Moved) -> String {
    let [share, wanted] = shares.map(|share| share * 100.0);
    let told = format!("{rail} carried {share:.0} % of the bytes {way}, not {wanted:.0}");
    match moved.least() {
        bytes if bytes < FEW => format!(
            "{told}; it were {bytes} bytes in all, of which idle links say a part, too: take longer samples (--duration)"
        ),
        _ => told,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::paper::place::Over;
    use crate::paper::place::tests::cell;

    fn outcome(values: &[(&str, f64)], counts: &[(u64, u64)]) -> Outcome {
        let values = values.iter().map(|&(name, value)| (name.to_owned(), value)).collect();
        Outcome { values, counts: counts.to_vec(), ..Outcome::default() }
    }

    fn moved(rails: &[(&str, u64)]) -> Moved {
        let rails: BTreeMap<String, u64> = rails.iter().map(|&(rail, bytes)| (rail.to_owned(), bytes)).collect();
        Moved { from_client: rails.clone(), from_server: rails, ..Moved::default() }
    }

    fn over(rail: &str) -> Option<Over> {
        Some(Over { rails: [rail.to_owned(), rail.to_owned()], address: LOOPBACK })
    }

    #[test]
    fn what_two_programs_report_is_put_together() {
        let of = |rate, p50, counts: &[(u64, u64)]| {
            outcome(&[("bytes_per_second", rate), ("cpu_seconds", 1.5), ("p50_ns", p50)], counts)
        };
        let all = together(vec![of(3.0, 100.0, &[(1000, 60)]), of(1.0, 900.0, &[(9000, 40)])], &cell()).unwrap();
        assert_eq!((all.values["bytes_per_second"], all.values["cpu_seconds"]), (4.0, 3.0));
        assert_eq!(all.samples, [3.0, 1.0]);
        assert!((all.values["p50_ns"] / 100.0 - 1.0).abs() < 0.01, "{all:?}");
        let one = of(3.0, 100.0, &[]);
        assert_eq!(together(vec![one.clone()], &cell()).unwrap(), one);
    }

    #[test]
    fn each_pair_goes_over_its_rail_or_there_is_no_sample() {
        let latency = Cell { work: Work::Latency, ..cell() };
        let stand = |first, second: Option<&str>| Stand {
            over: over(first),
            second: second.map(|rail| Box::new(Stand { over: over(rail), ..Stand::default() })),
            ..Stand::default()
        };
        let is_right = |stand: &Stand, each: &[f64], carried: &Moved| check(&latency, stand, each, carried).is_ok();
        assert!(is_right(&stand("a", None), &[5.0], &moved(&[("a", 95), ("b", 5)])));
        assert!(!is_right(&stand("a", None), &[5.0], &moved(&[("a", 80), ("b", 20)])));
        // Two over one rail have all of it, two over two have what each moved.
        assert!(is_right(&stand("a", Some("a")), &[3.0, 1.0], &moved(&[("a", 95), ("b", 5)])));
        assert!(!is_right(&stand("a", Some("a")), &[3.0, 1.0], &moved(&[("a", 75), ("b", 25)])));
        assert!(is_right(&stand("a", Some("b")), &[3.0, 1.0], &moved(&[("a", 74), ("b", 26)])));
        assert!(!is_right(&stand("a", Some("b")), &[1.0, 3.0], &moved(&[("a", 74), ("b", 26)])));
        // What a stream's receiver sends says nothing.
        let one_way = Moved { from_server: moved(&[("b", 9)]).from_server, ..moved(&[("a", 100)]) };
        assert!(!is_right(&stand("a", None), &[5.0], &one_way));
        assert!(check(&Cell { work: Work::Stream, ..cell() }, &stand("a", None), &[5.0], &one_way).is_ok());
    }

    #[test]
    fn a_sample_that_is_too_short_to_know_its_rail_says_so() {
        let few = Moved { from_server: moved(&[("a", 1000)]).from_server, ..moved(&[("a", 1 << 20)]) };
        let told = not_its_rail("b", "there", [0.5, 0.9], &few);
        assert!(
            told.starts_with("b carried 50 % of the bytes there, not 90;") && told.contains("1000 bytes"),
            "{told}"
        );
        let told = not_its_rail("b", "back", [0.5, 0.45], &moved(&[("a", 1 << 20)]));
        assert_eq!(told, "b carried 50 % of the bytes back, not 45");
    }
}
