//! What an event of the epoll set is about, in the 64 bits that the kernel keeps for us.

use std::os::fd::RawFd;

/// What an event of the set is about.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Tag {
    Door,
    Control,
    Outside,
    Silent(RawFd),
    /// Completions of a rail's.
    Rail(usize),
    /// Connections of a rail's.
    RailEvents(usize),
    Connection(u64),
}

impl Tag {
    const KIND_SHIFT: u32 = 61;

    pub(super) fn pack(self) -> u64 {
        let (kind, value) = match self {
            Tag::Door => (0, 0),
            Tag::Control => (1, 0),
            Tag::Outside => (2, 0),
            Tag::Silent(fd) => (3, u64::from(fd.cast_unsigned())),
            Tag::Rail(index) => (4, index as u64),
            Tag::Connection(number) => (5, number),
            Tag::RailEvents(index) => (6, index as u64),
        };
        kind << Self::KIND_SHIFT | value & ((1 << Self::KIND_SHIFT) - 1)
    }

    pub(super) fn unpack(word: u64) -> Option<Tag> {
        let value = word & ((1 << Self::KIND_SHIFT) - 1);
        Some(match word >> Self::KIND_SHIFT {
            0 => Tag::Door,
            1 => Tag::Control,
            2 => Tag::Outside,
            3 => Tag::Silent((value as u32).cast_signed()),
            4 => Tag::Rail(value as usize),
            5 => Tag::Connection(value),
            6 => Tag::RailEvents(value as usize),
            _ => return None,
        })
    }
}
