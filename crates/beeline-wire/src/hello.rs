//! Hello: the first message on an anchor, from the client to whoever serves the door.
//!
//! It is one `sendmsg` of [`HELLO_BYTES`] bytes with the lane's memfd attached (`SCM_RIGHTS`), or with
//! nothing attached when it takes up a lane that the server has mapped already. Every number is
//! little-endian.
//!
//! | offset | bytes | field | rule |
//! |---|---|---|---|
//! | 0 | 8 | magic | `BEEHELLO` |
//! | 8 | 2 | version | [`VERSION`] |
//! | 10 | 2 | flags | none, [`FLAG_REUSE`] or [`FLAG_HELD`] |
//! | 12 | 4 | ring bytes | a power of two from 64 KiB to 16 MiB |
//! | 16 | 8 | lane bytes | [`lane_bytes`] of the ring bytes |
//! | 24 | 4 | generation | how often the lane was used before: 0 exactly when it is new |
//! | 28 | 4 | pid | of the client, for people only: nothing is decided by it |
//! | 32 | 8 | lane inode | of the lane's memfd; finds a known lane, and is checked against the descriptor of a new one |
//! | 40 | 24 | addresses | zero, unless held |
//!
//! Mostly the addresses of the connection are not in it: the server reads them from the name of the client's anchor,
//! which the kernel vouches for (see [`crate::names`]). Anybody may bind such names, though; where they are taken, the
//! anchor has none, and [`Held`] addresses stand in the hello. They reserve nothing: the server must hold the client's
//! port by other means. The server's port is the listener's.
//!
//! | offset | bytes | field | rule |
//! |---|---|---|---|
//! | 40 | 2 | family | 4 or 6 |
//! | 42 | 2 | client's port | not 0 |
//! | 44 | 16 | IPv6: both ends' address; IPv4: the client's, the server's, 8 zeros | IPv6: not mapped, not link-local |
//! | 60 | 4 | reserved | zero |

use core::net::{IpAddr, SocketAddr};

use crate::bytes::{Writer, array_at};
use crate::names::{ConnName, Endpoint};
use beeline_stats::Poison;

/// The size of a hello.
pub const HELLO_BYTES: usize = 64;

/// The version of everything two processes must agree on: hello, lane layout and wake protocol.
pub const VERSION: u16 = 5;

/// [`Hello::flags`]: no descriptor is attached, the lane is one that the server knows.
pub const FLAG_REUSE: u16 = 1;

/// [`Hello::flags`]: the client's anchor has no name, and the addresses are in the hello.
pub const FLAG_HELD: u16 = 2;

/// The one byte of a doorbell. It says "look again" and nothing else.
pub const BELL: u8 = 0xBE;

/// The smallest ring.
pub const RING_BYTES_MIN: u32 = 64 << 10;

/// The greatest ring.
pub const RING_BYTES_MAX: u32 = 16 << 20;

/// What a lane holds besides its two rings: cursors and wake words.
pub const LANE_OVERHEAD_BYTES: u64 = 8192;

/// The size of the addresses in a hello.
const ADDRESSES_BYTES: usize = 24;

const MAGIC: [u8; 8] = *b"BEEHELLO";

/// The size of a lane's memfd: two rings and their cursors.
#[must_use]
pub const fn lane_bytes(ring_bytes: u32) -> u64 {
    // At most 2^33 + 2^13: widening first, it cannot overflow.
    (ring_bytes as u64).wrapping_mul(2).wrapping_add(LANE_OVERHEAD_BYTES)
}

/// The addresses of a connection whose client's port the server is to hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Held {
    client: SocketAddr,
    server: IpAddr,
}

