//! Clients of this host, and connections that are being made.

use std::os::fd::{AsRawFd, BorrowedFd, RawFd};

use beeline_meeting::bridge::{self, LaneEnd};
use beeline_stats::Reason;
use beeline_wire::{ConnName, Verdict};
use nix::errno::Errno;
use nix::sys::epoll::EpollFlags;

use super::super::connection::{Connection, Stage};
use super::super::losses::Losses;
use super::super::quota::Exhausted;
use super::super::record::{Record, Refusal};
use super::compared::MEASURED;
use super::{Engine, Entry, Large, Tag};
use crate::log;

/// How long a client that has come through the door may say nothing.
const SILENCE_NS: u64 = 1_000_000_000;
/// How many such clients there may be.
const SILENT_MAX: usize = 1024;
/// How long a client waits at most (`PATIENCE_NS` of the library's `bridged.rs`).
pub(super) const PATIENCE_NS: u64 = 500_000_000;
/// Clients taken in at a time.
const CLIENTS_PER_LOOK: usize = 64;

impl Engine {
    /// Takes in the clients that wait at the door.
    pub(super) fn take_clients(&mut self) {
        for _ in 0..CLIENTS_PER_LOOK {
            if bridge::has_hostile_clients() {
                return self.shut_door();
            }
            let Some(door) = self.door.open() else { return };
            match nix::sys::socket::accept4(
                door.as_raw_fd(),
                nix::sys::socket::SockFlag::SOCK_CLOEXEC | nix::sys::socket::SockFlag::SOCK_NONBLOCK,
            ) {
                // Most have spoken already.
                Ok(fd) if self.take_client(fd) => {}
                // Somebody knocks and says nothing, often.
                Ok(fd) if self.silent.len() >= SILENT_MAX => close(fd),
                Ok(fd) => {
                    self.silent.insert(fd, self.now_ns.saturating_add(SILENCE_NS));
                    if self.watch_silent(fd).is_err() {
                        self.silent.remove(&fd);
                        close(fd);
                    }
                }
                Err(Errno::EAGAIN) => return,
                Err(Errno::EINTR | Errno::ECONNABORTED) => {}
                // Out of descriptors or memory: the door stays readable, and looking again at once would be a spin.
                Err(_) => return self.rest_door(),
            }
        }
    }

    /// Wakes the loop when a client speaks that has come and said nothing, or leaves.
    fn watch_silent(&self, client: RawFd) -> anyhow::Result<()> {
        // SAFETY: open: such clients are this engine's, which unwatches each before it answers, passes on or closes it.
        let fd = unsafe { BorrowedFd::borrow_raw(client) };
        self.watch(fd, EpollFlags::EPOLLIN | EpollFlags::EPOLLRDHUP, Tag::Silent(client))
    }

    /// It is answered, passed on or closed now.
    pub(super) fn unwatch_silent(&self, client: RawFd) {
        // SAFETY: as above.
        self.unwatch(unsafe { BorrowedFd::borrow_raw(client) });
    }

    /// A client that was silent has spoken, or left.
    pub(super) fn hear_client(&mut self, fd: RawFd) {
        if bridge::has_hostile_clients() {
            // Each that is heard may cost a process.
            return self.shut_door();
        }
        if self.silent.contains_key(&fd) {
            self.unwatch_silent(fd);
            if self.take_client(fd) {
                self.silent.remove(&fd);
            } else if self.watch_silent(fd).is_err() {
                self.silent.remove(&fd);
                close(fd);
            }
        }
    }

    /// Takes a client's hello. `false` while it says nothing.
    fn take_client(&mut self, fd: RawFd) -> bool {
        match bridge::take_client(fd) {
            None => return false,
            Some(Ok((name, lane))) => self.ask(name, lane),
            Some(Err(verdict)) => {
                self.count_refusal(verdict);
                bridge::answer(fd, verdict);
                close(fd);
            }
        }
        true
    }

    fn count_refusal(&mut self, verdict: Verdict) {
        if let Some(count) = self.refusals.get_mut(usize::from(verdict.byte())) {
            *count = count.saturating_add(1);
        }
    }

    /// Asks the bridge that speaks for the destination.
    fn ask(&mut self, name: ConnName, lane: LaneEnd) {
        let server = name.server.address();
        let peer = self.control.peer_for(server.ip());
        let index = self.peers.iter().position(|known| known.as_ref().is_some_and(|known| Some(known.id) == peer));
        let Some(index) = index else { return self.refuse(lane, Verdict::NoPeer) };
        if self.peers.get(index).and_then(Option::as_ref).is_none_or(|peer| peer.links.is_empty()) {
            return self.refuse(lane, Verdict::NoRail);
        }
        if self.leaving.is_some() || self.peers.get(index).and_then(Option::as_ref).is_some_and(|peer| peer.leaves) {
            return self.refuse(lane, Verdict::Leaving);
        }
        if self.is_slower(index, server) {
            return self.refuse(lane, Verdict::Slower);
        }
        let cpu = lane.peer_cpu();
        match self.enter(name, lane, index, Stage::Asked, 0, cpu) {
            Ok(number) => {
                if let Some(entry) = self.connections.get_mut(number) {
                    entry.deadline_ns = self.now_ns.saturating_add(PATIENCE_NS);
                    entry.ask_again = true;
                }
                self.choose_home(number, None);
                self.heat(number);
            }
            Err(lane) => self.refuse(*lane, Verdict::Full),
        }
    }

