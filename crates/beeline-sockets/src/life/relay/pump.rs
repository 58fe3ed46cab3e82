//! What a relay does all its life: bytes out of the lane into a TCP connection, and back.
//!
//! *Outward* is from the lane's peer to the program that holds the other end of the TCP connection, *inward* the other
//! way. The kernel moves the bytes between the rings and the socket; nothing is copied in between.
//!
//! # Rules
//!
//! 1. The relay is the only user of its end of the lane, so it takes no locks.
//! 2. An end of stream is passed on when all bytes before it have been: the peer's FIN as a shutdown of the TCP
//!    connection, the program's as FIN on the lane. The other direction goes on.
//!    An urgent byte is passed on as one, in its turn.
//! 3. A reset ends both directions at once, as the kernel's does: what fits into the receiver's buffer is still
//!    delivered, then the receiver is reset. The program's reset shows as an error of the socket; the peer's as its
//!    flag, or as its end of the anchor closed with bytes of ours unread, or with bytes coming for it afterwards.
//!    One that read all before its bell was rung, and closed, has not: what tells is how far it has read. Nor has one
//!    that vanishes, unless it has said that it would ([`flags::ABORTS`]) and the connection was not at its end.
//! 4. A peer that breaks the lane's rules has reset the connection.
//! 5. When both directions are over the relay ends, and with it its ends of both. The outward one is, too, when nobody
//!    has the program's socket any more ([`widowed`]).
//! 6. Both descriptors are watched for edges. The relay sleeps only after both directions have moved all they could:
//!    out of an empty ring or into a full socket, out of an empty socket or into a full ring, with the lane's wake
//!    words armed for what it waits for there. A ring that was full and is not any more needs another turn: what is
//!    left in the socket has had its edge.
//! 7. As long as other holders may come for the program's socket ([`crate::follow`]) the relay attends to them, even
//!    when there is nothing to pump, and leaves one bell in the anchor that wakes those who sleep on it.
//! 8. It spins before it sleeps by the same account as a blocked call ([`crate::wait`]), but what it looks at
//!    includes the socket, by a system call.
//! 9. A relay that is killed has reset the connection for whoever has not got its end yet: bytes on their way are lost,
//!    which must not look like an end of stream. Until a direction is over the socket lingers for no time (outward),
//!    and this end of the lane [aborts](flags::ABORTS) (inward). The latter only where nothing ordinary kills a relay:
//!    not in a pid namespace that ends with a process, mostly right after that has sent its last bytes.

mod idle;
mod widowed;

use beeline_lane::{BellFault, Bells, End, Fault, LaneMemory, Reader, Source, Writer, flags};
use beeline_shm::sys::{SysResult, call};

use self::widowed::Widowed;
use super::gate::Attendance;
use crate::bells::AnchorBells;
use crate::io::SHUT_BOTH;
use crate::linux::SIOCATMARK;
use crate::side::{SideState, state};
use crate::{Errno, kernel, proc};

/// Bytes moved by one system call: large enough that its cost does not count, small enough that both neighbours work
/// at the same time.
const PART_BYTES: u32 = 256 * 1024;
/// System calls in one direction before it is the other's turn.
const TURN: usize = 16;
/// Turns between two looks at who has come, while there is no sleep.
const TURNS_PER_LOOK: u32 = 16;

/// What a relay connects, and how it attends to that.
#[derive(Clone, Copy)]
pub(super) struct Relay {
    pub lane: LaneMemory,
    pub side: &'static SideState,
    pub end: End,
    /// This end of the lane's anchor.
    pub anchor: i32,
    /// The TCP socket.
    pub socket: i32,
    /// The set in which both are watched.
    pub set: i32,
    /// Other holders that may come.
    pub attendance: Attendance,
    /// The longest spin in nanoseconds; 0 for none.
    pub spin_ns_max: u64,
}