impl Held {
    /// `None` for addresses that a hello has no room for: link-local ones, and different ones of IPv6.
    #[must_use]
    pub fn new(client: Endpoint, server: Endpoint) -> Option<Self> {
        let (client, server) = (client.address(), server.address());
        let fits = match (client, server) {
            (SocketAddr::V4(_), SocketAddr::V4(_)) => true,
            (SocketAddr::V6(v6), SocketAddr::V6(_)) => client.ip() == server.ip() && !v6.ip().is_unicast_link_local(),
            _ => false,
        };
        (fits && client.port() != 0).then_some(Self { client, server: server.ip() })
    }

    /// The connection to a listener on this port.
    #[must_use]
    pub fn to_port(&self, port: u16) -> ConnName {
        ConnName { client: Endpoint::new(self.client), server: Endpoint::new(SocketAddr::new(self.server, port)) }
    }

    fn encode(&self) -> [u8; ADDRESSES_BYTES] {
        let writer = Writer::new();
        let writer = match (self.client.ip(), self.server) {
            (IpAddr::V4(client), IpAddr::V4(server)) => writer
                .put(&4u16.to_le_bytes())
                .put(&self.client.port().to_le_bytes())
                .put(&client.octets())
                .put(&server.octets()),
            (client, _) => {
                let ip = match client {
                    IpAddr::V6(ip) => ip,
                    IpAddr::V4(ip) => ip.to_ipv6_mapped(),
                };
                writer.put(&6u16.to_le_bytes()).put(&self.client.port().to_le_bytes()).put(&ip.octets())
            }
        };
        writer.finish()
    }

    /// Only the exact form that [`Held::encode`] writes.
    fn decode(bytes: [u8; ADDRESSES_BYTES]) -> Option<Self> {
        let port = u16::from_le_bytes(array_at(&bytes, 2)?);
        let (client, server): (IpAddr, IpAddr) = match u16::from_le_bytes(array_at(&bytes, 0)?) {
            4 => (array_at::<4>(&bytes, 4)?.into(), array_at::<4>(&bytes, 8)?.into()),
            6 => (array_at::<16>(&bytes, 4)?.into(), array_at::<16>(&bytes, 4)?.into()),
            _ => return None,
        };
        // A mapped address becomes one of IPv4 here, whose form is another.
        let end = |ip| Endpoint::new(SocketAddr::new(ip, port));
        Self::new(end(client), end(server)).filter(|held| held.encode() == bytes)
    }
}

/// Why a message is no hello that could be taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unfit {
    /// It is that of another version, whose fields mean something else.
    Version,
    /// No correct client would have sent it.
    Poison(Poison),
}

impl From<Poison> for Unfit {
    fn from(poison: Poison) -> Self {
        Self::Poison(poison)
    }
}

/// A hello whose every field has been checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hello {
    /// Whether it takes up a lane that the server knows, so that no descriptor is attached.
    pub reuse: bool,
    /// The size of each ring.
    pub ring_bytes: u32,
    /// How often the lane was used before; 0 exactly when it is new.
    pub generation: u32,
    /// The client's process id, for people only.
    pub pid_hint: u32,
    /// The inode of the lane's memfd.
    pub lane_inode: u64,
    /// The connection's addresses, if the client's anchor has no name.
    pub held: Option<Held>,
}

impl Hello {
    /// The size of the lane's memfd.
    #[must_use]
    pub const fn lane_bytes(&self) -> u64 {
        lane_bytes(self.ring_bytes)
    }

    /// The message.
    #[must_use]
    pub fn encode(&self) -> [u8; HELLO_BYTES] {
        let flags = if self.reuse { FLAG_REUSE } else { 0 } | if self.held.is_some() { FLAG_HELD } else { 0 };
        Writer::new()
            .put(&MAGIC)
            .put(&VERSION.to_le_bytes())
            .put(&flags.to_le_bytes())
            .put(&self.ring_bytes.to_le_bytes())
            .put(&self.lane_bytes().to_le_bytes())
            .put(&self.generation.to_le_bytes())
            .put(&self.pid_hint.to_le_bytes())
            .put(&self.lane_inode.to_le_bytes())
            .put(&self.held.map_or([0; ADDRESSES_BYTES], |held| held.encode()))
            .finish()
    }

