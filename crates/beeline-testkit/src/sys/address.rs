//! Sockets and their addresses.

use super::{Ret, call};
use std::mem::size_of;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};

/// A socket address in the form of the system calls.
#[derive(Clone, Copy)]
pub struct RawAddress {
    pub storage: libc::sockaddr_storage,
    pub length: libc::socklen_t,
}

impl Default for RawAddress {
    fn default() -> Self {
        // SAFETY: sockaddr_storage is plain data for which zeroes are a valid value.
        let storage = unsafe { std::mem::zeroed() };
        Self { storage, length: size_of::<libc::sockaddr_storage>() as libc::socklen_t }
    }
}

impl RawAddress {
    #[must_use]
    pub fn new(address: SocketAddr) -> Self {
        let mut raw = Self::default();
        match address {
            SocketAddr::V4(v4) => {
                let value = libc::sockaddr_in {
                    sin_family: libc::AF_INET as libc::sa_family_t,
                    sin_port: v4.port().to_be(),
                    sin_addr: libc::in_addr { s_addr: u32::from(*v4.ip()).to_be() },
                    sin_zero: [0; 8],
                };
                // SAFETY: sockaddr_storage is large enough and aligned for every socket address.
                unsafe { (&raw mut raw.storage).cast::<libc::sockaddr_in>().write(value) };
                raw.length = size_of::<libc::sockaddr_in>() as libc::socklen_t;
            }
            SocketAddr::V6(v6) => {
                let value = libc::sockaddr_in6 {
                    sin6_family: libc::AF_INET6 as libc::sa_family_t,
                    sin6_port: v6.port().to_be(),
                    sin6_flowinfo: v6.flowinfo(),
                    sin6_addr: libc::in6_addr { s6_addr: v6.ip().octets() },
                    sin6_scope_id: v6.scope_id(),
                };
                // SAFETY: as above.
                unsafe { (&raw mut raw.storage).cast::<libc::sockaddr_in6>().write(value) };
                raw.length = size_of::<libc::sockaddr_in6>() as libc::socklen_t;
            }
        }
        raw
    }

    /// The address, when it is one of IPv4 or IPv6 and was not cut short.
    #[must_use]
    pub fn decode(&self) -> Option<SocketAddr> {
        match i32::from(self.storage.ss_family) {
            libc::AF_INET if self.length as usize >= size_of::<libc::sockaddr_in>() => {
                // SAFETY: the storage is aligned for and larger than any address; all its bytes are initialised.
                let v4 = unsafe { (&raw const self.storage).cast::<libc::sockaddr_in>().read() };
                let ip = Ipv4Addr::from(u32::from_be(v4.sin_addr.s_addr));
                Some(SocketAddr::V4(SocketAddrV4::new(ip, u16::from_be(v4.sin_port))))
            }
            libc::AF_INET6 if self.length as usize >= size_of::<libc::sockaddr_in6>() => {
                // SAFETY: as above.
                let v6 = unsafe { (&raw const self.storage).cast::<libc::sockaddr_in6>().read() };
                let ip = Ipv6Addr::from(v6.sin6_addr.s6_addr);
                let port = u16::from_be(v6.sin6_port);
                Some(SocketAddr::V6(SocketAddrV6::new(ip, port, v6.sin6_flowinfo, v6.sin6_scope_id)))
            }
            _ => None,
        }
    }

    pub(super) fn pointer(&self) -> *const libc::sockaddr {
        (&raw const self.storage).cast()
    }

    fn pointer_mut(&mut self) -> *mut libc::sockaddr {
        (&raw mut self.storage).cast()
    }
}

#[must_use]
pub fn loopback(v6: bool) -> IpAddr {
    match v6 {
        true => IpAddr::V6(Ipv6Addr::LOCALHOST),
        false => IpAddr::V4(Ipv4Addr::LOCALHOST),
    }
}

pub fn socket(domain: i32, kind: i32, protocol: i32) -> Ret {
    // SAFETY: integers only.
    call(|| i64::from(unsafe { libc::socket(domain, kind, protocol) }))
}

pub fn socketpair(kind: i32) -> (Ret, [i32; 2]) {
    let mut fds = [-1; 2];
    // SAFETY: `fds` has room for two descriptors.
    let ret = call(|| i64::from(unsafe { libc::socketpair(libc::AF_UNIX, kind, 0, fds.as_mut_ptr()) }));
    (ret, fds)
}

pub fn bind(fd: i32, address: &RawAddress) -> Ret {
    // SAFETY: the address is valid for `length` bytes: it never exceeds the storage.
    call(|| i64::from(unsafe { libc::bind(fd, address.pointer(), address.length) }))
}

/// `bind` with any address pointer and length.
pub fn bind_at(fd: i32, pointer: usize, length: u32) -> Ret {
    // SAFETY: as in `connect_at`.
    call(|| i64::from(unsafe { libc::bind(fd, pointer as *const libc::sockaddr, length) }))
}

pub fn listen(fd: i32, backlog: i32) -> Ret {
    // SAFETY: integers only.
    call(|| i64::from(unsafe { libc::listen(fd, backlog) }))
}

