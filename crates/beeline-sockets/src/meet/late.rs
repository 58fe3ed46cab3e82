//! Back to TCP: beginning again when the door died before anybody took the hello, and disconnecting.
//!
//! A client may write as soon as it has said hello. If the server's end of the anchor closes before
//! [`flags::TAKEN`] was set (the server died, closed its listener, or refused the client), then nobody has read
//! a byte of the ring: the server sets the flag before anything else, and what it stored before it died is
//! visible to whoever has seen the kernel report its death. So the client connects over TCP, from within its
//! own call, and sends what lies in the ring; the app notices nothing but the time it takes.
//!
//! 1. An end that other processes hold, too, does not change: they could not be told. It is reset.
//! 2. The TCP connection is made without any lock held; the switch itself is made under both locks of the
//!    description, and only with everything in the ring handed to the kernel.
//! 3. What the kernel does not take at once (a server that never accepts) is waited for, for a bounded time. If it
//!    is not taken then, the TCP connection is reset: a server never takes a part for the whole.
//! 4. A descriptor that was closed meanwhile, or a second thread that comes here, finds that the description is
//!    no lane any more.

use core::net::SocketAddr;
use core::sync::atomic::Ordering::Relaxed;

use beeline_lane::{End, LaneMemory, Sink, Writer, flags};
use beeline_shm::sys;
use beeline_stats::{Counter, Reason, Role};

use super::connect::{each_fd, put_under};
use crate::desc::Desc;
use crate::kernel::{self, SockAddr};
use crate::side::{SideState, option_of, state};
use crate::wait::{self, Woken};
use crate::{Errno, Outcome, epoll, life, stats, table};

/// How long the kernel may take to connect or to take the bytes. On one host it takes microseconds; a full
/// accept queue makes it repeat the handshake after one second and after three.
const PATIENCE_NS: u64 = 4_000_000_000;

/// Takes the connection over to TCP. `false` when that is not possible: the connection is lost then.
///
/// No lock may be held.
pub fn late_fallback(fd: i32, desc: &'static Desc) -> bool {
    if !may_begin_again(desc) {
        return false;
    }
    let side = desc.side();
    let remote = side.remote.get();
    let deadline = kernel::now_ns().saturating_add(PATIENCE_NS);
    let Some(tcp) = connected(remote, side.family.load(Relaxed) as i32, deadline) else { return false };
    // Until all is handed over: a server that has read a part must not take it for the whole, even if we are killed.
    set_linger(tcp, Some(0));
    let done = switch(fd, desc, tcp, deadline);
    let _ = sys::close(tcp);
    if done {
        stats::count(Counter::LateFallbacks, 1);
        stats::fell_back(Role::Client, Reason::DoorDied);
    }
    done
}

