//! The sleep of a call: its lanes are armed, by a sleep that is named in all of them where that may be ([`PollSleep`]).

use beeline_lane::Armed;
use libc::pollfd;

use super::held::Held;
use super::{arm, asked_of, fill};
use crate::desc::Desc;
use crate::io::{self, PollSleep};
use crate::wait::{Patience, Woken};
use crate::{epoll, kernel};

/// Arms the lanes and sleeps. `None` if there was something to report already.
pub(super) fn sleep(
    fds: &[pollfd],
    shadow: &mut [pollfd],
    held: &Held<'_>,
    patience: &mut Patience,
    deadline: Option<u64>,
    mask: Option<&u64>,
) -> Option<Woken> {
    held.prepare(fds);
    // What the kernel is asked is laid out before the arming, whose last look then covers all that is left out
    // of it.
    let used = fill(fds, shadow, Some(held));
    let named = name_sleep(held, shadow, used);
    let number = named.as_ref().map_or(0, PollSleep::number);
    let asked = Some(asked_of(shadow, used + usize::from(named.is_some())))
        .filter(|_| arm(fds, held, number) == Armed::Sleep)?;
    // Sends of other threads and processes may complete, which wakes nobody here.
    let woken = match held.any(|desc| io::tells_completions(desc) || waits_for_more(desc)) {
        false => patience.sleep(asked, mask),
        // A handler may have run between two naps.
        true => patience.signal().unwrap_or_else(|| nap(asked, deadline, mask)),
    };
    if let (Some(named), Some(answer)) = (&named, shadow.get(used)) {
        named.heard(answer);
    }
    Some(woken)
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
