//! What a client and its host's bridge say to each other.
//!
//! 1. The bridge's door is the abstract `AF_UNIX` name [`DOOR`]. The client's anchor is bound to the name of the
//!    connection ([`crate::names`]), whose server is on another host, and says the ordinary hello.
//! 2. The bridge answers with one byte, the [`Verdict`]. After [`Verdict::Yes`] the anchor carries bells, and the lane
//!    stands, with the server's end marked as taken; after any other the bridge closes the anchor.

/// The name of the bridge's door, after the leading NUL.
pub const DOOR: &[u8] = b"beeline/1/bridge";

/// The bridge's answer to a hello.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Verdict {
    /// The connection stands.
    Yes = 1,
    /// No bridge that we are connected with speaks for the destination.
    NoPeer = 2,
    /// The destination's host has no door there.
    NoDoor = 3,
    /// No fabric is shared with the destination's host at the moment.
    NoRail = 4,
    /// The bridge, or the one at the other end, has no room for another connection.
    Full = 5,
    /// The bridge does not accept what the client said.
    Rejected = 6,
    /// TCP is faster to the destination's host at the moment, by measurement.
    Slower = 7,
    /// This bridge, or the one at the other end, is about to stop.
    Leaving = 8,
}

impl Verdict {
    const ALL: [Verdict; 8] = [
        Verdict::Yes,
        Verdict::NoPeer,
        Verdict::NoDoor,
        Verdict::NoRail,
        Verdict::Full,
        Verdict::Rejected,
        Verdict::Slower,
        Verdict::Leaving,
    ];

    /// How many there are. Their bytes are 1 to this.
    pub const COUNT: usize = Self::ALL.len();

    /// The byte on the anchor.
    #[must_use]
    pub const fn byte(self) -> u8 {
        self as u8
    }

    /// Reads the byte.
    #[must_use]
    pub fn from_byte(byte: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|verdict| verdict.byte() == byte)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn verdicts_lead_back_to_themselves_and_no_bell_is_one() {
        for byte in 0..=u8::MAX {
            assert!(Verdict::from_byte(byte).is_none_or(|verdict| verdict.byte() == byte));
        }
        assert_eq!((1..=8).filter_map(Verdict::from_byte).count(), 8);
        assert_eq!(Verdict::COUNT, 8);
        assert_eq!(Verdict::from_byte(crate::hello::BELL), None);
    }
}
