//! Listeners whose clients may come from other network namespaces: rules 9, 10 and 19 of the design.

use core::sync::atomic::{
    AtomicU64,
    Ordering::{AcqRel, Relaxed},
};

use beeline_stats::Reason;
use beeline_wire::agent::Kind;

use super::super::listener::Listener;
use super::{Carrier, about, is_there, page};
use crate::desc::Desc;
use crate::{io, kernel};

/// How long the agent may take to answer.
const PATIENCE_NS: u64 = 100_000_000;
/// How long a page is believed to be that of the agent that runs now.
const ATTACHED_NS: u64 = 1_000_000_000;

const TCP_SAVE_SYN: i32 = 27;

/// [`Listener::enrolled`]: the app saves SYNs for itself, so its clients stay on TCP.
const BELONGS_TO_APP: u32 = 2;
/// Its clients' SYNs are kept, and the agent knows it.
pub(super) const ENROLLED: u32 = 1;

/// When this process asked the agent for its page last.
static ATTACHED_AT_NS: AtomicU64 = AtomicU64::new(0);

/// The program serves a listener: its clients' SYNs are kept from now on, and the agent is told (rules 9 and 19).
#[inline]
pub(in crate::meet) fn enroll(desc: &'static Desc, listener: &'static Listener) {
    if !is_there() {
        return;
    }
    if listener.enrolled.load(Relaxed) == 0 {
        save_syns(desc, listener);
    }
    if listener.enrolled.load(Relaxed) == ENROLLED {
        attach(desc);
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

/// Gets the page of the agent that runs now, and announces the listener to it: once a second at most, since an agent may
/// have been started again.
fn attach(desc: &'static Desc) {
    let now_ns = kernel::now_ns();
    let last_ns = ATTACHED_AT_NS.load(Relaxed);
    let is_due = last_ns == 0 || now_ns.saturating_sub(last_ns) >= ATTACHED_NS;
    if is_due && ATTACHED_AT_NS.compare_exchange(last_ns, now_ns, AcqRel, Relaxed).is_ok() {
        let _ = ask_for_page(desc);
    }
}

#[cold]
fn ask_for_page(desc: &'static Desc) -> Result<(), Reason> {
    let carrier = Carrier::open()?;
    carrier.say(about(Kind::Announce), Some(desc.fd.load(Relaxed)))?;
    carrier.answer(PATIENCE_NS)?.descriptor.into_iter().for_each(io::disarm);
    carrier.say(about(Kind::Attach), None)?;
    if let Some(memfd) = carrier.answer(PATIENCE_NS)?.descriptor {
        page::take(memfd);
        io::disarm(memfd);
    }
    Ok(())
}
