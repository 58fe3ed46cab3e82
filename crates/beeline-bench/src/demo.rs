//! The demo: well-known programs over TCP and over Beeline, and one table of ratios.
//!
//! 1. Programs that are missing are named with the Debian packages that bring them; `make demo` installs them first.
//! 2. Each program runs with its server on one CPU and its client on the other, over TCP and over Beeline in turn,
//!    three times; the table shows medians. The only difference between the two is `beeline run` in front.
//! 3. The quick bench ends it.
//!
//! Nothing is left behind: servers get free ports, write no files, and die with this process.

mod programs;

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::path::PathBuf;
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use beeline_stats::Counter;
use indicatif::ProgressBar;

use crate::acceleration::{Carried, counter_of};
use crate::args::DemoOptions;
use crate::interrupt;
use crate::machine::{Machine, choose_cpus};
use crate::output;
use crate::plan::{SuitePlan, find_beeline, progress_bar};
use crate::process::{Guard, ensure_without_library, free_port, run_on, wait_for_listener};
use crate::report::{Results, Row};
use crate::transport::Transport;
use programs::{CONTESTS, Contest, Load, Match};

const ROUNDS: u32 = 3;
const PATIENCE: Duration = Duration::from_secs(15);
const TRANSPORTS: [Transport; 2] = [Transport::Tcp, Transport::Beeline];

/// Runs the demo. The exit code is 1 when something could not be measured.
pub fn run(options: &DemoOptions, mount: &[&str]) -> Result<ExitCode> {
    ensure_without_library()?;
    let bench = SuitePlan::new(&options.bench(), mount)?;
    let machine = Machine::describe()?;
    let chosen = |name: &str| options.only.is_empty() || options.only.iter().any(|o| o == name);
    let contests: Vec<&Contest> = CONTESTS.iter().filter(|c| chosen(c.name)).collect();
    let with_bench = chosen("bench");
    if contests.is_empty() && !with_bench {
        let mut names: Vec<&str> = CONTESTS.iter().map(|contest| contest.name).chain(["bench"]).collect();
        names.dedup();
        bail!("there is no such part of the demo; there are {}", names.join(", "));
    }
    programs::require(&contests)?;

    let stage = Stage {
        beeline: find_beeline(options.beeline.as_deref())?,
        library: options.library.clone(),
        cpus: match options.no_pin {
            true => None,
            false => choose_cpus()?,
        },
    };
    let mut results = stage.rounds(&contests);
    let games = contests.iter().flat_map(|c| c.matches);
    let mut rows: Vec<Row> = games.map(|game| game.row).collect();
    if with_bench {
        if results.ended_early.is_none() {
            results.append(bench.execute());
        }
        rows.extend(bench.rows());
    }
    let settings = bench.settings();
    if options.json {
        let document = output::document(&machine, &settings, &rows, &results, &[]);
        say!("{}", serde_json::to_string_pretty(&document)?);
    } else {
        output::print(&bench.heading(&machine), &settings, &rows, &results, &[]);
    }
    Ok(ExitCode::from(u8::from(results.ended_early.is_some() || !results.errors().is_empty())))
}

