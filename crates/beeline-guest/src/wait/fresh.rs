//! What waits of connections that have ended tell those that begin.
//!
//! A connection that says a word each way is over before it has learned whether it pays to spin for its peer. Twenty
//! threads that each ask once of twenty processes, on two CPUs, would all spin each time, and keep each other from
//! running.
//!
//! 1. A process remembers what share of its connections that ended of late had spun with success
//!    ([`super::SpinState::have_paid`]), by what they were for ([`Origin`]).
//! 2. While fewer than three of four have, connections of that origin begin without a spin, but each [`PROBE_EVERY`]th.
//!    Those that sleep find out as ever whether a spin would have won, and tell it at their end.
//! 3. A child of `fork` begins with what its parent knows.

use core::sync::atomic::{AtomicU32, Ordering::Relaxed};

use super::state::{ALL, MOST, moved};

const PROBE_EVERY: u32 = 32;
/// Ports that are told apart.
const PORTS: usize = 16;

/// Which connections one is compared with, by the server's port.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Origin {
    /// The process made it.
    Made(u16),
    /// The process accepted it.
    Accepted(u16),
}

#[unsafe(link_section = ".fork.written")]
static MADE: [Account; PORTS] = [const { Account::new() }; PORTS];
#[unsafe(link_section = ".fork.written")]
static ACCEPTED: [Account; PORTS] = [const { Account::new() }; PORTS];

fn account_of(origin: Origin) -> Option<&'static Account> {
    match origin {
        Origin::Made(port) => MADE.get(usize::from(port) % PORTS),
        Origin::Accepted(port) => ACCEPTED.get(usize::from(port) % PORTS),
    }
}

/// A connection begins. Whether it may with a spin.
pub fn may_spin(origin: Origin) -> bool {
    account_of(origin).is_none_or(Account::may_spin)
}

/// A connection ends whose spins have paid, or not.
pub fn note(origin: Origin, have_paid: bool) {
    if let Some(account) = account_of(origin) {
        account.note(have_paid);
    }
}

/// What is known of the connections of one origin.
struct Account {
    /// Those whose spins have paid, of [`ALL`].
    paid: AtomicU32,
    /// Connections that began while these were too few.
    begun: AtomicU32,
}

impl Account {
    const fn new() -> Self {
        Self { paid: AtomicU32::new(ALL), begun: AtomicU32::new(0) }
    }

    fn may_spin(&self) -> bool {
        if self.paid.load(Relaxed) >= MOST {
            return true;
        }
        let begun = self.begun.load(Relaxed).wrapping_add(1);
        self.begun.store(begun, Relaxed);
        begun.is_multiple_of(PROBE_EVERY)
    }

    fn note(&self, have_paid: bool) {
        let paid = self.paid.load(Relaxed);
        let now = moved(paid, have_paid);
        // It may lie in a page that a child of a fork has in common with others.
        if now != paid {
            self.paid.store(now, Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn where_connections_spin_in_vain_the_next_begin_without_one_until_most_have_paid() {
        let account = Account::new();
        let begun_with_one = |connections| (0..connections).filter(|_| account.may_spin()).count() as u32;
        assert_eq!(begun_with_one(100), 100);
        account.note(false);
        assert_eq!(begun_with_one(100), 100, "one is none");
        (0..8).for_each(|_| account.note(false));
        assert_eq!(begun_with_one(10 * PROBE_EVERY), 10);
        (0..40).for_each(|number| account.note(number % 2 == 0));
        assert_eq!(begun_with_one(10 * PROBE_EVERY), 10, "half of them are too few");
        (0..12).for_each(|_| account.note(true));
        assert_eq!(begun_with_one(100), 100);
    }
}
