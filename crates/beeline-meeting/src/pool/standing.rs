//! Lanes whose ends are kept with them: an idle lane that *stands* has its anchor beside it, and both ends know whose
//! it is.

use core::net::SocketAddr;
use core::sync::atomic::{
    AtomicPtr, AtomicU32, AtomicU64,
    Ordering::{Acquire, Relaxed},
};

use beeline_lane::{End, flags, seat};
use beeline_wire::{ConnName, Endpoint};

use super::{CLIENT, LOCK, Offer, PooledLane};
use crate::fd_cell::FdCell;
use crate::hidden;
use crate::side::Address;
use crate::trust::Peer;

/// What an end knows of a connection whose anchor it means to keep. Valid when zeroed. Written while the lane is in one
/// connection's, or nobody's, hands.
#[derive(Default)]
#[repr(C)]
pub struct Standing {
    /// The anchor, hidden; none while the lane is in use, or its anchor is not kept.
    anchor: FdCell,
    /// 1 when the lane's connection has begun over an anchor that was kept.
    again: AtomicU32,
    /// The thread that has said the lane's last hello at a door.
    said_by: AtomicU32,
    /// `SO_COOKIE` of the anchor.
    cookie: AtomicU64,
    /// 1 when the anchor that is kept has `O_NONBLOCK`.
    nonblock: AtomicU32,
    peer_pid: AtomicU32,
    peer_uid: AtomicU32,
    /// The user that this process was when the anchor was made.
    user: AtomicU32,
    /// The anchor's network namespace, plus one; 0 when the kernel does not tell.
    namespace: AtomicU64,
    client: Address,
    server: Address,
    /// [`ConnName::sum`] of these, if they are the last connection's; else 0.
    sum: AtomicU32,
    /// Client: 1 where the port in the anchor's name is one that the program has bound, and gives back with its socket.
    borrows_port: AtomicU32,
    /// Server: where the end is kept, for whoever keeps it; null where it is not to be.
    home: AtomicPtr<()>,
    /// Server: the end's seat while it is empty, or none.
    seat: AtomicU32,
}

impl Standing {
    /// Nothing is kept.
    pub(super) fn clear(&self) {
        self.anchor.set(None);
        self.again.store(0, Relaxed);
        self.home.store(core::ptr::null_mut(), Relaxed);
    }

    /// Notes whose connection it is, before it begins.
    pub fn know(&self, name: &ConnName, peer: Peer, user: u32, namespace: Option<u64>) {
        self.again.store(0, Relaxed);
        self.sum.store(name.sum(), Relaxed);
        self.client.set(name.client.address());
        self.server.set(name.server.address());
        self.peer_pid.store(peer.pid, Relaxed);
        self.peer_uid.store(peer.uid, Relaxed);
        self.user.store(user, Relaxed);
        self.namespace.store(namespace.map_or(0, |namespace| namespace.wrapping_add(1)), Relaxed);
    }

    /// Nothing is known of the connection that is about to begin.
    pub fn forget(&self) {
        self.sum.store(0, Relaxed);
        self.borrows_port.store(0, Relaxed);
    }

    /// Whether the last connection had this name, which the kernel keeps for an anchor, and this peer.
    pub(super) fn is_known_by(&self, name: &ConnName, peer: Peer) -> bool {
        self.sum.load(Relaxed) == name.sum() && self.name() == *name && self.peer() == peer
    }

    /// The last connection's name, if another one with the same peer may have it.
    fn last_name(&self) -> Option<ConnName> {
        (self.sum.load(Relaxed) != 0 && !self.borrows_port()).then(|| self.name())
    }

    /// Notes whether the program has bound the port in the anchor's name.
    pub fn set_borrows_port(&self, is_programs: bool) {
        self.borrows_port.store(u32::from(is_programs), Relaxed);
    }

    /// Whether the port in the anchor's name may be anybody's while the end is idle.
    #[must_use]
    pub fn borrows_port(&self) -> bool {
        self.borrows_port.load(Relaxed) == 1
    }

    /// Notes where a server keeps the end.
    pub fn set_home(&self, home: *mut ()) {
        self.home.store(home, Relaxed);
    }

    /// See [`Standing::set_home`].
    #[must_use]
    pub fn home(&self) -> *mut () {
        self.home.load(Relaxed)
    }

    /// Notes the end's seat as it is while it is empty: [`beeline_lane::seat`].
    pub fn set_seat(&self, empty: u32) {
        self.seat.store(empty, Relaxed);
    }

    /// See [`Standing::set_seat`].
    #[must_use]
    pub fn seat(&self) -> u32 {
        self.seat.load(Relaxed)
    }

    /// The name that the client's anchor holds: that of the first connection over it.
    #[must_use]
    pub fn name(&self) -> ConnName {
        ConnName { client: Endpoint::new(self.client.get()), server: Endpoint::new(self.server.get()) }
    }

    /// Who is at the other end.
    #[must_use]
    pub fn peer(&self) -> Peer {
        Peer { pid: self.peer_pid.load(Relaxed), uid: self.peer_uid.load(Relaxed) }
    }

    /// The user that this process was.
    #[must_use]
    pub fn user(&self) -> u32 {
        self.user.load(Relaxed)
    }

    /// The network namespace of the anchor.
    #[must_use]
    pub fn namespace(&self) -> Option<u64> {
        self.namespace.load(Relaxed).checked_sub(1)
    }

