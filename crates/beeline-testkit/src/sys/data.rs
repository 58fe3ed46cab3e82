//! Calls that move bytes.

use super::{Ret, call};

pub fn read(fd: i32, buffer: &mut [u8]) -> Ret {
    // SAFETY: the buffer is valid for its length.
    call(|| unsafe { libc::read(fd, buffer.as_mut_ptr().cast(), buffer.len()) } as i64)
}

pub fn write(fd: i32, data: &[u8]) -> Ret {
    // SAFETY: the data is valid for its length.
    call(|| unsafe { libc::write(fd, data.as_ptr().cast(), data.len()) } as i64)
}

pub fn recv(fd: i32, buffer: &mut [u8], flags: i32) -> Ret {
    // SAFETY: the buffer is valid for its length.
    call(|| unsafe { libc::recv(fd, buffer.as_mut_ptr().cast(), buffer.len(), flags) } as i64)
}

pub fn send(fd: i32, data: &[u8], flags: i32) -> Ret {
    // SAFETY: the data is valid for its length.
    call(|| unsafe { libc::send(fd, data.as_ptr().cast(), data.len(), flags) } as i64)
}

pub fn read_at(fd: i32, pointer: usize, length: usize) -> Ret {
    // SAFETY: the kernel checks the pointer and answers EFAULT; whether a library does as well is what the test asks.
    call(|| unsafe { libc::read(fd, pointer as *mut _, length) } as i64)
}

pub fn write_at(fd: i32, pointer: usize, length: usize) -> Ret {
    // SAFETY: as above.
    call(|| unsafe { libc::write(fd, pointer as *const _, length) } as i64)
}

pub fn recv_at(fd: i32, pointer: usize, length: usize, flags: i32) -> Ret {
    // SAFETY: as above.
    call(|| unsafe { libc::recv(fd, pointer as *mut _, length, flags) } as i64)
}

pub fn send_at(fd: i32, pointer: usize, length: usize, flags: i32) -> Ret {
    // SAFETY: as above.
    call(|| unsafe { libc::send(fd, pointer as *const _, length, flags) } as i64)
}

pub fn readv_at(fd: i32, pointer: usize, count: i32) -> Ret {
    // SAFETY: as above.
    call(|| unsafe { libc::readv(fd, pointer as *const _, count) } as i64)
}

pub fn writev_at(fd: i32, pointer: usize, count: i32) -> Ret {
    // SAFETY: as above.
    call(|| unsafe { libc::writev(fd, pointer as *const _, count) } as i64)
}

/// `recvfrom` with room for an address; the second value is the address length the call wrote.
pub fn recvfrom(fd: i32, buffer: &mut [u8], flags: i32) -> (Ret, u32) {
    let mut address = super::RawAddress::default();
    let (data, length) = (buffer.as_mut_ptr().cast(), buffer.len());
    let pointer = (&raw mut address.storage).cast();
    // SAFETY: buffer and address are valid for the lengths passed.
    let ret = call(|| unsafe { libc::recvfrom(fd, data, length, flags, pointer, &raw mut address.length) } as i64);
    (ret, address.length)
}

/// `sendto` with a destination.
pub fn sendto(fd: i32, data: &[u8], flags: i32, to: &super::RawAddress) -> Ret {
    let pointer = (&raw const to.storage).cast();
    // SAFETY: data and address are valid for the lengths passed.
    call(|| unsafe { libc::sendto(fd, data.as_ptr().cast(), data.len(), flags, pointer, to.length) } as i64)
}

/// Buffers of several lengths as one `iovec` array. A negative length means a NULL base of that size.
pub struct Pieces {
    buffers: Vec<Vec<u8>>,
    pub vectors: Vec<libc::iovec>,
}

impl Pieces {
    /// Empty buffers to read into.
    #[must_use]
    pub fn of_lengths(lengths: &[i64]) -> Self {
        let buffers = lengths.iter().map(|length| vec![0_u8; usize::try_from(*length).unwrap_or(0)]).collect();
        Self::over(buffers, lengths)
    }

