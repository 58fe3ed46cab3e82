//! The side: the state of one end of a lane, shared by its holders and never shown to the peer.
//!
//! Valid when zeroed. Everything is atomic because several processes may map it; what several fields must
//! agree on is changed under `tx_lock` or `rx_lock`. A holder that turns hostile after a privilege drop can
//! spoil this connection, and nothing else: no field is a pointer or an index that is used unchecked.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use core::sync::atomic::{
    AtomicI32, AtomicU16, AtomicU32, AtomicU64,
    Ordering::{AcqRel, Acquire, Relaxed, Release},
};

pub use beeline_lane::force_peer_look;
use beeline_lane::{End, LaneMemory, RxState, Storage, TxState, flags};

use crate::Errno;
use crate::lock::shared::SharedLock;

mod linger_cell;
mod sharers;
mod wide;

pub use linger_cell::LingerCell;
pub use wide::{store_name, store_rate};

/// Options an app may set on one connection and read back.
pub const OPTIONS: usize = 32;

/// See the module.
#[repr(C)]
pub struct SideState {
    /// The writing direction.
    pub tx: TxState,
    /// Keeps `rx` on a line of its own.
    pub apart: AtomicU64,
    /// The reading direction, which fills a line.
    pub rx: RxState,
    /// Processes that hold this end.
    pub holders: AtomicU32,
    /// `O_NONBLOCK` of the description.
    pub nonblock: AtomicU32,
    /// What was shut down and what the peer did: bits of [`state`].
    pub state: AtomicU32,
    /// `SO_ERROR`.
    pub error: AtomicI32,
    /// Wake-ups so far that were not about data or room: each `shutdown` here, the peer's FIN, a reset. To an
    /// edge-triggered epoll each is an edge, even where the state was the same before (`sk_state_change`).
    pub changes: AtomicU32,
    /// Arrivals so far that the peer's tail does not count: those while `SO_RCVLOWAT` is above one, and each setting of
    /// it that finds enough to read (`io/low_water.rs`).
    pub arrivals: AtomicU32,
    /// The peer's tail when `arrivals` was counted last.
    pub counted_tail: AtomicU32,
    /// The peer's tail from which on `SO_RCVLOWAT` has been above one; each byte before it was an arrival.
    pub low_water_tail: AtomicU32,
    /// `SO_RCVLOWAT` in bytes; 0 for one, [`LOWERED`] after it was more. With [`PEEKED`], for the sake of the quick
    /// path, which has one look at it.
    rcv_lowat: AtomicU32,
    /// `SO_LINGER`.
    pub linger: LingerCell,
    /// `SO_RCVTIMEO` in nanoseconds; 0 means none.
    pub rcv_timeout_ns: AtomicU64,
    /// `SO_SNDTIMEO` in nanoseconds; 0 means none.
    pub snd_timeout_ns: AtomicU64,
    /// `AF_INET` or `AF_INET6`: the family in which the app sees its addresses.
    pub family: AtomicU32,
    /// This end's address.
    pub local: Address,
    /// The peer's address.
    pub remote: Address,
    /// Integer options, by level and name.
    pub options: [OptionValue; OPTIONS],
    /// How a new holder finds the rest.
    pub origin: Origin,
    /// The processes that share the end, by their identities, 0 for a free place (`sharers`, relays).
    pub sharers: [AtomicU32; SHARERS],
    /// Where the socket of an end that was demoted is to be had.
    pub gate: Gate,
    /// The urgent byte that was counted last in `arrivals`, by its number.
    pub counted_urgent: AtomicU32,
    /// Bytes held because they were peeked, by count: from here on (`io/peeked.rs`).
    pub peeked_from: AtomicU32,
    /// Up to here.
    pub peeked_to: AtomicU32,
    /// The urgent byte that was peeked last: its count, a bit that says that there is one, and the byte.
    pub peeked_urgent: AtomicU64,
    /// Bits of [`extra`]: what the app has asked for that few ask for.
    pub extras: AtomicU32,
    /// Sends so far whose completion is to be told (`MSG_ZEROCOPY`). The low half of each count is the kernel's number.
    pub completed: AtomicU64,
    /// Those of them that have been told.
    pub completed_told: AtomicU64,
    /// Bytes that the peer has fetched from this end's memory, past the ring.
    pub lent: AtomicU64,
    /// Bytes that this end has fetched from the peer's.
    pub fetched: AtomicU64,
    /// Serialises writers of different processes.
    pub tx_lock: SharedLock,
    /// Serialises readers of different processes.
    pub rx_lock: SharedLock,
    /// Serialises those who arm for room, which is system calls, so that nobody who has room waits for them.
    pub arm_lock: SharedLock,
}

