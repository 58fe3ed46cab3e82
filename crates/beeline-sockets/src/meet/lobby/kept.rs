//! Ends that a server keeps for their clients' next connections: [`super::super::standing`] has the rules.

use core::sync::atomic::{
    AtomicU32,
    Ordering::{AcqRel, Acquire, Relaxed, Release},
};

use beeline_lane::offer;
use beeline_lane::seat::{self, Rise};
use beeline_wire::Endpoint;

use crate::kernel;
use crate::meet::hello_io::{self, Waiting};
use crate::meet::pool::{self, PooledLane};
use crate::meet::strangers;
use crate::static_ref::StaticRef;

/// A hello that was said again.
#[derive(Clone, Copy)]
pub(in crate::meet) struct Again {
    pub lane: &'static PooledLane,
    /// The address that the client has this time.
    pub client: Endpoint,
}

/// Ends that a listener keeps: as many as a client, by default.
pub(super) const ENDS_MAX: usize = 128;

/// A place for one. Its lane's memory is the client's, which may be about to use it.
#[derive(Default)]
#[repr(C)]
pub(in crate::meet) struct End {
    lane: StaticRef<PooledLane>,
}

impl End {
    fn lane(&self) -> Option<&'static PooledLane> {
        self.lane.load(Acquire)
    }

    pub(super) fn anchor(&self) -> Option<i32> {
        self.lane().and_then(|lane| lane.stands.anchor())
    }

    /// Whether the anchor has `O_NONBLOCK`, where that is known.
    pub(super) fn is_nonblocking(&self) -> Option<bool> {
        self.lane().map(|lane| lane.stands.is_nonblocking())
    }

    /// The user of the client.
    pub(super) fn user(&self) -> u32 {
        self.lane().map_or(u32::MAX, |lane| lane.stands.peer().uid)
    }

    /// Whether the client has said hello again, and not taken it back.
    pub(super) fn look(&self) -> Waiting {
        let Some(anchor) = self.anchor() else { return Waiting::Gone };
        match hello_io::look_again(anchor) {
            Waiting::Message if self.is_withdrawn() => Waiting::Gone,
            seen => seen,
        }
    }

    /// Whether the client has taken its hello back.
    pub(super) fn is_withdrawn(&self) -> bool {
        self.lane().is_some_and(|lane| lane.memory().offer().load(Acquire) == offer::WITHDRAWN)
    }
}

/// All ends that a listener keeps. Used under its lock, except `count`, which is a hint.
#[repr(C)]
pub(in crate::meet) struct Ends {
    count: AtomicU32,
    /// Which place is given up next where all are taken.
    oldest: AtomicU32,
    places: [End; ENDS_MAX],
}

impl Ends {
    pub(super) fn begin(&self) {
        self.count.store(0, Relaxed);
        self.places.iter().for_each(|place| place.lane.store(None, Relaxed));
    }

    /// In the child of a `fork`: another thread may have been about to count one.
    pub(super) fn count_again(&self) {
        let kept = self.places.iter().filter(|place| place.lane().is_some()).count() as u32;
        if self.count.load(Relaxed) != kept {
            self.count.store(kept, Relaxed);
        }
    }

    pub(super) fn any(&self) -> bool {
        self.count.load(Relaxed) != 0
    }

    /// The end whose anchor has this hidden number.
    pub(in crate::meet) fn of(&self, hidden: i32) -> Option<&End> {
        if !self.any() {
            return None;
        }
        self.places.iter().find(|place| place.anchor() == Some(hidden))
    }

