//! The send buffer of a plugged anchor, chosen so that the kernel's writability means what lanes need.
//!
//! A lane counts on this: a plugged anchor is writable with up to three bells on their way and not writable with
//! four ([`beeline_lane`], "Waking a writer"). Linux calls an `AF_UNIX` stream socket writable while
//! `4 * (bells * T + 1) <= sk_sndbuf` (`unix_writable` in net/unix/af_unix.c), where `T` is the true size of
//! a message of one byte. `T` differs between kernels, so it is asked of the one we run on: `SIOCOUTQ` of a
//! sender is `bells * T`. `setsockopt` doubles what it is given, so `7 * T` makes `sk_sndbuf = 14 * T`, the
//! middle of the interval `12 * T + 4 ..= 16 * T + 3` that is right. The choice is then tried out; a kernel
//! that behaves otherwise gets no lanes. What cannot be measured for a lack of descriptors or memory is measured again.

use core::sync::atomic::{AtomicU32, Ordering::Relaxed};

use beeline_shm::socket_pair;
use beeline_stats::Reason;
use beeline_wire::BELL;

use crate::{Errno, kernel};

const UNKNOWN: u32 = 0;
const UNSUPPORTED: u32 = u32::MAX;
/// `sk_sndbuf` is never below this (`SOCK_MIN_SNDBUF`), so a smaller message would need more bells.
const TRUE_SIZE_MIN: u32 = 288;
const TRUE_SIZE_MAX: u32 = 1 << 20;

/// Room for this many bells must be in the send buffer that a socket begins with: far more than ever travel.
const BELLS_AT_BEGIN: u32 = 32;

/// What `SO_SNDBUF` is set to while the anchor is plugged.
static SMALL: AtomicU32 = AtomicU32::new(UNKNOWN);

/// The `SO_SNDBUF` that plugs an anchor.
///
/// # Errors
/// [`Reason::KernelUnsupported`] when this kernel cannot do what lanes need, others when that is not known yet.
pub fn small_send_buffer() -> Result<i32, Reason> {
    match SMALL.load(Relaxed) {
        UNKNOWN => {
            // Two threads that measure at once find the same.
            let measured = measure();
            match measured {
                Ok(bytes) => SMALL.store(bytes, Relaxed),
                Err(Reason::KernelUnsupported) => SMALL.store(UNSUPPORTED, Relaxed),
                Err(_) => {}
            }
            measured.map(u32::cast_signed)
        }
        UNSUPPORTED => Err(Reason::KernelUnsupported),
        known => Ok(known.cast_signed()),
    }
}

/// Measures on a pair of sockets of our own.
fn measure() -> Result<u32, Reason> {
    let [ours, theirs] = socket_pair().map_err(reason)?;
    let chosen = choose(ours.get())?;
    if holds(ours.get(), theirs.get())? { Ok(chosen) } else { Err(Reason::KernelUnsupported) }
}

/// Why a call failed that succeeds on a kernel which can do what lanes need.
fn reason(errno: Errno) -> Reason {
    match errno.0 {
        libc::EMFILE | libc::ENFILE => Reason::DescriptorsShort,
        libc::ENOMEM | libc::ENOBUFS => Reason::MemoryShort,
        libc::EPERM | libc::EACCES => Reason::SystemCallDenied,
        _ => Reason::KernelUnsupported,
    }
}

/// Sends one bell and sets the buffer by what it weighs.
fn choose(ours: i32) -> Result<u32, Reason> {
    ring(ours)?;
    let mut weight = 0;
    kernel::ioctl_int(ours, libc::TIOCOUTQ, &mut weight).map_err(reason)?;
    let wanted = send_buffer(weight.cast_unsigned()).ok_or(Reason::KernelUnsupported)?;
    let at_begin: i32 = kernel::getsockopt(ours, libc::SOL_SOCKET, libc::SO_SNDBUF).map_err(reason)?;
    if at_begin < weight.saturating_mul(4 * BELLS_AT_BEGIN as i32) {
        return Err(Reason::KernelUnsupported);
    }
    kernel::setsockopt(ours, libc::SOL_SOCKET, libc::SO_SNDBUF, &wanted.cast_signed()).map_err(reason)?;
    let set: i32 = kernel::getsockopt(ours, libc::SOL_SOCKET, libc::SO_SNDBUF).map_err(reason)?;
    if fits(weight.cast_unsigned(), set.cast_unsigned()) { Ok(wanted) } else { Err(Reason::KernelUnsupported) }
}

/// What to ask for, given the true size of a bell.
fn send_buffer(true_size: u32) -> Option<u32> {
    (TRUE_SIZE_MIN..=TRUE_SIZE_MAX).contains(&true_size).then(|| true_size.saturating_mul(7))
}

/// Whether the buffer that the kernel then reports is right: an administrator may have bounded it.
fn fits(true_size: u32, reported: u32) -> bool {
    let (least, most) = (true_size.saturating_mul(12), true_size.saturating_mul(16));
    (least.saturating_add(4)..most.saturating_add(4)).contains(&reported)
}

/// Tries the buffer out on a pair in which one bell is queued already.
fn holds(ours: i32, theirs: i32) -> Result<bool, Reason> {
    let writable = || kernel::poll_now(ours, libc::POLLOUT) & libc::POLLOUT != 0;
    for _ in 1..4 {
        if !writable() {
            return Ok(false);
        }
        ring(ours)?;
    }
    if writable() {
        return Ok(false);
    }
    let mut queued = 0;
    let mut bells = [0u8; 3];
    kernel::ioctl_int(theirs, libc::FIONREAD, &mut queued).map_err(reason)?;
    Ok(queued == 4 && kernel::recv(theirs, &mut bells, libc::MSG_DONTWAIT) == Ok(3) && writable())
}

fn ring(fd: i32) -> Result<(), Reason> {
    match kernel::send(fd, &[BELL], libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL) {
        Ok(1) => Ok(()),
        Ok(_) => Err(Reason::KernelUnsupported),
        Err(errno) => Err(reason(errno)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_kernel_can_be_calibrated() {
        let value = measure().unwrap();
        assert!(value >= 7 * TRUE_SIZE_MIN);
    }

    #[test]
    fn what_cannot_be_measured_for_now_is_measured_later() {
        // SAFETY: the child makes plain calls only, and ends without running anything of this process's.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let limit = |most| {
                let limit = libc::rlimit { rlim_cur: most, rlim_max: 64 };
                // SAFETY: a live limit.
                unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) }
            };
            SMALL.store(UNKNOWN, Relaxed);
            let is_lowered = limit(0) == 0;
            let short = small_send_buffer() == Err(Reason::DescriptorsShort);
            // Other tests may have many.
            for fd in 3..64 {
                let _ = beeline_shm::sys::close(fd);
            }
            let holds = is_lowered && short && limit(64) == 0 && small_send_buffer().is_ok();
            // SAFETY: ends this process.
            unsafe { libc::_exit(i32::from(!holds)) };
        }
        let mut status = 0;
        // SAFETY: room for the status.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert_eq!(status, 0);
    }

    #[test]
    fn buffers_at_the_edges_are_told_apart() {
        assert!(!fits(768, 9219) && fits(768, 9220) && fits(768, 12291) && !fits(768, 12292));
        assert_eq!(send_buffer(768), Some(5376));
        assert_eq!((send_buffer(287), send_buffer((1 << 20) + 1)), (None, None));
    }
}
