//! What holds for one connection, and not for all of its process: said by a rule, by the program for its socket
//! (`SO_BUSY_POLL`), or by `beeline set --connection`; the last who says it counts.
//!
//! The words stand in the connection's slot of the statistics file, where `beeline set` writes them; they are checked
//! each time. Here are copies of what was good, for a connection that has no slot, or loses it in the child of a
//! `fork`.

use core::sync::atomic::{AtomicU32, Ordering::Relaxed};

use beeline_lane::End;
use beeline_stats::Role;
use beeline_stats::layout::{ConnectionSlot, OWN_MAX};
use beeline_stats::tunables::rules::Body;
use beeline_stats::tunables::{CONNECTION_OPTIONS, Key, OptionType, Wait, connection_option, option};

use crate::side::SideState;
use crate::{process, stats};

/// The words of the options of one connection. Valid when zeroed: nothing is said.
#[derive(Debug)]
pub struct Own([AtomicU32; CONNECTION_OPTIONS]);

impl Own {
    /// A connection begins. The rules name the server's address.
    pub fn begin(&self, end: End, side: &SideState) {
        let (role, server) = match end {
            End::Client => (Role::Client, side.remote.get()),
            End::Server => (Role::Server, side.local.get()),
        };
        self.say(process::rules().of(role, server));
        if let Some(microseconds) = side.option(libc::SOL_SOCKET, libc::SO_BUSY_POLL) {
            let (wait, spin) = of_busy_poll(microseconds);
            self.put(option::wait, Some(wait));
            self.put(option::spin_ns_max, spin);
        }
    }

    fn put<T: OptionType>(&self, key: Key<T>, value: Option<T>) -> u32 {
        let word = value.map_or(0, |value| key.word(value)) as u32;
        self.0.get(key.place()).into_iter().for_each(|kept| kept.store(word, Relaxed));
        word
    }

    fn say(&self, rule: Option<&Body>) {
        for (place, word) in self.0.iter().enumerate() {
            let said = rule.zip(connection_option(place)).map_or(0, |(rule, index)| rule.word(index));
            // A rule's words are values, which fit.
            word.store(said as u32, Relaxed);
        }
    }

    /// What is said: in this slot, or, without one, by rule or before. Of the slot a copy is kept.
    pub fn value<T: OptionType>(&self, key: Key<T>, slot: Option<&ConnectionSlot>) -> Option<T> {
        let kept = self.0.get(key.place())?;
        let Some(said) = slot.and_then(|slot| slot.own.get(key.place())) else {
            return key.read_word(u64::from(kept.load(Relaxed)));
        };
        let word = said.load(Relaxed);
        let value = key.read_word(u64::from(word));
        if value.is_none() && word != 0 {
            if said.compare_exchange(word, 0, Relaxed, Relaxed).is_ok() {
                stats::refused();
            }
            kept.store(0, Relaxed);
        } else if kept.load(Relaxed) != word {
            kept.store(word, Relaxed);
        }
        value
    }

    /// Says it: here, and in the slot if there is one. `None` takes back what was said.
    pub fn set<T: OptionType>(&self, key: Key<T>, value: Option<T>, slot: Option<&ConnectionSlot>) {
        let word = self.put(key, value);
        slot.and_then(|slot| slot.own.get(key.place())).into_iter().for_each(|said| said.store(word, Relaxed));
    }

    /// The program has set `SO_BUSY_POLL`.
    pub fn set_busy_poll(&self, microseconds: i32, slot: Option<&ConnectionSlot>) {
        let (wait, spin) = of_busy_poll(microseconds);
        self.set(option::wait, Some(wait), slot);
        self.set(option::spin_ns_max, spin, slot);
    }

    /// For a new slot.
    #[must_use]
    pub fn words(&self) -> [u32; OWN_MAX] {
        core::array::from_fn(|place| self.0.get(place).map_or(0, |word| word.load(Relaxed)))
    }
}

/// What `SO_BUSY_POLL` means here: so long a call looks again and again before it sleeps (socket(7)); never, if it
/// is 0.
fn of_busy_poll(microseconds: i32) -> (Wait, Option<u64>) {
    match u64::try_from(microseconds) {
        Ok(0) | Err(_) => (Wait::Sleep, None),
        Ok(microseconds) => {
            let spin_ns = microseconds.saturating_mul(1000).min(option::spin_ns_max.greatest());
            (Wait::Lazy, Some(spin_ns))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_slot_counts_its_copy_stays_and_what_is_impossible_is_taken_back() {
        // SAFETY: all fields are atomics, for which zero is valid.
        let (own, slot): (Own, ConnectionSlot) = unsafe { core::mem::zeroed() };
        let wait = |slot| own.value(option::wait, slot);
        assert_eq!(wait(None), None);
        own.set(option::wait, Some(Wait::Poll), None);
        assert_eq!(wait(None), Some(Wait::Poll), "without a slot");
        assert_eq!(wait(Some(&slot)), None, "the slot is what others see");
        let place = &slot.own[option::wait.place()];
        place.store(option::wait.word(Wait::Sleep) as u32, Relaxed);
        assert_eq!(wait(Some(&slot)), Some(Wait::Sleep));
        assert_eq!(wait(None), Some(Wait::Sleep), "as in the child of a fork");
        for impossible in [4, u32::MAX] {
            place.store(impossible, Relaxed);
            assert_eq!(wait(Some(&slot)), None);
            assert_eq!((wait(None), place.load(Relaxed)), (None, 0));
        }
        own.set(option::wait, Some(Wait::Poll), Some(&slot));
        assert_eq!(place.load(Relaxed), 2);
        own.set(option::wait, None, Some(&slot));
        assert_eq!((wait(Some(&slot)), place.load(Relaxed)), (None, 0));
    }

    #[test]
    fn busy_polling_is_a_spin_of_so_many_microseconds() {
        assert_eq!(of_busy_poll(0), (Wait::Sleep, None));
        assert_eq!(of_busy_poll(50), (Wait::Lazy, Some(50_000)));
        assert_eq!(of_busy_poll(i32::MAX), (Wait::Lazy, Some(10_000_000)), "no longer than any spin");
    }
}
