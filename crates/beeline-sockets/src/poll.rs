//! `poll`, `select` and their kin over any mix of lanes, listeners, epoll sets and the kernel's fds.
//!
//! 1. Lanes are judged by their rings, everything else by one ppoll(2) with no wait; a call always looks at
//!    all of them, so that it reports what the kernel would report.
//! 2. If nothing is ready, a call spins over its lanes as a blocking `recv` would, or for a listener's clients
//!    ([`spin`]).
//! 3. Then every lane is armed for what is asked of it, and the call sleeps in ppoll(2) on the anchors, the
//!    listeners with their doors, and the rest. What wakes it is only a hint; it looks at everything again. What it
//!    sleeps on is kept open meanwhile ([`held`]). A peer that sends on several of the lanes rings on one ([`asleep`]).

mod asleep;
mod held;
mod scratch;
mod select;
mod spin;

use core::sync::atomic::Ordering::Relaxed;

use beeline_lane::Armed;
use libc::{POLLERR, POLLHUP, POLLIN, POLLOUT, POLLPRI, POLLRDHUP, POLLRDNORM, pollfd};

use held::{Held, is_urgent_alone};
pub(crate) use select::{pselect, select};

use crate::app_memory::bogus;
use crate::desc::{Desc, Kind};
use crate::io::{self, ALWAYS, Next, Poller, READABLE, Sleeper, WRITABLE, arm_lane};
use crate::operations::{Adopt, FURTHER_FDS};
use crate::side::state;
use crate::wait::{Patience, Spun, Woken, deadline, let_signals_in, ticks};
use crate::{Errno, Outcome, epoll, follow, guards, kernel, process, table, upkeep};

/// `poll(2)`.
///
/// # Safety
/// `fds` must point to `count` entries, as for poll(2).
pub(crate) unsafe fn poll(fds: *mut pollfd, count: u64, timeout_ms: i32, adopt: Adopt) -> Outcome {
    let deadline = match timeout_ms {
        ..0 => None,
        // A deadline in the past: no wait, and no look at the clock.
        0 => Some(0),
        _ => Some(kernel::now_ns() + timeout_ms as u64 * 1_000_000),
    };
    // SAFETY: forwarded from the caller.
    unsafe { wait(fds, count, deadline, None, adopt) }
}

/// `ppoll(2)`.
///
/// # Safety
/// `fds` must point to `count` entries; `timeout` and `mask` must be null or valid, as for ppoll(2).
pub(crate) unsafe fn ppoll(
    fds: *mut pollfd,
    count: u64,
    timeout: *const libc::timespec,
    mask: *const u8,
    adopt: Adopt,
) -> Outcome {
    // SAFETY: null or valid, as the caller guarantees; the kernel's signal set is the first 8 bytes.
    let (timeout, mask) = unsafe { (timeout.as_ref(), mask.cast::<u64>().as_ref()) };
    let deadline = match deadline(timeout) {
        Ok(deadline) => deadline,
        Err(errno) => return Outcome::Fail(errno),
    };
    // SAFETY: forwarded from the caller.
    unsafe { wait(fds, count, deadline, mask, adopt) }
}

/// How many entries the kernel may be asked about for `entries` of the app's.
fn places(entries: usize, listeners: usize) -> usize {
    // One for arrivals, and one for the alarm.
    entries + listeners * FURTHER_FDS + 2
}

