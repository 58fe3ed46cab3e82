//! Descriptors that travel between processes (`SCM_RIGHTS`, unix(7)).
//!
//! 1. *Sending.* A message that carries an end gets the end's parts attached, behind the descriptors of the app, and a
//!    loan is made for each end ([`super::handover`]), if the receiver has the library ([`peers`]) and there is room.
//!    If the message is not sent, the loans are taken back.
//! 2. *Receiving.* A message is received into a buffer of ours, which holds all that the kernel lets travel, whatever
//!    room the app gave. Ends are taken over ([`super::adopt`]), parts are kept from the app, and
//!    the rest is laid into the app's buffer as the kernel would have done it: what does not fit is closed, and the
//!    message is marked as cut.
//! 3. *Strangers.* A receiver that may not have the library must not get an anchor for its connection
//!    ([`super::stranger`]). One that got an end of a pair of sockets when it was executed is known by it
//!    ([`super::pairs`]).
//! 4. A listener that was received is met at once: whoever waits on it waits at its door, too.
//! 5. A message that is received without room for control data loses its descriptors in the kernel. Their loans are
//!    never taken, which costs the other holders a little speed.
//! 6. A sealed process ([`super::sandbox`]) takes what comes as the kernel gives it: what it is cannot be asked. So it
//!    counts as a stranger.

mod many;
mod peers;

use beeline_shm::sys;
use beeline_stats::Reason;

use super::adopt::{Came, Part, adopt_all};
use super::handover::{end_loan, lend, lend_again, part_fds};
use super::stranger::give_away;
use crate::app_memory::in_first_page;
use crate::changing::changing;
use crate::control::{self, HEADER_BYTES, RIGHTS_MAX, align};
use crate::desc::{Desc, Kind};
use crate::process::{is_guest_of_parent, is_sealed};
use crate::{close, epoll, kernel, meet, options, table};

pub use many::{receive_many, send_many};

/// Ends in one message whose parts are attached.
const ENDS_MAX: usize = 64;
/// Room for control data of every kind that an `AF_UNIX` socket has, and for what others mostly have.
const CONTROL_BYTES: usize = 2048;
type Control = control::Control<CONTROL_BYTES>;
const FD_BYTES: usize = size_of::<i32>();

/// Sends a message that may carry ends of connections with `send`. `None` if there is nothing to attach: the message
/// goes as it is.
///
/// # Safety
/// `message` must be null or valid, as for sendmsg(2).
pub unsafe fn send(
    socket: i32,
    message: *const libc::msghdr,
    send: impl FnOnce(*const libc::msghdr) -> isize,
) -> Option<isize> {
    let mut any = false;
    // SAFETY: forwarded.
    unsafe {
        each(message, |fd| {
            meet::before_passing(fd);
            any |= notice(fd);
        })
    };
    if !any || is_guest_of_parent() {
        return None;
    }
    let mut parcel = Parcel::new();
    let knows_us = peers::knows_us(socket);
    let mut lend = |fd, desc| {
        let _changing = changing();
        table::leads_to(fd, desc) && parcel.add(fd, desc)
    };
    // SAFETY: forwarded.
    unsafe {
        each_end(message, |fd, desc| {
            if !knows_us || !lend(fd, desc) {
                give_away(fd, desc)
            }
        })
    };
    if parcel.count == 0 {
        return None;
    }
    let mut control = Control::empty();
    // SAFETY: valid, as the caller guarantees.
    let Some(message_with_parts) = (unsafe { parcel.attach(&*message, &mut control) }) else {
        parcel.take_back();
        // SAFETY: forwarded.
        unsafe { each_end(message, give_away) };
        return None;
    };
    let sent = send(&raw const message_with_parts);
    if sent < 0 {
        parcel.take_back();
    }
    Some(sent)
}

