//! Clients of the everyday matrix: what they ask of a server, and how long each answer takes.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddrV4, TcpStream};
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use hdrhistogram::Histogram;
use nix::errno::Errno;
use nix::sys::socket::{
    AddressFamily, SockFlag, SockType, SockaddrIn, bind, connect, setsockopt, socket, sockopt::ReuseAddr,
};

use super::cell::Work;
use super::server::SINK;
use crate::poller::Poller;
use crate::worker::events::Outcome;

const REQUEST_BYTES: usize = 64;
const STREAM_BYTES: usize = 65_536;
/// Ports that clients bind: beside those that the kernel hands out itself.
const BOUND_PORTS: std::ops::Range<u16> = 10_000..30_000;
/// How long connections are made before they are counted: the library compares its paths for a tenth of a second.
const SETTLING: Duration = Duration::from_millis(150);
/// Bound ports that may be taken by others, one after the other.
const TAKEN_MAX: usize = 2_000;

/// What one client saw.
struct Seen {
    /// Times of single operations, in nanoseconds.
    times: Histogram<u64>,
    operations: u64,
    /// Operations a second. Of clients together it is the sum of each one's own: what one does alone while it waits for
    /// its last answer is no part of the others' time.
    rate: f64,
    /// Bytes a second of a stream beside.
    stream: Option<f64>,
}

impl Seen {
    fn new() -> Result<Self> {
        Ok(Self { times: Histogram::new_with_bounds(1, 60_000_000_000, 3)?, operations: 0, rate: 0.0, stream: None })
    }

    /// All operations have been done, and took so long.
    fn took(&mut self, elapsed: Duration) {
        self.rate = self.operations as f64 / elapsed.as_secs_f64();
    }

    fn outcome(&self) -> Outcome {
        let mut outcome = Outcome::of("rate", self.rate, Vec::new());
        let mut put = |name: &str, value: f64| outcome.values.insert(name.to_owned(), value);
        put("operations", self.operations as f64);
        if !self.times.is_empty() {
            put("mean_ns", self.times.mean());
            for (name, quantile) in [("p50_ns", 0.5), ("p99_ns", 0.99), ("p999_ns", 0.999)] {
                put(name, self.times.value_at_quantile(quantile) as f64);
            }
        }
        if let Some(rate) = self.stream {
            put("stream_bytes_per_second", rate);
        }
        outcome
    }
}

/// Does the work for so long.
pub fn drive(work: Work, address: SocketAddrV4, duration: Duration) -> Result<Outcome> {
    let seen = match work {
        Work::Pingpong => pingpong(address, duration)?,
        Work::Fifty => fifty(address, work.connections(), duration)?,
        Work::Short1 | Work::Short20 => short(address, work.connections(), None, duration)?,
        Work::Short1Bound | Work::Short20Bound => short(address, work.connections(), Some(BOUND_PORTS), duration)?,
        Work::Stream => stream(address, duration)?,
        Work::Mixed => mixed(address, duration)?,
    };
    Ok(seen.outcome())
}

fn open(address: SocketAddrV4) -> Result<TcpStream> {
    let stream = TcpStream::connect(address).context("connect")?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// Ports for one client's connections, each bound in turn.
struct Bound {
    ports: std::ops::Range<u16>,
    next: u16,
}

impl Bound {
    fn open(&mut self, address: SocketAddrV4) -> Result<TcpStream> {
        for _ in 0..TAKEN_MAX {
            let port = self.next;
            self.next = if port + 1 < self.ports.end { port + 1 } else { self.ports.start };
            let socket = socket(AddressFamily::Inet, SockType::Stream, SockFlag::SOCK_CLOEXEC, None)?;
            setsockopt(&socket, ReuseAddr, &true)?;
            let bound = bind(socket.as_raw_fd(), &SockaddrIn::from(SocketAddrV4::new(Ipv4Addr::LOCALHOST, port)));
            match bound.and_then(|()| connect(socket.as_raw_fd(), &SockaddrIn::from(address))) {
                Ok(()) => {
                    let stream = TcpStream::from(socket);
                    stream.set_nodelay(true)?;
                    return Ok(stream);
                }
                Err(Errno::EADDRINUSE | Errno::EADDRNOTAVAIL) => {}
                Err(error) => return Err(error).context("connect from a bound port"),
            }
        }
        bail!("{TAKEN_MAX} ports in a row are taken")
    }
}

/// A request and its answer.
fn exchange(mut stream: &TcpStream, number: u64) -> Result<()> {
    let mut request = [b'E'; REQUEST_BYTES];
    request[REQUEST_BYTES - 8..].copy_from_slice(&number.to_ne_bytes());
    stream.write_all(&request)?;
    let mut answer = [0; REQUEST_BYTES];
    stream.read_exact(&mut answer)?;
    ensure!(answer == request, "the answer is not what was sent");
    Ok(())
}

/// Does something again and again, and notes the time of each once so much time has gone by.
fn repeat(warm_up: Duration, duration: Duration, mut operation: impl FnMut(u64) -> Result<()>) -> Result<Seen> {
    let mut seen = Seen::new()?;
    let warm_until = Instant::now() + warm_up;
    let mut number = 0;
    while Instant::now() < warm_until {
        operation(number)?;
        number += 1;
    }
    let begin = Instant::now();
    let mut before = begin;
    while before - begin < duration {
        operation(number)?;
        number += 1;
        let now = Instant::now();
        seen.times.saturating_record((now - before).as_nanos() as u64);
        seen.operations += 1;
        before = now;
    }
    seen.took(before - begin);
    Ok(seen)
}

fn pingpong(address: SocketAddrV4, duration: Duration) -> Result<Seen> {
    let stream = open(address)?;
    repeat(duration / 8, duration, |number| exchange(&stream, number))
}

/// Clients that run at once, each in a thread; their figures together.
fn together(count: usize, client: impl Fn(usize) -> Result<Seen> + Sync) -> Result<Seen> {
    let all = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..count)
            .map(|index| {
                scope.spawn({
                    let client = &client;
                    move || client(index)
                })
            })
            .collect();
        let results = threads.into_iter().map(|thread| match thread.join() {
            Ok(result) => result,
            Err(_) => bail!("a client has panicked"),
        });
        results.collect::<Result<Vec<Seen>>>()
    })?;
    sum(all)
}

