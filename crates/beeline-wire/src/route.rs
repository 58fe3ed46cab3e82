//! Where does an address lead? Asked with `RTM_GETROUTE` (rtnetlink(7)).
//!
//! A destination is local exactly when its route has type `RTN_LOCAL`; comparing with the addresses of
//! interfaces would miss the rest of 127.0.0.0/8, "any IP" routes and policy routing. The answer also
//! holds the source address that the kernel would pick for a socket that is not bound.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use crate::bytes::{Writer, array_at, u8_at, u32_at};
use crate::names::Endpoint;
use crate::netlink::{HEADER_BYTES, REQUEST, Reply, attributes, find_reply};

/// The greatest size of a question.
pub const QUERY_BYTES_MAX: usize = HEADER_BYTES + 12 + 20 + 8;

/// Room for the kernel's answer to one question, which has some 250 bytes where a route has all metrics, and the
/// encapsulation of a tunnel besides. Callers may have little room on their stacks.
pub const REPLY_BYTES_MAX: usize = 1024;

const NEW_ROUTE: u16 = 24;
const GET_ROUTE: u16 = 26;
const AF_INET: u8 = 2;
const AF_INET6: u8 = 10;
const RTA_DST: u16 = 1;
const RTA_OIF: u16 = 4;
const RTA_PREFSRC: u16 = 7;
const RTN_UNICAST: u8 = 1;
const RTN_LOCAL: u8 = 2;
/// `struct rtmsg`
const ROUTE_BYTES: usize = 12;

/// A question: where does this address lead?
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RouteQuery {
    destination: Endpoint,
}

/// A question as bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueryBuf {
    bytes: [u8; QUERY_BYTES_MAX],
    len: usize,
}

impl QueryBuf {
    /// The message to send.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        self.bytes.get(..self.len).unwrap_or_default()
    }
}

/// What kind of place an address leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RouteKind {
    /// This host.
    Local,
    /// Another host.
    Unicast,
    /// Something that TCP does not connect to: the number of the type in rtnetlink(7).
    Other(u8),
}

/// Where an address leads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Route {
    /// What kind of place it is.
    pub kind: RouteKind,
    /// The source address the kernel would pick.
    pub source: Option<IpAddr>,
    /// The interface it goes out through, 0 if the kernel does not say.
    pub interface: u32,
}

/// Why there is no route in an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RouteError {
    /// The kernel refused: a positive errno (`ENETUNREACH`, `EHOSTUNREACH`, `EACCES`, `EINVAL`).
    Refused(i32),
    /// The datagram holds no answer to this question. Another may: read again.
    Unanswered,
    /// The datagram is not what rtnetlink(7) describes.
    Malformed,
}

impl core::fmt::Display for RouteError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            RouteError::Refused(errno) => write!(f, "the kernel answered with errno {errno}"),
            RouteError::Unanswered => f.write_str("no answer to this question"),
            RouteError::Malformed => f.write_str("the answer is malformed"),
        }
    }
}

impl core::error::Error for RouteError {}

impl RouteQuery {
    /// Asks for a destination; its port does not matter.
    #[must_use]
    pub fn new(destination: SocketAddr) -> Self {
        Self { destination: Endpoint::new(destination) }
    }

    /// The message to send to port id 0 of a `NETLINK_ROUTE` socket.
    #[must_use]
    pub fn encode(&self, sequence: u32) -> QueryBuf {
        let destination = self.destination.address();
        let scope = match destination {
            SocketAddr::V6(v6) => v6.scope_id(),
            SocketAddr::V4(_) => 0,
        };
        let (family, address_bytes): (u8, u8) = match destination {
            SocketAddr::V4(_) => (AF_INET, 4),
            SocketAddr::V6(_) => (AF_INET6, 16),
        };
        let scope_bytes: u8 = if scope == 0 { 0 } else { 8 };
        // At most 28 + 4 + 16 + 8 = 56, far from the limit of u8.
        let len = 32_u8.saturating_add(address_bytes).saturating_add(scope_bytes);
        let writer = Writer::<QUERY_BYTES_MAX>::new()
            // struct nlmsghdr
            .u32(u32::from(len))
            .u16(GET_ROUTE)
            .u16(REQUEST)
            .u32(sequence)
            .u32(0)
            // struct rtmsg: all of the address counts
            .u8(family)
            .u8(address_bytes.saturating_mul(8))
            .put(&[0; 10])
            .u16(u16::from(address_bytes.saturating_add(4)))
            .u16(RTA_DST);
        let writer = match destination.ip() {
            IpAddr::V4(v4) => writer.put(&v4.octets()),
            IpAddr::V6(v6) => writer.put(&v6.octets()),
        };
        let writer = if scope == 0 { writer } else { writer.u16(8).u16(RTA_OIF).u32(scope) };
        QueryBuf { len: writer.len(), bytes: writer.finish() }
    }

    /// Reads the answer out of one datagram.
    ///
    /// `sequence` is what [`RouteQuery::encode`] was given, `port_id` the port id of the asking
    /// socket. The caller has checked that the datagram comes from port id 0, the kernel.
    ///
    /// # Errors
    /// [`RouteError`] says why there is no route.
    pub fn decode(&self, datagram: &[u8], sequence: u32, port_id: u32) -> Result<Route, RouteError> {
        match find_reply(datagram, sequence, port_id, NEW_ROUTE) {
            Reply::Message(answer) => self.read_answer(answer).ok_or(RouteError::Malformed),
            Reply::Refused(errno) => Err(RouteError::Refused(errno)),
            Reply::Nothing => Err(RouteError::Unanswered),
            Reply::Malformed => Err(RouteError::Malformed),
        }
    }

