//! What a program and its host's agent say to each other (`docs/design/0008-namespaces.md`).
//!
//! 1. The agent listens at [`SOCKET`], `AF_UNIX` and `SOCK_SEQPACKET`, and under [`NAME`] in the network namespaces
//!    that it finds. A connection to it carries one question and its answer; after [`Answer`]`::Likely` and
//!    [`Answer`]`::Probe`, one [`Question::Confirm`] more. At its name [`Question::Hail`] comes before, whose answer
//!    proves who listens there.
//! 2. Each message has one form. No program sends a descriptor: what it holds it names by its number, and the agent
//!    takes it from the process that has connected to it. So an agent that is stopped, or lingers, never holds a
//!    connection.
//! 3. Addresses and numbers of descriptors are the program's word, and only where to look: what counts is what the
//!    kernel says of the socket that is found there.

use core::net::{IpAddr, Ipv4Addr, SocketAddr, SocketAddrV6};

use crate::address::{ADDRESS_BYTES, address_at, written};
use crate::bytes::{Writer, u8_at, u16_at, u32_at};

/// Where the agent listens.
pub const SOCKET: &str = "/run/beeline-agent/agent.sock";
/// The same in a network namespace that the agent has found: an abstract name, for programs that do not see [`SOCKET`].
pub const NAME: &[u8] = b"beeline/1/agent";

/// Bytes of a question.
pub const QUESTION_BYTES: usize = 64;
/// Bytes of an answer.
pub const ANSWER_BYTES: usize = 8;
/// How many places the map on the agent's page has, to one of which each listener leads.
pub const PLACES: u32 = 4096;

/// "BLag", as a number.
const MAGIC: u32 = 0x424c_6167;
const VERSION: u16 = 4;

/// A message to the agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Question {
    /// May a socket of this process meet who serves the destination?
    Query {
        /// Where it is to be connected to.
        destination: SocketAddr,
    },
    /// The connection of a query that was answered with [`Answer::Likely`] stands, and the client's end of its lane is
    /// in place; or that of one that was answered with [`Answer::Probe`] stands.
    Confirm {
        /// The connection's descriptor in the process that asks.
        socket: u32,
        /// The client's own address.
        local: SocketAddr,
        /// Where it is connected to, as the client sees it.
        remote: SocketAddr,
    },
    /// Is there an offer for this connection, just accepted?
    Ask {
        /// The connection's descriptor in the process that asks.
        socket: u32,
        /// The server's own address.
        local: SocketAddr,
        /// The client's, as the server sees it.
        remote: SocketAddr,
    },
    /// Listeners at this address are served by Beeline. Is not answered.
    Announce {
        /// The address, which may be unspecified.
        local: SocketAddr,
    },
    /// Is there an agent?
    Hail,
    /// The page, on which the agent tells of itself and of offers.
    Page,
}

impl Question {
    /// The bytes of the message.
    #[must_use]
    pub fn encode(&self) -> [u8; QUESTION_BYTES] {
        let (kind, number, one, two) = match *self {
            Self::Query { destination } => (1, 0, Some(destination), None),
            Self::Confirm { socket, local, remote } => (2, socket, Some(local), Some(remote)),
            Self::Ask { socket, local, remote } => (3, socket, Some(local), Some(remote)),
            Self::Announce { local } => (4, 0, Some(local), None),
            Self::Hail => (5, 0, None, None),
            Self::Page => (6, 0, None, None),
        };
        Writer::new()
            .u32(MAGIC)
            .u16(VERSION)
            .u8(kind)
            .u8(0)
            .u32(number)
            .u32(0)
            .put(&written(one))
            .put(&written(two))
            .finish()
    }

    /// Reads a message.
    ///
    /// # Errors
    /// [`Answer::Version`] for a message of another version, [`Answer::Refused`] for what is none.
    pub fn decode(bytes: &[u8]) -> Result<Question, Answer> {
        if u32_at(bytes, 0) != Some(MAGIC) {
            return Err(Answer::Refused);
        }
        if u16_at(bytes, 4) != Some(VERSION) {
            return Err(Answer::Version);
        }
        // One form only: what was left out is zero, and nothing follows.
        Self::read(bytes).filter(|question| question.encode() == *bytes).ok_or(Answer::Refused)
    }

