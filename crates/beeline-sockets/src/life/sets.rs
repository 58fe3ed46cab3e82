//! How far the kernel would look into the sets of select(2).
//!
//! It looks at no more bits than its table of descriptors has room for. Programs rely on that which say how many
//! descriptors they may have (getdtablesize(3)) and pass sets of `FD_SETSIZE` bits. Hidden descriptors, which lie above
//! those, make that table larger: the kernel, too, would read and write behind the sets. So the size that the table
//! would have without them is found, and takes the place of the program's number.
//!
//! 1. What is behind that size is never touched, and what is before it always looked at: programs with numbers above
//!    `FD_SETSIZE` have larger sets on purpose.
//! 2. Only who says a number above `FD_SETSIZE` pays for the question, and not if that is one more than a descriptor of
//!    the program's, as it is mostly where sets are large.

use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use libc::{FD_SETSIZE, fd_set};

use super::{open_fds, start};
use crate::changing::changing;
use crate::hidden::is_hidden;
use crate::{kernel, process};

/// What the kernel's smallest table has room for. Larger ones are powers of two (Linux fs/file.c).
const LEAST: usize = 64;

/// What it had room for when it was largest, as far as was seen here, in the lower half; in the upper one whose it is
/// ([`process::generation`]). It does not shrink, but the child of a `fork` begins with one that is as small as can be.
static ROOM: AtomicU64 = AtomicU64::new(0);

/// How many bits of these sets the kernel would look at if nothing was hidden, of `count` that the program names.
#[must_use]
#[inline]
pub fn bits_looked_at(count: i32, sets: [*mut fd_set; 3]) -> i32 {
    if count <= FD_SETSIZE as i32 { count } else { bits_of_many(count, sets) }
}

#[cold]
#[inline(never)]
fn bits_of_many(count: i32, sets: [*mut fd_set; 3]) -> i32 {
    start();
    // Nothing is touched, or nothing may be asked.
    if sets.iter().all(|set| set.is_null()) || process::is_sealed() {
        return count;
    }
    let (wanted, last) = (count as usize, count - 1);
    let generation = process::generation();
    let mut room = room_of(ROOM.load(Relaxed), generation);
    if room < wanted {
        let highest = if is_programs(last) { Some(last) } else { highest() };
        let found = highest.map_or(LEAST, room_for);
        let known = ROOM.fetch_update(Relaxed, Relaxed, |known| {
            Some(u64::from(generation) << 32 | room_of(known, generation).max(found) as u64)
        });
        room = known.map_or(found, |known| room_of(known, generation).max(found));
    }
    wanted.min(room) as i32
}

/// What is known of the table of the process of this generation.
fn room_of(known: u64, generation: u32) -> usize {
    if (known >> 32) as u32 == generation { known as u32 as usize } else { LEAST }
}

/// What a table has room for that was made for this number.
fn room_for(fd: i32) -> usize {
    (fd as usize + 1).next_power_of_two().max(LEAST)
}

/// The program's highest descriptor.
fn highest() -> Option<i32> {
    let mut found = None;
    // No handler jumps out, and no child inherits the number that the directory has meanwhile.
    let whole = (!process::is_guest_of_parent()).then(changing);
    open_fds::each(|fd| found = found.max(Some(fd).filter(|fd| !is_hidden(*fd))));
    drop(whole);
    found
}

fn is_programs(fd: i32) -> bool {
    !is_hidden(fd) && kernel::is_close_on_exec(fd).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_are_powers_of_two() {
        assert_eq!([0, 63, 64, 127, 128, 1000, 1024].map(room_for), [64, 64, 128, 128, 256, 1024, 2048]);
    }

    #[test]
    fn what_a_parent_has_seen_is_not_its_child_s() {
        let known = 7 << 32 | 2048;
        assert_eq!([0, 6, 7, 8].map(|generation| room_of(known, generation)), [LEAST, LEAST, 2048, LEAST]);
        assert_eq!(room_of(0, 1), LEAST);
    }
}
