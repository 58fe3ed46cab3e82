//! The one moment in which a connection may change its path, explored completely.
//!
//! A client writes into its lane while the hello is still on its way. The server may die, refuse or be replaced at
//! any step, and the client may lose patience at any. This is a model of `meet::accept::take` and `meet::late`: every
//! interleaving of their steps is tried, and in every state no byte may be delivered twice, out of order, or by both
//! paths, and the server may not have the client twice; when everything has come to rest, no byte that was written over
//! a living connection may be missing.
//!
//! Steps are what the code does atomically for an observer: one store, one system call, or one section under a lock.
//! The kernel's report of a closed anchor orders what the dead server stored before what the client loads after it,
//! so memory is modelled as sequentially consistent. To show that the model can fail, it is also run with the
//! mistakes that are easy to make here, and must find each of them.

use std::collections::HashSet;

/// Bytes the client's app writes: enough for one before, one during and one after the switch.
const BYTES: u8 = 3;

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Client {
    /// Over the lane.
    Lane,
    /// The word was looked at; what follows from it is still to be done. Only mistakes have this step.
    Sampled { taken: bool },
    /// The hello is withdrawn: connecting over TCP, with no lock held.
    Connecting,
    /// Handing the ring to TCP: this many bytes are there. The locks are dropped between the parts.
    Handing(u8),
    /// Over TCP.
    Tcp,
    /// The app was told of a reset.
    Reset,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Server {
    /// The client is in the door's queue.
    Queued,
    /// Accepted from the door; hello unread.
    Accepted,
    /// The hello is read, which cannot be undone.
    HelloRead,
    /// Everything that can fail is done.
    Ready,
    /// The hello is taken, the flag that says so is not set.
    Took,
    /// TAKEN is set.
    Taken,
    /// The server has died or sent the client away.
    Gone,
}

/// `beeline_lane::offer`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Word {
    Offered,
    Taken,
    Withdrawn,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct World {
    client: Client,
    server: Server,
    /// Whether somebody still listens on TCP.
    listening: bool,
    written: u8,
    /// The ring, as far as it was ever filled and read.
    tail: u8,
    head: u8,
    word: Word,
    /// The flag by which the client learns in passing that it is taken.
    flag: bool,
    /// Whether there is, or was, a TCP connection.
    tcp: bool,
    /// Bytes in the TCP connection, and bytes of it delivered to an app.
    tcp_sent: u8,
    tcp_delivered: u8,
    /// Bytes delivered to an app over the lane.
    lane_delivered: u8,
    /// A write of the client's app has failed: what follows is lost with its knowledge.
    refused: bool,
}

/// What may be wrong.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Mistake {
    None,
    /// The server reads before it sets the flag.
    ReadsBeforeTaken,
    /// The client looks whether it was taken, and withdraws by a second step.
    LooksThenWithdraws,
    /// The client connects over TCP before it withdraws.
    ConnectsFirst,
    /// The server takes what the client has withdrawn.
    TakesWhatIsWithdrawn,
    /// The client offers the lane again although it has sent a part another way.
    OffersAgainLate,
    /// The client hands over what lay in the ring when it began, and not what came while it connected.
    NoLastLook,
    /// The client begins again although it was taken.
    IgnoresTaken,
    /// The switch is made with bytes left because TCP took only a part.
    SwitchesEarly,
}

impl World {
    const START: World = World {
        client: Client::Lane,
        server: Server::Queued,
        listening: true,
        written: 0,
        tail: 0,
        head: 0,
        word: Word::Offered,
        flag: false,
        tcp: false,
        tcp_sent: 0,
        tcp_delivered: 0,
        lane_delivered: 0,
        refused: false,
    };

    fn anchor_closed(&self) -> bool {
        self.server == Server::Gone
    }

    /// All states that one step leads to.
    fn steps(self, mistake: Mistake) -> Vec<World> {
        let mut next = Vec::new();
        self.app_writes(&mut next, mistake);
        self.client_steps(&mut next, mistake);
        self.server_steps(&mut next, mistake);
        // Whoever listens on TCP reads what arrives there, or stops listening.
        if self.tcp_delivered < self.tcp_sent {
            next.push(World { tcp_delivered: self.tcp_delivered + 1, ..self });
        }
        if self.listening && self.anchor_closed() && self.client == Client::Lane {
            next.push(World { listening: false, ..self });
        }
        next
    }

    fn app_writes(self, next: &mut Vec<World>, _mistake: Mistake) {
        if self.written == BYTES || self.refused {
            return;
        }
        let written = self.written + 1;
        match self.client {
            // A second thread may write while the first one connects, too.
            Client::Lane | Client::Sampled { .. } | Client::Connecting | Client::Handing(_) => {
                next.push(World { written, tail: self.tail + 1, ..self });
            }
            Client::Tcp => next.push(World { written, tcp_sent: self.tcp_sent + 1, ..self }),
            Client::Reset => next.push(World { refused: true, ..self }),
        }
    }

