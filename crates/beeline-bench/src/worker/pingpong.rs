//! One message there and back. Half of it is the one-way latency.

use std::net::TcpStream;
use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};

use super::events::{Outcome, pause};
use super::itself::{move_on, open};
use super::times::Times;
use crate::poller::Poller;
use crate::socket::{Listener, receive, send_all};
use crate::ticks::Ticks;
use crate::timing::measure;
use crate::worker::args::WorkerArgs;

/// How much of each end of an echo is compared.
const CHECKED_BYTES: usize = 4096;

/// Echoes until the client closes; blocking calls.
pub fn serve(args: &WorkerArgs, listener: &Listener) -> Result<Outcome> {
    let stream = listener.accept()?;
    let mut buffer = vec![0; args.message_bytes];
    let mut messages = 0u64;
    while receive_all(&stream, &mut buffer)? {
        send_all(&stream, &buffer)?;
        messages += 1;
    }
    Ok(Outcome::of("messages", messages as f64, Vec::new()))
}

/// Blocking round trips.
pub fn drive(args: &WorkerArgs, address: &str) -> Result<Outcome> {
    let stream = open(args, address)?;
    move_on(args)?;
    let mut exchange = Exchange::new(args.message_bytes);
    measure_trips(args, || {
        exchange.send(&stream)?;
        ensure!(receive_all(&stream, &mut exchange.reply)?, "closed by the server");
        exchange.check()
    })
}

/// Round trips with `epoll_wait` before every `recv`, on a non-blocking socket.
pub fn drive_epoll(args: &WorkerArgs, address: &str) -> Result<Outcome> {
    let stream = open(args, address)?;
    stream.set_nonblocking(true)?;
    let mut poller = Poller::new(1)?;
    poller.add(&stream, 0)?;
    let mut exchange = Exchange::new(args.message_bytes);
    measure_trips(args, || trip_epoll(&stream, &mut poller, &mut exchange))
}

/// One round trip through an epoll set that may hold other, quiet connections.
pub fn trip_epoll(stream: &TcpStream, poller: &mut Poller, exchange: &mut Exchange) -> Result<()> {
    exchange.send(stream)?;
    let mut filled = 0;
    while filled < exchange.reply.len() {
        poller.wait()?;
        match receive(stream, &mut exchange.reply[filled..])? {
            Some(0) => bail!("closed by the server"),
            Some(count) => filled += count,
            None => {}
        }
    }
    exchange.check()
}

/// A numbered message and its echo.
pub struct Exchange {
    number: u64,
    request: Vec<u8>,
    pub reply: Vec<u8>,
}

impl Exchange {
    pub fn new(message_bytes: usize) -> Self {
        Exchange { number: 0, request: vec![0; message_bytes], reply: vec![0; message_bytes] }
    }

    fn send(&mut self, stream: &TcpStream) -> Result<()> {
        self.number += 1;
        let number = self.number.to_le_bytes();
        let bytes = self.request.len().min(number.len());
        self.request[..bytes].copy_from_slice(&number[..bytes]);
        let last = self.request.len() - bytes;
        self.request[last..].copy_from_slice(&number[..bytes]);
        send_all(stream, &self.request)
    }

    fn check(&self) -> Result<()> {
        // Of a large message the two ends, which hold its number: to look at all of it would be half of what is
        // measured.
        let looked_at = self.reply.len().min(CHECKED_BYTES);
        let last = self.reply.len() - looked_at;
        let same = self.reply[..looked_at] == self.request[..looked_at] && self.reply[last..] == self.request[last..];
        ensure!(same, "the echo is not what was sent");
        Ok(())
    }
}

/// Fills `buffer`. `false` at the end of the stream; an end inside a message is an error.
fn receive_all(stream: &TcpStream, buffer: &mut [u8]) -> Result<bool> {
    let mut filled = 0;
    while filled < buffer.len() {
        match receive(stream, &mut buffer[filled..])? {
            Some(0) if filled == 0 => return Ok(false),
            Some(0) => bail!("the stream ends inside a message"),
            Some(count) => filled += count,
            None => bail!("a blocking socket would block"),
        }
    }
    Ok(true)
}

/// Times round trips the way the arguments ask for. Reports one-way nanoseconds.
fn measure_trips(args: &WorkerArgs, mut trip: impl FnMut() -> Result<()>) -> Result<Outcome> {
    if args.start_together {
        trip()?;
        pause("start")?;
    }
    if let Some(messages) = args.messages {
        for _ in 0..messages {
            trip()?;
        }
        return Ok(Outcome::default());
    }
    if args.histogram {
        return measure_each(args, trip);
    }
    let mut trips = 0u64;
    let batches = measure(args.duration(), |n| {
        trips += n;
        (0..n).try_for_each(|_| trip())
    })?;
    let one_way: Vec<f64> = batches.ns_per_op.iter().map(|ns| ns / 2.0).collect();
    let mut outcome = Outcome::of("one_way_ns", crate::stats::median(&one_way).unwrap_or(f64::NAN), one_way);
    let rate = batches.ops as f64 / batches.elapsed.as_secs_f64();
    outcome.values.insert("trips_per_second".into(), rate);
    outcome.values.insert("messages".into(), trips as f64);
    Ok(outcome)
}

/// The clock is read for each round trip, so that the tail can be seen. With a pace the client sleeps between them.
pub fn measure_each(args: &WorkerArgs, mut trip: impl FnMut() -> Result<()>) -> Result<Outcome> {
    let ticks = Ticks::new();
    let mut times = Times::new(ticks)?;
    let (warm_up, end) = (ticks.of(args.duration() / 8), ticks.of(args.duration() + args.duration() / 8));
    let between = args.pace.map(|pace| Duration::from_secs(1) / pace);
    let started = Instant::now();
    let begin = ticks.now();
    let mut before = begin;
    let mut trips = 0u64;
    loop {
        trip()?;
        trips += 1;
        let now = ticks.now();
        let since_begin = now.saturating_sub(begin);
        let is_full = since_begin >= warm_up && times.add(now.saturating_sub(before));
        before = now;
        if let Some(between) = between {
            let next = started + between.saturating_mul(trips as u32);
            std::thread::sleep(next.saturating_duration_since(Instant::now()));
            before = ticks.now();
        } else if is_full {
            // What it took to count them is in none.
            times.count();
            before = ticks.now();
        }
        if since_begin >= end {
            break;
        }
    }
    let mut outcome = times.outcome(args.counts);
    outcome.values.insert("trips_per_second".into(), trips as f64 / ticks.ns(before.saturating_sub(begin)) * 1e9);
    outcome.values.insert("messages".into(), trips as f64);
    Ok(outcome)
}