    /// Keeps an end, for one that is silent if there is no room; false if there is none even then.
    pub(super) fn add(&self, lane: &'static PooledLane, set: i32) -> bool {
        // The bells of the connection that has ended would call somebody.
        let Some(anchor) = lane.stands.anchor().filter(|anchor| hello_io::is_quiet(*anchor)) else { return false };
        // Only one can be claimed at a time.
        if lane.stands.seat() != seat::NONE && !self.give_up_unclaimed(Some(set)) {
            return false;
        }
        let free = self.places.iter().find(|place| place.lane().is_none());
        let place = free.or_else(|| {
            let index = self.oldest.fetch_add(1, Relaxed) as usize % ENDS_MAX;
            let oldest = self.places.get(index).filter(|oldest| oldest.look() != Waiting::Message)?;
            self.drop_end(oldest, Some(set));
            Some(oldest)
        });
        let Some(place) = place else { return false };
        // One that was kept before has been told.
        if !lane.stands.is_again() {
            strangers::see_urgent(anchor);
        }
        let event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: anchor as u64 };
        if kernel::epoll_ctl(set, libc::EPOLL_CTL_ADD, anchor, Some(event)).is_err() {
            return false;
        }
        place.lane.store(Some(lane), Release);
        self.count.fetch_add(1, AcqRel);
        true
    }

    /// Takes an end out whose client says hello again, with its hello. `None` if there is none: the end stays.
    pub(super) fn take_if_said(&self, end: &End, set: Option<i32>) -> Option<Again> {
        let lane = end.lane()?;
        let client = lane.stands.anchor().and_then(hello_io::take_again)?;
        self.leave(end, set);
        lane.stands.close_anchor();
        Some(Again { lane, client })
    }

    /// Gives an end up.
    pub(in crate::meet) fn drop_end(&self, end: &End, set: Option<i32>) {
        if let Some(lane) = end.lane() {
            self.leave(end, set);
            // Before the client is told: it shall find nobody.
            lane.stands.close_anchor();
            if lane.stands.seat() != seat::NONE {
                seat::abandon(lane.memory().seat(), lane.stands.seat());
            }
            pool::drop_kept_anchor(lane);
        }
    }

    /// Gives all ends up.
    #[inline(always)]
    pub(super) fn drop_all(&self, set: Option<i32>) {
        if self.any() {
            self.drop_each(set);
        }
    }

    #[cold]
    fn drop_each(&self, set: Option<i32>) {
        self.places.iter().for_each(|end| self.drop_end(end, set));
    }

    /// The seat of the end that has one is taken from now on.
    pub(in crate::meet) fn sit(&self) {
        if let Some((_, lane)) = self.seated() {
            seat::sit(lane.memory().seat(), lane.stands.seat());
        }
    }

    /// The seat is left. The hidden anchor of the end, if a client has claimed it.
    pub(in crate::meet) fn rise(&self, set: Option<i32>) -> Option<i32> {
        let (end, lane) = self.seated()?;
        match seat::rise(lane.memory().seat(), lane.stands.seat()) {
            Rise::Unclaimed => None,
            Rise::Claimed => end.anchor(),
            Rise::Lost => {
                self.drop_end(end, set);
                None
            }
        }
    }

    /// The hidden anchor of the end, if a client has claimed it.
    pub(in crate::meet) fn claimed(&self) -> Option<i32> {
        let (end, lane) = self.seated()?;
        end.anchor().filter(|_| seat::is_claimed(lane.memory().seat(), lane.stands.seat()))
    }

    /// Gives the end with a seat up, unless a client has claimed it. False if one has.
    pub(in crate::meet) fn give_up_unclaimed(&self, set: Option<i32>) -> bool {
        let is_claimed = self.rise(set).is_some();
        if !is_claimed && let Some((end, _)) = self.seated() {
            self.drop_end(end, set);
        }
        !is_claimed
    }

    /// The end that has a seat, if one has.
    fn seated(&self) -> Option<(&End, &'static PooledLane)> {
        let seated = |end| End::lane(end).filter(|lane| lane.stands.seat() != seat::NONE).map(|lane| (end, lane));
        self.places.iter().find_map(seated)
    }

    /// Their clients find them dead.
    pub(super) fn hang_up(&self) {
        for anchor in self.places.iter().filter_map(End::anchor) {
            let _ = kernel::shutdown(anchor, libc::SHUT_RDWR);
        }
    }

    fn leave(&self, end: &End, set: Option<i32>) {
        // Its file may stay open under another number, so the set would not forget it by itself.
        if let (Some(set), Some(anchor)) = (set, end.anchor()) {
            let _ = kernel::epoll_ctl(set, libc::EPOLL_CTL_DEL, anchor, None);
        }
        end.lane.store(None, Release);
        self.count.fetch_sub(1, AcqRel);
    }
}
