//! Bulk data: sends of one size as fast as they go. The receiver measures, so nothing counts that only went into a
//! buffer, and it tells the sender at the end how much came, so nothing is lost unnoticed.

use std::net::{Shutdown, TcpStream};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use super::events::{Outcome, pause};
use super::itself::{move_on, open};
use crate::poller::Poller;
use crate::socket::{Listener, Pattern, receive, send, send_all};
use crate::timing::Flow;
use crate::worker::args::WorkerArgs;

/// Receive buffers are what a program would take: at least this, and room for one message.
const RECEIVE_BYTES: usize = 64 * 1024;
/// The receiver looks at the clock after this many bytes or calls.
const CLOCK_BYTES: u64 = 256 * 1024;
const CLOCK_CALLS: u32 = 64;

/// What comes in on one connection.
pub(super) struct Inflow {
    buffer: Vec<u8>,
    pattern: Pattern,
    total: u64,
    noted: u64,
    calls: u32,
    flow: Flow,
    begin: Instant,
}

impl Inflow {
    pub(super) fn new(args: &WorkerArgs) -> Self {
        Inflow {
            buffer: vec![0; args.message_bytes.max(RECEIVE_BYTES)],
            pattern: Pattern::new(args.message_bytes),
            total: 0,
            noted: 0,
            calls: 0,
            flow: Flow::new(args.duration() / 8),
            begin: Instant::now(),
        }
    }

    /// One `recv`. `Some(0)` is the end, `None` would block.
    #[inline]
    pub(super) fn receive(&mut self, stream: &TcpStream) -> Result<Option<usize>> {
        let count = receive(stream, &mut self.buffer)?;
        if let Some(count) = count {
            self.pattern.check(self.total, &self.buffer[..count])?;
            self.total += count as u64;
            self.calls += 1;
            if self.calls >= CLOCK_CALLS || self.total - self.noted >= CLOCK_BYTES {
                self.flow.note(self.total);
                self.noted = self.total;
                self.calls = 0;
            }
            if count == 0 && !self.flow.is_long() {
                self.flow.note(self.total);
            }
        }
        Ok(count)
    }

    /// How much came.
    pub(super) fn total(&self) -> u64 {
        self.total
    }

    fn outcome(self, args: &WorkerArgs) -> Result<Outcome> {
        if args.messages.is_some() {
            return Ok(Outcome::default());
        }
        // Where all of it came between two looks at the clock, as on a CPU that many share, all of the time counts.
        let whole = || (self.total > 0).then(|| self.total as f64 / self.begin.elapsed().as_secs_f64());
        let rate = self.flow.rate().or_else(whole).context("the stream was too short")?;
        let mut outcome = Outcome::of("bytes_per_second", rate, self.flow.rates);
        outcome.values.insert("bytes_received".into(), self.total as f64);
        Ok(outcome)
    }
}

/// Receives until the end and answers with the number of bytes.
pub fn serve(args: &WorkerArgs, listener: &Listener) -> Result<Outcome> {
    let streams = (0..args.streams).map(|_| listener.accept()).collect::<std::io::Result<Vec<_>>>()?;
    together(streams, |stream| serve_one(args, &stream))
}

fn serve_one(args: &WorkerArgs, stream: &TcpStream) -> Result<Outcome> {
    let mut inflow = Inflow::new(args);
    while inflow.receive(stream)? != Some(0) {}
    send(stream, &inflow.total.to_ne_bytes())?;
    inflow.outcome(args)
}

/// Sends, blocking.
pub fn drive(args: &WorkerArgs, address: &str) -> Result<Outcome> {
    let streams = (0..args.streams).map(|_| open(args, address)).collect::<Result<Vec<_>>>()?;
    move_on(args)?;
    if args.start_together {
        pause("start")?;
    }
    together(streams, |stream| drive_one(args, &stream))
}

/// Runs both or more streams at once, each in a thread; a single one right here. Their figures are added up; the pieces
/// are what each stream got.
fn together(mut streams: Vec<TcpStream>, run: impl Fn(TcpStream) -> Result<Outcome> + Sync) -> Result<Outcome> {
    if streams.len() == 1 {
        return run(streams.remove(0));
    }
    let outcomes = std::thread::scope(|scope| {
        let run = &run;
        let threads: Vec<_> = streams.into_iter().map(|stream| scope.spawn(move || run(stream))).collect();
        let ends = threads.into_iter().map(|thread| thread.join().unwrap_or_else(|_| bail!("a stream has panicked")));
        ends.collect::<Result<Vec<_>>>()
    })?;
    let mut all = Outcome::default();
    for outcome in outcomes {
        all.samples.extend(outcome.values.get("bytes_per_second"));
        for (name, value) in outcome.values {
            *all.values.entry(name).or_default() += value;
        }
    }
    Ok(all)
}

