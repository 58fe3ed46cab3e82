//! Clients with many connections in one epoll set.

use std::net::TcpStream;
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};

use super::events::{Outcome, pause};
use super::pingpong::{Exchange, trip_epoll};
use crate::poller::Poller;
use crate::socket::{connect, receive, send_small};
use crate::stats::median;
use crate::timing::{Flow, measure};
use crate::worker::args::WorkerArgs;

/// One request outstanding on every connection; counts the replies.
pub fn drive(args: &WorkerArgs, address: &str) -> Result<Outcome> {
    let mut poller = Poller::new(256)?;
    let streams = open(args.connections, address, &mut poller, 0)?;
    let request = vec![7u8; args.message_bytes];
    let mut reply = vec![0u8; args.message_bytes];
    for stream in &streams {
        send_small(stream, &request)?;
    }
    let mut flow = Flow::new(args.duration() / 8);
    let end = Instant::now() + args.duration() + args.duration() / 4;
    let (mut replies, mut noted) = (0u64, 0u64);
    let mut outstanding = streams.len();
    let mut going_on = true;
    while outstanding > 0 {
        let ready = poller.wait()?;
        for i in 0..ready {
            let stream = &streams[poller.token(i) as usize];
            match receive(stream, &mut reply)? {
                Some(count) => {
                    ensure!(count == request.len(), "a reply of {count} bytes to {} bytes", request.len());
                    replies += 1;
                    if going_on {
                        send_small(stream, &request)?;
                    } else {
                        outstanding -= 1;
                    }
                }
                None => continue,
            }
        }
        if going_on && replies - noted >= 64 {
            flow.note(replies);
            noted = replies;
            going_on = Instant::now() < end;
        }
    }
    if !flow.is_long() {
        flow.note(replies);
    }
    let rate = flow.rate().context("the run was too short")?;
    Ok(Outcome::of("requests_per_second", rate, flow.rates))
}

/// The latency of one connection, first alone and then with idle ones beside it in the same epoll sets.
pub fn drive_busy(args: &WorkerArgs, address: &str) -> Result<Outcome> {
    let mut poller = Poller::new(256)?;
    let busy = open(1, address, &mut poller, 0)?;
    let mut exchange = Exchange::new(args.message_bytes);
    let mut latency = |poller: &mut Poller| -> Result<f64> {
        let batches =
            measure(args.duration(), |n| (0..n).try_for_each(|_| trip_epoll(&busy[0], poller, &mut exchange)))?;
        Ok(median(&batches.ns_per_op).context("no sample")? / 2.0)
    };
    let alone = latency(&mut poller)?;
    pause("alone")?;
    let idle = open(args.connections - 1, address, &mut poller, 1)?;
    for stream in &idle {
        greet(stream, &mut poller, args.message_bytes)?;
    }
    pause("open")?;
    let among = latency(&mut poller)?;
    let mut outcome = Outcome::of("alone_ns", alone, Vec::new());
    outcome.values.insert("among_ns".into(), among);
    Ok(outcome)
}

/// Opens connections, uses each once and then does nothing until told to end.
pub fn drive_idle(args: &WorkerArgs, address: &str) -> Result<Outcome> {
    let mut poller = Poller::new(256)?;
    let streams = open(args.connections, address, &mut poller, 0)?;
    for stream in &streams {
        greet(stream, &mut poller, args.message_bytes)?;
    }
    pause("idle")?;
    Ok(Outcome::default())
}

/// Opens connections and registers them with the tokens from `first` on.
fn open(count: usize, address: &str, poller: &mut Poller, first: u64) -> Result<Vec<TcpStream>> {
    (first..)
        .take(count)
        .map(|token| {
            let stream = connect(address)?;
            stream.set_nonblocking(true)?;
            poller.add(&stream, token)?;
            Ok(stream)
        })
        .collect()
}

/// One round trip on a new connection, so that it is one that has been used.
fn greet(stream: &TcpStream, poller: &mut Poller, message_bytes: usize) -> Result<()> {
    let message = vec![1u8; message_bytes];
    let mut reply = vec![0u8; message_bytes];
    send_small(stream, &message)?;
    loop {
        poller.wait()?;
        match receive(stream, &mut reply)? {
            Some(count) if count == message_bytes => return Ok(()),
            Some(count) => bail!("an echo of {count} bytes"),
            None => {}
        }
    }
}
