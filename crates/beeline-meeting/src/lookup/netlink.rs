//! One question to the kernel.

use beeline_shm::Fd;
use beeline_shm::sys::call;
use beeline_stats::Reason;

use crate::kernel;

/// Datagrams to look through for an answer.
pub(super) const DATAGRAMS_MAX: usize = 4;

/// A netlink socket for one question.
pub(super) struct Netlink {
    socket: Fd,
    pub port_id: u32,
}

impl Netlink {
    /// A socket that asks one question needs no other.
    pub const SEQUENCE: u32 = 1;

    pub fn open(protocol: i32) -> Result<Netlink, Reason> {
        let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC;
        let socket = match kernel::socket(libc::AF_NETLINK, kind, protocol) {
            Ok(fd) => Fd::own(fd as i32),
            Err(crate::Errno(libc::EMFILE | libc::ENFILE)) => return Err(Reason::DescriptorsShort),
            Err(crate::Errno(libc::EPERM | libc::EACCES | libc::ENOSYS | libc::EAFNOSUPPORT)) => {
                return Err(Reason::SystemCallDenied);
            }
            Err(_) => return Err(Reason::LookupFailed),
        };
        Ok(Netlink { socket, port_id: 0 })
    }

    /// Sends to port id 0, the kernel, which is where an unconnected netlink socket sends to.
    pub fn send(&mut self, question: &[u8]) -> Result<(), Reason> {
        kernel::send(self.socket.get(), question, 0).map_err(|_| Reason::LookupFailed)?;
        // The kernel chose our port id with the first message. sockaddr_nl holds it in bytes 4 to 8.
        let name = kernel::getsockname(self.socket.get()).map_err(|_| Reason::LookupFailed)?;
        self.port_id = port_id_of(&name).ok_or(Reason::LookupFailed)?;
        Ok(())
    }

    /// One datagram from the kernel; what others sent is dropped. The kernel answers before `send` returns,
    /// so there is nothing to wait for.
    pub fn receive<'a>(&self, buffer: &'a mut [u8]) -> Result<&'a [u8], Reason> {
        for _ in 0..DATAGRAMS_MAX {
            let mut from = kernel::SockAddr::empty();
            let args = [
                self.socket.get() as usize,
                buffer.as_mut_ptr() as usize,
                buffer.len(),
                libc::MSG_DONTWAIT as usize,
                (&raw mut from.storage) as usize,
                (&raw mut from.length) as usize,
            ];
            // SAFETY: a live buffer and a live address of the lengths given.
            let length = unsafe { call(libc::SYS_recvfrom, args) }.map_err(|_| Reason::LookupFailed)?;
            if port_id_of(&from) == Some(0) {
                return buffer.get(..length).ok_or(Reason::LookupFailed);
            }
        }
        Err(Reason::LookupFailed)
    }
}

fn port_id_of(name: &kernel::SockAddr) -> Option<u32> {
    if i32::from(name.storage.ss_family) != libc::AF_NETLINK || name.length < 12 {
        return None;
    }
    // SAFETY: sockaddr_storage is larger than and aligned for sockaddr_nl, and fully initialised.
    Some(unsafe { (&raw const name.storage).cast::<libc::sockaddr_nl>().read() }.nl_pid)
}
