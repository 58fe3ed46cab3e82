//! Messages with control data (sendmsg(2), recvmsg(2)), above all with descriptors (`SCM_RIGHTS`).
//!
//! Control data of our own, and what the kernel has filled in, is walked by libc's macros ([`each`]). They would follow
//! any length that a program writes there, also out of the buffer or round in circles, so what comes from one is walked
//! by [`each_of_app`].

use core::mem::MaybeUninit;

use crate::app_memory::in_first_page;

/// `SCM_MAX_FD`: the most descriptors the kernel lets travel with one message.
pub const RIGHTS_MAX: usize = 253;

/// Bytes of the header of a control message. A whole number of words, so data behind it is aligned as it is.
pub const HEADER_BYTES: usize = size_of::<libc::cmsghdr>();

/// Where a control message may begin behind so many bytes: `CMSG_ALIGN`.
#[must_use]
pub const fn align(length: usize) -> usize {
    length.next_multiple_of(size_of::<usize>())
}

/// Room for control data, aligned as the kernel's headers are.
#[repr(C, align(8))]
pub struct Control<const N: usize>(MaybeUninit<[u8; N]>);

/// Bytes of control data that so many descriptors take.
#[must_use]
pub const fn control_bytes(descriptors: usize) -> usize {
    // SAFETY: computes a size from a small number.
    unsafe { libc::CMSG_SPACE((descriptors * size_of::<i32>()) as u32) as usize }
}

/// Bytes of control data that one descriptor takes.
pub const ONE: usize = control_bytes(1);

impl<const N: usize> Control<N> {
    /// Room with nothing in it.
    #[must_use]
    pub const fn empty() -> Self {
        Self(MaybeUninit::uninit())
    }

    /// Where it is.
    pub fn address(&mut self) -> *mut libc::c_void {
        self.0.as_mut_ptr().cast()
    }
}

/// A message of one part, with room for control data.
#[must_use]
pub fn message<const N: usize>(part: &mut libc::iovec, control: &mut Control<N>) -> libc::msghdr {
    // SAFETY: all-zero is a valid value of this plain C struct.
    let mut message: libc::msghdr = unsafe { core::mem::zeroed() };
    message.msg_iov = part;
    message.msg_iovlen = 1;
    message.msg_control = control.address();
    message.msg_controllen = N as _;
    message
}

/// A message of one part with a descriptor.
#[must_use]
pub fn message_with(part: &mut libc::iovec, control: &mut Control<ONE>, fd: i32) -> libc::msghdr {
    control.0 = MaybeUninit::zeroed();
    let message = message(part, control);
    // SAFETY: the control space is zeroed and large enough for one header with one descriptor.
    unsafe {
        let header = libc::CMSG_FIRSTHDR(&raw const message);
        (*header).cmsg_level = libc::SOL_SOCKET;
        (*header).cmsg_type = libc::SCM_RIGHTS;
        (*header).cmsg_len = libc::CMSG_LEN(size_of::<i32>() as u32) as _;
        libc::CMSG_DATA(header).cast::<i32>().write_unaligned(fd);
    }
    message
}

/// A message of one part with the control messages that `fill` adds.
#[must_use]
pub fn message_of<const N: usize>(
    part: &mut libc::iovec,
    control: &mut Control<N>,
    fill: impl FnOnce(&mut Filling<'_, N>),
) -> libc::msghdr {
    control.0 = MaybeUninit::zeroed();
    let mut filling = Filling { control, used: 0 };
    fill(&mut filling);
    let used = filling.used;
    let mut message = message(part, control);
    message.msg_controllen = used as _;
    message
}

/// Control data that is being written.
pub struct Filling<'a, const N: usize> {
    control: &'a mut Control<N>,
    used: usize,
}

impl<const N: usize> Filling<'_, N> {
    /// One more control message of `SOL_SOCKET`, if there is room for it.
    pub fn add<T: Copy>(&mut self, kind: i32, data: T) {
        let (length, next) = (HEADER_BYTES + size_of::<T>(), self.used + align(HEADER_BYTES + size_of::<T>()));
        if next > N {
            return;
        }
        // SAFETY: all-zero is a valid value of this plain C struct.
        let mut header: libc::cmsghdr = unsafe { core::mem::zeroed() };
        header.cmsg_len = length as _;
        header.cmsg_level = libc::SOL_SOCKET;
        header.cmsg_type = kind;
        let place = self.control.address().cast::<u8>();
        // SAFETY: header and data lie before `next`, which is within the control space.
        unsafe {
            place.add(self.used).cast::<libc::cmsghdr>().write_unaligned(header);
            place.add(self.used + HEADER_BYTES).cast::<T>().write_unaligned(data);
        }
        self.used = next;
    }
}

/// Whether a control message brings descriptors.
#[must_use]
pub fn is_rights(header: &libc::cmsghdr) -> bool {
    header.cmsg_level == libc::SOL_SOCKET && header.cmsg_type == libc::SCM_RIGHTS
}

