//! Back to TCP: beginning again when nobody took the hello, and disconnecting.
//!
//! A client may write as soon as it has said hello. If the server's end of the anchor closes before the hello was taken
//! (the server died, closed its listener, or refused the client), or nobody takes it in time ([`super::offers`]), the
//! client withdraws it ([`beeline_lane::offer`]): then nobody has read a byte of the ring, nor will. So the client
//! connects over TCP, from within its own call, and sends what lies in the ring; the app notices nothing but the time
//! it takes.
//!
//! 1. An end that other processes hold, too, does not change: they could not be told. It is reset if its door has died.
//! 2. One thread at a time does this for a connection ([`Desc::leaving`]). A close waits for it, and so does whoever is
//!    about to give the end to another process. A handler of the app that has interrupted that thread does not: what it
//!    does itself on the connection goes on as far as it can, and fails when the time for this is over.
//! 3. The hello is withdrawn before anything else. A server that has taken it after all keeps the client, and one that
//!    comes later finds no client: never does it get two for one, as it would if TCP came first. It is withdrawn in a
//!    section in which nobody forks, and only from then on the connection may be lost.
//! 4. The TCP connection is made without any lock held; the switch itself is made under both locks of the
//!    description, and only with everything in the ring handed to the kernel.
//! 5. An offered lane takes no more than TCP does ([`crate::untaken`]). What the kernel does not take at once all the
//!    same is waited for, for a bounded time. If it is not taken then, the TCP connection is reset: a server never
//!    takes a part for the whole.
//! 6. While the door stands, TCP's queue is looked at before. If it is full nevertheless, the lane is offered again:
//!    nothing has been sent.
//! 7. A descriptor that was closed meanwhile, or a second thread that comes here, finds that the description is
//!    no lane any more.
//! 8. The TCP connection comes from the same address and port, if those are to be had.
//! 9. Where both ends were to meet across network namespaces ([`super::agent`]) it is the one below the lane, which the
//!    kernel has made before.
//! 10. Who listens there by now may be somebody else. Over TCP the connection would have ended with its listener; one
//!     of another user's is told nothing of it.

use core::net::SocketAddr;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

use beeline_lane::{End, LaneMemory, Sink, Writer, flags, offer};
use beeline_meeting::agent::farewell;
use beeline_shm::sys;
use beeline_stats::{Counter, Reason, Role};

mod carried;
mod numbers;

use super::{lookup, offers, pool, ports};
use crate::desc::Desc;
use crate::kernel::{self, SockAddr};
use crate::linux::{TCP_CLOSE, TCP_SYN_SENT};
use crate::operations::Fallback;
use crate::side::state;
use crate::wait;
use crate::{Errno, Outcome, changing, guards, io, slots, stats, table, thread, watchers};
pub(crate) use carried::carry_options;
use carried::set_linger;
use kernel::tcp_state;

/// How long the kernel may take to connect or to take the bytes. On one host it takes microseconds; a full
/// accept queue makes it repeat the handshake after one second and after three.
const PATIENCE_NS: u64 = 4_000_000_000;
/// How long others wait until it is done, at most: somewhat longer than it takes.
const OTHERS_NS: u64 = 5_000_000_000;
/// How long it may take to connect where the lane is as good.
const BRIEF_NS: u64 = 20_000_000;

/// Takes the connection over to TCP, whose door has died.
///
/// No lock may be held.
pub fn late_fallback(fd: i32, desc: &'static Desc) -> Fallback {
    begin_again(fd, desc, Reason::DoorDied, false)
}

/// Takes a connection over to TCP though its door stands, for this reason. No lock may be held.
pub(super) fn withdraw(fd: i32, desc: &'static Desc, reason: Reason) -> Fallback {
    let fallback = begin_again(fd, desc, reason, true);
    if fallback == Fallback::Lost && desc.is_lane() {
        io::reset(desc.side(), libc::ECONNRESET);
        watchers::notify(fd, desc);
    }
    fallback
}

/// The last fd of a connection is about to be closed. If nobody has taken its hello, and nobody does in a moment, the
/// bytes that are still in the ring go to whoever listens on TCP now, as they would have been in the kernel's hands.
pub fn before_close(fd: i32, desc: &'static Desc) {
    let Some(pin) = guards::pin(fd, desc) else { return };
    // Another thread may be about to take it over to TCP. It needs the number.
    await_other(desc);
    if !may_begin_again(desc) || !desc.keepers.has_last_number() {
        return;
    }
    // A door that dies leaves an error beside the hang-up, because nobody took the hello. Where there was none to say,
    // and both ways are shut, it is found as one that nobody takes.
    if io::tells_of_end(desc, kernel::poll_now(fd, 0)) {
        if desc.side().tx.bytes() != 0 {
            pin.while_waiting(|| late_fallback(fd, desc));
        }
    } else if !offers::stays_at_last(desc) {
        pin.while_waiting(|| withdraw(fd, desc, Reason::HelloNotTaken));
    }
}