/// In [`SideState::rcv_lowat`]: one again, and nothing has been seen to arrive since.
pub const LOWERED: u32 = 1;

/// In the word that holds `SO_RCVLOWAT`: peeked bytes are held.
const PEEKED: u32 = 1 << 31;

/// Processes that may share an end if it is ever to be demoted.
pub const SHARERS: usize = 128;

/// In [`SideState::sharers`], a child that is being made and has no id yet.
pub const EXPECTED: u32 = u32::MAX;

/// See [`SideState::gate`].
#[derive(Debug, Default)]
#[repr(C)]
pub struct Gate {
    /// What its name is made of.
    pub name: AtomicU64,
    /// Who asks says this.
    pub question: AtomicU64,
    /// And is answered by this.
    pub answer: AtomicU64,
}

/// What leads from a side to the other parts of its end (`life/handover.rs`). All but `lent` is written before
/// the connection has its first user, and not changed afterwards.
#[derive(Debug, Default)]
#[repr(C)]
pub struct Origin {
    /// [`MAGIC`]: another build of the library may lay a side out in another way.
    pub magic: AtomicU64,
    /// `SO_COOKIE` of this end's anchor.
    pub anchor_cookie: AtomicU64,
    /// Device of the lane's memory file.
    pub lane_device: AtomicU64,
    /// Inode of the lane's memory file.
    pub lane_inode: AtomicU64,
    /// `SO_COOKIE` of the TCP socket that holds the port of an explicit bind; 0 for none.
    pub holder_cookie: AtomicU64,
    /// Bytes in each direction's ring.
    pub ring_bytes: AtomicU32,
    /// Which end of the lane this is: 0 the client, 1 the server.
    pub end: AtomicU32,
    /// Holders that are counted already and have not taken the end over yet.
    pub lent: AtomicU32,
}

/// "beelin", the number of this layout, and its size. The number is to be counted up whenever [`SideState`] changes
/// and keeps its size.
pub const MAGIC: u64 = 0x6265_656c_696e << 16 | 3 << 12 | size_of::<SideState>() as u64;

/// Bits of [`SideState::extras`].
pub mod extra {
    /// `SO_ZEROCOPY`.
    pub const ZEROCOPY: u32 = 1;
    /// `TCP_INQ`.
    pub const INQ: u32 = 2;
}

/// Bits of [`SideState::state`].
pub mod state {
    /// `shutdown(SHUT_RD)` here.
    pub const SHUT_RD: u32 = 1;
    /// `shutdown(SHUT_WR)` here.
    pub const SHUT_WR: u32 = 2;
    /// The peer will send no more.
    pub const PEER_FIN: u32 = 4;
    /// The peer's end is closed.
    pub const PEER_CLOSED: u32 = 8;
    /// The connection was reset: both directions are dead.
    pub const RESET: u32 = 16;
    /// The peer broke the rules; the connection was reset for it.
    pub const POISONED: u32 = 32;
    /// The server has taken this client's hello.
    pub const TAKEN: u32 = 64;
    /// A non-blocking `connect` has succeeded, and no second call has been told.
    pub const CONNECTING: u32 = 128;
    /// The end was demoted: its ring is a relay's.
    pub const RELAYED: u32 = 256;
    /// More processes than can be listed share the end, or did: nobody can tell when one that is not listed has gone,
    /// unless all have closed it but one.
    pub const CROWDED: u32 = 512;
    /// The peer is a bridge, behind which the connection goes on to another host. If it vanishes without a word, what
    /// it had not yet delivered is lost, so that is never the end of a stream; and its network card may know the
    /// lane's pages, so none is given back.
    pub const BRIDGED: u32 = 1024;
    /// This client's hello lies at a door, and is not seen to be taken (`offers` of beeline-sockets).
    pub const OFFERED: u32 = 2048;
    /// The ends are in two network namespaces and hold the two ends of one TCP connection ([`crate::agent`]).
    pub const MET: u32 = 4096;
    /// The connection ends when that TCP connection does.
    pub const CUTS: u32 = 8192;
    /// There may be completions to be told, which [`super::SideState::has_completions`] knows for certain.
    pub const COMPLETED: u32 = 16_384;
    /// Programs may have got this end's parts that were not lent the end (`life/handover.rs`).
    pub const MIXED: u32 = 32_768;
}

/// One stored option; `key` is of [`option_key`], 0 for a free place.
#[derive(Debug, Default)]
#[repr(C)]
pub struct OptionValue {
    /// Level and name.
    pub key: AtomicU32,
    /// The value as `getsockopt` returns it.
    pub value: AtomicI32,
}