    fn client_steps(self, next: &mut Vec<World>, mistake: Mistake) {
        match self.client {
            Client::Lane if mistake == Mistake::LooksThenWithdraws => {
                next.push(World { client: Client::Sampled { taken: self.word == Word::Taken }, ..self });
            }
            Client::Lane if mistake == Mistake::ConnectsFirst && self.listening && !self.tcp => {
                next.push(World { tcp: true, ..self });
            }
            // Patience may end at any time, unless it is known to be taken.
            Client::Lane if !self.flag || self.anchor_closed() => next.push(self.withdraw(mistake)),
            Client::Sampled { taken: false } => {
                next.push(World { client: Client::Connecting, word: Word::Withdrawn, ..self });
            }
            Client::Sampled { taken: true } if self.anchor_closed() => {
                next.push(World { client: Client::Reset, ..self });
            }
            Client::Sampled { taken: true } => {}
            Client::Connecting => {
                if self.listening {
                    next.push(World { client: Client::Handing(0), tcp: true, ..self });
                } else {
                    next.push(World { client: Client::Reset, ..self });
                }
                // The queue is full, and the door stands as far as the client knows.
                self.offer_again(next);
            }
            Client::Handing(sent) => {
                let known = if mistake == Mistake::NoLastLook { self.tail.min(1) } else { self.tail };
                if sent < known {
                    next.push(World { client: Client::Handing(sent + 1), tcp_sent: self.tcp_sent + 1, ..self });
                }
                if sent == known || mistake == Mistake::SwitchesEarly {
                    next.push(World { client: Client::Tcp, ..self });
                }
                if mistake == Mistake::OffersAgainLate {
                    self.offer_again(next);
                }
            }
            Client::Lane | Client::Tcp | Client::Reset => {}
        }
    }

    /// One compare-and-swap, and what follows from it.
    fn withdraw(self, mistake: Mistake) -> World {
        match self.word {
            Word::Taken if mistake != Mistake::IgnoresTaken => match self.anchor_closed() {
                true => World { client: Client::Reset, ..self },
                false => self,
            },
            _ => World { client: Client::Connecting, word: Word::Withdrawn, ..self },
        }
    }

    fn offer_again(self, next: &mut Vec<World>) {
        if !self.anchor_closed() {
            next.push(World { client: Client::Lane, word: Word::Offered, ..self });
        }
    }

    fn server_steps(self, next: &mut Vec<World>, mistake: Mistake) {
        let then = |server| World { server, ..self };
        match self.server {
            Server::Queued => next.push(then(Server::Accepted)),
            Server::Accepted => next.push(then(Server::HelloRead)),
            Server::HelloRead => next.push(then(Server::Ready)),
            Server::Ready if self.word == Word::Offered || mistake == Mistake::TakesWhatIsWithdrawn => {
                next.push(World { word: Word::Taken, ..then(Server::Took) });
            }
            Server::Ready => next.push(then(Server::Gone)),
            Server::Took => next.push(World { flag: true, ..then(Server::Taken) }),
            Server::Taken | Server::Gone => {}
        }
        let reads =
            self.server == Server::Taken || self.server == Server::Ready && mistake == Mistake::ReadsBeforeTaken;
        if reads && self.head < self.tail {
            next.push(World { head: self.head + 1, lane_delivered: self.lane_delivered + 1, ..self });
        }
        // It may die at any step, and refuse a client at any step before the last.
        if self.server != Server::Gone {
            next.push(then(Server::Gone));
        }
    }

    /// What must hold in every state.
    fn check(&self) -> Result<(), &'static str> {
        if self.lane_delivered != 0 && self.tcp_sent != 0 {
            return Err("bytes went both ways");
        }
        if self.tcp && matches!(self.server, Server::Took | Server::Taken) {
            return Err("the server has the client twice");
        }
        if self.tcp_delivered > self.written || self.lane_delivered > self.written {
            return Err("a byte was delivered that was never written");
        }
        // Each path delivers from the first byte on, in order, so it is enough to look at the byte that TCP would
        // deliver next: bytes written after the switch must not overtake those left in the ring.
        if self.client == Client::Tcp && self.tcp_sent < self.written {
            return Err("a byte was left behind");
        }
        Ok(())
    }

    /// What must hold when nothing more can happen.
    fn check_rest(&self) -> Result<(), &'static str> {
        match self.client {
            Client::Lane if self.anchor_closed() => Err("the client waits for nobody"),
            Client::Lane if self.lane_delivered != self.written => Err("a byte is stuck in the lane"),
            Client::Tcp if self.tcp_delivered != self.written => Err("a byte is stuck on the way"),
            Client::Connecting | Client::Handing(_) | Client::Sampled { .. } => Err("the client is stuck"),
            _ => Ok(()),
        }
    }
}

/// Visits every state. Returns how many there are, or the way to the first that is wrong.
fn explore(mistake: Mistake) -> Result<usize, String> {
    let mut seen = HashSet::from([World::START]);
    let mut left = vec![(World::START, vec![World::START])];
    while let Some((world, way)) = left.pop() {
        let steps = world.steps(mistake);
        let verdict = world.check().and_then(|()| if steps.is_empty() { world.check_rest() } else { Ok(()) });
        if let Err(what) = verdict {
            return Err(format!("{what}: {way:#?}"));
        }
        for step in steps {
            if seen.insert(step) {
                let way = way.iter().copied().chain([step]).collect();
                left.push((step, way));
            }
        }
    }
    Ok(seen.len())
}

#[test]
fn no_interleaving_loses_or_repeats_a_byte() {
    let states = explore(Mistake::None).unwrap();
    assert!(states > 100, "only {states} states: the model has lost its steps");
}

#[test]
fn the_model_finds_each_mistake() {
    for mistake in [
        Mistake::ReadsBeforeTaken,
        Mistake::LooksThenWithdraws,
        Mistake::ConnectsFirst,
        Mistake::TakesWhatIsWithdrawn,
        Mistake::OffersAgainLate,
        Mistake::NoLastLook,
        Mistake::IgnoresTaken,
        Mistake::SwitchesEarly,
    ] {
        assert!(explore(mistake).is_err(), "{mistake:?} was not found");
    }
}