/// Waits until no other thread is about to take a connection over to TCP, or for as long as that may take.
pub(super) fn await_other(desc: &'static Desc) {
    let mut until = None;
    while desc.leaving.load(Acquire) && desc.is_lane() && !is_interrupted(desc) {
        let now_ns = kernel::now_ns();
        if now_ns >= *until.get_or_insert(now_ns.saturating_add(OTHERS_NS)) {
            return;
        }
        kernel::sleep_ms();
    }
}

/// Whether it is this very thread that takes the connection over: a handler of the app has interrupted it, and it goes
/// on when that has returned. What the handler has closed meanwhile, it finds closed.
fn is_interrupted(desc: &Desc) -> bool {
    thread::with(|thread| thread.takes_over.load(Relaxed)) == core::ptr::from_ref(desc).addr()
}

/// Whether it has had the time that this may take: it does not go on before the handler ends, which may wait for it.
fn is_stuck(desc: &Desc) -> bool {
    let since_ns = thread::with(|thread| thread.takes_over_ns.load(Relaxed));
    is_interrupted(desc) && kernel::now_ns().saturating_sub(since_ns) > OTHERS_NS
}

/// Whether a thread takes a connection over to TCP.
pub(super) fn is_any_leaving() -> bool {
    let mut any = false;
    table::for_each(|_, desc| any |= desc.leaving.load(Acquire) && desc.is_lane());
    any
}

/// Whether nobody has read anything, and nobody else holds this end.
fn may_begin_again(desc: &'static Desc) -> bool {
    if !desc.is_lane() || desc.end() != End::Client || desc.shared.load(Relaxed) {
        return false;
    }
    let (lane, side) = (desc.lane(), desc.side());
    let untouched = lane.flags(End::Server) & flags::TAKEN == 0 && lane.head(End::Server) == 0;
    untouched && side.holders.load(Relaxed) <= 1 && !side.is(state::RESET | state::TAKEN)
}

/// Rule 2. `None` if another thread is at it, or this one, below a handler.
fn taking_over<R>(desc: &'static Desc, body: impl FnOnce() -> R) -> Option<R> {
    if desc.leaving.load(Acquire) && is_interrupted(desc) {
        return None;
    }
    let takes_over = |address| thread::with(|thread| thread.takes_over.swap(address, Relaxed));
    thread::with(|thread| thread.takes_over_ns.store(kernel::now_ns(), Relaxed));
    let before = takes_over(core::ptr::from_ref(desc).addr());
    if desc.leaving.swap(true, AcqRel) {
        takes_over(before);
        return None;
    }
    let begun = (desc, before);
    let end = |(desc, before): &(&'static Desc, usize)| {
        desc.leaving.store(false, Release);
        thread::with(|thread| thread.takes_over.store(*before, Relaxed));
    };
    let result = crate::cancel::undoing(&begun, end, body);
    end(&begun);
    Some(result)
}

fn begin_again(fd: i32, desc: &'static Desc, reason: Reason, stands: bool) -> Fallback {
    let met = desc.is_lane() && desc.side().is(state::MET);
    let Some(fallback) = taking_over(desc, || begin_alone(fd, desc, reason, stands)) else {
        kernel::sleep_ms();
        return if is_stuck(desc) { Fallback::Lost } else { Fallback::Kept };
    };
    if fallback == Fallback::OverTcp {
        stats::count(Counter::LateFallbacks, 1);
        stats::fell_back(Role::Client, if met { Reason::AgentNotTaken } else { reason });
    }
    fallback
}

