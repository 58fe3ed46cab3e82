//! Questions and answers.
//!
//! A carrier is a stranger's: it has one question at a time, its share of room, and a second to speak. What comes with a
//! question is looked at by calls that never block, and closed by others ([`super::stray`]).
//!
//! A question about an accepted connection is answered after everything that lies in the queues of carriers is taken in:
//! its client's parcel was there before its SYN left.

use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use anyhow::Context;
use beeline_sockets::agent::{self, Facts, Page, tcp};
use beeline_wire::agent::{Answer, Kind, QUESTION_BYTES, Question, plain};
use nix::sys::epoll::{Epoll, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::socket::{SockFlag, accept4};
use ring::rand::{SecureRandom, SystemRandom};

use super::namespaces::Namespaces;
use super::offers::{Client, Content, Holder, Now, Offers, judge};
use super::rules::{OnCut, Rules};
use super::served::{Served, Server};
use super::stray::Stray;
use crate::log::Seldom;

/// Carriers, in all and for each user in each network namespace.
const CARRIERS_MAX: usize = 4096;
const CARRIERS_OF_USER_MAX: usize = 512;
/// A carrier that does not speak.
const SPEAKS_WITHIN: Duration = Duration::from_secs(2);
/// Looks for what is in the queues before a connection is asked after.
const LOOKS_MAX: usize = 8;
/// An offer that was taken back so soon was not left lying: its client has closed it, or has died.
const HARDLY_OFFERED: Duration = Duration::from_millis(50);

/// What an event is about: a number of epoll.
pub struct Token;

impl Token {
    /// Signals.
    pub const SIGNALS: u64 = 0;
    /// A new carrier.
    pub const LISTENER: u64 = 1;
    /// From here on carriers; below parcels, by their numbers.
    const CARRIERS: u64 = 1 << 40;
    const PARCELS: u64 = 1 << 33;
}

struct Carrier {
    socket: OwnedFd,
    holder: Holder,
    /// The number that the client's socket was given, until its parcel comes.
    number: Option<u32>,
    until: Instant,
}

/// See the module.
pub struct Serving {
    rules: Rules,
    epoll: Epoll,
    listener: OwnedFd,
    carriers: HashMap<u64, Carrier>,
    by_time: BTreeMap<(Instant, u64), ()>,
    of_users: HashMap<Holder, usize>,
    next_carrier: u64,
    offers: Offers<Stray>,
    served: Served,
    namespaces: Namespaces,
    page: Page,
    random: SystemRandom,
    trouble: Seldom,
}

/// A question about a connection that is left until the queues are empty.
struct Asked {
    carrier: u64,
    socket: Stray,
}

impl Serving {
    /// An agent that serves a listener, which the epoll set has already.
    pub fn new(rules: Rules, epoll: Epoll, listener: OwnedFd) -> anyhow::Result<Self> {
        let page = Page::create().map_err(|errno| std::io::Error::from_raw_os_error(errno.0));
        Ok(Self {
            rules,
            epoll,
            listener,
            carriers: HashMap::new(),
            by_time: BTreeMap::new(),
            of_users: HashMap::new(),
            next_carrier: Token::CARRIERS,
            offers: Offers::default(),
            served: Served::default(),
            namespaces: Namespaces::default(),
            page: page.context("cannot make the page of offers")?,
            random: SystemRandom::new(),
            trouble: Seldom::new(),
        })
    }

    /// Waits for events.
    pub fn wait(&self, events: &mut [EpollEvent], timeout: EpollTimeout) -> anyhow::Result<usize> {
        match self.epoll.wait(events, timeout) {
            Ok(count) => Ok(count),
            Err(nix::errno::Errno::EINTR) => Ok(0),
            Err(errno) => Err(errno).context("cannot wait"),
        }
    }

    /// When there is something to do, even if nothing happens.
    pub fn deadline(&self) -> Option<Instant> {
        let carrier = self.by_time.first_key_value().map(|(&(until, _), ())| until);
        carrier.into_iter().chain(self.offers.deadline()).min()
    }

    /// Deals with what has happened.
    pub fn turn(&mut self, events: &[EpollEvent], now: Instant) {
        let mut asked = Vec::new();
        self.take_in(events, now, &mut asked);
        if !asked.is_empty() {
            let mut more = [EpollEvent::empty(); 64];
            for _ in 0..LOOKS_MAX {
                let count = self.epoll.wait(&mut more, EpollTimeout::ZERO).unwrap_or(0);
                if more[..count].iter().all(|event| event.data() == Token::SIGNALS) {
                    break;
                }
                self.take_in(&more[..count], now, &mut asked);
            }
        }
        for Asked { carrier, socket } in asked {
            self.answer_ask(carrier, &socket, now);
        }
        self.expire(now);
        self.tell();
    }

    /// Tells how many offers there are. Before a client hears that it has one, so that its server asks.
    fn tell(&self) {
        self.page.tell(self.offers.len());
    }

    fn take_in(&mut self, events: &[EpollEvent], now: Instant, asked: &mut Vec<Asked>) {
        // Who has come first, so that what they say is heard in the same round.
        for event in events {
            match event.data() {
                Token::SIGNALS => {}
                Token::LISTENER => self.accept(now),
                id if id >= Token::CARRIERS => self.hear(id, now, asked),
                id => self.parcel_is_open(u32::try_from(id - Token::PARCELS).unwrap_or(0), now),
            }
        }
    }

    fn accept(&mut self, now: Instant) {
        while let Ok(fd) = accept4(self.listener.as_raw_fd(), SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK) {
            // A number of its own, which nobody else closes; not a stranger's descriptor, so closing it does not block.
            let socket = agent::own(fd);
            let Some(holder) = agent::holder_of(fd) else { continue };
            let count = self.of_users.entry(holder).or_default();
            if self.carriers.len() >= CARRIERS_MAX || *count >= CARRIERS_OF_USER_MAX {
                if *count == 0 {
                    self.of_users.remove(&holder);
                }
                let _ = agent::send(fd, &Answer::Full.encode(false), None);
                continue;
            }
            *count += 1;
            let id = self.next_carrier;
            self.next_carrier += 1;
            if self.epoll.add(&socket, EpollEvent::new(EpollFlags::EPOLLIN, id)).is_err() {
                self.count_out(holder);
                continue;
            }
            let until = now + SPEAKS_WITHIN;
            self.by_time.insert((until, id), ());
            self.carriers.insert(id, Carrier { socket, holder, number: None, until });
        }
    }

    fn end_carrier(&mut self, id: u64) {
        let Some(carrier) = self.carriers.remove(&id) else { return };
        self.by_time.remove(&(carrier.until, id));
        self.count_out(carrier.holder);
        if let Some(number) = carrier.number {
            self.offers.remove(number);
        }
    }

    fn count_out(&mut self, holder: Holder) {
        if let Some(count) = self.of_users.get_mut(&holder) {
            *count -= 1;
            if *count == 0 {
                self.of_users.remove(&holder);
            }
        }
    }

    fn hear(&mut self, id: u64, now: Instant, asked: &mut Vec<Asked>) {
        while let Some(carrier) = self.carriers.get(&id) {
            let mut bytes = [0; QUESTION_BYTES + 1];
            let came = agent::receive(carrier.socket.as_raw_fd(), &mut bytes, |fd| drop(Stray::new(fd)));
            let came = match came {
                Ok(came) if came.length != 0 => came,
                Err(beeline_sockets::Errno(libc::EAGAIN | libc::EINTR)) => return,
                _ => return self.end_carrier(id),
            };
            let with = came.descriptor.map(Stray::new);
            let question = match Question::decode(&bytes[..came.length.min(bytes.len())]) {
                Ok(question) if usize::from(with.is_some()) == question.kind.descriptors() => question,
                Ok(_) => return self.refuse(id, Answer::Refused),
                Err(answer) => return self.refuse(id, answer),
            };
            match (question.kind, question.destination, with) {
                (Kind::Query, Some(destination), Some(socket)) => {
                    let answer = self.query(id, plain(destination), socket, now);
                    self.tell();
                    self.say(id, answer, None);
                }
                (Kind::Give, None, Some(parcel)) => self.give(id, parcel, now),
                (Kind::Ask, None, Some(socket)) => asked.push(Asked { carrier: id, socket }),
                (Kind::Announce, None, Some(listener)) => {
                    let answer = self.announce(id, &listener, now);
                    self.say(id, answer, None);
                }
                (Kind::Attach, None, None) => self.say(id, Answer::Done, Some(self.page.memfd())),
                _ => return self.refuse(id, Answer::Refused),
            }
        }
    }

    fn say(&self, id: u64, answer: Answer, with: Option<i32>) {
        if let Some(carrier) = self.carriers.get(&id) {
            let cuts = self.rules.on_cut == OnCut::Cut;
            let _ = agent::send(carrier.socket.as_raw_fd(), &answer.encode(cuts), with);
        }
    }

    /// Ends a carrier that breaks the rules.
    fn refuse(&mut self, id: u64, answer: Answer) {
        self.say(id, answer, None);
        self.end_carrier(id);
    }

    /// The groups of an end: its socket's namespace and address, and the user of the carrier.
    fn groups(&mut self, facts: &Facts, socket: i32, address: Option<IpAddr>, user: u32, now: Instant) -> u64 {
        let name = match self.rules.name_namespaces() {
            true => self.namespaces.name(facts.namespace, socket, now),
            false => None,
        };
        self.rules.groups(name.as_deref(), address, user)
    }

    /// Rules 3, 15 and 22.
    fn query(&mut self, id: u64, destination: SocketAddr, socket: Stray, now: Instant) -> Answer {
        let Some(carrier) = self.carriers.get(&id).filter(|carrier| carrier.number.is_none()) else {
            return Answer::Refused;
        };
        let (user, _) = carrier.holder;
        let Some(facts) = agent::facts(socket.fd()) else { return Answer::Refused };
        if facts.state != tcp::CLOSE || facts.remote.is_some() || facts.local.port() != 0 {
            return Answer::Refused;
        }
        let groups = self.groups(&facts, socket.fd(), None, user, now);
        if groups == 0 {
            return Answer::Refused;
        }
        let is_likely = self.served.is_likely(destination, facts.namespace, groups);
        if !is_likely && !is_private(destination.ip()) {
            return Answer::Unknown;
        }
        if !self.offers.is_room((user, facts.namespace)) {
            return Answer::Full;
        }
        let Some(number) = self.offers.fresh_number(|| random(&self.random)) else { return Answer::Full };
        if let Err(errno) = agent::give_number(socket.fd(), number) {
            self.trouble
                .line(format_args!("cannot give a socket its number: {}", std::io::Error::from_raw_os_error(errno.0)));
            return Answer::Refused;
        }
        let client = Client { destination, namespace: facts.namespace, user, groups };
        if !is_likely {
            self.offers.insert(number, client, Content::Probe, now);
            return Answer::Unknown;
        }
        self.offers.insert(number, client, Content::Claimed { socket }, now);
        if let Some(carrier) = self.carriers.get_mut(&id) {
            carrier.number = Some(number);
        }
        Answer::Likely
    }

    /// The parcel for the number that was given over this carrier.
    fn give(&mut self, id: u64, parcel: Stray, now: Instant) {
        let number = self.carriers.get_mut(&id).and_then(|carrier| carrier.number.take());
        let Some(number) = number else { return self.refuse(id, Answer::Refused) };
        let watched = agent::is_parcel(parcel.fd()) && self.watch(number, &parcel);
        if !watched {
            self.offers.remove(number);
            return self.end_carrier(id);
        }
        self.offers.change(number, now, |content| match content {
            Content::Claimed { socket } => Content::Whole { socket, parcel },
            other => other,
        });
    }

    /// Watches for the closing of a parcel's other end, which the kernel tells unasked.
    fn watch(&self, number: u32, parcel: &Stray) -> bool {
        let event = EpollEvent::new(EpollFlags::EPOLLONESHOT, Token::PARCELS + u64::from(number));
        agent::borrowed(parcel.fd(), |fd: BorrowedFd<'_>| self.epoll.add(fd, event).is_ok())
    }

    fn unwatch(&self, parcel: &Stray) {
        let _ = agent::borrowed(parcel.fd(), |fd: BorrowedFd<'_>| self.epoll.delete(fd));
    }

    /// The client's end of a parcel is closed: it has been taken back, or its client has died.
    fn parcel_is_open(&mut self, number: u32, now: Instant) {
        let Some(offer) = self.offers.get(number) else { return };
        let Content::Whole { socket, parcel } = &offer.content else { return };
        let destination = offer.client.destination;
        let facts = agent::facts(socket.fd());
        // A client that was not connected at all has taken it back for that.
        let was_left_lying = facts.is_some_and(|facts| facts.state == tcp::ESTABLISHED)
            && now.saturating_duration_since(offer.since) >= HARDLY_OFFERED;
        self.unwatch(parcel);
        match facts.map(|facts| facts.local) {
            Some(local) if !agent::is_withdrawn(parcel.fd()) => {
                self.offers.change(number, now, |content| match content {
                    Content::Whole { parcel, .. } => Content::Orphaned { local, parcel },
                    other => other,
                });
            }
            _ => {
                self.offers.remove(number);
                if was_left_lying {
                    self.served.disappointed(destination, now);
                }
            }
        }
    }

    /// Rule 16.
    fn answer_ask(&mut self, id: u64, asker: &Stray, now: Instant) {
        match self.find(id, asker, now) {
            Some(parcel) => self.say(id, Answer::Lane, Some(parcel.fd())),
            None => self.say(id, Answer::None, None),
        }
    }

    fn find(&mut self, id: u64, asker: &Stray, now: Instant) -> Option<Stray> {
        let (user, _) = self.carriers.get(&id)?.holder;
        let facts = agent::facts(asker.fd())?;
        let number = agent::saved_number(asker.fd())?;
        let offer = self.offers.get(number)?;
        let client = offer.client;
        let mut client_address = None;
        match &offer.content {
            Content::Probe => {}
            Content::Claimed { .. } => return None,
            Content::Whole { socket, .. } => {
                let about = agent::facts(socket.fd())?;
                let client_now = Now {
                    facts: about,
                    next_number: agent::next_number(socket.fd()),
                    is_untouched: agent::is_untouched(socket.fd()),
                };
                let untouched = agent::is_untouched(asker.fd());
                judge(number, &client, Some(&client_now), about.local, &facts, untouched).ok()?;
                client_address = Some(about.local.ip());
            }
            Content::Orphaned { local, .. } => {
                judge(number, &client, None, *local, &facts, agent::is_untouched(asker.fd())).ok()?;
                client_address = Some(local.ip());
            }
        }
        let groups = self.groups(&facts, asker.fd(), Some(facts.local.ip()), user, now);
        let server = Server { namespace: facts.namespace, user, groups };
        // What the listener itself is called, and what its client called it.
        self.served.reached(facts.local, server, now);
        self.served.reached(client.destination, server, now);
        let address = client_address?;
        let theirs = self.rules.narrowed(client.groups, address);
        let offer = self.offers.remove(number)?;
        let (Content::Whole { parcel, .. } | Content::Orphaned { parcel, .. }) = offer.content else { return None };
        self.unwatch(&parcel);
        // If they may not, the parcel is closed, and the client goes on over TCP at once.
        (groups & theirs != 0).then_some(parcel)
    }

    /// Rule 21.
    fn announce(&mut self, id: u64, listener: &Stray, now: Instant) -> Answer {
        let Some((user, _)) = self.carriers.get(&id).map(|carrier| carrier.holder) else { return Answer::Refused };
        let Some(facts) = agent::facts(listener.fd()).filter(|facts| facts.state == tcp::LISTEN) else {
            return Answer::Refused;
        };
        let local = facts.local;
        let addresses = if !local.ip().is_unspecified() {
            vec![local.ip()]
        } else {
            self.namespaces.addresses(facts.namespace, listener.fd(), now)
        };
        for ip in addresses.into_iter().filter(|ip| !ip.is_loopback()) {
            let groups = self.groups(&facts, listener.fd(), Some(ip), user, now);
            if groups != 0 {
                let server = Server { namespace: facts.namespace, user, groups };
                self.served.announced(SocketAddr::new(ip, local.port()), server, now);
            }
        }
        Answer::Done
    }

    fn expire(&mut self, now: Instant) {
        while let Some((_, offer)) = self.offers.expired(now) {
            if let Content::Whole { parcel, .. } | Content::Orphaned { parcel, .. } = &offer.content {
                self.unwatch(parcel);
            }
            if let Content::Whole { .. } = offer.content {
                self.served.disappointed(offer.client.destination, now);
            }
        }
        while let Some((&(until, id), ())) = self.by_time.first_key_value() {
            if until > now {
                break;
            }
            self.end_carrier(id);
        }
    }
}

fn random(source: &SystemRandom) -> Option<u32> {
    let mut bytes = [0; 4];
    source.fill(&mut bytes).ok()?;
    Some(u32::from_ne_bytes(bytes))
}

/// Whether an address is one that hosts give to their containers and services: only there a number is worth its while.
fn is_private(ip: IpAddr) -> bool {
    match ip {
        // With what RFC 6598 sets aside.
        IpAddr::V4(v4) => v4.is_private() || v4.octets()[0] == 100 && v4.octets()[1] & 0xc0 == 64,
        IpAddr::V6(v6) => v6.is_unique_local(),
    }
}
