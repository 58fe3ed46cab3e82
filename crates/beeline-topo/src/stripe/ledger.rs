//! Which chunk of a direction is where: the sender's side of striping.
//!
//! A byte of the direction is in one of these places:
//!
//! ```text
//!   0 ........ acknowledged ........ assigned to a life of a rail, or to be sent again ........ offered ........
//! ```
//!
//! 1. `offer` makes bytes known; they may be handed out as soon as they are there (cut-through), never before.
//! 2. `assign` hands out the lowest bytes: first what must be sent again, in the pieces it was sent in, then new ones.
//! 3. `acknowledge` takes a chunk off, for the life of the rail that it was assigned to; `acknowledge_below` takes off all
//!    that lie before the receiver's prefix. A bridge uses the one that its protocol has.
//! 4. `closed` takes back what a life of a rail had, once the receiver says that it closed its end and what had come
//!    over it. Chunks that came whole are acknowledged, the others are to be sent again. Between a rail's failure and
//!    that word its chunks stay where they are.
//! 5. At most `pieces_max` pieces are assigned or to be sent again (rule 3 of [`super`]).
//!
//! What the receiver says is checked: an acknowledgement of something else than an assigned chunk, or a received range
//! beyond what was ever handed out, is an error and changes nothing.

use std::collections::BTreeMap;

use super::RailLife;

/// A chunk that was handed out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chunk {
    /// Where it begins.
    pub offset: u64,
    /// Its length, never zero.
    pub bytes: u64,
}

/// What came of closing a rail.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Returned {
    /// Bytes that the receiver has after all.
    pub received_bytes: u64,
    /// Bytes that are handed out again.
    pub again_bytes: u64,
}

/// Something the receiver said that cannot be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LedgerError {
    /// No such chunk is under way on that life of that rail.
    NotAssigned,
    /// The ranges are not in order, or reach beyond what was handed out.
    NeverSent,
}

impl std::fmt::Display for LedgerError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::NotAssigned => "A chunk was acknowledged that is not under way on that rail.",
            Self::NeverSent => "Ranges were said to have come that were never sent.",
        })
    }
}

impl std::error::Error for LedgerError {}

/// The chunks of one direction of a connection.
#[derive(Clone, Debug)]
pub struct Ledger {
    /// Bytes that are known.
    offered: u64,
    /// The first byte that was never handed out.
    fresh: u64,
    /// By offset: where each chunk ends, and what it is assigned to.
    assigned: BTreeMap<u64, (u64, RailLife)>,
    /// By offset: where each piece that must be sent again ends.
    again: BTreeMap<u64, u64>,
    pieces_max: usize,
}

impl Ledger {
    /// Nothing is known yet.
    pub fn new(pieces_max: usize) -> Self {
        Self { offered: 0, fresh: 0, assigned: BTreeMap::new(), again: BTreeMap::new(), pieces_max: pieces_max.max(1) }
    }

    /// More bytes are there to be carried, within the space that the receiver granted.
    pub fn offer(&mut self, bytes: u64) {
        self.offered = self.offered.saturating_add(bytes);
    }

    /// The length of the chunk that [`assign`](Self::assign) would hand out; `None` if there is none now.
    pub fn head(&self, bytes_max: u64) -> Option<u64> {
        self.next(bytes_max.max(1)).map(|chunk| chunk.bytes)
    }

    /// Hands out the next chunk to a rail.
    pub fn assign(&mut self, to: RailLife, bytes_max: u64) -> Option<Chunk> {
        let chunk = self.next(bytes_max.max(1))?;
        let end = chunk.offset.saturating_add(chunk.bytes);
        if self.again.remove(&chunk.offset).is_none() {
            self.fresh = end;
        }
        self.assigned.insert(chunk.offset, (end, to));
        Some(chunk)
    }

    fn next(&self, bytes_max: u64) -> Option<Chunk> {
        if let Some((&offset, &end)) = self.again.first_key_value() {
            return Some(Chunk { offset, bytes: end.saturating_sub(offset) });
        }
        let left = self.offered.saturating_sub(self.fresh);
        (left > 0 && self.pieces() < self.pieces_max).then(|| Chunk { offset: self.fresh, bytes: left.min(bytes_max) })
    }

