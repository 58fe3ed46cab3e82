//! The system calls we make, without libc. Each is the manual page's call with Rust types.

mod descriptors;
mod numbers;
mod poll;

use core::mem::MaybeUninit;
use core::sync::atomic::{AtomicBool, Ordering::Relaxed};

use beeline_shm::sys::{SysResult, call};

use crate::Errno;
use crate::linux::TCP_CLOSE;

pub use descriptors::{
    disown, duplicate, fcntl, is_blocking, is_close_on_exec, is_memory_file, is_pipe, set_close_on_exec,
    set_status_flags, status_flags,
};
pub(crate) use numbers::descriptor_limit;
pub use numbers::{forget_descriptor_limit, recent_descriptor_limit, refuses_entries};
pub use poll::{await_any, poll_at_once, poll_now, ppoll, sleep_ms, sleep_ns};

/// Room for any socket address.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct SockAddr {
    /// The address as the kernel has it.
    pub storage: libc::sockaddr_storage,
    /// Its length in bytes.
    pub length: u32,
}

impl SockAddr {
    /// An empty address.
    #[must_use]
    pub fn empty() -> Self {
        // SAFETY: all-zero is a valid value of this plain C struct.
        Self { storage: unsafe { core::mem::zeroed() }, length: size_of::<libc::sockaddr_storage>() as u32 }
    }

    /// An abstract `AF_UNIX` address (unix(7)); `None` if the name is too long.
    #[must_use]
    pub fn abstract_unix(name: &[u8]) -> Option<Self> {
        let mut address = Self::empty();
        address.storage.ss_family = libc::AF_UNIX as u16;
        if name.len() > 107 {
            return None;
        }
        // Byte 2 stays NUL, which makes the name abstract.
        address.bytes_mut().get_mut(3..)?.get_mut(..name.len())?.copy_from_slice(name);
        address.length = 3 + name.len() as u32;
        Some(address)
    }

    /// The `AF_UNIX` address of a socket file (unix(7)); `None` if the path is too long.
    #[must_use]
    pub fn unix_file(path: &str) -> Option<Self> {
        let mut address = Self::empty();
        address.storage.ss_family = libc::AF_UNIX as u16;
        // The NUL after it is there already.
        address.bytes_mut().get_mut(2..109)?.get_mut(..path.len())?.copy_from_slice(path.as_bytes());
        address.length = 3 + path.len() as u32;
        Some(address)
    }

    /// The abstract name in this address, if it is one.
    #[must_use]
    pub fn abstract_name(&self) -> Option<&[u8]> {
        let is_unix = i32::from(self.storage.ss_family) == libc::AF_UNIX;
        match self.bytes().get(..self.length as usize)? {
            [_, _, 0, name @ ..] if is_unix && !name.is_empty() => Some(name),
            _ => None,
        }
    }

