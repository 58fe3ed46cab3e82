//! Lanes that a client offers to a server.

use core::sync::atomic::Ordering::{Relaxed, Release};

use beeline_lane::{End, LaneMemory, flags, offer};
use beeline_shm::{Fd, memfd};
use beeline_stats::tunables::option;
use beeline_stats::{Counter, Reason};
use beeline_wire::ConnName;

use super::{CLIENT, LANES, LOCK, PooledLane, SERVER, SPARE, drop_idle, keep_idle};
use crate::limits::{self};
use crate::trust::Peer;
use crate::{hidden, stats};

/// Idle lanes of a client up to which one whose server has a seat is left to stand.
const SEATED_MAX: u32 = 16;

impl PooledLane {
    /// The owner of the listener that the client has met, if that is known.
    #[must_use]
    pub fn owner(&self) -> Option<u32> {
        self.owner.load(Relaxed).checked_sub(1)
    }
}

/// A client's lane, ready to be offered, with the memfd to send.
pub struct Offer {
    pub lane: &'static PooledLane,
    pub memfd: i32,
    /// Whether the memfd was hidden before it was sent.
    pub(super) aside: bool,
    /// Whether the lane is as its last connection has left it, and stands.
    pub(super) is_intact: bool,
    /// Who has had it last under the name of this connection, and so may have it without a hello.
    pub(super) known_to: Option<Peer>,
    /// Whether that was made known: [`Offer::leave_unsaid`].
    pub(super) is_unsaid: bool,
}

impl Offer {
    /// A lane that nobody knows by a name.
    pub(super) fn of(lane: &'static PooledLane, memfd: i32) -> Offer {
        Offer { lane, memfd, aside: false, is_intact: false, known_to: None, is_unsaid: false }
    }

    /// Makes a lane that stands as new ([`LaneMemory::reset`]): it is the next connection's.
    pub fn begin_again(&mut self) {
        self.is_intact = false;
        self.lane.memory().reset();
    }

    /// The owner of the listener whose door is entered.
    pub fn know_owner(&self, uid: u32) {
        self.lane.owner.store(uid.wrapping_add(1), Relaxed);
    }

    /// Who has had the lane last, if both ends know it by the name of this connection.
    #[must_use]
    pub fn known_to(&self) -> Option<Peer> {
        self.known_to
    }

    /// From here on a server that knows the lane may take it without a hello, by this name: all is as it is to be for
    /// one.
    pub fn leave_unsaid(&mut self, name: &ConnName) {
        self.is_unsaid = true;
        self.lane.memory().offer().store(offer::named(name.sum()), Release);
    }

    /// Whether the hello is to be said: no server has taken it for said.
    pub(crate) fn is_to_be_said(&self) -> bool {
        !self.is_unsaid || offer::say(self.lane.memory().offer())
    }

    /// Whether a server has had the lane before.
    #[must_use]
    pub fn was_served(&self) -> bool {
        self.lane.served.load(Relaxed) != 0
    }

    /// Takes the memfd out of the program's way, and of a child that is forked, where it is not sent at once.
    #[must_use]
    pub fn step_aside(self) -> Offer {
        let Offer { lane, memfd, aside, .. } = self;
        if lane.memfd.get().is_some() {
            return Offer { aside, ..Offer::of(lane, memfd) };
        }
        let memfd = hidden::hide(memfd);
        lane.memfd.set(Some(memfd));
        Offer { aside: true, ..Offer::of(lane, memfd) }
    }

    /// The hello was sent: the memfd is kept for the next one, or closed. Returns the lane.
    pub fn sent(self) -> &'static PooledLane {
        let Offer { lane, memfd, aside, .. } = self;
        let kept = lane.memfd.get().is_some();
        let used = lane.served.swap(1, Relaxed) != 0;
        stats::count(if used { Counter::LanesReused } else { Counter::LanesCreated }, 1);
        if !kept {
            lane.keep_memfd(Fd::own(memfd));
        } else if aside && !hidden::keep_hidden(memfd) {
            lane.memfd.set(None);
        }
        lane
    }

    /// The client gives up at the door, where nothing was said.
    pub fn give_up(self) {
        if !self.is_unsaid {
            return self.withdraw();
        }
        let (lane, memory) = (self.lane, self.lane.memory());
        if !offer::take_back(memory.offer()) {
            // The server's program has it, and is not to take this for the end of what a client had to say.
            memory.set_flags(End::Client, flags::CLOSED | flags::RESET);
        }
        lane.spoil();
        super::retire(lane, End::Client, false);
    }

    /// The hello was not sent: the lane is there for the next connection, if there are numbers to spare for its memfd.
    pub fn withdraw(self) {
        let Offer { lane, memfd, is_intact, is_unsaid, .. } = self;
        if is_unsaid {
            // Nobody has heard it, as nobody has come to the door.
            offer::take_back(lane.memory().offer());
        }
        if lane.memfd.get().is_none() {
            lane.memfd.set(Some(hidden::hide(memfd)));
        }
        let surplus = {
            let _guard = LOCK.lock();
            if lane.served.load(Relaxed) != 0 {
                // As its last server left it, but that one keeps no end of it any more.
                if !is_intact {
                    lane.memory().set_flags(End::Server, flags::RELEASED);
                }
                keep_idle(&CLIENT, lane, lane.is_private())
            } else if SPARE.count.load(Relaxed) == 0 && lane.is_private() && hidden::may_keep() {
                SPARE.push(lane);
                None
            } else {
                Some(lane)
            }
        };
        if let Some(lane) = surplus {
            lane.discard();
        }
    }
}

