//! The bridge's ends of lanes ([`crate::bridge`]).
//!
//! 1. The bridge is the only user of its ends, so it takes no locks.
//! 2. An end is watched for edges: the peer's bells, its end, and the room that it makes when asked.
//! 3. What the peer's memory says is checked by the ring as ever; a [`Fault`] means that the peer broke the rules,
//!    except [`Fault::Gone`], after which what it had written is still to be read.
//! 4. A client of this host may give up waiting for the bridge's answer, and go another way. That and the answer are
//!    decided by one atomic step ([`beeline_lane::offer`]), so that no connection is made for nobody.
//! 5. A lane goes back to the pool when both ends are closed; then nobody may touch its rings any more, not even
//!    a network card.

mod pair;

use core::sync::atomic::Ordering::Relaxed;

use beeline_lane::{
    Armed, BellFault, Bells, End, Fault, LaneMemory, Reader, RxState, Since, Sink, Source, TxState, Writer, flags,
    offer,
};
use beeline_shm::{Fd, sys};
use beeline_stats::Reason;
use beeline_wire::{ConnName, Endpoint, Verdict, bridge};

use super::claims::{self, Naming};
use super::hello_io::{self, Refusal, Waiting};
use super::pool::{self, PooledLane};
use super::route::new_anchor;
use super::strangers::{self, Closing};
use super::{greeting, lookup, taking, trust};
use crate::bells::AnchorBells;
use crate::kernel::{self, SockAddr};
use crate::side::force_peer_look;
use crate::{Errno, calibrate};

pub use pair::pair;

/// Clients that may wait at the bridge's door.
const BACKLOG: i32 = 1024;

/// Opens the bridge's door. Returns a non-blocking listener.
///
/// # Errors
/// Those of socket(2), bind(2) and listen(2): `EADDRINUSE` when another bridge serves this network namespace.
pub fn listen_for_clients() -> Result<Fd, Errno> {
    let kind = libc::SOCK_STREAM | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
    let door = Fd::own(kernel::socket(libc::AF_UNIX, kind, 0)? as i32);
    let address = SockAddr::abstract_unix(bridge::DOOR).ok_or(Errno(libc::EINVAL))?;
    kernel::bind(door.get(), &address)?;
    kernel::listen(door.get(), BACKLOG)?;
    Ok(door)
}

/// Lets nobody in at the bridge's door any more, and sends those away who wait there, or have come and not spoken. The
/// socket keeps its name until it is closed.
pub fn shut(door: i32, silent: impl IntoIterator<Item = i32>) {
    let _ = kernel::shutdown(door, libc::SHUT_RD);
    let mut closing = Closing::new();
    silent.into_iter().for_each(|client| closing.add(client));
    while let Ok(client) = kernel::accept4(door, None, libc::SOCK_CLOEXEC) {
        closing.add(client as i32);
    }
}

/// Takes the hello of a client that has come through the bridge's door: the connection that it asks for, and the lane.
/// `None` while it says nothing.
///
/// # Errors
/// Why the client cannot be served; the caller closes its anchor.
pub fn take_client(anchor: i32) -> Option<Result<(ConnName, LaneEnd), Verdict>> {
    match hello_io::look(anchor) {
        Waiting::Silence => {
            // Whoever waits for it is woken by anything.
            strangers::see_urgent(anchor);
            return None;
        }
        Waiting::Gone => return Some(Err(Verdict::Rejected)),
        Waiting::Message => {}
    }
    if let Err(reason) = calibrate::small_send_buffer() {
        return Some(Err(verdict(reason)));
    }
    let refuses = trust::refuse_rights(anchor);
    let taken = taking::named_client(anchor);
    match taken {
        Ok((name, lane)) => Some(match judge(&name, anchor) {
            Ok(()) if refuses && strangers::hides_rights(anchor) => {
                pool::retire(lane, End::Server, false);
                Err(Verdict::Rejected)
            }
            Ok(()) => Ok((name, LaneEnd::new(anchor, lane, End::Server))),
            Err(verdict) => {
                pool::retire(lane, End::Server, false);
                Err(verdict)
            }
        }),
        Err(Refusal::Silence) => None,
        Err(_) => Some(Err(Verdict::Rejected)),
    }
}

/// Whether a client may have the address that its anchor is named for. Servers of this host ask the same of it
/// ([`super::claims`]); those of other hosts have only the word of their bridge and ours.
fn judge(name: &ConnName, anchor: i32) -> Result<(), Verdict> {
    let (uid, ours) = (trust::peer_uid(anchor), trust::OwnUser::default());
    if !uid.is_some_and(|uid| ours.may_share(uid)) {
        return Err(Verdict::Rejected);
    }
    let proven = match lookup::is_local(name.client.address().ip()) {
        Ok(true) => claims::prove(name, Naming::Plain, uid, &ours, anchor).map(|_| ()),
        Ok(false) => return Err(Verdict::Rejected),
        Err(reason) => Err(Refusal::Reason(reason)),
    };
    proven.map_err(|refusal| if let Refusal::Reason(reason) = refusal { verdict(reason) } else { Verdict::Rejected })
}

