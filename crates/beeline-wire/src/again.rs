//! Hello again: what a client says over an anchor that both ends have kept. The lane, and whose it is, are known; the
//! address that the client has this time may be another one than the name of its anchor has, where its program has
//! bound the port.
//!
//! | offset | bytes | field | rule |
//! |---|---|---|---|
//! | 0 | 1 | magic | [`AGAIN`] |
//! | 1 | 24 | client's address | there is one, in its one form, with a port |

use crate::address::{ADDRESS_BYTES, address_at, written};
use crate::bytes::Writer;
use crate::names::Endpoint;

/// The size of the message.
pub const AGAIN_BYTES: usize = 1 + ADDRESS_BYTES;

/// Its first byte, which is no bell's.
pub const AGAIN: u8 = 0xA6;

/// The message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Again {
    /// The address of the client's end of the connection.
    pub client: Endpoint,
}

impl Again {
    /// The message.
    #[must_use]
    pub fn encode(&self) -> [u8; AGAIN_BYTES] {
        Writer::new().u8(AGAIN).put(&written(Some(self.client.address()))).finish()
    }

    /// Reads a message; only the exact form that [`Again::encode`] writes.
    #[must_use]
    pub fn decode(bytes: &[u8; AGAIN_BYTES]) -> Option<Self> {
        let again = Self { client: Endpoint::new(address_at(bytes, 1)??) };
        (again.client.address().port() != 0 && again.encode() == *bytes).then_some(again)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn an_address_comes_back_and_has_one_form() {
        for address in ["127.0.0.1:5000", "[::1]:5000", "[fe80::1%2]:5000", "10.0.0.7:65535"] {
            let again = Again { client: Endpoint::new(address.parse().unwrap()) };
            assert_eq!(Again::decode(&again.encode()), Some(again), "{address}");
        }
        let v4 = Again { client: Endpoint::new("127.0.0.1:5000".parse().unwrap()) }.encode();
        for strange in [0, 1, 2, 5, 9, 18, 20] {
            let mut changed = v4;
            changed[strange] ^= 1;
            assert_eq!(Again::decode(&changed), None, "{strange}");
        }
        let mut without_port = v4;
        without_port[3..5].fill(0);
        assert_eq!(Again::decode(&without_port), None);
        let mut mapped = Again { client: Endpoint::new("[::1]:5000".parse().unwrap()) }.encode();
        mapped[9..25].copy_from_slice(&[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 127, 0, 0, 1]);
        assert_eq!(Again::decode(&mapped), None, "mapped");
        let mut scoped = Again { client: Endpoint::new("[::1]:5000".parse().unwrap()) }.encode();
        scoped[5] = 1;
        assert_eq!(Again::decode(&scoped), None, "a scope that nobody looks at");
    }

    proptest! {
        #[test]
        fn what_is_read_is_what_would_be_written(bytes: [u8; AGAIN_BYTES]) {
            if let Some(again) = Again::decode(&bytes) {
                prop_assert_eq!(again.encode(), bytes);
            }
        }
    }
}