fn drive_one(args: &WorkerArgs, stream: &TcpStream) -> Result<Outcome> {
    let pattern = Pattern::new(args.message_bytes);
    let mut clock = SendClock::new(args);
    let mut sent = 0u64;
    while clock.goes_on() {
        send_all(stream, pattern.message())?;
        sent += args.message_bytes as u64;
    }
    stream.shutdown(Shutdown::Write)?;
    let mut answer = [0; 8];
    std::io::Read::read_exact(&mut &*stream, &mut answer)?;
    let received = u64::from_ne_bytes(answer);
    ensure!(received == sent, "{sent} bytes were sent and {received} received");
    Ok(Outcome::of("bytes_sent", sent as f64, Vec::new()))
}

/// Both ends of the two-way stream: receive what is there, send what fits, wait in epoll (edge-triggered) when neither
/// goes. The server stops sending when the client has.
fn duplex(args: &WorkerArgs, stream: &TcpStream, is_server: bool) -> Result<Outcome> {
    stream.set_nonblocking(true)?;
    let mut poller = Poller::new(1)?;
    poller.add_edge_both(stream, 0)?;
    let mut inflow = Inflow::new(args);
    let pattern = inflow.pattern.clone();
    let mut clock = SendClock::new(args);
    let mut sent = 0u64;
    let mut rest: &[u8] = &[];
    let (mut sending, mut receiving) = (true, true);
    while sending || receiving {
        let mut moved = false;
        if receiving {
            match inflow.receive(stream)? {
                Some(0) => receiving = false,
                Some(_) => moved = true,
                None => {}
            }
        }
        if sending {
            if rest.is_empty() {
                let stop = if is_server { !receiving } else { !clock.goes_on() };
                if stop {
                    stream.shutdown(Shutdown::Write)?;
                    sending = false;
                    continue;
                }
                rest = pattern.message();
            }
            match send(stream, rest)? {
                Some(0) => bail!("a send took nothing"),
                Some(count) => {
                    rest = &rest[count..];
                    sent += count as u64;
                    moved = true;
                }
                None => {}
            }
        }
        if !moved && (sending || receiving) {
            // The last message must go out after the peer's end was seen: both edges are behind us then.
            if !receiving && rest.is_empty() {
                continue;
            }
            poller.wait()?;
        }
    }
    let mut outcome = inflow.outcome(args)?;
    outcome.values.insert("bytes_sent".into(), sent as f64);
    Ok(outcome)
}

pub fn serve_duplex(args: &WorkerArgs, listener: &Listener) -> Result<Outcome> {
    let streams = (0..args.streams).map(|_| listener.accept()).collect::<std::io::Result<Vec<_>>>()?;
    together(streams, |stream| duplex(args, &stream, true))
}

pub fn drive_duplex(args: &WorkerArgs, address: &str) -> Result<Outcome> {
    let streams = (0..args.streams).map(|_| open(args, address)).collect::<Result<Vec<_>>>()?;
    move_on(args)?;
    if args.start_together {
        pause("start")?;
    }
    together(streams, |stream| duplex(args, &stream, false))
}

/// Says how long to send, reading the clock once in a batch of sends that takes about a tenth of a millisecond.
struct SendClock {
    until: u64,
    sent: u64,
    next_look: u64,
    batch: u64,
    last_look: Instant,
    end: Instant,
}

impl SendClock {
    fn new(args: &WorkerArgs) -> Self {
        let now = Instant::now();
        SendClock {
            until: args.messages.unwrap_or(u64::MAX),
            sent: 0,
            next_look: 1,
            batch: 1,
            last_look: now,
            end: now + args.duration() + args.duration() / 4,
        }
    }

    /// To be asked before each message.
    #[inline]
    fn goes_on(&mut self) -> bool {
        self.sent += 1;
        if self.sent > self.until {
            return false;
        }
        // The first is sent however late it is: a stream has something in it.
        self.sent == 1 || self.sent < self.next_look || self.until != u64::MAX || self.look()
    }