    /// The internet address of `address`, as `AF_INET6` if `family` asks for it.
    #[must_use]
    pub fn internet(address: core::net::SocketAddr, family: i32) -> Self {
        use core::net::SocketAddr as A;
        let mut out = Self::empty();
        let v6 = match address {
            A::V4(v4) if family == libc::AF_INET => {
                let c = libc::sockaddr_in {
                    sin_family: libc::AF_INET as u16,
                    sin_port: v4.port().to_be(),
                    sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes(v4.ip().octets()) },
                    sin_zero: [0; 8],
                };
                // SAFETY: sockaddr_storage is larger than and aligned for sockaddr_in.
                unsafe { (&raw mut out.storage).cast::<libc::sockaddr_in>().write(c) };
                out.length = size_of::<libc::sockaddr_in>() as u32;
                return out;
            }
            A::V4(v4) => core::net::SocketAddrV6::new(v4.ip().to_ipv6_mapped(), v4.port(), 0, 0),
            A::V6(v6) => v6,
        };
        let c = libc::sockaddr_in6 {
            sin6_family: libc::AF_INET6 as u16,
            sin6_port: v6.port().to_be(),
            sin6_flowinfo: 0,
            sin6_addr: libc::in6_addr { s6_addr: v6.ip().octets() },
            sin6_scope_id: v6.scope_id(),
        };
        // SAFETY: sockaddr_storage is larger than and aligned for sockaddr_in6.
        unsafe { (&raw mut out.storage).cast::<libc::sockaddr_in6>().write(c) };
        out.length = size_of::<libc::sockaddr_in6>() as u32;
        out
    }

    /// The internet address in here, if it is one; IPv4-mapped addresses stay as they are.
    #[must_use]
    pub fn to_internet(&self) -> Option<core::net::SocketAddr> {
        let family = i32::from(self.storage.ss_family);
        if family == libc::AF_INET && self.length as usize >= size_of::<libc::sockaddr_in>() {
            // SAFETY: sockaddr_storage is larger than and aligned for sockaddr_in, and fully initialised.
            let c = unsafe { (&raw const self.storage).cast::<libc::sockaddr_in>().read() };
            let ip = core::net::Ipv4Addr::from(c.sin_addr.s_addr.to_ne_bytes());
            return Some(core::net::SocketAddr::from((ip, u16::from_be(c.sin_port))));
        }
        // RFC 2133 knew sockaddr_in6 without scope id, 24 bytes long; Linux still takes it.
        if family == libc::AF_INET6 && self.length >= 24 {
            // SAFETY: as above.
            let c = unsafe { (&raw const self.storage).cast::<libc::sockaddr_in6>().read() };
            let ip = core::net::Ipv6Addr::from(c.sin6_addr.s6_addr);
            let port = u16::from_be(c.sin6_port);
            return Some(core::net::SocketAddrV6::new(ip, port, 0, c.sin6_scope_id).into());
        }
        None
    }

    /// Copies the address an app passed.
    ///
    /// # Safety
    /// `pointer` must be readable for `length` bytes.
    #[must_use]
    pub unsafe fn from_app(pointer: *const libc::sockaddr, length: u32) -> Option<Self> {
        let mut address = Self::empty();
        if pointer.is_null() || length as usize > size_of::<libc::sockaddr_storage>() || length < 2 {
            return None;
        }
        // SAFETY: readable, as the caller guarantees; our storage is at least as long.
        unsafe {
            core::ptr::copy_nonoverlapping(
                pointer.cast::<u8>(),
                (&raw mut address.storage).cast::<u8>(),
                length as usize,
            );
        }
        address.length = length;
        Some(address)
    }

    /// Gives the address to an app as accept(2) and getsockname(2) do: cut to its room, with the full
    /// length reported.
    ///
    /// # Safety
    /// `length` must be null or valid; `pointer` must be null or writable for `*length` bytes.
    pub unsafe fn to_app(&self, pointer: *mut libc::sockaddr, length: *mut u32) {
        if pointer.is_null() || length.is_null() {
            return;
        }
        // SAFETY: valid, as the caller guarantees; our storage is at least `self.length` long.
        unsafe {
            let room = (*length).min(self.length) as usize;
            core::ptr::copy_nonoverlapping((&raw const self.storage).cast::<u8>(), pointer.cast::<u8>(), room);
            *length = self.length;
        }
    }

    /// The address as bytes.
    #[must_use]
    pub fn bytes(&self) -> &[u8; size_of::<libc::sockaddr_storage>()] {
        // SAFETY: a plain C struct that was zeroed when made, seen as its bytes.
        unsafe { &*(&raw const self.storage).cast() }
    }

    fn bytes_mut(&mut self) -> &mut [u8; size_of::<libc::sockaddr_storage>()] {
        // SAFETY: as above; any bytes are valid in it.
        unsafe { &mut *(&raw mut self.storage).cast() }
    }
}

/// `socket(2)`.
pub fn socket(domain: i32, kind: i32, protocol: i32) -> SysResult {
    // SAFETY: plain numbers.
    unsafe { call(libc::SYS_socket, [domain as usize, kind as usize, protocol as usize, 0, 0, 0]) }
}

/// `connect(2)`.
pub fn connect(fd: i32, address: &SockAddr) -> SysResult {
    let args = [fd as usize, (&raw const address.storage) as usize, address.length as usize, 0, 0, 0];
    // SAFETY: the address is live and at least `length` long.
    unsafe { call(libc::SYS_connect, args) }
}

/// `bind(2)`.
pub fn bind(fd: i32, address: &SockAddr) -> SysResult {
    let args = [fd as usize, (&raw const address.storage) as usize, address.length as usize, 0, 0, 0];
    // SAFETY: the address is live and at least `length` long.
    unsafe { call(libc::SYS_bind, args) }
}

