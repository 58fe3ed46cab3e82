//! Remote browsers for the bookstore of TPC-W: thousands in one process.
//!
//! In the closed loop a browser thinks after each page, as the specification has it. In the open loop (`--rate`)
//! interactions fall due by a Poisson process whatever the site does, and their time counts from when they were due, so
//! a site that stalls cannot hide it by not being asked. What was due in the measured interval counts, whenever it
//! ends; what has no answer a while after the end is an error.

mod browser;
mod customer;
mod heard;
mod http;
mod interaction;
mod journal;
mod mix;
mod page;
mod stats;
mod words;

use anyhow::{Result, ensure};
use browser::{Browser, Plan, UNANSWERED, exponential, think_time};
use clap::Parser;
use http::Site;
use journal::Journal;
use mix::Mix;
use rand::SeedableRng;
use rand::rngs::SmallRng;
use stats::{Phases, Stats};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tokio::task::JoinSet;

/// Remote browsers for the bookstore of TPC-W. Prints what was measured as JSON.
#[derive(Parser)]
struct Options {
    /// The web server's plain port
    #[arg(long)]
    plain: SocketAddr,
    /// The web server's port for TLS
    #[arg(long)]
    secure: SocketAddr,
    /// The certificate that the web server is known by
    #[arg(long)]
    authority: PathBuf,
    #[arg(long, value_enum, default_value = "shopping")]
    mix: Mix,
    #[arg(long, default_value_t = 200)]
    browsers: u64,
    /// How many items the store has
    #[arg(long)]
    items: u32,
    /// How many customers the store has
    #[arg(long)]
    customers: u32,
    /// Think times (7 s on the average) are this much shorter; sessions, too, but to a hundredth of 15 minutes at most
    #[arg(long, default_value_t = 1.0)]
    think_factor: f64,
    /// Limits of response times for a second count of late ones (default: as think times)
    #[arg(long)]
    limit_factor: Option<f64>,
    /// Open loop: so many interactions a second fall due, whatever the site does
    #[arg(long)]
    rate: Option<f64>,
    /// Seconds in which browsers start
    #[arg(long, default_value_t = 5.0)]
    ramp_up: f64,
    /// Seconds that are measured
    #[arg(long, default_value_t = 30.0)]
    measure: f64,
    /// Seconds in which browsers go on afterwards
    #[arg(long, default_value_t = 1.0)]
    ramp_down: f64,
    /// Pictures that a browser fetches at the same time
    #[arg(long, default_value_t = 2)]
    at_once: usize,
    /// Fetch no pictures
    #[arg(long)]
    no_pictures: bool,
    /// Send passwords and cards over the plain port, too
    #[arg(long)]
    no_tls: bool,
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Where orders are noted, a line of JSON each
    #[arg(long)]
    journal: Option<PathBuf>,
    /// Threads that serve the browsers
    #[arg(long, default_value_t = 1)]
    threads: usize,
}

/// How long after the end what was due before it is waited for in the open loop. As long as the longest limit of the
/// specification, so that what has no answer then is late by all of them.
const STRAGGLERS: Duration = Duration::from_secs(20);

fn main() -> Result<()> {
    let options = Options::parse();
    ensure!(options.browsers > 0 && options.items >= 1000 && options.customers > 0, "no browsers, items or customers");
    ensure!(options.think_factor >= 0.0, "think times are not negative");
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(options.threads.max(1)).enable_all().build()?;
    runtime.block_on(run(options))
}

