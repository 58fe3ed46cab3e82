//! How the other holders of a demoted end come by its TCP socket.
//!
//! # Rules
//!
//! 1. Processes that share an end are its *sharers* and listed in its side: a `fork` lists parent and child, a close
//!    takes the process out, and so does an `execve` without the end.
//! 2. The demoter marks the side ([`state::RELAYED`]) with both of its locks held. From then on the ring is the relay's
//!    alone. Whatever a sharer does takes one of those locks, finds the mark and backs off; before the kernel would get
//!    the call, or the process sleeps, it *follows* ([`follow`]): it asks the relay for the socket and puts it under
//!    its own fds.
//! 3. For that the relay has a gate, a datagram socket with a name of chance in the side. Who asks shows that he knows
//!    the side by one secret in it, the relay's answer shows it by another.
//! 4. As long as the relay keeps the program's socket the connection cannot end. It lets it go when each sharer has
//!    followed, has closed its end, or is dead, which the kernel tells (pidfd_open(2)). For those to whom a copy of the
//!    end is on its way, and who have not taken its loan, it keeps it for some seconds.
//! 5. Sharers that sleep on the anchor are woken by what they wait for: for room at once, by the demoter; for data by
//!    the next bell, as the relay leaves one in the anchor while there are sharers.
//! 6. A sharer that finds no relay has lost the connection: it is reset.
//! 7. Who asks keeps the description by a pin, and nothing else of the process: a relay that is stopped holds up those
//!    who use this end, for [`ANSWER_NS`], and no other `connect`, `close` or `fork`. One thread asks, others that use
//!    the end wait for it; its handlers wait as well, as one that used the end would wait for what it has interrupted.
//! 8. A thread that asks in the middle of a change ([`changing`]), which it does only where an end was demoted a moment
//!    ago, waits for [`BRIEF_NS`], and not for another thread. Who is about to begin a change that needs all ends
//!    follows with them before ([`with_all`]).
//!
//! A child that is made at the very moment is waited for until it has listed itself. A process that comes by the end
//! in another way than by `fork` has to list itself ([`SideState::join`]) before it takes the loan.

use core::sync::atomic::{
    AtomicBool,
    Ordering::{AcqRel, Acquire, Relaxed, Release},
};

use beeline_shm::Fd;
use beeline_shm::sys::{self};

use crate::control::{self, Control, ONE};
use crate::desc::Desc;
use crate::kernel::{self, SockAddr};
use crate::side::{Gate, SideState, state};
use crate::wait;
use crate::{Errno, changing, guards, process, slots, table, watchers};
use beeline_guest::thread::Section;

/// How long a follower waits for the answer. The relay answers between two system calls.
const ANSWER_NS: u64 = 5_000_000_000;
/// The same in the middle of a change.
pub const BRIEF_NS: u64 = 500_000_000;

/// What is said at the gate.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Message {
    pub secret: u64,
    /// The sharer that speaks, by its identity.
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

/// Follows if the end was demoted by another holder. Returns whether the description is no lane any more. No lock may
/// be held.
#[inline]
pub fn follow_if_relayed(fd: i32, desc: &'static Desc) -> bool {
    desc.shared.load(Relaxed) && follow(fd, desc)
}

/// Follows with all ends that are relayed. No lock may be held.
pub fn with_all() {
    table::for_each(|fd, desc| {
        let _ = follow_if_relayed(fd, desc);
    });
}

#[cold]
fn follow(fd: i32, desc: &'static Desc) -> bool {
    if !desc.is_lane() || process::is_guest_of_parent() {
        return false;
    }
    let Some(pin) = guards::pin(fd, desc) else { return true };
    if !desc.is_lane() || !desc.side().is(state::RELAYED) {
        return !desc.is_lane();
    }
    let in_change = changing::is_changing();
    if desc.follows.swap(true, AcqRel) {
        let goes_on = || !in_change && desc.follows.load(Acquire) && desc.is_lane();
        pin.while_waiting(|| {
            while goes_on() {
                kernel::sleep_ms();
            }
        });
        return !desc.is_lane();
    }
    let patience_ns = if in_change { BRIEF_NS } else { ANSWER_NS };
    let section = Section::enter();
    pin.while_waiting(|| follow_alone(fd, desc, patience_ns));
    desc.follows.store(false, Release);
    drop((pin, section));
    true
}