/// `listen(2)`.
pub fn listen(fd: i32, backlog: i32) -> SysResult {
    // SAFETY: plain numbers.
    unsafe { call(libc::SYS_listen, [fd as usize, backlog as usize, 0, 0, 0, 0]) }
}

/// `accept4(2)`.
pub fn accept4(fd: i32, address: Option<&mut SockAddr>, flags: i32) -> SysResult {
    let (pointer, length) = match address {
        Some(address) => {
            address.length = size_of::<libc::sockaddr_storage>() as u32;
            ((&raw mut address.storage) as usize, (&raw mut address.length) as usize)
        }
        None => (0, 0),
    };
    // SAFETY: null, or a live storage of the length given.
    unsafe { call(libc::SYS_accept4, [fd as usize, pointer, length, flags as usize, 0, 0]) }
}

fn name_call(number: libc::c_long, fd: i32) -> Result<SockAddr, Errno> {
    let mut address = SockAddr::empty();
    let args = [fd as usize, (&raw mut address.storage) as usize, (&raw mut address.length) as usize, 0, 0, 0];
    // SAFETY: a live storage of the length given.
    unsafe { call(number, args) }.map(|_| address)
}

/// `getsockname(2)`.
pub fn getsockname(fd: i32) -> Result<SockAddr, Errno> {
    name_call(libc::SYS_getsockname, fd)
}

/// `getpeername(2)`.
pub fn getpeername(fd: i32) -> Result<SockAddr, Errno> {
    name_call(libc::SYS_getpeername, fd)
}

/// `setsockopt(2)` with any plain value.
pub fn setsockopt<T: Copy>(fd: i32, level: i32, name: i32, value: &T) -> SysResult {
    let args = [fd as usize, level as usize, name as usize, core::ptr::from_ref(value) as usize, size_of::<T>(), 0];
    // SAFETY: the value is live and of the length given.
    unsafe { call(libc::SYS_setsockopt, args) }
}

/// A plain value of C: what the kernel writes into it is one, whatever it is.
///
/// # Safety
/// Any bytes are valid in it.
pub unsafe trait Plain: Copy {}

// SAFETY: any bytes are an integer.
unsafe impl Plain for i32 {}
// SAFETY: any bytes are an integer.
unsafe impl Plain for u32 {}
// SAFETY: any bytes are an integer.
unsafe impl Plain for u64 {}
// SAFETY: any bytes are bytes.
unsafe impl<const LENGTH: usize> Plain for [u8; LENGTH] {}
// SAFETY: integers only.
unsafe impl Plain for libc::linger {}
// SAFETY: integers only.
unsafe impl Plain for libc::timeval {}
// SAFETY: integers only.
unsafe impl Plain for libc::ucred {}

/// `getsockopt(2)`.
pub fn getsockopt<T: Plain>(fd: i32, level: i32, name: i32) -> Result<T, Errno> {
    let mut value = MaybeUninit::<T>::zeroed();
    let mut length = size_of::<T>() as u32;
    let args = [fd as usize, level as usize, name as usize, value.as_mut_ptr() as usize, (&raw mut length) as usize, 0];
    // SAFETY: the kernel writes no more than `length` bytes, which `value` has, and to `length`; both are live.
    unsafe { call(libc::SYS_getsockopt, args) }?;
    // SAFETY: zeroed before, and any bytes are a valid value of a plain type.
    Ok(unsafe { value.assume_init() })
}

/// Which network namespace a socket belongs to (`SO_NETNS_COOKIE`, since Linux 5.14).
pub fn namespace(fd: i32) -> Option<u64> {
    getsockopt(fd, libc::SOL_SOCKET, libc::SO_NETNS_COOKIE).ok()
}

/// `sendto(2)` without address.
pub fn send(fd: i32, bytes: &[u8], flags: i32) -> SysResult {
    let args = [fd as usize, bytes.as_ptr() as usize, bytes.len(), flags as usize, 0, 0];
    // SAFETY: the slice is live.
    unsafe { call(libc::SYS_sendto, args) }
}

/// `recvfrom(2)` without address.
pub fn recv(fd: i32, bytes: &mut [u8], flags: i32) -> SysResult {
    let args = [fd as usize, bytes.as_mut_ptr() as usize, bytes.len(), flags as usize, 0, 0];
    // SAFETY: the slice is live.
    unsafe { call(libc::SYS_recvfrom, args) }
}

