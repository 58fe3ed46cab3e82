//! One connection: an end of a lane on this host, and the two directions in which its bytes are mirrored.
//!
//! ```text
//!   app ══ ring ══> Sender ── records, writes ──> other bridge       (outward)
//!   app <══ ring ══ Reorder <── records, writes ── other bridge      (inward)
//! ```
//!
//! # Rules
//!
//! 1. Outward bytes stay in the app's ring until the other bridge has them ([`Sender`]). `ring_offset` is the offset of
//!    the byte at the ring's front.
//! 2. An urgent byte leaves the ring before it is acknowledged, because nothing behind it can be seen otherwise; it is
//!    kept here until it is. It goes out by itself when all before it is acknowledged, which the other bridge is urged
//!    to do at once.
//! 3. Inward bytes are written as on any lane while they come in order and no other bridge writes into the ring by
//!    itself. From then on each byte has its place in the ring for good (`in_place`).
//! 4. The app's FIN, close or reset is told when all its bytes were sent; the other end's is said to the app when all
//!    bytes before it were written. A reset overtakes bytes, as TCP's does. When both directions have ended so, and
//!    the other bridge has all bytes, there is nothing to come, and the app counts as closed.
//! 5. The lane is given back as soon as the app has closed and all is sent and acknowledged, or the other end has
//!    closed and all is written; if a network card knows the rings, not before the other bridge has told its end, which
//!    it does when it uses them no more. The connection itself lives until both bridges have told the end and heard it.
//! 6. What the app's memory says and cannot be resets this connection; so does a breach by the other bridge, which is
//!    counted.

mod inward;
mod outward;
#[cfg(test)]
mod tests;

use beeline_meeting::bridge::{Fault, LaneEnd, flags};
use beeline_topo::stripe::{PIECES_MAX, Reorder};

use super::sender::{Breach, Sender};

/// Flags of a front that end something.
const ENDS: u32 = flags::FIN | flags::CLOSED | flags::RESET;
/// Flags after which nothing more is sent or taken.
pub const OVER: u32 = flags::CLOSED | flags::RESET;

/// How far the making of a connection has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stage {
    /// We have asked the other bridge, and the client waits.
    Asked,
    /// It stands.
    Open,
}

/// What comes next in the outward direction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outward {
    /// Nothing at the moment.
    Nothing,
    /// Bytes: the offset of the first, how many there are, and where in the ring they stand.
    Bytes { offset: u64, bytes: u64, position: u32 },
    /// One urgent byte.
    Urgent { offset: u64, byte: u8 },
    /// No bytes: that what was sent before this offset is to be acknowledged at once, as an urgent byte waits for it.
    Urge { offset: u64 },
    /// The end.
    End { offset: u64, flags: u32 },
}

/// Why a connection is reset.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Broken {
    /// The app's memory or anchor broke the rules of lanes.
    App,
    /// The other bridge broke the rules of this protocol.
    Bridge(&'static str),
}

impl From<Breach> for Broken {
    fn from(breach: Breach) -> Self {
        Broken::Bridge(breach.0)
    }
}

/// See the module.
pub struct Connection {
    /// Our number.
    pub number: u64,
    /// The other bridge's number; 0 while it is not known.
    pub theirs: u64,
    pub stage: Stage,
    lane: Option<LaneEnd>,
    ring_bytes: u64,
    /// What the other end's ring holds, either way.
    their_ring_bytes: u64,
    /// The app's end of the anchor is closed.
    gone: bool,
    /// The end of what the app had written at the last look.
    seen_tail: u32,
    /// What the app had said of its end at the last look.
    seen_flags: u32,

    sender: Sender,
    ring_offset: u64,
    urgent: Option<(u64, u8)>,
    /// Before this offset the other bridge was urged to acknowledge.
    told_urge: u64,
    /// The flags that were told.
    told_end: u32,
    /// The offset that was told with them.
    told_end_at: u64,
    /// They may have been lost with a link.
    end_lost: bool,
    /// The connection is reset, and the other bridge is to be told.
    broken: bool,

    reorder: Reorder,
    in_place: bool,
    told_placed: u64,
    told_limit: u64,
    /// Pieces that were placed since that was told.
    untold_pieces: usize,
    /// What stands before this offset is acknowledged at once.
    heard_urge: u64,
    /// What the other end said of its end.
    heard_end: Option<(u64, u32)>,
    /// The flags that were said to the app.
    said_end: u32,
}

impl Connection {
    /// A connection over `lane`; the other bridge holds `window` bytes.
    #[must_use]
    pub fn new(number: u64, stage: Stage, lane: LaneEnd, window: u64) -> Connection {
        let ring_bytes = u64::from(lane.ring_bytes());
        Connection {
            number,
            theirs: 0,
            stage,
            lane: Some(lane),
            ring_bytes,
            their_ring_bytes: window,
            gone: false,
            seen_tail: 0,
            seen_flags: 0,
            sender: Sender::new(window),
            ring_offset: 0,
            urgent: None,
            told_urge: 0,
            told_end: 0,
            told_end_at: 0,
            end_lost: false,
            broken: false,
            reorder: Reorder::new(ring_bytes, PIECES_MAX),
            in_place: false,
            told_placed: 0,
            told_limit: ring_bytes,
            untold_pieces: 0,
            heard_urge: 0,
            heard_end: None,
            said_end: 0,
        }
    }