/// How far a direction has come.
#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Open,
    /// Its end of stream was passed on.
    Over,
}

/// What moving bytes came to.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Moved {
    Some,
    Nothing,
    /// One side is reset, and the other must be.
    Reset,
}

struct Pump {
    relay: Relay,
    outward: State,
    inward: State,
    /// The peer's process is gone, or has closed.
    peer_gone: bool,
    /// The socket takes no more at the moment.
    socket_full: bool,
    /// The ring took no more when it was last looked at, and the socket may have more for it.
    ring_full: bool,
    /// The socket has reported a reset.
    socket_failed: bool,
    spin_ns: u64,
    skipped: u32,
    widowed: Widowed,
}

impl Relay {
    /// Makes the set in which both ends are watched.
    pub(super) fn watch(anchor: i32, socket: i32) -> Result<i32, Errno> {
        let set = kernel::epoll_create()?;
        let edges = libc::EPOLLIN | libc::EPOLLOUT | libc::EPOLLRDHUP | libc::EPOLLET;
        for (fd, number) in [(anchor, ANCHOR), (socket, SOCKET)] {
            let event = libc::epoll_event { events: edges as u32, u64: number };
            if let Err(errno) = kernel::epoll_ctl(set, libc::EPOLL_CTL_ADD, fd, Some(event)) {
                let _ = beeline_shm::sys::close(set);
                return Err(errno);
            }
        }
        Ok(set)
    }

    /// Pumps until both directions are over.
    pub(super) fn pump(&self) {
        Pump::new(*self).run();
    }
}

const ANCHOR: u64 = 0;
const SOCKET: u64 = 1;

impl Pump {
    fn new(relay: Relay) -> Self {
        Self {
            relay,
            outward: State::Open,
            inward: State::Open,
            peer_gone: false,
            socket_full: false,
            ring_full: false,
            socket_failed: false,
            spin_ns: relay.spin_ns_max,
            skipped: 0,
            widowed: Widowed::NOT_YET,
        }
    }

    fn run(&mut self) {
        // Urgent bytes are passed on as such; what the program makes of them is its socket's affair.
        // A fault is found again by the first look.
        let _ = self.reader().set_inline(false, &self.bells());
        self.linger_for_no_time(true);
        let (lane, end) = (&self.relay.lane, self.relay.end);
        let said = lane.flags(end);
        if said & flags::FIN == 0 && proc::is_in_first_pid_namespace() {
            lane.set_flags(end, said | flags::ABORTS);
        }
        self.relay.attendance.begin(self.relay.set, self.relay.side);
        let mut turns = 0u32;
        while self.outward == State::Open || self.inward == State::Open || self.relay.attendance.is_open() {
            turns = turns.wrapping_add(1);
            if turns.is_multiple_of(TURNS_PER_LOOK) {
                // While there is always something to move nothing else is heard.
                self.relay.attendance.serve(self.relay.side);
            }
            let turn = match self.turn() {
                Moved::Nothing => match self.spin() {
                    Moved::Nothing => self.sleep(),
                    moved => moved,
                },
                moved => moved,
            };
            if turn == Moved::Reset {
                self.reset();
            }
        }
        self.say(flags::CLOSED);
    }

    /// Moves what can be moved both ways.
    fn turn(&mut self) -> Moved {
        let out = self.move_outward();
        let back = self.move_inward();
        match (out, back) {
            (Moved::Reset, _) | (_, Moved::Reset) => Moved::Reset,
            (Moved::Nothing, Moved::Nothing) => Moved::Nothing,
            _ => Moved::Some,
        }
    }

