//! Two rails in one process, driven by one thread.
//!
//! The same tests run on every provider: `BEELINE_FABRIC_PROVIDER` and `BEELINE_FABRIC_ADDRESS` say on which port
//! (default: `tcp` on 127.0.0.1), `BEELINE_FABRIC_PATIENCE` how many seconds a step may take on a slow machine.
#![allow(dead_code, reason = "each test binary uses a part")]

use std::env;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use beeline_fabric::{
    Access, Completion, EndpointId, Event, Filter, Mapping, Message, Options, Port, Posted, Rail, RegionId, Remote,
    Request, Slice, ports,
};

pub fn provider() -> String {
    env::var("BEELINE_FABRIC_PROVIDER").unwrap_or_else(|_| "tcp".to_owned())
}

pub fn address() -> IpAddr {
    env::var("BEELINE_FABRIC_ADDRESS").map_or(IpAddr::from([127, 0, 0, 1]), |text| text.parse().unwrap())
}

pub fn patience() -> Duration {
    Duration::from_secs(env::var("BEELINE_FABRIC_PATIENCE").map_or(20, |text| text.parse().unwrap()))
}

pub fn port() -> Port {
    port_at(address())
}

pub fn port_at(address: IpAddr) -> Port {
    let filter = Filter { providers: vec![provider()], addresses: vec![address], ..Filter::default() };
    ports(&filter).unwrap().remove(0)
}

/// iWARP tells nobody that a write has come, and has nobody wait who sends more messages than there are receives.
pub fn iwarp() -> bool {
    port().iwarp
}

/// A rail with what it told, in order.
pub struct Side {
    pub rail: Rail,
    pub events: Vec<Event>,
    pub completions: Vec<Completion>,
}

impl Side {
    pub fn new(options: Options) -> Side {
        Side::on(&port(), options)
    }

    pub fn on(port: &Port, options: Options) -> Side {
        Side { rail: Rail::open(port, options).unwrap(), events: Vec::new(), completions: Vec::new() }
    }

    /// One look at both queues.
    pub fn look(&mut self) {
        while self.rail.poll(&mut self.completions, 64).unwrap() > 0 {}
        while let Some(event) = self.rail.next_event().unwrap() {
            self.events.push(event);
        }
    }

    /// Sleeps until something may have come, or for the given time.
    pub fn sleep(&mut self, at_most: Duration) {
        if !self.rail.may_sleep().unwrap() {
            return;
        }
        let fd = |fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
        let mut fds = [fd(self.rail.event_fd().as_raw_fd()), fd(self.rail.completion_fd().as_raw_fd())];
        let milliseconds = i32::try_from(at_most.as_millis()).unwrap();
        // SAFETY: `fds` is an array of two.
        assert!(unsafe { libc::poll(fds.as_mut_ptr(), 2, milliseconds) } >= 0);
    }

    pub fn take_event<T>(&mut self, mut wanted: impl FnMut(&mut Vec<Event>, usize) -> Option<T>) -> Option<T> {
        (0..self.events.len()).find_map(|index| wanted(&mut self.events, index))
    }

    pub fn take_request(&mut self) -> Option<Request> {
        let index = self.events.iter().position(|event| matches!(event, Event::Request(_)))?;
        let Event::Request(request) = self.events.remove(index) else { unreachable!() };
        Some(request)
    }

    pub fn take_connected(&mut self) -> Option<(EndpointId, Vec<u8>)> {
        let index = self.events.iter().position(|event| matches!(event, Event::Connected { .. }))?;
        let Event::Connected { endpoint, data } = self.events.remove(index) else { unreachable!() };
        Some((endpoint, data))
    }

    pub fn is_down(&self, endpoint: EndpointId) -> bool {
        self.events.iter().any(|event| matches!(event, Event::Down { endpoint: down, .. } if *down == endpoint))
    }

