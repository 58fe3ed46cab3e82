//! The model of the switch-over in `docs/design/0008-namespaces.md`: every order of steps of a client, the agent and a
//! server, each of which may give up or die at each point, and the agent be stopped for good.
//!
//! A state is what all three know and what is under way between them. All states that can be reached are visited; each
//! must be sound, and each that has no successor must be a good end. The client writes two bytes, the server one,
//! whenever they may. That the kernel's connection stands, and that the client's end is in place, are two steps,
//! between which anything may fail. What the model does not have, it need not: which connection an offer belongs to is
//! found by its sequence numbers (`crates/beelined/src/agent/desk/tests.rs`), and the offer's word is one atomic word
//! (`beeline_lane::offer`, modelled with loom).

use std::collections::HashSet;

/// Where the client is.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Client {
    /// Has sent QUERY, and waits for the answer.
    Asks,
    /// Has had LIKELY with its end of a lane, and is about to send its SYN.
    Connects,
    /// The kernel has connected it; it is about to put the lane in the socket's place.
    Stands,
    /// The lane is in place, and the agent is not told yet. The app may write.
    Placed,
    /// The agent was told; the lane is offered.
    Offers,
    /// Has seen that the server took the lane.
    Lane,
    /// Talks over TCP.
    Tcp,
    Dead,
}

/// Where the server's end of the lane is.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Parcel {
    None,
    /// With the agent.
    Held,
    /// On its way to the server.
    Sent,
    /// In the server's hands.
    Delivered,
    /// Closed by who had it last.
    Closed,
}

/// What the agent knows of the client.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Told {
    Nothing,
    /// CONFIRM is in its queue.
    Queued,
    /// The client's end is in place.
    Confirmed,
}

/// The word on which both ends agree.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Word {
    Offered,
    Taken,
    Withdrawn,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Agent {
    Runs,
    /// Stopped, and never continued: it does nothing more, and keeps what it has.
    Stopped,
    Dead,
}

/// Where the server is.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Server {
    /// Has not accepted yet.
    Listens,
    /// Has accepted over TCP, and waits for the agent's answer.
    Asks,
    /// Has its end of the lane, and will take it if it can.
    Takes,
    Lane,
    Tcp,
    Dead,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct State {
    client: Client,
    server: Server,
    agent: Agent,
    parcel: Parcel,
    told: Told,
    /// The client's carrier has ended.
    carrier_ended: bool,
    word: Word,
    /// The agent has said "none" to the server.
    none: bool,
    established: bool,
    /// Bytes that the client has put into the ring, and over TCP.
    ring: u8,
    tcp: u8,
    /// The same of the server, who writes one.
    ring_back: u8,
    tcp_back: u8,
    /// Bytes that the server has read, and the client.
    read: u8,
    read_back: u8,
    /// Client bytes that came over TCP after being in the ring.
    handed_over: u8,
}

/// Bytes that the client writes.
const BYTES: u8 = 2;

impl State {
    fn start() -> State {
        State {
            client: Client::Asks,
            server: Server::Listens,
            agent: Agent::Runs,
            parcel: Parcel::None,
            told: Told::Nothing,
            carrier_ended: false,
            word: Word::Offered,
            none: false,
            established: false,
            ring: 0,
            tcp: 0,
            ring_back: 0,
            tcp_back: 0,
            read: 0,
            read_back: 0,
            handed_over: 0,
        }
    }

    fn with(&self, change: impl FnOnce(&mut State)) -> State {
        let mut next = self.clone();
        change(&mut next);
        next
    }

    fn steps(&self) -> Vec<State> {
        [self.client_steps(), self.agent_steps(), self.server_steps()].concat()
    }

    /// The client goes on over TCP without having told the agent: it only ends its carrier, and does not look at the
    /// word.
    fn left_to_tcp(&self) -> State {
        self.with(|s| {
            s.client = Client::Tcp;
            s.established = true;
            s.carrier_ended = true;
        })
    }

