//! A hostile peer: what a client of a door may do that no correct client does.
//!
//! Nothing here uses the library. A [`Client`] is a raw `AF_UNIX` socket that connects to a listener's door and says
//! and attaches whatever a test wants; [`Lane`] is a memory file that need not be what a lane must be.

use beeline_wire::{ConnName, DoorName, Endpoint, Hello};
use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

/// What a lane's memfd carries: `SHRINK | GROW | SEAL`.
pub const LANE_SEALS: i32 = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;

fn check(value: i64) -> io::Result<i64> {
    if value < 0 { Err(io::Error::last_os_error()) } else { Ok(value) }
}

fn owned(fd: i64) -> OwnedFd {
    // SAFETY: the callers pass a descriptor that a call has just returned and that nobody else owns.
    unsafe { OwnedFd::from_raw_fd(fd as RawFd) }
}

/// An abstract name as a `sockaddr_un` and its length.
fn abstract_address(name: &[u8]) -> (libc::sockaddr_un, u32) {
    // SAFETY: sockaddr_un is plain data for which zeroes are a valid value.
    let mut address: libc::sockaddr_un = unsafe { std::mem::zeroed() };
    address.sun_family = libc::AF_UNIX as libc::sa_family_t;
    for (place, byte) in address.sun_path.iter_mut().skip(1).zip(name) {
        *place = *byte as libc::c_char;
    }
    (address, (std::mem::offset_of!(libc::sockaddr_un, sun_path) + 1 + name.len()) as u32)
}

fn unix_socket() -> io::Result<OwnedFd> {
    // SAFETY: integers only.
    let fd = unsafe { libc::socket(libc::AF_UNIX, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0) };
    check(i64::from(fd)).map(owned)
}

fn bind_abstract(fd: &OwnedFd, name: &[u8]) -> io::Result<()> {
    let (address, length) = abstract_address(name);
    // SAFETY: the address is valid for the length, which is within it.
    check(i64::from(unsafe { libc::bind(fd.as_raw_fd(), (&raw const address).cast(), length) })).map(drop)
}

/// Somebody who holds the name of a door without being the listener's owner.
///
/// # Errors
/// Those of `socket`, `bind` and `listen`.
pub fn squat(cookie: u64) -> io::Result<OwnedFd> {
    let fd = unix_socket()?;
    bind_abstract(&fd, DoorName::encode(cookie).as_bytes())?;
    // SAFETY: integers only.
    check(i64::from(unsafe { libc::listen(fd.as_raw_fd(), 64) }))?;
    Ok(fd)
}

/// Somebody who holds the name of a client without being one.
///
/// # Errors
/// Those of `socket` and `bind`.
pub fn bound(client: SocketAddr, server: SocketAddr) -> io::Result<OwnedFd> {
    let name = ConnName { client: Endpoint::new(client), server: Endpoint::new(server) };
    let fd = unix_socket()?;
    bind_abstract(&fd, name.encode().as_bytes())?;
    Ok(fd)
}

/// A raw client of a door.
pub struct Client {
    socket: OwnedFd,
}

impl Client {
    /// Connects without reserving an address.
    ///
    /// # Errors
    /// Those of `socket` and `connect`.
    pub fn unnamed(cookie: u64) -> io::Result<Self> {
        Self::with_name(cookie, &[])
    }

    /// Connects as a correct client would, claiming the address `client` for a connection to `server`.
    ///
    /// # Errors
    /// Those of `socket`, `bind` and `connect`.
    pub fn claiming(cookie: u64, client: SocketAddr, server: SocketAddr) -> io::Result<Self> {
        let name = ConnName { client: Endpoint::new(client), server: Endpoint::new(server) };
        Self::with_name(cookie, name.encode().as_bytes())
    }

    /// Connects from a socket bound to `name`, or unbound when that is empty.
    ///
    /// # Errors
    /// Those of `socket`, `bind` and `connect`.
    pub fn with_name(cookie: u64, name: &[u8]) -> io::Result<Self> {
        let socket = unix_socket()?;
        if !name.is_empty() {
            bind_abstract(&socket, name)?;
        }
        let (address, length) = abstract_address(DoorName::encode(cookie).as_bytes());
        // SAFETY: the address is valid for the length, which is within it.
        let connected = unsafe { libc::connect(socket.as_raw_fd(), (&raw const address).cast(), length) };
        check(i64::from(connected))?;
        Ok(Self { socket })
    }

    /// A client whose connection is there.
    #[must_use]
    pub const fn of(socket: OwnedFd) -> Self {
        Self { socket }
    }