    fn read(bytes: &[u8]) -> Option<Question> {
        let socket = u32_at(bytes, 8)?;
        let (one, two) = (address_at(bytes, 16)?, address_at(bytes, 16 + ADDRESS_BYTES)?);
        Some(match u8_at(bytes, 6)? {
            1 => Self::Query { destination: one? },
            2 => Self::Confirm { socket, local: one?, remote: two? },
            3 => Self::Ask { socket, local: one?, remote: two? },
            4 => Self::Announce { local: one? },
            5 => Self::Hail,
            6 => Self::Page,
            _ => return None,
        })
    }
}

/// What the agent answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Answer {
    /// To a query: the destination seems to be served. With the client's end of the lane.
    Likely = 1,
    /// To a query: nobody is known to be served there.
    Unknown = 2,
    /// To a query: nobody is known there yet, but the agent will learn of somebody by the connection.
    Probe = 3,
    /// The configuration does not let them meet, or what was shown is not what it should be.
    Refused = 4,
    /// There is no room.
    Full = 5,
    /// Another version of the agent speaks otherwise.
    Version = 6,
    /// To a question about an accepted connection: there is an offer. With the server's end of its lane.
    Lane = 7,
    /// To such a question: there is none.
    None = 8,
    /// To [`Question::Confirm`], once the connection is known, and to [`Question::Hail`].
    Done = 9,
    /// The agent cannot tell which connection a socket is an end of: this kernel does not let it, or there is none.
    Unproved = 10,
    /// To [`Question::Page`]. With its memory, which nobody but the agent can write.
    Page = 11,
}

/// What an answer says besides.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Besides {
    /// The connection shall end when its TCP connection does.
    pub cuts: bool,
    /// The client is of the server's own user, or the host's root.
    pub own_user: bool,
}

impl Answer {
    const ALL: [Answer; 11] = [
        Answer::Likely,
        Answer::Unknown,
        Answer::Probe,
        Answer::Refused,
        Answer::Full,
        Answer::Version,
        Answer::Lane,
        Answer::None,
        Answer::Done,
        Answer::Unproved,
        Answer::Page,
    ];

    /// Whether a descriptor comes with it.
    #[must_use]
    pub const fn has_descriptor(self) -> bool {
        matches!(self, Self::Likely | Self::Lane | Self::Page)
    }

    /// The bytes of the message.
    #[must_use]
    pub fn encode(self, besides: Besides) -> [u8; ANSWER_BYTES] {
        let flags = u8::from(besides.cuts) | u8::from(besides.own_user) << 1;
        Writer::new().u32(MAGIC).u16(VERSION).u8(self as u8).u8(flags).finish()
    }

    /// Reads a message, and what it says besides. An agent of another version is [`Answer::Version`].
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<(Answer, Besides)> {
        if u32_at(bytes, 0) != Some(MAGIC) {
            return None;
        }
        if u16_at(bytes, 4) != Some(VERSION) {
            return Some((Answer::Version, Besides::default()));
        }
        let code = u8_at(bytes, 6)?;
        let answer = Self::ALL.into_iter().find(|answer| *answer as u8 == code)?;
        let flags = u8_at(bytes, 7)?;
        let besides = Besides { cuts: flags & 1 != 0, own_user: flags & 2 != 0 };
        (answer.encode(besides) == *bytes).then_some((answer, besides))
    }
}

/// The place of a listener in the map on the agent's page: of a port, in the network namespace with this cookie.
#[must_use]
pub const fn place_of(namespace: u64, port: u16) -> u32 {
    // The multiplier of a linear congruential generator: neighbours come to lie apart.
    let mixed = (namespace.rotate_left(16) ^ port as u64).wrapping_mul(0x5851_f42d_4c95_7f2d);
    (mixed >> 40) as u32 % PLACES
}

