//! Short connections: connect, one byte each way, close; or connect and close, each end waiting for the other's.

use std::net::Shutdown;

use anyhow::{Result, ensure};

use super::events::Outcome;
use super::itself::open;
use crate::socket::{Listener, receive, send_small};
use crate::timing::measure;
use crate::worker::args::WorkerArgs;

const AGAIN: u8 = b'a';
const LAST: u8 = b'z';

/// Accepts in a loop until a client says that it is the last.
pub fn serve(args: &WorkerArgs, listener: &Listener) -> Result<Outcome> {
    let mut connections = 0u64;
    let mut byte = [0];
    while byte[0] != LAST {
        let stream = listener.accept()?;
        connections += 1;
        if receive(&stream, &mut byte)? == Some(0) {
            ensure!(args.message_bytes == 0, "no byte came on a new connection");
            continue;
        }
        send_small(&stream, &byte)?;
    }
    Ok(Outcome::of("connections", connections as f64, Vec::new()))
}

pub fn drive(args: &WorkerArgs, address: &str) -> Result<Outcome> {
    // As netperf's TCP_CC the client waits for the other end's close: without it connections outrun the server, and
    // what is measured is how long TCP waits to ask a full queue again.
    let close = || -> Result<()> {
        let stream = open(args, address)?;
        stream.shutdown(Shutdown::Write)?;
        ensure!(receive(&stream, &mut [0])? == Some(0), "a byte came on a connection without any");
        Ok(())
    };
    let visit = |word: u8| -> Result<()> {
        let stream = open(args, address)?;
        send_small(&stream, &[word])?;
        let mut byte = [0];
        ensure!(receive(&stream, &mut byte)? == Some(1) && byte[0] == word, "wrong answer on a new connection");
        Ok(())
    };
    let mut connections = 0u64;
    let batches = measure(args.duration(), |n| {
        connections += n;
        (0..n).try_for_each(|_| if args.message_bytes == 0 { close() } else { visit(AGAIN) })
    })?;
    visit(LAST)?;
    let rates: Vec<f64> = batches.ns_per_op.iter().map(|ns| 1e9 / ns).collect();
    let rate = batches.ops as f64 / batches.elapsed.as_secs_f64();
    let mut outcome = Outcome::of("connections_per_second", rate, rates);
    outcome.values.insert("messages".into(), connections as f64);
    Ok(outcome)
}