fn sum(all: Vec<Seen>) -> Result<Seen> {
    let mut sum = Seen::new()?;
    for seen in all {
        sum.times.add(&seen.times)?;
        sum.operations += seen.operations;
        sum.rate += seen.rate;
        sum.stream = sum.stream.or(seen.stream);
    }
    Ok(sum)
}

fn short(
    address: SocketAddrV4,
    clients: usize,
    bound: Option<std::ops::Range<u16>>,
    duration: Duration,
) -> Result<Seen> {
    let client = |index: usize| {
        let mut bound = bound.clone().map(|all| {
            let each = all.len() / clients;
            let start = all.start + (index * each) as u16;
            Bound { ports: start..start + each as u16, next: start }
        });
        repeat(SETTLING, duration, |number| {
            let stream = match &mut bound {
                Some(bound) => bound.open(address)?,
                None => open(address)?,
            };
            exchange(&stream, number)
        })
    };
    match clients {
        1 => client(0),
        _ => together(clients, client),
    }
}

fn fifty(address: SocketAddrV4, connections: usize, duration: Duration) -> Result<Seen> {
    let mut poller = Poller::new(connections)?;
    let mut streams = Vec::with_capacity(connections);
    for token in 0..connections {
        let stream = open(address)?;
        exchange(&stream, 0)?;
        stream.set_nonblocking(true)?;
        poller.add(&stream, token as u64)?;
        streams.push(stream);
    }
    let request = [b'E'; REQUEST_BYTES];
    let mut asked = vec![Instant::now(); connections];
    for (mut stream, asked) in streams.iter().zip(&mut asked) {
        *asked = Instant::now();
        stream.write_all(&request)?;
    }
    let mut seen = Seen::new()?;
    let mut answer = [0; REQUEST_BYTES];
    let begin = Instant::now() + duration / 8;
    let end = begin + duration;
    loop {
        let ready = poller.wait()?;
        for index in 0..ready {
            let token = poller.token(index) as usize;
            let mut stream = &streams[token];
            stream.read_exact(&mut answer)?;
            ensure!(answer == request, "the answer is not what was sent");
            let now = Instant::now();
            if now >= begin {
                seen.times.saturating_record((now - asked[token]).as_nanos() as u64);
                seen.operations += 1;
            }
            if now >= end {
                seen.took(now - begin);
                return Ok(seen);
            }
            asked[token] = now;
            stream.write_all(&request)?;
        }
    }
}

/// Sends until `end`, and waits until the server says how much has come. Returns the bytes and the time they took.
fn send_until(stream: TcpStream, end: Instant) -> Result<(u64, Duration)> {
    let message = vec![SINK; STREAM_BYTES];
    let mut stream = &stream;
    let (begin, mut sent) = (Instant::now(), 0u64);
    while Instant::now() < end {
        stream.write_all(&message)?;
        sent += STREAM_BYTES as u64;
    }
    stream.shutdown(Shutdown::Write)?;
    let mut arrived = [0; 8];
    stream.read_exact(&mut arrived)?;
    let arrived = u64::from_ne_bytes(arrived);
    ensure!(arrived == sent, "{sent} bytes were sent and {arrived} arrived");
    Ok((sent, begin.elapsed()))
}

fn stream(address: SocketAddrV4, duration: Duration) -> Result<Seen> {
    // Rings and windows grow first.
    send_until(open(address)?, Instant::now() + duration / 8)?;
    let (bytes, elapsed) = send_until(open(address)?, Instant::now() + duration)?;
    let mut seen = Seen::new()?;
    seen.operations = bytes / STREAM_BYTES as u64;
    seen.took(elapsed);
    seen.stream = Some(bytes as f64 / elapsed.as_secs_f64());
    Ok(seen)
}

fn mixed(address: SocketAddrV4, duration: Duration) -> Result<Seen> {
    // The stream goes on for a little longer than the trips that are measured.
    let end = Instant::now() + duration + duration / 2;
    together(2, |index| match index {
        0 => pingpong(address, duration),
        _ => {
            let (bytes, elapsed) = send_until(open(address)?, end)?;
            let mut seen = Seen::new()?;
            seen.stream = Some(bytes as f64 / elapsed.as_secs_f64());
            Ok(seen)
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_that_waits_for_its_last_answer_takes_nothing_from_the_others() {
        let client = |operations: u64, milliseconds: u64| {
            let mut seen = Seen::new().unwrap();
            seen.operations = operations;
            seen.took(Duration::from_millis(milliseconds));
            seen
        };
        // Nineteen are done in time; one has stood still for as long again.
        let mut all: Vec<Seen> = (0..19).map(|_| client(1000, 500)).collect();
        all.push(client(1000, 1000));
        let sum = sum(all).unwrap();
        assert_eq!((sum.operations, sum.rate), (20_000, 39_000.0));
        assert_eq!(sum.outcome().values["rate"], 39_000.0);
    }
}