    /// Sends bytes with descriptors attached, without waiting.
    ///
    /// # Errors
    /// Those of `sendmsg`: `EPERM` when the receiver refuses descriptors.
    pub fn send(&self, bytes: &[u8], fds: &[RawFd]) -> io::Result<usize> {
        self.send_with(bytes, fds, 0)
    }

    /// The same for one urgent byte (`MSG_OOB`).
    ///
    /// # Errors
    /// Those of `sendmsg`.
    pub fn send_urgent(&self, byte: u8, fds: &[RawFd]) -> io::Result<usize> {
        self.send_with(&[byte], fds, libc::MSG_OOB)
    }

    fn send_with(&self, bytes: &[u8], fds: &[RawFd], how: i32) -> io::Result<usize> {
        let mut part = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
        let mut control = [0_u64; 256];
        // SAFETY: msghdr is plain data for which zeroes are a valid value.
        let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
        header.msg_iov = &raw mut part;
        header.msg_iovlen = 1;
        if !fds.is_empty() {
            let length = size_of_val(fds) as u32;
            header.msg_control = control.as_mut_ptr().cast();
            // SAFETY: the control space is zeroed, aligned and large enough for 253 descriptors, the most the kernel
            // takes; `fds` is copied in whole.
            unsafe {
                header.msg_controllen = libc::CMSG_SPACE(length) as usize;
                let message = libc::CMSG_FIRSTHDR(&raw const header);
                (*message).cmsg_level = libc::SOL_SOCKET;
                (*message).cmsg_type = libc::SCM_RIGHTS;
                (*message).cmsg_len = libc::CMSG_LEN(length) as usize;
                let place = libc::CMSG_DATA(message).cast::<RawFd>();
                std::ptr::copy_nonoverlapping(fds.as_ptr(), place, fds.len());
            }
        }
        let flags = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT | how;
        // SAFETY: the header points at live data of the lengths it states.
        let sent = unsafe { libc::sendmsg(self.socket.as_raw_fd(), &raw const header, flags) };
        check(sent as i64).map(|sent| sent as usize)
    }

    /// Says a correct hello for `lane`.
    ///
    /// # Errors
    /// Those of `sendmsg`.
    pub fn say_hello(&self, lane: &Lane) -> io::Result<usize> {
        self.send(&lane.hello().encode(), &[lane.fd.as_raw_fd()])
    }

    /// Whether the server has closed its end within some seconds.
    #[must_use]
    pub fn is_sent_away(&self) -> bool {
        let mut entry = libc::pollfd { fd: self.socket.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        loop {
            // SAFETY: one valid entry.
            let ready = unsafe { libc::poll(&raw mut entry, 1, 10_000) };
            if ready <= 0 || entry.revents & (libc::POLLHUP | libc::POLLERR) != 0 {
                return ready > 0;
            }
            let mut byte = 0_u8;
            // SAFETY: room for one byte.
            let got = unsafe { libc::recv(self.socket.as_raw_fd(), (&raw mut byte).cast(), 1, libc::MSG_DONTWAIT) };
            if got <= 0 {
                return true;
            }
        }
    }
}

impl AsRawFd for Client {
    fn as_raw_fd(&self) -> RawFd {
        self.socket.as_raw_fd()
    }
}

/// A memory file offered as a lane.
pub struct Lane {
    pub fd: OwnedFd,
    pub ring_bytes: u32,
}

impl Lane {
    /// A file of `bytes` with these `memfd_create` flags and seals.
    ///
    /// # Errors
    /// Those of `memfd_create`, `ftruncate` and `fcntl`.
    pub fn odd(ring_bytes: u32, bytes: u64, flags: u32, seals: i32) -> io::Result<Self> {
        // SAFETY: a NUL-terminated name.
        let fd = unsafe { libc::memfd_create(c"odd-lane".as_ptr(), flags | libc::MFD_CLOEXEC) };
        let fd = check(i64::from(fd)).map(owned)?;
        // SAFETY: integers only.
        check(i64::from(unsafe { libc::ftruncate(fd.as_raw_fd(), bytes as i64) }))?;
        if seals != 0 {
            // SAFETY: integers only.
            check(i64::from(unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_ADD_SEALS, seals) }))?;
        }
        Ok(Self { fd, ring_bytes })
    }

    /// A file that is a correct lane.
    ///
    /// # Errors
    /// As [`Lane::odd`].
    pub fn correct(ring_bytes: u32) -> io::Result<Self> {
        Self::odd(ring_bytes, beeline_wire::hello::lane_bytes(ring_bytes), libc::MFD_ALLOW_SEALING, LANE_SEALS)
    }

    #[must_use]
    pub fn inode(&self) -> u64 {
        // SAFETY: stat is plain data for which zeroes are a valid value.
        let mut stat: libc::stat = unsafe { std::mem::zeroed() };
        // SAFETY: `stat` is valid for writing.
        unsafe { libc::fstat(self.fd.as_raw_fd(), &raw mut stat) };
        stat.st_ino
    }

    /// The hello that fits this lane.
    #[must_use]
    pub fn hello(&self) -> Hello {
        Hello {
            reuse: false,
            ring_bytes: self.ring_bytes,
            generation: 0,
            pid_hint: std::process::id(),
            lane_inode: self.inode(),
            held: None,
        }
    }

    /// Writes into the lane behind everybody's back.
    pub fn scribble(&self, offset: u64, bytes: &[u8]) {
        // SAFETY: the data is valid for its length.
        unsafe { libc::pwrite(self.fd.as_raw_fd(), bytes.as_ptr().cast(), bytes.len(), offset as i64) };
    }

    /// Takes the pages of a part of the lane away.
    pub fn punch(&self, offset: u64, bytes: u64) {
        let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
        // SAFETY: integers only.
        unsafe { libc::fallocate(self.fd.as_raw_fd(), mode, offset as i64, bytes as i64) };
    }
}

