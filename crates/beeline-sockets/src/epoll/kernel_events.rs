//! What the kernel has to say of a set, and what becomes of it.

use core::sync::atomic::Ordering::Relaxed;

use libc::epoll_event;

use super::bells::drain_bells;
use super::events::{EPOLLET, EPOLLHUP, EPOLLIN, EPOLLONESHOT};
use super::faults::hear;
use super::limits::LOOK_TICKS_MIN;
use super::listeners::{arm_pair_again, disarm_pair};
use super::lying;
use super::nested::{any_own_ready, any_ready};
use super::order::KernelEvents;
use super::readiness::{edge_sum, readiness};
use super::registration::{deregister_dead, make_exact, pause, pause_hung, was_parked};
use super::set::{Entry, Set};
use super::set::{is_shared, knows_all_members, open_fd, set_of};
use super::wait::Call;
use super::waker::WAKER_DATA;
use crate::desc::{Desc, Kind, Pin};
use crate::io::{self, Next};
use crate::side::state;
use crate::wait::ticks;
use crate::{kernel, table};

/// Takes what the kernel has to say about the lanes of a set that has no other members, for somebody who watches the
/// set: they become hot. At a depth other than 0 the locks of sets around it may be held.
pub(super) fn take_kernel_events(epfd: i32, set: &'static Set, depth: u32) {
    let mut events = [epoll_event { events: 0, u64: 0 }; 16];
    let (pointer, room) = (events.as_mut_ptr(), events.len());
    let mut call = Call::new(epfd, set, pointer, room);
    call.is_inside = depth != 0;
    // SAFETY: room for that many events.
    let count = unsafe { kernel::epoll_now(epfd, pointer, room as i32) };
    call.translate(count.unwrap_or(0));
}

/// What the kernel says of a lane's anchor, which stands under this number in the set.
struct Heard {
    /// Its number may lead elsewhere by now, and a description that is given back, too.
    pin: Pin,
    fd: i32,
    revents: i16,
}

/// What has become of a kernel event.
struct Dispatched {
    /// Whether something is hot that was not.
    heated: bool,
    /// Whether it goes to the app as it is.
    is_for_app: bool,
}

/// What a kernel event has told of lanes.
#[derive(Default)]
struct News {
    /// Whether something is hot that was not.
    heated: bool,
    /// Lanes whose anchor has news of an end: those are told without the set's lock.
    told: [Option<Heard>; 4],
    /// A hot lane that was rung.
    rung: Option<(i32, &'static Desc)>,
    /// The stamp of a lane's peer.
    stamp: Option<u64>,
    /// Whether room was told of that there is not.
    in_vain: bool,
    /// Whether the kernel may have meant the anchor of a lane, which has something to report, where it may have meant
    /// another member, too.
    is_due: bool,
}

impl Call {
    /// Goes through `count` kernel events behind the filled part of the app's array: those of lanes only make
    /// the lanes hot, the others stay. Tells whether a lane became hot.
    ///
    /// A set whose kernel members have news is asked more often.
    pub(super) fn translate(&mut self, count: usize) -> bool {
        let mut heated = false;
        let begin = self.filled;
        let alone = count == 1 && self.own.is_none();
        for index in begin..begin + count {
            // SAFETY: the kernel has just filled these places; the struct is packed, so it is read whole.
            let event = unsafe { self.events.add(index).read_unaligned() };
            let dispatched = self.dispatch(event, alone);
            heated |= dispatched.heated;
            if dispatched.is_for_app {
                self.note_own(event);
                self.push(event);
            }
        }
        self.ours |= heated;
        self.set.looked.store(self.number, Relaxed);
        if self.filled != begin {
            self.set.busy_waits.store(0, Relaxed);
        }
        match heated || self.filled != begin {
            true => self.set.look_ticks.store(LOOK_TICKS_MIN, Relaxed),
            false => self.rest(),
        }
        heated
    }