    /// Buffers that hold `data` one after the other.
    #[must_use]
    pub fn of_data(data: &[&[u8]]) -> Self {
        let lengths: Vec<i64> = data.iter().map(|piece| piece.len() as i64).collect();
        Self::over(data.iter().map(|piece| piece.to_vec()).collect(), &lengths)
    }

    fn over(mut buffers: Vec<Vec<u8>>, lengths: &[i64]) -> Self {
        let vectors = buffers
            .iter_mut()
            .zip(lengths)
            .map(|(buffer, length)| match length {
                ..0 => libc::iovec { iov_base: std::ptr::null_mut(), iov_len: length.unsigned_abs() as usize },
                _ => libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() },
            })
            .collect();
        Self { buffers, vectors }
    }

    /// The first `length` bytes that were read, across the pieces.
    #[must_use]
    pub fn taken(&self, length: usize) -> Vec<u8> {
        self.buffers.iter().flatten().copied().take(length).collect()
    }

    fn header(&mut self) -> libc::msghdr {
        // SAFETY: msghdr is plain data for which zeroes are a valid value.
        let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
        header.msg_iov = self.vectors.as_mut_ptr();
        header.msg_iovlen = self.vectors.len();
        header
    }
}

/// `readv`; the count may differ from the number of pieces on purpose, but not exceed it.
pub fn readv(fd: i32, pieces: &mut Pieces) -> Ret {
    let (pointer, count) = (pieces.vectors.as_ptr(), pieces.vectors.len() as i32);
    // SAFETY: each vector describes a live buffer, or NULL which the kernel answers with EFAULT.
    call(|| unsafe { libc::readv(fd, pointer, count) } as i64)
}

pub fn writev(fd: i32, pieces: &Pieces) -> Ret {
    let (pointer, count) = (pieces.vectors.as_ptr(), pieces.vectors.len() as i32);
    // SAFETY: as above.
    call(|| unsafe { libc::writev(fd, pointer, count) } as i64)
}

pub fn sendmsg(fd: i32, pieces: &mut Pieces, flags: i32) -> Ret {
    let header = pieces.header();
    // SAFETY: the header points at live vectors and nothing else.
    call(|| unsafe { libc::sendmsg(fd, &raw const header, flags) } as i64)
}

/// `sendmsg` with one control message that holds one int.
pub fn sendmsg_with_control(fd: i32, data: &[u8], level: i32, kind: i32, value: i32) -> Ret {
    let mut control = [0_u64; 4];
    let mut part = libc::iovec { iov_base: data.as_ptr().cast_mut().cast(), iov_len: data.len() };
    // SAFETY: zeroes are a valid msghdr; the control space has room for one message with an int.
    unsafe {
        let mut header: libc::msghdr = std::mem::zeroed();
        header.msg_iov = &raw mut part;
        header.msg_iovlen = 1;
        header.msg_control = control.as_mut_ptr().cast();
        header.msg_controllen = libc::CMSG_SPACE(4) as usize;
        let message = libc::CMSG_FIRSTHDR(&raw const header);
        (*message).cmsg_level = level;
        (*message).cmsg_type = kind;
        (*message).cmsg_len = libc::CMSG_LEN(4) as usize;
        libc::CMSG_DATA(message).cast::<i32>().write_unaligned(value);
        call(|| libc::sendmsg(fd, &raw const header, libc::MSG_NOSIGNAL) as i64)
    }
}

/// `sendmsg` with control data word by word, sound or not.
pub fn sendmsg_with_control_words(fd: i32, data: &[u8], control: &[u64]) -> Ret {
    let mut part = libc::iovec { iov_base: data.as_ptr().cast_mut().cast(), iov_len: data.len() };
    // SAFETY: zeroes are a valid msghdr; vector and control data are live, of the lengths told, and only read.
    unsafe {
        let mut header: libc::msghdr = std::mem::zeroed();
        header.msg_iov = &raw mut part;
        header.msg_iovlen = 1;
        header.msg_control = control.as_ptr().cast_mut().cast();
        header.msg_controllen = size_of_val(control);
        call(|| libc::sendmsg(fd, &raw const header, libc::MSG_NOSIGNAL) as i64)
    }
}

