//! Two bridges and the rails between them, with one direction of each connection: what `engine/outward.rs`, `large.rs`,
//! `inward.rs` and `links.rs` do with [`Sender`](super::super::sender::Sender), [`LinkRates`], `Losses` and `Reorder`.
//!
//! 1. A rail carries one thing after the other at its own speed, and has one link at a time that both ends use.
//! 2. When one end closes a link, the other does not know it yet: it is told beside the links, or by a `Resync`,
//!    whatever comes first. Until the receiver has closed its end, what was sent goes on landing.
//! 3. Each word of the receiver goes over the link that is then its connection's home, so words overtake each other.

mod sending;

use super::super::link_rates::LinkRates;
use super::super::sender::LinkId;
use super::ends::{Inward, Outward, Stream};
use super::life::{Back, Forth, Life, Part};

/// A slow app reads again after so long.
const READ_AGAIN_NS: u64 = 3_000;
/// Far more than any test needs.
const STEPS_MAX: usize = 1_000_000;

/// As the tunables of these names.
#[derive(Clone, Copy, Debug)]
pub struct Tunables {
    pub inline_max: u64,
    pub pull_min: u64,
    pub chunk: u64,
    pub stripe_min: u64,
}

/// What happens to a rail.
#[derive(Clone, Copy, Debug)]
pub enum Event {
    /// One end closes the link, and the other hears of it so much later. What is on its way takes longer from now on.
    Cut {
        by_sender: bool,
        heard_ns: u64,
        late_ns: u64,
    },
    /// Nothing moves for a while.
    Hang {
        ns: u64,
    },
    Up,
}

/// A rail as it really is.
pub struct Wire {
    bytes_per_s: u64,
    claimed_mbps: u32,
    latency_ns: u64,
    free_ns: u64,
    /// When the reads are done that were begun: messages overtake them.
    read_ns: u64,
    pub carried: u64,
}

impl Wire {
    fn delay(&mut self, now_ns: u64, by_ns: u64) {
        self.free_ns = self.free_ns.max(now_ns) + by_ns;
        self.read_ns = self.read_ns.max(now_ns) + by_ns;
    }
}

/// A word beside the links: this one is over.
struct Told {
    at_ns: u64,
    sender: bool,
    link: LinkId,
}

/// See the module.
pub struct World {
    pub now_ns: u64,
    tunables: Tunables,
    ack_ns: u64,
    ack_due_ns: Option<u64>,
    rates: LinkRates,
    pub wires: Vec<Wire>,
    lives: Vec<Life>,
    last_link: LinkId,
    told: Vec<Told>,
    /// The most bytes that were in the account of a link of each rail.
    pub in_flight_max: Vec<u64>,
    pub outwards: Vec<Outward>,
    pub inwards: Vec<Inward>,
}

impl World {
    /// Rails with the speed they claim and the speed they have, in Mb/s. What is not urgent is acknowledged after
    /// `ack_ns`.
    pub fn new(tunables: Tunables, ack_ns: u64, rails: &[(u32, u32)], streams: &[Stream]) -> Self {
        let wire = |(index, &(claimed_mbps, real)): (usize, &(u32, u32))| Wire {
            bytes_per_s: u64::from(real) * 125_000,
            claimed_mbps,
            latency_ns: 2_000 * (index as u64 + 1),
            free_ns: 0,
            read_ns: 0,
            carried: 0,
        };
        let mut world = Self {
            now_ns: 1,
            tunables,
            ack_ns,
            ack_due_ns: None,
            rates: LinkRates::default(),
            wires: rails.iter().enumerate().map(wire).collect(),
            lives: Vec::new(),
            last_link: 0,
            told: Vec::new(),
            in_flight_max: vec![0; rails.len()],
            outwards: Vec::new(),
            inwards: Vec::new(),
        };
        streams.iter().for_each(|stream| world.connect(stream));
        (0..rails.len()).for_each(|rail| world.bring_up(rail));
        world
    }

    /// Another connection.
    pub fn connect(&mut self, stream: &Stream) {
        self.inwards.push(Inward::new(stream));
        self.outwards.push(Outward::new(stream.clone()));
    }

