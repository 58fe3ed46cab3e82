//! The relay's part of what [`crate::follow`] is about: the gate, and who may still come.
//!
//! Everybody on the host can read the gate's name (/proc/net/unix) and send there. What a stranger sends, the kernel
//! drops where it is sent ([`guard`]): it takes nobody's room in the queue, and no descriptor comes to the relay, which
//! would have to close it, for as long as the stranger likes (a socket that lingers, a file of FUSE).

use core::sync::atomic::Ordering::{Acquire, Relaxed};

use beeline_meeting::trust;
use beeline_shm::Fd;
use beeline_shm::sys::{self, call};
use beeline_stats::Reason;

use crate::Errno;
use crate::control::{Control, message_with};
use crate::follow::{FOLLOW, Message, name};
use crate::kernel::{self, SockAddr};
use crate::side::{EXPECTED, SHARERS, SideState};
use crate::thread;

/// How long a demoter waits for a child that is just being made.
const BIRTH_MS: usize = 20;

/// How often it is looked, while nothing else happens, whether somebody has come to whom a copy of the end is on its
/// way (in a message, or to a program that is being started), and how long it is between two looks. Nobody may: who
/// received it without room for descriptors, or died, takes no loan.
const LOOKS_FOR_LOANS: u32 = 50;
const LOOK_MS: u32 = 100;

/// Makes the gate of an end that others share, with fresh secrets. The demoter calls this.
pub(super) fn make_gate(side: &SideState) -> Result<Fd, Reason> {
    let [name_of_gate, question, answer] = kernel::chance().ok_or(Reason::SystemCallDenied)?;
    side.gate.name.store(name_of_gate, Relaxed);
    side.gate.question.store(question, Relaxed);
    side.gate.answer.store(answer, Relaxed);
    let kind = libc::SOCK_DGRAM | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
    let socket = Fd::own(kernel::socket(libc::AF_UNIX, kind, 0).map_err(|_| Reason::DescriptorsShort)? as i32);
    guard(socket.get(), question);
    let bound = name(&side.gate).is_some_and(|name| kernel::bind(socket.get(), &name).is_ok());
    bound.then_some(socket).ok_or(Reason::RelayFailed)
}

