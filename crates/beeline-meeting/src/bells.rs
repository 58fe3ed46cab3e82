//! Bells as an anchor carries them: bytes that are sent, counted and taken out, and a send buffer that plugs.
//!
//! This is all that the kernel's side of a bell takes. Who knows an end says besides whether the peer is gone.

use beeline_lane::BellFault;
use beeline_shm::sys::SysResult;
use beeline_wire::hello::BELL;

use crate::control::{self, Control, RIGHTS_MAX, control_bytes};
use crate::disarm::disarm_rights;
use crate::{Errno, calibrate, kernel, wait};

/// The bells of an anchor, by its descriptor.
#[derive(Clone, Copy)]
pub struct AnchorBells(pub i32);

impl AnchorBells {
    /// Bells that lie in it. A relay, which has neither statics nor libc's clock, asks by this.
    ///
    /// # Errors
    /// [`BellFault::Gone`] if the kernel does not tell.
    pub fn count(self) -> Result<u32, BellFault> {
        let mut bytes = 0;
        kernel::ioctl_int(self.0, libc::FIONREAD, &mut bytes).map_err(|_| BellFault::Gone)?;
        Ok(bytes as u32)
    }

    /// As [`AnchorBells::count`], with its price noted.
    ///
    /// # Errors
    /// [`BellFault::Gone`] if the kernel does not tell.
    pub fn queued(self) -> Result<u32, BellFault> {
        wait::priced(|| self.count())
    }

    /// Queues one bell for the peer. If the kernel refuses it, `gone` tells whether the peer's end is closed.
    ///
    /// # Errors
    /// [`BellFault::Gone`] if it is.
    pub fn ring_unless(self, gone: impl FnOnce() -> bool) -> Result<(), BellFault> {
        self.ring_or(gone, || ring_patiently(self.0)).map(|_| ())
    }

    /// As [`AnchorBells::ring_unless`]; `short` tells what comes of it if the kernel has no memory for a bell. Whether
    /// one lies there now: a peer that does not read takes none.
    ///
    /// # Errors
    /// [`BellFault::Gone`] if the peer's end is closed, and what `short` says.
    pub fn ring_or(
        self,
        gone: impl FnOnce() -> bool,
        short: impl FnOnce() -> Result<(), BellFault>,
    ) -> Result<bool, BellFault> {
        match send_bell(self.0) {
            Ok(_) => Ok(true),
            // By the rules a queue is never full. If something else filled it, a large buffer takes one more.
            Err(Errno(libc::EAGAIN)) => {
                self.unplug();
                Ok(send_bell(self.0).is_ok())
            }
            Err(Errno(libc::ENOBUFS | libc::ENOMEM)) => short().map(|()| false),
            Err(_) if gone() => Err(BellFault::Gone),
            // A peer that shut down its reading half takes no bells, and may wait for bytes all the same, by edges. The
            // half is shut for us, too: to shut it again changes nothing, but wakes who sleeps there.
            Err(Errno(libc::EPIPE)) => {
                let _ = kernel::shutdown(self.0, libc::SHUT_WR);
                Ok(false)
            }
            Err(_) => Ok(false),
        }
    }

    /// Takes bells out.
    ///
    /// # Errors
    /// [`BellFault::BadBell`] if something else lies there, [`BellFault::Gone`] if the peer is gone.
    pub fn drain(self, count: u32) -> Result<(), BellFault> {
        let mut left = count as usize;
        while left != 0 {
            let mut bytes = [0u8; 64];
            let part = bytes.get_mut(..left.min(64)).unwrap_or_default();
            let got = receive(self.0, part)?;
            if got == 0 {
                return Ok(());
            }
            if part.iter().take(got).any(|byte| *byte != BELL) {
                return Err(BellFault::BadBell);
            }
            left -= got;
        }
        Ok(())
    }

    /// Takes out what bells there are, of as many as a connection leaves. Returns how many.
    ///
    /// # Errors
    /// Those of [`AnchorBells::drain`].
    pub fn drain_all(self) -> Result<u32, BellFault> {
        let mut bytes = [0u8; 64];
        let got = receive(self.0, &mut bytes)?;
        let strange = bytes.iter().take(got).any(|byte| *byte != BELL);
        if strange { Err(BellFault::BadBell) } else { Ok(got as u32) }
    }

    /// As [`AnchorBells::drain_all`], with its price noted.
    ///
    /// # Errors
    /// Those of [`AnchorBells::drain`].
    pub fn drain_all_priced(self) -> Result<u32, BellFault> {
        /// What room for all descriptors that may come along costs beside.
        const MORE_NS: u64 = 300;
        wait::priced_without(MORE_NS, || self.drain_all())
    }

    /// Takes so many bytes out, whatever they are, and nothing that came with them. Whether there were as many.
    pub fn take(self, bytes: &mut [u8]) -> bool {
        receive(self.0, bytes) == Ok(bytes.len())
    }

    /// Takes the room for bells away, so that the kernel tells when the peer has taken some out.
    pub fn plug(self) {
        // Without a size that fits this kernel there are no lanes, and whoever has a lane has measured.
        if let Ok(bytes) = calibrate::small_send_buffer() {
            set_send_buffer(self.0, bytes);
        }
    }

    /// Whether there is no room.
    #[must_use]
    pub fn plugged(self) -> bool {
        kernel::poll_now(self.0, libc::POLLOUT) & libc::POLLOUT == 0
    }

    /// Gives the room back.
    pub fn unplug(self) {
        set_send_buffer(self.0, LARGE_SEND_BUFFER);
    }
}

fn send_bell(fd: i32) -> SysResult {
    kernel::send(fd, &[BELL], libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL)
}

/// Tries again for a second while the kernel has no memory for a bell: a peer that is never rung waits for ever, and
/// one that cannot be rung is as good as gone.
///
/// # Errors
/// [`BellFault::Gone`].
#[cold]
pub fn ring_patiently(fd: i32) -> Result<(), BellFault> {
    for _ in 0..1_000 {
        kernel::sleep_ms();
        if !matches!(send_bell(fd), Err(Errno(libc::ENOBUFS | libc::ENOMEM))) {
            return Ok(());
        }
    }
    Err(BellFault::Gone)
}

/// A send buffer that no number of bells fills: the default of `net.core.wmem_default`.
const LARGE_SEND_BUFFER: i32 = 212_992 / 2;

fn set_send_buffer(fd: i32, bytes: i32) {
    let _ = kernel::setsockopt(fd, libc::SOL_SOCKET, libc::SO_SNDBUF, &bytes);
}

/// Receives bytes with room for every descriptor a hostile peer may have attached: what does not fit the
/// kernel would drop itself, and dropping a socket with a long linger blocks.
fn receive(fd: i32, bytes: &mut [u8]) -> Result<usize, BellFault> {
    let mut control = Control::<{ control_bytes(RIGHTS_MAX) }>::empty();
    let mut part = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
    let mut message = control::message(&mut part, &mut control);
    // SAFETY: iovec, buffer and control space are live and of the lengths given.
    match unsafe { kernel::recvmsg(fd, &mut message, libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC) } {
        Ok(got) => {
            if message.msg_controllen != 0 {
                disarm_rights(&message);
                return Err(BellFault::BadBell);
            }
            Ok(got)
        }
        Err(Errno(libc::EAGAIN | libc::EINTR)) => Ok(0),
        Err(_) => Err(BellFault::Gone),
    }
}