    /// `struct rtmsg` (family first, type at offset 7) and its attributes.
    fn read_answer(&self, answer: &[u8]) -> Option<Route> {
        let (header, list) = answer.split_at_checked(ROUTE_BYTES)?;
        let destination = self.destination.address().ip();
        let family = u8_at(header, 0)?;
        if family != if destination.is_ipv4() { AF_INET } else { AF_INET6 } {
            return None;
        }
        let kind = match u8_at(header, 7)? {
            RTN_LOCAL => RouteKind::Local,
            RTN_UNICAST => RouteKind::Unicast,
            other => RouteKind::Other(other),
        };
        let mut route = Route { kind, source: None, interface: 0 };
        for attribute in attributes(list) {
            match attribute? {
                (RTA_DST, value) if address(family, value)? != destination => return None,
                (RTA_PREFSRC, value) => route.source = Some(address(family, value)?),
                (RTA_OIF, value) => route.interface = u32_at(value, 0)?,
                _ => {}
            }
        }
        Some(route)
    }
}

/// An address of the family, of exactly its length.
fn address(family: u8, value: &[u8]) -> Option<IpAddr> {
    match (family, value.len()) {
        (AF_INET, 4) => array_at::<4>(value, 0).map(|octets| IpAddr::V4(Ipv4Addr::from(octets))),
        (AF_INET6, 16) => array_at::<16>(value, 0).map(|octets| IpAddr::V6(Ipv6Addr::from(octets))),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::vec::Vec;

    fn query(destination: &str) -> RouteQuery {
        RouteQuery::new(destination.parse().unwrap())
    }

    fn answer(kind: u8, attributes: &[(u16, &[u8])]) -> Vec<u8> {
        let mut payload = Vec::from([0; ROUTE_BYTES]);
        payload[0] = AF_INET;
        payload[7] = kind;
        for (kind, value) in attributes {
            payload.extend((4 + value.len() as u16).to_ne_bytes());
            payload.extend(kind.to_ne_bytes());
            payload.extend(*value);
            payload.resize(payload.len().next_multiple_of(4), 0);
        }
        let mut bytes = Vec::new();
        bytes.extend((16 + payload.len() as u32).to_ne_bytes());
        bytes.extend(NEW_ROUTE.to_ne_bytes());
        bytes.extend(0_u16.to_ne_bytes());
        bytes.extend(9_u32.to_ne_bytes());
        bytes.extend(77_u32.to_ne_bytes());
        bytes.extend(payload);
        bytes
    }

    #[test]
    fn questions_have_the_length_they_say() {
        for (destination, len) in [("1.2.3.4:0", 36), ("[::1]:0", 48), ("[fe80::1%3]:0", 56)] {
            let question = query(destination).encode(1);
            assert_eq!(question.as_bytes().len(), len);
            assert_eq!(question.as_bytes()[..4], (len as u32).to_ne_bytes());
        }
    }

    #[test]
    fn answers_are_read() {
        let bytes = answer(
            RTN_LOCAL,
            &[(RTA_DST, &[10, 0, 0, 1]), (RTA_OIF, &3_u32.to_ne_bytes()), (RTA_PREFSRC, &[10, 0, 0, 2]), (99, b"x")],
        );
        assert_eq!(
            query("10.0.0.1:0").decode(&bytes, 9, 77),
            Ok(Route { kind: RouteKind::Local, source: Some("10.0.0.2".parse().unwrap()), interface: 3 })
        );
        assert_eq!(query("10.0.0.1:0").decode(&bytes, 8, 77), Err(RouteError::Unanswered));
        for (number, kind) in [(1, RouteKind::Unicast), (3, RouteKind::Other(3))] {
            let route = query("10.0.0.1:0").decode(&answer(number, &[]), 9, 77).unwrap();
            assert_eq!(route.kind, kind);
        }
    }

    #[test]
    fn answers_that_do_not_fit_the_question_are_malformed() {
        let malformed = Err(RouteError::Malformed);
        let wrong = [
            answer(2, &[(RTA_DST, &[10, 0, 0, 9])]),
            answer(2, &[(RTA_DST, &[10, 0, 0])]),
            answer(2, &[(RTA_PREFSRC, &[0; 16])]),
            answer(2, &[(RTA_OIF, &[0; 3])]),
        ];
        for bytes in wrong {
            assert_eq!(query("10.0.0.1:0").decode(&bytes, 9, 77), malformed);
        }
        assert_eq!(query("[::1]:0").decode(&answer(2, &[]), 9, 77), malformed);
        let whole = answer(2, &[(RTA_OIF, &[0; 4])]);
        for cut in 1..whole.len() {
            assert_eq!(query("10.0.0.1:0").decode(&whole[..cut], 9, 77), malformed);
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_survived(bytes: Vec<u8>) {
            let _ = query("[::1]:0").decode(&bytes, 9, 77);
        }

        #[test]
        fn any_attributes_are_survived(list: Vec<u8>, kind: u8) {
            let mut bytes = answer(kind, &[]);
            bytes.extend(&list);
            let len = bytes.len() as u32;
            bytes[..4].copy_from_slice(&len.to_ne_bytes());
            let _ = query("10.0.0.1:0").decode(&bytes, 9, 77);
        }
    }
}