/// An address in shared memory.
#[derive(Debug, Default)]
#[repr(C)]
pub struct Address {
    family: AtomicU16,
    port: AtomicU16,
    scope: AtomicU32,
    octets: [AtomicU32; 4],
}

impl Address {
    /// Stores an address.
    pub fn set(&self, address: SocketAddr) {
        let (family, octets, scope) = match address {
            SocketAddr::V4(v4) => (4, v4.ip().to_ipv6_mapped().octets(), 0),
            SocketAddr::V6(v6) => (6, v6.ip().octets(), v6.scope_id()),
        };
        let bits = u128::from_be_bytes(octets);
        for (index, word) in self.octets.iter().enumerate() {
            word.store((bits >> (32 * index)) as u32, Relaxed);
        }
        self.port.store(address.port(), Relaxed);
        self.scope.store(scope, Relaxed);
        self.family.store(family, Relaxed);
    }

    /// Loads an address; the unspecified IPv4 one if none was stored.
    #[must_use]
    pub fn get(&self) -> SocketAddr {
        let bits = self
            .octets
            .iter()
            .enumerate()
            .fold(0u128, |bits, (index, word)| bits | u128::from(word.load(Relaxed)) << (32 * index));
        let ip = Ipv6Addr::from(bits);
        let port = self.port.load(Relaxed);
        if self.family.load(Relaxed) == 6 {
            return core::net::SocketAddrV6::new(ip, port, 0, self.scope.load(Relaxed)).into();
        }
        SocketAddr::new(IpAddr::V4(ip.to_ipv4_mapped().unwrap_or(Ipv4Addr::UNSPECIFIED)), port)
    }
}

impl SideState {
    /// Takes over a count in `holders` that was made for whoever comes. False if there is none.
    pub fn take_loan(&self) -> bool {
        self.origin.lent.fetch_update(AcqRel, Relaxed, |lent| lent.checked_sub(1)).is_ok()
    }

    /// `SO_RCVLOWAT` in bytes; 0 for one, [`LOWERED`] after it was more.
    #[must_use]
    #[inline]
    pub fn rcv_lowat(&self) -> u32 {
        self.rcv_lowat.load(Relaxed) & !PEEKED
    }

    /// Sets what [`SideState::rcv_lowat`] tells.
    pub fn set_rcv_lowat(&self, bytes: u32) {
        let _ = self.rcv_lowat.fetch_update(Release, Relaxed, |old| Some(old & PEEKED | bytes & !PEEKED));
    }

    /// From [`LOWERED`] to 0, unless somebody sets a mark meanwhile.
    pub fn end_lowered(&self) {
        let _ = self.rcv_lowat.fetch_update(Relaxed, Relaxed, |old| (old & !PEEKED == LOWERED).then_some(old & PEEKED));
    }

    /// Whether neither a mark above one nor bytes that are held keep a receive from taking what is in the ring.
    #[must_use]
    #[inline(always)]
    pub fn receives_plainly(&self) -> bool {
        self.rcv_lowat.load(Relaxed) <= 1
    }

    /// Whether peeked bytes are held.
    #[must_use]
    pub fn holds_peeked(&self) -> bool {
        self.rcv_lowat.load(Relaxed) & PEEKED != 0
    }

    /// Says whether peeked bytes are held. The caller has the rx lock.
    pub fn hold_peeked(&self, held: bool) {
        match held {
            true => self.rcv_lowat.fetch_or(PEEKED, Relaxed),
            false => self.rcv_lowat.fetch_and(!PEEKED, Relaxed),
        };
    }

    /// Whether the app has asked for this [`extra`].
    #[must_use]
    #[inline]
    pub fn has_extra(&self, bit: u32) -> bool {
        self.extras.load(Relaxed) & bit != 0
    }

    /// Takes note of an option whose value is looked at in calls.
    pub fn note_extra(&self, level: i32, name: i32, value: i32) {
        let bit = match (level, name) {
            (libc::SOL_SOCKET, libc::SO_ZEROCOPY) => extra::ZEROCOPY,
            (libc::IPPROTO_TCP, libc::TCP_INQ) => extra::INQ,
            _ => return,
        };
        match value {
            0 => self.extras.fetch_and(!bit, Relaxed),
            _ => self.extras.fetch_or(bit, Relaxed),
        };
    }

    /// Whether completions are still to be told.
    #[must_use]
    #[inline]
    pub fn has_completions(&self) -> bool {
        self.completed.load(Relaxed) != self.completed_told.load(Relaxed)
    }

    /// Whether any of `bits` is set in the state.
    #[must_use]
    #[inline]
    pub fn is(&self, bits: u32) -> bool {
        self.state.load(Relaxed) & bits != 0
    }