    #[cold]
    fn look(&mut self) -> bool {
        let now = Instant::now();
        if now - self.last_look < Duration::from_micros(100) {
            self.batch *= 2;
        } else {
            self.batch = (self.batch / 2).max(1);
        }
        self.last_look = now;
        self.next_look = self.sent + self.batch;
        now < self.end
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transport::Transport;
    use crate::worker::args::Program;

    #[test]
    fn a_fixed_number_of_messages_is_exact() {
        let mut args = WorkerArgs::new(Program::Stream);
        args.messages = Some(1000);
        let mut clock = SendClock::new(&args);
        assert_eq!((0..2000).filter(|_| clock.goes_on()).count(), 1000);
    }

    #[test]
    fn a_stream_that_came_in_one_piece_has_a_rate() {
        let mut args = WorkerArgs::new(Program::Stream);
        args.duration_ms = 1000;
        let listener = Listener::bind(Transport::Tcp, args.listen).unwrap();
        let client = open(&args, &listener.address().unwrap()).unwrap();
        let server = listener.accept().unwrap();
        send_all(&client, Pattern::new(args.message_bytes).message()).unwrap();
        let mut inflow = Inflow::new(&args);
        assert_eq!(inflow.receive(&server).unwrap(), Some(args.message_bytes));
        assert!(inflow.outcome(&args).unwrap().values["bytes_per_second"] > 0.0);
        let late = SendClock { end: Instant::now(), ..SendClock::new(&args) };
        let mut late = SendClock { end: late.end - Duration::from_secs(1), ..late };
        assert!(late.goes_on() && !late.goes_on());
    }

    fn both_ends(program: Program, transport: Transport, streams: usize) -> (Outcome, Outcome) {
        let mut args = WorkerArgs::new(program);
        args.message_bytes = 1000 + 24 * streams;
        args.streams = streams;
        args.duration_ms = 40;
        let listener = Listener::bind(transport, args.listen).unwrap();
        let address = listener.address().unwrap();
        std::thread::scope(|scope| {
            let server = scope.spawn(|| match program {
                Program::Duplex => serve_duplex(&args, &listener),
                _ => serve(&args, &listener),
            });
            let client = match program {
                Program::Duplex => drive_duplex(&args, &address),
                _ => drive(&args, &address),
            };
            (client.unwrap(), server.join().unwrap().unwrap())
        })
    }

    #[test]
    fn one_way_stream_arrives_whole() {
        let (client, server) = both_ends(Program::Stream, Transport::Tcp, 1);
        assert!(server.values["bytes_per_second"] > 0.0);
        assert_eq!(client.values["bytes_sent"], server.values["bytes_received"]);
    }

    #[test]
    fn a_client_that_has_connected_moves_to_where_it_is_measured() {
        let last = *crate::machine::allowed_cpus().unwrap().last().unwrap();
        for program in [Program::Stream, Program::Duplex] {
            let mut args = WorkerArgs::new(program);
            (args.duration_ms, args.begin_cpu, args.cpu) = (40, Some(0), Some(last));
            let listener = Listener::bind(Transport::Tcp, args.listen).unwrap();
            let address = listener.address().unwrap();
            let (args, listener) = (&args, &listener);
            let is_there = std::thread::scope(|scope| {
                scope.spawn(|| match program {
                    Program::Duplex => serve_duplex(args, listener).map(drop),
                    _ => serve(args, listener).map(drop),
                });
                let client = scope.spawn(|| {
                    match program {
                        Program::Duplex => drive_duplex(args, &address),
                        _ => drive(args, &address),
                    }
                    .unwrap();
                    let cpus = nix::sched::sched_getaffinity(nix::unistd::Pid::from_raw(0)).unwrap();
                    (0..nix::sched::CpuSet::count()).filter(|&cpu| cpus.is_set(cpu).unwrap()).collect::<Vec<_>>()
                });
                client.join().unwrap() == [last]
            });
            assert!(is_there, "{program:?}");
        }
    }

    #[test]
    fn streams_at_once_are_added_up_and_told_apart() {
        for program in [Program::Stream, Program::Duplex] {
            let (client, server) = both_ends(program, Transport::Tcp, 3);
            assert_eq!(server.samples.len(), 3);
            let sum: f64 = server.samples.iter().sum();
            assert!((server.values["bytes_per_second"] / sum - 1.0).abs() < 1e-9);
            assert_eq!(client.values["bytes_sent"], server.values["bytes_received"]);
        }
    }

    #[test]
    fn two_way_stream_arrives_whole_and_ends() {
        for transport in [Transport::Tcp, Transport::Unix] {
            let (client, server) = both_ends(Program::Duplex, transport, 1);
            assert_eq!(client.values["bytes_sent"], server.values["bytes_received"]);
            assert_eq!(client.values["bytes_received"], server.values["bytes_sent"]);
        }
    }
}