/// What a client is told: it may choose another port, or find room later.
fn verdict(reason: Reason) -> Verdict {
    match reason {
        Reason::AddressInUse | Reason::DescriptorsShort | Reason::MemoryShort => Verdict::Full,
        _ => Verdict::Rejected,
    }
}

/// Answers a client with anything but yes.
pub fn answer(anchor: i32, verdict: Verdict) {
    let _ = kernel::send(anchor, &[verdict.byte()], libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL);
}

/// Connects to a server on this host for a client on another.
///
/// # Errors
/// Why there is no lane to it.
pub fn connect_for(client: Endpoint, server: Endpoint) -> Result<LaneEnd, Reason> {
    let name = ConnName { client, server };
    lookup::local(server.address())?;
    let target = lookup::listener(server.address(), client.address())?;
    if let Some(reason) = lookup::why_not_enter(server.address(), target.cookie) {
        return Err(reason);
    }
    if lookup::is_untaken(server.address()) {
        return Err(Reason::HelloNotTaken);
    }
    let anchor = new_anchor()?;
    let address = SockAddr::abstract_unix(name.encode().as_bytes()).ok_or(Reason::Internal)?;
    kernel::bind(anchor.get(), &address).map_err(|_| Reason::AddressInUse)?;
    let offer = pool::client_lane(target.cookie)?;
    for end in [End::Client, End::Server] {
        offer.lane.memory().read_wake(end).store(beeline_lane::BEGIN_ARMED, Relaxed);
    }
    let entered = greeting::enter_door(&anchor, server.address(), target)
        .and_then(|()| greeting::who_opened(&anchor, &name, server.address(), target, &trust::OwnUser::default()));
    if let Err(reason) = entered {
        offer.withdraw();
        return Err(reason);
    }
    let lane = greeting::say_hello(anchor.get(), offer, None)?;
    Ok(LaneEnd::new(anchor.give_away(), lane, End::Client))
}

/// What lies at the front of the ring that an end reads.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Readable {
    /// So many bytes, the first at this position; none if there are none.
    Bytes(u32, u32),
    /// An urgent byte, or one to pass over.
    Urgent,
}

/// The bridge's end of a lane.
pub struct LaneEnd {
    anchor: i32,
    lane: &'static PooledLane,
    memory: LaneMemory,
    end: End,
    tx: TxState,
    rx: RxState,
}

impl LaneEnd {
    fn new(anchor: i32, lane: &'static PooledLane, end: End) -> LaneEnd {
        let rx = RxState::default();
        rx.begin_armed();
        LaneEnd { anchor, lane, memory: lane.memory(), end, tx: TxState::default(), rx }
    }

    /// The anchor, to be watched for edges (`EPOLLIN`, `EPOLLOUT`, `EPOLLRDHUP`).
    #[must_use]
    pub fn anchor(&self) -> i32 {
        self.anchor
    }

    /// Bytes in each direction's ring.
    #[must_use]
    pub fn ring_bytes(&self) -> u32 {
        self.memory.ring_bytes()
    }

    /// Tells the client that the connection stands. From now on it may use the lane. False if it has given up waiting,
    /// and never will.
    #[must_use]
    pub fn say_yes(&self) -> bool {
        if !offer::take(self.memory.offer()) {
            return false;
        }
        self.memory.set_flags(self.end, self.memory.flags(self.end) | flags::TAKEN);
        answer(self.anchor, Verdict::Yes);
        true
    }

    /// Whether the server has taken the hello.
    #[must_use]
    pub fn is_taken(&self) -> bool {
        self.memory.flags(End::Server) & flags::TAKEN != 0
    }

    /// The cookie of the listener to which hello was said.
    #[must_use]
    pub fn listener(&self) -> u64 {
        self.lane.cookie.load(Relaxed)
    }

    /// Takes back the hello that was said to a server. False if the server has taken it.
    #[must_use]
    pub fn withdraw(&self) -> bool {
        offer::withdraw(self.memory.offer())
    }

