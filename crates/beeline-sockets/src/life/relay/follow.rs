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
    Ordering::{Acquire, Relaxed, Release},
};

use beeline_shm::sys::{self, call};
use beeline_stats::Reason;

use crate::desc::Desc;
use crate::kernel::{self, SockAddr};
use crate::side::{EXPECTED, Gate, SideState, state};
use crate::{Errno, changing, epoll, process, slots, table};

/// How long a follower waits for the answer. The relay answers between two system calls.
const ANSWER_NS: u64 = 5_000_000_000;
/// How long a demoter waits for a child that is just being made.
const BIRTH_MS: usize = 20;

/// What is said at the gate.
#[derive(Clone, Copy)]
#[repr(C)]
struct Message {
    secret: u64,
    /// The sharer that speaks.
    sharer: u32,
    /// [`FOLLOW`] or [`LEAVE`].
    wish: u32,
}

const _: () = assert!(size_of::<Message>() == size_of::<u64>() + 2 * size_of::<u32>(), "without padding");

const FOLLOW: u32 = 1;
const LEAVE: u32 = 2;
const PREFIX: &[u8] = b"beeline/1/relay/";

/// Whether some end of this process was found to be relayed by somebody who could not follow at once.
static BEHIND: AtomicBool = AtomicBool::new(false);

/// Notes that an end is relayed. May be called with any lock held.
#[cold]
pub(crate) fn fall_behind() {
    BEHIND.store(true, Release);
}

