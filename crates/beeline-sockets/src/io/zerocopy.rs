//! `MSG_ZEROCOPY`: the bytes are copied, as they are on the loopback device, and the completion says so.
//!
//! 1. A send that took bytes, with the flag and `SO_ZEROCOPY`, has a number, the next one. It is complete when it
//!    returns: the app's buffer is not looked at any more.
//! 2. The kernel merges a completion with the one before as long as nobody has read that, so its queue is one range of
//!    numbers (`skb_zerocopy_notify_extend`, Linux net/core/skbuff.c). Here it is two counts in the side, which all who
//!    hold the end share: sends that are complete, and those that were told.
//! 3. Each completion is an edge (`sk_error_report`), and while there is something to be told the socket has `POLLERR`.

use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};

use super::ancillary::Control;
use super::call::left;
use crate::desc::{Desc, Pin};
use crate::linux::{SO_EE_CODE_ZEROCOPY_COPIED, SO_EE_ORIGIN_ZEROCOPY};
use crate::side::{SideState, extra, state};
use crate::{Outcome, guards, watchers};

/// `IP_RECVERR` and `IPV6_RECVERR`, as which a completion is told.
const RECVERR: [(i32, i32); 2] = [(libc::IPPROTO_IP, libc::IP_RECVERR), (libc::IPPROTO_IPV6, libc::IPV6_RECVERR)];

/// The most that one range tells: its length is an int of 32 bits.
const RANGE_MAX: u64 = u32::MAX as u64;

/// Whether completions of sends on this connection are told. The caller keeps the description.
pub(crate) fn tells(desc: &Desc) -> bool {
    desc.is_lane() && desc.side().has_extra(extra::ZEROCOPY)
}

/// A send with the flag has ended. No lock is held. This process's sets hear of it; who sleeps in poll(2) or select(2)
/// looks by itself.
#[cold]
pub(super) fn sent(pin: &Pin, given: i32, outcome: &Outcome) {
    let desc = pin.desc();
    if !matches!(outcome, Outcome::Done(1..)) || !desc.is_lane() {
        return;
    }
    let side = desc.side();
    side.completed.fetch_add(1, AcqRel);
    side.mark(state::COMPLETED);
    side.changes.fetch_add(1, Relaxed);
    watchers::notify(pin.fd(given), desc);
}

/// Numbers of sends that are complete, the first and the last, on a connection of this address family.
pub(super) struct Range {
    first: u32,
    last: u32,
    family: i32,
}

/// Takes what is to be told. The call's outcome if there is nothing.
#[cold]
pub(super) fn take(given: i32, desc: &'static Desc) -> Result<Range, Outcome> {
    let Some(_pin) = guards::pin(given, desc) else { return Err(left(given, desc, 0)) };
    if !desc.is_lane() {
        return Err(left(given, desc, 0));
    }
    let side = desc.side();
    let mut told = side.completed_told.load(Relaxed);
    loop {
        let count = side.completed.load(Acquire).wrapping_sub(told).min(RANGE_MAX);
        if count == 0 {
            return Err(Outcome::fail(libc::EAGAIN));
        }
        let next = told.wrapping_add(count);
        match side.completed_told.compare_exchange(told, next, AcqRel, Relaxed) {
            Ok(_) => {
                settle(side);
                let family = side.family.load(Relaxed) as i32;
                return Ok(Range { first: told as u32, last: next.wrapping_sub(1) as u32, family });
            }
            Err(found) => told = found,
        }
    }
}

/// Takes the mark away if nothing is left to be told.
fn settle(side: &SideState) {
    side.state.fetch_and(!state::COMPLETED, AcqRel);
    if side.has_completions() {
        side.mark(state::COMPLETED);
    }
}

/// Puts a `struct sock_extended_err` that tells of a range, with an address that the kernel leaves empty.
pub(super) fn tell(range: Range, control: &mut Control) {
    const ERROR_BYTES: usize = size_of::<libc::sock_extended_err>();
    const ROOM: usize = ERROR_BYTES + size_of::<libc::sockaddr_in6>();
    let error = libc::sock_extended_err {
        ee_errno: 0,
        ee_origin: SO_EE_ORIGIN_ZEROCOPY,
        ee_type: 0,
        ee_code: SO_EE_CODE_ZEROCOPY_COPIED,
        ee_pad: 0,
        ee_info: range.first,
        ee_data: range.last,
    };
    let mut data = [0; ROOM];
    // SAFETY: the array has room for it, and any value may be read as bytes.
    unsafe { core::ptr::copy_nonoverlapping((&raw const error).cast(), data.as_mut_ptr(), ERROR_BYTES) };
    let [v4, v6] = RECVERR;
    let ((level, kind), length) = match range.family {
        libc::AF_INET6 => (v6, ROOM),
        _ => (v4, ERROR_BYTES + size_of::<libc::sockaddr_in>()),
    };
    control.put(level, kind, data.get(..length).unwrap_or(&data));
}
