//! What a rail costs: the round trip of 8 bytes, and writes of 64 KiB and 1 MiB, polling and sleeping.
//!
//! ```text
//! pingpong [--provider tcp] [--address 127.0.0.1]                     both ends in this process, a thread each
//! pingpong [--provider verbs] [--address 10.9.0.1] server             the far end; prints where it listens
//! pingpong [--provider verbs] [--address 10.9.0.2] client IP:PORT     the near end; prints the figures
//! ```

use std::env;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use beeline_fabric::{
    Access, Completion, EndpointId, Event, Filter, Flags, Mapping, Options, Port, Posted, Rail, Remote, Slice, ports,
};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

const WINDOW_BYTES: usize = 1 << 20;
/// Writes in flight.
const DEPTH: u64 = 16;
/// How long each figure is measured.
const SPAN: Duration = Duration::from_secs(1);
/// First byte of a message: answer it; stop or begin to sleep between looks, and answer; end.
const ANSWER: u8 = 0;
const POLL: u8 = 1;
const SLEEP: u8 = 2;
const END: u8 = 3;

fn main() -> Result<()> {
    let (mut provider, mut address, mut rest) = ("tcp".to_owned(), IpAddr::from([127, 0, 0, 1]), Vec::new());
    let mut arguments = env::args().skip(1);
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--provider" => provider = arguments.next().ok_or("--provider needs a name")?,
            "--address" => address = arguments.next().ok_or("--address needs an address")?.parse()?,
            _ => rest.push(argument),
        }
    }
    let filter = Filter { providers: vec![provider], addresses: vec![address], ..Filter::default() };
    let port = ports(&filter)?.remove(0);
    match rest.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        [] => {
            let (tell, told) = mpsc::channel();
            let far_port = port.clone();
            let far = std::thread::spawn(move || serve(&far_port, |at| tell.send(at).unwrap_or(())));
            measure(&port, told.recv()?)?;
            far.join().map_err(|_| "the far end died")?
        }
        ["server"] => serve(&port, |at| println!("listening on {at}")),
        ["client", to] => measure(&port, to.parse()?),
        _ => Err("usage: pingpong [--provider NAME] [--address IP] [server | client IP:PORT]".into()),
    }
}

/// One end of a connection.
struct Side {
    rail: Rail,
    sleeps: bool,
    completions: Vec<Completion>,
}

impl Side {
    fn open(port: &Port) -> Result<Side> {
        Ok(Side { rail: Rail::open(port, Options::default())?, sleeps: false, completions: Vec::new() })
    }

    fn event(&mut self) -> Result<Event> {
        loop {
            if let Some(event) = self.rail.next_event()? {
                return Ok(event);
            }
        }
    }

    /// Looks at the completions until there are some, sleeping in between if it may.
    fn next(&mut self) -> Result<()> {
        self.completions.clear();
        loop {
            if self.rail.poll(&mut self.completions, 64)? > 0 {
                return Ok(());
            }
            if let Some(Event::Down { cause, .. }) = self.rail.next_event()? {
                return Err(format!("the connection is down: {cause:?}").into());
            }
            if self.sleeps && self.rail.may_sleep()? {
                let fd = |fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
                let mut fds = [self.rail.event_fd(), self.rail.completion_fd()].map(|queue| fd(queue.as_raw_fd()));
                // SAFETY: `fds` is an array of two.
                unsafe { libc::poll(fds.as_mut_ptr(), 2, 1000) };
            }
        }
    }
}

