//! The numbers of sends whose completions are told (`MSG_ZEROCOPY`), when the connection goes on over TCP.
//!
//! The kernel gives them itself, from 0 on, one to each send. So as many of the first bytes in the ring as sends have a
//! number are sent one by one; each send had a byte at least. What was told before is taken out of the kernel's queue,
//! and the rest is there for the app.

use beeline_lane::{Sink, Writer};
use beeline_shm::{LaneMemory, sys::call};
use core::sync::atomic::Ordering::Relaxed;

use super::Handed;
use crate::Errno;
use crate::kernel;
use crate::side::SideState;

/// How long the kernel may take to complete a send to this host.
const PATIENCE_MS: i64 = 200;

/// Sends from `sent` on what is to have numbers.
pub(super) fn hand_over(side: &SideState, writer: &Writer<'_, LaneMemory>, tcp: i32, sent: &mut u32) -> Handed {
    let (all, told) = (side.completed.load(Relaxed), side.completed_told.load(Relaxed));
    if all == 0 {
        return Handed::All;
    }
    let _ = kernel::setsockopt(tcp, libc::SOL_SOCKET, libc::SO_ZEROCOPY, &1i32);
    while u64::from(*sent) < all {
        let mut byte = [0u8];
        match writer.copy_back(*sent, Sink::from(&mut byte[..])) {
            Ok(0) => return Handed::All,
            Ok(_) => {}
            Err(_) => return Handed::Failed,
        }
        let urgent = if writer.before_urgent(*sent) == Ok(Some(0)) { libc::MSG_OOB } else { 0 };
        match kernel::send(tcp, &byte, urgent | libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL | libc::MSG_ZEROCOPY) {
            Ok(_) => *sent = sent.wrapping_add(1),
            Err(Errno(libc::EINTR)) => {}
            Err(Errno(libc::EAGAIN | libc::ENOBUFS | libc::ENOMEM)) => return Handed::Part,
            Err(_) => return Handed::Failed,
        }
        if u64::from(*sent) == told {
            forget(tcp, told);
        }
    }
    Handed::All
}

/// Takes the first `count` completions out of the kernel's queue.
fn forget(tcp: i32, count: u64) {
    let deadline = kernel::now_ns().saturating_add(PATIENCE_MS as u64 * 1_000_000);
    while kernel::now_ns() < deadline {
        if take(tcp).is_some_and(|last| u64::from(last) + 1 >= count) {
            return;
        }
        kernel::sleep_ms();
    }
}

/// Takes what is in the kernel's queue. The last number that it tells.
fn take(tcp: i32) -> Option<u32> {
    /// Room for a header and the error that follows it.
    const WORDS: usize = 32;
    let mut control = [0u32; WORDS];
    // SAFETY: zero is valid for a message, which then has neither address nor buffers.
    let mut message: libc::msghdr = unsafe { core::mem::zeroed() };
    message.msg_control = control.as_mut_ptr().cast();
    message.msg_controllen = size_of_val(&control);
    let args = [tcp as usize, (&raw mut message) as usize, (libc::MSG_ERRQUEUE | libc::MSG_DONTWAIT) as usize, 0, 0, 0];
    // SAFETY: a live message with live room of the length stated.
    unsafe { call(libc::SYS_recvmsg, args) }.ok()?;
    // After the header: errno, origin and code, info, data.
    const DATA: usize = (size_of::<libc::cmsghdr>() + 12) / 4;
    control.get(DATA).copied()
}