    fn reader(&self) -> Reader<'_, LaneMemory> {
        Reader::new(self.memory, self.end, &self.rx, &self.tx)
    }

    fn writer(&self) -> Writer<'_, LaneMemory> {
        Writer::new(self.memory, self.end, &self.tx, &self.rx)
    }

    /// Bytes in the ring that the peer writes.
    ///
    /// # Errors
    /// [`Fault::CursorBeyondRing`].
    #[inline]
    pub fn readable(&self) -> Result<Readable, Fault> {
        Ok(match self.reader().readable()? {
            Some((count, position)) => Readable::Bytes(count, position),
            None => Readable::Urgent,
        })
    }

    /// Copies bytes from `position` on out of the ring that the peer writes.
    pub fn copy_out(&self, position: u32, into: &mut [u8]) {
        self.memory.copy_out(self.end.peer(), position, Sink::from(into));
    }

    /// Gives `count` bytes of the ring that the peer writes back to it.
    ///
    /// # Errors
    /// A [`Fault`] of the peer.
    pub fn consume(&self, count: u32) -> Result<(), Fault> {
        self.reader().skip(count as usize, &self.bells()).map(|_| ())
    }

    /// Bells that were rung for the peer.
    #[must_use]
    pub fn bells_rung(&self) -> u32 {
        self.tx.bells()
    }

    /// The urgent byte that comes next, or `None` if there is only one to pass over. Goes past it.
    ///
    /// # Errors
    /// A [`Fault`] of the peer.
    pub fn take_urgent(&self) -> Result<Option<u8>, Fault> {
        let byte = self.reader().urgent_next()?;
        match byte {
            Some(_) => self.reader().pass_urgent(&self.bells())?,
            None => self.reader().pass(&self.bells()).map(|_| ())?,
        }
        Ok(byte)
    }

    /// Writes bytes for the peer. Returns how many found room.
    ///
    /// # Errors
    /// A [`Fault`] of the peer.
    #[inline]
    pub fn write(&self, bytes: &[u8]) -> Result<usize, Fault> {
        self.writer().write(Source::from(bytes), &self.bells())
    }

    /// Writes an urgent byte for the peer. `false` when there is no room.
    ///
    /// # Errors
    /// A [`Fault`] of the peer.
    pub fn write_urgent(&self, byte: u8) -> Result<bool, Fault> {
        let announce = || {
            if self.peer_flags() & flags::SIGNALLED != 0 {
                let out_of_band = libc::MSG_OOB | libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
                let _ = kernel::send(self.anchor, &[beeline_wire::BELL], out_of_band);
            }
        };
        let (free, position) = self.room()?;
        if free == 0 {
            return Ok(false);
        }
        self.copy_in(position, &[byte]);
        self.writer().publish_urgent(&self.bells(), announce)?;
        Ok(true)
    }

    /// Free bytes of the ring that this end writes, and the position of the first. Bytes keep the position that follows
    /// from the one before them, so that others can be told where a later one will stand.
    ///
    /// # Errors
    /// A [`Fault`] of the peer.
    pub fn room(&self) -> Result<(u32, u32), Fault> {
        self.writer().room_in_place()
    }

    /// Copies bytes to `position` of the ring that this end writes, without announcing them.
    pub fn copy_in(&self, position: u32, bytes: &[u8]) {
        self.memory.copy_in(self.end, position, Source::from(bytes));
    }

    /// Announces `count` bytes that stand where [`LaneEnd::room`] said.
    ///
    /// # Errors
    /// A [`Fault`] of the peer.
    pub fn publish(&self, count: u32) -> Result<(), Fault> {
        self.writer().publish(count, &self.bells())
    }

    /// The ring that this end writes, or the one it reads, for a network card: address and length.
    #[must_use]
    pub fn ring(&self, written: bool) -> (*mut u8, usize) {
        let end = if written { self.end } else { self.end.peer() };
        self.memory.pieces(end, 0, self.memory.ring_bytes())[0]
    }

    /// Whether no connection before this one can have left bytes in the rings, as far as this process knows.
    #[must_use]
    pub fn is_fresh(&self) -> bool {
        !self.lane.was_bridged()
    }

    /// Bytes the peer has not read yet.
    ///
    /// # Errors
    /// A [`Fault`] of the peer.
    pub fn unread_by_peer(&self) -> Result<u32, Fault> {
        self.writer().unread()
    }

    /// Prepares to sleep until the peer has written.
    ///
    /// # Errors
    /// A [`Fault`] of the peer.
    pub fn arm_reading(&self) -> Result<Armed, Fault> {
        self.reader().arm(Since::Read, &self.bells())
    }

    /// Prepares to sleep until the peer has written more than what lies in the ring already, of which `tail` is the
    /// end.
    ///
    /// # Errors
    /// A [`Fault`] of the peer.
    pub fn arm_reading_beyond(&self, tail: u32) -> Result<Armed, Fault> {
        self.reader().arm(Since::Tail(tail), &self.bells())
    }

    /// The end of what the peer has written, modulo 2^32.
    #[must_use]
    #[inline]
    pub fn tail(&self) -> u32 {
        self.reader().tail()
    }

    /// Bytes of the peer's that were consumed, modulo 2^32: with [`LaneEnd::tail`] tells how many lie in the ring.
    #[must_use]
    #[inline]
    pub fn head(&self) -> u32 {
        self.rx.head()
    }

    /// Prepares to sleep until a quarter of the ring that this end writes is free.
    ///
    /// # Errors
    /// A [`Fault`] of the peer.
    pub fn arm_writing(&self) -> Result<Armed, Fault> {
        self.writer().arm(&self.bells())
    }

    /// The kernel reported the anchor readable: the next arming takes bells out.
    pub fn note_bell(&self) {
        self.rx.note_bell();
    }

    /// What the peer says about its end: bits of [`flags`].
    #[must_use]
    #[inline]
    pub fn peer_flags(&self) -> u32 {
        self.memory.flags(self.end.peer())
    }

    /// Says something about this end: bits of [`flags`], which are never taken back.
    pub fn say(&self, what: u32) {
        let before = self.memory.flags(self.end);
        if before | what == before {
            return;
        }
        if self.end == End::Client && what & flags::RESET != 0 {
            // A server that has not taken it need not learn that there ever was a client.
            let _ = offer::withdraw(self.memory.offer());
        }
        self.memory.set_flags(self.end, before | what);
        force_peer_look(&self.memory, self.end);
        if what & flags::FIN != 0 && before & flags::FIN == 0 {
            // After the flag: whoever the kernel wakes finds it.
            let _ = kernel::shutdown(self.anchor, libc::SHUT_WR);
        }
    }

    /// Whether what the kernel reports about the anchor means that the peer's end is closed. Both halves shut down read
    /// as a hang-up, too.
    #[must_use]
    pub fn tells_of_end(&self, events: u32) -> bool {
        let shut = (self.peer_flags() & flags::FIN != 0)
            && (self.memory.flags(self.end) & flags::FIN != 0 || self.peer_flags() & flags::SHUT_RD != 0);
        events & libc::EPOLLERR as u32 != 0 || events & libc::EPOLLHUP as u32 != 0 && !shut
    }

    /// Tells the peer not to spin: there are so few CPUs that this would keep the bridge from running.
    pub fn ask_for_cpu(&self) {
        self.memory.cpu(self.end).store(crate::wait::ANY_CPU, Relaxed);
    }

    /// The CPU on which the peer was last, if it has told.
    #[must_use]
    pub fn peer_cpu(&self) -> Option<u32> {
        self.memory.cpu(self.end.peer()).load(Relaxed).checked_sub(1)
    }

    fn bells(&self) -> EndBells<'_> {
        EndBells(self)
    }

    /// Ends this end: the anchor is closed, and the lane goes to the pool if it may be used again. The peer must have
    /// been told before ([`LaneEnd::say`]), and no network card may know the rings any more.
    pub fn retire(self) {
        let _ = sys::close(self.anchor);
        let whole = self.memory.flags(End::Client) & flags::CLOSED != 0;
        if !whole {
            self.lane.spoil();
        }
        self.lane.note_bridged();
        pool::retire(self.lane, self.end, whole);
    }
}