fn begin_alone(fd: i32, desc: &'static Desc, reason: Reason, stands: bool) -> Fallback {
    // While the door stands nothing is lost by staying: somebody may have taken the hello just now.
    let stays = if stands { Fallback::Kept } else { Fallback::Lost };
    if !may_begin_again(desc) {
        return stays;
    }
    let (side, lane) = (desc.side(), desc.lane());
    let (local, remote) = (side.local.get(), side.remote.get());
    let met = side.is(state::MET);
    if stands && !met && lookup::is_crowded(remote, local) {
        return stays;
    }
    {
        // Who forks either has made the end a shared one, or sees that it is being left.
        let _changing = changing::changing();
        if !may_begin_again(desc) {
            return stays;
        }
        if !offer::withdraw(lane.offer()) {
            side.mark(state::TAKEN);
            side.state.fetch_and(!state::OFFERED, AcqRel);
            return stays;
        }
        let fd = table::number_of(desc, fd);
        if met && table::leads_to(fd, desc) {
            // For good: such an offer is not made again, as the TCP connection stands.
            farewell::say(fd);
        }
    }
    let now_ns = kernel::now_ns();
    let tcp = match connected(desc, now_ns.saturating_add(if stands { BRIEF_NS } else { PATIENCE_NS })) {
        Ok(tcp) => tcp,
        Err(Errno(libc::ETIMEDOUT)) if stands => {
            offer::offer_again(lane.offer());
            return Fallback::Kept;
        }
        Err(_) => return Fallback::Lost,
    };
    let holding = if reason == Reason::DoorDied { holding_listener(desc, local) } else { None };
    // Until all is handed over: a server that has read a part must not take it for the whole, even if we are killed.
    set_linger(tcp.fd, Some(0));
    let done = switch(fd, desc, tcp.fd, now_ns.saturating_add(PATIENCE_NS));
    drop(tcp);
    if done && (met || reason == Reason::HelloNotTaken) {
        // Where both ends were to meet, one whose parcel was closed is a finding like one that nobody took: its server
        // asked too early for it, or the agent does not let them meet, and which of both no single one tells.
        lookup::note_untaken(remote, desc.offered_ns.load(Relaxed));
    } else if done && let Some(cookie) = holding {
        // They go by TCP for a while, without a lane that is made in vain.
        lookup::note_barred(remote, cookie, Reason::AddressInUse);
    }
    if done { Fallback::OverTcp } else { Fallback::Lost }
}

/// The listener that was to hold the client's port. One that has sent such a client away mostly had no number for that,
/// and has none for the next ones.
fn holding_listener(desc: &Desc, client: SocketAddr) -> Option<u64> {
    let lane = desc.pooled().filter(|lane| lane.holder().is_none() && ports::is_handed_out(client.port()));
    lane.map(|lane| lane.cookie.load(Relaxed))
}

/// A TCP socket for a while: one of our own, or the one below the lane, which stays there.
struct Tcp {
    fd: i32,
    is_ours: bool,
}

impl Drop for Tcp {
    fn drop(&mut self) {
        if self.is_ours {
            let _ = sys::close(self.fd);
        }
    }
}

/// A TCP socket connected to the connection's server, non-blocking.
///
/// # Errors
/// `ETIMEDOUT` when that takes longer than until `deadline`, or those of connect(2).
fn connected(desc: &'static Desc, deadline: u64) -> Result<Tcp, Errno> {
    let side = desc.side();
    let family = side.family.load(Relaxed) as i32;
    let socket = socket_for(desc, family)?;
    let tcp = socket.fd;
    if side.is(state::MET) {
        // The kernel has made this connection long ago. It takes it for one that was reported only now. One that was
        // reset is left alone: its error is the app's to see.
        if !side.is(state::CONNECTING) && tcp_state(tcp) != Some(TCP_CLOSE) {
            let _ = kernel::connect(tcp, &SockAddr::internet(side.remote.get(), family));
        }
        return Ok(socket);
    }
    let result = match kernel::connect(tcp, &SockAddr::internet(side.remote.get(), family)) {
        // Whatever ended the wait: a connection that stands may have been accepted.
        Err(Errno(libc::EINPROGRESS)) if await_writable(tcp, deadline) || tcp_state(tcp) != Some(TCP_SYN_SENT) => {
            match kernel::getsockopt::<i32>(tcp, libc::SOL_SOCKET, libc::SO_ERROR) {
                Ok(0) => Ok(0),
                Ok(errno) => Err(Errno(errno)),
                Err(errno) => Err(errno),
            }
        }
        Err(Errno(libc::EINPROGRESS)) => Err(Errno(libc::ETIMEDOUT)),
        result => result,
    };
    let result = result.and_then(|done| if is_anothers(desc) { Err(Errno(libc::ECONNRESET)) } else { Ok(done) });
    if result.is_ok() && !side.is(state::CONNECTING) {
        // Only now the kernel takes it for a connection that has been reported to the app.
        let _ = kernel::connect(tcp, &SockAddr::internet(side.remote.get(), family));
    }
    if let Err(errno) = result {
        // The socket that holds the app's port stays bound.
        let _ = kernel::connect(tcp, &SockAddr::empty());
        return Err(errno);
    }
    Ok(socket)
}

