//! Measuring the way to a peer's host over the bridges and over TCP, from one thread here to one thread there.
//!
//! # Rules
//!
//! 1. Both ways carry the same exchanges: eight bytes that say how many follow and how many are to come back, so many
//!    bytes, so many bytes back. Neither end ever sends while it has something to read.
//! 2. Nothing here waits longer than it was told: a round has [`ROUND`], an end that serves gives up a silent other
//!    end.
//! 3. What strangers can do at the TCP end: connect. Whoever does not come from a peer's address, or does not show the
//!    token of its control connection within [`GREETING`], is closed; one is served at a time.
//! 4. The bridge's end of the lane is an ordinary one: to its loop the measuring thread is a client, the serving one a
//!    server.

mod lane;
mod serve;
mod tcp;

use std::io;
use std::time::{Duration, Instant};

use super::ledger::{EXCHANGE_BYTES as MUCH, Kind, Round, Times};

pub use lane::LaneWay;
pub use serve::{Guests, Serving, serve_lane};
pub use tcp::TcpWay;

/// What a round may take.
pub const ROUND: Duration = Duration::from_millis(250);
/// How long a stranger may take to say who it is.
const GREETING: Duration = Duration::from_millis(200);
/// Bytes of a short one.
const FEW: u32 = 8;
/// Short exchanges of each way in a turn, turns, and exchanges of much of each kind.
const IN_TURN: usize = 8;
const TURNS: usize = 8;
const OF_MUCH: usize = 4;

/// A way to the other end, on which waiting is bounded.
pub trait Way {
    /// Sends all of it.
    ///
    /// # Errors
    /// The other end is gone, or the time is over ([`io::ErrorKind::TimedOut`]).
    fn send(&mut self, bytes: &[u8], until: Instant) -> io::Result<()>;

    /// Fills all of it.
    ///
    /// # Errors
    /// As [`Way::send`].
    fn receive(&mut self, bytes: &mut [u8], until: Instant) -> io::Result<()>;
}

/// Bytes of an exchange, there and back.
fn sizes(kind: Kind) -> (u32, u32) {
    match kind {
        Kind::Short => (0, FEW),
        Kind::There => (MUCH, FEW),
        Kind::Back => (0, MUCH),
    }
}

fn header(there: u32, back: u32) -> [u8; 8] {
    (u64::from(there) | u64::from(back) << 32).to_le_bytes()
}

/// An exchange that failed, after so long.
struct Failed {
    error: io::Error,
    after_ns: u64,
}

/// One exchange. How long it took.
fn exchange(way: &mut impl Way, kind: Kind, buffer: &mut [u8], until: Instant) -> Result<u64, Failed> {
    let (there, back) = sizes(kind);
    let began = Instant::now();
    let done = way
        .send(&header(there, back), until)
        .and_then(|()| way.send(part(buffer, there), until))
        .and_then(|()| way.receive(part_mut(buffer, back), until));
    let after_ns = u64::try_from(began.elapsed().as_nanos()).unwrap_or(u64::MAX);
    done.map(|()| after_ns).map_err(|error| Failed { error, after_ns })
}

fn part(buffer: &[u8], bytes: u32) -> &[u8] {
    buffer.get(..bytes as usize).unwrap_or(buffer)
}

fn part_mut(buffer: &mut [u8], bytes: u32) -> &mut [u8] {
    let bytes = buffer.len().min(bytes as usize);
    &mut buffer[..bytes]
}

/// Answers exchanges until the other end goes or is silent for so long, or the time is over.
///
/// # Errors
/// How it ended.
fn answer(way: &mut impl Way, patience: Duration, end: Instant) -> io::Result<()> {
    let mut buffer = vec![0; MUCH as usize];
    loop {
        let mut asked = [0; 8];
        way.receive(&mut asked, end.min(Instant::now() + patience))?;
        let asked = u64::from_le_bytes(asked);
        let (there, back) = (asked as u32, (asked >> 32) as u32);
        if there.max(back) > MUCH {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let until = end.min(Instant::now() + patience);
        way.receive(part_mut(&mut buffer, there), until)?;
        way.send(part(&buffer, back), until)?;
    }
}

/// A round over both ways. One that runs out of time counts as far as it came.
///
/// # Errors
/// One of the ways is gone.
pub fn measure(bridge: &mut impl Way, tcp: &mut impl Way) -> io::Result<Round> {
    let until = Instant::now() + ROUND;
    let mut round = Round::default();
    match fill(&mut round, bridge, tcp, until) {
        Err(error) if error.kind() != io::ErrorKind::TimedOut => Err(error),
        _ => Ok(round),
    }
}

/// Short exchanges come first: what many bytes leave behind in queues is not theirs, nor is it if those take all the
/// time.
fn fill(round: &mut Round, bridge: &mut impl Way, tcp: &mut impl Way, until: Instant) -> io::Result<()> {
    let mut buffer = vec![0; MUCH as usize];
    let [short, there, back] = round;
    fill_kinds(&mut [(Kind::Short, short)], (TURNS, IN_TURN), bridge, tcp, &mut buffer, until)?;
    fill_kinds(&mut [(Kind::There, there), (Kind::Back, back)], (OF_MUCH, 1), bridge, tcp, &mut buffer, until)
}

/// So many turns, with so many exchanges of each kind and way in each.
fn fill_kinds(
    kinds: &mut [(Kind, &mut Times)],
    (turns, in_turn): (usize, usize),
    bridge: &mut impl Way,
    tcp: &mut impl Way,
    buffer: &mut [u8],
    until: Instant,
) -> io::Result<()> {
    // The first of each is only slow: memory that was not touched, a window that has not grown.
    for (kind, times) in kinds.iter_mut() {
        take(&mut times.tcp, exchange(tcp, *kind, buffer, until))?;
        take(&mut times.bridge, exchange(bridge, *kind, buffer, until))?;
    }
    kinds.iter_mut().for_each(|(_, times)| **times = Times::default());
    for _ in 0..turns {
        for (kind, times) in kinds.iter_mut() {
            for _ in 0..in_turn {
                take(&mut times.tcp, exchange(tcp, *kind, buffer, until))?;
            }
            for _ in 0..in_turn {
                take(&mut times.bridge, exchange(bridge, *kind, buffer, until))?;
            }
        }
    }
    Ok(())
}

/// Notes what an exchange took. One that was broken off when the time was over took longer, so it counts if that says
/// something: if all others were faster.
fn take(times: &mut Vec<u64>, took: Result<u64, Failed>) -> io::Result<()> {
    match took {
        Ok(took_ns) => times.push(took_ns),
        Err(Failed { error, after_ns }) => {
            if error.kind() == io::ErrorKind::TimedOut && times.iter().all(|time| *time < after_ns) {
                times.push(after_ns);
            }
            return Err(error);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
