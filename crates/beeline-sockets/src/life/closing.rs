//! What lists of actions for `posix_spawn` close in the program.
//!
//! libc closes past any hook there, hidden descriptors as well, and does not tell what is in a list. So it is noted by
//! the list's address when it is put in. A list that is begun anew is empty. Of many lists those that were noted last
//! are known.

use core::ops::RangeInclusive;
use core::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering::Relaxed};

use crate::hidden;

/// Lists that are known at a time.
const LISTS: usize = 32;

/// A list, by its address, and the first and the last number that it closes.
struct List {
    address: AtomicUsize,
    first_and_last: AtomicU64,
}

static CLOSING: [List; LISTS] =
    [const { List { address: AtomicUsize::new(0), first_and_last: AtomicU64::new(0) } }; LISTS];
/// Which place comes next.
static NEXT: AtomicU32 = AtomicU32::new(0);

/// Numbers that a program is spawned without.
#[derive(Clone, Copy)]
pub struct Closing {
    first: u32,
    last: u32,
}

impl Closing {
    /// Nothing is closed.
    const NOTHING: Self = Self { first: u32::MAX, last: 0 };

    /// What a list closes; 0 for none.
    #[must_use]
    pub fn by_list(list: usize) -> Self {
        known(list).map_or(Self::NOTHING, |known| {
            let both = known.first_and_last.load(Relaxed);
            Self { first: (both >> 32) as u32, last: both as u32 }
        })
    }

    pub(super) fn has(self, fd: i32) -> bool {
        (self.first..=self.last).contains(&fd.cast_unsigned())
    }
}

fn known(list: usize) -> Option<&'static List> {
    if list == 0 { None } else { CLOSING.iter().find(|known| known.address.load(Relaxed) == list) }
}

/// A list begins, or ends: nothing is in it.
pub fn list_begins(list: usize) {
    if let Some(known) = known(list) {
        known.address.store(0, Relaxed);
    }
}

/// A list closes these numbers. Of single ones only hidden ones count, which a program closes that closes whatever
/// there may be.
pub fn list_closes(list: usize, numbers: RangeInclusive<i32>) {
    let (first, last) = (numbers.start().cast_unsigned(), numbers.end().cast_unsigned());
    if first > last || first == last && !hidden::is_hidden(*numbers.start()) {
        return;
    }
    let known = known(list).unwrap_or_else(|| {
        let next = NEXT.fetch_add(1, Relaxed) as usize % LISTS;
        let Some(place) = CLOSING.get(next) else { return &CLOSING[0] };
        place.first_and_last.store(u64::from(u32::MAX) << 32, Relaxed);
        place.address.store(list, Relaxed);
        place
    });
    let _ = known.first_and_last.fetch_update(Relaxed, Relaxed, |both| {
        let (before, after) = ((both >> 32) as u32, both as u32);
        Some(u64::from(before.min(first)) << 32 | u64::from(after.max(last)))
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_is_known_until_it_begins_anew() {
        assert!(!Closing::by_list(0).has(3) && !Closing::by_list(0x1000).has(3));
        list_closes(0x1000, 10..=i32::MAX);
        list_closes(0x1000, 5..=5);
        let closing = Closing::by_list(0x1000);
        assert!(!closing.has(5) && !closing.has(9) && closing.has(10) && closing.has(i32::MAX));
        assert!(!Closing::by_list(0x2000).has(10));
        list_begins(0x1000);
        assert!(!Closing::by_list(0x1000).has(10));
    }
}
