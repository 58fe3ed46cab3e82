//! The model of `docs/design/0009-moving.md`: every order of steps of a client and a server whose connection moves from TCP to a lane, each of
//! which may give up where it may, have something to share, or die at each point.
//!
//! A state is what both know, what the two words in the lane say, and what is under way. All states that can be reached are visited. In each
//! the bytes that either end has read are the first of those that the other has sent, in their order; and a state with no successor but deaths is one in
//! which both have read all, so nobody sleeps for what does not come. An end reads only from what it would be woken by.

use std::collections::HashSet;

/// Bytes that the client sends, and the server.
const BYTES: [u8; 2] = [4, 3];
const CLIENT: usize = 0;
const SERVER: usize = 1;

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Word {
    Offered,
    Taken,
    Gone,
    Withdrawn,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum At {
    /// On TCP.
    Tcp,
    /// The client, within the call in which it goes: the anchor is in place; the seam is written; it has gone.
    Placed,
    Sewn,
    Left,
    /// The server, within the call in which it has read something, before it looks at the word.
    Looks,
    /// The server, within the call in which it follows: the seam is next.
    Follows,
    /// A lane, to which bytes still come over TCP.
    Crosses,
    Lane,
    Dead,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct State {
    at: [At; 2],
    word: Word,
    /// How many bytes of each end have gone over TCP when its ring begins.
    seam: [Option<u8>; 2],
    /// How many bytes each end has sent, and of those over TCP.
    sent: [u8; 2],
    tcp_sent: [u8; 2],
    /// What of each end is under way on TCP, has arrived there, and lies in its ring.
    flying: [Vec<u8>; 2],
    tcp: [Vec<u8>; 2],
    ring: [Vec<u8>; 2],
    /// What each end has read of the other, and of that over TCP.
    read: [Vec<u8>; 2],
    tcp_read: [u8; 2],
}

impl State {
    fn start() -> State {
        State {
            at: [At::Tcp; 2],
            word: Word::Offered,
            seam: [None; 2],
            sent: [0; 2],
            tcp_sent: [0; 2],
            flying: Default::default(),
            tcp: Default::default(),
            ring: Default::default(),
            read: Default::default(),
            tcp_read: [0; 2],
        }
    }

    fn with(&self, change: impl FnOnce(&mut State)) -> State {
        let mut next = self.clone();
        change(&mut next);
        next
    }

    fn send_over_tcp(&mut self, end: usize) {
        self.flying[end].push(self.sent[end]);
        self.sent[end] += 1;
        self.tcp_sent[end] += 1;
    }

    fn steps(&self) -> Vec<State> {
        let mut steps = Vec::new();
        for end in [CLIENT, SERVER] {
            if !self.flying[end].is_empty() {
                steps.push(self.with(|s| {
                    let byte = s.flying[end].remove(0);
                    s.tcp[end].push(byte);
                }));
            }
            self.talks(end, &mut steps);
        }
        self.client_moves(&mut steps);
        self.server_moves(&mut steps);
        steps
    }

    /// What an end does that sends and reads.
    fn talks(&self, end: usize, steps: &mut Vec<State>) {
        let peer = 1 - end;
        let is_lane = matches!(self.at[end], At::Crosses | At::Lane);
        if self.sent[end] < BYTES[end] {
            match self.at[end] {
                At::Tcp => steps.push(self.with(|s| s.send_over_tcp(end))),
                At::Crosses | At::Lane => steps.push(self.with(|s| {
                    s.ring[end].push(s.sent[end]);
                    s.sent[end] += 1;
                })),
                _ => {}
            }
        }
        if matches!(self.at[end], At::Tcp | At::Crosses) && !self.tcp[peer].is_empty() {
            steps.push(self.with(|s| {
                let byte = s.tcp[peer].remove(0);
                s.read[end].push(byte);
                s.tcp_read[end] += 1;
                if s.at[end] == At::Tcp && end == SERVER {
                    s.at[end] = At::Looks;
                }
            }));
        }
        if self.at[end] == At::Crosses && self.seam[peer] == Some(self.tcp_read[end]) {
            steps.push(self.with(|s| s.at[end] = At::Lane));
        }
        if is_lane && self.at[end] == At::Lane && !self.ring[peer].is_empty() {
            steps.push(self.with(|s| {
                let byte = s.ring[peer].remove(0);
                s.read[end].push(byte);
            }));
        }
    }

    fn client_moves(&self, steps: &mut Vec<State>) {
        let at = |at: At| self.with(|s| s.at[CLIENT] = at);
        match self.at[CLIENT] {
            At::Tcp => {
                if matches!(self.word, Word::Offered | Word::Taken) {
                    steps.push(self.with(|s| s.word = Word::Withdrawn));
                }
                if self.word == Word::Taken && self.flying[CLIENT].is_empty() && self.sent[CLIENT] < BYTES[CLIENT] {
                    steps.push(at(At::Placed));
                }
            }
            At::Placed => steps.push(self.with(|s| {
                s.seam[CLIENT] = Some(s.tcp_sent[CLIENT] + 1);
                s.at[CLIENT] = At::Sewn;
            })),
            // The compare-and-swap.
            At::Sewn if self.word == Word::Taken => steps.push(self.with(|s| {
                s.word = Word::Gone;
                s.at[CLIENT] = At::Left;
            })),
            At::Sewn => steps.push(at(At::Tcp)),
            At::Left => steps.push(self.with(|s| {
                s.send_over_tcp(CLIENT);
                s.at[CLIENT] = At::Crosses;
            })),
            _ => {}
        }
    }

    fn server_moves(&self, steps: &mut Vec<State>) {
        match self.at[SERVER] {
            At::Tcp => {
                match self.word {
                    Word::Offered => steps.push(self.with(|s| s.word = Word::Taken)),
                    Word::Taken => steps.push(self.with(|s| s.word = Word::Withdrawn)),
                    // It has something to share.
                    Word::Gone => steps.push(self.with(|s| s.at[SERVER] = At::Follows)),
                    Word::Withdrawn => {}
                }
            }
            At::Looks => steps.push(self.with(|s| {
                let due = s.word == Word::Gone && s.seam[CLIENT] == Some(s.tcp_read[SERVER]);
                s.at[SERVER] = if due { At::Follows } else { At::Tcp };
            })),
            At::Follows => steps.push(self.with(|s| {
                s.seam[SERVER] = Some(s.tcp_sent[SERVER]);
                s.at[SERVER] = At::Crosses;
            })),
            _ => {}
        }
    }

    fn deaths(&self) -> Vec<State> {
        let dies = |end: usize| self.with(|s| s.at[end] = At::Dead);
        [CLIENT, SERVER].into_iter().filter(|end| self.at[*end] != At::Dead).map(dies).collect()
    }

    fn check(&self) {
        for end in [CLIENT, SERVER] {
            let due: Vec<u8> = (0..self.read[end].len() as u8).collect();
            assert_eq!(self.read[end], due, "{self:?}");
        }
    }

    /// Nobody can do anything more.
    fn check_end(&self) {
        for end in [CLIENT, SERVER] {
            let peer = 1 - end;
            if self.at[end] == At::Dead {
                continue;
            }
            match self.at[peer] {
                // What a dead end has sent is read, but for what it was about to send.
                At::Dead => assert_eq!(self.read[end].len(), usize::from(self.sent[peer]), "{self:?}"),
                _ => assert_eq!(self.read[end].len(), usize::from(BYTES[peer]), "{self:?}"),
            }
        }
    }
}

#[test]
fn no_byte_is_lost_doubled_or_waited_for_in_vain_in_any_order_of_steps() {
    let mut seen = HashSet::from([State::start()]);
    let mut left = vec![State::start()];
    let (mut ends, mut moved) = (0, 0);
    while let Some(state) = left.pop() {
        state.check();
        let steps = state.steps();
        if steps.is_empty() {
            state.check_end();
            ends += 1;
            moved += usize::from(state.at == [At::Lane; 2]);
        }
        for next in steps.into_iter().chain(state.deaths()) {
            if seen.insert(next.clone()) {
                left.push(next);
            }
        }
    }
    assert!(seen.len() > 10_000 && ends > 100 && moved > 10, "{} {ends} {moved}", seen.len());
}