    fn bring_up(&mut self, rail: usize) {
        if self.lives.iter().any(|life| life.rail == rail && life.sends) {
            return;
        }
        self.last_link += 1;
        self.lives.push(Life::new(self.last_link, rail));
        (self.wires[rail].free_ns, self.wires[rail].read_ns) = (self.now_ns, self.now_ns);
        self.rates.join(self.last_link, self.wires[rail].claimed_mbps);
    }

    fn life(&mut self, link: LinkId) -> Option<&mut Life> {
        self.lives.iter_mut().find(|life| life.id == link)
    }

    /// The links that a connection may use, at the sender's end or the receiver's.
    fn links(&self, number: usize, is_open: impl Fn(&Life) -> bool) -> Vec<LinkId> {
        let rails = &self.outwards[number].stream.rails;
        self.lives.iter().filter(|life| is_open(life) && rails.contains(&life.rail)).map(|life| life.id).collect()
    }

    /// The link for small pieces and words.
    fn home(&self, number: usize, is_open: impl Fn(&Life) -> bool) -> Option<LinkId> {
        let links = self.links(number, is_open);
        links.get(number.checked_rem(links.len())?).copied()
    }

    /// The sender's end is closed: nothing of its own is heard any more, and it reads no word of the other end.
    fn sender_loses(&mut self, link: LinkId, heard_ns: u64) {
        let at_ns = self.now_ns + heard_ns;
        let Some(life) = self.life(link).filter(|life| life.sends) else { return };
        life.sends = false;
        life.back.clear();
        life.reads.clear();
        let writes: Vec<Part> = life.forth.iter().filter_map(|(.., what)| of_write(what)).collect();
        writes.iter().for_each(|part| self.outwards[part.connection].in_flight -= 1);
        self.told.push(Told { at_ns, sender: false, link });
        self.rates.leave(link);
        for outward in &mut self.outwards {
            outward.sender.link_lost(link);
            outward.grants.retain(|grant| *grant != link);
        }
        self.lives.retain(|life| life.sends || life.receives);
    }

    /// The receiver's end is closed: nothing more can land.
    fn receiver_loses(&mut self, link: LinkId, heard_ns: u64) {
        let at_ns = self.now_ns + heard_ns;
        let Some(life) = self.life(link).filter(|life| life.receives) else { return };
        life.receives = false;
        life.reads.clear();
        let (forth, sends) = (std::mem::take(&mut life.forth), life.sends);
        let writes = forth.iter().filter_map(|(.., what)| of_write(what)).filter(|_| sends);
        writes.for_each(|part| self.outwards[part.connection].in_flight -= 1);
        self.told.push(Told { at_ns, sender: true, link });
        let lives = &self.lives;
        let heard = |over: LinkId, message: u64| {
            let mut known = lives.iter().filter(|life| life.receives || life.id == link);
            known.any(|life| life.id == over && life.end.has_heard(message))
        };
        for inward in &mut self.inwards {
            inward.granted.retain(|granted| *granted != link);
            inward.losses.add(link, heard).unwrap();
        }
        self.lives.retain(|life| life.sends || life.receives);
    }

    /// What the receiver has to say, over whatever link is a connection's home now.
    fn say(&mut self) {
        for number in 0..self.inwards.len() {
            let Some(home) = self.home(number, |life| life.receives) else { continue };
            let (placed, limit) = self.inwards[number].have();
            let mut said = false;
            while let Some(lost) = self.inwards[number].losses.next() {
                let Some(place) = self.lives.iter().position(|life| life.id == home) else { break };
                self.inwards[number].losses.said(&self.lives[place].end);
                let ranges = self.inwards[number].reorder.above().to_vec();
                self.answer(home, Back::Resync { connection: number, lost, placed, limit, ranges });
                self.inwards[number].acknowledged(placed, limit);
                said = true;
            }
            let source_ring = self.outwards[number].stream.source_ring;
            let Some((urgent, placed, limit)) = self.inwards[number].ack_due(source_ring) else {
                self.inwards[number].owes = false;
                continue;
            };
            let inward = &mut self.inwards[number];
            if urgent || said || inward.owes && self.ack_due_ns.is_some_and(|due_ns| due_ns <= self.now_ns) {
                (inward.owes, said) = (false, true);
                inward.acknowledged(placed, limit);
                self.answer(home, Back::Ack { connection: number, placed, limit });
            }
            self.inwards[number].owes |= !said;
        }
        let owes = self.inwards.iter().any(|inward| inward.owes);
        let due_ns = self.ack_due_ns.filter(|due_ns| *due_ns > self.now_ns).unwrap_or(self.now_ns + self.ack_ns);
        self.ack_due_ns = owes.then_some(due_ns);
    }