    fn reader(&self) -> Reader<'_, LaneMemory> {
        Reader::new(self.relay.lane, self.relay.end, &self.relay.side.rx, &self.relay.side.tx)
    }

    fn writer(&self) -> Writer<'_, LaneMemory> {
        Writer::new(self.relay.lane, self.relay.end, &self.relay.side.tx, &self.relay.side.rx)
    }

    fn bells(&self) -> SomeBells {
        SomeBells { relay: self.relay, kept: u32::from(self.relay.attendance.is_open()) }
    }

    fn peer_flags(&self) -> u32 {
        self.relay.lane.flags(self.relay.end.peer())
    }

    /// From the lane to the socket.
    fn move_outward(&mut self) -> Moved {
        let mut moved = Moved::Nothing;
        for _ in 0..TURN {
            if self.outward == State::Over {
                return moved;
            }
            // Before the cursor: the flags are set after the last one that they speak about.
            let said = self.peer_flags();
            let (gone, reset) = (self.peer_gone, self.peer_has_reset(said));
            let (unread, position) = match self.reader().readable() {
                Ok(Some(readable)) => readable,
                Ok(None) => match self.move_urgent_outward() {
                    Moved::Nothing => return moved,
                    Moved::Some => continue,
                    Moved::Reset => return Moved::Reset,
                },
                Err(_) => return Moved::Reset,
            };
            if unread == 0 {
                if reset {
                    return Moved::Reset;
                }
                if gone || said & (flags::FIN | flags::CLOSED) != 0 {
                    self.end_outward();
                    let _ = kernel::shutdown(self.relay.socket, libc::SHUT_WR);
                    return Moved::Some;
                }
                return moved;
            }
            let from = self.relay.lane.pieces(self.relay.end.peer(), position, unread.min(PART_BYTES));
            match transfer(libc::SYS_sendmsg, self.relay.socket, from) {
                Ok(sent) => {
                    self.socket_full = false;
                    match self.reader().skip(sent, &self.bells()) {
                        Ok(_) | Err(Fault::Gone) => moved = Moved::Some,
                        Err(_) => return Moved::Reset,
                    }
                }
                Err(Errno(libc::EAGAIN | libc::ENOBUFS | libc::ENOMEM)) if reset => return Moved::Reset,
                Err(Errno(libc::EAGAIN)) => {
                    self.socket_full = true;
                    return moved;
                }
                Err(Errno(libc::EINTR)) => {}
                Err(Errno(libc::ENOBUFS | libc::ENOMEM)) => kernel::sleep_ms(),
                Err(_) => return self.drain_socket(),
            }
        }
        moved
    }

    /// The peer's urgent byte, as one to the program. Bytes that later ones made pass are passed over.
    #[cold]
    fn move_urgent_outward(&mut self) -> Moved {
        let Ok(next) = self.reader().urgent_next() else { return Moved::Reset };
        if let Some(byte) = next {
            match kernel::send(self.relay.socket, &[byte], libc::MSG_OOB | libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL) {
                Ok(_) => {}
                Err(Errno(libc::EAGAIN)) => {
                    self.socket_full = true;
                    return Moved::Nothing;
                }
                Err(Errno(libc::EINTR | libc::ENOBUFS | libc::ENOMEM)) => return Moved::Some,
                Err(_) => return self.drain_socket(),
            }
        }
        let passed = match next {
            Some(_) => self.reader().pass_urgent(&self.bells()).map(|()| true),
            None => self.reader().pass(&self.bells()),
        };
        match passed {
            Ok(true) | Err(Fault::Gone) => Moved::Some,
            Ok(false) => Moved::Nothing,
            Err(_) => Moved::Reset,
        }
    }

    /// The program's urgent byte, which the socket gives out in its turn, and which comes next.
    #[cold]
    fn move_urgent_inward(&mut self) -> Moved {
        let mut byte = [0u8];
        match kernel::recv(self.relay.socket, &mut byte, libc::MSG_DONTWAIT) {
            Ok(1) => {}
            // The rest is found by the usual way.
            _ => return Moved::Some,
        }
        let announce = || {
            if self.peer_flags() & flags::SIGNALLED != 0 {
                // A peer that is gone is found by what follows.
                let out_of_band = libc::MSG_OOB | libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
                let _ = kernel::send(self.relay.anchor, &[beeline_wire::hello::BELL], out_of_band);
            }
        };
        match self.writer().write_urgent(Source::from(&byte[..]), &self.bells(), announce) {
            Ok(1) => Moved::Some,
            _ => Moved::Reset,
        }
    }

    /// Bytes that the peer has not read.
    fn unread(&self) -> u32 {
        self.relay.side.tx.tail().wrapping_sub(self.relay.lane.head(self.relay.end.peer()))
    }

    /// Whether the peer's end is reset: by its word, or by its death with bytes of ours unread, or
    /// with bytes undelivered, or as it has said before.
    fn peer_has_reset(&self, said: u32) -> bool {
        if said & flags::RESET != 0 {
            return true;
        }
        // A bridge that vanishes before its end of stream took with it what it had not delivered.
        let bridged = || self.relay.side.is(state::BRIDGED) && said & flags::FIN == 0;
        let finished = || said & flags::FIN != 0 && self.inward == State::Over;
        let aborts = || said & flags::ABORTS != 0 && !finished();
        self.peer_gone && said & flags::CLOSED == 0 && (bridged() || aborts() || self.unread() != 0)
    }

    /// The program has reset the connection. What it sent before still lies in the socket, and goes as far as it fits.
    #[cold]
    fn drain_socket(&mut self) -> Moved {
        self.socket_failed = true;
        while self.inward == State::Open && self.move_inward() == Moved::Some {}
        Moved::Reset
    }

    /// From the socket to the lane.
    fn move_inward(&mut self) -> Moved {
        let mut moved = Moved::Nothing;
        for _ in 0..TURN {
            if self.inward == State::Over {
                return moved;
            }
            let Ok((free, position)) = self.writer().rewound_room() else { return Moved::Reset };
            let no_reader = self.peer_reads_no_more();
            self.ring_full = free == 0 && !no_reader;
            let mut nowhere = 0u8;
            let to = match no_reader {
                true => [(&raw mut nowhere, 1), (core::ptr::null_mut(), 0)],
                false if self.ring_full => return moved,
                false if self.at_mark() => match self.move_urgent_inward() {
                    Moved::Reset => return Moved::Reset,
                    _ => {
                        moved = Moved::Some;
                        continue;
                    }
                },
                false => self.relay.lane.pieces(self.relay.end, position, free.min(PART_BYTES)),
            };
            match transfer(libc::SYS_recvmsg, self.relay.socket, to) {
                // The error of a reset was taken already; what follows the last byte is no end of stream.
                Ok(0) if self.socket_failed => return Moved::Reset,
                Ok(0) => {
                    self.inward = State::Over;
                    self.say_and_unsay(flags::FIN, flags::ABORTS);
                    let _ = kernel::shutdown(self.relay.anchor, libc::SHUT_WR);
                    return Moved::Some;
                }
                // The peer reads no more, and TCP answers such bytes by a reset.
                Ok(_) if no_reader => return Moved::Reset,
                Ok(count) => match self.writer().publish(count as u32, &self.bells()) {
                    Ok(()) => moved = Moved::Some,
                    // It may read what was announced before its bell is rung, and close.
                    Err(Fault::Gone) if self.unread() == 0 => {
                        self.peer_gone = true;
                        moved = Moved::Some;
                    }
                    Err(_) => return Moved::Reset,
                },
                Err(Errno(libc::EAGAIN)) => return moved,
                Err(Errno(libc::EINTR)) => {}
                Err(Errno(libc::ENOBUFS | libc::ENOMEM)) => kernel::sleep_ms(),
                Err(_) => return Moved::Reset,
            }
        }
        moved
    }

    /// Whether the next byte of the socket is urgent.
    fn at_mark(&self) -> bool {
        let mut mark = 0;
        kernel::ioctl_int(self.relay.socket, SIOCATMARK, &mut mark).is_ok() && mark != 0
    }

    /// Whether the peer takes no bytes any more: it has closed, or shut down both halves.
    fn peer_reads_no_more(&self) -> bool {
        let said = self.peer_flags();
        self.peer_gone || said & flags::CLOSED != 0 || said & SHUT_BOTH == SHUT_BOTH
    }

    /// Sets flags of this end, so that the peer's next send looks at them.
    fn say(&self, said: u32) {
        self.say_and_unsay(said, 0);
    }

    /// The same, and takes others back at once.
    fn say_and_unsay(&self, said: u32, unsaid: u32) {
        let (lane, end) = (&self.relay.lane, self.relay.end);
        lane.set_flags(end, lane.flags(end) & !unsaid | said);
        crate::io::force_peer_look(lane, end);
    }

    /// All that was to go out is in the socket, and its end follows: what becomes of it is the kernel's affair.
    fn end_outward(&mut self) {
        self.outward = State::Over;
        self.linger_for_no_time(false);
    }

    /// Whether the socket is reset by its close.
    fn linger_for_no_time(&self, resets: bool) {
        let linger = libc::linger { l_onoff: i32::from(resets), l_linger: 0 };
        let _ = kernel::setsockopt(self.relay.socket, libc::SOL_SOCKET, libc::SO_LINGER, &linger);
    }

    /// Ends both directions for both.
    #[cold]
    fn reset(&mut self) {
        (self.outward, self.inward) = (State::Over, State::Over);
        // A reset is no FIN: only one that was sent before it is seen before it.
        self.say(flags::CLOSED | flags::RESET);
        let _ = kernel::shutdown(self.relay.anchor, libc::SHUT_RDWR);
        self.linger_for_no_time(true);
        let _ = beeline_shm::sys::close(self.relay.socket);
    }
}