    fn refuse(&mut self, lane: LaneEnd, verdict: Verdict) {
        self.rang = true;
        self.count_refusal(verdict);
        bridge::answer(lane.anchor(), verdict);
        lane.retire();
    }

    /// Enters a connection in the table and watches its anchor.
    pub(super) fn enter(
        &mut self,
        name: ConnName,
        lane: LaneEnd,
        peer: usize,
        stage: Stage,
        window: u64,
        cpu: Option<u32>,
    ) -> Result<u64, Box<LaneEnd>> {
        if !self.has_room(peer) {
            return Err(Box::new(lane));
        }
        let losses = self.losses_from(peer);
        let anchor = lane.anchor();
        if self.few_cpus {
            lane.ask_for_cpu();
        }
        let mut lane = Some(lane);
        let since_ns = self.now_ns;
        let number = self.connections.insert(|number| {
            #[expect(clippy::expect_used, reason = "called at most once, with the lane still there")]
            let lane = lane.take().expect("a lane");
            Entry {
                connection: Connection::new(number, stage, lane, window),
                peer,
                name,
                cpu,
                home: None,
                loads: None,
                stripe: Vec::new(),
                advanced_ns: 0,
                grants: Vec::new(),
                granted: Vec::new(),
                rings: Vec::new(),
                large: Large::default(),
                closing: 0,
                losses,
                ask_again: false,
                answer_again: false,
                probe: name.server.address() == MEASURED,
                accepted: stage == Stage::Open,
                in_flight: 0,
                waits: None,
                hot: false,
                owes: false,
                idle: 0,
                since_ns,
                deadline_ns: 0,
                said_ns: 0,
                awaited: false,
            }
        });
        let Some(number) = number else {
            self.leave_room(peer);
            return Err(Box::new(lane.take().ok_or(()).unwrap_or_else(|()| unreachable!("the table was full"))));
        };
        let edges = EpollFlags::EPOLLIN | EpollFlags::EPOLLOUT | EpollFlags::EPOLLRDHUP | EpollFlags::EPOLLET;
        // SAFETY: the lane's own, which has just been entered in the table with its connection.
        let anchor = unsafe { BorrowedFd::borrow_raw(anchor) };
        if self.watch(anchor, edges, Tag::Connection(number)).is_err() {
            // Out of memory. Its bells would not be heard.
            log::line("cannot watch a lane's anchor");
            let entry = self.connections.remove(number);
            self.leave_room(peer);
            if let Some(lane) = entry.and_then(|mut entry| entry.connection.take_lane()) {
                return Err(Box::new(lane));
            }
        }
        Ok(number)
    }

    /// Takes room for a connection with a peer, if there is some, and it knows of most links that are lost.
    fn has_room(&mut self, peer: usize) -> bool {
        let limit = self.tunables.peer_connections_max;
        let Some(Some(peer)) = self.peers.get_mut(peer) else { return false };
        if peer.words.are_too_many() {
            return false;
        }
        let entered = peer.quota.enter(limit);
        if entered == Err(Exhausted { first: true }) {
            log::line(format_args!(
                "there are {limit} connections with {}, as many as may be (peer_connections_max): others are left to TCP",
                peer.name
            ));
        }
        entered.is_ok()
    }

    /// The losses with which a connection begins: of links that the peer may still use.
    fn losses_from(&self, peer: usize) -> Losses {
        let peer = self.peers.get(peer).and_then(Option::as_ref);
        peer.map_or_else(Losses::default, |peer| Losses::owing(peer.words.alone()))
    }

    /// Gives the room of a connection back.
    pub(super) fn leave_room(&mut self, peer: usize) {
        if let Some(Some(peer)) = self.peers.get_mut(peer) {
            peer.quota.leave();
        }
    }

    /// A peer asks for a connection to a server of this host.
    pub(super) fn asked(
        &mut self,
        link: usize,
        from: u64,
        window: u64,
        rail: u32,
        client: std::net::SocketAddr,
        server: std::net::SocketAddr,
    ) {
        let Some(peer) = self.links.get(link).and_then(Option::as_ref).map(|link| link.peer) else { return };
        if let Some(&number) = self.theirs.get(&(peer, from)) {
            // Asked before, and the answer was lost.
            if let Some(entry) = self.connections.get_mut(number) {
                entry.answer_again = true;
            }
            return self.heat(number);
        }
        match self.serve(peer, from, window, client, server) {
            Ok(number) => {
                self.rang = true;
                self.theirs.insert((peer, from), number);
                if let Some(entry) = self.connections.get_mut(number) {
                    entry.connection.theirs = from;
                }
                self.said_hello(number);
                self.choose_home(number, Some(rail));
                self.heat(number);
            }
            Err(why) => {
                if let Some(Some(peer)) = self.peers.get_mut(peer) {
                    peer.refused = peer.refused.saturating_add(1);
                }
                self.answer(link, Record::Refused { to: from, why });
            }
        }
    }

