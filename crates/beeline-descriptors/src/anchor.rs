//! Bells on the anchor of a description.

use core::cell::Cell;

use beeline_lane::{BellFault, Bells};

use crate::bells::{AnchorBells, ring_patiently};
use crate::rung::Rung;
use crate::{ending, kernel, table};

/// The anchor of a lane, by the fd under which the app called us.
#[derive(Clone, Copy)]
pub struct Anchor(pub i32);

impl Bells for Anchor {
    #[inline]
    fn ring(&self) -> Result<(), BellFault> {
        self.bells().ring_unless(|| self.peer_is_gone())
    }

    fn ring_for(&self, sleep: u64) -> Result<bool, BellFault> {
        let rung = table::get(self.0).and_then(|desc| Rung::of(desc, self.0, sleep));
        if rung.as_ref().is_some_and(Rung::is_noted) {
            return Ok(false);
        }
        let queued = self.bells().ring_or(|| self.peer_is_gone(), || ring_patiently(self.0))?;
        if queued && let Some(rung) = rung {
            rung.note();
        }
        Ok(true)
    }

    #[inline]
    fn queued(&self) -> Result<u32, BellFault> {
        self.bells().queued()
    }

    #[inline]
    fn drain(&self, count: u32) -> Result<(), BellFault> {
        self.bells().drain(count)
    }

    #[inline]
    fn drain_all(&self) -> Result<u32, BellFault> {
        self.bells().drain_all_priced()
    }

    fn plug(&self) {
        self.bells().plug();
    }

    fn plugged(&self) -> bool {
        self.bells().plugged()
    }

    fn unplug(&self) {
        self.bells().unplug();
    }
}

impl Anchor {
    #[inline]
    fn bells(self) -> AnchorBells {
        AnchorBells(self.0)
    }

    /// Whether the kernel's word about an anchor that takes no bells is that the peer's end is closed.
    #[cold]
    fn peer_is_gone(self) -> bool {
        let revents = kernel::poll_now(self.0, 0);
        match table::get(self.0).filter(|desc| desc.is_lane()) {
            Some(desc) => ending::tells_of_end(desc, revents),
            None => revents != 0,
        }
    }
}

/// An anchor for those who hold what others wait for: a bell that the kernel has no memory for is not tried again, and
/// noted. It rings for each lane by itself, whichever sleep that is named in: it may tell of an end.
pub struct Hasty {
    anchor: Anchor,
    short: Cell<bool>,
}

impl Hasty {
    #[must_use]
    pub fn new(anchor: Anchor) -> Self {
        Self { anchor, short: Cell::new(false) }
    }

    /// Whether a bell could not be rung for want of memory.
    pub(crate) fn was_short(&self) -> bool {
        self.short.get()
    }
}

impl Bells for Hasty {
    fn ring(&self) -> Result<(), BellFault> {
        self.anchor.bells().ring_or(
            || self.anchor.peer_is_gone(),
            || {
                self.short.set(true);
                Err(BellFault::Gone)
            },
        )?;
        Ok(())
    }

    fn queued(&self) -> Result<u32, BellFault> {
        self.anchor.queued()
    }

    fn drain(&self, count: u32) -> Result<(), BellFault> {
        self.anchor.drain(count)
    }

    fn drain_all(&self) -> Result<u32, BellFault> {
        self.anchor.drain_all()
    }

    fn plug(&self) {
        self.anchor.plug();
    }

    fn plugged(&self) -> bool {
        self.anchor.plugged()
    }

    fn unplug(&self) {
        self.anchor.unplug();
    }
}