    /// The lane, as long as there is one.
    #[must_use]
    pub fn lane(&self) -> Option<&LaneEnd> {
        self.lane.as_ref()
    }

    /// Bytes that this end may hold for the app.
    #[must_use]
    pub fn window(&self) -> u64 {
        self.ring_bytes
    }

    /// Bells that were rung for the app.
    #[must_use]
    pub fn bells(&self) -> u32 {
        self.lane.as_ref().map_or(0, LaneEnd::bells_rung)
    }

    /// Bytes sent, and bytes received.
    #[must_use]
    pub fn bytes(&self) -> (u64, u64) {
        (self.sender.sent(), self.reorder.prefix())
    }

    /// The other bridge has answered.
    pub fn opened(&mut self, theirs: u64, window: u64) {
        self.theirs = theirs;
        self.stage = Stage::Open;
        self.their_ring_bytes = window;
        self.sender = Sender::new(window);
        if self.lane.as_ref().is_some_and(|lane| !lane.say_yes()) {
            // The client has gone another way.
            self.gone = true;
        }
    }

    /// The kernel reports that the app's end of the anchor is closed.
    pub fn note_gone(&mut self) {
        self.gone = true;
    }

    /// Whether the lane can be given back (rule 5). No network card may know its rings any more.
    #[must_use]
    pub fn is_served(&self) -> bool {
        let app_closed = self.told_end & OVER != 0 && (self.sender.is_idle() || self.told_end & flags::RESET != 0);
        app_closed || self.said_end & OVER != 0
    }

    /// Whether nobody on this host reads what comes, so that nothing need be fetched any more.
    #[must_use]
    pub fn is_leaving(&self) -> bool {
        self.lane.is_none() || self.gone || self.broken || (self.seen_flags | self.told_end) & OVER != 0
    }

    /// Whether the other bridge has told the end of its direction, after which it uses our rings no more.
    #[must_use]
    pub fn heard_over(&self) -> bool {
        self.heard_end.is_some_and(|(_, ends)| ends & OVER != 0)
    }

    /// Whether this bridge has told the end of its direction, so that the other one may take its rings back.
    #[must_use]
    pub fn told_over(&self) -> bool {
        self.told_end & OVER != 0
    }

    /// Whether it is reset, and nothing that comes breaks it any more.
    #[must_use]
    pub fn is_broken(&self) -> bool {
        self.broken
    }

    /// Takes the lane to give it back.
    pub fn take_lane(&mut self) -> Option<LaneEnd> {
        self.lane.take()
    }

    /// Whether both bridges have told the end and heard it.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.lane.is_none() && self.heard_over() && self.told_end & OVER != 0
    }

    /// The other bridge is gone, or knows nothing of the connection: nobody hears its end, and none will be heard.
    pub fn unheard(&mut self) {
        self.told_end |= flags::RESET | flags::CLOSED;
        self.end_lost = false;
        let offset = self.reorder.prefix();
        self.heard_end = Some((offset, flags::RESET | flags::CLOSED));
    }

    /// The other bridge has forgotten the connection. Whether that breaks it: if the app here has closed, and the other
    /// end has all that it sent, then only the other end's own farewell was lost, with a link, and nobody waits for it.
    #[must_use]
    pub fn is_broken_unheard(&mut self) -> bool {
        let has_left = self.told_end & OVER != 0 && self.sender.is_idle();
        self.unheard();
        !has_left
    }

    /// Nothing comes of it: the client was refused, and the other bridge is told that there is no such connection when
    /// it speaks about it.
    pub fn give_up(&mut self) {
        self.stage = Stage::Open;
        self.reset();
        self.unheard();
    }

    /// Resets both ends: the app is told, and the other bridge will be.
    pub fn reset(&mut self) {
        self.said_end |= flags::RESET | flags::CLOSED;
        if let Some(lane) = &self.lane {
            lane.say(flags::RESET | flags::CLOSED);
        }
        self.broken = true;
    }
}

/// The position of `offset` in a ring where `known` stands at `position`.
fn position_of(position: u32, known: u64, offset: u64) -> u32 {
    // Rings are smaller than 2^32 bytes, and positions are reduced to the ring where they are used.
    position.wrapping_add(offset.wrapping_sub(known) as u32)
}

/// An app that is gone takes nothing and breaks no rule.
fn absent_is_fine(fault: Fault) -> Result<(), Fault> {
    if fault == Fault::Gone { Ok(()) } else { Err(fault) }
}

fn absent_is_nothing(fault: Fault) -> Result<Option<u8>, Fault> {
    absent_is_fine(fault).map(|()| None)
}