struct EndBells<'a>(&'a LaneEnd);

impl Bells for EndBells<'_> {
    fn ring(&self) -> Result<(), BellFault> {
        let events = || kernel::poll_now(self.0.anchor, 0) as u32;
        AnchorBells(self.0.anchor).ring_unless(|| self.0.tells_of_end(events()))
    }
    fn queued(&self) -> Result<u32, BellFault> {
        AnchorBells(self.0.anchor).queued()
    }
    fn drain(&self, count: u32) -> Result<(), BellFault> {
        AnchorBells(self.0.anchor).drain(count)
    }
    fn plug(&self) {
        AnchorBells(self.0.anchor).plug();
    }
    fn plugged(&self) -> bool {
        AnchorBells(self.0.anchor).plugged()
    }
    fn unplug(&self) {
        AnchorBells(self.0.anchor).unplug();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use beeline_testkit::hostile::Client;
    use std::os::fd::AsRawFd;
    use std::os::unix::net::UnixStream;

    #[test]
    fn an_urgent_byte_is_heard_of_a_client_that_was_silent() {
        let (client, server) = UnixStream::pair().unwrap();
        let (client, anchor) = (Client::of(client.into()), server.as_raw_fd());
        assert!(take_client(anchor).is_none());
        client.send_urgent(b'x', &[]).unwrap();
        assert!(take_client(anchor).is_some(), "the kernel calls it readable");
    }
}