/// Rule 10. Where nobody can be asked, or the client did not know the first one either, it is believed to be the same.
fn is_anothers(desc: &Desc) -> bool {
    let (side, lane) = (desc.side(), desc.pooled());
    lane.and_then(|lane| lane.owner().map(|owner| (lane.cookie.load(Relaxed), owner)))
        .is_some_and(|(cookie, owner)| lookup::has_changed_hands(side.remote.get(), side.local.get(), cookie, owner))
}

/// A TCP socket with the connection's own address.
fn socket_for(desc: &'static Desc, family: i32) -> Result<Tcp, Errno> {
    let lane: Option<&pool::PooledLane> = desc.pooled();
    if let Some(holder) = lane.and_then(pool::PooledLane::holder) {
        // It is what the app bound, and nobody else uses it. Where there is no other number for it, its own will do.
        let tcp = match kernel::duplicate(holder, 0, true) {
            Ok(tcp) => Tcp { fd: tcp, is_ours: true },
            Err(Errno(libc::EMFILE)) => Tcp { fd: holder, is_ours: false },
            Err(errno) => return Err(errno),
        };
        let _ = kernel::set_status_flags(tcp.fd, libc::O_NONBLOCK);
        return Ok(tcp);
    }
    let kind = libc::SOCK_STREAM | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
    let tcp = kernel::socket(family, kind, libc::IPPROTO_TCP)? as i32;
    // The name is reserved among lanes only: somebody else may have the port, and then it is another.
    let _ = kernel::bind(tcp, &SockAddr::internet(desc.side().local.get(), family));
    Ok(Tcp { fd: tcp, is_ours: true })
}

fn await_writable(fd: i32, deadline: u64) -> bool {
    wait::for_events(fd, libc::POLLOUT, deadline) != 0
}

/// Hands the ring's bytes to the kernel and puts the TCP socket in the anchor's place.
fn switch(fd: i32, desc: &'static Desc, tcp: i32, deadline: u64) -> bool {
    let mut sent = 0u32;
    loop {
        {
            let _changing = changing::changing();
            let fd = table::number_of(desc, fd);
            if !table::leads_to(fd, desc) || !may_begin_again(desc) {
                return false;
            }
            match watchers::while_out(fd, desc, || exchange(fd, desc, tcp, &mut sent)) {
                Handed::All => {
                    slots::close_slot(desc);
                    return true;
                }
                Handed::Part => {}
                Handed::Failed => return false,
            }
        }
        if !await_writable(tcp, deadline) {
            return false;
        }
    }
}

/// `connect(2)` with `AF_UNSPEC`: the connection is aborted, and the socket may be connected again. That is left to
/// the kernel.
pub(super) fn disconnect(fd: i32, desc: &'static Desc) -> Outcome {
    let Some(pin) = guards::pin(fd, desc) else { return Outcome::Kernel };
    pin.while_waiting(|| await_other(desc));
    if !desc.is_lane() {
        return Outcome::Kernel;
    }
    let done = pin.while_waiting(|| taking_over(desc, || disconnect_alone(fd, desc)));
    done.unwrap_or(Outcome::fail(libc::EOPNOTSUPP))
}

fn disconnect_alone(fd: i32, desc: &'static Desc) -> Outcome {
    let socket = match unconnected(desc) {
        Ok(socket) => socket,
        Err(errno) => return Outcome::Fail(errno),
    };
    let tcp = socket.fd;
    let done = {
        let _changing = changing::changing();
        // The other holders of a shared end could not be told.
        let alone = table::leads_to(fd, desc) && desc.is_lane() && !desc.shared.load(Relaxed);
        let may = alone && table::may_be_put_under(fd, desc, if socket.is_ours { tcp } else { 0 });
        if may {
            watchers::while_out(fd, desc, || {
                let _both = desc.lock_both();
                let (lane, end) = (desc.lane(), desc.end());
                lane.set_flags(end, lane.flags(end) | flags::CLOSED | flags::RESET);
                become_tcp(fd, desc, tcp);
            });
        }
        may
    };
    drop(socket);
    if !done {
        return Outcome::fail(libc::EOPNOTSUPP);
    }
    slots::close_slot(desc);
    Outcome::OK
}