    /// Checks a message.
    ///
    /// # Errors
    /// [`Unfit`].
    pub fn decode(message: &[u8]) -> Result<Self, Unfit> {
        let message: &[u8; HELLO_BYTES] = message.try_into().map_err(|_| Poison::HelloShort)?;
        if !message.starts_with(&MAGIC) {
            return Err(Poison::HelloMagic.into());
        }
        // The version decides the meaning of all that follows, so it is looked at first.
        if u16::from_le_bytes(at(message, 8)) != VERSION {
            return Err(Unfit::Version);
        }
        let (reuse, held) = match u16::from_le_bytes(at(message, 10)) {
            0 => (false, false),
            FLAG_REUSE => (true, false),
            FLAG_HELD => (false, true),
            _ => return Err(Poison::HelloFlags.into()),
        };
        let ring_bytes = u32::from_le_bytes(at(message, 12));
        if !ring_bytes.is_power_of_two() || !(RING_BYTES_MIN..=RING_BYTES_MAX).contains(&ring_bytes) {
            return Err(Poison::HelloRingBytes.into());
        }
        if u64::from_le_bytes(at(message, 16)) != lane_bytes(ring_bytes) {
            return Err(Poison::HelloSize.into());
        }
        let generation = u32::from_le_bytes(at(message, 24));
        if reuse != (generation != 0) {
            return Err(Poison::HelloFlags.into());
        }
        let addresses: [u8; ADDRESSES_BYTES] = at(message, 40);
        let held = match held {
            true => Some(Held::decode(addresses).ok_or(Poison::HelloReserved)?),
            false if addresses == [0; ADDRESSES_BYTES] => None,
            false => return Err(Poison::HelloReserved.into()),
        };
        Ok(Self {
            reuse,
            ring_bytes,
            generation,
            pid_hint: u32::from_le_bytes(at(message, 28)),
            lane_inode: u64::from_le_bytes(at(message, 32)),
            held,
        })
    }
}

