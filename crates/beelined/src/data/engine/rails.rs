//! Our own rails: opened, offered, asked for news, and retired when they fail for good.
//!
//! 1. A port that cannot be opened is told and left out.
//! 2. A rail is asked when a descriptor of its has told news, or because only asking tells (`told`). For connections
//!    that come and go it is asked when their own descriptor has told: on the way of a message that would be a system
//!    call for nothing.
//! 3. One that does not even answer for a while ([`super::super::health`]) is retired: its links are lost, it is
//!    offered no more, and it is heard once in a while only, since closing links and rings leaves something to be told.

use beeline_fabric::{Completion, Event, Kind, Options, Port, Rail};
use beeline_topo::PeerRail;
use nix::sys::epoll::EpollFlags;

use super::super::health::{Asked, Failing, Healths};
use super::super::link::BUFFERS;
use super::super::record::MESSAGE_BYTES;
use super::{Engine, OpenRail, Tag, monotonic_ns};
use crate::log;
use crate::ports::describe;

/// Entries of a rail's completion queue: for some 340 links, of which each takes an entry for each of its receive
/// buffers and 32 more ([`Options::operations_own`]).
const COMPLETION_ENTRIES: usize = 32 << 10;
/// Completions handled in one round.
const COMPLETIONS_PER_ROUND: usize = 64;
/// Connections of a rail of which one round hears that they come or go: anybody may knock, as often as they like.
pub(super) const EVENTS_PER_ROUND: usize = 16;

impl Engine {
    /// Opens ports as rails, and offers them to all peers. A port that cannot be opened is told and left out.
    pub(super) fn open_rails(&mut self, ports: &[Port]) -> anyhow::Result<()> {
        for port in ports {
            let options = Options {
                message_bytes: MESSAGE_BYTES,
                receives: usize::from(BUFFERS),
                sends: usize::from(BUFFERS),
                completion_entries: COMPLETION_ENTRIES,
                ..Options::default()
            };
            let opened = Rail::open(port, options).and_then(|mut rail| Ok((rail.listen(0)?, rail)));
            match opened {
                Ok((address, rail)) => {
                    let id = u32::try_from(self.rails.len()).unwrap_or(u32::MAX);
                    let index = self.rails.len();
                    self.watch(rail.event_fd(), EpollFlags::EPOLLIN, Tag::RailEvents(index))?;
                    self.watch(rail.completion_fd(), EpollFlags::EPOLLIN, Tag::Rail(index))?;
                    log::line(format_args!("rail {id}: {} listens on {address}", port.name()));
                    let told = port.provider == "tcp";
                    self.rails.push(OpenRail {
                        id,
                        described: describe(port),
                        rail,
                        trouble: None,
                        healths: Healths::default(),
                        failures: log::Seldom::default(),
                        retired: false,
                        told,
                        ready: true,
                        events_ready: true,
                        reads_are_emulated: port.provider == "tcp",
                        register_again_ns: 0,
                    });
                }
                Err(error) => log::line(format_args!("cannot use {}: {error}", port.name())),
            }
        }
        self.offer_rails();
        Ok(())
    }

    fn offer_rails(&mut self) {
        if let Err(why) = self.control.announce_rails(self.our_offer()) {
            log::line(format_args!("cannot offer our rails: {why}"));
        }
    }

    /// The rails that peers may connect to.
    pub(super) fn our_offer(&self) -> Vec<crate::control::message::Rail> {
        let offered = self.rails.iter().filter(|rail| !rail.retired).map(|rail| crate::control::message::Rail {
            id: rail.id,
            port: rail.rail.listening_on().map_or(0, |address| address.port()),
            description: PeerRail::from(&rail.described),
        });
        offered.collect()
    }

    /// A rail did not answer what it was asked.
    pub(super) fn rail_failed(&mut self, index: usize, asked: Asked, error: &beeline_fabric::Error) {
        let now_ns = self.now_ns;
        let Some(rail) = self.rails.get_mut(index) else { return };
        let Some(health) = rail.healths.get_mut(asked as usize) else { return };
        match health.failed(now_ns) {
            Failing::First => rail.failures.line(format_args!("rail {} fails: {error}", rail.id)),
            Failing::Still => {}
            Failing::Gone => self.retire_rail(index, &error.to_string()),
        }
    }

