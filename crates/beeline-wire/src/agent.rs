//! What a program and its host's agent say to each other (`docs/design/0008-namespaces.md`).
//!
//! 1. The agent listens at [`SOCKET`], `AF_UNIX` and `SOCK_SEQPACKET`. A connection to it carries one question and its
//!    answer; after [`Answer`]`::Likely`, one [`Question::Confirm`] more, which is not answered.
//! 2. Each message has one form. A query comes with one descriptor, a socket that is no connection's yet; nothing else that a
//!    program says comes with any. So an agent that is stopped, or lingers, never holds a connection.
//! 3. Addresses and numbers are the program's word. Who lies about its own finds nobody, or is found by nobody.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};

use crate::bytes::{Writer, array_at, u8_at, u16_at, u32_at};

/// Where the agent listens.
pub const SOCKET: &str = "/run/beeline-agent/agent.sock";
/// The same for the kernel.
pub const SOCKET_PATH: &core::ffi::CStr = c"/run/beeline-agent/agent.sock";

/// Bytes of a question.
pub const QUESTION_BYTES: usize = 64;
/// Bytes of an answer.
pub const ANSWER_BYTES: usize = 8;
/// How many places the map on the agent's page has, one of which each number leads to.
pub const PLACES: u32 = 4096;

/// "BLag", as a number.
const MAGIC: u32 = 0x424c_6167;
const VERSION: u16 = 2;
/// Bytes of an address in a question.
const ADDRESS_BYTES: usize = 24;

/// A message to the agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Question {
    /// May this socket, which is not connected, meet who serves the destination? With the socket.
    Query {
        /// Where it is to be connected to.
        destination: SocketAddr,
    },
    /// The connection for a query that was answered with [`Answer::Likely`] stands, and the client's end of its lane with it.
    Confirm {
        /// The client's own address.
        local: SocketAddr,
    },
    /// Is there an offer for this connection, just accepted?
    Ask {
        /// The number in its saved SYN.
        number: u32,
        /// The server's own address.
        local: SocketAddr,
        /// The client's, as the server sees it.
        remote: SocketAddr,
    },
    /// Listeners at this address are served by Beeline.
    Announce {
        /// The address, which may be unspecified.
        local: SocketAddr,
    },
    /// The page that tells of offers.
    Attach,
}

impl Question {
    /// How many descriptors come with it.
    #[must_use]
    pub const fn descriptors(&self) -> usize {
        if matches!(self, Self::Query { .. }) { 1 } else { 0 }
    }

    /// The bytes of the message.
    #[must_use]
    pub fn encode(&self) -> [u8; QUESTION_BYTES] {
        let (kind, number, one, two) = match *self {
            Self::Query { destination } => (1, 0, Some(destination), None),
            Self::Confirm { local } => (2, 0, Some(local), None),
            Self::Ask { number, local, remote } => (3, number, Some(local), Some(remote)),
            Self::Announce { local } => (4, 0, Some(local), None),
            Self::Attach => (5, 0, None, None),
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
        let number = u32_at(bytes, 8)?;
        let (one, two) = (address_at(bytes, 16)?, address_at(bytes, 16 + ADDRESS_BYTES)?);
        Some(match u8_at(bytes, 6)? {
            1 => Self::Query { destination: one? },
            2 => Self::Confirm { local: one? },
            3 => Self::Ask { number, local: one?, remote: two? },
            4 => Self::Announce { local: one? },
            5 => Self::Attach,
            _ => return None,
        })
    }
}

fn written(address: Option<SocketAddr>) -> [u8; ADDRESS_BYTES] {
    let (family, port, scope, octets) = match address {
        None => (0, 0, 0, [0; 16]),
        Some(SocketAddr::V4(v4)) => (4, v4.port(), 0, v4.ip().to_ipv6_mapped().octets()),
        Some(SocketAddr::V6(v6)) => (6, v6.port(), v6.scope_id(), v6.ip().octets()),
    };
    Writer::new().u8(family).u8(0).u16(port).u32(scope).put(&octets).finish()
}

/// The address at a place of a message, or that there is none; `None` for what is no address.
#[allow(clippy::option_option, reason = "none written, and nothing readable, are two things")]
fn address_at(bytes: &[u8], at: usize) -> Option<Option<SocketAddr>> {
    let part = array_at::<ADDRESS_BYTES>(bytes, at)?;
    let (port, scope) = (u16_at(&part, 2)?, u32_at(&part, 4)?);
    let ip = Ipv6Addr::from(array_at::<16>(&part, 8)?);
    match u8_at(&part, 0)? {
        0 => Some(None),
        4 => Some(Some(SocketAddr::new(IpAddr::V4(ip.to_ipv4_mapped()?), port))),
        6 => Some(Some(SocketAddrV6::new(ip, port, 0, scope).into())),
        _ => None,
    }
}

/// What the agent answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Answer {
    /// To a query: the destination seems to be served; the socket has its number. With the client's end of the lane.
    Likely = 1,
    /// To a query: nobody is known to be served there.
    Unknown = 2,
    /// To a query: nobody is known there yet, but the socket has a number, by which the agent may learn of somebody.
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
    /// To all others: done. After [`Question::Attach`] with the page.
    Done = 9,
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
    const ALL: [Answer; 9] = [
        Answer::Likely,
        Answer::Unknown,
        Answer::Probe,
        Answer::Refused,
        Answer::Full,
        Answer::Version,
        Answer::Lane,
        Answer::None,
        Answer::Done,
    ];

