//! Which of a listener's two queues is looked at first.
//!
//! 1. Door and TCP queue take turns, so that neither starves.
//! 2. To accept from a queue in which nobody is costs almost as much as to accept somebody: the kernel makes a socket and a
//!    number before it looks. So a queue that was empty when it was last looked at is not looked at in its turn, but last, or
//!    when the listener is called ready; only each [`TURNS`]th of its turns it has all the same. Whoever comes there waits for
//!    so many clients of the other queue at most, and those behind it have their turns again.
//!
//! All of this is a hint: threads that accept at once may see each other's.

use core::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// Of how many turns a queue that was empty has one.
const TURNS: u32 = 4;

/// The turns of a listener; valid when zeroed.
#[derive(Default)]
#[repr(C)]
pub(super) struct Turns {
    /// Counts accepts.
    calls: AtomicU32,
    /// Whether the door was empty.
    door_empty: AtomicU32,
    /// Whether TCP's queue was.
    tcp_empty: AtomicU32,
}

/// What an accept begins with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Turn {
    /// Whether the door comes first where both queues have somebody.
    pub is_doors: bool,
    /// Whether that queue is likely to have somebody, or is to be looked at all the same.
    pub is_likely: bool,
}

impl Turn {
    /// Whether to look at the door before TCP's queue, where it is not known who has somebody.
    pub(super) fn door_first(self) -> bool {
        self.is_doors == self.is_likely
    }
}

impl Turns {
    /// The next turn.
    pub(super) fn next(&self) -> Turn {
        let call = self.calls.fetch_add(1, Relaxed);
        let is_doors = call & 1 == 0;
        let empty = if is_doors { &self.door_empty } else { &self.tcp_empty };
        let is_likely = empty.load(Relaxed) == 0 || (call >> 1).is_multiple_of(TURNS);
        Turn { is_doors, is_likely }
    }

    /// The door was looked at.
    pub(super) fn note_door(&self, empty: bool) {
        note(&self.door_empty, empty);
    }

    /// TCP's queue was looked at, with this result.
    pub(super) fn note_tcp<T, E>(&self, taken: Result<T, E>) -> Result<T, E> {
        note(&self.tcp_empty, taken.is_err());
        taken
    }
}

fn note(word: &AtomicU32, empty: bool) {
    if (word.load(Relaxed) != 0) != empty {
        word.store(u32::from(empty), Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn firsts(turns: &Turns, calls: u32) -> (u32, u32) {
        let door = (0..calls).filter(|_| turns.next().door_first()).count() as u32;
        (door, calls - door)
    }

    #[test]
    fn queues_take_turns() {
        let turns = Turns::default();
        assert_eq!(firsts(&turns, 64), (32, 32));
    }

    #[test]
    fn an_empty_queue_has_few_turns_until_somebody_was_there() {
        let turns = Turns::default();
        let _ = turns.note_tcp::<(), ()>(Err(()));
        assert_eq!(firsts(&turns, 64), (56, 8));
        let _ = turns.note_tcp::<(), ()>(Ok(()));
        turns.note_door(true);
        assert_eq!(firsts(&turns, 64), (8, 56));
        turns.note_door(false);
        assert_eq!(firsts(&turns, 64), (32, 32));
    }
}