    /// Deals with a kernel event. One that is told `alone` has none to be put in order with.
    fn dispatch(&mut self, event: epoll_event, alone: bool) -> Dispatched {
        if event.u64 == WAKER_DATA {
            return Dispatched { heated: true, is_for_app: false };
        }
        let guard = self.set.lock.lock();
        let mut known = false;
        let mut foreign = false;
        let mut others = false;
        let mut news = News::default();
        let mut listener = None;
        // With equal data the kernel does not say which member it means, parked ones among them, and an end may be that
        // of a connection that had the number before: then members are asked themselves.
        let parked = was_parked(self.epfd, self.set, event.u64)
            | self.set.departed.since(self.departures, event.u64, knows_all_members(self.set));
        let mut members = u32::from(parked);
        self.set.with_data(event.u64, |_, _| members += 1);
        self.set.with_data(event.u64, |fd, entry| {
            known = true;
            match entry.desc().map(|desc| (desc, desc.kind())) {
                // The kernel no longer watches it: this is about another member with the same data.
                Some((_, Kind::Lane)) if entry.dead.load(Relaxed) => {}
                Some((desc, Kind::Lane)) => self.hear_of_lane(fd, entry, desc, event, members, &mut news),
                Some((desc, Kind::Listener)) => {
                    // Of a pair of one shot the second is fired when the first was reported.
                    let once = entry.events.load(Relaxed) & EPOLLONESHOT != 0;
                    if !entry.fired.load(Relaxed) && (once || !self.has_reported(event)) {
                        listener = Some((fd, desc));
                    }
                }
                Some((_, Kind::Epoll)) if entry.fired.load(Relaxed) => pause(self.epfd, fd, entry),
                Some((desc, Kind::Epoll)) => {
                    // An arrival that was reported already may be told by the kernel only now. What is the kernel's
                    // own inside is not counted there.
                    let told = set_of(desc).is_some_and(|inner| {
                        edge_sum(inner) == entry.seen.tail() && any_ready(inner, 1) && !any_own_ready(inner, 1)
                    });
                    if !told {
                        entry.seen.refresh();
                    }
                    self.set.make_hot(fd, entry);
                    news.heated = true;
                }
                _ => {
                    others = true;
                    if members == 1 && !self.is_inside && entry.events.load(Relaxed) & EPOLLONESHOT != 0 {
                        entry.spent.store(true, Relaxed);
                    }
                }
            }
        });
        let is_clear = !(parked || news.is_due) || !knows_all_members(self.set);
        foreign |= others && (is_clear || may_mean_another(self.set, event.u64, news.is_due));
        drop(guard);
        if let Some(stamp) = news.stamp.filter(|_| !alone) {
            self.own.get_or_insert(KernelEvents::NONE).lane_at(stamp);
        }
        self.told_in_vain |= news.in_vain;
        let heated = news.heated;
        for Heard { pin, fd, revents } in news.told.into_iter().flatten() {
            let desc = pin.desc();
            if desc.is_lane() {
                let (Next::Again | Next::Kernel) = io::kernel_said(open_fd(fd, desc), desc, revents);
            }
        }
        if self.is_inside {
            // What follows is about sets that nobody watches, and takes locks.
            return Dispatched { heated, is_for_app: false };
        }
        if let Some((fd, desc)) = news.rung {
            drain_bells(self.set, fd, desc);
        }
        if let Some((fd, desc)) = listener {
            let fires = self.listener_fires(fd, desc, event);
            foreign |= fires;
            self.ours |= fires;
        }
        let is_for_app = foreign || !known && !parked && !self.set.has_strays.load(Relaxed);
        Dispatched { heated, is_for_app }
    }

    /// Notes what a kernel event says of a lane, and makes it hot. The set is locked.
    fn hear_of_lane(
        &self,
        fd: i32,
        entry: &Entry,
        desc: &'static Desc,
        event: epoll_event,
        members: u32,
        news: &mut News,
    ) {
        news.stamp = Some(desc.lane().stamp(desc.end().peer()));
        let harmless = event.events & !(EPOLLIN | libc::EPOLLOUT as u32) == 0;
        let events = match members {
            1 if harmless => event.events,
            _ => present_events(fd, desc, entry),
        };
        if events == 0 {
            return;
        }
        // One that has fired is watched until it was told of in vain.
        let watched = entry.registered.events().unwrap_or(!0) | EPOLLHUP | libc::EPOLLERR as u32;
        news.is_due |= members != 1 && events & event.events & watched & !stays(self.set, entry, desc) != 0;
        if knows_all_members(self.set) {
            desc.pace.look(ticks());
        }
        let dead = io::tells_of_end(desc, events as i16);
        if events & EPOLLHUP != 0 && !dead {
            entry.hung.store(true, Relaxed);
        }
        if entry.fired.load(Relaxed) {
            desc.side().rx.note_bell();
            // No pause keeps the kernel from telling of a dead anchor.
            if !dead {
                let pause = if event.events == EPOLLHUP { pause_hung } else { pause };
                pause(self.epfd, fd, entry);
                return;
            }
        } else {
            let is_known = hears_of_known_room(self.set, entry, desc, events);
            make_exact(self.epfd, self.set, fd, entry);
            if is_known && events == libc::EPOLLOUT as u32 {
                return;
            }
            let was_hot = entry.heat.is_hot();
            self.set.make_hot(fd, entry);
            desc.show_cpu();
            news.heated |= !was_hot;
            news.in_vain |= events & libc::EPOLLOUT as u32 != 0 && !dead && io::room_is_untold(desc);
            if events & EPOLLIN != 0 {
                desc.side().rx.note_bell();
                news.rung = Some((fd, desc)).filter(|_| was_hot && !lying::is_told_once(entry));
            }
        }
        let grave = events & !(EPOLLIN | libc::EPOLLOUT as u32);
        if grave == 0 {
            return;
        }
        news.heated = true;
        match news.told.iter_mut().find(|place| place.is_none()) {
            Some(place) if !self.is_inside => {
                *place = Some(Heard { pin: desc.pin(), fd, revents: grave as i16 });
            }
            _ => hear(self.set, fd, entry, desc, grave as i16),
        }
        if dead {
            deregister_dead(self.epfd, fd, entry);
        }
    }