/// Whether a message carries sockets that we know.
///
/// # Safety
/// `message` must be null or valid, as for sendmsg(2).
pub unsafe fn passes_sockets(message: *const libc::msghdr) -> bool {
    let mut any = false;
    // SAFETY: forwarded.
    unsafe { each(message, |fd| any |= table::get(fd).is_some()) };
    any
}

/// Whether a socket is of the family in which descriptors travel.
fn is_unix(socket: i32) -> bool {
    kernel::getsockopt::<i32>(socket, libc::SOL_SOCKET, libc::SO_DOMAIN) == Ok(libc::AF_UNIX)
}

/// Whether `fd` is an end. A socket that is not connected yet may have another holder from now on.
fn notice(fd: i32) -> bool {
    let Some(desc) = table::get(fd) else { return false };
    match desc.kind() {
        Kind::Tcp => options::block(desc, Reason::SharedBeforeConnect),
        Kind::Epoll => epoll::expose(desc),
        _ => {}
    }
    desc.is_lane()
}

/// The parts that travel with a message.
struct Parcel {
    parts: [i32; RIGHTS_MAX],
    count: usize,
    ends: [Option<&'static Desc>; ENDS_MAX],
}

impl Parcel {
    fn new() -> Self {
        Self { parts: [-1; RIGHTS_MAX], count: 0, ends: [None; ENDS_MAX] }
    }

    /// Lends the end that `fd` leads to and adds its parts. False if that cannot be.
    fn add(&mut self, fd: i32, desc: &'static Desc) -> bool {
        if self.ends.iter().flatten().any(|other| *other == desc) {
            return true;
        }
        let Some((side, lane, holder)) = part_fds(desc) else { return false };
        // One part more than an end has, so that the holder fits.
        let Some([first, second, third]) = self.parts.get_mut(self.count..).and_then(|rest| rest.first_chunk_mut())
        else {
            return false;
        };
        let Some(place) = self.ends.iter_mut().find(|place| place.is_none()) else { return false };
        if !lend(fd, desc, true) {
            return false;
        }
        *place = Some(desc);
        (*first, *second) = (side, lane);
        *third = holder.unwrap_or(-1);
        self.count += if holder.is_some() { 3 } else { 2 };
        true
    }

    fn take_back(&self) {
        for desc in self.ends.iter().flatten() {
            let _both = desc.lock_both();
            if desc.is_lane() {
                end_loan(desc.side(), true);
            }
        }
    }

