//! Short connections: connect, one byte each way, close.

use anyhow::{Result, ensure};

use super::Outcome;
use crate::args::WorkerArgs;
use crate::socket::{Listener, connect, receive, send_small};
use crate::timing::measure;

const AGAIN: u8 = b'a';
const LAST: u8 = b'z';

/// Accepts in a loop until a client says that it is the last.
pub fn serve(listener: &Listener) -> Result<Outcome> {
    let mut connections = 0u64;
    let mut byte = [0];
    while byte[0] != LAST {
        let stream = listener.accept()?;
        ensure!(receive(&stream, &mut byte)? == Some(1), "no byte came on a new connection");
        send_small(&stream, &byte)?;
        connections += 1;
    }
    Ok(Outcome::of("connections", connections as f64, Vec::new()))
}

pub fn drive(args: &WorkerArgs, address: &str) -> Result<Outcome> {
    let visit = |word: u8| -> Result<()> {
        let stream = connect(address)?;
        send_small(&stream, &[word])?;
        let mut byte = [0];
        ensure!(receive(&stream, &mut byte)? == Some(1) && byte[0] == word, "wrong answer on a new connection");
        Ok(())
    };
    let batches = measure(args.duration(), |n| (0..n).try_for_each(|_| visit(AGAIN)))?;
    visit(LAST)?;
    let rates: Vec<f64> = batches.ns_per_op.iter().map(|ns| 1e9 / ns).collect();
    let rate = batches.ops as f64 / batches.elapsed.as_secs_f64();
    Ok(Outcome::of("connections_per_second", rate, rates))
}