    /// Whether the app's array holds this event of a listener already: its door and its queue report alike.
    fn has_reported(&self, event: epoll_event) -> bool {
        (0..self.filled).any(|index| {
            // SAFETY: places below `filled` were written by us or the kernel.
            let other = unsafe { self.events.add(index).read_unaligned() };
            other.u64 == event.u64 && other.events & EPOLLIN != 0
        })
    }

    /// Whether a listener's event goes to the app: not if its door rang in vain. Asking a door may find clients that
    /// have not said hello, which changes sets; so the set is not locked.
    fn listener_fires(&self, fd: i32, desc: &'static Desc, event: epoll_event) -> bool {
        let in_queue = || kernel::poll_now(desc.fd.load(Relaxed), libc::POLLIN) != 0;
        let in_vain = event.events & EPOLLIN != 0 && !(desc.operations.get().is_readable)(desc) && !in_queue();
        let _guard = self.set.lock.lock();
        let is_it = |entry: &&Entry| entry.desc() == Some(desc);
        let Some(entry) = self.set.find(fd).filter(is_it) else { return false };
        if in_vain {
            if entry.events.load(Relaxed) & EPOLLONESHOT != 0 && !entry.fired.load(Relaxed) {
                arm_pair_again(self.epfd, self.set, fd, entry);
            }
            return false;
        }
        if entry.events.load(Relaxed) & EPOLLONESHOT != 0 {
            if entry.fired.load(Relaxed) {
                return false;
            }
            disarm_pair(self.epfd, fd, entry);
        }
        true
    }
}

/// What the anchor of a member shows whatever happens: that both of its halves are shut, that nothing more is to be
/// read, or bells that were left there.
fn stays(set: &Set, entry: &Entry, desc: &Desc) -> u32 {
    let side = desc.side();
    let is_read = side.is(state::PEER_FIN | state::SHUT_RD) && io::unread_hint(desc, side) == 0;
    let over = match is_read {
        true => EPOLLIN | libc::EPOLLRDHUP as u32,
        false if lying::may_be_told_once(entry) && readiness(set, entry, 0) == 0 => EPOLLIN,
        false => 0,
    };
    if entry.hung.load(Relaxed) { over | EPOLLHUP } else { over }
}

/// Whether the kernel tells a member that counts edges of room that was told of before. It does so for each bell that
/// the peer takes out, once room was awaited; from the second time on without room between it is not to any more. Room
/// that comes again soon, as it does in a stream, has it go on.
fn hears_of_known_room(set: &Set, entry: &Entry, desc: &Desc, events: u32) -> bool {
    // Another process that has the set may wait for the room.
    if events & libc::EPOLLOUT as u32 == 0 || entry.events.load(Relaxed) & EPOLLET == 0 || is_shared(set) {
        return false;
    }
    let is_known =
        !entry.seen.is_fresh() && desc.pace.fulls() == entry.seen.fulls() && io::writable_hint(desc, desc.side());
    if entry.known_room.swap(is_known, Relaxed) && is_known {
        // Whoever finds the ring full after that look has the kernel watch again, behind the set's lock.
        entry.kernel_out.store(false, Relaxed);
    }
    is_known
}

/// Whether the kernel may mean a member that is no lane by an event with this data. Of one shot it tells but once.
/// A member whose number was closed is still the kernel's if its file has a duplicate, and cannot be asked: it is meant
/// where no lane is. The set is locked.
fn may_mean_another(set: &Set, data: u64, is_lane_due: bool) -> bool {
    let is_ours = |desc: &'static Desc| matches!(desc.kind(), Kind::Lane | Kind::Listener | Kind::Epoll);
    let mut may = false;
    set.with_data(data, |fd, entry| {
        let desc = entry.desc();
        if may || entry.fired.load(Relaxed) || desc.is_some_and(is_ours) {
            return;
        }
        let events = entry.events.load(Relaxed);
        let revents = kernel::poll_now(desc.map_or(fd, |desc| open_fd(fd, desc)), events as i16);
        let leads_to_lane = desc.is_none() && table::get(fd).is_some_and(Desc::is_lane);
        let is_ready = if leads_to_lane || revents & libc::POLLNVAL != 0 { !is_lane_due } else { revents != 0 };
        may = is_ready || is_lane_due && events & EPOLLONESHOT != 0 && !entry.spent.load(Relaxed);
    });
    may
}

/// What the kernel reports of a lane's anchor now, of what it was told to watch.
fn present_events(fd: i32, desc: &'static Desc, entry: &Entry) -> u32 {
    let room = entry.registered.events().unwrap_or(0) as i16 & libc::POLLOUT;
    u32::from(kernel::poll_now(open_fd(fd, desc), libc::POLLIN | libc::POLLRDHUP | room) as u16)
}