/// `sendmsg(2)`.
///
/// # Safety
/// The message's pointers must be valid as for sendmsg(2).
pub unsafe fn sendmsg(fd: i32, message: &libc::msghdr, flags: i32) -> SysResult {
    let args = [fd as usize, core::ptr::from_ref(message) as usize, flags as usize, 0, 0, 0];
    // SAFETY: the caller guarantees it.
    unsafe { call(libc::SYS_sendmsg, args) }
}

/// `recvmsg(2)`.
///
/// # Safety
/// The message's pointers must be valid as for recvmsg(2).
pub unsafe fn recvmsg(fd: i32, message: &mut libc::msghdr, flags: i32) -> SysResult {
    let args = [fd as usize, core::ptr::from_mut(message) as usize, flags as usize, 0, 0, 0];
    // SAFETY: the caller guarantees it.
    unsafe { call(libc::SYS_recvmsg, args) }
}

/// `shutdown(2)`.
pub fn shutdown(fd: i32, how: i32) -> SysResult {
    // SAFETY: plain numbers.
    unsafe { call(libc::SYS_shutdown, [fd as usize, how as usize, 0, 0, 0, 0]) }
}

/// `dup3(2)`.
pub fn dup3(from: i32, to: i32, flags: i32) -> SysResult {
    // SAFETY: plain numbers.
    unsafe { call(libc::SYS_dup3, [from as usize, to as usize, flags as usize, 0, 0, 0]) }
}

/// `ioctl(2)` that reads or writes one integer.
pub fn ioctl_int(fd: i32, request: u64, value: &mut i32) -> SysResult {
    let args = [fd as usize, request as usize, core::ptr::from_mut(value) as usize, 0, 0, 0];
    // SAFETY: a live integer; only used with requests that take one.
    unsafe { call(libc::SYS_ioctl, args) }
}

/// A new eventfd(2) with this count, closed on `exec`, that never blocks.
///
/// # Errors
/// Those of eventfd2(2).
pub fn eventfd(count: u32) -> SysResult {
    let flags = libc::EFD_CLOEXEC | libc::EFD_NONBLOCK;
    // SAFETY: plain numbers.
    unsafe { call(libc::SYS_eventfd2, [count as usize, flags as usize, 0, 0, 0, 0]) }
}

/// Which filters of system calls this thread is under, as prctl(2) has it for `PR_GET_SECCOMP`: 0 for none.
#[must_use]
pub fn seccomp_mode() -> Option<usize> {
    // SAFETY: the kernel looks at nothing but the number.
    unsafe { call(libc::SYS_prctl, [libc::PR_GET_SECCOMP as usize, 0, 0, 0, 0, 0]) }.ok()
}

/// Numbers that nobody can guess, getrandom(2). `None` if the call is denied.
pub fn chance<const COUNT: usize>() -> Option<[u64; COUNT]> {
    let mut numbers = [0; COUNT];
    let args = [numbers.as_mut_ptr() as usize, size_of_val(&numbers), 0, 0, 0, 0];
    // SAFETY: room for as many bytes.
    let got = unsafe { call(libc::SYS_getrandom, args) };
    (got == Ok(size_of_val(&numbers))).then_some(numbers)
}

/// `epoll_create1(2)`, close-on-exec.
pub fn epoll_create() -> Result<i32, Errno> {
    // SAFETY: plain numbers.
    unsafe { call(libc::SYS_epoll_create1, [libc::EPOLL_CLOEXEC as usize, 0, 0, 0, 0, 0]) }.map(|set| set as i32)
}

/// `epoll_ctl(2)`.
pub fn epoll_ctl(set: i32, operation: i32, fd: i32, event: Option<libc::epoll_event>) -> SysResult {
    let pointer = event.as_ref().map_or(0, |event| core::ptr::from_ref(event) as usize);
    // SAFETY: null or a live event.
    unsafe { call(libc::SYS_epoll_ctl, [set as usize, operation as usize, fd as usize, pointer, 0, 0]) }
}

/// What an epoll set has to report right now, without waiting.
///
/// # Safety
/// `events` must be writable for `count` events.
pub unsafe fn epoll_now(set: i32, events: *mut libc::epoll_event, count: i32) -> SysResult {
    // The oldest of these calls there is: filters of system calls know it.
    #[cfg(target_arch = "x86_64")]
    let number = libc::SYS_epoll_wait;
    #[cfg(not(target_arch = "x86_64"))]
    let number = libc::SYS_epoll_pwait;
    // SAFETY: the caller guarantees it; no mask.
    unsafe { call(number, [set as usize, events as usize, count as usize, 0, 0, 8]) }
}

