//! What a program and its host's agent say to each other (`docs/design/0007-namespaces.md`).
//!
//! 1. The agent listens at [`SOCKET`], `AF_UNIX` and `SOCK_SEQPACKET`. A connection to it carries one question and its
//!    answer; after [`Answer`]`::Likely`, one [`Kind::Give`] more, which is not answered.
//! 2. Each message has one form, and the descriptors that its kind says. Anything else ends the connection.
//! 3. Addresses in questions are hints. What counts is read from the descriptors.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};

use crate::bytes::{Writer, array_at, u8_at, u16_at, u32_at};

/// Where the agent listens.
pub const SOCKET: &str = "/run/beeline-agent/agent.sock";

/// Bytes of a question.
pub const QUESTION_BYTES: usize = 32;
/// Bytes of an answer.
pub const ANSWER_BYTES: usize = 8;
/// Descriptors with one message, at most.
pub const DESCRIPTORS_MAX: usize = 1;

/// "BLag", as a number.
const MAGIC: u32 = 0x424c_6167;
const VERSION: u16 = 1;

/// What a question is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// May this socket, not yet connected, meet who serves the destination? With the socket.
    Query = 1,
    /// The parcel for a query that was answered with yes. With the parcel.
    Give = 2,
    /// Is there an offer for this connection, just accepted? With its socket.
    Ask = 3,
    /// This listener is served by Beeline. With the listener.
    Announce = 4,
    /// The page that tells whether there are offers.
    Attach = 5,
}

impl Kind {
    const ALL: [Kind; 5] = [Kind::Query, Kind::Give, Kind::Ask, Kind::Announce, Kind::Attach];

    /// How many descriptors come with it.
    #[must_use]
    pub const fn descriptors(self) -> usize {
        match self {
            Self::Query | Self::Give | Self::Ask | Self::Announce => 1,
            Self::Attach => 0,
        }
    }
}

/// A message to the agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Question {
    /// What it is about.
    pub kind: Kind,
    /// Where a query leads; none for others.
    pub destination: Option<SocketAddr>,
}

impl Question {
    /// The bytes of the message.
    #[must_use]
    pub fn encode(&self) -> [u8; QUESTION_BYTES] {
        let (family, port, scope, octets) = match self.destination {
            None => (0, 0, 0, [0; 16]),
            Some(SocketAddr::V4(v4)) => (4, v4.port(), 0, v4.ip().to_ipv6_mapped().octets()),
            Some(SocketAddr::V6(v6)) => (6, v6.port(), v6.scope_id(), v6.ip().octets()),
        };
        Writer::new()
            .u32(MAGIC)
            .u16(VERSION)
            .u8(self.kind as u8)
            .u8(family)
            .u16(port)
            .u16(0)
            .u32(scope)
            .put(&octets)
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
        Self::read(bytes).ok_or(Answer::Refused)
    }

    fn read(bytes: &[u8]) -> Option<Question> {
        let code = u8_at(bytes, 6)?;
        let kind = Kind::ALL.into_iter().find(|kind| *kind as u8 == code)?;
        let (family, port, scope) = (u8_at(bytes, 7)?, u16_at(bytes, 8)?, u32_at(bytes, 12)?);
        let ip = Ipv6Addr::from(array_at::<16>(bytes, 16)?);
        let destination = match family {
            0 => None,
            4 => Some(SocketAddr::new(IpAddr::V4(ip.to_ipv4_mapped()?), port)),
            6 => Some(SocketAddrV6::new(ip, port, 0, scope).into()),
            _ => return None,
        };
        let question = Question { kind, destination };
        // One form only: what was left out is zero, and nothing follows.
        let fits = (kind == Kind::Query) == destination.is_some() && question.encode() == *bytes;
        fits.then_some(question)
    }
}

/// What the agent answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Answer {
    /// To a query: the destination seems to be served; the socket has its number.
    Likely = 1,
    /// To a query: nobody is known to be served there.
    Unknown = 2,
    /// The configuration does not let them meet, or what was shown is not what it should be.
    Refused = 3,
    /// There is no room.
    Full = 4,
    /// Another version of the agent speaks otherwise.
    Version = 5,
    /// To a question about an accepted connection: there is an offer. With its parcel.
    Lane = 6,
    /// To such a question: there is none.
    None = 7,
    /// To all others: done. After [`Kind::Attach`] with the page.
    Done = 8,
}

impl Answer {
    const ALL: [Answer; 8] = [
        Answer::Likely,
        Answer::Unknown,
        Answer::Refused,
        Answer::Full,
        Answer::Version,
        Answer::Lane,
        Answer::None,
        Answer::Done,
    ];

    /// The bytes of the message. `cuts`: whether the connection shall end when its TCP connection does.
    #[must_use]
    pub fn encode(self, cuts: bool) -> [u8; ANSWER_BYTES] {
        Writer::new().u32(MAGIC).u16(VERSION).u8(self as u8).u8(u8::from(cuts)).finish()
    }

    /// Reads a message, and whether the connection shall end when its TCP connection does. An agent of another version
    /// is [`Answer::Version`].
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<(Answer, bool)> {
        if u32_at(bytes, 0) != Some(MAGIC) {
            return None;
        }
        if u16_at(bytes, 4) != Some(VERSION) {
            return Some((Answer::Version, false));
        }
        let code = u8_at(bytes, 6)?;
        let answer = Self::ALL.into_iter().find(|answer| *answer as u8 == code)?;
        let cuts = u8_at(bytes, 7)? != 0;
        (answer.encode(cuts) == *bytes).then_some((answer, cuts))
    }
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
        let mut all = Vec::new();
        for kind in Kind::ALL {
            if kind == Kind::Query {
                for text in ["10.1.2.3:80", "[fe80::1%7]:65535", "[::1]:1"] {
                    all.push(Question { kind, destination: Some(text.parse().unwrap()) });
                }
            } else {
                all.push(Question { kind, destination: None });
            }
        }
        all
    }

    #[test]
    fn messages_lead_back_to_themselves() {
        for question in questions() {
            assert_eq!(Question::decode(&question.encode()), Ok(question));
        }
        for answer in Answer::ALL {
            for cuts in [false, true] {
                assert_eq!(Answer::decode(&answer.encode(cuts)), Some((answer, cuts)));
            }
        }
    }

    #[test]
    fn another_version_is_told_from_nonsense() {
        let mut bytes = Question { kind: Kind::Ask, destination: None }.encode();
        bytes[4] ^= 1;
        assert_eq!(Question::decode(&bytes), Err(Answer::Version));
        bytes[0] ^= 1;
        assert_eq!(Question::decode(&bytes), Err(Answer::Refused));
        let mut bytes = Answer::Done.encode(false);
        bytes[5] ^= 1;
        assert_eq!(Answer::decode(&bytes), Some((Answer::Version, false)));
    }

    #[test]
    fn a_query_needs_a_destination_and_nothing_else_has_one() {
        let none = Question { kind: Kind::Query, destination: None }.encode();
        assert_eq!(Question::decode(&none), Err(Answer::Refused));
        let one = Question { kind: Kind::Ask, destination: Some("1.2.3.4:5".parse().unwrap()) }.encode();
        assert_eq!(Question::decode(&one), Err(Answer::Refused));
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