    fn client_steps(&self) -> Vec<State> {
        let mut next = Vec::new();
        if self.client == Client::Dead {
            return next;
        }
        // Death: whatever it held is closed; what lies in the ring stays for who has the other end.
        next.push(self.with(|s| (s.client, s.carrier_ended) = (Client::Dead, true)));
        match self.client {
            Client::Asks => {
                if self.parcel != Parcel::None {
                    next.push(self.with(|s| s.client = Client::Connects));
                }
                // No, silence, or the end of patience: TCP over the app's own socket.
                next.push(self.left_to_tcp());
            }
            Client::Connects => {
                next.push(self.with(|s| {
                    s.established = true;
                    s.client = Client::Stands;
                }));
                // It did not stand at once.
                next.push(self.left_to_tcp());
            }
            Client::Stands => {
                // Something was short, or another process has the socket, too.
                next.push(self.left_to_tcp());
                next.push(self.with(|s| s.client = Client::Placed));
            }
            Client::Placed => next.push(self.with(|s| {
                s.client = Client::Offers;
                s.carrier_ended = true;
                if s.agent != Agent::Dead {
                    s.told = Told::Queued;
                }
            })),
            _ => {}
        }
        if matches!(self.client, Client::Placed | Client::Offers | Client::Lane) && self.ring < BYTES {
            next.push(self.with(|s| s.ring += 1));
        }
        if matches!(self.client, Client::Offers | Client::Placed) {
            if self.word == Word::Taken {
                next.push(self.with(|s| s.client = Client::Lane));
            } else {
                // At any time: it is due, the other end is closed, a fork, a close.
                next.push(self.with(|s| {
                    s.word = Word::Withdrawn;
                    s.client = Client::Tcp;
                    s.carrier_ended = true;
                    s.handed_over = s.ring;
                    s.tcp = s.ring;
                }));
            }
        }
        if self.client == Client::Lane && self.read_back < self.ring_back {
            next.push(self.with(|s| s.read_back += 1));
        }
        if self.client == Client::Tcp {
            if self.tcp < BYTES {
                next.push(self.with(|s| s.tcp += 1));
            }
            if self.read_back < self.tcp_back {
                next.push(self.with(|s| s.read_back += 1));
            }
        }
        next
    }

    fn agent_steps(&self) -> Vec<State> {
        let mut next = Vec::new();
        if self.agent == Agent::Dead {
            return next;
        }
        next.push(self.with(|s| {
            s.agent = Agent::Dead;
            // Its descriptors are closed. What it has sent is not its any more.
            if s.parcel == Parcel::Held {
                s.parcel = Parcel::Closed;
            }
        }));
        if self.agent == Agent::Stopped {
            return next;
        }
        next.push(self.with(|s| s.agent = Agent::Stopped));
        if self.parcel == Parcel::None && !self.carrier_ended {
            next.push(self.with(|s| s.parcel = Parcel::Held));
        }
        if self.told == Told::Queued {
            next.push(self.with(|s| s.told = Told::Confirmed));
        }
        if self.parcel == Parcel::Held {
            // Time is over; or the client's carrier has ended without a word.
            if self.told != Told::Queued || self.carrier_ended {
                next.push(self.with(|s| s.parcel = Parcel::Closed));
            }
            if self.told == Told::Confirmed && self.server == Server::Asks && !self.none {
                next.push(self.with(|s| s.parcel = Parcel::Sent));
            }
        }
        // No such offer, or the client is not in place in time.
        if self.server == Server::Asks && !self.none && !matches!(self.parcel, Parcel::Sent | Parcel::Delivered) {
            next.push(self.with(|s| s.none = true));
        }
        next
    }

    fn server_steps(&self) -> Vec<State> {
        let mut next = Vec::new();
        if self.server == Server::Dead {
            return next;
        }
        next.push(self.with(|s| {
            s.server = Server::Dead;
            if matches!(s.parcel, Parcel::Sent | Parcel::Delivered) {
                s.parcel = Parcel::Closed;
            }
        }));
        match self.server {
            Server::Listens if self.established => {
                next.push(self.with(|s| s.server = Server::Asks));
                // Without Beeline, or told that there are no offers.
                next.push(self.with(|s| s.server = Server::Tcp));
            }
            Server::Asks => {
                if self.parcel == Parcel::Sent {
                    next.push(self.with(|s| {
                        s.parcel = Parcel::Delivered;
                        s.server = Server::Takes;
                    }));
                }
                // "None", silence, or the end of patience. Its carrier is closed, with what is under way.
                next.push(self.with(|s| {
                    s.server = Server::Tcp;
                    if s.parcel == Parcel::Sent {
                        s.parcel = Parcel::Closed;
                    }
                }));
            }
            Server::Takes => {
                next.push(self.with(|s| {
                    if s.word == Word::Offered {
                        s.word = Word::Taken;
                        s.server = Server::Lane;
                    } else {
                        s.parcel = Parcel::Closed;
                        s.server = Server::Tcp;
                    }
                }));
                // Something was short.
                next.push(self.with(|s| {
                    s.parcel = Parcel::Closed;
                    s.server = Server::Tcp;
                }));
            }
            Server::Lane => {
                if self.ring_back == 0 {
                    next.push(self.with(|s| s.ring_back = 1));
                }
                if self.read < self.ring {
                    next.push(self.with(|s| s.read += 1));
                }
            }
            Server::Tcp => {
                if self.tcp_back == 0 {
                    next.push(self.with(|s| s.tcp_back = 1));
                }
                if self.read < self.tcp {
                    next.push(self.with(|s| s.read += 1));
                }
            }
            _ => {}
        }
        next
    }

