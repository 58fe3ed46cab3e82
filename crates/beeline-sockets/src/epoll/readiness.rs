//! What a member of a set has to report, and what was reported of it.

use core::sync::atomic::Ordering::Relaxed;

use super::events::{ARRIVAL, EPOLLERR, EPOLLET, EPOLLHUP, EPOLLONESHOT, EPOLLOUT, READABLE, WRITABLE};
use super::limits::NESTS_MAX;
use super::nested::ready;
use super::set::set_of;
use super::set::{Entry, Marks, Set};
use crate::desc::{Desc, Kind};
use crate::io;

/// What a hot entry has to report. 0 if nothing.
pub(super) fn readiness(set: &Set, entry: &Entry, depth: u32) -> u32 {
    if entry.fired.load(Relaxed) {
        return 0;
    }
    let Some(desc) = entry.desc() else { return 0 };
    let interest = entry.events.load(Relaxed) | EPOLLERR | EPOLLHUP;
    match desc.kind() {
        Kind::Lane => {}
        Kind::Epoll => {
            let Some(inner) = set_of(desc).filter(|inner| !core::ptr::eq(*inner, set)) else { return 0 };
            if !ready(desc.fd.load(Relaxed), inner, depth + 1) {
                return 0;
            }
            let edge = entry.events.load(Relaxed) & EPOLLET == 0
                || entry.seen.is_fresh()
                || edge_sum(inner) != entry.seen.tail();
            return if edge { READABLE & interest } else { 0 };
        }
        _ => return 0,
    }
    let ask_room = interest & WRITABLE != 0;
    let mask = match io::plainly_readable(desc) {
        Some(readable) if !ask_room => {
            if readable {
                READABLE
            } else {
                0
            }
        }
        _ => io::poll_mask(desc) as u16 as u32,
    };
    let report = mask & interest;
    if report == 0 || entry.events.load(Relaxed) & EPOLLET == 0 {
        return report;
    }
    let edge = entry.seen.is_fresh()
        || desc.side().changes.load(Relaxed) != entry.seen.changes()
        || interest & ARRIVAL != 0 && has_arrivals(entry, desc)
        || interest & WRITABLE != 0 && mask & EPOLLOUT != 0 && desc.pace.fulls() != entry.seen.fulls();
    if edge { report } else { 0 }
}

/// Whether data that counts has come since the last report.
fn has_arrivals(entry: &Entry, desc: &Desc) -> bool {
    let side = desc.side();
    io::count_arrivals(desc, side) != entry.seen.tail() || side.arrivals.load(Relaxed) != entry.seen.arrivals()
}

impl Marks {
    pub(super) fn of(desc: &Desc) -> Self {
        match desc.kind() {
            Kind::Lane => {
                let side = desc.side();
                io::observe(desc, side);
                let tail = io::count_arrivals(desc, side);
                let (changes, arrivals) = (side.changes.load(Relaxed), side.arrivals.load(Relaxed));
                Self { tail, changes, arrivals, fulls: desc.pace.fulls() }
            }
            Kind::Epoll => Self { tail: set_of(desc).map_or(0, edge_sum), changes: 0, arrivals: 0, fulls: 0 },
            _ => Self { tail: 0, changes: 0, arrivals: 0, fulls: 0 },
        }
    }
}

/// Notes that an entry of a set was reported; `marks` if edges count for it. The set is locked.
pub(super) fn reported(set: &Set, entry: &Entry, desc: &Desc, marks: Option<&Marks>, report: u32) {
    let events = entry.events.load(Relaxed);
    if let Some(marks) = marks {
        entry.seen.report(marks);
        if report & READABLE != 0 && desc.is_lane() && !set.exposed.load(Relaxed) {
            let unread = io::unread_hint(desc, desc.side()).min(desc.lane().ring_bytes());
            desc.portion.give(unread, marks.tail, set.count_report());
            io::wish(desc, desc.portion.has_company() && desc.entries.load(Relaxed) == 1);
        }
        if desc.is_lane() && (report & EPOLLOUT != 0 || events & EPOLLOUT == 0) {
            entry.seen.report_room(marks.fulls);
        }
    }
    if events & EPOLLONESHOT != 0 {
        entry.fired.store(true, Relaxed);
        desc.pace.hand_out(true);
    }
}

/// What there is to count of all lanes of a set, and of the sets in it, added up: changes with each arrival, each
/// change of state, with room that comes after a send has found none, and where a member comes or goes
/// ([`Set::edges`]).
///
/// Sets around it may be locked, as in `ready`; it is not. A sum of what could be had without its lock would be no
/// mark: compared with one it makes an edge of nothing, stored as one it hides the next.
pub(super) fn edge_sum(set: &Set) -> u32 {
    count_in(set, 0)
}

fn count_in(set: &Set, depth: u32) -> u32 {
    let _guard = set.lock.lock();
    let mut sum = set.edges.load(Relaxed);
    set.for_each_entry(|_, entry| {
        let inner = entry.desc().and_then(set_of).filter(|inner| depth < NESTS_MAX && !core::ptr::eq(*inner, set));
        if let Some(inner) = inner {
            sum = sum.wrapping_add(count_in(inner, depth + 1));
        }
        if let Some(desc) = entry.desc().filter(|desc| desc.is_lane()) {
            let marks = Marks::of(desc);
            sum = sum.wrapping_add(marks.tail).wrapping_add(marks.changes).wrapping_add(marks.arrivals);
            if entry.asks_for_room() {
                // Room that is there counts with all before it, room that is awaited does not yet: the sum never goes
                // back. The factor keeps it from being made up for by bytes.
                let awaited = u32::from(!io::writable_hint(desc, desc.side()));
                let rooms = desc.pace.fulls().wrapping_sub(awaited);
                sum = sum.wrapping_add(rooms.wrapping_mul(0x9E37_79B1));
            }
        }
    });
    sum
}
