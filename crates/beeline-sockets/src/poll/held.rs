//! What a call to poll(2) or select(2) that sleeps keeps.
//!
//! 1. The kernel's poll keeps the files that it sleeps on, so that none is closed before it returns, and when it wakes
//!    it looks at what the numbers lead to then. So does a call here: it keeps the descriptions of its lanes, listeners
//!    and sets ([`crate::linger`]).
//! 2. Whoever waits for urgent bytes alone may do so on a connection that has others unread, whose anchor is readable
//!    all the time. What counts for it are *arrivals*: they come as edges, through an epoll set that lives as long as
//!    the call. Where none is to be had the call looks every millisecond.

use core::cell::Cell;

use libc::{POLLIN, POLLPRI, epoll_event, pollfd};

use super::scratch::NONE;
use crate::desc::{Desc, Kind};
use crate::io::READABLE;
use crate::{Errno, cancel, guards, hidden, kernel, table};

/// See the module.
pub(super) struct Held<'a> {
    places: &'a [Cell<Option<&'static Desc>>],
    /// The epoll set of rule 2, hidden; -1 if there is none.
    arrivals: Cell<i32>,
}

/// Whether urgent bytes are asked for and other bytes are not.
pub(super) fn is_urgent_alone(events: i16) -> bool {
    events & (READABLE | POLLPRI) == POLLPRI
}

impl<'a> Held<'a> {
    /// Holds nothing yet; there is one place for each entry.
    pub(super) fn new(places: &'a mut [Option<&'static Desc>]) -> Self {
        Self { places: Cell::from_mut(places).as_slice_of_cells(), arrivals: Cell::new(-1) }
    }

    /// Before a sleep: keeps what the entries are about, and forgets the arrivals so far.
    pub(super) fn prepare(&self, fds: &[pollfd]) {
        for (place, entry) in self.places.iter().zip(fds) {
            let ours = |desc: &&'static Desc| matches!(desc.kind(), Kind::Lane | Kind::Listener | Kind::Epoll);
            let desc = table::get(entry.fd).filter(ours);
            if place.get().map(core::ptr::from_ref) == desc.map(core::ptr::from_ref) {
                continue;
            }
            if let Some(old) = place.take() {
                old.let_go();
            }
            place.set(desc.and_then(|desc| guards::pin(entry.fd, desc)).map(Desc::hold));
        }
        if fds.iter().any(|entry| is_urgent_alone(entry.events)) {
            self.await_arrivals(fds);
        }
    }

    fn await_arrivals(&self, fds: &[pollfd]) {
        if self.arrivals.get() < 0 {
            self.arrivals.set(kernel::epoll_create().map_or(-1, hidden::hide));
        }
        let arrivals = self.arrivals.get();
        if arrivals < 0 {
            return;
        }
        let event = epoll_event { events: (libc::EPOLLIN | libc::EPOLLET) as u32, u64: 0 };
        for (entry, place) in fds.iter().zip(self.places.iter()) {
            if !place.get().is_some_and(Desc::is_lane) || !is_urgent_alone(entry.events) {
                continue;
            }
            match kernel::epoll_ctl(arrivals, libc::EPOLL_CTL_ADD, entry.fd, Some(event)) {
                // It may be there already.
                Ok(_) | Err(Errno(libc::EEXIST)) => {}
                Err(_) => {
                    self.arrivals.set(-1);
                    hidden::close_hidden(arrivals);
                    return;
                }
            }
        }
        let mut told = [epoll_event { events: 0, u64: 0 }; 8];
        // SAFETY: room for that many events.
        while unsafe { kernel::epoll_now(arrivals, told.as_mut_ptr(), told.len() as i32) } == Ok(told.len()) {}
    }

    /// How many lanes are kept.
    pub(super) fn lanes(&self) -> usize {
        self.places.iter().filter_map(Cell::get).filter(|desc| desc.is_lane()).count()
    }

    /// What is kept for the entry at `index`.
    pub(super) fn nth(&self, index: usize) -> Option<&'static Desc> {
        self.places.get(index)?.get()
    }

    /// Whether it is so for any of those that are kept.
    pub(super) fn any(&self, is_so: impl Fn(&Desc) -> bool) -> bool {
        self.places.iter().filter_map(Cell::get).any(is_so)
    }

    /// Whether the entry at `index` was about `desc` when the sleep began.
    pub(super) fn holds(&self, index: usize, desc: &Desc) -> bool {
        self.places.get(index).is_some_and(|place| place.get() == Some(desc))
    }

    /// Whether the entry at `index` was about nothing of ours when the sleep began.
    pub(super) fn holds_none(&self, index: usize) -> bool {
        self.places.get(index).is_some_and(|place| place.get().is_none())
    }

    /// Whether arrivals end the sleep of who waits for urgent bytes alone, as the entry at `index` does.
    pub(super) fn hears_arrivals(&self, index: usize) -> bool {
        self.arrivals.get() >= 0 && self.places.get(index).is_some_and(|place| place.get().is_some_and(Desc::is_lane))
    }

    /// What to ask the kernel beside the entries.
    pub(super) fn arrivals(&self) -> Option<pollfd> {
        let fd = self.arrivals.get();
        (fd >= 0).then_some(pollfd { fd, events: POLLIN, ..NONE })
    }

    /// Runs `sleep`; a thread that does not come back from it holds nothing any more.
    pub(super) fn while_asleep<R>(&self, sleep: impl FnOnce() -> R) -> R {
        cancel::undoing(self, Self::let_go, sleep)
    }

    fn let_go(&self) {
        self.places.iter().filter_map(Cell::get).for_each(Desc::let_go);
        if self.arrivals.get() >= 0 {
            hidden::close_hidden(self.arrivals.get());
        }
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.let_go();
    }
}