    /// What must hold in every state.
    fn check(&self) {
        assert!(!(self.client == Client::Lane && self.server == Server::Tcp), "two paths: {self:?}");
        assert!(!(self.client == Client::Tcp && self.server == Server::Lane), "two paths: {self:?}");
        assert!(self.server != Server::Lane || self.word == Word::Taken, "{self:?}");
        if self.word == Word::Taken {
            assert_eq!((self.tcp, self.tcp_back), (0, 0), "bytes on both paths: {self:?}");
        }
        assert!(self.ring_back == 0 || self.tcp_back == 0, "{self:?}");
        assert!(self.read <= BYTES && self.read_back <= 1, "a byte twice: {self:?}");
        assert!(self.handed_over <= self.tcp, "{self:?}");
    }

    /// What must hold where nothing more happens, while neither end has died.
    fn check_end(&self) {
        if self.client == Client::Dead || self.server == Server::Dead {
            return;
        }
        let paths = (self.client, self.server);
        assert!(matches!(paths, (Client::Lane, Server::Lane) | (Client::Tcp, Server::Tcp)), "somebody waits: {self:?}");
        assert_eq!((self.read, self.read_back), (BYTES, 1), "bytes are missing: {self:?}");
    }
}

#[test]
fn every_order_of_steps_ends_with_one_path_and_each_byte_once() {
    let mut seen = HashSet::new();
    let mut open = vec![State::start()];
    let (mut lanes, mut fallbacks) = (0, 0);
    while let Some(state) = open.pop() {
        if !seen.insert(state.clone()) {
            continue;
        }
        state.check();
        // Deaths are always possible, and are no progress.
        let living = |next: &State| {
            (next.client == Client::Dead) == (state.client == Client::Dead)
                && (next.server == Server::Dead) == (state.server == Server::Dead)
                && next.agent == state.agent
        };
        let steps = state.steps();
        if !steps.iter().any(living) {
            state.check_end();
            lanes += u32::from((state.client, state.server) == (Client::Lane, Server::Lane));
            fallbacks += u32::from(state.handed_over != 0);
        }
        open.extend(steps);
    }
    assert!(lanes > 0 && fallbacks > 0, "{lanes} ends over lanes, {fallbacks} with bytes handed over");
    assert!(seen.len() > 4000, "{} states", seen.len());
}

/// Each step of a living client or server is one that they take without the agent: it may be stopped at any point.
#[test]
fn nobody_waits_for_a_stopped_agent() {
    let (mut open, mut seen, mut ends) = (vec![State::start()], HashSet::new(), 0);
    while let Some(state) = open.pop() {
        if !seen.insert(state.clone()) {
            continue;
        }
        let living: Vec<State> = state
            .steps()
            .into_iter()
            .filter(|next| next.client != Client::Dead && next.server != Server::Dead && next.agent != Agent::Dead)
            .collect();
        if living.is_empty() {
            assert_eq!(state.agent, Agent::Stopped);
            state.check_end();
            ends += 1;
        }
        open.extend(living);
    }
    assert!(ends > 10);
}

/// A client that has died with bytes in the ring: whoever gets the other end then still reads them.
#[test]
fn what_a_client_wrote_before_it_died_can_be_read() {
    let died = State {
        client: Client::Dead,
        server: Server::Asks,
        parcel: Parcel::Held,
        told: Told::Confirmed,
        carrier_ended: true,
        established: true,
        ring: BYTES,
        ..State::start()
    };
    let (mut open, mut seen, mut read) = (vec![died], HashSet::new(), 0);
    while let Some(state) = open.pop() {
        if seen.insert(state.clone()) {
            state.check();
            read = read.max(state.read);
            open.extend(state.steps());
        }
    }
    assert_eq!(read, BYTES);
}