/// As the only thread. The description is pinned.
fn follow_alone(fd: i32, desc: &'static Desc, patience_ns: u64) {
    let side = desc.side();
    // Whoever was here before has let the relay go.
    let socket = if desc.is_lane() { ask(&side.gate, patience_ns) } else { None };
    let _changing = changing::changing();
    // Bound anew behind `_changing`, and so dropped before it: closed before the change ends, as a fork that waits for
    // that is not to copy it.
    let socket = socket;
    let fd = table::number_of(desc, fd);
    if table::leads_to(fd, desc) && desc.is_lane() {
        replace(fd, desc, socket.as_ref());
    }
}

/// Puts the program's socket in the lane's place, or nothing of use. The caller holds [`changing::changing`].
fn replace(fd: i32, desc: &'static Desc, socket: Option<&Fd>) {
    let side = desc.side();
    watchers::while_out(fd, desc, || {
        {
            let _both = desc.lock_both();
            match socket {
                Some(socket) if table::put_under(fd, desc, socket.get()) => {
                    desc.draft.connectable.settle();
                    desc.mark_tcp();
                }
                _ => desc.mark_orphan(),
            }
        }
        side.leave(process::identity());
    });
    slots::close_slot(desc);
}

/// This process has closed an end that is relayed. It was taken off the list; the relay may be waiting for that. If it
/// has not heard yet what others have said, and there is no room for more, it will look at the list when it does.
pub fn left(side: &SideState) {
    if let Some(socket) = visit(&side.gate) {
        let _ = say(socket.get(), &side.gate, LEAVE, libc::MSG_DONTWAIT);
    }
}

/// A socket that is connected to the gate, with a name of its own.
fn visit(gate: &Gate) -> Option<Fd> {
    let there = name(gate)?;
    let socket = Fd::own(kernel::socket(libc::AF_UNIX, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0).ok()? as i32);
    // Only the family: the kernel chooses the name (unix(7), autobind).
    let mut nameless = SockAddr::empty();
    nameless.storage.ss_family = libc::AF_UNIX as u16;
    nameless.length = size_of::<libc::sa_family_t>() as u32;
    kernel::bind(socket.get(), &nameless).and_then(|_| kernel::connect(socket.get(), &there)).ok()?;
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
    // A child that has its parent's memory speaks for itself alone, and is on no list.
    let sharer = if process::is_guest_of_parent() { 0 } else { process::identity() };
    let message = Message { secret: gate.question.load(Relaxed), sharer, wish };
    kernel::send(socket, bytes_of(&message), libc::MSG_NOSIGNAL | flags)
}

fn bytes_of(message: &Message) -> &[u8] {
    // SAFETY: as many bytes as the live struct has, all of them initialised, as it has no padding (asserted above).
    unsafe { core::slice::from_raw_parts(core::ptr::from_ref(message).cast(), size_of::<Message>()) }
}

/// Asks for the program's socket.
pub fn ask(gate: &Gate, patience_ns: u64) -> Option<Fd> {
    let visitor = visit(gate)?;
    let socket = visitor.get();
    let deadline = kernel::now_ns().saturating_add(patience_ns);
    // A relay that is stopped takes nothing, and the kernel has room for a few questions only.
    let asked = loop {
        match say(socket, gate, FOLLOW, libc::MSG_DONTWAIT) {
            Ok(_) => break true,
            Err(Errno(libc::EAGAIN)) if wait::for_events(socket, libc::POLLOUT, deadline) != 0 => {}
            Err(_) => break false,
        }
    };
    let answered = asked && wait::for_events(socket, libc::POLLIN, deadline) != 0;
    if answered { receive(socket, gate.answer.load(Relaxed)) } else { None }
}