    /// The message with the parts attached, its control data in `control`. `None` if there is no room.
    ///
    /// # Safety
    /// `message` must be valid, as for sendmsg(2). The result must not outlive `control`.
    unsafe fn attach(&self, message: &libc::msghdr, control: &mut Control) -> Option<libc::msghdr> {
        let mut fds = 0;
        // SAFETY: valid, as the caller guarantees.
        let used = unsafe { walk(message, |_| fds += 1) }?;
        let length = HEADER_BYTES + self.count * FD_BYTES;
        if fds + self.count > RIGHTS_MAX || used + align(length) > CONTROL_BYTES {
            return None;
        }
        let base = control.address().cast::<u8>();
        // SAFETY: `used` and the room for the parts behind it lie within our buffer, as was checked, and a multiple of
        // eight is aligned for a header there. The app's data is readable for `msg_controllen` bytes, as the caller
        // guarantees; `used` may be up to seven bytes more, padding that the app left out. The parts lie within their
        // array.
        unsafe {
            let given = used.min(message.msg_controllen);
            base.write_bytes(0, used);
            core::ptr::copy_nonoverlapping(message.msg_control.cast::<u8>(), base, given);
            let header = base.add(used).cast::<libc::cmsghdr>();
            header.write(libc::cmsghdr {
                cmsg_len: length as _,
                cmsg_level: libc::SOL_SOCKET,
                cmsg_type: libc::SCM_RIGHTS,
            });
            let data = base.add(used + HEADER_BYTES);
            core::ptr::copy_nonoverlapping(self.parts.as_ptr().cast::<u8>(), data, self.count * FD_BYTES);
        }
        let mut copy = *message;
        copy.msg_control = base.cast();
        copy.msg_controllen = (used + align(length)) as _;
        Some(copy)
    }
}

/// Receives a message with `receive` and takes over the ends in it. `None`, with nothing done, if the message has no
/// room for control data, or the process is sealed.
///
/// Descriptors travel in one family only, but to ask a socket for its family costs a call for each datagram that tells
/// where it came from. So all control data comes into the buffer of ours, and is laid into the app's room as the kernel
/// would have done it, whatever it is.
///
/// # Safety
/// `message` must be null or valid, as for recvmsg(2).
pub unsafe fn receive(
    socket: i32,
    message: *mut libc::msghdr,
    flags: i32,
    receive: impl FnOnce(*mut libc::msghdr) -> isize,
) -> Option<isize> {
    if in_first_page(message as usize) || is_sealed() || is_guest_of_parent() {
        return None;
    }
    // SAFETY: valid, as the caller guarantees.
    let message = unsafe { &mut *message };
    // What other sockets bring may be more than fits here, where the app has room for it.
    if in_first_page(message.msg_control as usize) || message.msg_controllen > CONTROL_BYTES && !is_unix(socket) {
        return None;
    }
    let mut control = Control::empty();
    // The app's own stays as it is until there is something to tell: the call may never return, as a handler may jump
    // out of it, and its thread be cancelled.
    let mut came = *message;
    came.msg_control = control.address();
    came.msg_controllen = CONTROL_BYTES as _;
    let result = receive(&raw mut came);
    if result >= 0 {
        message.msg_namelen = came.msg_namelen;
        message.msg_flags = came.msg_flags;
        // SAFETY: the kernel filled in the control data of `came`; the app's room is as large as it said.
        unsafe { deliver(&came, message, flags & libc::MSG_PEEK != 0) };
    }
    Some(result)
}

/// Takes over what came, and lays the rest into the app's room.
///
/// # Safety
/// The control data of `came` must be the kernel's, and that of `message` room of the app.
unsafe fn deliver(came: &libc::msghdr, message: &mut libc::msghdr, peeked: bool) {
    let room = message.msg_control.cast::<u8>();
    let room_bytes = message.msg_controllen;
    let mut filled = 0;
    let lay = |control: &libc::cmsghdr, data: *mut u8, mut length: usize| {
        let left = room_bytes.saturating_sub(filled).saturating_sub(HEADER_BYTES);
        let is_rights = control::is_rights(control);
        if is_rights {
            // SAFETY: as many descriptors as the length says.
            length = unsafe { take_over(data, length / FD_BYTES, left / FD_BYTES, message, peeked) } * FD_BYTES;
        } else if left < length {
            message.msg_flags |= libc::MSG_CTRUNC;
            length = left;
        }
        let fits = filled + HEADER_BYTES <= room_bytes;
        if fits && (length != 0 || !is_rights) {
            // SAFETY: `left` bytes behind a header lie within the app's room.
            unsafe {
                room.add(filled)
                    .cast::<libc::cmsghdr>()
                    .write_unaligned(libc::cmsghdr { cmsg_len: (HEADER_BYTES + length) as _, ..*control });
                core::ptr::copy_nonoverlapping(data, room.add(filled + HEADER_BYTES), length);
            }
            filled = (filled + align(HEADER_BYTES + length)).min(room_bytes);
        }
    };
    // SAFETY: the kernel's, as the caller guarantees.
    unsafe { control::each(came, lay) };
    message.msg_controllen = filled as _;
}

/// As many descriptors as nearly all messages have: a stack may be small.
const FEW: usize = 16;

/// Takes over the ends among `count` descriptors, and moves those that are the app's to the front. Returns how many the
/// app gets, `most` of them at most.
///
/// # Safety
/// `data` must hold `count` descriptors.
unsafe fn take_over(data: *mut u8, count: usize, most: usize, message: &mut libc::msghdr, peeked: bool) -> usize {
    // SAFETY: forwarded.
    unsafe {
        if count <= FEW {
            take_over_up_to::<FEW>(data, count, most, message, peeked)
        } else {
            take_over_up_to::<RIGHTS_MAX>(data, count, most, message, peeked)
        }
    }
}

/// The same for up to `N` of them.
///
/// # Safety
/// As for [`take_over`].
#[inline(never)]
unsafe fn take_over_up_to<const N: usize>(
    data: *mut u8,
    count: usize,
    most: usize,
    message: &mut libc::msghdr,
    peeked: bool,
) -> usize {
    let data = data.cast::<i32>();
    let mut parts = [Part::NONE; N];
    let parts = parts.get_mut(..count.min(N)).unwrap_or_default();
    for (index, part) in parts.iter_mut().enumerate() {
        // SAFETY: the caller guarantees it.
        let fd = unsafe { data.add(index).read_unaligned() };
        // The number is new: whatever it led to was closed past us.
        close::fd_reborn(fd);
        *part = Part::of(fd);
    }
    {
        let _changing = changing();
        if peeked {
            // The message is still there, with the loan of whoever receives it.
            parts.iter().filter_map(Part::side).for_each(lend_again);
        }
        adopt_all(parts, Came::InMessage);
    }
    let mut given = 0;
    for part in parts.iter() {
        if part.is_ours() {
            let _ = sys::close(part.fd);
        } else if given == most {
            message.msg_flags |= libc::MSG_CTRUNC;
            if super::close(part.fd) == crate::Outcome::Kernel {
                let _ = sys::close(part.fd);
            }
        } else {
            super::listeners::meet_listener(part.fd);
            // SAFETY: no further than what was read.
            unsafe { data.add(given).write_unaligned(part.fd) };
            given += 1;
        }
    }
    crate::slots::open_slots();
    for part in parts.iter() {
        super::demote_if_stream(part.fd);
    }
    if parts.iter().any(|part| table::get(part.fd).is_some_and(Desc::is_lane)) {
        // Perhaps the first ones of a program that is not fit for them.
        super::code::settle_lanes();
    }
    given
}

/// Calls `f` with each end in a message.
///
/// # Safety
/// `message` must be null or valid.
unsafe fn each_end(message: *const libc::msghdr, mut f: impl FnMut(i32, &'static Desc)) {
    // SAFETY: forwarded.
    unsafe {
        each(message, |fd| {
            if let Some(desc) = table::get(fd).filter(|desc| desc.is_lane()) {
                f(fd, desc);
            }
        });
    }
}

/// Calls `f` with each descriptor in a message; with none if the kernel will refuse the whole of it.
///
/// # Safety
/// `message` must be null or valid.
unsafe fn each(message: *const libc::msghdr, f: impl FnMut(i32)) {
    // SAFETY: forwarded.
    unsafe {
        if walk(message, |_| {}).is_some() {
            let _ = walk(message, f);
        }
    }
}

/// Calls `f` with each descriptor in a message, and returns where its last control message ends, aligned. `None` where
/// a control message claims a length that cannot be.
///
/// # Safety
/// `message` must be null or valid.
unsafe fn walk(message: *const libc::msghdr, mut f: impl FnMut(i32)) -> Option<usize> {
    if in_first_page(message as usize) {
        return Some(0);
    }
    // SAFETY: valid, as the caller guarantees.
    let message = unsafe { message.read_unaligned() };
    // SAFETY: as above; the data has the length stated.
    unsafe {
        control::each_of_app(&message, |header, data, bytes| {
            if control::is_rights(header) {
                for index in 0..bytes / FD_BYTES {
                    f(data.cast::<i32>().add(index).read_unaligned());
                }
            }
        })
    }
}