static PWAIT2_IS_REFUSED: AtomicBool = AtomicBool::new(false);

/// Whether [`epoll_sleep`] is one system call here, as far as is known.
#[must_use]
pub fn sleeps_on_sets_in_one_call() -> bool {
    !PWAIT2_IS_REFUSED.load(Relaxed)
}

/// Waits as `epoll_pwait2(2)` does; `timeout` null means for ever; `mask` null keeps the mask. The kernel reads the
/// timeout from memory when the wait begins, on which [`crate::thread`] relies; so do kernels before 5.11 and filters
/// of system calls that do not have `epoll_pwait2`, because the wait is made in ppoll(2) there.
///
/// # Safety
/// `events` must be writable for `count` events; `timeout` and `mask` null or valid, and `timeout`
/// writable: the kernel may change it.
pub unsafe fn epoll_sleep(
    set: i32,
    events: *mut libc::epoll_event,
    count: i32,
    timeout: *mut libc::timespec,
    mask: *const u64,
) -> SysResult {
    if sleeps_on_sets_in_one_call() {
        let args = [set as usize, events as usize, count as usize, timeout as usize, mask as usize, 8];
        // SAFETY: the caller guarantees it.
        match unsafe { call(libc::SYS_epoll_pwait2, args) } {
            // Neither is an answer of the call itself.
            Err(Errno(libc::ENOSYS | libc::EPERM)) => PWAIT2_IS_REFUSED.store(true, Relaxed),
            result => return result,
        }
    }
    loop {
        let mut fds = [libc::pollfd { fd: set, events: libc::POLLIN, revents: 0 }];
        // SAFETY: the caller guarantees it. The kernel leaves in `timeout` what remains of it.
        if unsafe { ppoll(&mut fds, timeout, mask) }? == 0 {
            return Ok(0);
        }
        // SAFETY: the caller guarantees it. Nothing is left when another thread that waits was faster.
        match unsafe { epoll_now(set, events, count) }? {
            0 => {}
            found => return Ok(found),
        }
    }
}

/// CPU the calling thread runs on.
pub fn cpu() -> u32 {
    let mut cpu = 0u32;
    // SAFETY: a live integer; the other pointers may be null.
    let _ = unsafe { call(libc::SYS_getcpu, [(&raw mut cpu) as usize, 0, 0, 0, 0, 0]) };
    cpu
}

/// The same without a system call where libc knows how: by rseq(2) or the vDSO.
#[must_use]
pub fn cpu_by_libc() -> u32 {
    // SAFETY: no preconditions.
    unsafe { libc::sched_getcpu() }.cast_unsigned()
}

/// `CLOCK_MONOTONIC` in nanoseconds. Goes through the vDSO, as libc's `clock_gettime` does: no hook of ours
/// has that name, and it takes no lock.
#[must_use]
pub fn now_ns() -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: a live timespec.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut now) };
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// The state of a TCP socket, by its number in the kernel.
pub fn tcp_state(fd: i32) -> Option<u8> {
    // The first byte of struct tcp_info.
    getsockopt::<[u8; 8]>(fd, libc::IPPROTO_TCP, libc::TCP_INFO).ok().map(|info| info[0])
}

/// Whether a TCP socket is not connected, nor about to be, and never heard a byte or an end from a peer: of those that
/// are over in good order the kernel counts the end as a byte.
#[must_use]
pub fn never_was_connected(fd: i32) -> bool {
    /// Where `tcpi_bytes_received` lies in struct tcp_info (linux/tcp.h), and its end.
    const RECEIVED: usize = 128;
    const END: usize = RECEIVED + size_of::<u64>();
    // Most are connected, and a name costs half of what the kernel tells of a connection (0.36 and 0.65 us).
    if getpeername(fd).is_ok() {
        return false;
    }
    let info = getsockopt::<[u8; END]>(fd, libc::IPPROTO_TCP, libc::TCP_INFO);
    info.is_ok_and(|info| info[0] == TCP_CLOSE && info.iter().skip(RECEIVED).all(|byte| *byte == 0))
}

#[cfg(test)]
mod tests;
