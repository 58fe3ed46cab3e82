//! Remote browsers for the bookstore of TPC-W: thousands in one process.
//!
//! In the closed loop a browser thinks after each page, as the specification has it. In the open loop (`--rate`) interactions fall
//! due by a Poisson process whatever the site does, and their time counts from when they were due, so a site that stalls cannot
//! hide it by not being asked.

mod browser;
mod http;
mod interaction;
mod journal;
mod mix;
mod page;
mod stats;
mod words;

use anyhow::{Result, ensure};
use browser::{Browser, Plan, exponential, think_time};
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
    /// Think times (7 s on the average) and sessions are this much shorter
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

fn main() -> Result<()> {
    let options = Options::parse();
    ensure!(options.browsers > 0 && options.items >= 1000 && options.customers > 0, "no browsers, items or customers");
    ensure!(options.think_factor >= 0.0, "think times are not negative");
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(options.threads.max(1)).enable_all().build()?;
    runtime.block_on(run(options))
}

async fn run(options: Options) -> Result<()> {
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
    });
    let phases = Phases {
        start: Instant::now(),
        ramp_up: Duration::from_secs_f64(options.ramp_up),
        measured: Duration::from_secs_f64(options.measure),
        ramp_down: Duration::from_secs_f64(options.ramp_down),
    };
    let limit_factor = options.limit_factor.unwrap_or(options.think_factor);
    let stats = Arc::new(Mutex::new(Stats::new(phases, limit_factor)));
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

/// The open loop: each browser's interactions fall due by a Poisson process of its own, and theirs together are one, too.
async fn click_when_due(
    mut browser: Browser,
    start: Instant,
    phases: Phases,
    mean: Duration,
    stats: Arc<Mutex<Stats>>,
) {
    tokio::time::sleep_until(start.into()).await;
    browser.settle(&stats).await;
    let mut due = Instant::now() + exponential((mean, Duration::MAX), browser.random());
    // What is due after the end is not begun, even where others before it are late.
    while due < phases.end() {
        if Instant::now() > due {
            stats.lock().expect("nobody panics with it").began_late();
        }
        tokio::time::sleep_until(due.into()).await;
        let interaction = browser.choose();
        browser.interact(interaction, due, &stats).await;
        if Instant::now() > phases.end() {
            break;
        }
        due += exponential((mean, Duration::MAX), browser.random());
    }
}
