//! How the other holders of a demoted end come by its TCP socket.
//!
//! # Rules
//!
//! 1. Processes that share an end are its *sharers* and listed in its side: a `fork` lists parent and child, a close
//!    takes the process out.
//! 2. The demoter marks the side ([`state::RELAYED`]) with both of its locks held. From then on the ring is the relay's
//!    alone. Whatever a sharer does takes one of those locks, finds the mark and backs off; before the kernel would get
//!    the call, or the process sleeps, it *follows* ([`follow`]): it asks the relay for the socket and puts it under
//!    its own fds.
//! 3. For that the relay has a gate, a datagram socket with a name of chance in the side. Who asks shows that he knows
//!    the side by one secret in it, the relay's answer shows it by another.
//! 4. As long as the relay keeps the program's socket the connection cannot end. It lets it go when each sharer has
//!    followed, has closed its end, or is dead, which the kernel tells (pidfd_open(2)).
//! 5. Sharers that sleep on the anchor are woken by what they wait for: for room at once, by the demoter; for data by
//!    the next bell, as the relay leaves one in the anchor while there are sharers.
//! 6. A sharer that finds no relay has lost the connection: it is reset.
//!
//! A child that is made at the very moment is waited for until it has listed itself. A process that comes by the end
//! in another way than by `fork` has to list itself ([`SideState::join`]) before it uses it.

use core::sync::atomic::{
    AtomicBool,
    Ordering::{Relaxed, Release},
};

use beeline_shm::sys::{self};
use beeline_stats::Reason;

use crate::control::{self, Control, ONE};
use crate::desc::Desc;
use crate::kernel::{self, SockAddr};
use crate::side::{Gate, SideState, state};
use crate::{changing, process, slots, table, watchers};

/// How long a follower waits for the answer. The relay answers between two system calls.
const ANSWER_NS: u64 = 5_000_000_000;

/// What is said at the gate.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Message {
    pub secret: u64,
    /// The sharer that speaks.
    pub sharer: u32,
    /// [`FOLLOW`] or [`LEAVE`].
    pub wish: u32,
}

const _: () = assert!(size_of::<Message>() == size_of::<u64>() + 2 * size_of::<u32>(), "without padding");

pub const FOLLOW: u32 = 1;
const LEAVE: u32 = 2;
const PREFIX: &[u8] = b"beeline/1/relay/";

/// Whether some end of this process was found to be relayed by somebody who could not follow at once.
static BEHIND: AtomicBool = AtomicBool::new(false);

/// Notes that an end is relayed. May be called with any lock held.
#[cold]
pub fn fall_behind() {
    BEHIND.store(true, Release);
}

/// Follows with all ends that were found to be relayed. Returns whether there were any. No lock may be held.
#[inline]
pub fn catch_up() -> bool {
    BEHIND.load(Relaxed) && catch_up_now()
}

#[cold]
fn catch_up_now() -> bool {
    BEHIND.store(false, Relaxed);
    let mut any = false;
    table::for_each(|fd, desc| any |= follow_if_relayed(fd, desc));
    any
}

/// Follows if the end was demoted by another holder. Returns whether the description is no lane any more. No lock may be
/// held.
#[inline]
pub fn follow_if_relayed(fd: i32, desc: &'static Desc) -> bool {
    desc.shared.load(Relaxed) && follow(fd, desc)
}

#[cold]
fn follow(fd: i32, desc: &'static Desc) -> bool {
    if !desc.is_lane() || !desc.side().is(state::RELAYED) || process::is_guest_of_parent() {
        return false;
    }
    let _changing = changing::changing();
    if !table::leads_to(fd, desc) || !desc.is_lane() {
        return true;
    }
    let side = desc.side();
    let socket = ask(&side.gate);
    table::each_fd(fd, desc, |fd| watchers::take_out(fd, desc));
    {
        let _both = desc.lock_both();
        match socket {
            Some(socket) if table::put_under(fd, desc, socket) => {
                desc.draft.blocked_by.store(Reason::ConnectPending as u16 + 1, Relaxed);
                desc.mark_tcp();
            }
            _ => desc.mark_orphan(),
        }
    }
    side.leave(process::owner());
    table::each_fd(fd, desc, |fd| watchers::put_back(fd, desc));
    slots::close_slot(desc);
    if let Some(socket) = socket {
        let _ = sys::close(socket);
    }
    true
}

/// This process has closed an end that is relayed. It was taken off the list; the relay may be waiting for that. If it has not
/// heard yet what others have said, and there is no room for more, it will look at the list when it does.
pub fn left(side: &SideState) {
    if let Some(socket) = visit(&side.gate) {
        let _ = say(socket, &side.gate, LEAVE, libc::MSG_DONTWAIT);
        let _ = sys::close(socket);
    }
}