async fn run(options: Options) -> Result<()> {
    let phases = Phases {
        start: Instant::now(),
        ramp_up: Duration::from_secs_f64(options.ramp_up),
        measured: Duration::from_secs_f64(options.measure),
        ramp_down: Duration::from_secs_f64(options.ramp_down),
    };
    let plan = Arc::new(Plan {
        site: Site::new(options.plain, options.secure, &options.authority)?,
        mix: options.mix,
        items: options.items,
        customers: options.customers,
        think_factor: options.think_factor,
        at_once: options.at_once.max(1),
        pictures: !options.no_pictures,
        secure: !options.no_tls,
        journal: Journal::open(options.journal.as_deref())?,
        give_up: options.rate.map(|_| phases.end() + STRAGGLERS),
    });
    let limit_factor = options.limit_factor.unwrap_or(options.think_factor);
    let stats = Arc::new(Mutex::new(Stats::new(phases, limit_factor, options.rate.is_some())));
    let mut browsers = JoinSet::new();
    for number in 0..options.browsers {
        let browser = Browser::new(Arc::clone(&plan), SmallRng::seed_from_u64(options.seed << 32 | number));
        // Browsers start evenly over the ramp-up.
        let start = phases.start + phases.ramp_up.mul_f64(number as f64 / options.browsers as f64);
        let stats = Arc::clone(&stats);
        match options.rate {
            None => browsers.spawn(think_and_click(browser, start, phases, options.think_factor, stats)),
            Some(rate) => {
                let mean = Duration::from_secs_f64(options.browsers as f64 / rate);
                browsers.spawn(click_when_due(browser, start, phases, mean, stats))
            }
        };
    }
    while let Some(ended) = browsers.join_next().await {
        ended?;
    }
    plan.journal.finish()?;
    println!("{}", serde_json::to_string(&stats.lock().expect("nobody panics with it").report(options.mix))?);
    Ok(())
}

/// The closed loop.
async fn think_and_click(mut browser: Browser, start: Instant, phases: Phases, factor: f64, stats: Arc<Mutex<Stats>>) {
    tokio::time::sleep_until(start.into()).await;
    browser.settle(&stats).await;
    let mut due = Instant::now() + think_time(factor, browser.random());
    while due < phases.end() {
        tokio::time::sleep_until(due.into()).await;
        let interaction = browser.choose();
        browser.interact(interaction, Instant::now(), &stats).await;
        due = Instant::now() + think_time(factor, browser.random());
    }
}

/// The open loop: each browser's interactions fall due by a Poisson process of its own, and theirs together are one,
/// too.
async fn click_when_due(
    mut browser: Browser,
    start: Instant,
    phases: Phases,
    mean: Duration,
    stats: Arc<Mutex<Stats>>,
) {
    tokio::time::sleep_until(start.into()).await;
    browser.settle(&stats).await;
    // From the start, and not from when the browser has settled: a site that stalls is not spared anything by it.
    let mut due = start + exponential((mean, Duration::MAX), browser.random());
    while due < begun_until(Instant::now(), phases) {
        if Instant::now() > due {
            stats.lock().expect("nobody panics with it").began_late(due);
        }
        tokio::time::sleep_until(due.into()).await;
        let interaction = browser.choose();
        if browser.has_given_up() {
            stats.lock().expect("nobody panics with it").bad(interaction, UNANSWERED, due, Instant::now());
        } else {
            browser.interact(interaction, due, &stats).await;
        }
        due += exponential((mean, Duration::MAX), browser.random());
    }
}

/// What is due before this is begun, even late. After the end that is only what counts.
fn begun_until(now: Instant, phases: Phases) -> Instant {
    if now > phases.end() { phases.measured_until() } else { phases.end() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_a_silent_site_owes_is_late_and_an_error() {
        // It takes connections, and says nothing.
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let short = Duration::from_millis(100);
        let phases = Phases { start: Instant::now(), ramp_up: short, measured: short, ramp_down: short };
        let plan = Plan {
            site: Site::plain(listener.local_addr().unwrap()),
            mix: Mix::Shopping,
            items: 1000,
            customers: 2880,
            think_factor: 1.0,
            at_once: 1,
            pictures: true,
            secure: false,
            journal: Journal::open(None).unwrap(),
            give_up: Some(phases.end() + short),
        };
        let stats = Arc::new(Mutex::new(Stats::new(phases, 1.0, true)));
        let browser = Browser::new(Arc::new(plan), SmallRng::seed_from_u64(1));
        let mean = Duration::from_millis(5);
        click_when_due(browser, phases.start, phases, mean, Arc::clone(&stats)).await;
        let report = stats.lock().unwrap().report(Mix::Shopping);
        assert!((5..60).contains(&report.errors_measured), "some 20 were due: {}", report.errors_measured);
        assert_eq!((report.interactions_total, report.began_late), (0, report.errors_measured));
        assert!((report.late_percent - 100.0).abs() < 1e-9);
        assert!(report.complaints.keys().all(|complaint| complaint.ends_with(UNANSWERED)), "{:?}", report.complaints);
    }
}
