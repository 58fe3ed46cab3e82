//! From a number to a description that is locked or pinned for it.

use crate::desc::{Desc, Pin, RxGuard, TxGuard};
use crate::table::{get, leads_to};

/// The lane that `fd` leads to, with its writing direction locked.
#[must_use]
#[inline]
pub fn lane_tx(fd: i32) -> Option<TxGuard> {
    let desc = get(fd)?;
    if desc.is_lane() { tx_of(fd, desc) } else { None }
}

/// The lane that `fd` leads to, with its reading direction locked.
#[must_use]
#[inline]
pub fn lane_rx(fd: i32) -> Option<RxGuard> {
    let desc = get(fd)?;
    if desc.is_lane() { rx_of(fd, desc) } else { None }
}

/// Keeps `desc`, which `fd` led to a moment ago, with its lane and side. `None` if `fd` does not lead there any more.
#[must_use]
pub fn pin(fd: i32, desc: &'static Desc) -> Option<Pin> {
    let pin = desc.pin();
    // Whoever took the fd away before the pin was there is seen here; whoever does it now will see the pin.
    leads_to(fd, desc).then_some(pin)
}

/// As [`pin`], for a call that has done nothing yet: if `fd` has come to lead to another lane since, that one is meant.
#[must_use]
pub fn pin_for_call(fd: i32, desc: &'static Desc) -> Option<Pin> {
    pin(fd, desc).or_else(|| pin_what_came(fd))
}

#[cold]
fn pin_what_came(fd: i32) -> Option<Pin> {
    loop {
        let lane = get(fd).filter(|desc| desc.is_lane())?;
        if let Some(pin) = pin(fd, lane) {
            return Some(pin);
        }
    }
}

/// Locks the writing direction of `desc` for a call that `fd` was given to. `None` if that is not a lane any more, or
/// `fd` leads elsewhere.
#[must_use]
pub fn tx_of(fd: i32, desc: &'static Desc) -> Option<TxGuard> {
    let guard = desc.lock_tx()?;
    leads_to(fd, desc).then_some(guard)
}

/// As [`tx_of`], for the reading direction.
#[must_use]
pub fn rx_of(fd: i32, desc: &'static Desc) -> Option<RxGuard> {
    let guard = desc.lock_rx()?;
    leads_to(fd, desc).then_some(guard)
}
