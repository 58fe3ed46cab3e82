//! Receiving while a connection moves from TCP to its lane: rule 12 of `docs/design/0009-moving.md`.
//!
//! 1. What comes over TCP, up to the peer's seam, comes first. It is read from the holder, under the rx lock, and never waited for there.
//! 2. The crossing is over when the seam is known and all before it was read; or when TCP says that nothing more will come.
//! 3. Whoever sleeps does so on the holder as well, and on the holder alone once the seam is known: the ring may have something by then, which is not
//!    to be read yet.
//! 4. Whoever ends the crossing shuts the holder down for reading, which sends nothing: it is readable from then on, so nobody sleeps on it alone any
//!    more. So the crossing ends in the call that has read the last byte before the seam, if that is known: nobody else may come for a while.
//! 5. What the peer says of its end in the lane, and what the anchor says, comes behind all that comes over TCP: the receiving half is not over before
//!    the crossing is.

use beeline_lane::{End, offer};
use beeline_shm::sys::call;
use core::sync::atomic::Ordering::{Acquire, Relaxed};

use crate::desc::{Desc, RxGuard};
use crate::side::{SideState, reset, state};
use crate::{Errno, kernel, stream};
use beeline_meeting::pool::PooledLane;

/// Whether bytes to this end still come over TCP.
#[inline]
pub(crate) fn crosses(side: &SideState) -> bool {
    side.is(state::CROSSING)
}

/// The TCP socket below a lane that crosses.
pub(crate) fn holder(desc: &Desc) -> Option<i32> {
    if crosses(desc.side()) { desc.pooled().and_then(PooledLane::holder) } else { None }
}

/// Nothing more comes over TCP. The caller has the rx lock.
fn end(desc: &Desc, holder: Option<i32>) {
    desc.side().cross(false);
    desc.moving.has_crossed();
    if let Some(holder) = holder {
        let _ = kernel::shutdown(holder, libc::SHUT_RD);
    }
}

/// Whether a client has gone, and the server has read all that came before: it has missed to follow if it is about to wait, since bytes were read
/// where nobody counts.
pub(crate) fn is_overdue(fd: i32, desc: &'static Desc) -> bool {
    let seam = desc.moving.look(|lane| {
        let gone = lane.memory().offer().load(Acquire) == offer::GONE;
        lane.memory().seam(End::Client).filter(|_| gone)
    });
    seam.flatten().is_some_and(|seam| stream::is_read_up_to(fd, seam))
}

/// Whether TCP has yet to say how the peer has ended, if it has.
pub(crate) fn is_open(desc: &Desc) -> bool {
    holder(desc).is_some_and(stream::is_established)
}

/// What a sleep is to be for beside the anchor, and whether the anchor has something to tell: not while there is more to come over TCP for
/// certain. Nobody may have read since that was all.
pub(crate) fn below(desc: &Desc) -> Option<(i32, bool)> {
    if !desc.moving.may_cross() {
        return None;
    }
    let Some(holder) = holder(desc) else {
        // Another process has ended it.
        desc.moving.has_crossed();
        return None;
    };
    let seam = desc.lane().seam(desc.end().peer());
    Some((holder, seam.is_none_or(|seam| stream::is_read_up_to(holder, seam))))
}

/// What is unread on TCP.
pub(crate) fn unread(desc: &Desc) -> u32 {
    holder(desc).map_or(0, stream::unread)
}

/// What the kernel answers to a request (`SIOCOUTQ`, `SIOCOUTQNSD`) about what was sent over TCP, before the connection moved.
pub(crate) fn sent(desc: &Desc, request: u64) -> u32 {
    let mut bytes = 0;
    if let Some(holder) = desc.pooled().filter(|_| desc.moving.has_moved()).and_then(PooledLane::holder) {
        let _ = kernel::ioctl_int(holder, request, &mut bytes);
    }
    bytes.max(0).cast_unsigned()
}

/// What poll(2) says of what comes over TCP. `None` if the ring is to be asked.
pub(super) fn poll_mask(desc: &Desc) -> Option<i16> {
    let holder = holder(desc)?;
    let asked = libc::POLLIN | libc::POLLRDHUP;
    let found = kernel::poll_now(holder, asked) & (asked | libc::POLLERR | libc::POLLHUP);
    let seam = desc.lane().seam(desc.end().peer());
    if seam.is_some_and(|seam| stream::is_read_up_to(holder, seam)) {
        return None;
    }
    // An end, or an error, is something to read; what it is, reading tells.
    Some(if found == 0 { 0 } else { libc::POLLIN | libc::POLLRDNORM })
}