/// Lets nothing in but what is as long as a message and begins with the question, and no descriptors, as far as this
/// kernel can. To be called before the gate has a name.
fn guard(gate: i32, question: u64) {
    const LENGTH: u32 = libc::BPF_LD | libc::BPF_W | libc::BPF_LEN;
    const WORD: u32 = libc::BPF_LD | libc::BPF_W | libc::BPF_ABS;
    const UNLESS: u32 = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
    const END: u32 = libc::BPF_RET | libc::BPF_K;
    let step = |code: u32, k: u32, jf: u8| libc::sock_filter { code: code as u16, jt: 0, jf, k };
    // The filter reads in the order of the network.
    let wanted = u64::from_be_bytes(question.to_ne_bytes());
    let program = [
        step(LENGTH, 0, 0),
        step(UNLESS, size_of::<Message>() as u32, 5),
        step(WORD, 0, 0),
        step(UNLESS, (wanted >> u32::BITS) as u32, 3),
        step(WORD, 4, 0),
        step(UNLESS, wanted as u32, 1),
        step(END, u32::MAX, 0),
        step(END, 0, 0),
    ];
    let filter = libc::sock_fprog { len: program.len() as u16, filter: program.as_ptr().cast_mut() };
    let _ = kernel::setsockopt(gate, libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, &filter);
    let _ = trust::refuse_rights(gate);
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

/// Whether somebody may come by the end who is not on the list of its sharers yet.
pub(super) fn has_loans(side: &SideState) -> bool {
    side.origin.lent.load(Acquire) != 0
}

/// The relay's part. Each sharer is watched in the set under its identity and its place in the list, once: a place may
/// be another's by the time at which the process dies, and before anybody here has looked at it again.
#[derive(Clone, Copy)]
pub(super) struct Attendance {
    /// The gate; negative when nobody may come.
    pub gate: i32,
    /// The program's socket, to be given out.
    pub app: i32,
    /// The relay's set.
    set: i32,
    /// Who is watched at each place; 0 for nobody.
    watched: [u32; SHARERS],
    /// The looks that are left for those who have a loan and have not come.
    looks: u32,
}

impl Attendance {
    /// For an end that nobody shares.
    pub(super) const NONE: Attendance = Attendance { gate: -1, app: -1, set: -1, watched: [0; SHARERS], looks: 0 };
    /// For one whose other holders come to the gate, if there is one, for the program's socket.
    pub(super) fn at(gate: Option<&Fd>, app: &Fd) -> Attendance {
        gate.map_or(Self::NONE, |gate| Attendance { gate: gate.get(), app: app.get(), ..Self::NONE })
    }

    /// The number of the gate in the relay's set.
    const GATE: u64 = 2;
    /// That of the first sharer.
    const FIRST: u64 = 16;

    /// Whether somebody may come yet.
    pub(super) fn is_open(&self) -> bool {
        self.gate >= 0
    }

    /// Begins to watch gate and sharers.
    pub(super) fn begin(&mut self, set: i32, side: &SideState) {
        if !self.is_open() {
            return;
        }
        self.set = set;
        self.looks = LOOKS_FOR_LOANS;
        let _ = self.watch(self.gate, libc::EPOLLIN, Self::GATE);
        self.end_if_alone(side);
    }

    fn watch(&self, fd: i32, events: i32, number: u64) -> Result<usize, Errno> {
        let event = libc::epoll_event { events: events as u32, u64: number };
        kernel::epoll_ctl(self.set, libc::EPOLL_CTL_ADD, fd, Some(event))
    }

    /// Watches those who are listed and not watched yet, as some list themselves late. Who cannot be watched is taken
    /// off the list, as one of another pid namespace that has come this very moment.
    fn watch_all(&mut self, side: &SideState) {
        for (place, sharer) in side.sharers.iter().enumerate() {
            let identity = sharer.load(Acquire);
            if self.watched.get(place) == Some(&identity) {
                continue;
            }
            let is_watched = identity != 0 && self.watch_one(identity, place).is_ok();
            if let Some(watched) = self.watched.get_mut(place) {
                *watched = if is_watched { identity } else { 0 };
            }
            if !is_watched && identity != 0 {
                side.leave(identity);
            }
        }
    }

    fn watch_one(&self, identity: u32, place: usize) -> Result<usize, Errno> {
        if !thread::is_neighbour(identity) {
            return Err(Errno(libc::ESRCH));
        }
        // SAFETY: plain numbers.
        let process = unsafe { call(libc::SYS_pidfd_open, [thread::tid_of(identity) as usize, 0, 0, 0, 0, 0]) }? as i32;
        let number = u64::from(identity) << u32::BITS | (Self::FIRST + place as u64);
        self.watch(process, libc::EPOLLIN | libc::EPOLLONESHOT, number).inspect_err(|_| {
            let _ = sys::close(process);
        })
    }

    /// Something has happened that the set knows under `number`.
    pub(super) fn heard(&mut self, number: u64, side: &SideState) {
        if !self.is_open() {
            return;
        }
        if number == Self::GATE {
            self.serve(side);
        } else if let Some(place) = u64::from(number as u32).checked_sub(Self::FIRST).map(|place| place as usize)
            && let (Some(sharer), Some(watched)) = (side.sharers.get(place), self.watched.get_mut(place))
        {
            // The process is dead. What it has not closed the kernel has. Another one may get its id.
            let dead = (number >> u32::BITS) as u32;
            let _ = sharer.compare_exchange(dead, 0, Relaxed, Relaxed);
            if *watched == dead {
                *watched = 0;
            }
        }
        self.end_if_alone(side);
    }

    /// How long the relay may sleep, in milliseconds as for epoll_wait(2), if it is to look for somebody.
    pub(super) fn sleep_ms(&self) -> Option<i32> {
        (self.is_open() && self.looks != 0).then_some(LOOK_MS.cast_signed())
    }

    /// Nothing has happened for as long as that.
    pub(super) fn look(&mut self, side: &SideState) {
        self.looks = self.looks.saturating_sub(1);
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
        // SAFETY: room for a message and an address. Descriptors that come along the kernel drops; the guard lets in
        // nobody who sends any.
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
        let mut control = Control::empty();
        let mut part = libc::iovec { iov_base: (&raw mut secret).cast(), iov_len: 8 };
        let mut message = message_with(&mut part, &mut control, self.app);
        message.msg_name = (&raw mut to.storage).cast();
        message.msg_namelen = to.length;
        // SAFETY: address, part and control data are live and of the lengths given.
        unsafe { kernel::sendmsg(self.gate, &message, libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL).map(|_| ()) }
    }

    /// Lets the program's socket go when nobody may come for it any more.
    fn end_if_alone(&mut self, side: &SideState) {
        if !self.is_open() {
            return;
        }
        // Before the list: who takes a loan has listed himself.
        if !has_loans(side) {
            self.looks = 0;
        }
        self.watch_all(side);
        if self.looks == 0 && side.lists_nobody() {
            let _ = sys::close(self.gate);
            let _ = sys::close(self.app);
            *self = Attendance::NONE;
            // The bell that was left for the others is to be taken out now.
            side.rx.note_bell();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{follow, process};
    use beeline_shm::SideMemory;
    use std::io::Read;
    use std::os::fd::AsRawFd;
    use std::os::unix::net::{UnixDatagram, UnixStream};
    use std::process::{Child, Command};

    const PATIENCE_MS: i32 = 20_000;

    fn sharer() -> (Child, u32) {
        let child = Command::new("/bin/sleep").arg("1000").spawn().unwrap();
        let identity = process::identity() & !0x3f_ffff | child.id();
        (child, identity)
    }

    fn side() -> &'static SideState {
        let (memory, _) = SideMemory::create().unwrap();
        // SAFETY: a side consists of atomics only and is valid when zeroed; it stays mapped.
        unsafe { memory.as_ref() }
    }

    /// What comes out of the gate.
    fn comes_in(gate: &Fd) -> Option<[u8; 16]> {
        let mut bytes = [0; 16];
        (kernel::recv(gate.get(), &mut bytes, libc::MSG_DONTWAIT) == Ok(16)).then_some(bytes)
    }

    /// Sends bytes to the gate, with a descriptor that is closed here then. Whether it is closed everywhere.
    fn send_with_socket(side: &SideState, bytes: &mut [u8]) -> bool {
        let stranger = UnixDatagram::unbound().unwrap();
        let (mut kept, sent) = UnixStream::pair().unwrap();
        kept.set_nonblocking(true).unwrap();
        let mut control = Control::empty();
        let mut part = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
        let mut message = message_with(&mut part, &mut control, sent.as_raw_fd());
        let mut to = name(&side.gate).unwrap();
        (message.msg_name, message.msg_namelen) = ((&raw mut to.storage).cast(), to.length);
        // A kernel that lets no descriptors in says so.
        // SAFETY: address, part and control data are live and of the lengths given.
        let _ = unsafe { kernel::sendmsg(stranger.as_raw_fd(), &message, libc::MSG_DONTWAIT) };
        drop(sent);
        kept.read(&mut [0]).is_ok_and(|count| count == 0)
    }

    #[test]
    fn what_strangers_send_never_comes_into_the_gate() {
        let side = side();
        let gate = make_gate(side).ok().unwrap();
        let mut right = [0; 16];
        right[..8].copy_from_slice(&side.gate.question.load(Relaxed).to_ne_bytes());
        right[8..].copy_from_slice(b"sharer's");
        let mut strange = vec![vec![], vec![0; 16], right[..15].to_vec(), [&right[..], &[0]].concat()];
        for place in 0..8 {
            let mut almost = right.to_vec();
            almost[place] ^= 1;
            strange.push(almost);
        }
        let to = name(&side.gate).unwrap();
        let say = |bytes: &[u8]| {
            let stranger = UnixDatagram::unbound().unwrap();
            kernel::connect(stranger.as_raw_fd(), &to).unwrap();
            assert_eq!(kernel::send(stranger.as_raw_fd(), bytes, libc::MSG_DONTWAIT), Ok(bytes.len()));
        };
        // A kernel that keeps descriptors out by itself is tried without that, too.
        for refuses in [true, false] {
            if !refuses {
                trust::accept_rights(gate.get());
            }
            for bytes in &mut strange {
                say(bytes);
                assert!(send_with_socket(side, bytes), "{bytes:?}: the descriptor is on its way to the relay");
                assert_eq!(kernel::poll_now(gate.get(), libc::POLLIN), 0, "{bytes:?}");
            }
            say(&right);
            assert_eq!((comes_in(&gate), comes_in(&gate)), (Some(right), None));
        }
    }

    /// Attends to what is heard until nobody may come any more.
    fn attend(attendance: &mut Attendance, set: &Fd, side: &SideState) {
        while attendance.is_open() {
            let mut events = [libc::epoll_event { events: 0, u64: 0 }; 4];
            // SAFETY: room for as many events.
            let count = unsafe { libc::epoll_wait(set.get(), events.as_mut_ptr(), 4, PATIENCE_MS) };
            assert!(count > 0, "somebody has ended, and nobody has seen it");
            events.iter().take(count as usize).for_each(|event| attendance.heard(event.u64, side));
        }
    }

    fn app() -> Fd {
        Fd::own(kernel::socket(libc::AF_INET, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0).unwrap() as i32)
    }

    #[test]
    fn who_comes_in_the_place_of_another_is_watched() {
        process::become_owner();
        let side = side();
        let gate = make_gate(side).ok().unwrap();
        let app = app();
        let set = Fd::own(kernel::epoll_create().unwrap());
        let ((mut first, first_one), (mut second, second_one)) = (sharer(), sharer());
        let mut attendance = Attendance::at(Some(&gate), &app);
        side.join(first_one);
        attendance.begin(set.get(), side);
        // The relay hears of the first one only when the second one has its place.
        let place = side.sharers.iter().position(|sharer| sharer.load(Relaxed) == first_one);
        side.leave(first_one);
        side.join(second_one);
        assert_eq!(side.sharers.iter().position(|sharer| sharer.load(Relaxed) == second_one), place);
        follow::left(side);
        attendance.serve(side);
        assert!(attendance.is_open());
        first.kill().and_then(|()| first.wait()).unwrap();
        second.kill().and_then(|()| second.wait()).unwrap();
        attend(&mut attendance, &set, side);
        // The attendance has closed them.
        let _ = (gate.give_away(), app.give_away());
    }

    #[test]
    fn who_has_a_loan_is_waited_for_and_not_for_ever() {
        process::become_owner();
        for comes in [true, false] {
            let side = side();
            let (gate, app) = (make_gate(side).ok().unwrap(), app());
            let set = Fd::own(kernel::epoll_create().unwrap());
            let mut attendance = Attendance::at(Some(&gate), &app);
            side.origin.lent.store(1, Relaxed);
            attendance.begin(set.get(), side);
            for _ in 1..LOOKS_FOR_LOANS {
                assert!(attendance.is_open() && attendance.sleep_ms() == Some(LOOK_MS.cast_signed()));
                attendance.look(side);
            }
            assert!(attendance.is_open());
            if comes {
                let (mut child, identity) = sharer();
                side.join(identity);
                assert!(side.take_loan());
                attendance.look(side);
                // From now on it is heard of.
                assert!(attendance.is_open() && attendance.sleep_ms().is_none());
                child.kill().and_then(|()| child.wait()).unwrap();
                attend(&mut attendance, &set, side);
            } else {
                attendance.look(side);
                assert!(!attendance.is_open());
            }
            // The attendance has closed them.
            let _ = (gate.give_away(), app.give_away());
        }
    }
}