/// Follows with all ends that were found to be relayed. Returns whether there were any. No lock may be held.
#[inline]
pub(crate) fn catch_up() -> bool {
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
pub(crate) fn follow_if_relayed(fd: i32, desc: &'static Desc) -> bool {
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
    table::each_fd(fd, desc, |fd| epoll::take_out(fd, desc));
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
    table::each_fd(fd, desc, |fd| epoll::put_back(fd, desc));
    slots::close_slot(desc);
    if let Some(socket) = socket {
        let _ = sys::close(socket);
    }
    true
}

/// This process has closed an end that is relayed. It was taken off the list; the relay may be waiting for that.
pub(crate) fn left(side: &SideState) {
    if let Some(socket) = visit(&side.gate) {
        let _ = say(socket, &side.gate, LEAVE);
        let _ = sys::close(socket);
    }
}

/// A socket that is connected to the gate, with a name of its own.
fn visit(gate: &Gate) -> Option<i32> {
    let socket = kernel::socket(libc::AF_UNIX, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0).ok()? as i32;
    // Only the family: the kernel chooses the name (unix(7), autobind).
    let mut nameless = SockAddr::empty();
    nameless.storage.ss_family = libc::AF_UNIX as u16;
    nameless.length = size_of::<libc::sa_family_t>() as u32;
    let there = name(gate)?;
    let ready = kernel::bind(socket, &nameless).and_then(|_| kernel::connect(socket, &there));
    if ready.is_err() {
        let _ = sys::close(socket);
        return None;
    }
    Some(socket)
}

fn name(gate: &Gate) -> Option<SockAddr> {
    let mut bytes = [0u8; PREFIX.len() + 16];
    let (prefix, digits) = bytes.split_at_mut(PREFIX.len());
    prefix.copy_from_slice(PREFIX);
    for (index, digit) in digits.iter_mut().enumerate() {
        let value = (gate.name.load(Relaxed) >> (4 * index)) as u32 & 15;
        *digit = char::from_digit(value, 16).map_or(0, |digit| digit as u8);
    }
    SockAddr::abstract_unix(&bytes)
}

fn say(socket: i32, gate: &Gate, wish: u32) -> sys::SysResult {
    let message = Message { secret: gate.question.load(Relaxed), sharer: process::owner(), wish };
    kernel::send(socket, bytes_of(&message), libc::MSG_NOSIGNAL)
}

fn bytes_of(message: &Message) -> &[u8] {
    // SAFETY: as many bytes as the live struct has, all of them initialised, as it has no padding (asserted above).
    unsafe { core::slice::from_raw_parts(core::ptr::from_ref(message).cast(), size_of::<Message>()) }
}

/// Asks for the program's socket.
fn ask(gate: &Gate) -> Option<i32> {
    let socket = visit(gate)?;
    let received = say(socket, gate, FOLLOW).ok().and_then(|_| {
        let deadline = kernel::now_ns().saturating_add(ANSWER_NS);
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

/// Room for one descriptor in a message.
#[repr(C, align(8))]
struct Control([u8; 24]);

/// Receives the socket with the right answer.
fn receive(socket: i32, answer: u64) -> Option<i32> {
    let mut secret = 0u64;
    let mut control = Control([0; 24]);
    let mut part = libc::iovec { iov_base: (&raw mut secret).cast(), iov_len: 8 };
    let mut message = header(&mut part, &mut control);
    let flags = libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC;
    // SAFETY: all parts are live and of the lengths given.
    let got = unsafe { kernel::recvmsg(socket, &mut message, flags) };
    // SAFETY: the kernel has filled in the control data.
    let fd = unsafe {
        let first = libc::CMSG_FIRSTHDR(&raw const message);
        let is_rights = first
            .as_ref()
            .is_some_and(|first| first.cmsg_level == libc::SOL_SOCKET && first.cmsg_type == libc::SCM_RIGHTS);
        is_rights.then(|| libc::CMSG_DATA(first).cast::<i32>().read_unaligned())
    }?;
    let is_tcp = kernel::getsockopt::<i32>(fd, libc::SOL_SOCKET, libc::SO_PROTOCOL) == Ok(libc::IPPROTO_TCP);
    if got == Ok(8) && secret == answer && is_tcp {
        return Some(fd);
    }
    crate::io::disarm(fd);
    None
}

fn header(part: &mut libc::iovec, control: &mut Control) -> libc::msghdr {
    // SAFETY: all-zero is a valid value of this plain C struct.
    let mut message: libc::msghdr = unsafe { core::mem::zeroed() };
    message.msg_iov = part;
    message.msg_iovlen = 1;
    message.msg_control = control.0.as_mut_ptr().cast();
    message.msg_controllen = control.0.len() as _;
    message
}

/// Makes the gate of an end that others share, with fresh secrets. The demoter calls this.
pub(super) fn make_gate(side: &SideState) -> Result<i32, Reason> {
    let mut chance = [0u64; 3];
    let args = [chance.as_mut_ptr() as usize, size_of_val(&chance), 0, 0, 0, 0];
    // SAFETY: room for as many bytes.
    unsafe { call(libc::SYS_getrandom, args) }.map_err(|_| Reason::SystemCallDenied)?;
    let [name_of_gate, question, answer] = chance;
    side.gate.name.store(name_of_gate, Relaxed);
    side.gate.question.store(question, Relaxed);
    side.gate.answer.store(answer, Relaxed);
    let kind = libc::SOCK_DGRAM | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
    let socket = kernel::socket(libc::AF_UNIX, kind, 0).map_err(|_| Reason::DescriptorsShort)? as i32;
    let bound = name(&side.gate).is_some_and(|name| kernel::bind(socket, &name).is_ok());
    if !bound {
        let _ = sys::close(socket);
        return Err(Reason::RelayFailed);
    }
    Ok(socket)
}

/// Waits until children that are just being made have listed themselves. What has not then was never made.
pub(super) fn await_children(side: &SideState) {
    for _ in 0..BIRTH_MS {
        if !side.lists(EXPECTED) {
            return;
        }
        kernel::sleep_ms();
    }
    while side.lists(EXPECTED) {
        side.leave(EXPECTED);
    }
}

/// The relay's part. Each sharer is watched in the set under [`Attendance::FIRST`] and its place in the list.
#[derive(Clone, Copy)]
pub(super) struct Attendance {
    /// The gate; negative when nobody may come.
    pub gate: i32,
    /// The program's socket, to be given out.
    pub app: i32,
}

impl Attendance {
    /// For an end that nobody shares.
    pub(super) const NONE: Attendance = Attendance { gate: -1, app: -1 };
    /// The number of the gate in the relay's set.
    pub(super) const GATE: u64 = 2;
    /// That of the first sharer.
    const FIRST: u64 = 16;

    /// Whether somebody may come yet.
    pub(super) fn is_open(self) -> bool {
        self.gate >= 0
    }

    /// Begins to watch gate and sharers.
    pub(super) fn begin(&mut self, set: i32, side: &SideState) {
        if !self.is_open() {
            return;
        }
        let watch = |fd, number| {
            let event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: number };
            kernel::epoll_ctl(set, libc::EPOLL_CTL_ADD, fd, Some(event))
        };
        let _ = watch(self.gate, Self::GATE);
        for (place, sharer) in side.sharers.iter().enumerate() {
            let id = sharer.load(Acquire);
            if id == 0 {
                continue;
            }
            // SAFETY: plain numbers.
            let process = unsafe { call(libc::SYS_pidfd_open, [id as usize, 0, 0, 0, 0, 0]) };
            let watched = process.and_then(|fd| watch(fd as i32, Self::FIRST + place as u64));
            if watched.is_err() {
                side.leave(id);
            }
        }
        self.end_if_alone(side);
    }

    /// Something has happened that the set knows under `number`.
    pub(super) fn heard(&mut self, number: u64, side: &SideState) {
        if !self.is_open() {
            return;
        }
        if number == Self::GATE {
            self.serve(side);
        } else if let Some(place) = number.checked_sub(Self::FIRST).and_then(|place| usize::try_from(place).ok())
            && let Some(sharer) = side.sharers.get(place)
        {
            // The process is dead. What it has not closed the kernel has.
            sharer.store(0, Relaxed);
        }
        self.end_if_alone(side);
    }

    /// Answers those who have come.
    pub(super) fn serve(&mut self, side: &SideState) {
        while self.is_open() && self.serve_one(side) {}
    }

    fn serve_one(&mut self, side: &SideState) -> bool {
        let mut message = Message { secret: 0, sharer: 0, wish: 0 };
        let mut from = SockAddr::empty();
        let args = [
            self.gate as usize,
            (&raw mut message) as usize,
            size_of::<Message>(),
            libc::MSG_DONTWAIT as usize,
            (&raw mut from.storage) as usize,
            (&raw mut from.length) as usize,
        ];
        // SAFETY: room for a message and an address. Descriptors that come along the kernel drops.
        let Ok(length) = (unsafe { call(libc::SYS_recvfrom, args) }) else { return false };
        if length != size_of::<Message>() || message.secret != side.gate.question.load(Relaxed) {
            return true;
        }
        if message.wish == FOLLOW && self.give(&mut from, side.gate.answer.load(Relaxed)).is_err() {
            return true;
        }
        side.leave(message.sharer);
        self.end_if_alone(side);
        true
    }

    /// Sends the program's socket.
    fn give(&self, to: &mut SockAddr, answer: u64) -> Result<(), Errno> {
        let mut secret = answer;
        let mut control = Control([0; 24]);
        let mut part = libc::iovec { iov_base: (&raw mut secret).cast(), iov_len: 8 };
        let mut message = header(&mut part, &mut control);
        message.msg_name = (&raw mut to.storage).cast();
        message.msg_namelen = to.length;
        // SAFETY: the control buffer has room for one descriptor: CMSG_SPACE(4) is 24.
        unsafe {
            let first = libc::CMSG_FIRSTHDR(&raw const message);
            (*first).cmsg_level = libc::SOL_SOCKET;
            (*first).cmsg_type = libc::SCM_RIGHTS;
            (*first).cmsg_len = libc::CMSG_LEN(4) as _;
            libc::CMSG_DATA(first).cast::<i32>().write_unaligned(self.app);
            kernel::sendmsg(self.gate, &message, libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL).map(|_| ())
        }
    }

    /// Lets the program's socket go when nobody may come for it any more.
    fn end_if_alone(&mut self, side: &SideState) {
        if self.is_open() && side.sharers.iter().all(|sharer| sharer.load(Acquire) == 0) {
            let _ = sys::close(self.gate);
            let _ = sys::close(self.app);
            *self = Attendance::NONE;
            // The bell that was left for the others is to be taken out now.
            side.rx.note_bell();
        }
    }
}
