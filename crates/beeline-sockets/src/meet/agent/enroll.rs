//! Listeners whose clients may come from other network namespaces: rules 10, 20 and 21 of the design.

use core::sync::atomic::Ordering::{AcqRel, Relaxed};

use beeline_meeting::agent::{Carrier, is_there, page};
use beeline_stats::Reason;
use beeline_wire::agent::Question;

use super::super::listener::Listener;
use super::may_serve;
use crate::desc::Desc;
use crate::kernel;

/// How long the agent may take to answer.
const PATIENCE_NS: u64 = 100_000_000;
/// How long an agent is believed to be the one that a listener was announced to.
const ANNOUNCED_NS: u64 = 1_000_000_000;

const TCP_SAVE_SYN: i32 = 27;

/// [`Listener::enrolled`]: the app saves SYNs for itself, so its clients stay on TCP.
const BELONGS_TO_APP: u32 = 2;
/// Its clients' SYNs are kept, and the agent knows it.
pub(super) const ENROLLED: u32 = 1;

/// The program serves a listener: its clients' SYNs are kept from now on, and the agent is told (rules 10 and 21).
#[inline]
pub(in crate::meet) fn enroll(desc: &'static Desc, listener: &'static Listener) {
    if !is_there() || !may_serve(listener) {
        return;
    }
    if listener.enrolled.load(Relaxed) == 0 {
        save_syns(desc, listener);
    }
    if listener.enrolled.load(Relaxed) == ENROLLED {
        announce(listener);
    }
}

#[cold]
fn save_syns(desc: &'static Desc, listener: &'static Listener) {
    let fd = desc.fd.load(Relaxed);
    let saved = kernel::getsockopt::<i32>(fd, libc::IPPROTO_TCP, TCP_SAVE_SYN);
    // Other processes that share the listener, with their own notes, find that one of them has done it.
    let by_us = listener.is_shared();
    let is_ours = match saved {
        Ok(0) => kernel::setsockopt(fd, libc::IPPROTO_TCP, TCP_SAVE_SYN, &1i32).is_ok(),
        Ok(_) => by_us,
        Err(_) => false,
    };
    listener.enrolled.store(if is_ours { ENROLLED } else { BELONGS_TO_APP }, Relaxed);
}

/// Announces a listener to the agent that runs now, and gets its page: once a second at most, since an agent may have been
/// started again.
fn announce(listener: &'static Listener) {
    let now_ns = kernel::now_ns();
    let last_ns = listener.announced_ns.load(Relaxed);
    let is_due = last_ns == 0 || now_ns.saturating_sub(last_ns) >= ANNOUNCED_NS;
    if is_due && listener.announced_ns.compare_exchange(last_ns, now_ns, AcqRel, Relaxed).is_ok() {
        let _ = announce_now(listener);
    }
}

#[cold]
fn announce_now(listener: &'static Listener) -> Result<(), Reason> {
    let carrier = Carrier::open()?;
    // First, so that the page is there when the first client comes.
    carrier.say(Question::Attach, None)?;
    if let Some(memfd) = carrier.answer(PATIENCE_NS)?.descriptor {
        page::take(memfd.fd());
    }
    carrier.say(Question::Announce { local: listener.local.get() }, None)?;
    carrier.answer(PATIENCE_NS).map(|_| ())
}