    /// Whether a descriptor must come with it, may not, or either (`None`).
    #[must_use]
    pub const fn has_descriptor(self) -> Option<bool> {
        match self {
            Self::Likely | Self::Lane => Some(true),
            Self::Done => None,
            _ => Some(false),
        }
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

/// The place of a number in the map on the agent's page. It tells twelve bits of a number of which thirty-two are needed.
#[must_use]
pub const fn place_of(number: u32) -> u32 {
    number % PLACES
}

/// The initial sequence number of the client in a saved SYN (`TCP_SAVED_SYN`, tcp(7)): IP header, then TCP header.
#[must_use]
pub fn number_in_syn(syn: &[u8]) -> Option<u32> {
    /// `IPPROTO_TCP`.
    const TCP: u8 = 6;
    let first = u8_at(syn, 0)?;
    let (header, protocol) = match first >> 4 {
        4 => (usize::from(first & 15).checked_mul(4)?, u8_at(syn, 9)?),
        // With extension headers in between it is not looked for.
        6 => (40, u8_at(syn, 6)?),
        _ => return None,
    };
    if protocol != TCP || header < 20 {
        return None;
    }
    let number = array_at::<4>(syn, header.checked_add(4)?).map(u32::from_be_bytes)?;
    // A SYN without ACK.
    (u8_at(syn, header.checked_add(13)?)? & 0x12 == 0x02).then_some(number)
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
            Question::Confirm { local: address("10.1.2.4:40000") },
            Question::Ask { number: 0xdead_beef, local: address("10.1.2.3:80"), remote: address("[::2]:9") },
            Question::Announce { local: address("0.0.0.0:80") },
            Question::Attach,
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
    fn the_socket_is_one() {
        assert_eq!(SOCKET_PATH.to_str(), Ok(SOCKET));
    }

    #[test]
    fn another_version_is_told_from_nonsense() {
        let mut bytes = Question::Attach.encode();
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
            let mut bytes = Question::Attach.encode();
            bytes[6] = kind;
            bytes[16..40].copy_from_slice(&written(address.filter(|_| one)));
            bytes[40..].copy_from_slice(&written(address.filter(|_| two)));
            bytes
        };
        for kind in 0..8 {
            for (one, two) in [(false, false), (false, true), (true, false), (true, true)] {
                let fits = match kind {
                    1 | 2 | 4 => one && !two,
                    3 => one && two,
                    5 => !one && !two,
                    _ => false,
                };
                assert_eq!(Question::decode(&bytes(kind, one, two)).is_ok(), fits, "{kind} {one} {two}");
            }
        }
        assert_eq!(Question::decode(&Question::Attach.encode()[..63]), Err(Answer::Refused));
        assert_eq!(Question::decode(&[&Question::Attach.encode()[..], b"x"].concat()), Err(Answer::Refused));
    }

    #[test]
    fn numbers_stand_where_the_headers_say() {
        let mut v4 = [0u8; 44];
        (v4[0], v4[9]) = (0x46, 6);
        v4[28..32].copy_from_slice(&0xdead_beef_u32.to_be_bytes());
        v4[24 + 13] = 2;
        assert_eq!(number_in_syn(&v4), Some(0xdead_beef), "with IP options");
        v4[24 + 13] = 0x12;
        assert_eq!(number_in_syn(&v4), None, "a SYN-ACK");
        let mut v6 = [0u8; 60];
        (v6[0], v6[6]) = (0x60, 6);
        v6[44..48].copy_from_slice(&7u32.to_be_bytes());
        v6[53] = 2;
        assert_eq!(number_in_syn(&v6), Some(7));
        assert_eq!(number_in_syn(&v6[..53]), None);
        assert_eq!(number_in_syn(&[]), None);
    }

    proptest! {
        #[test]
        fn any_bytes_are_survived(bytes: Vec<u8>) {
            let _ = (Question::decode(&bytes), Answer::decode(&bytes), number_in_syn(&bytes));
        }

        #[test]
        fn what_is_read_is_what_would_be_written(at in 0..QUESTION_BYTES, byte: u8, which in 0..7usize) {
            let mut bytes = questions()[which].encode();
            bytes[at] = byte;
            if let Ok(question) = Question::decode(&bytes) {
                prop_assert_eq!(question.encode(), bytes);
            }
        }
    }
}
