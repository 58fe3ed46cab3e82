//! Bells on a real anchor.

use core::cell::Cell;
use core::mem::MaybeUninit;

use beeline_lane::{BellFault, Bells};
use beeline_shm::sys::SysResult;
use beeline_wire::hello::BELL;

use crate::{Errno, calibrate, ending, kernel, table, wait};

/// `SCM_MAX_FD`: the most descriptors the kernel lets travel with one message.
const RIGHTS_MAX: usize = 253;

/// The anchor of a lane, by the fd under which the app called us.
#[derive(Clone, Copy)]
pub struct Anchor(pub i32);

impl Bells for Anchor {
    fn ring(&self) -> Result<(), BellFault> {
        self.ring_unless(|| self.peer_is_gone())
    }

    fn queued(&self) -> Result<u32, BellFault> {
        wait::priced(|| self.count())
    }

    fn drain(&self, count: u32) -> Result<(), BellFault> {
        let mut left = count as usize;
        while left != 0 {
            let mut bytes = [0u8; 64];
            let part = left.min(bytes.len());
            let got = receive(self.0, &mut bytes[..part])?;
            if got == 0 {
                return Ok(());
            }
            if bytes[..got].iter().any(|byte| *byte != BELL) {
                return Err(BellFault::BadBell);
            }
            left -= got;
        }
        Ok(())
    }

    fn plug(&self) {
        // Without a size that fits this kernel there are no lanes.
        if let Some(bytes) = calibrate::small_send_buffer() {
            set_send_buffer(self.0, bytes);
        }
    }

    fn plugged(&self) -> bool {
        kernel::poll_now(self.0, libc::POLLOUT) & libc::POLLOUT == 0
    }

    fn unplug(&self) {
        set_send_buffer(self.0, LARGE_SEND_BUFFER);
    }
}

impl Anchor {
    /// Bells that lie in it. A relay, which has neither statics nor libc's clock, asks by this.
    pub(crate) fn count(self) -> Result<u32, BellFault> {
        let mut bytes = 0;
        kernel::ioctl_int(self.0, libc::FIONREAD, &mut bytes).map_err(|_| BellFault::Gone)?;
        Ok(bytes as u32)
    }

    /// Queues one bell for the peer. If the kernel refuses it, `gone` tells whether the peer's end is closed.
    pub(crate) fn ring_unless(self, gone: impl FnOnce() -> bool) -> Result<(), BellFault> {
        self.ring_or(gone, || ring_patiently(self.0))
    }

    /// As [`Anchor::ring_unless`]; `short` tells what comes of it if the kernel has no memory for a bell.
    fn ring_or(
        self,
        gone: impl FnOnce() -> bool,
        short: impl FnOnce() -> Result<(), BellFault>,
    ) -> Result<(), BellFault> {
        match send_bell(self.0) {
            Ok(_) => Ok(()),
            // By the rules a queue is never full. If something else filled it, a large buffer takes one more.
            Err(Errno(libc::EAGAIN)) => {
                self.unplug();
                let _ = send_bell(self.0);
                Ok(())
            }
            Err(Errno(libc::ENOBUFS | libc::ENOMEM)) => short(),
            // A peer that shut down its reading half takes no bells, and needs none: it does not wait for data.
            Err(_) if !gone() => Ok(()),
            Err(_) => Err(BellFault::Gone),
        }
    }

    /// Whether the kernel's word about an anchor that takes no bells is that the peer's end is closed.
    #[cold]
    fn peer_is_gone(self) -> bool {
        let revents = kernel::poll_now(self.0, 0);
        match table::get(self.0).filter(|desc| desc.is_lane()) {
            Some(desc) => ending::tells_of_end(desc, revents),
            None => revents != 0,
        }
    }
}

/// An anchor for those who hold what others wait for: a bell that the kernel has no memory for is not tried again, and noted.
pub(crate) struct Hasty {
    anchor: Anchor,
    short: Cell<bool>,
}

impl Hasty {
    pub(crate) fn new(anchor: Anchor) -> Self {
        Self { anchor, short: Cell::new(false) }
    }

    /// Whether a bell could not be rung for want of memory.
    pub(crate) fn was_short(&self) -> bool {
        self.short.get()
    }
}

impl Bells for Hasty {
    fn ring(&self) -> Result<(), BellFault> {
        self.anchor.ring_or(
            || self.anchor.peer_is_gone(),
            || {
                self.short.set(true);
                Err(BellFault::Gone)
            },
        )
    }

    fn queued(&self) -> Result<u32, BellFault> {
        self.anchor.queued()
    }

    fn drain(&self, count: u32) -> Result<(), BellFault> {
        self.anchor.drain(count)
    }

    fn plug(&self) {
        self.anchor.plug();
    }

    fn plugged(&self) -> bool {
        self.anchor.plugged()
    }

    fn unplug(&self) {
        self.anchor.unplug();
    }
}

fn send_bell(fd: i32) -> SysResult {
    kernel::send(fd, &[BELL], libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL)
}

/// Tries again for a second while the kernel has no memory for a bell: a peer that is never rung waits for ever, and
/// one that cannot be rung is as good as gone.
#[cold]
fn ring_patiently(fd: i32) -> Result<(), BellFault> {
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
    // SAFETY: computes a size.
    const SPACE: usize = unsafe { libc::CMSG_SPACE((RIGHTS_MAX * size_of::<i32>()) as u32) } as usize;
    #[repr(align(8))]
    struct Control(MaybeUninit<[u8; SPACE]>);
    let mut control = Control(MaybeUninit::uninit());
    let mut part = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
    // SAFETY: all-zero is a valid value of this plain C struct.
    let mut message: libc::msghdr = unsafe { core::mem::zeroed() };
    message.msg_iov = &raw mut part;
    message.msg_iovlen = 1;
    message.msg_control = control.0.as_mut_ptr().cast();
    message.msg_controllen = SPACE as _;
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

/// Closes all descriptors that came with a message, lingering cleared first so that no close can block.
pub(crate) fn disarm_rights(message: &libc::msghdr) {
    // SAFETY: the kernel filled in the control data of this message; the CMSG walk stays within it.
    unsafe {
        let mut header = libc::CMSG_FIRSTHDR(message);
        while let Some(control) = header.as_ref() {
            if control.cmsg_level == libc::SOL_SOCKET && control.cmsg_type == libc::SCM_RIGHTS {
                let data = libc::CMSG_DATA(header).cast::<i32>();
                let bytes = control.cmsg_len.saturating_sub(libc::CMSG_LEN(0) as usize);
                for index in 0..bytes / size_of::<i32>() {
                    disarm(data.add(index).read_unaligned());
                }
            }
            header = libc::CMSG_NXTHDR(message, header);
        }
    }
}

/// Closes a descriptor received from a stranger.
pub(crate) fn disarm(fd: i32) {
    let off = libc::linger { l_onoff: 0, l_linger: 0 };
    let _ = kernel::setsockopt(fd, libc::SOL_SOCKET, libc::SO_LINGER, &off);
    let _ = beeline_shm::sys::close(fd);
}