/// The idle lane that has had the last connection of this name to the listener `cookie`, as new
/// ([`LaneMemory::reset`]).
#[must_use]
pub fn lane_of_name(cookie: u64, name: &ConnName) -> Option<Offer> {
    let lane = {
        let _guard = LOCK.lock();
        CLIENT.take(|lane| {
            let knows = lane.knows(name).is_some();
            let is_it = knows && lane.cookie.load(Relaxed) == cookie && lane.is_plain();
            if knows && !is_it {
                // It is another one's name now.
                lane.stands.forget();
            }
            is_it
        })?
    };
    let known_to = lane.knows(name);
    anew(lane, cookie).map(|offer| Offer { known_to, ..offer })
}

/// A lane for a connection to the listener `cookie`: a new one, or one that is as new ([`LaneMemory::reset`]).
///
/// # Errors
/// Why there is none.
pub fn client_lane(cookie: u64) -> Result<Offer, Reason> {
    // Without its memfd it cannot be offered.
    let has_memfd = |lane: &PooledLane| lane.memfd().is_some();
    let fits = |lane: &PooledLane| lane.cookie.load(Relaxed) == cookie && has_memfd(lane) && lane.is_released();
    let used = {
        let _guard = LOCK.lock();
        // One that stands is for those whom its anchor serves: with a seat maybe for the next connection, if not for
        // this one.
        let may_stay = |lane: &PooledLane| lane.has_seat() && CLIENT.count.load(Relaxed) < SEATED_MAX;
        CLIENT
            .take(|lane| lane.stands.anchor().is_none() && fits(lane))
            .or_else(|| SPARE.take(has_memfd))
            .or_else(|| CLIENT.take_last(|lane| fits(lane) && !may_stay(lane)))
    };
    if let Some(offer) = used.and_then(|lane| anew(lane, cookie)) {
        return Ok(offer);
    }
    let (memory, memfd) = match fresh() {
        Ok(fresh) => fresh,
        Err(reason) => {
            let last = {
                let _guard = LOCK.lock();
                CLIENT.take_last(fits)
            };
            return last.and_then(|lane| anew(lane, cookie)).ok_or(reason);
        }
    };
    let Some(lane) = LANES.take() else {
        drop_fresh(memory);
        return Err(Reason::MemoryShort);
    };
    lane.fill(memory, memfd::identify(memfd.get()).map(|(id, _)| id).unwrap_or_default());
    lane.cookie.store(cookie, Relaxed);
    Ok(Offer::of(lane, memfd.give_away()))
}

/// An idle lane, which is in no list, for a new connection.
fn anew(lane: &'static PooledLane, cookie: u64) -> Option<Offer> {
    let memfd = lane.memfd()?;
    lane.stands.close_anchor();
    lane.stands.clear();
    lane.memory().reset();
    lane.cookie.store(cookie, Relaxed);
    lane.owner.store(0, Relaxed);
    Some(Offer::of(lane, memfd))
}

/// Makes the memory of a new lane, if the process's limits allow one.
fn fresh() -> Result<(LaneMemory, Fd), Reason> {
    if super::limits::address_space_is_limited() {
        return Err(Reason::AddressSpaceLimited);
    }
    let wanted = crate::live(option::ring_bytes) as u32;
    let ring_bytes = match limits::ring_bytes(wanted) {
        // What is idle has no claim before what is to be used.
        Err(_) if drop_idle(&CLIENT) | drop_idle(&SERVER) => limits::ring_bytes(wanted)?,
        result => result?,
    };
    let (memory, memfd) = LaneMemory::create(ring_bytes).map_err(super::limits::memory_reason)?;
    if limits::unlock(memory) {
        drop_fresh(memory);
        return Err(Reason::MemoryLocked);
    }
    Ok((memory, memfd))
}

fn drop_fresh(memory: LaneMemory) {
    // SAFETY: the fresh mapping has no user.
    unsafe { memory.unmap() };
}