/// How many requests make a run of about a second, for each match and transport that was tried already.
type Loads = BTreeMap<(&'static str, Transport), u64>;

/// Where the programs run.
struct Stage {
    beeline: PathBuf,
    library: Option<PathBuf>,
    cpus: Option<(usize, usize)>,
}

impl Stage {
    /// All contests, round after round, until it is asked to end.
    fn rounds(&self, contests: &[&'static Contest]) -> Results {
        let mut results = Results::default();
        let matches: usize = contests.iter().map(|c| c.matches.len()).sum();
        let bar = progress_bar(u64::from(ROUNDS) * (matches * TRANSPORTS.len()) as u64);
        let mut loads = Loads::new();
        'all: for round in 0..ROUNDS {
            for contest in contests {
                let mut order = TRANSPORTS;
                order.rotate_left(round as usize % TRANSPORTS.len());
                for transport in order {
                    bar.set_message(format!("{} over {transport}", contest.name));
                    self.play(contest, transport, &mut loads, &mut results, &bar);
                    if interrupt::asked() {
                        results.ended_early = Some("it was interrupted".into());
                        break 'all;
                    }
                }
            }
        }
        bar.finish_and_clear();
        results
    }

    /// All matches of a contest over one transport. A failure is noted for the rows that it hits.
    fn play(
        &self,
        contest: &'static Contest,
        transport: Transport,
        loads: &mut Loads,
        results: &mut Results,
        bar: &ProgressBar,
    ) {
        let mut server: Option<(Guard, u16)> = None;
        for game in contest.matches {
            if interrupt::asked() {
                break;
            }
            // A server that serves one client only is started for each match.
            if contest.one_shot {
                server = None;
            }
            bar.inc(1);
            // What has failed once is not waited for again.
            if results.has_failed(std::slice::from_ref(&game.row), transport.into()) {
                continue;
            }
            let outcome = match server.take() {
                Some(running) => Ok(running),
                None => self.open(contest, transport),
            }
            .and_then(|mut running| {
                let value = self.measure(game, transport, &mut running, loads)?;
                server = Some(running);
                Ok(value)
            });
            let row = game.row.id;
            match outcome {
                Ok(value) => results.add(row, transport.into(), value, Vec::new()),
                // Its programs got the signal, too.
                Err(_) if interrupt::asked() => {}
                Err(e) => {
                    let text = format!("{}: {e:#}", contest.name);
                    results.add_error(row, transport.into(), text);
                }
            }
            // A one-shot server has ended with its client.
            if let Some((server, _)) = &server
                && transport == Transport::Beeline
                && !contest.one_shot
            {
                let carried = results.carried.entry(contest.name).or_default();
                *carried = Carried::of_server(server.pid());
            }
        }
        if let Some((server, _)) = server {
            server.end();
        }
    }

    fn open(&self, contest: &Contest, transport: Transport) -> Result<(Guard, u16)> {
        let port = free_port()?;
        let command = self.command(transport, &(contest.server)(port), self.cpus.map(|c| c.1))?;
        let mut server = Guard::start(command, false)?;
        wait_for_listener(&mut server, port, PATIENCE)?;
        if transport == Transport::Beeline {
            wait_for_door(&mut server)?;
        }
        Ok((server, port))
    }

    fn measure(
        &self,
        game: &'static Match,
        transport: Transport,
        (server, port): &mut (Guard, u16),
        loads: &mut Loads,
    ) -> Result<f64> {
        let play = |load: u64| -> Result<f64> {
            let words = (game.client)(*port, load);
            let command = self.command(transport, &words, self.cpus.map(|c| c.0))?;
            let output = Guard::start(command, true)?.output(PATIENCE)?;
            // The figure counts, not the exit status: NPtcp's says nothing.
            match (game.parse)(&output.text) {
                Some(value) => Ok(value),
                None => bail!("{} gave no figure: {output}", words[0]),
            }
        };
        let load = match game.load {
            Load::Timed => 0,
            Load::Requests { first } => match loads.entry((game.row.id, transport)) {
                Entry::Occupied(known) => *known.get(),
                // Also the warm-up.
                Entry::Vacant(unknown) => *unknown.insert((play(first)? as u64).max(first)),
            },
        };
        let value = play(load)?;
        if game.server_stays {
            server.still_runs()?;
        }
        Ok(value)
    }

    /// The command as the user would type it: `beeline run` in front, or not.
    fn command(&self, transport: Transport, words: &[String], cpu: Option<usize>) -> Result<Command> {
        let mut command = match transport {
            Transport::Beeline => {
                let mut command = Command::new(&self.beeline);
                command.args(["run", "--quiet"]);
                if let Some(library) = &self.library {
                    command.arg("--library").arg(library);
                }
                command.arg("--").args(words);
                command
            }
            Transport::Tcp | Transport::Unix => {
                let mut command = Command::new(&words[0]);
                command.args(&words[1..]);
                command
            }
        };
        if let Some(cpu) = cpu {
            run_on(&mut command, cpu)?;
        }
        Ok(command)
    }
}

/// A server's door opens when it first looks at its listener, which is a little after it listens. A client that is
/// earlier would rightly use TCP. A server that opens no door at all will show as not accelerated.
fn wait_for_door(server: &mut Guard) -> Result<()> {
    let deadline = Instant::now() + Duration::from_secs(2);
    while counter_of(server.pid(), Counter::DoorsOpened) == Some(0) && Instant::now() < deadline {
        server.still_runs()?;
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}