    /// The receiver has the chunk that begins at `offset`. Returns its length.
    pub fn acknowledge(&mut self, offset: u64, on: RailLife) -> Result<u64, LedgerError> {
        match self.assigned.get(&offset) {
            Some(&(end, life)) if life == on => {
                self.assigned.remove(&offset);
                Ok(end.saturating_sub(offset))
            }
            _ => Err(LedgerError::NotAssigned),
        }
    }

    /// The receiver has everything before `prefix`: takes off the chunks that lie below it, and tells of each the rail it
    /// was on and its length. A chunk of which it has a part stays.
    pub fn acknowledge_below(&mut self, prefix: u64, mut each: impl FnMut(RailLife, u64)) -> Result<(), LedgerError> {
        if prefix > self.fresh {
            return Err(LedgerError::NeverSent);
        }
        // A piece to be sent again that has come after all: its acknowledgement was under way when its rail was closed.
        self.again.retain(|_, end| *end > prefix);
        while let Some(entry) = self.assigned.first_entry() {
            let (offset, (end, life)) = (*entry.key(), *entry.get());
            if end > prefix {
                break;
            }
            entry.remove();
            each(life, end.saturating_sub(offset));
        }
        Ok(())
    }

    /// The receiver closed its end of that life of the rail: nothing more can arrive over it. `prefix` and `above` are
    /// what it has of this direction, as its [`Reorder`](super::Reorder) says it. Acknowledgements that it gave before
    /// must have been told to the ledger before.
    pub fn closed(&mut self, life: RailLife, prefix: u64, above: &[(u64, u64)]) -> Result<Returned, LedgerError> {
        let mut below = prefix;
        for &(offset, end) in above {
            if offset <= below || end <= offset {
                return Err(LedgerError::NeverSent);
            }
            below = end;
        }
        if below > self.fresh {
            return Err(LedgerError::NeverSent);
        }
        let mut returned = Returned::default();
        let chunks: Vec<(u64, u64)> =
            self.assigned.iter().filter(|(_, (_, on))| *on == life).map(|(&offset, &(end, _))| (offset, end)).collect();
        for (offset, end) in chunks {
            self.assigned.remove(&offset);
            let bytes = end.saturating_sub(offset);
            if end <= prefix || above.iter().any(|&(from, to)| from <= offset && end <= to) {
                returned.received_bytes = returned.received_bytes.saturating_add(bytes);
            } else {
                returned.again_bytes = returned.again_bytes.saturating_add(bytes);
                self.again.insert(offset, end);
            }
        }
        Ok(returned)
    }

    /// Bytes under way on this life of a rail.
    pub fn bytes_on(&self, life: RailLife) -> u64 {
        let chunks = self.assigned.iter().filter(|(_, (_, on))| *on == life);
        chunks.fold(0, |sum, (offset, (end, _))| sum.saturating_add(end.saturating_sub(*offset)))
    }

    /// Up to where the receiver has said that it has everything.
    pub fn complete(&self) -> u64 {
        let lowest_assigned = self.assigned.first_key_value().map(|(&offset, _)| offset);
        let lowest_again = self.again.first_key_value().map(|(&offset, _)| offset);
        lowest_assigned.into_iter().chain(lowest_again).min().unwrap_or(self.fresh)
    }

    /// Whether everything that was offered is with the receiver.
    pub fn is_complete(&self) -> bool {
        self.complete() == self.offered
    }