/// A TCP socket that is not connected. It has the address that the app has bound, which stays bound.
fn unconnected(desc: &'static Desc) -> Result<Tcp, Errno> {
    let family = desc.family.load(Relaxed) as i32;
    if desc.pooled().is_some_and(|lane| lane.holder().is_some()) && !desc.side().is(state::MET) {
        return socket_for(desc, family);
    }
    let kind = libc::SOCK_STREAM | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
    Ok(Tcp { fd: kernel::socket(family, kind, libc::IPPROTO_TCP)? as i32, is_ours: true })
}

/// Empties the ring and, if that succeeds, makes the switch. No other thread sends or receives meanwhile.
fn exchange(fd: i32, desc: &'static Desc, tcp: i32, sent: &mut u32) -> Handed {
    let _both = desc.lock_both();
    if !may_begin_again(desc) {
        return Handed::Failed;
    }
    let (lane, side) = (desc.lane(), desc.side());
    let writer = Writer::new(lane, End::Client, &side.tx, &side.rx);
    let handed = match numbers::hand_over(side, &writer, tcp, sent) {
        Handed::All => hand_over(&writer, tcp, sent),
        other => other,
    };
    match handed {
        Handed::All => {}
        other => return other,
    }
    if side.is(state::SHUT_WR) {
        let _ = kernel::shutdown(tcp, libc::SHUT_WR);
    }
    if side.is(state::SHUT_RD) {
        let _ = kernel::shutdown(tcp, libc::SHUT_RD);
    }
    if become_tcp(fd, desc, tcp) { Handed::All } else { Handed::Failed }
}

/// Puts `tcp` in the anchor's place, with the app's options on it. The caller holds both locks. The lane stays
/// mapped until the description ends: sleepers may still look at it.
fn become_tcp(fd: i32, desc: &'static Desc, tcp: i32) -> bool {
    let side = desc.side();
    carry_options(side, tcp);
    if side.nonblock.load(Relaxed) == 0 {
        let _ = kernel::set_status_flags(tcp, 0);
    }
    if desc.lane().flags(desc.end()) & flags::SIGNALLED != 0 {
        super::owner::carry_owner(fd, tcp);
    }
    let signals = kernel::status_flags(fd).unwrap_or(0) & libc::O_ASYNC;
    if !table::put_under(fd, desc, tcp) {
        return false;
    }
    if signals != 0 {
        // By the app's number, which the kernel tells with the signal.
        let flags = kernel::status_flags(fd).unwrap_or(0);
        let _ = kernel::set_status_flags(fd, flags | signals);
    }
    if let Some(lane) = desc.pooled() {
        lane.spoil();
    }
    offers::remove(desc);
    // One lane in the life of a description: the next connection is the kernel's.
    desc.draft.connectable.settle();
    desc.mark_tcp();
    true
}

/// What came of handing the ring's bytes to the kernel.
enum Handed {
    /// The ring is empty.
    All,
    /// The kernel takes no more at the moment.
    Part,
    /// It cannot be done, or not any more: the TCP connection broke, the peer has spoilt the ring, the end may not
    /// leave its lane, or the kernel refuses a number. A part may have been handed over: the TCP connection is reset
    /// (rule 5).
    Failed,
}

/// Sends what is in the ring from `sent` on.
fn hand_over(writer: &Writer<'_, LaneMemory>, tcp: i32, sent: &mut u32) -> Handed {
    io::with_part(|part| hand_over_by(writer, tcp, sent, part))
}

fn hand_over_by(writer: &Writer<'_, LaneMemory>, tcp: i32, sent: &mut u32, bytes: &mut [u8]) -> Handed {
    loop {
        // An urgent byte goes by itself.
        let (length, urgent) = match writer.before_urgent(*sent) {
            Ok(None) => (bytes.len(), 0),
            Ok(Some(0)) => (1, libc::MSG_OOB),
            Ok(Some(before)) => (bytes.len().min(before as usize), 0),
            Err(_) => return Handed::Failed,
        };
        let length = match writer.copy_back(*sent, Sink::from(bytes.get_mut(..length).unwrap_or_default())) {
            Ok(0) => return Handed::All,
            Ok(length) => length,
            Err(_) => return Handed::Failed,
        };
        let part = bytes.get(..length).unwrap_or_default();
        match kernel::send(tcp, part, urgent | libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL) {
            Ok(taken) => *sent = sent.wrapping_add(taken as u32),
            Err(Errno(libc::EINTR)) => {}
            Err(Errno(libc::EAGAIN | libc::ENOBUFS | libc::ENOMEM)) => return Handed::Part,
            Err(_) => return Handed::Failed,
        }
    }
}