/// Calls `f` with each control message that came: its header, where its data is, and how many bytes.
///
/// # Safety
/// The kernel must have filled in the control data.
pub unsafe fn each(message: &libc::msghdr, mut f: impl FnMut(&libc::cmsghdr, *mut u8, usize)) {
    // SAFETY: the kernel filled in the control data, as the caller guarantees; the macros stay within it.
    unsafe {
        let mut header = libc::CMSG_FIRSTHDR(message);
        while let Some(control) = header.as_ref() {
            let bytes = control.cmsg_len.saturating_sub(libc::CMSG_LEN(0) as usize);
            f(control, libc::CMSG_DATA(header), bytes);
            header = libc::CMSG_NXTHDR(message, header);
        }
    }
}

/// Calls `f` with each control message that a program sends: its header, where its data is, and how many bytes. Returns
/// where the last one ends, aligned. `None` where one claims a length that cannot be, for which the kernel refuses the
/// whole (`CMSG_OK`, Linux include/linux/socket.h).
///
/// # Safety
/// The message must be valid as for sendmsg(2).
pub unsafe fn each_of_app(
    message: &libc::msghdr,
    mut f: impl FnMut(&libc::cmsghdr, *const u8, usize),
) -> Option<usize> {
    let (base, room) = (message.msg_control.cast::<u8>().cast_const(), message.msg_controllen);
    if in_first_page(base as usize) {
        return Some(0);
    }
    // The kernel takes no more (`ENOBUFS`), and nothing below can overflow.
    if room > i32::MAX as usize {
        return None;
    }
    let mut at = 0;
    while room.checked_sub(at).is_some_and(|left| left >= HEADER_BYTES) {
        // SAFETY: a whole header lies before `room`, up to which the data is readable, as the caller guarantees. The
        // program may have put it at any address, and another thread of it may write there: it is read once.
        let header = unsafe { base.add(at).cast::<libc::cmsghdr>().read_unaligned() };
        if header.cmsg_len < HEADER_BYTES || header.cmsg_len > room - at {
            return None;
        }
        // SAFETY: within this control message, which ends before `room`.
        f(&header, unsafe { base.add(at + HEADER_BYTES) }, header.cmsg_len - HEADER_BYTES);
        at += align(header.cmsg_len);
    }
    Some(at)
}

/// The one descriptor that came, if it is one and nothing came with it.
///
/// # Safety
/// The kernel must have filled in the control data.
#[must_use]
pub unsafe fn sole_descriptor(message: &libc::msghdr) -> Option<i32> {
    let (mut count, mut found) = (0, None);
    // SAFETY: forwarded; a message of this length holds one descriptor.
    unsafe {
        each(message, |header, data, bytes| {
            count += 1;
            if is_rights(header) && bytes == size_of::<i32>() {
                found = Some(data.cast::<i32>().read_unaligned());
            }
        });
    }
    found.filter(|_| count == 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel;
    use std::io::Write;
    use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
    use std::os::unix::net::UnixStream;

    /// What comes of the descriptors that are sent with one byte: the sole one, and how many messages.
    fn received(send: impl FnOnce(&mut UnixStream)) -> (Option<i32>, usize) {
        let (mut ours, theirs) = UnixStream::pair().unwrap();
        send(&mut ours);
        let mut byte = [0u8];
        let mut part = libc::iovec { iov_base: byte.as_mut_ptr().cast(), iov_len: 1 };
        let mut control = Control::<{ control_bytes(RIGHTS_MAX) }>::empty();
        let mut message = message(&mut part, &mut control);
        // SAFETY: iovec, byte and control space are live and of the lengths given.
        assert_eq!(unsafe { kernel::recvmsg(theirs.as_raw_fd(), &mut message, 0) }, Ok(1));
        let mut count = 0;
        // SAFETY: the kernel filled in the control data.
        let sole = unsafe {
            each(&message, |header, _, _| count += usize::from(is_rights(header)));
            sole_descriptor(&message)
        };
        (sole, count)
    }

    #[test]
    fn a_descriptor_travels_and_none_is_none() {
        let (sole, count) = received(|socket| {
            let mut byte = [7u8];
            let mut part = libc::iovec { iov_base: byte.as_mut_ptr().cast(), iov_len: 1 };
            let mut control = Control::empty();
            let message = message_with(&mut part, &mut control, socket.as_raw_fd());
            // SAFETY: iovec, byte and control data are live and of the lengths given.
            assert_eq!(unsafe { kernel::sendmsg(socket.as_raw_fd(), &message, 0) }, Ok(1));
        });
        assert_eq!(count, 1);
        // SAFETY: it came with the message, and nobody else has it.
        let sole = unsafe { OwnedFd::from_raw_fd(sole.unwrap()) };
        assert_eq!(kernel::getsockopt::<i32>(sole.as_raw_fd(), libc::SOL_SOCKET, libc::SO_DOMAIN), Ok(libc::AF_UNIX));
        assert_eq!(received(|socket| socket.write_all(&[7]).unwrap()), (None, 0));
    }
}