    /// The lane's connection begins over the anchor that was kept.
    pub fn begin_again(&self) {
        self.again.store(1, Relaxed);
    }

    /// Whether it did.
    #[must_use]
    pub fn is_again(&self) -> bool {
        self.again.load(Relaxed) == 1
    }

    /// A client's thread says hello at the door.
    pub fn says_hello(&self, thread: u32) {
        self.said_by.store(thread, Relaxed);
    }

    /// Whether it did, and the connection has not begun again since.
    #[must_use]
    pub fn was_said_by(&self, thread: u32) -> bool {
        !self.is_again() && self.said_by.load(Relaxed) == thread
    }

    /// `SO_COOKIE` of the anchor over which the connection began again.
    #[must_use]
    pub fn cookie(&self) -> Option<u64> {
        self.is_again().then(|| self.cookie.load(Relaxed))
    }

    /// The anchor that is kept, hidden.
    #[must_use]
    pub fn anchor(&self) -> Option<i32> {
        self.anchor.get()
    }

    /// Keeps the anchor, a hidden descriptor with this `SO_COOKIE`, and with `O_NONBLOCK` or not.
    pub fn keep_anchor(&self, anchor: i32, cookie: u64, is_nonblocking: bool) {
        self.cookie.store(cookie, Relaxed);
        self.nonblock.store(u32::from(is_nonblocking), Relaxed);
        self.anchor.set(Some(anchor));
    }

    /// Whether the anchor that is kept, or was before this connection, has `O_NONBLOCK`.
    #[must_use]
    pub fn is_nonblocking(&self) -> bool {
        self.nonblock.load(Relaxed) == 1
    }

    /// Takes the anchor, which the caller closes.
    #[must_use]
    pub fn take_anchor(&self) -> Option<i32> {
        self.anchor.take()
    }

    /// Closes the anchor, if it is kept.
    pub fn close_anchor(&self) {
        if let Some(fd) = self.take_anchor() {
            hidden::close_hidden(fd);
        }
    }
}

/// Whether a client's lane is idle. Without one none stands.
#[must_use]
pub fn any_idle() -> bool {
    CLIENT.first.load(Acquire).is_some()
}

/// Gives up what was kept of a connection of this name whose port the program had bound: it binds it again, and is in
/// nobody's way. Whether there was any.
#[cold]
pub(crate) fn give_up(name: &ConnName) -> bool {
    let mut any = false;
    let _guard = LOCK.lock();
    CLIENT.for_each(|lane| {
        if lane.stands.borrows_port() && lane.stands.name() == *name {
            any |= lane.stands.anchor().is_some();
            lane.stands.close_anchor();
        }
    });
    any
}

/// The name of the last connection over a client's idle lane to `server`, if the next one `may` have it.
pub(crate) fn next_name(server: SocketAddr, may: impl Fn(&Standing) -> bool) -> Option<ConnName> {
    let is_fit = |lane: &PooledLane| {
        let stands = &lane.stands;
        stands.last_name().is_some_and(|name| name.server.address() == server) && may(stands) && lane.is_plain()
    };
    let _guard = LOCK.lock();
    CLIENT.find(is_fit).map(|lane| lane.stands.name())
}

/// Takes a client's lane that stands ready at both ends for a connection to `server`, and that `wanted` accepts.
pub fn standing(server: SocketAddr, wanted: impl FnMut(&Standing) -> bool) -> Option<Offer> {
    take(server, PooledLane::is_ready, wanted)
}

/// The same, or one whose server is about to sit down for the next connection.
pub fn standing_soon(server: SocketAddr, wanted: impl FnMut(&Standing) -> bool) -> Option<Offer> {
    take(server, |lane| lane.is_ready() || lane.has_seat(), wanted)
}

fn take(
    server: SocketAddr,
    is_fit: impl Fn(&PooledLane) -> bool,
    mut wanted: impl FnMut(&Standing) -> bool,
) -> Option<Offer> {
    let _guard = LOCK.lock();
    let lane = CLIENT.take(|lane| {
        lane.stands.anchor().is_some()
            && lane.memfd().is_some()
            && lane.stands.server.get() == server
            && is_fit(lane)
            && wanted(&lane.stands)
    })?;
    Some(Offer { is_intact: true, ..Offer::of(lane, lane.memfd()?) })
}

impl PooledLane {
    /// Whether a client's idle lane may be offered at a door, and stands not.
    pub(super) fn is_plain(&self) -> bool {
        // Without its memfd it cannot be offered.
        self.stands.anchor().is_none() && self.memfd().is_some() && self.is_released()
    }

    /// Whether the server has done with it.
    pub(super) fn is_released(&self) -> bool {
        self.memory().flags(End::Server) & flags::RELEASED != 0
    }

    /// Who served the last connection, if the next one has the same name: both ends know it by that.
    pub(super) fn knows(&self, name: &ConnName) -> Option<Peer> {
        (self.stands.last_name() == Some(*name)).then(|| self.stands.peer())
    }

    /// Whether the server of a client's idle lane that stands may be told of the next connection.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        const READY: u32 = flags::RELEASED | flags::STANDS;
        self.memory().flags(End::Server) & READY == READY && seat::may_claim(self.memory().seat())
    }

    /// Whether that has a seat, and means to be there for the next connection, if it is not yet.
    pub(super) fn has_seat(&self) -> bool {
        self.memory().flags(End::Server) & flags::STANDS != 0 && self.memory().seat().load(Relaxed) != seat::NONE
    }
}