/// # Safety
/// `fds` must point to `count` entries.
unsafe fn wait(fds: *mut pollfd, count: u64, deadline: Option<u64>, mask: Option<&u64>, adopt: Adopt) -> Outcome {
    if count == 0 || count > 1 << 20 || bogus(fds as usize, 1) || process::is_sealed() {
        return Outcome::Kernel;
    }
    // Before a look at any of them: there may be fewer, as the kernel refuses so many before it reads one.
    if process::has_started() && kernel::refuses_entries(count as usize) {
        return Outcome::fail(libc::EINVAL);
    }
    // SAFETY: the caller guarantees it.
    let fds = unsafe { core::slice::from_raw_parts_mut(fds, count as usize) };
    let mut listeners = 0;
    let mut ours = 0;
    for entry in fds.iter() {
        match table::get(entry.fd).map(Desc::kind) {
            Some(Kind::Lane | Kind::Epoll | Kind::Orphan) => ours += 1,
            Some(Kind::Listener) => listeners += 1,
            _ => listeners += usize::from(adopt(entry.fd)),
        }
    }
    if ours + listeners == 0 && upkeep::due_ns().is_none() {
        return Outcome::Kernel;
    }
    scratch::with(places(fds.len(), listeners), scratch::NONE, |shadow| scan(fds, shadow, deadline, mask, &mut false))
}

/// The wait itself. `shadow` is what the kernel gets to see, with [`places`] for it. Sets `waited` if nothing was ready
/// at once.
pub(crate) fn scan(
    fds: &mut [pollfd],
    shadow: &mut [pollfd],
    deadline: Option<u64>,
    mask: Option<&u64>,
    waited: &mut bool,
) -> Outcome {
    upkeep::look_after();
    match look(fds, shadow) {
        Err(errno) => Outcome::Fail(errno),
        Ok(0) => {
            *waited = true;
            scratch::with(fds.len(), None, |places| sleep_until_ready(fds, shadow, &Held::new(places), deadline, mask))
        }
        Ok(ready) => Outcome::Done(ready),
    }
}

/// Goes on after a look that found nothing.
fn sleep_until_ready(
    fds: &mut [pollfd],
    shadow: &mut [pollfd],
    held: &Held<'_>,
    deadline: Option<u64>,
    mask: Option<&u64>,
) -> Outcome {
    let mut patience = Patience::until(deadline);
    let mut looked = true;
    loop {
        if !core::mem::take(&mut looked) {
            match look(fds, shadow) {
                Err(errno) => return Outcome::Fail(errno),
                Ok(0) if deadline != Some(0) && patience.is_over() => return Outcome::OK,
                Ok(0) => {}
                Ok(ready) => return Outcome::Done(ready),
            }
        }
        if follow::catch_up() {
            continue;
        }
        if deadline == Some(0) {
            if ask_after_peers(fds, shadow) {
                continue;
            }
            return match mask.map_or(Ok(()), let_signals_in) {
                Ok(()) => Outcome::OK,
                Err(errno) => Outcome::Fail(errno),
            };
        }
        // A call with its own signal mask must have it in force while it waits, which only the kernel can do.
        if mask.is_none() {
            match spin::spin(fds, shadow, &mut patience) {
                Spun::News => match count_ready(fds) {
                    0 => continue,
                    ready => return Outcome::Done(ready),
                },
                Spun::Signal => return Outcome::fail(libc::EINTR),
                Spun::Nothing => {}
            }
        }
        let poller = Poller::enter();
        // A handler that comes during the preparations may jump out as well.
        let sleep = || asleep::sleep(fds, shadow, held, &mut patience, deadline, mask);
        match held.while_asleep(|| poller.while_asleep(sleep)) {
            None => {}
            Some((Woken::Ready(found), by_edges)) => {
                let in_vain = asleep::heard(fds, shadow, held, &patience, by_edges);
                if fills_all(fds, shadow, held) {
                    merge(fds, shadow);
                    match count_ready(fds) {
                        0 => {}
                        ready => return Outcome::Done(ready),
                    }
                }
                let rest = || rest(found, in_vain, &mut patience, mask);
                if let Err(errno) = held.while_asleep(|| poller.while_asleep(rest)) {
                    return Outcome::Fail(errno);
                }
            }
            Some((Woken::TimedOut, _)) if !patience.is_over() => {}
            Some((Woken::TimedOut, _)) => {
                spin::slept(fds, &patience, false);
                return match look(fds, shadow) {
                    Ok(ready) => Outcome::Done(ready),
                    Err(errno) => Outcome::Fail(errno),
                };
            }
            // poll(2) and select(2) are never restarted after a handler (signal(7)).
            Some((Woken::Signal { .. }, _)) => return Outcome::fail(libc::EINTR),
            Some((Woken::Failed(errno), _)) => return Outcome::Fail(errno),
        }
    }
}

