//! Receives whose control messages count.

use super::{Ret, call};

/// What a `recvmsg` with room for control messages gave.
#[derive(Debug, Clone, Default)]
pub struct Ancillary {
    pub flags: i32,
    pub name_length: u32,
    pub data: Vec<u8>,
    /// As much of the room as the kernel says it has filled.
    pub control: Vec<u8>,
}

/// `recvmsg` of up to `length` bytes with `room` bytes for control messages.
pub fn recvmsg_with_room(fd: i32, length: usize, room: usize, flags: i32) -> (Ret, Ancillary) {
    let mut data = vec![0_u8; length];
    let mut control = vec![0_u64; room.div_ceil(8)];
    let mut part = libc::iovec { iov_base: data.as_mut_ptr().cast(), iov_len: length };
    // SAFETY: all-zero is a valid `msghdr`.
    let mut header: libc::msghdr = unsafe { core::mem::zeroed() };
    header.msg_iov = &raw mut part;
    header.msg_iovlen = 1;
    header.msg_control = control.as_mut_ptr().cast();
    header.msg_controllen = room;
    // SAFETY: the header points at one live vector and control space of the lengths it states.
    let ret = call(|| unsafe { libc::recvmsg(fd, &raw mut header, flags) } as i64);
    data.truncate(ret.size());
    let mut control: Vec<u8> = control.iter().flat_map(|word| word.to_ne_bytes()).collect();
    control.truncate(header.msg_controllen);
    (ret, Ancillary { flags: header.msg_flags, name_length: header.msg_namelen, data, control })
}