    /// How many pieces are assigned or to be sent again.
    pub fn pieces(&self) -> usize {
        self.assigned.len().saturating_add(self.again.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: RailLife = RailLife { rail: 0, life: 0 };
    const A_AGAIN: RailLife = RailLife { rail: 0, life: 1 };
    const B: RailLife = RailLife { rail: 1, life: 0 };

    fn four_chunks() -> Ledger {
        let mut ledger = Ledger::new(8);
        ledger.offer(40);
        for rail in [A, B, A, B] {
            ledger.assign(rail, 10).unwrap();
        }
        ledger
    }

    #[test]
    fn bytes_are_handed_out_as_they_come_and_never_before() {
        let mut ledger = Ledger::new(8);
        assert_eq!(ledger.assign(A, 10), None);
        ledger.offer(15);
        assert_eq!(ledger.assign(A, 10), Some(Chunk { offset: 0, bytes: 10 }));
        assert_eq!(ledger.assign(B, 10), Some(Chunk { offset: 10, bytes: 5 }));
        assert_eq!((ledger.head(10), ledger.bytes_on(A), ledger.bytes_on(B)), (None, 10, 5));
        ledger.offer(1);
        assert_eq!(ledger.head(10), Some(1));
    }

    #[test]
    fn a_closed_rail_s_chunks_go_out_again_unless_they_came() {
        let mut ledger = four_chunks();
        ledger.acknowledge(10, B).unwrap();
        // The receiver has all but the third chunk.
        let returned = ledger.closed(A, 20, &[(30, 40)]).unwrap();
        assert_eq!(returned, Returned { received_bytes: 10, again_bytes: 10 });
        assert_eq!(ledger.complete(), 20);
        // It goes out whole, whatever the length of new chunks is now.
        assert_eq!(ledger.assign(B, 3), Some(Chunk { offset: 20, bytes: 10 }));
        ledger.acknowledge(20, B).unwrap();
        ledger.acknowledge(30, B).unwrap();
        assert!(ledger.is_complete());
    }

    #[test]
    fn what_cannot_be_acknowledged_is_an_error_and_changes_nothing() {
        let mut ledger = four_chunks();
        for (offset, on) in [(0, B), (0, A_AGAIN), (5, A), (40, A)] {
            assert_eq!(ledger.acknowledge(offset, on), Err(LedgerError::NotAssigned), "{offset} {on:?}");
        }
        for (prefix, above) in
            [(41, &[][..]), (0, &[(30, 41)]), (10, &[(10, 20)]), (0, &[(20, 30), (25, 35)]), (0, &[(20, 20)])]
        {
            assert_eq!(ledger.closed(A, prefix, above), Err(LedgerError::NeverSent), "{prefix} {above:?}");
        }
        assert_eq!((ledger.bytes_on(A), ledger.bytes_on(B), ledger.pieces()), (20, 20, 4));
        ledger.acknowledge(0, A).unwrap();
        assert_eq!(ledger.acknowledge(0, A), Err(LedgerError::NotAssigned));
    }

    #[test]
    fn a_prefix_acknowledges_what_lies_wholly_below_it() {
        let mut ledger = four_chunks();
        let mut told = Vec::new();
        ledger.acknowledge_below(25, |life, bytes| told.push((life, bytes))).unwrap();
        assert_eq!((told, ledger.complete()), (vec![(A, 10), (B, 10)], 20));
        assert_eq!(ledger.acknowledge_below(41, |_, _| {}), Err(LedgerError::NeverSent));
        ledger.closed(A, 20, &[]).unwrap();
        ledger.acknowledge_below(30, |_, _| {}).unwrap();
        assert_eq!((ledger.head(10), ledger.complete(), ledger.pieces()), (None, 30, 1));
        ledger.acknowledge_below(40, |_, _| {}).unwrap();
        assert!(ledger.is_complete());
    }

    #[test]
    fn pieces_are_bounded_until_some_are_acknowledged() {
        let mut ledger = Ledger::new(2);
        ledger.offer(100);
        ledger.assign(A, 10).unwrap();
        ledger.assign(B, 10).unwrap();
        assert_eq!(ledger.head(10), None);
        ledger.closed(A, 0, &[]).unwrap();
        assert_eq!(ledger.assign(B, 10), Some(Chunk { offset: 0, bytes: 10 }));
        assert_eq!(ledger.assign(B, 10), None);
        ledger.acknowledge(0, B).unwrap();
        assert_eq!(ledger.assign(B, 10), Some(Chunk { offset: 20, bytes: 10 }));
    }
}