    pub fn is_region_closed(&self, region: RegionId) -> bool {
        self.events.iter().any(|event| matches!(event, Event::RegionClosed { region: closed } if *closed == region))
    }

    pub fn take_message(&mut self) -> Option<Message> {
        let index = self.completions.iter().position(|done| matches!(done, Completion::Received { .. }))?;
        let Completion::Received { message, .. } = self.completions.remove(index) else { unreachable!() };
        Some(message)
    }

    /// Takes the completion of the operation with this context; whether it went well.
    pub fn take_done(&mut self, wanted: u64) -> Option<bool> {
        let index = self.completions.iter().position(|done| match done {
            Completion::Done { context, .. } | Completion::Failed { context, .. } => *context == wanted,
            Completion::Received { .. } => false,
        })?;
        Some(matches!(self.completions.remove(index), Completion::Done { .. }))
    }

    pub fn region(&mut self, bytes: usize, access: Access) -> (RegionId, Arc<Mapping>) {
        let mapping = Arc::new(Mapping::new(bytes).unwrap());
        (self.rail.register(Arc::clone(&mapping) as _, access).unwrap(), mapping)
    }

    pub fn remote(&self, region: RegionId) -> Remote {
        self.rail.remote(region).unwrap()
    }
}

/// Two connected sides.
pub struct Pair {
    pub a: Side,
    pub b: Side,
    pub to_b: EndpointId,
    pub to_a: EndpointId,
}

impl Pair {
    pub fn new() -> Pair {
        Pair::with(Options::default())
    }

    pub fn with(options: Options) -> Pair {
        let (mut a, mut b) = (Side::new(options.clone()), Side::new(options));
        let address = b.rail.listen(0).unwrap();
        let (to_b, to_a) = join(&mut a, &mut b, address);
        Pair { a, b, to_b, to_a }
    }

    /// Looks at both sides until `done` gives something.
    pub fn until<T>(&mut self, what: &str, mut done: impl FnMut(&mut Side, &mut Side) -> Option<T>) -> T {
        until(&mut self.a, &mut self.b, what, &mut done)
    }
}

pub fn until<T>(a: &mut Side, b: &mut Side, what: &str, mut done: impl FnMut(&mut Side, &mut Side) -> Option<T>) -> T {
    let deadline = Instant::now() + patience();
    loop {
        a.look();
        b.look();
        if let Some(result) = done(a, b) {
            return result;
        }
        assert!(
            Instant::now() < deadline,
            "{what}: nothing for {:?}\na: {:?} {:?}\nb: {:?} {:?}",
            patience(),
            a.events,
            a.completions.iter().take(8).collect::<Vec<_>>(),
            b.events,
            b.completions.iter().take(8).collect::<Vec<_>>()
        );
        std::thread::yield_now();
    }
}

/// Connects two sides; the endpoint of each.
pub fn join(a: &mut Side, b: &mut Side, address: SocketAddr) -> (EndpointId, EndpointId) {
    let to_b = a.rail.connect(address, b"hello").unwrap();
    let request = until(a, b, "a request", |_, b| b.take_request());
    let to_a = b.rail.accept(request, b"welcome").unwrap();
    let (mut of_a, mut of_b) = (None, None);
    until(a, b, "connected", |a, b| {
        of_a = of_a.take().or_else(|| a.take_connected());
        of_b = of_b.take().or_else(|| b.take_connected());
        (of_a.is_some() && of_b.is_some()).then_some(())
    });
    assert_eq!(of_a.map(|(endpoint, _)| endpoint), Some(to_b));
    assert_eq!(of_b.map(|(endpoint, _)| endpoint), Some(to_a));
    (to_b, to_a)
}

pub fn taken(posted: Result<Posted, beeline_fabric::Error>) {
    assert_eq!(posted, Ok(Posted::Taken));
}

pub fn all(region: RegionId, bytes: usize) -> Slice {
    Slice { region, offset: 0, bytes }
}