    /// A rail fails for good: its links are lost, and nobody uses it or hears of it any more.
    fn retire_rail(&mut self, index: usize, why: &str) {
        let Some(rail) = self.rails.get_mut(index).filter(|rail| !rail.retired) else { return };
        rail.retired = true;
        rail.described.up = false;
        rail.trouble = Some(format!("given up: {why}"));
        log::line(format_args!("rail {} is given up: {why}", rail.id));
        if let Some(OpenRail { rail, .. }) = self.rails.get(index) {
            self.unwatch(rail.event_fd());
            self.unwatch(rail.completion_fd());
        }
        for link in 0..self.links.len() {
            if self.links.get(link).and_then(Option::as_ref).is_some_and(|link| link.rail == index) {
                self.link_lost(link, "its rail is given up");
            }
        }
        self.offer_rails();
    }

    /// Closing a link or a ring leaves something to be told, by a rail that is given up as well.
    pub(super) fn care_for_retired(&mut self) {
        for index in 0..self.rails.len() {
            if self.rails.get(index).is_none_or(|rail| !rail.retired) {
                continue;
            }
            let mut completions = Vec::new();
            if let Some(rail) = self.rails.get_mut(index) {
                // That it fails is known.
                let _ = rail.rail.poll(&mut completions, usize::MAX);
            }
            for completion in completions {
                self.completed(index, completion);
            }
            while let Some(Ok(Some(event))) = self.rails.get_mut(index).map(|rail| rail.rail.next_event()) {
                self.rail_event(index, event);
            }
        }
    }

    pub(super) fn poll_rails(&mut self, all: bool) -> bool {
        let mut busy = false;
        for index in 0..self.rails.len() {
            let Some(rail) = self.rails.get_mut(index) else { break };
            let (ready, events_ready) = (std::mem::take(&mut rail.ready), std::mem::take(&mut rail.events_ready));
            if rail.retired || rail.told && !ready && !events_ready && !all {
                continue;
            }
            // Connections come and go rarely, their descriptor tells, and to ask is a system call.
            if events_ready || self.asks_for_events {
                busy |= self.hear_events(index) != 0;
            }
            let mut completions = std::mem::take(&mut self.completions);
            if let Some(rail) = self.rails.get_mut(index) {
                let poll = || rail.rail.poll(&mut completions, COMPLETIONS_PER_ROUND);
                match self.own_time.outside(monotonic_ns, poll) {
                    Ok(_) => rail.answered(Asked::Completions),
                    Err(error) => self.rail_failed(index, Asked::Completions, &error),
                }
            }
            let some = !completions.is_empty();
            // That a message of ours is on its way concerns those who waited for room, who are looked at in this very
            // round.
            let is_news = completions.len() >= COMPLETIONS_PER_ROUND
                || completions.iter().any(|done| !matches!(done, Completion::Done { kind: Kind::Send, .. }));
            if some {
                self.now_ns = monotonic_ns();
            }
            for completion in completions.drain(..) {
                self.completed(index, completion);
            }
            self.completions = completions;
            if some {
                busy |= is_news;
                self.start_reads(index);
                let waiting = std::mem::take(&mut self.waiting);
                self.heat_listed(waiting);
            }
        }
        busy
    }

    /// Hears of connections that come and go, and says of how many. After as many as a round may hear of it is the
    /// others' turn, and the next round hears more.
    pub(super) fn hear_events(&mut self, index: usize) -> usize {
        for heard in 0..EVENTS_PER_ROUND {
            let Some(event) = self.next_event(index) else { return heard };
            self.rail_event(index, event);
        }
        if let Some(rail) = self.rails.get_mut(index) {
            rail.events_ready = true;
        }
        EVENTS_PER_ROUND
    }

    fn next_event(&mut self, index: usize) -> Option<Event> {
        let rail = self.rails.get_mut(index)?;
        match rail.rail.next_event() {
            Ok(event) => {
                rail.answered(Asked::Events);
                event
            }
            Err(error) => {
                self.rail_failed(index, Asked::Events, &error);
                None
            }
        }
    }
}