/// Moves what has come over TCP to where the app wants it, `length` bytes at most, with flags of recv(2). `None` once the ring is to be read.
///
/// # Safety
/// The address must be writable for that many bytes, unless the flags say that nothing is to be written.
pub(super) unsafe fn receive(guard: &RxGuard, address: *mut u8, length: usize, flags: i32) -> Option<usize> {
    let (desc, side) = (guard.desc, guard.side);
    let Some(holder) = holder(desc) else {
        end(desc, None);
        return None;
    };
    if length == 0 {
        // TCP answers that with 0, which is no end here.
        return Some(0);
    }
    let peeks = flags & libc::MSG_PEEK != 0;
    let flags = flags | libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    loop {
        // In this order: behind a seam that is known now nothing comes.
        let seam = guard.lane.seam(desc.end().peer());
        let args = [holder as usize, address as usize, length, flags as usize, 0, 0];
        // SAFETY: forwarded from the caller.
        let found = unsafe { call(libc::SYS_recvfrom, args) };
        match found {
            Ok(count @ 1..) => {
                if !peeks && seam.is_some_and(|seam| stream::is_read_up_to(holder, seam)) {
                    end(desc, Some(holder));
                }
                return Some(count);
            }
            Err(Errno(libc::EINTR)) => continue,
            _ => {}
        }
        if seam.is_some_and(|seam| stream::is_read_up_to(holder, seam)) {
            end(desc, Some(holder));
            return None;
        }
        if seam.is_none() && guard.lane.seam(desc.end().peer()).is_some() {
            continue;
        }
        match found {
            Err(Errno(libc::EAGAIN)) => return Some(0),
            // The peer has ended on TCP, before or while it moved.
            Ok(_) => {
                side.mark(state::PEER_FIN);
                end(desc, Some(holder));
            }
            Err(Errno(errno)) => {
                reset(side, errno);
                end(desc, Some(holder));
            }
        }
        return None;
    }
}

/// Shows what has come over TCP from `offset` on, `length` bytes at most.
///
/// # Errors
/// From where on the ring is to be peeked at instead.
///
/// # Safety
/// The address must be writable for that many bytes.
pub(super) unsafe fn peek(guard: &RxGuard, offset: usize, address: *mut u8, length: usize) -> Result<usize, usize> {
    if offset == 0 {
        // SAFETY: forwarded from the caller.
        return unsafe { receive(guard, address, length, libc::MSG_PEEK) }.ok_or(0);
    }
    let Some(holder) = holder(guard.desc) else { return Err(offset) };
    // In this order: if all has come, what is unread is all that is still to be read.
    let seam = guard.lane.seam(guard.desc.end().peer());
    let all = seam.is_some_and(|seam| stream::has_come(holder, seam));
    let unread = stream::unread(holder) as usize;
    if offset < unread {
        // SAFETY: forwarded from the caller.
        return Ok(unsafe { peek_behind(holder, offset, address, length) });
    }
    if all { Err(offset.saturating_sub(unread)) } else { Ok(0) }
}

/// The kernel shows what is unread from the first byte on: what comes before `offset` goes where nobody looks.
///
/// # Safety
/// The address must be writable for that many bytes.
#[cold]
unsafe fn peek_behind(holder: i32, offset: usize, address: *mut u8, length: usize) -> usize {
    /// Bytes for what nobody looks at, and how often they are written at most.
    const WASTE_BYTES: usize = 4096;
    const TIMES: usize = 64;
    let mut waste = [0u8; WASTE_BYTES];
    let mut parts = [libc::iovec { iov_base: core::ptr::null_mut(), iov_len: 0 }; TIMES + 1];
    let mut before = offset;
    let mut used = 0usize;
    for part in &mut parts {
        used = used.saturating_add(1);
        if before == 0 {
            *part = libc::iovec { iov_base: address.cast(), iov_len: length };
            break;
        }
        let bytes = before.min(WASTE_BYTES);
        *part = libc::iovec { iov_base: waste.as_mut_ptr().cast(), iov_len: bytes };
        before = before.saturating_sub(bytes);
    }
    // SAFETY: integers and pointers, for which zero is valid.
    let mut message: libc::msghdr = unsafe { core::mem::zeroed() };
    message.msg_iov = parts.as_mut_ptr();
    message.msg_iovlen = used;
    let flags = libc::MSG_PEEK | libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    let args = [holder as usize, (&raw mut message) as usize, flags as usize, 0, 0, 0];
    // SAFETY: a live header, whose parts are the buffer above and the caller's.
    let found = unsafe { call(libc::SYS_recvmsg, args) };
    found.map_or(0, |found| found.saturating_sub(offset))
}