/// Whether what ended a sleep and the lanes' rings tell all that there is to tell: which entries are lanes, and which
/// are listeners, and so whose further descriptors the kernel's answers are, has not changed meanwhile. Fills in what
/// lanes have to say; what the kernel says of their anchors is no answer to the app.
fn fills_all(fds: &mut [pollfd], shadow: &mut [pollfd], held: &Held<'_>) -> bool {
    let mut listeners = 0;
    fds.iter_mut().zip(shadow).enumerate().all(|(index, (entry, place))| {
        let desc = table::get(entry.fd);
        if let Some(lane) = desc.filter(|desc| desc.is_lane()) {
            place.revents = 0;
            let revents = readiness(entry).filter(|_| held.holds(index, lane));
            entry.revents = revents.unwrap_or(0);
            return revents.is_some();
        }
        // What was a lane when the question was laid out, if only for that moment, was not asked about for what it is
        // now.
        let is_asked = place.fd == entry.fd && place.events == entry.events;
        is_asked
            && match desc {
                Some(desc) if desc.kind() == Kind::Listener => {
                    listeners += 1;
                    listeners == 1 && held.holds(index, desc)
                }
                Some(desc) => desc.kind() == Kind::Tcp && held.holds_none(index),
                None => held.holds_none(index),
            }
    })
}

/// Ticks between two questions after the same peer: a twentieth of a millisecond or so.
const ASK_TICKS: u64 = 125_000;

/// A peer that was killed, or closed while others still seemed to hold its end, has told nobody but the kernel, which a
/// call that does not wait would never ask. So it is asked now and then. Whether anything was heard.
fn ask_after_peers(fds: &[pollfd], shadow: &mut [pollfd]) -> bool {
    let now = ticks();
    let mut due = false;
    for (entry, place) in fds.iter().zip(&mut *shadow) {
        *place = pollfd { fd: -1, events: 0, revents: 0 };
        let Some(desc) = table::get(entry.fd).filter(|desc| desc.is_lane()) else { continue };
        if now.wrapping_sub(desc.pace.looked()) > ASK_TICKS {
            desc.pace.look(now);
            place.fd = entry.fd;
            due = true;
        }
    }
    let asked = shadow.get_mut(..fds.len()).filter(|_| due);
    let Some(Ok(1..)) = asked.map(kernel::poll_at_once) else { return false };
    let mut heard = false;
    for (entry, _) in fds.iter().zip(&*shadow).filter(|(_, place)| place.revents != 0) {
        let Some(desc) = table::get(entry.fd).filter(|desc| desc.is_lane()) else { continue };
        // Asked again with the connection pinned: the number may have led to another one.
        let Some(_pin) = guards::pin(entry.fd, desc) else { continue };
        let revents = kernel::poll_now(entry.fd, 0);
        if revents != 0 && table::leads_to(entry.fd, desc) && desc.is_lane() {
            let (Next::Again | Next::Kernel) = io::kernel_said(entry.fd, desc, revents);
            heard = true;
        }
    }
    heard
}

/// Fills in `revents` of all entries without waiting. Returns how many have some.
fn look(fds: &mut [pollfd], shadow: &mut [pollfd]) -> Result<isize, Errno> {
    let mut foreign = false;
    for entry in fds.iter_mut() {
        entry.revents = 0;
        match readiness(entry) {
            Some(revents) => entry.revents = revents,
            None => foreign |= entry.fd >= 0,
        }
    }
    if foreign {
        let used = fill(fds, shadow, None);
        kernel::poll_at_once(asked_of(shadow, used))?;
        merge(fds, shadow);
    }
    let ready = count_ready(fds);
    if foreign && ready == 0 {
        // The kernel's part took most of the time of this look, so it is when most news of a busy lane comes. A call
        // that does not wait would tell of it only at the app's next one, after another look at the kernel.
        return Ok(look_at_ours(fds));
    }
    Ok(ready)
}

