//! The sleep of a call: its lanes are armed, by a sleep that is named in all of them where that may be ([`PollSleep`]),
//! or that bells which lie there do not end, where it is on one alone ([`ByEdges`]).

use core::cell::Cell;

use beeline_lane::{Armed, Sleeping};
use libc::{POLLIN, POLLRDHUP, pollfd};

use super::held::{Held, is_urgent_alone};
use super::{arm, asked_of, count_ready, fill, spin};
use crate::desc::{ByEdges, Desc, Kind};
use crate::io::{self, Next, PollSleep, Sleeper, Users};
use crate::wait::{Patience, Woken, ticks};
use crate::{epoll, guards, kernel, table};

/// Arms the lanes and sleeps. `None` if there was something to report already. What [`heard`] is to be given comes with
/// how the sleep ended.
pub(super) fn sleep(
    fds: &[pollfd],
    shadow: &mut [pollfd],
    held: &Held<'_>,
    patience: &mut Patience,
    deadline: Option<u64>,
    mask: Option<&u64>,
) -> Option<(Woken, Option<ByEdges>)> {
    held.prepare(fds);
    // What the kernel is asked is laid out before the arming, whose last look then covers all that is left out
    // of it.
    let used = fill(fds, shadow, Some(held));
    let named = name_sleep(held, shadow, used);
    // Sends of other threads and processes may complete, which wakes nobody here.
    let naps = held.any(|desc| io::tells_completions(desc) || waits_for_more(desc));
    // By edges a stop would end a sleep with a mask, as a handler does that the program has installed by itself.
    let may_be_lone = !naps && named.is_none() && mask.is_none();
    let lone = if may_be_lone { lone_lane(held, asked_of(shadow, used)) } else { None };
    let by_edges = Cell::new(None);
    let sleeper = |index| match lone == Some(index) {
        true => Sleeper::by_edges(&POLLER, &by_edges),
        false => Sleeper::new(&POLLER, Sleeping::numbered(named.as_ref().map_or(0, PollSleep::number))),
    };
    let asked = Some(asked_of(shadow, used + usize::from(named.is_some())))
        .filter(|_| arm(fds, held, sleeper) == Armed::Sleep)?;
    if let (Some(mut by_edges), Some(place)) = (by_edges.take(), lone.and_then(|index| asked.get_mut(index))) {
        return Some((by_edges.sleep(patience, place), Some(by_edges)));
    }
    let woken = match naps {
        false => patience.sleep(asked, mask),
        // A handler may have run between two naps.
        true => patience.signal().unwrap_or_else(|| nap(asked, deadline, mask)),
    };
    if let (Some(named), Some(answer)) = (&named, shadow.get(used)) {
        named.heard(answer);
    }
    Some((woken, None))
}

/// After a sleep: passes on what the kernel said about anchors. Returns of how many that was nothing, and will be so
/// again.
pub(super) fn heard(
    fds: &[pollfd],
    shadow: &[pollfd],
    held: &Held<'_>,
    patience: &Patience,
    mut by_edges: Option<ByEdges>,
) -> usize {
    let (mut ours, mut in_vain) = (false, 0);
    for (index, (entry, place)) in fds.iter().zip(shadow).enumerate() {
        let Some(desc) = table::get(entry.fd) else { continue };
        if desc.kind() == Kind::Epoll && place.revents != 0 && !epoll::is_ready(desc) {
            // Bells of members that are not to be reported any more end every sleep at once.
            kernel::sleep_ms();
        }
        // What the number led to when the sleep began has nothing to tell any more.
        let Some(_pin) = guards::pin(entry.fd, desc).filter(|_| held.holds(index, desc)) else { continue };
        if desc.is_lane() {
            if place.revents == 0 {
                desc.show_cpu();
            } else {
                ours = true;
                // A connection that became TCP is found to be one at the next look.
                let (Next::Again | Next::Kernel) = io::kernel_said(entry.fd, desc, place.revents);
                if io::tells_nothing(desc, place.revents) {
                    in_vain += 1;
                } else {
                    if let Some(by_edges) = by_edges.take() {
                        by_edges.note_heard();
                    }
                    desc.pace.hear(ticks());
                    desc.slept(patience, Woken::Ready(1));
                }
                if is_urgent_alone(entry.events) && !held.hears_arrivals(index) {
                    kernel::sleep_ms();
                }
            }
        }
    }
    if !ours {
        spin::slept(fds, patience, shadow.get(fds.len()..).is_some_and(|further| count_ready(further) != 0));
    }
    in_vain
}

/// The only one who uses a lane: the call, which keeps it, and its arming.
const POLLER: Users = Users { pins: 2, entries: 0 };

/// Which entry is the lane of whose bytes the kernel is asked, and of nothing else.
fn lone_lane(held: &Held<'_>, asked: &[pollfd]) -> Option<usize> {
    let (last, before) = asked.split_last()?;
    let is_lone = last.events == POLLIN | POLLRDHUP && before.iter().all(|place| place.fd < 0);
    Some(before.len()).filter(|index| is_lone && held.nth(*index).is_some_and(Desc::is_lane))
}

/// Names the sleep that begins, if it is on several lanes, and asks the kernel for its alarm in the place behind those
/// that are `used`.
fn name_sleep(held: &Held<'_>, shadow: &mut [pollfd], used: usize) -> Option<PollSleep> {
    // More places than descriptors may be open the kernel does not take.
    if held.lanes() < 2 || used >= kernel::recent_descriptor_limit() {
        return None;
    }
    let place = shadow.get_mut(used)?;
    epoll::hear_of_calls();
    let named = PollSleep::begin()?;
    *place = named.alarm();
    Some(named)
}

/// Whether one byte is not enough: another thread may lower the mark meanwhile, of which no anchor tells.
fn waits_for_more(desc: &Desc) -> bool {
    desc.is_lane() && io::low_water(desc, desc.side()) > 1
}

/// How long a call sleeps at most where something may change of which no anchor tells.
const NAP_NS: u64 = 5_000_000;

/// A sleep of [`NAP_NS`] at most.
fn nap(fds: &mut [pollfd], deadline: Option<u64>, mask: Option<&u64>) -> Woken {
    let until = kernel::now_ns().saturating_add(NAP_NS);
    Patience::until(Some(deadline.map_or(until, |deadline| deadline.min(until)))).sleep(fds, mask)
}