    pub(super) fn serve(
        &mut self,
        peer: usize,
        from: u64,
        window: u64,
        client: std::net::SocketAddr,
        server: std::net::SocketAddr,
    ) -> Result<u64, Refusal> {
        let id = self.peers.get(peer).and_then(Option::as_ref).map(|peer| peer.id).ok_or(Refusal::NotYours)?;
        let plausible = from != 0 && client.port() != 0 && (1..=1 << 30).contains(&window);
        // What listens on an address that no peer was told of, as on loopback, is meant for this host alone.
        let may_reach = server == MEASURED || self.control.speaks_for_own(server.ip());
        if !plausible || !may_reach || !self.control.speaks_for(id, client.ip()) {
            return Err(Refusal::NotYours);
        }
        if self.leaving.is_some() {
            return Err(Refusal::Leaving);
        }
        let lane = match server == MEASURED {
            true => self.serve_measuring(),
            false => bridge::connect_for(client.into(), server.into()).map_err(refusal_for),
        }?;
        let name = ConnName { client: client.into(), server: server.into() };
        // Even where a quick server has shown its CPU already, the client's choice is one for both (rule 5 of
        // `choose`).
        self.enter(name, lane, peer, Stage::Open, window, None).map_err(|lane| {
            lane.say(bridge::flags::RESET | bridge::flags::CLOSED);
            lane.retire();
            Refusal::Full
        })
    }

    /// A peer has made a connection that we asked for.
    pub(super) fn answered(&mut self, to: u64, from: u64, window: u64, rail: u32) {
        let plausible = from != 0 && (1..=1 << 30).contains(&window);
        let Some(entry) = self.connections.get_mut(to).filter(|_| plausible) else { return };
        if entry.connection.stage == Stage::Asked {
            entry.connection.opened(from, window);
            entry.ask_again = false;
            if !entry.probe {
                self.counts.opened = self.counts.opened.saturating_add(1);
            }
            self.rang = true;
            self.follow(to, rail);
        }
        self.heat(to);
    }

    /// A peer has refused a connection that we asked for.
    pub(super) fn declined(&mut self, to: u64, why: Refusal) {
        let verdict = match why {
            Refusal::NoDoor => Verdict::NoDoor,
            Refusal::NotYours => Verdict::Rejected,
            Refusal::Full => Verdict::Full,
            Refusal::Leaving => Verdict::Leaving,
        };
        if self.connections.get(to).is_some_and(|entry| entry.connection.stage == Stage::Asked) {
            self.drop_asked(to, verdict);
        }
    }

    /// Gives up a connection that was asked for.
    pub(super) fn drop_asked(&mut self, number: u64, verdict: Verdict) {
        let Some(entry) = self.connections.get_mut(number) else { return };
        let Some(lane) = entry.connection.lane() else { return };
        bridge::answer(lane.anchor(), verdict);
        // Bytes that overtook the answer may have made the ring known to a network card: the usual way out waits for
        // that.
        entry.connection.give_up();
        let is_probe = entry.probe;
        self.rang = true;
        if !is_probe {
            self.count_refusal(verdict);
        }
        self.heat(number);
        if self.finish(number) && !is_probe {
            self.counts.closed = self.counts.closed.saturating_sub(1);
        }
    }

    /// Drops clients that say nothing, questions that nobody answers, and hellos that nobody takes.
    pub(super) fn care_for_clients(&mut self) {
        let hostile = bridge::has_hostile_clients();
        if hostile {
            self.shut_door();
        }
        self.care_for_door(hostile);
        let now_ns = self.now_ns;
        let late: Vec<RawFd> =
            self.silent.iter().filter(|(_, deadline)| **deadline < now_ns).map(|(fd, _)| *fd).collect();
        for fd in &late {
            self.silent.remove(fd);
            // Whoever closes it for us may have it for long, and as long the kernel would tell of it.
            self.unwatch_silent(*fd);
        }
        bridge::close_clients(late);
        let is_late = |entry: &Entry| {
            (entry.connection.stage == Stage::Asked || entry.said_ns != 0) && entry.deadline_ns < now_ns
        };
        let late: Vec<(u64, Stage)> = self
            .connections
            .iter()
            .filter(|(_, entry)| is_late(entry))
            .map(|(number, entry)| (number, entry.connection.stage))
            .collect();
        for (number, stage) in late {
            match stage {
                Stage::Asked => self.drop_asked(number, Verdict::NoRail),
                Stage::Open => self.not_taken(number),
            }
        }
        self.care_for_hellos();
    }
}

/// Why a server of this host is not reached.
fn refusal_for(reason: Reason) -> Refusal {
    match reason {
        Reason::NotLocal => Refusal::NotYours,
        Reason::MemoryShort
        | Reason::DescriptorsShort
        | Reason::MapFailed
        | Reason::AddressInUse
        | Reason::DoorFull => Refusal::Full,
        _ => Refusal::NoDoor,
    }
}

pub(super) fn close(fd: RawFd) {
    bridge::close_client(fd);
}