/// A TCP connection whose close takes `seconds`: its peer reads nothing, its send queue is full and it lingers.
pub struct Lingering {
    pub socket: TcpStream,
    _deaf: TcpStream,
}

impl Lingering {
    /// # Errors
    /// Those of the socket calls.
    pub fn new(seconds: i32) -> io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let socket = TcpStream::connect(listener.local_addr()?)?;
        let (deaf, _) = listener.accept()?;
        let linger = libc::linger { l_onoff: 1, l_linger: seconds };
        // SAFETY: the option value is valid for its length.
        let set = unsafe {
            libc::setsockopt(
                socket.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_LINGER,
                (&raw const linger).cast(),
                size_of::<libc::linger>() as u32,
            )
        };
        check(i64::from(set))?;
        socket.set_nonblocking(true)?;
        let data = [0; 65536];
        while io::Write::write(&mut &socket, &data).is_ok() {}
        Ok(Self { socket, _deaf: deaf })
    }
}

impl Drop for Lingering {
    fn drop(&mut self) {
        // Whoever closes it last waits; that must not be the test.
        let linger = libc::linger { l_onoff: 1, l_linger: 0 };
        let length = size_of::<libc::linger>() as u32;
        let value = (&raw const linger).cast();
        // SAFETY: the option value is valid for its length.
        unsafe { libc::setsockopt(self.socket.as_raw_fd(), libc::SOL_SOCKET, libc::SO_LINGER, value, length) };
    }
}

mod fuse;
mod locked;
pub use fuse::Fuse;
pub use locked::Locked;

/// How many descriptors a process has open.
#[must_use]
pub fn open_descriptors(process: u32) -> usize {
    std::fs::read_dir(format!("/proc/{process}/fd")).map_or(0, Iterator::count)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;

    #[test]
    fn a_client_reaches_a_door_with_its_descriptors() -> io::Result<()> {
        let cookie = 0xfeed_0000_0000_0000 | u64::from(std::process::id());
        let door = squat(cookie)?;
        let lane = Lane::correct(1 << 16)?;
        let client = Client::claiming(cookie, "127.0.0.1:9".parse().unwrap(), "127.0.0.1:10".parse().unwrap())?;
        assert_eq!(client.say_hello(&lane)?, 64);
        // SAFETY: NULL is allowed for the address; the descriptor is fresh.
        let taken = owned(check(i64::from(unsafe {
            libc::accept(door.as_raw_fd(), std::ptr::null_mut(), std::ptr::null_mut())
        }))?);
        let mut bytes = [0; 64];
        std::os::unix::net::UnixStream::from(taken).read_exact(&mut bytes)?;
        assert_eq!(Hello::decode(&bytes), Ok(lane.hello()));
        assert!(client.is_sent_away());
        Ok(())
    }

    #[test]
    fn a_lingering_socket_has_data_in_its_queue() -> io::Result<()> {
        let lingering = Lingering::new(1)?;
        let mut queued = 0;
        // SAFETY: the request writes one int.
        unsafe { libc::ioctl(lingering.socket.as_raw_fd(), libc::TIOCOUTQ, &raw mut queued) };
        assert!(queued > 0);
        Ok(())
    }
}