/// `sendmmsg` of so many messages of one byte, the first with a descriptor.
pub fn sendmmsg_with_rights(fd: i32, count: usize, passed: i32) -> Ret {
    let rights = (libc::SCM_RIGHTS as u64) << 32 | libc::SOL_SOCKET as u64;
    let mut control = [20, rights, passed as u64];
    let mut part = libc::iovec { iov_base: b"x".as_ptr().cast_mut().cast(), iov_len: 1 };
    // SAFETY: zeroes are a valid mmsghdr.
    let mut message: libc::mmsghdr = unsafe { std::mem::zeroed() };
    (message.msg_hdr.msg_iov, message.msg_hdr.msg_iovlen) = (&raw mut part, 1);
    let mut messages = vec![message; count];
    if let Some(first) = messages.first_mut() {
        first.msg_hdr.msg_control = control.as_mut_ptr().cast();
        first.msg_hdr.msg_controllen = size_of_val(&control);
    }
    // SAFETY: as many live messages as told, with a live vector each and control data of the length told.
    call(|| unsafe { libc::sendmmsg(fd, messages.as_mut_ptr(), count as u32, 0) } as i64)
}

/// What `recvmsg` wrote into its header.
#[derive(Debug, Clone, Copy)]
pub struct Received {
    pub flags: i32,
    pub name_length: u32,
    pub control_length: usize,
}

/// `recvmsg` with room for an address and 64 bytes of control data.
pub fn recvmsg(fd: i32, pieces: &mut Pieces, flags: i32) -> (Ret, Received) {
    let mut address = super::RawAddress::default();
    let mut control = [0_u64; 8];
    let mut header = pieces.header();
    header.msg_name = (&raw mut address.storage).cast();
    header.msg_namelen = address.length;
    header.msg_control = control.as_mut_ptr().cast();
    header.msg_controllen = size_of_val(&control);
    // SAFETY: the header points at live vectors, address and control space of the lengths it states.
    let ret = call(|| unsafe { libc::recvmsg(fd, &raw mut header, flags) } as i64);
    let received =
        Received { flags: header.msg_flags, name_length: header.msg_namelen, control_length: header.msg_controllen };
    (ret, received)
}

fn message_headers(messages: &mut [Pieces]) -> Vec<libc::mmsghdr> {
    messages.iter_mut().map(|pieces| libc::mmsghdr { msg_hdr: pieces.header(), msg_len: 0 }).collect()
}

/// `sendmmsg`; the second value holds the length that the call stored for each message.
pub fn sendmmsg(fd: i32, messages: &mut [Pieces], flags: i32) -> (Ret, Vec<u32>) {
    let mut headers = message_headers(messages);
    let (pointer, count) = (headers.as_mut_ptr(), headers.len() as u32);
    // SAFETY: every header points at live vectors.
    let ret = call(|| i64::from(unsafe { libc::sendmmsg(fd, pointer, count, flags) }));
    (ret, headers.iter().map(|header| header.msg_len).collect())
}

/// `recvmmsg`; the timeout is in milliseconds, none when negative.
pub fn recvmmsg(fd: i32, messages: &mut [Pieces], flags: i32, timeout_ms: i64) -> (Ret, Vec<u32>) {
    let mut limit = super::timespec_of_ms(timeout_ms.max(0));
    recvmmsg_within(fd, messages, flags, if timeout_ms < 0 { None } else { Some(&mut limit) })
}

/// `recvmmsg` with any timeout, of which what is left is written back.
pub fn recvmmsg_within(
    fd: i32,
    messages: &mut [Pieces],
    flags: i32,
    timeout: Option<&mut libc::timespec>,
) -> (Ret, Vec<u32>) {
    let mut headers = message_headers(messages);
    let (pointer, count) = (headers.as_mut_ptr(), headers.len() as u32);
    let timeout = timeout.map_or(std::ptr::null_mut(), std::ptr::from_mut);
    // SAFETY: every header points at live vectors; the timeout is NULL or valid.
    let ret = call(|| i64::from(unsafe { libc::recvmmsg(fd, pointer, count, flags, timeout) }));
    (ret, headers.iter().map(|header| header.msg_len).collect())
}