    /// Sets state bits; returns the bits that were new. Who sees one, and acquires, sees of the peer what had been seen
    /// before it was set.
    pub fn mark(&self, bits: u32) -> u32 {
        let new = bits & !self.state.fetch_or(bits, AcqRel);
        if new & (state::PEER_FIN | state::RESET) != 0 {
            self.changes.fetch_add(1, Relaxed);
        }
        new
    }

    /// Whether both halves are over, each by its FIN: TCP's `CLOSE`, in which nothing can be reset any more.
    #[must_use]
    pub fn is_finished(&self) -> bool {
        self.is(state::SHUT_WR) && self.is(state::PEER_FIN)
    }

    /// Whether a call with these flags may wait.
    #[must_use]
    #[inline]
    pub fn may_block(&self, flags: i32) -> bool {
        flags & libc::MSG_DONTWAIT == 0 && self.nonblock.load(Relaxed) == 0
    }

    /// Takes the pending error, as `SO_ERROR` does, if there is one.
    pub fn take_error(&self) -> Option<Errno> {
        let errno = if self.error.load(Relaxed) == 0 { 0 } else { self.error.swap(0, Relaxed) };
        (errno != 0).then_some(Errno(errno))
    }

    /// A stored option.
    #[must_use]
    pub fn option(&self, level: i32, name: i32) -> Option<i32> {
        let key = option_key(level, name);
        self.options.iter().find(|slot| slot.key.load(Acquire) == key).map(|slot| slot.value.load(Relaxed))
    }

    /// Stores an option. `false` when there is no place left.
    pub fn set_option(&self, level: i32, name: i32, value: i32) -> bool {
        store_option(&self.options, level, name, value)
    }
}

/// Stores an option in a side's places or a draft's. `false` when there is none left.
pub fn store_option(options: &[OptionValue], level: i32, name: i32, value: i32) -> bool {
    let key = option_key(level, name);
    for slot in options {
        let claimed = slot.key.compare_exchange(0, key | BEING_STORED, Relaxed, Relaxed);
        if claimed.is_ok() || claimed.is_err_and(|holds| holds & !BEING_STORED == key) {
            slot.value.store(value, Relaxed);
            slot.key.store(key, Release);
            return true;
        }
    }
    false
}

/// In the key of a place that has no value yet. Two threads may store two options at one time, each in a place of its
/// own; a place that a thread died over is completed by the next one that stores the same option.
pub const BEING_STORED: u32 = 1 << 30;

/// Never 0, which is a free place.
pub(crate) fn option_key(level: i32, name: i32) -> u32 {
    1 << 31 | (level as u32 & 0x3FFF) << 16 | (name as u32 & 0xFFFF)
}

/// Level and name of a key.
pub fn option_of(key: u32) -> (i32, i32) {
    ((key >> 16 & 0x3FFF) as i32, (key & 0xFFFF) as i32)
}

const _: () = assert!(size_of::<SideState>() < 4096);
const _: () = assert!(core::mem::offset_of!(SideState, rx) == 64 && core::mem::offset_of!(SideState, holders) == 128);

/// Resets the connection: both directions are dead, and `errno` is pending. As in TCP, a reset that follows
/// the peer's FIN is `EPIPE`.
pub fn reset(side: &SideState, errno: i32) {
    let fin = side.is(state::PEER_FIN);
    if side.mark(state::RESET | state::PEER_CLOSED) & state::RESET != 0 {
        side.error.store(if fin { libc::EPIPE } else { errno }, Relaxed);
    }
}

/// Before the flag of an end: where nothing is left to read before it, it is what comes first.
pub fn stamp_if_all_read(lane: &LaneMemory, end: End, side: &SideState) {
    if side.tx.tail() == lane.head(end.peer()) {
        lane.set_stamp(end);
    }
}

/// The end keeps no anchor, and from now on the kernel is to tell it of the peer's end. For one who holds the lock for
/// sending; a look at the peer's flags comes after.
pub fn clear_stands(lane: &LaneMemory, end: End) {
    let ours = lane.flags(end);
    if ours & flags::STANDS != 0 {
        lane.set_flags(end, ours & !flags::STANDS);
        lane.full_fence();
    }
}

/// Tells the peer what it means if this end vanishes, for one who holds both locks.
pub fn mark_linger(lane: &LaneMemory, end: End, side: &SideState) {
    let ours = lane.flags(end);
    let meant = if side.linger.aborts() { ours | flags::ABORTS } else { ours & !flags::ABORTS };
    if meant != ours {
        lane.set_flags(end, meant);
    }
}

#[cfg(test)]
mod tests;