    fn answer(&mut self, link: LinkId, what: Back) {
        let Some(rail) = self.life(link).map(|life| life.rail) else { return };
        let at_ns = self.now_ns + self.wires[rail].latency_ns;
        if let Some(life) = self.life(link) {
            let after_ns = life.back.back().map_or(0, |(at_ns, _)| *at_ns);
            life.say(at_ns.max(after_ns), what);
        }
    }

    /// Something reaches the receiver.
    fn arrives(&mut self, link: LinkId, gone_through: u64, what: Forth) {
        let sends = self.life(link).is_some_and(|life| {
            if of_write(&what).is_none() {
                life.end.returned = gone_through;
            }
            life.sends
        });
        match what {
            Forth::Data { part, bytes, more } => {
                let inward = &mut self.inwards[part.connection];
                inward.land(part.offset, &bytes);
                inward.accept(part.offset, part.bytes);
                if more && !inward.granted.contains(&link) {
                    inward.granted.push(link);
                    self.answer(link, Back::Grant { connection: part.connection });
                }
            }
            Forth::Write(part) => {
                self.outwards[part.connection].in_flight -= u32::from(sends);
                let bytes = self.outwards[part.connection].copy_out(part.offset, part.bytes);
                self.inwards[part.connection].land(part.offset, &bytes);
            }
            Forth::Placed(part) => self.inwards[part.connection].accept(part.offset, part.bytes),
            Forth::Offer(part) => {
                let Some(rail) = self.life(link).map(|life| life.rail) else { return };
                let now_ns = self.now_ns;
                let wire = &mut self.wires[rail];
                wire.carried += part.bytes;
                wire.read_ns = wire.read_ns.max(now_ns) + part.bytes * 1_000_000_000 / wire.bytes_per_s;
                let at_ns = wire.read_ns;
                if let Some(life) = self.life(link).filter(|life| life.sends) {
                    life.reads.push_back((at_ns, part));
                }
            }
        }
    }

    /// A read of the receiver's is done.
    fn is_read(&mut self, part: Part) {
        let bytes = self.outwards[part.connection].copy_out(part.offset, part.bytes);
        self.inwards[part.connection].land(part.offset, &bytes);
        self.inwards[part.connection].accept(part.offset, part.bytes);
    }

    /// A word reaches the sender.
    fn hears(&mut self, over: LinkId, what: Back) {
        match what {
            Back::Grant { connection } => self.outwards[connection].grants.push(over),
            Back::Ack { connection, placed, limit } => {
                let is_striped = self.links(connection, |life| life.sends).len() > 1;
                let (rates, now_ns) = (&mut self.rates, self.now_ns);
                let Outward { sender, advanced_ns, .. } = &mut self.outwards[connection];
                let acked = sender.ack(placed, limit, |(link, bytes)| {
                    let waited_ns = now_ns.saturating_sub(std::mem::replace(advanced_ns, now_ns));
                    if is_striped && waited_ns != 0 {
                        rates.waited_for(link, waited_ns);
                    }
                    rates.acknowledged(link, bytes, now_ns);
                });
                acked.unwrap();
            }
            Back::Resync { connection, lost, placed, limit, ranges } => {
                self.sender_loses(lost, 0);
                let (rates, now_ns) = (&mut self.rates, self.now_ns);
                let sender = &mut self.outwards[connection].sender;
                sender.resync(lost, std::iter::once((0, placed)).chain(ranges.iter().copied()));
                sender.ack(placed, limit, |(link, bytes)| rates.acknowledged(link, bytes, now_ns)).unwrap();
            }
        }
    }

    fn next_ns(&self) -> Option<u64> {
        let lives = self.lives.iter().filter_map(Life::next_ns);
        let told = self.told.iter().map(|told| told.at_ns);
        let reads = self.inwards.iter().any(|inward| inward.reorder.prefix() > inward.consumed);
        let soonest = lives.chain(told).chain(reads.then_some(self.now_ns + READ_AGAIN_NS)).min();
        // An acknowledgement that can be said nowhere waits for a link.
        let homes = self
            .inwards
            .iter()
            .enumerate()
            .any(|(number, inward)| inward.owes && self.home(number, |life| life.receives).is_some());
        soonest.into_iter().chain(self.ack_due_ns.filter(|_| homes)).min()
    }

