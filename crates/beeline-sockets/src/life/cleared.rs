//! Objects whose text was searched and found to carry nothing, by the numbers that their linker has given them. One
//! that is unloaded and loaded again is not searched again: some programs do that with large ones whenever they are
//! idle. What other processes have found is in [`shared`].

pub(super) mod shared;

use core::sync::atomic::{
    AtomicU64, AtomicUsize,
    Ordering::{Acquire, Relaxed, Release},
};

use super::objects::Object;

/// How many are remembered; beyond that the oldest make way.
const PLACES: usize = 64;

/// Numbers; 0 where none is.
pub(super) struct Cleared {
    numbers: [AtomicU64; PLACES],
    next: AtomicUsize,
}

/// Those of this process.
pub(super) static CLEARED: Cleared = Cleared::new();

impl Cleared {
    const fn new() -> Self {
        Self { numbers: [const { AtomicU64::new(0) }; PLACES], next: AtomicUsize::new(0) }
    }

    /// Whether an object with this number was searched before, and carries nothing.
    pub(super) fn has(&self, number: u64) -> bool {
        self.numbers.iter().any(|place| place.load(Acquire) == number)
    }

    /// An object with this number carries nothing.
    pub(super) fn add(&self, number: u64) {
        if let Some(place) = self.numbers.get(self.next.fetch_add(1, Relaxed) % PLACES) {
            place.store(number, Release);
        }
    }
}

/// The number of an object's content: a part of its build id (`--build-id` of ld(1)), if it has one.
pub(super) fn number_of(object: &Object) -> Option<u64> {
    object.notes().find_map(build_number)
}

/// The same from a note: length of its name, of its content, its kind, which is 3, its name, and the id.
fn build_number(note: &[u8]) -> Option<u64> {
    const KIND: [u8; 4] = 3u32.to_le_bytes();
    const NAME: [u8; 4] = *b"GNU\0";
    match note.as_chunks::<4>().0 {
        [name_length, length, kind, name, low, high, ..]
            if *name_length == NAME.len().to_le_bytes()[..4]
                && *kind == KIND
                && *name == NAME
                && u32::from_le_bytes(*length) >= 16 =>
        {
            let number = u64::from(u32::from_le_bytes(*low)) | u64::from(u32::from_le_bytes(*high)) << 32;
            (number != 0).then_some(number)
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::life::objects;
    use core::ops::ControlFlow;

    #[test]
    fn a_build_id_is_found_in_its_note_alone() {
        let note = b"\x04\0\0\0\x14\0\0\0\x03\0\0\0GNU\0\x01\x02\x03\x04\x05\x06\x07\x08rest-of-the-id";
        assert_eq!(build_number(note), Some(0x0807_0605_0403_0201));
        let (mut version, mut short) = (*note, *note);
        version[8] = 1;
        short[4] = 8;
        assert_eq!((build_number(&version), build_number(&short)), (None, None));
        assert_eq!(build_number(&note[..20]), None);
    }

    #[test]
    fn so_many_are_remembered() {
        let cleared = Cleared::new();
        for number in 1..=PLACES as u64 + 1 {
            assert!(!cleared.has(number));
            cleared.add(number);
            assert!(cleared.has(number));
        }
        assert!(!cleared.has(1) && cleared.has(2));
    }

    #[test]
    fn the_c_library_has_a_number() {
        let mut numbered = 0;
        objects::each(|object| {
            numbered += usize::from(object.soname() == Some(b"libc.so.6") && number_of(object).is_some());
            ControlFlow::Continue(())
        });
        assert_eq!(numbered, 1);
    }
}