fn serve(port: &Port, tell: impl FnOnce(SocketAddr)) -> Result<()> {
    let mut side = Side::open(port)?;
    tell(side.rail.listen(0)?);
    let window: Arc<Mapping> = Arc::new(Mapping::new(WINDOW_BYTES)?);
    let region = side.rail.register(window, Access::REMOTE_WRITE)?;
    let Remote { address, key } = side.rail.remote(region)?;
    let Event::Request(request) = side.event()? else { return Err("no request".into()) };
    let near = side.rail.accept(request, &[address.to_le_bytes(), key.to_le_bytes()].concat())?;
    while !matches!(side.event()?, Event::Connected { .. }) {}
    loop {
        side.next()?;
        for completion in std::mem::take(&mut side.completions) {
            let Completion::Received { message, .. } = completion else { continue };
            let first = message.bytes().first().copied();
            let answer: Vec<u8> = message.bytes().to_vec();
            side.rail.recycle(message)?;
            match first {
                Some(POLL) => side.sleeps = false,
                Some(SLEEP) => side.sleeps = true,
                Some(END) => return Ok(()),
                _ => {}
            }
            while side.rail.send(near, &answer, 0)? == Posted::Full {
                std::hint::spin_loop();
            }
        }
    }
}

fn measure(port: &Port, to: SocketAddr) -> Result<()> {
    let mut side = Side::open(port)?;
    let far = side.rail.connect(to, b"pingpong")?;
    let data = match side.event()? {
        Event::Connected { data, .. } => data,
        other => return Err(format!("not connected: {other:?}").into()),
    };
    let number = |at: usize| data.get(at..at + 8).and_then(|bytes| bytes.try_into().ok()).map(u64::from_le_bytes);
    let remote = Remote { address: number(0).ok_or("no address")?, key: number(8).ok_or("no key")? };
    let region = side.rail.register(Arc::new(Mapping::new(WINDOW_BYTES)?), Access::SOURCE)?;
    println!("{}", port.name());
    for (name, word, sleeps) in [("polling", POLL, false), ("sleeping", SLEEP, true)] {
        round_trip(&mut side, far, word)?;
        side.sleeps = sleeps;
        let (began, mut rounds) = (Instant::now(), Vec::new());
        while began.elapsed() < SPAN {
            let round = Instant::now();
            round_trip(&mut side, far, ANSWER)?;
            rounds.push(round.elapsed());
        }
        rounds.sort_unstable();
        let at = |percent: usize| rounds[(rounds.len() - 1) * percent / 100].as_secs_f64() * 1e6;
        println!("  {name:8}  8 B round trip  {:8.2} us median, {:.2} to {:.2} us (5 to 95 %)", at(50), at(5), at(95));
        for bytes in [64 << 10, 1 << 20] {
            let slice = Slice { region, offset: 0, bytes };
            let rate = write_rate(&mut side, far, slice, remote)?;
            println!("  {name:8}  {:4} KiB writes  {:8.2} GB/s", bytes >> 10, rate / 1e9);
        }
    }
    if side.rail.send(far, &[END], 0)? == Posted::Taken {
        side.next()?;
    }
    Ok(())
}

fn round_trip(side: &mut Side, far: EndpointId, word: u8) -> Result<()> {
    if side.rail.send(far, &[word, 0, 0, 0, 0, 0, 0, 0], 0)? == Posted::Full {
        return Err("the queue is full".into());
    }
    loop {
        side.next()?;
        for completion in std::mem::take(&mut side.completions) {
            if let Completion::Received { message, .. } = completion {
                side.rail.recycle(message)?;
                return Ok(());
            }
        }
    }
}

/// Bytes per second of writes, the last one answered for by a message after it.
fn write_rate(side: &mut Side, far: EndpointId, slice: Slice, remote: Remote) -> Result<f64> {
    let (began, mut posted, mut done) = (Instant::now(), 0_u64, 0);
    while began.elapsed() < SPAN || done < posted {
        while posted - done < DEPTH
            && began.elapsed() < SPAN
            && side.rail.write(far, slice, remote, posted, Flags::empty())? == Posted::Taken
        {
            posted += 1;
        }
        side.next()?;
        for completion in &side.completions {
            match completion {
                Completion::Done { .. } => done += 1,
                other => return Err(format!("{other:?}").into()),
            }
        }
    }
    round_trip(side, far, ANSWER)?;
    Ok(posted as f64 * slice.bytes as f64 / began.elapsed().as_secs_f64())
}
