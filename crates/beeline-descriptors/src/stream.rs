//! Where a TCP connection stands, by the kernel's word (rule 11 of `docs/design/0009-moving.md`).
//!
//! What is not acknowledged is asked for between two looks at what is, until both are the same: `SIOCOUTQ` is told under the
//! socket's lock, but not together with `TCP_INFO`.

use beeline_lane::End;

use crate::kernel;

const ESTABLISHED: u8 = 1;
/// Of `struct tcp_info` (linux/tcp.h): where `tcpi_bytes_acked` and `tcpi_bytes_received` stand, and how long it is with them.
const ACKED: usize = 120;
const RECEIVED: usize = 128;
const INFO_BYTES: usize = 136;
/// Looks until two are the same.
const LOOKS: usize = 64;

/// What has been sent over a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Sent {
    /// Bytes that were given to the kernel.
    pub written: u64,
    /// Bytes among them that are not acknowledged.
    pub pending: u32,
}

struct Info([u8; INFO_BYTES]);

impl Info {
    fn of(socket: i32) -> Option<Info> {
        kernel::getsockopt(socket, libc::IPPROTO_TCP, libc::TCP_INFO).ok().map(Info)
    }

    fn long(&self, at: usize) -> u64 {
        let bytes = self.0.get(at..).and_then(|rest| rest.first_chunk::<8>());
        bytes.map_or(0, |bytes| u64::from_ne_bytes(*bytes))
    }
}

/// What has been sent over an established connection by this end of it. Nobody may be sending.
#[must_use]
pub fn sent(socket: i32, end: End) -> Option<Sent> {
    // A client's SYN is acknowledged as a byte is.
    let syn = u64::from(end == End::Client);
    let mut before = Info::of(socket)?;
    for _ in 0..LOOKS {
        let mut pending = 0;
        kernel::ioctl_int(socket, libc::TIOCOUTQ, &mut pending).ok()?;
        let after = Info::of(socket)?;
        if after.long(ACKED) == before.long(ACKED) {
            let acknowledged = after.long(ACKED).checked_sub(syn)?;
            let pending = u32::try_from(pending).ok()?;
            return Some(Sent { written: acknowledged.saturating_add(u64::from(pending)), pending });
        }
        before = after;
    }
    None
}

/// Whether neither end has closed its half.
#[must_use]
pub fn is_established(socket: i32) -> bool {
    kernel::tcp_state(socket) == Some(ESTABLISHED)
}

/// Whether all that came before a seam was read, behind which nothing comes.
#[must_use]
pub fn is_read_up_to(socket: i32, seam: u64) -> bool {
    // In this order: what has come can only be read meanwhile. What is unread ends at an urgent byte, whatever comes behind that.
    has_come(socket, seam) && unread(socket) == 0 && !is_at_mark(socket)
}

/// Whether all has come before a seam.
#[must_use]
pub fn has_come(socket: i32, seam: u64) -> bool {
    Info::of(socket).is_some_and(|info| info.long(RECEIVED) >= seam)
}

/// Whether the next byte is an urgent one, or the place of one that was read.
fn is_at_mark(socket: i32) -> bool {
    /// `SIOCATMARK` of asm-generic/sockios.h.
    const AT_MARK: u64 = 0x8905;
    let mut at_mark = 0;
    kernel::ioctl_int(socket, AT_MARK, &mut at_mark).is_ok() && at_mark != 0
}

/// Bytes that have come and are unread.
#[must_use]
pub fn unread(socket: i32) -> u32 {
    let mut unread = 0;
    // An end that the kernel says nothing of any more has nothing to read.
    let _ = kernel::ioctl_int(socket, libc::FIONREAD, &mut unread);
    unread.max(0).cast_unsigned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::net::{Shutdown, TcpListener, TcpStream};
    use std::os::fd::AsRawFd;

    fn connected() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (client, listener.accept().unwrap().0)
    }

    #[test]
    fn the_kernel_tells_how_much_was_written_and_what_of_it_was_read() {
        let (mut client, mut server) = connected();
        assert_eq!(sent(client.as_raw_fd(), End::Client), Some(Sent { written: 0, pending: 0 }));
        assert_eq!(sent(server.as_raw_fd(), End::Server), Some(Sent { written: 0, pending: 0 }));
        let mut bytes = std::vec![7; 300_000];
        let (mut there, mut back) = (0u64, 0u64);
        for round in 1..300usize {
            let (length, answer) = (round * 997 % 40_000 + 1, round * 31 % 900 + 1);
            client.write_all(&bytes[..length]).unwrap();
            there += length as u64;
            assert_eq!(sent(client.as_raw_fd(), End::Client).unwrap().written, there, "{round}");
            server.read_exact(&mut bytes[..length - 1]).unwrap();
            assert!(!is_read_up_to(server.as_raw_fd(), there), "{round}");
            server.read_exact(&mut bytes[..1]).unwrap();
            assert!(is_read_up_to(server.as_raw_fd(), there) && !is_read_up_to(server.as_raw_fd(), there + 1));
            server.write_all(&bytes[..answer]).unwrap();
            back += answer as u64;
            assert_eq!(sent(server.as_raw_fd(), End::Server).unwrap().written, back, "{round}");
            client.read_exact(&mut bytes[..answer]).unwrap();
            assert!(is_read_up_to(client.as_raw_fd(), back));
        }
    }

    #[test]
    fn what_nobody_reads_is_pending_and_counts() {
        let (client, server) = connected();
        client.set_nonblocking(true).unwrap();
        let (mut written, bytes) = (0u64, [1; 65_536]);
        while let Ok(count) = (&client).write(&bytes) {
            written += count as u64;
        }
        let found = sent(client.as_raw_fd(), End::Client).unwrap();
        assert_eq!(found.written, written);
        assert!(found.pending > 0 && unread(server.as_raw_fd()) > 0);
    }

    #[test]
    fn what_comes_behind_an_urgent_byte_is_yet_to_be_read() {
        let (client, mut server) = connected();
        let send = |bytes: &[u8], flags: i32| {
            // SAFETY: a live slice.
            let sent = unsafe { libc::send(client.as_raw_fd(), bytes.as_ptr().cast(), bytes.len(), flags) };
            assert_eq!(sent, bytes.len() as isize);
        };
        send(b"abc!", libc::MSG_OOB);
        send(b"trigger", 0);
        let mut bytes = [0; 16];
        while !has_come(server.as_raw_fd(), 11) {}
        assert_eq!(server.read(&mut bytes).unwrap(), 3);
        assert!(!is_read_up_to(server.as_raw_fd(), 11));
        assert_eq!(server.read(&mut bytes).unwrap(), 7);
        assert!(is_read_up_to(server.as_raw_fd(), 11));
    }

    #[test]
    fn an_end_that_was_closed_is_neither_a_byte_more_nor_one_less() {
        for unread in [0usize, 1, 5] {
            let (mut client, mut server) = connected();
            client.write_all(&[1; 9]).unwrap();
            server.read_exact(&mut std::vec![0; 9 - unread]).unwrap();
            client.shutdown(Shutdown::Write).unwrap();
            let mut fds = [libc::pollfd { fd: server.as_raw_fd(), events: libc::POLLRDHUP, revents: 0 }];
            // SAFETY: a live entry.
            assert_eq!(unsafe { libc::poll(fds.as_mut_ptr(), 1, 5_000) }, 1);
            assert!(!is_established(server.as_raw_fd()));
            assert_eq!(super::unread(server.as_raw_fd()), unread as u32);
            assert_eq!(is_read_up_to(server.as_raw_fd(), 9), unread == 0, "{unread}");
        }
    }
}