/// Of so many places, what the kernel is asked about: no more than there is.
fn asked_of(shadow: &mut [pollfd], used: usize) -> &mut [pollfd] {
    let used =
        shadow.get(..used).and_then(|places| places.iter().rposition(|place| place.fd >= 0)).map_or(0, |last| last + 1);
    shadow.get_mut(..used).unwrap_or_default()
}

/// Fills in `revents` of those entries that need no kernel; all are 0 before. Returns how many have some.
fn look_at_ours(fds: &mut [pollfd]) -> isize {
    for entry in fds.iter_mut() {
        entry.revents = readiness(entry).unwrap_or(0);
    }
    count_ready(fds)
}

fn count_ready(fds: &[pollfd]) -> isize {
    fds.iter().filter(|entry| entry.revents != 0).count() as isize
}

/// What we know about an entry without the kernel; `None` for the kernel's fds and for listeners.
fn readiness(entry: &pollfd) -> Option<i16> {
    let desc = table::get(entry.fd)?;
    match desc.kind() {
        Kind::Lane => {
            if entry.events & READABLE != 0 {
                desc.pace.poll();
            }
            desc.if_lane(|| io::poll_mask(desc) & (entry.events | ALWAYS))
        }
        Kind::Orphan => Some((POLLIN | POLLOUT | POLLERR | POLLHUP) & (entry.events | ALWAYS)),
        Kind::Epoll if epoll::is_ready(desc) => Some(READABLE & entry.events),
        Kind::Epoll => Some(0),
        _ => None,
    }
}

/// Lays out what the kernel is asked: place `i` for entry `i`, then the listeners' further descriptors. Lanes
/// take part only in a sleep, for which something is held.
fn fill(fds: &[pollfd], shadow: &mut [pollfd], held: Option<&Held<'_>>) -> usize {
    let (places, mut extra) = shadow.split_at_mut(fds.len());
    let mut used = fds.len();
    for (index, (entry, place)) in fds.iter().zip(places).enumerate() {
        *place = pollfd { fd: entry.fd, events: entry.events, revents: 0 };
        let Some(desc) = table::get(entry.fd) else { continue };
        match (desc.kind(), held) {
            (Kind::Lane, Some(held)) => {
                let asked = asked(entry, index, held);
                match desc.if_lane(|| anchor_events(desc, asked)).flatten() {
                    Some(events) => place.events = events,
                    None => place.fd = -1,
                }
            }
            (Kind::Lane | Kind::Orphan, _) | (Kind::Epoll, None) => place.fd = -1,
            (Kind::Listener, _) if entry.events & READABLE != 0 => {
                let count = FURTHER_FDS.min(extra.len());
                let (mine, rest) = core::mem::take(&mut extra).split_at_mut(count);
                for (place, fd) in mine.iter_mut().zip((desc.operations.get().further_fds)(desc)) {
                    *place = pollfd { fd: fd.unwrap_or(-1), events: POLLIN, revents: 0 };
                }
                used += count;
                extra = rest;
            }
            _ => {}
        }
    }
    if let Some(arrivals) = held.and_then(Held::arrivals)
        && let Some(place) = extra.first_mut()
    {
        *place = arrivals;
        used += 1;
    }
    used
}

/// What is asked of a lane itself. Bytes that are left unread by somebody who waits for urgent ones alone would end
/// every sleep at once.
fn asked(entry: &pollfd, index: usize, held: &Held<'_>) -> i16 {
    if is_urgent_alone(entry.events) && held.hears_arrivals(index) {
        return entry.events & !POLLPRI | POLLRDHUP;
    }
    entry.events
}