/// A socket that is connected to the gate, with a name of its own.
fn visit(gate: &Gate) -> Option<i32> {
    let there = name(gate)?;
    let socket = kernel::socket(libc::AF_UNIX, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0).ok()? as i32;
    // Only the family: the kernel chooses the name (unix(7), autobind).
    let mut nameless = SockAddr::empty();
    nameless.storage.ss_family = libc::AF_UNIX as u16;
    nameless.length = size_of::<libc::sa_family_t>() as u32;
    let ready = kernel::bind(socket, &nameless).and_then(|_| kernel::connect(socket, &there));
    if ready.is_err() {
        let _ = sys::close(socket);
        return None;
    }
    Some(socket)
}

pub fn name(gate: &Gate) -> Option<SockAddr> {
    let mut bytes = [0u8; PREFIX.len() + 16];
    let (prefix, digits) = bytes.split_at_mut(PREFIX.len());
    prefix.copy_from_slice(PREFIX);
    for (index, digit) in digits.iter_mut().enumerate() {
        let value = (gate.name.load(Relaxed) >> (4 * index)) as u32 & 15;
        *digit = char::from_digit(value, 16).map_or(0, |digit| digit as u8);
    }
    SockAddr::abstract_unix(&bytes)
}

fn say(socket: i32, gate: &Gate, wish: u32, flags: i32) -> sys::SysResult {
    let message = Message { secret: gate.question.load(Relaxed), sharer: process::owner(), wish };
    kernel::send(socket, bytes_of(&message), libc::MSG_NOSIGNAL | flags)
}

fn bytes_of(message: &Message) -> &[u8] {
    // SAFETY: as many bytes as the live struct has, all of them initialised, as it has no padding (asserted above).
    unsafe { core::slice::from_raw_parts(core::ptr::from_ref(message).cast(), size_of::<Message>()) }
}

/// Asks for the program's socket.
fn ask(gate: &Gate) -> Option<i32> {
    let socket = visit(gate)?;
    let deadline = kernel::now_ns().saturating_add(ANSWER_NS);
    // A relay that is stopped takes nothing, and the kernel has room for a few questions only.
    let patience = libc::timeval { tv_sec: (ANSWER_NS / 1_000_000_000) as i64, tv_usec: 0 };
    let _ = kernel::setsockopt(socket, libc::SOL_SOCKET, libc::SO_SNDTIMEO, &patience);
    let received = say(socket, gate, FOLLOW, 0).ok().and_then(|_| {
        loop {
            let mut fds = [libc::pollfd { fd: socket, events: libc::POLLIN, revents: 0 }];
            match crate::wait::sleep(&mut fds, Some(deadline), None) {
                crate::wait::Woken::Ready(_) => return receive(socket, gate.answer.load(Relaxed)),
                crate::wait::Woken::Signal { .. } if kernel::now_ns() < deadline => {}
                _ => return None,
            }
        }
    });
    let _ = sys::close(socket);
    received
}

/// Receives the socket with the right answer.
fn receive(socket: i32, answer: u64) -> Option<i32> {
    let mut secret = 0u64;
    let mut control = Control::<ONE>::empty();
    let mut part = libc::iovec { iov_base: (&raw mut secret).cast(), iov_len: 8 };
    let mut message = control::message(&mut part, &mut control);
    let flags = libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC;
    // SAFETY: all parts are live and of the lengths given.
    let got = unsafe { kernel::recvmsg(socket, &mut message, flags) }.ok()?;
    // SAFETY: the kernel has filled in the control data.
    let fd = unsafe { control::sole_descriptor(&message) }?;
    let is_tcp = kernel::getsockopt::<i32>(fd, libc::SOL_SOCKET, libc::SO_PROTOCOL) == Ok(libc::IPPROTO_TCP);
    if got == 8 && secret == answer && is_tcp {
        return Some(fd);
    }
    crate::disarm::disarm(fd);
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use beeline_shm::SideMemory;

    #[test]
    fn who_leaves_does_not_wait_for_a_relay_that_hears_nothing() {
        let (memory, _) = SideMemory::create().unwrap();
        // SAFETY: a side consists of atomics only and is valid when zeroed.
        let side: &'static SideState = unsafe { memory.as_ref() };
        side.gate.name.store(kernel::now_ns(), Relaxed);
        let relay = kernel::socket(libc::AF_UNIX, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0).unwrap() as i32;
        kernel::bind(relay, &name(&side.gate).unwrap()).unwrap();
        let full = visit(&side.gate).unwrap();
        while say(full, &side.gate, LEAVE, libc::MSG_DONTWAIT).is_ok() {}
        let (done, is_done) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            left(side);
            done.send(()).unwrap();
        });
        assert!(is_done.recv_timeout(std::time::Duration::from_secs(20)).is_ok());
        for fd in [relay, full] {
            sys::close(fd).unwrap();
        }
    }
}