/// The IPv4 address of an IPv4 client, however its socket writes it.
#[must_use]
pub fn plain(address: SocketAddr) -> SocketAddr {
    match address {
        SocketAddr::V6(v6) => match v6.ip().to_ipv4_mapped() {
            Some(ip) => SocketAddr::new(IpAddr::V4(ip), v6.port()),
            None => SocketAddrV6::new(*v6.ip(), v6.port(), 0, 0).into(),
        },
        SocketAddr::V4(v4) => SocketAddr::new(IpAddr::V4(Ipv4Addr::from(v4.ip().octets())), v4.port()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::vec::Vec;

    fn questions() -> Vec<Question> {
        let address = |text: &str| text.parse().unwrap();
        Vec::from([
            Question::Query { destination: address("10.1.2.3:80") },
            Question::Query { destination: address("[fe80::1%7]:65535") },
            Question::Query { destination: address("[::1]:1") },
            Question::Confirm { socket: 7, local: address("10.1.2.4:40000"), remote: address("10.1.2.3:80") },
            Question::Ask { socket: 0xdead_beef, local: address("10.1.2.3:80"), remote: address("[::2]:9") },
            Question::Announce { local: address("0.0.0.0:80") },
            Question::Hail,
            Question::Page,
        ])
    }

    #[test]
    fn messages_lead_back_to_themselves() {
        for question in questions() {
            assert_eq!(Question::decode(&question.encode()), Ok(question));
        }
        for answer in Answer::ALL {
            for (cuts, own_user) in [(false, false), (false, true), (true, false), (true, true)] {
                let besides = Besides { cuts, own_user };
                assert_eq!(Answer::decode(&answer.encode(besides)), Some((answer, besides)));
            }
        }
    }

    #[test]
    fn another_version_is_told_from_nonsense() {
        let mut bytes = Question::Hail.encode();
        bytes[4] ^= 1;
        assert_eq!(Question::decode(&bytes), Err(Answer::Version));
        bytes[0] ^= 1;
        assert_eq!(Question::decode(&bytes), Err(Answer::Refused));
        let mut bytes = Answer::Done.encode(Besides::default());
        bytes[5] ^= 1;
        assert_eq!(Answer::decode(&bytes), Some((Answer::Version, Besides::default())));
    }

    #[test]
    fn each_question_has_its_addresses_and_no_others() {
        let bytes = |kind: u8, one: bool, two: bool| {
            let address = Some("1.2.3.4:5".parse().unwrap());
            let mut bytes = Question::Hail.encode();
            bytes[6] = kind;
            bytes[16..40].copy_from_slice(&written(address.filter(|_| one)));
            bytes[40..].copy_from_slice(&written(address.filter(|_| two)));
            bytes
        };
        for kind in 0..9 {
            for (one, two) in [(false, false), (false, true), (true, false), (true, true)] {
                let fits = match kind {
                    1 | 4 => one && !two,
                    2 | 3 => one && two,
                    5 | 6 => !one && !two,
                    _ => false,
                };
                assert_eq!(Question::decode(&bytes(kind, one, two)).is_ok(), fits, "{kind} {one} {two}");
            }
        }
        assert_eq!(Question::decode(&Question::Hail.encode()[..63]), Err(Answer::Refused));
        assert_eq!(Question::decode(&[&Question::Hail.encode()[..], b"x"].concat()), Err(Answer::Refused));
    }

    #[test]
    fn the_listeners_of_a_host_lie_apart() {
        let places: std::collections::HashSet<u32> =
            (1..=16).flat_map(|namespace| (8000..8016).map(move |port| place_of(namespace, port))).collect();
        assert!(places.len() > 200 && places.iter().all(|place| *place < PLACES), "{}", places.len());
    }

    proptest! {
        #[test]
        fn any_bytes_are_survived(bytes: Vec<u8>) {
            let _ = (Question::decode(&bytes), Answer::decode(&bytes));
        }

        #[test]
        fn what_is_read_is_what_would_be_written(at in 0..QUESTION_BYTES, byte: u8, which in 0..8usize) {
            let mut bytes = questions()[which].encode();
            bytes[at] = byte;
            if let Ok(question) = Question::decode(&bytes) {
                prop_assert_eq!(question.encode(), bytes);
            }
        }
    }
}