pub fn connect(fd: i32, address: &RawAddress) -> Ret {
    // SAFETY: as in bind.
    call(|| i64::from(unsafe { libc::connect(fd, address.pointer(), address.length) }))
}

/// `connect` with any address pointer and length.
pub fn connect_at(fd: i32, pointer: usize, length: u32) -> Ret {
    // SAFETY: the kernel checks the pointer and answers EFAULT; whether a library does as well is what the test asks.
    call(|| i64::from(unsafe { libc::connect(fd, pointer as *const libc::sockaddr, length) }))
}

pub fn accept(fd: i32) -> Ret {
    // SAFETY: NULL is allowed for both.
    call(|| i64::from(unsafe { libc::accept(fd, std::ptr::null_mut(), std::ptr::null_mut()) }))
}

pub fn accept4(fd: i32, flags: i32) -> Ret {
    // SAFETY: NULL is allowed for both.
    call(|| i64::from(unsafe { libc::accept4(fd, std::ptr::null_mut(), std::ptr::null_mut(), flags) }))
}

/// `accept` with room for `room` bytes of address.
pub fn accept_address(fd: i32, room: u32) -> (Ret, RawAddress) {
    let mut address = RawAddress { length: room, ..RawAddress::default() };
    let pointer = address.pointer_mut();
    // SAFETY: the callers ask for no more room than the storage has.
    let ret = call(|| i64::from(unsafe { libc::accept(fd, pointer, &raw mut address.length) }));
    (ret, address)
}

/// `accept` with any address pointer; the length lies at `length`, which may be any address too.
pub fn accept_at(fd: i32, pointer: usize, length: usize) -> Ret {
    // SAFETY: the kernel checks both pointers and answers EFAULT.
    call(|| i64::from(unsafe { libc::accept(fd, pointer as *mut libc::sockaddr, length as *mut u32) }))
}

pub fn getsockname(fd: i32, room: u32) -> (Ret, RawAddress) {
    let mut address = RawAddress { length: room, ..RawAddress::default() };
    let pointer = address.pointer_mut();
    // SAFETY: the callers ask for no more room than the storage has.
    let ret = call(|| i64::from(unsafe { libc::getsockname(fd, pointer, &raw mut address.length) }));
    (ret, address)
}

pub fn getpeername(fd: i32, room: u32) -> (Ret, RawAddress) {
    let mut address = RawAddress { length: room, ..RawAddress::default() };
    let pointer = address.pointer_mut();
    // SAFETY: the callers ask for no more room than the storage has.
    let ret = call(|| i64::from(unsafe { libc::getpeername(fd, pointer, &raw mut address.length) }));
    (ret, address)
}

pub fn getsockname_at(fd: i32, pointer: usize, length: usize) -> Ret {
    // SAFETY: the kernel checks both pointers and answers EFAULT.
    call(|| i64::from(unsafe { libc::getsockname(fd, pointer as *mut libc::sockaddr, length as *mut u32) }))
}

pub fn getpeername_at(fd: i32, pointer: usize, length: usize) -> Ret {
    // SAFETY: the kernel checks both pointers and answers EFAULT.
    call(|| i64::from(unsafe { libc::getpeername(fd, pointer as *mut libc::sockaddr, length as *mut u32) }))
}

pub fn shutdown(fd: i32, how: i32) -> Ret {
    // SAFETY: integers only.
    call(|| i64::from(unsafe { libc::shutdown(fd, how) }))
}

/// Sets an option to the bytes of `value`.
pub fn setsockopt(fd: i32, level: i32, name: i32, value: &[u8]) -> Ret {
    let (pointer, length) = (value.as_ptr().cast(), value.len() as u32);
    // SAFETY: the pointer is valid for `length` bytes.
    call(|| i64::from(unsafe { libc::setsockopt(fd, level, name, pointer, length) }))
}

/// Reads an option into at most `value.len()` bytes; the second value is the length that the call wrote.
pub fn getsockopt(fd: i32, level: i32, name: i32, value: &mut [u8]) -> (Ret, u32) {
    let mut length = value.len() as u32;
    let pointer = value.as_mut_ptr().cast();
    // SAFETY: the pointer is valid for `length` bytes.
    let ret = call(|| i64::from(unsafe { libc::getsockopt(fd, level, name, pointer, &raw mut length) }));
    (ret, length)
}

pub fn getsockopt_at(fd: i32, level: i32, name: i32, pointer: usize, length: usize) -> Ret {
    // SAFETY: the kernel checks both pointers and answers EFAULT.
    call(|| i64::from(unsafe { libc::getsockopt(fd, level, name, pointer as *mut _, length as *mut u32) }))
}

pub fn setsockopt_at(fd: i32, level: i32, name: i32, pointer: usize, length: u32) -> Ret {
    // SAFETY: the kernel checks the pointer and answers EFAULT.
    call(|| i64::from(unsafe { libc::setsockopt(fd, level, name, pointer as *const _, length) }))
}