/// What to ask of an anchor when a lane is asked for `events`; `None` when the anchor has nothing to tell any
/// more. A half-close that is known already would end every sleep at once. Both, once known, stay so: arming finds
/// what they mean for the app. Room comes and goes, and is always asked for: arming has plugged the anchor, or found
/// room.
fn anchor_events(desc: &Desc, events: i16) -> Option<i16> {
    let side = desc.side();
    if side.is(state::PEER_CLOSED | state::RESET) {
        return None;
    }
    let mut ask = 0;
    if events & (READABLE | POLLPRI | POLLRDHUP) != 0 && !side.is(state::PEER_FIN | state::SHUT_RD) {
        ask |= POLLRDHUP | (events & POLLIN);
        if events & (POLLRDNORM | POLLPRI) != 0 {
            ask |= POLLIN;
        }
    }
    if events & WRITABLE != 0 {
        ask |= POLLOUT;
    }
    Some(ask)
}

/// Takes the kernel's answers over for the entries it was asked about. A door or a client in it makes its
/// listener readable.
fn merge(fds: &mut [pollfd], shadow: &[pollfd]) {
    let (places, extra) = shadow.split_at(fds.len());
    let mut extra = extra.iter();
    for (entry, place) in fds.iter_mut().zip(places) {
        let Some(desc) = table::get(entry.fd) else {
            entry.revents |= place.revents;
            continue;
        };
        match desc.kind() {
            Kind::Lane | Kind::Orphan | Kind::Epoll => {}
            Kind::Listener if entry.events & READABLE != 0 => {
                entry.revents |= place.revents;
                let rung = extra.by_ref().take(FURTHER_FDS).filter(|place| place.revents & POLLIN != 0).count();
                if rung != 0 && (desc.operations.get().is_readable)(desc) {
                    entry.revents |= READABLE & entry.events;
                }
            }
            _ => entry.revents |= place.revents,
        }
    }
}

/// After a sleep in which the kernel `found` so many, and there was nothing to tell: the next one may find `in_vain` of
/// them again.
fn rest(found: usize, in_vain: usize, patience: &mut Patience, mask: Option<&u64>) -> Result<(), Errno> {
    let rested = match found {
        0 => false,
        _ if found == in_vain => {
            kernel::sleep_ms();
            true
        }
        _ => patience.woke_in_vain(),
    };
    // The kernel ends a sleep in vain before it lets a signal in.
    mask.filter(|_| rested).map_or(Ok(()), let_signals_in)
}

/// Arms all lanes for what is asked of them, each by its sleep where nobody else uses it.
fn arm<'a>(fds: &[pollfd], held: &Held<'_>, sleeper: impl Fn(usize) -> Sleeper<'a>) -> Armed {
    for (index, entry) in fds.iter().enumerate() {
        let Some(desc) = table::get(entry.fd) else { continue };
        let armed = match desc.kind() {
            // It came after what is held was held: others are to see that somebody sleeps on it.
            Kind::Lane | Kind::Epoll if !held.holds(index, desc) => Armed::Ready,
            Kind::Lane => arm_pinned(entry.fd, desc, entry.events, sleeper(index)),
            Kind::Epoll => epoll::cool(desc),
            _ => Armed::Sleep,
        };
        if armed == Armed::Ready {
            return Armed::Ready;
        }
    }
    Armed::Sleep
}

/// A lane that is none any more, or whose peer is at fault, counts as news: the next look shows what it means.
fn arm_pinned(fd: i32, desc: &'static Desc, events: i16, alone: Sleeper<'_>) -> Armed {
    let Some(_pin) = guards::pin(fd, desc).filter(|_| desc.is_lane()) else { return Armed::Ready };
    if io::pollers() > 1 {
        epoll::disturb_over(fd, desc);
    } else if desc.entries.load(Relaxed) != 0 {
        // What this thread itself has named it keeps nobody.
        epoll::disturb_sets_over(fd, desc);
    }
    arm_lane(fd, desc, events, Some(alone)).unwrap_or_else(|failure| {
        let (Next::Again | Next::Kernel) = io::fault(fd, desc, failure, 0);
        Armed::Ready
    })
}
