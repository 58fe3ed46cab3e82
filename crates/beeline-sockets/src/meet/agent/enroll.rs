//! Listeners whose clients may come from other network namespaces: rules 10 and 19 of the design.

use core::sync::atomic::Ordering::{AcqRel, Relaxed};

use beeline_meeting::agent::{Carrier, is_there};
use beeline_stats::Reason;
use beeline_wire::agent::{Question, place_of};

use super::super::listener::Listener;
use super::may_serve;
use crate::desc::Desc;
use crate::kernel;

/// How long an agent is believed to be the one that a listener was announced to.
const ANNOUNCED_NS: u64 = 1_000_000_000;

/// The program serves a listener: the agent is told, once a second at most, since an agent may have been started again.
/// Nobody waits for its answer.
#[inline]
pub(in crate::meet) fn enroll(desc: &'static Desc, listener: &'static Listener) {
    if !is_there() || !may_serve(listener) {
        return;
    }
    let now_ns = kernel::now_ns();
    let last_ns = listener.announced_ns.load(Relaxed);
    let is_due = last_ns == 0 || now_ns.saturating_sub(last_ns) >= ANNOUNCED_NS;
    if is_due && listener.announced_ns.compare_exchange(last_ns, now_ns, AcqRel, Relaxed).is_ok() {
        let _ = announce(desc, listener);
    }
}

#[cold]
fn announce(desc: &'static Desc, listener: &'static Listener) -> Result<(), Reason> {
    let local = listener.local.get();
    let namespace = kernel::namespace(desc.fd.load(Relaxed)).ok_or(Reason::KernelUnsupported)?;
    listener.place.store(place_of(namespace, local.port()).saturating_add(1), Relaxed);
    Carrier::open()?.say(Question::Announce { local })
}