/// The last fd of a connection is about to be closed. If the door died meanwhile, the bytes that are still in the
/// ring go to whoever listens on TCP now, as they would have been in the kernel's hands.
pub fn before_close(fd: i32, desc: &'static Desc) {
    let Some(_pin) = table::pin(fd, desc) else { return };
    if !may_begin_again(desc) || desc.side().tx.bytes() == 0 || desc.refs.load(Relaxed) > 1 {
        return;
    }
    // A door that dies leaves an error beside the hang-up, because nobody took the hello.
    if crate::io::tells_of_end(desc, kernel::poll_now(fd, 0)) {
        late_fallback(fd, desc);
    }
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

/// A TCP socket connected to `remote`, non-blocking and close-on-exec.
fn connected(remote: SocketAddr, family: i32, deadline: u64) -> Option<i32> {
    let kind = libc::SOCK_STREAM | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
    let tcp = kernel::socket(family, kind, libc::IPPROTO_TCP).ok()? as i32;
    let result = match kernel::connect(tcp, &SockAddr::internet(remote, family)) {
        Err(Errno(libc::EINPROGRESS)) if await_writable(tcp, deadline) => {
            match kernel::getsockopt::<i32>(tcp, libc::SOL_SOCKET, libc::SO_ERROR) {
                Ok(0) => Ok(0),
                _ => Err(Errno(libc::ECONNREFUSED)),
            }
        }
        result => result,
    };
    if result.is_err() {
        let _ = sys::close(tcp);
        return None;
    }
    Some(tcp)
}

/// Waits for a socket to become writable. Handlers of the app may run meanwhile; the wait goes on.
fn await_writable(fd: i32, deadline: u64) -> bool {
    loop {
        let mut fds = [libc::pollfd { fd, events: libc::POLLOUT, revents: 0 }];
        match wait::sleep(&mut fds, Some(deadline), None) {
            Woken::Ready(_) => return true,
            Woken::Signal { .. } if kernel::now_ns() < deadline => {}
            _ => return false,
        }
    }
}

/// Hands the ring's bytes to the kernel and puts the TCP socket in the anchor's place.
fn switch(fd: i32, desc: &'static Desc, tcp: i32, deadline: u64) -> bool {
    let mut sent = 0u32;
    loop {
        {
            let _changing = life::changing();
            if !table::leads_to(fd, desc) || !may_begin_again(desc) {
                return false;
            }
            each_fd(fd, desc, |fd| epoll::take_out(fd, desc));
            let handed = exchange(fd, desc, tcp, &mut sent);
            each_fd(fd, desc, |fd| epoll::put_back(fd, desc));
            match handed {
                Handed::All => {
                    stats::close_slot(desc);
                    return true;
                }
                Handed::Part => {}
                Handed::Nothing => return false,
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
    let family = desc.family.load(Relaxed) as i32;
    let kind = libc::SOCK_STREAM | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
    let tcp = match kernel::socket(family, kind, libc::IPPROTO_TCP) {
        Ok(tcp) => tcp as i32,
        Err(errno) => return Outcome::Fail(errno),
    };
    let done = {
        let _changing = life::changing();
        // The other holders of a shared end could not be told.
        let alone = table::leads_to(fd, desc) && desc.is_lane() && !desc.shared.load(Relaxed);
        if alone {
            each_fd(fd, desc, |fd| epoll::take_out(fd, desc));
            {
                let _both = desc.lock_both();
                let (lane, end) = (desc.lane(), desc.end());
                lane.set_flags(end, lane.flags(end) | flags::CLOSED | flags::RESET);
                become_tcp(fd, desc, tcp);
            }
            each_fd(fd, desc, |fd| epoll::put_back(fd, desc));
        }
        alone
    };
    let _ = sys::close(tcp);
    if !done {
        return Outcome::fail(libc::EOPNOTSUPP);
    }
    stats::close_slot(desc);
    Outcome::OK
}

/// Empties the ring and, if that succeeds, makes the switch. No other thread sends or receives meanwhile.
fn exchange(fd: i32, desc: &'static Desc, tcp: i32, sent: &mut u32) -> Handed {
    let _both = desc.lock_both();
    if !may_begin_again(desc) {
        return Handed::Nothing;
    }
    let (lane, side) = (desc.lane(), desc.side());
    match hand_over(&Writer::new(lane, End::Client, &side.tx, &side.rx), tcp, sent) {
        Handed::All => {}
        other => return other,
    }
    if side.is(state::SHUT_WR) {
        let _ = kernel::shutdown(tcp, libc::SHUT_WR);
    }
    if side.is(state::SHUT_RD) {
        let _ = kernel::shutdown(tcp, libc::SHUT_RD);
    }
    if become_tcp(fd, desc, tcp) { Handed::All } else { Handed::Nothing }
}

/// Puts `tcp` in the anchor's place, with the app's options on it. The caller holds both locks. The lane stays
/// mapped until the description ends: sleepers may still look at it.
fn become_tcp(fd: i32, desc: &'static Desc, tcp: i32) -> bool {
    let side = desc.side();
    carry_options(side, tcp);
    if side.nonblock.load(Relaxed) == 0 {
        let _ = kernel::fcntl(tcp, libc::F_SETFL, 0);
    }
    if !put_under(fd, desc, tcp) {
        return false;
    }
    super::spoil_lane(desc);
    // One lane in the life of a description: the next connection is the kernel's.
    desc.draft.blocked_by.store(Reason::ConnectPending as u16 + 1, Relaxed);
    desc.mark_tcp();
    true
}

enum Handed {
    /// The ring is empty.
    All,
    /// The kernel takes no more at the moment.
    Part,
    /// The TCP connection broke.
    Nothing,
}

/// Sends what is in the ring from `sent` on.
fn hand_over(writer: &Writer<'_, LaneMemory>, tcp: i32, sent: &mut u32) -> Handed {
    let mut bytes = [0u8; 4096];
    loop {
        let length = match writer.copy_back(*sent, Sink::from(&mut bytes[..])) {
            Ok(0) => return Handed::All,
            Ok(length) => length,
            Err(_) => return Handed::Nothing,
        };
        let part = bytes.get(..length).unwrap_or_default();
        match kernel::send(tcp, part, libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL) {
            Ok(taken) => *sent = sent.wrapping_add(taken as u32),
            Err(Errno(libc::EINTR)) => {}
            Err(Errno(libc::EAGAIN | libc::ENOBUFS | libc::ENOMEM)) => return Handed::Part,
            Err(_) => return Handed::Nothing,
        }
    }
}

/// Sets on the TCP socket what the app had set on the lane. Options that the kernel refuses now it would have
/// refused then.
pub(crate) fn carry_options(side: &SideState, tcp: i32) {
    for option in &side.options {
        let key = option.key.load(Relaxed);
        if key != 0 {
            let (level, name) = option_of(key);
            let _ = kernel::setsockopt(tcp, level, name, &option.value.load(Relaxed));
        }
    }
    for (name, timeout) in [(libc::SO_RCVTIMEO, &side.rcv_timeout_ns), (libc::SO_SNDTIMEO, &side.snd_timeout_ns)] {
        let timeout_us = (timeout.load(Relaxed) / 1000) as i64;
        if timeout_us != 0 {
            let value = libc::timeval { tv_sec: timeout_us / 1_000_000, tv_usec: timeout_us % 1_000_000 };
            let _ = kernel::setsockopt(tcp, libc::SOL_SOCKET, name, &value);
        }
    }
    let lowat = side.rcv_lowat.load(Relaxed);
    if lowat > 1 {
        let _ = kernel::setsockopt(tcp, libc::SOL_SOCKET, libc::SO_RCVLOWAT, &(lowat as i32));
    }
    set_linger(tcp, side.linger.load(Relaxed).checked_sub(1));
}

fn set_linger(tcp: i32, seconds: Option<u32>) {
    let value = libc::linger { l_onoff: i32::from(seconds.is_some()), l_linger: seconds.unwrap_or(0) as i32 };
    let _ = kernel::setsockopt(tcp, libc::SOL_SOCKET, libc::SO_LINGER, &value);
}