/// Waits for a moment until nothing more comes over TCP, for somebody who can read from the ring alone. False if something does, or may. No lock
/// may be held.
#[must_use]
pub(crate) fn is_over_soon(desc: &'static Desc) -> bool {
    /// Milliseconds.
    const PATIENCE: u32 = 10;
    for _ in 0..PATIENCE {
        let ended = desc.lock_rx().is_none_or(|guard| {
            let peer = desc.end().peer();
            let over = holder(desc)
                .is_none_or(|holder| guard.lane.seam(peer).is_some_and(|seam| stream::is_read_up_to(holder, seam)));
            if over && crosses(guard.side) {
                end(desc, holder(desc));
            }
            over
        });
        if ended {
            return true;
        }
        kernel::sleep_ms();
    }
    false
}

/// The kernel has said something of holder or anchor: to who waits for edges it is one.
pub(crate) fn note_edge(desc: &Desc) {
    if crosses(desc.side()) {
        desc.side().changes.fetch_add(1, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::super::readiness::receive_over;
    use super::*;
    use crate::desc::{DESCS, Kind};
    use crate::ending::observe;
    use beeline_lane::flags;
    use beeline_meeting::pool;
    use std::io::Write;
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::IntoRawFd;

    /// A client's end to which bytes still come over TCP, and the server's socket.
    fn crossing(cookie: u64) -> (&'static Desc, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let lane = pool::client_lane(cookie).unwrap().sent();
        lane.hold(client.into_raw_fd());
        let desc = DESCS.take().unwrap();
        desc.begin(Kind::Tcp, -1, libc::AF_INET as u32, crate::forks());
        let side = pool::side().unwrap().state;
        side.mark(state::MET | state::MOVED | state::TAKEN);
        side.cross(true);
        desc.set_pooled(Some(lane));
        desc.moving.begin_lane(true);
        desc.become_lane(lane.memory(), side, End::Client);
        (desc, listener.accept().unwrap().0)
    }

    fn read(desc: &'static Desc, expected: &[u8]) {
        let mut bytes = [0; 16];
        let guard = desc.lock_rx().unwrap();
        loop {
            // SAFETY: a live array.
            match unsafe { receive(&guard, bytes.as_mut_ptr(), bytes.len(), 0) } {
                Some(0) => {}
                found => return assert_eq!(&bytes[..found.unwrap()], expected),
            }
        }
    }

    #[test]
    fn the_end_that_the_lane_tells_of_comes_behind_all_that_comes_over_tcp() {
        let (desc, mut server) = crossing(4711);
        let (side, lane) = (desc.side(), desc.lane());
        let holder = holder(desc).unwrap();
        lane.set_seam(End::Server, 6);
        lane.set_flags(End::Server, flags::FIN | flags::CLOSED);
        observe(desc, side);
        assert!(side.is(state::PEER_FIN) && !receive_over(side));
        server.write_all(b"abc").unwrap();
        read(desc, b"abc");
        observe(desc, side);
        assert!(!receive_over(side) && crosses(side) && below(desc) == Some((holder, false)));
        assert_eq!(kernel::poll_now(holder, libc::POLLIN), 0);
        server.write_all(b"def").unwrap();
        read(desc, b"def");
        assert!(receive_over(side) && !crosses(side) && !desc.moving.may_cross());
        // Who sleeps for what comes over TCP alone wakes up.
        assert_ne!(kernel::poll_now(holder, libc::POLLIN), 0);
    }

    #[test]
    fn a_peek_goes_on_behind_what_it_has_shown_and_is_never_an_end() {
        let (desc, mut server) = crossing(4712);
        server.write_all(b"0123456789").unwrap();
        let holder = holder(desc).unwrap();
        while stream::unread(holder) < 10 {}
        let guard = desc.lock_rx().unwrap();
        let peek_at = |offset: usize, expected: &[u8]| {
            let mut bytes = [0; 8];
            // SAFETY: a live array.
            let found = unsafe { peek(&guard, offset, bytes.as_mut_ptr(), expected.len()) };
            found.inspect(|found| assert_eq!(&bytes[..*found], &expected[..*found]))
        };
        assert_eq!(peek_at(0, b"0123"), Ok(4));
        assert_eq!(peek_at(4, b"456"), Ok(3));
        assert_eq!(peek_at(8, b"89ab"), Ok(2));
        assert_eq!(peek_at(10, b"ab"), Ok(0));
        assert_eq!(peek_at(0, b""), Ok(0));
        guard.lane.set_seam(End::Server, 10);
        assert_eq!((peek_at(9, b"9"), peek_at(10, b"a"), peek_at(13, b"a")), (Ok(1), Err(0), Err(3)));
        assert!(crosses(guard.side) && !guard.side.is(state::PEER_FIN));
    }
}
