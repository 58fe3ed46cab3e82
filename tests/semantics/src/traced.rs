//! The calls of a case: each makes one libc call and adds one line to the trace.
//!
//! Descriptors carry the name under which they appear in the trace, so that traces are readable and hold no numbers.

mod ready;
mod wait;

pub use ready::*;
pub use wait::*;

use crate::trace;
use beeline_testkit::rng::Hash;
use beeline_testkit::sys::{self, Pieces, RawAddress, Ret, errno_name, message_flags_name};

/// A descriptor and its name in the trace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fd {
    pub raw: i32,
    pub name: &'static str,
}

impl Fd {
    #[must_use]
    pub fn new(raw: i32, name: &'static str) -> Self {
        Self { raw, name }
    }

    /// The same descriptor under another name (a forked child's copy, say).
    #[must_use]
    pub fn named(self, name: &'static str) -> Self {
        Self { name, ..self }
    }
}

/// A call that returns a descriptor shows only that it did.
fn shown_fd(ret: Ret) -> String {
    if ret.is_ok() && !ret.clobbered { "fd".to_owned() } else { ret.to_string() }
}

/// Short printable data as it is, anything else as length and hash.
#[must_use]
pub fn shown(data: &[u8]) -> String {
    if data.len() <= 40 && data.iter().all(|byte| (b' '..=b'~').contains(byte)) {
        return format!("{:?}", String::from_utf8_lossy(data));
    }
    format!("[{} bytes {:016x}]", data.len(), Hash::of(data).0)
}

pub fn socket(domain: i32, kind: i32, protocol: i32, name: &'static str) -> Fd {
    let ret = sys::socket(domain, kind, protocol);
    trace!("socket({name}) = {}", shown_fd(ret));
    Fd::new(ret.value as i32, name)
}

pub fn bind(fd: Fd, address: &RawAddress) -> Ret {
    let ret = sys::bind(fd.raw, address);
    trace!("bind({}) = {ret}", fd.name);
    ret
}

pub fn listen(fd: Fd, backlog: i32) -> Ret {
    let ret = sys::listen(fd.raw, backlog);
    trace!("listen({}, {backlog}) = {ret}", fd.name);
    ret
}

pub fn connect(fd: Fd, address: &RawAddress) -> Ret {
    let ret = sys::connect(fd.raw, address);
    trace!("connect({}) = {ret}", fd.name);
    ret
}

pub fn accept(fd: Fd, name: &'static str) -> Fd {
    let ret = crate::across::accept(fd.raw);
    trace!("accept({} -> {name}) = {}", fd.name, shown_fd(ret));
    Fd::new(ret.value as i32, name)
}

pub fn accept4(fd: Fd, flags: i32, name: &'static str) -> Fd {
    let ret = crate::across::accept4(fd.raw, flags);
    trace!("accept4({} -> {name}, {flags:#x}) = {}", fd.name, shown_fd(ret));
    Fd::new(ret.value as i32, name)
}

pub fn recv(fd: Fd, length: usize, flags: i32) -> Vec<u8> {
    let mut buffer = vec![0; length];
    let ret = sys::recv(fd.raw, &mut buffer, flags);
    // With MSG_TRUNC the count may exceed what was stored, and nothing was.
    buffer.truncate(if flags & libc::MSG_TRUNC != 0 { 0 } else { ret.size() });
    let data = if ret.value > 0 { format!(" {}", shown(&buffer)) } else { String::new() };
    trace!("recv({}, {length}, {}) = {ret}{data}", fd.name, message_flags_name(flags));
    buffer
}

pub fn read(fd: Fd, length: usize) -> Vec<u8> {
    let mut buffer = vec![0; length];
    let ret = sys::read(fd.raw, &mut buffer);
    buffer.truncate(ret.size());
    let data = if ret.value > 0 { format!(" {}", shown(&buffer)) } else { String::new() };
    trace!("read({}, {length}) = {ret}{data}", fd.name);
    buffer
}

pub fn send(fd: Fd, data: &[u8], flags: i32) -> Ret {
    let ret = sys::send(fd.raw, data, flags);
    trace!("send({}, {}, {}) = {ret}", fd.name, shown(data), message_flags_name(flags));
    ret
}

pub fn write(fd: Fd, data: &[u8]) -> Ret {
    let ret = sys::write(fd.raw, data);
    trace!("write({}, {}) = {ret}", fd.name, shown(data));
    ret
}

/// A list of lengths, shortened when it is long.
fn shown_lengths<T: std::fmt::Debug>(lengths: &[T]) -> String {
    match lengths.len() {
        0..=20 => format!("{lengths:?}"),
        count => format!("[{count} pieces]"),
    }
}

/// Lengths below zero stand for NULL bases.
pub fn readv(fd: Fd, lengths: &[i64]) -> Ret {
    let mut pieces = Pieces::of_lengths(lengths);
    let ret = sys::readv(fd.raw, &mut pieces);
    trace!("readv({}, {}) = {ret} {}", fd.name, shown_lengths(lengths), shown(&pieces.taken(ret.size())));
    ret
}