/// Receives the socket with the right answer.
fn receive(socket: i32, answer: u64) -> Option<Fd> {
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
        return Some(Fd::own(fd));
    }
    crate::disarm::disarm(fd);
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::desc::{DESCS, Kind};
    use beeline_lane::End;
    use beeline_meeting::pool;
    use beeline_shm::SideMemory;
    use std::sync::mpsc::channel;
    use std::time::Duration;

    /// A side, and the gate of a relay that does nothing.
    fn stopped_relay() -> (&'static SideState, Fd) {
        let (memory, _) = SideMemory::create().unwrap();
        // SAFETY: a side consists of atomics only and is valid when zeroed.
        let side: &'static SideState = unsafe { memory.as_ref() };
        side.gate.name.store(kernel::now_ns(), Relaxed);
        let relay = kernel::socket(libc::AF_UNIX, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0).unwrap();
        let relay = Fd::own(relay as i32);
        kernel::bind(relay.get(), &name(&side.gate).unwrap()).unwrap();
        (side, relay)
    }

    #[test]
    fn who_asks_a_relay_that_is_stopped_keeps_nobody_from_a_change() {
        let (side, relay) = stopped_relay();
        let lane = pool::client_lane(12).unwrap().sent();
        let fd = kernel::socket(libc::AF_UNIX, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0).unwrap() as i32;
        let desc = DESCS.take().unwrap();
        desc.begin(Kind::Tcp, fd, libc::AF_INET as u32, beeline_guest::forks());
        let _ = table::set(fd, Some(desc)).unwrap();
        desc.become_lane(lane.memory(), side, End::Client);
        desc.shared.store(true, Relaxed);
        side.mark(state::RELAYED);
        let followers = [(); 2].map(|()| std::thread::spawn(move || follow_if_relayed(fd, desc)));
        // One of them asks.
        let mut question = Message { secret: 0, sharer: 0, wish: 0 };
        let mut from = SockAddr::empty();
        let args = [
            relay.get() as usize,
            (&raw mut question) as usize,
            size_of::<Message>(),
            0,
            (&raw mut from.storage) as usize,
            (&raw mut from.length) as usize,
        ];
        // SAFETY: room for a message and an address.
        unsafe { sys::call(libc::SYS_recvfrom, args) }.unwrap();
        assert_eq!(question.wish, FOLLOW);
        // The other one is there, too, and not yet to come.
        while desc.keepers.pins() < 2 {
            kernel::sleep_ms();
        }
        let (done, is_done) = channel();
        std::thread::spawn(move || {
            drop(changing::changing());
            drop(changing::changing_number(fd));
            done.send(()).unwrap();
        });
        assert!(is_done.recv_timeout(Duration::from_millis(ANSWER_NS / 2_000_000)).is_ok());
        assert!(followers.iter().all(|follower| !follower.is_finished()) && desc.is_lane());
        // No answer that would do.
        let args = [
            relay.get() as usize,
            (&raw const question) as usize,
            1,
            0,
            (&raw const from.storage) as usize,
            from.length as usize,
        ];
        // SAFETY: a live byte and a live address.
        unsafe { sys::call(libc::SYS_sendto, args) }.unwrap();
        assert!(followers.into_iter().all(|follower| follower.join().unwrap()));
        assert_eq!((desc.kind(), desc.keepers.pins()), (Kind::Orphan, 0));
        // Nobody has asked a second time.
        let args = [
            relay.get() as usize,
            (&raw mut question) as usize,
            size_of::<Message>(),
            libc::MSG_DONTWAIT as usize,
            0,
            0,
        ];
        // SAFETY: room for a message.
        assert!(unsafe { sys::call(libc::SYS_recvfrom, args) }.is_err());
        let _ = table::set(fd, None).unwrap();
        sys::close(fd).unwrap();
    }

    #[test]
    fn a_relay_with_a_full_queue_is_asked_for_no_longer_than_one_with_none() {
        let (side, _relay) = stopped_relay();
        let full = visit(&side.gate).unwrap();
        while say(full.get(), &side.gate, LEAVE, libc::MSG_DONTWAIT).is_ok() {}
        let begin_ns = kernel::now_ns();
        assert!(ask(&side.gate, 50_000_000).is_none());
        let took_ns = kernel::now_ns() - begin_ns;
        assert!((50_000_000..2_000_000_000).contains(&took_ns), "{took_ns}");
    }

    #[test]
    fn who_leaves_does_not_wait_for_a_relay_that_hears_nothing() {
        let (side, _relay) = stopped_relay();
        let full = visit(&side.gate).unwrap();
        while say(full.get(), &side.gate, LEAVE, libc::MSG_DONTWAIT).is_ok() {}
        let (done, is_done) = channel();
        std::thread::spawn(move || {
            left(side);
            done.send(()).unwrap();
        });
        assert!(is_done.recv_timeout(Duration::from_secs(20)).is_ok());
    }
}
