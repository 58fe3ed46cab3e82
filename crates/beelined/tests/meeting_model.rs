//! The model of the switch-over in `docs/design/0007-namespaces.md`: every order of steps of a client, the agent and a
//! server, each of which may give up or die at each point.
//!
//! A state is what all three know and what is under way between them. All states that can be reached are visited; each
//! must be sound, and each that has no successor must be a good end. The client writes two bytes, the server one, whenever
//! they may. What the model does not have, it need not: which connection an offer belongs to is found by its number
//! (`crates/beelined/src/agent/offers.rs` tests that), and the offer's word is one atomic word (`beeline_lane::offer`, modelled with loom).

use std::collections::HashSet;

/// Where the client is.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Client {
    /// Has sent QUERY and waits for the answer.
    Asks,
    /// Has had LIKELY, and gives the parcel.
    Gives,
    /// Is about to send its SYN.
    Connects {
        gave: bool,
    },
    /// Writes into the ring; the lane is offered.
    Offers,
    /// Has seen that the server took the lane.
    Lane,
    /// Talks over TCP.
    Tcp,
    Dead,
}

/// Where the agent has the parcel.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Parcel {
    /// Not made.
    None,
    /// In the agent's queue, unread.
    Queued,
    /// An offer.
    Held,
    /// On its way to the server.
    Sent,
    /// In the server's hands.
    Delivered,
    /// Closed by who had it last.
    Closed,
}

/// The word on which both ends agree.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Word {
    Offered,
    Taken,
    Withdrawn,
}

/// Where the server is.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Server {
    /// Has not accepted yet.
    Listens,
    /// Has accepted over TCP, and waits for the agent's answer.
    Asks,
    /// Has a parcel, and will take the lane if it can.
    Takes,
    Lane,
    Tcp,
    Dead,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct State {
    client: Client,
    server: Server,
    agent_alive: bool,
    /// The answer to the client's query: unanswered, likely, or gone.
    answered: Option<bool>,
    parcel: Parcel,
    word: Word,
    /// The server's question is with the agent.
    question: bool,
    /// The agent has said "none" to it.
    none: bool,
    established: bool,
    /// Bytes that the client has put into the ring, and over TCP.
    ring: u8,
    tcp: u8,
    /// The same of the server, who writes one.
    ring_back: u8,
    tcp_back: u8,
    /// Bytes that the server has read.
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
            agent_alive: true,
            answered: None,
            parcel: Parcel::None,
            word: Word::Offered,
            question: false,
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

    fn client_steps(&self) -> Vec<State> {
        let mut next = Vec::new();
        if self.client == Client::Dead {
            return next;
        }
        // Death: whatever it held is closed; what lies in the ring stays for who has the parcel.
        next.push(self.with(|s| s.client = Client::Dead));
        match self.client {
            Client::Asks => {
                if self.answered == Some(true) {
                    next.push(self.with(|s| s.client = Client::Gives));
                }
                // No, silence, or the end of patience: TCP. A LIKELY that comes later finds nobody.
                next.push(self.with(|s| s.client = Client::Connects { gave: false }));
            }
            Client::Gives => next.push(self.with(|s| {
                s.client = Client::Connects { gave: true };
                s.parcel = if s.agent_alive { Parcel::Queued } else { Parcel::Closed };
            })),
            Client::Connects { gave } => {
                // The handshake is the kernel's. Rule 6: the parcel is in the queue before.
                next.push(self.with(|s| {
                    s.established = true;
                    s.client = if gave { Client::Offers } else { Client::Tcp };
                }));
                if gave {
                    // It did not stand at once, and may later: the parcel is taken back first.
                    next.push(self.with(|s| {
                        s.word = Word::Withdrawn;
                        s.client = Client::Connects { gave: false };
                    }));
                }
            }
            Client::Offers => {
                if self.ring < BYTES {
                    next.push(self.with(|s| s.ring += 1));
                }
                if self.word == Word::Taken {
                    next.push(self.with(|s| s.client = Client::Lane));
                } else {
                    // At any time: it is due, the other end is closed, a fork, a close.
                    next.push(self.with(|s| {
                        s.word = Word::Withdrawn;
                        s.client = Client::Tcp;
                        s.handed_over = s.ring;
                        s.tcp = s.ring;
                    }));
                }
            }
            Client::Lane => {
                if self.ring < BYTES {
                    next.push(self.with(|s| s.ring += 1));
                }
                if self.read_back < self.ring_back {
                    next.push(self.with(|s| s.read_back += 1));
                }
            }
            Client::Tcp => {
                if self.tcp < BYTES {
                    next.push(self.with(|s| s.tcp += 1));
                }
                if self.read_back < self.tcp_back {
                    next.push(self.with(|s| s.read_back += 1));
                }
            }
            Client::Dead => {}
        }
        next
    }

    fn agent_steps(&self) -> Vec<State> {
        let mut next = Vec::new();
        if !self.agent_alive {
            return next;
        }
        next.push(self.with(|s| {
            s.agent_alive = false;
            // Its descriptors are closed. What it has sent is not its any more.
            if matches!(s.parcel, Parcel::Queued | Parcel::Held) {
                s.parcel = Parcel::Closed;
            }
        }));
        if self.answered.is_none() {
            next.extend([true, false].map(|likely| self.with(|s| s.answered = Some(likely))));
        }
        if self.parcel == Parcel::Queued {
            next.push(self.with(|s| s.parcel = Parcel::Held));
        }
        // Time is over, or it saw that the parcel was taken back.
        if self.parcel == Parcel::Held {
            next.push(self.with(|s| s.parcel = Parcel::Closed));
        }
        // All queues are empty before it answers; a byte over TCP makes the answer "none".
        if self.question && !self.none && self.parcel != Parcel::Queued {
            let fits = self.parcel == Parcel::Held && self.tcp == 0 && self.tcp_back == 0;
            next.push(self.with(|s| {
                if fits {
                    s.parcel = Parcel::Sent;
                } else {
                    s.none = true;
                }
            }));
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
                next.push(self.with(|s| {
                    s.server = Server::Asks;
                    s.question = true;
                }));
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
                // "None", silence, or the end of patience. Its carrier is closed, with a parcel that is under way.
                next.push(self.with(|s| {
                    s.server = Server::Tcp;
                    s.question = false;
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
                && next.agent_alive == state.agent_alive
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

/// A client that has died with bytes in the ring: whoever gets the parcel then still reads them.
#[test]
fn what_a_client_wrote_before_it_died_can_be_read() {
    let died = State {
        client: Client::Dead,
        server: Server::Asks,
        parcel: Parcel::Held,
        question: true,
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