/// A field of a whole message. Offsets are constants below [`HELLO_BYTES`], so the default never
/// shows; a test changes each byte and sees it noticed.
fn at<const N: usize>(message: &[u8; HELLO_BYTES], offset: usize) -> [u8; N] {
    array_at(message, offset).unwrap_or([0; N])
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::vec::Vec;

    const NEW: Hello =
        Hello { reuse: false, ring_bytes: 1 << 20, generation: 0, pid_hint: 4242, lane_inode: 99, held: None };

    fn changed(offset: usize, bytes: &[u8]) -> Result<Hello, Unfit> {
        let mut message = NEW.encode();
        message[offset..offset + bytes.len()].copy_from_slice(bytes);
        Hello::decode(&message)
    }

    #[test]
    fn each_field_has_its_poison() {
        assert_eq!(Hello::decode(&NEW.encode()), Ok(NEW));
        assert_eq!(Hello::decode(&NEW.encode()[..63]), Err(Unfit::Poison(Poison::HelloShort)));
        assert_eq!(Hello::decode(&[]), Err(Unfit::Poison(Poison::HelloShort)));
        assert_eq!(Hello::decode(&[0; 65]), Err(Unfit::Poison(Poison::HelloShort)));
        assert_eq!(changed(0, b"b"), Err(Unfit::Poison(Poison::HelloMagic)));
        assert_eq!(changed(8, &[1]), Err(Unfit::Version));
        assert_eq!(changed(10, &[2]), Err(Unfit::Poison(Poison::HelloReserved)));
        assert_eq!(changed(10, &[3]), Err(Unfit::Poison(Poison::HelloFlags)));
        assert_eq!(changed(10, &[4]), Err(Unfit::Poison(Poison::HelloFlags)));
        assert_eq!(changed(10, &[1]), Err(Unfit::Poison(Poison::HelloFlags)));
        assert_eq!(changed(24, &[1]), Err(Unfit::Poison(Poison::HelloFlags)));
        assert_eq!(changed(16, &[1]), Err(Unfit::Poison(Poison::HelloSize)));
        for ring in [0, 1, RING_BYTES_MIN / 2, RING_BYTES_MIN + 1, RING_BYTES_MAX * 2, u32::MAX] {
            assert_eq!(changed(12, &ring.to_le_bytes()), Err(Unfit::Poison(Poison::HelloRingBytes)));
        }
        for reserved in 40..64 {
            assert_eq!(changed(reserved, &[1]), Err(Unfit::Poison(Poison::HelloReserved)));
        }
    }

    fn held(client: &str, server: &str) -> Option<Held> {
        Held::new(Endpoint::new(client.parse().unwrap()), Endpoint::new(server.parse().unwrap()))
    }

    #[test]
    fn held_addresses_come_back_and_have_one_form() {
        for (client, server) in [("127.0.0.1:40000", "10.0.0.7:80"), ("[::1]:40000", "[::1]:80")] {
            let hello = Hello { held: held(client, server), ..NEW };
            assert_eq!(Hello::decode(&hello.encode()), Ok(hello));
            let name = hello.held.unwrap().to_port(80);
            assert_eq!(name.client.address(), client.parse().unwrap());
            assert_eq!(name.server.address(), server.parse().unwrap());
            for changed in [40, 41, 60, 63] {
                let mut message = hello.encode();
                message[changed] ^= 1;
                assert_eq!(Hello::decode(&message), Err(Unfit::Poison(Poison::HelloReserved)), "{changed}");
            }
            let mut message = hello.encode();
            message[42..44].fill(0);
            assert_eq!(Hello::decode(&message), Err(Unfit::Poison(Poison::HelloReserved)), "port 0");
        }
        for (client, server) in [
            ("127.0.0.1:40000", "[::1]:80"),
            ("[2001:db8::1]:40000", "[::1]:80"),
            ("[fe80::1%2]:40000", "[fe80::1%2]:80"),
            ("127.0.0.1:0", "127.0.0.1:80"),
        ] {
            assert_eq!(held(client, server), None, "{client} {server}");
        }
        let mut mapped = Hello { held: held("[::1]:40000", "[::1]:80"), ..NEW }.encode();
        mapped[44..60].copy_from_slice(&[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 127, 0, 0, 1]);
        assert_eq!(Hello::decode(&mapped), Err(Unfit::Poison(Poison::HelloReserved)));
    }

    #[test]
    fn ring_sizes_agree_with_the_options() {
        let spec =
            beeline_stats::tunables::OptionSpec::all().into_iter().find(|spec| spec.key == "ring_bytes").unwrap();
        assert_eq!(
            spec.kind,
            beeline_stats::tunables::Kind::PowerOfTwo { min: RING_BYTES_MIN.into(), max: RING_BYTES_MAX.into() }
        );
    }

    proptest! {
        #[test]
        fn hellos_lead_back_to_themselves(generation in 0..3_u32, shift in 16..=24_u32, pid_hint: u32, lane_inode: u64) {
            let hello = Hello {
                reuse: generation != 0, ring_bytes: 1 << shift, generation, pid_hint, lane_inode, held: None,
            };
            prop_assert_eq!(Hello::decode(&hello.encode()), Ok(hello));
        }

        #[test]
        fn what_decodes_is_what_would_be_sent(offset in 0..64_usize, byte: u8) {
            let mut message = NEW.encode();
            message[offset] = byte;
            if let Ok(hello) = Hello::decode(&message) {
                prop_assert_eq!(hello.encode(), message);
            }
        }

        #[test]
        fn any_bytes_are_survived(bytes: Vec<u8>) {
            let _ = Hello::decode(&bytes);
        }
    }
}