    /// Everything that happens until then.
    fn advance_to(&mut self, at_ns: u64) {
        self.now_ns = self.now_ns.max(at_ns);
        let now_ns = self.now_ns;
        let told: Vec<Told> = self.told.extract_if(.., |told| told.at_ns <= now_ns).collect();
        for Told { sender, link, .. } in told {
            if sender { self.sender_loses(link, 0) } else { self.receiver_loses(link, 0) }
        }
        for link in self.lives.iter().map(|life| life.id).collect::<Vec<_>>() {
            while let Some((_, gone_through, what)) =
                self.life(link).and_then(|life| life.forth.pop_front_if(|(there_ns, ..)| *there_ns <= now_ns))
            {
                self.arrives(link, gone_through, what);
            }
            while let Some((_, part)) =
                self.life(link).and_then(|life| life.reads.pop_front_if(|(there_ns, _)| *there_ns <= now_ns))
            {
                self.is_read(part);
            }
            while let Some((_, what)) =
                self.life(link).and_then(|life| life.back.pop_front_if(|(there_ns, _)| *there_ns <= now_ns))
            {
                if let Some(life) = self.life(link) {
                    life.gone_through += 1;
                }
                self.hears(link, what);
            }
        }
        self.inwards.iter_mut().for_each(|inward| _ = inward.read(now_ns));
    }

    /// Each link's account holds what its connections have on it.
    fn look_at_accounts(&mut self) {
        for life in self.lives.iter().filter(|life| life.sends) {
            let on_link = self.outwards.iter().flat_map(|outward| outward.sender.on_links());
            let bytes: u64 = on_link.filter(|(link, _)| *link == life.id).map(|(_, bytes)| bytes).sum();
            assert_eq!(self.rates.in_flight(life.id), bytes);
            self.in_flight_max[life.rail] = self.in_flight_max[life.rail].max(bytes);
        }
    }

    fn happens(&mut self, rail: usize, event: Event) {
        let newest = self.lives.iter_mut().rev().find(|life| life.rail == rail);
        match (event, newest) {
            (Event::Up, _) => self.bring_up(rail),
            (Event::Hang { ns }, Some(life)) => {
                life.delay(ns);
                self.wires[rail].delay(self.now_ns, ns);
            }
            (Event::Cut { by_sender, heard_ns, late_ns }, Some(life)) => {
                life.delay(late_ns);
                self.wires[rail].delay(self.now_ns, late_ns);
                let link = life.id;
                if by_sender { self.sender_loses(link, heard_ns) } else { self.receiver_loses(link, heard_ns) }
            }
            _ => {}
        }
    }

    /// Until everything is there, with events on rails at these steps. Afterwards all rails come up that are needed.
    pub fn run(&mut self, events: &[(usize, usize, Event)]) {
        let mut events = events.to_vec();
        events.sort_by_key(|(step, ..)| *step);
        let mut events = events.into_iter().peekable();
        for step in 0.. {
            assert!(step < STEPS_MAX, "it takes too long");
            while let Some((_, rail, event)) = events.next_if(|(at, ..)| *at <= step) {
                self.happens(rail, event);
            }
            self.pump();
            self.say();
            self.look_at_accounts();
            let is_done = self.outwards.iter().all(Outward::is_done) && self.inwards.iter().all(Inward::is_done);
            match self.next_ns() {
                _ if is_done => break,
                Some(at_ns) => self.advance_to(at_ns),
                // Everything waits for a rail.
                None => match events.next() {
                    Some((_, rail, event)) => self.happens(rail, event),
                    None => {
                        let last = self.last_link;
                        (0..self.wires.len()).for_each(|rail| self.bring_up(rail));
                        assert!(self.last_link != last, "nothing moves, and all rails are up");
                    }
                },
            }
        }
    }
}

fn of_write(what: &Forth) -> Option<Part> {
    if let Forth::Write(part) = what { Some(*part) } else { None }
}