/// The anchor's bells but for some that stay there for others.
struct SomeBells {
    relay: Relay,
    kept: u32,
}

impl SomeBells {
    fn anchor(&self) -> AnchorBells {
        AnchorBells(self.relay.anchor)
    }
}

impl Bells for SomeBells {
    fn ring(&self) -> Result<(), BellFault> {
        // The tables, which tell others whether the peer is gone, are not here.
        self.anchor().ring_unless(|| {
            let revents = kernel::poll_now(self.relay.anchor, 0);
            let shut = self.relay.lane.flags(self.relay.end.peer()) & SHUT_BOTH == SHUT_BOTH;
            revents & libc::POLLERR != 0 || revents & libc::POLLHUP != 0 && !shut
        })
    }

    fn queued(&self) -> Result<u32, BellFault> {
        Ok(self.anchor().count()?.saturating_sub(self.kept))
    }

    fn drain(&self, count: u32) -> Result<(), BellFault> {
        self.anchor().drain(count)
    }

    fn plug(&self) {
        self.anchor().plug();
    }

    fn plugged(&self) -> bool {
        self.anchor().plugged()
    }

    fn unplug(&self) {
        self.anchor().unplug();
    }
}

/// sendmsg(2) or recvmsg(2) of the pieces, without waiting.
fn transfer(number: libc::c_long, socket: i32, pieces: [(*mut u8, usize); 2]) -> SysResult {
    let mut parts = pieces.map(|(base, length)| libc::iovec { iov_base: base.cast(), iov_len: length });
    // SAFETY: all-zero is a valid value of this plain C struct.
    let mut message: libc::msghdr = unsafe { core::mem::zeroed() };
    message.msg_iov = parts.as_mut_ptr();
    message.msg_iovlen = if pieces[1].1 == 0 { 1 } else { 2 };
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    // SAFETY: the pieces lie within the mapped lane or are the caller's own; message and iovecs are live.
    unsafe { call(number, [socket as usize, (&raw mut message) as usize, flags as usize, 0, 0, 0]) }
}

#[cfg(test)]
mod tests;