pub fn writev(fd: Fd, data: &[&[u8]]) -> Ret {
    let pieces = Pieces::of_data(data);
    let ret = sys::writev(fd.raw, &pieces);
    let lengths: Vec<usize> = data.iter().map(|piece| piece.len()).collect();
    trace!("writev({}, {}) = {ret}", fd.name, shown_lengths(&lengths));
    ret
}

pub fn sendmsg(fd: Fd, data: &[&[u8]], flags: i32) -> Ret {
    let mut pieces = Pieces::of_data(data);
    let ret = sys::sendmsg(fd.raw, &mut pieces, flags);
    let lengths: Vec<usize> = data.iter().map(|piece| piece.len()).collect();
    trace!("sendmsg({}, {}, {}) = {ret}", fd.name, shown_lengths(&lengths), message_flags_name(flags));
    ret
}

pub fn recvmsg(fd: Fd, lengths: &[i64], flags: i32) -> Ret {
    let mut pieces = Pieces::of_lengths(lengths);
    let (ret, received) = sys::recvmsg(fd.raw, &mut pieces, flags);
    let header = match ret.is_ok() {
        true => format!(
            " flags={} name={} control={}",
            message_flags_name(received.flags),
            received.name_length,
            received.control_length
        ),
        false => String::new(),
    };
    let data = if flags & libc::MSG_TRUNC != 0 { Vec::new() } else { pieces.taken(ret.size()) };
    trace!(
        "recvmsg({}, {}, {}) = {ret} {}{header}",
        fd.name,
        shown_lengths(lengths),
        message_flags_name(flags),
        shown(&data)
    );
    ret
}

pub fn shutdown(fd: Fd, how: i32) -> Ret {
    let ret = sys::shutdown(fd.raw, how);
    let how = ["SHUT_RD", "SHUT_WR", "SHUT_RDWR"].get(how as usize).copied().unwrap_or("?");
    trace!("shutdown({}, {how}) = {ret}", fd.name);
    ret
}

pub fn close(fd: Fd) -> Ret {
    let ret = sys::close(fd.raw);
    trace!("close({}) = {ret}", fd.name);
    ret
}

pub fn dup(fd: Fd, name: &'static str) -> Fd {
    let ret = sys::dup(fd.raw);
    trace!("dup({} -> {name}) = {}", fd.name, shown_fd(ret));
    Fd::new(ret.value as i32, name)
}

/// `SO_ERROR`, by name.
pub fn so_error(fd: Fd) -> i32 {
    let mut value = [0; 4];
    let (ret, _) = sys::getsockopt(fd.raw, libc::SOL_SOCKET, libc::SO_ERROR, &mut value);
    let error = i32::from_ne_bytes(value);
    let name = if error == 0 { "0".to_owned() } else { errno_name(error) };
    trace!("SO_ERROR({}) = {ret} {name}", fd.name);
    error
}

pub fn fionread(fd: Fd) -> i32 {
    let mut count = -1;
    let ret = sys::ioctl(fd.raw, libc::FIONREAD, &mut count);
    trace!("FIONREAD({}) = {ret} {count}", fd.name);
    count
}

pub fn fcntl(fd: Fd, command: i32, name: &str, argument: i32) -> Ret {
    let ret = sys::fcntl(fd.raw, command, argument);
    let shown = if ret.is_ok() { format!("{:#x}", ret.value) } else { ret.to_string() };
    trace!("fcntl({}, {name}, {argument:#x}) = {shown}", fd.name);
    ret
}

/// Sets an int option.
pub fn set_option(fd: Fd, level: i32, option: i32, name: &str, value: i32) -> Ret {
    let ret = sys::setsockopt(fd.raw, level, option, &value.to_ne_bytes());
    trace!("setsockopt({}, {name}, {value}) = {ret}", fd.name);
    ret
}

/// Reads an int option.
pub fn option(fd: Fd, level: i32, option: i32, name: &str) -> i32 {
    let mut value = [0; 4];
    let (ret, length) = sys::getsockopt(fd.raw, level, option, &mut value);
    let number = i32::from_ne_bytes(value);
    trace!("getsockopt({}, {name}) = {ret} {number} length {length}", fd.name);
    number
}

/// Sets a `timeval` option in milliseconds.
pub fn set_timeout(fd: Fd, option: i32, name: &str, ms: i64) -> Ret {
    let mut value = [0; 16];
    value[..8].copy_from_slice(&(ms / 1000).to_ne_bytes());
    value[8..].copy_from_slice(&(ms % 1000 * 1000).to_ne_bytes());
    let ret = sys::setsockopt(fd.raw, libc::SOL_SOCKET, option, &value);
    trace!("setsockopt({}, {name}, {ms} ms) = {ret}", fd.name);
    ret
}

/// Sets `SO_LINGER`.
pub fn set_linger(fd: Fd, on: i32, seconds: i32) -> Ret {
    let mut value = [0; 8];
    value[..4].copy_from_slice(&on.to_ne_bytes());
    value[4..].copy_from_slice(&seconds.to_ne_bytes());
    let ret = sys::setsockopt(fd.raw, libc::SOL_SOCKET, libc::SO_LINGER, &value);
    trace!("setsockopt({}, SO_LINGER, {on} {seconds}) = {ret}", fd.name);
    ret
}
