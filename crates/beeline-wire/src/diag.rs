//! Which TCP listener would take a connection? Asked with `NETLINK_SOCK_DIAG` (sock_diag(7)).
//!
//! 1. The question is an *exact* lookup (no `NLM_F_DUMP`): the kernel looks the addresses up as it does
//!    for an arriving SYN (`inet_diag_find_one_icsk`), so it finds wildcard and dual-stack listeners and
//!    picks the member of an `SO_REUSEPORT` group. It costs one system call each way and needs no
//!    privilege.
//! 2. Field names are seen from the listener: `sport` and `src` are *its* port and address, that is
//!    the destination; `dport` and `dst` are the client's.
//! 3. Because the lookup is that of a segment, it prefers an established connection between
//!    the two addresses, and it finds a wildcard listener for any destination, local or not. The
//!    caller must know that the destination is local (see [`crate::route`]); a socket that is
//!    not listening is reported as such.
//! 4. The cookie in the answer is the listener's `SO_COOKIE` and names its door. The user id is that
//!    of the listening socket's inode in the asker's user namespace.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};

use crate::bytes::{Writer, array_at, u8_at, u32_at};
use crate::names::Endpoint;
use crate::netlink::{HEADER_BYTES, REQUEST, Reply, find_reply};

/// The size of a question.
pub const QUERY_BYTES: usize = HEADER_BYTES + 56;

/// Room for the kernel's answer to one question, which asks for no extensions: 130 bytes, and 100 for each MD5 key of
/// the listener where the asker has `CAP_NET_ADMIN`. A longer answer is malformed here. Callers may have little room on
/// their stacks.
pub const REPLY_BYTES_MAX: usize = 1024;

/// `SOCK_DIAG_BY_FAMILY`
const BY_FAMILY: u16 = 20;
const IPPROTO_TCP: u8 = 6;
const AF_INET: u8 = 2;
const AF_INET6: u8 = 10;
/// `TCP_LISTEN` in `net/tcp_states.h`
const TCP_LISTEN: u8 = 10;
/// `INET_DIAG_NOCOOKIE`
const NO_COOKIE: u32 = u32::MAX;
/// `struct inet_diag_msg`
const ANSWER_BYTES: usize = 72;

/// A question: who would take a connection to this destination?
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListenerQuery {
    destination: Endpoint,
    source: Option<Endpoint>,
    interface: u32,
}

/// A listener as the kernel describes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Listener {
    /// `SO_COOKIE` of the listener.
    pub cookie: u64,
    /// The user that owns it. The overflow uid (65534) stands for every user outside the
    /// asker's user namespace and proves nothing.
    pub uid: u32,
    /// The interface it is bound to with `SO_BINDTODEVICE`, 0 if none.
    pub interface: u32,
    /// The inode of the socket, as in `/proc/<pid>/fd`.
    pub inode: u32,
    /// The address it listens on, wildcard or not.
    pub local: SocketAddr,
    /// Connections that wait to be accepted.
    pub waiting: u32,
    /// How many may wait (listen(2)); the kernel takes one more.
    pub backlog: u32,
}

impl Listener {
    /// Whether the kernel takes no more connections at the moment (`sk_acceptq_is_full`).
    #[must_use]
    pub const fn is_full(&self) -> bool {
        self.waiting > self.backlog
    }
}

/// Why there is no listener in an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LookupError {
    /// The kernel found none, or refused: a positive errno (`ENOENT` when there is none).
    Refused(i32),
    /// A socket was found that does not listen, in this TCP state.
    NotListening(u8),
    /// The datagram holds no answer to this question. Another may: read again.
    Unanswered,
    /// The datagram is not what sock_diag(7) describes.
    Malformed,
}

impl core::fmt::Display for LookupError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            LookupError::Refused(errno) => write!(f, "the kernel answered with errno {errno}"),
            LookupError::NotListening(state) => {
                write!(f, "the socket does not listen (TCP state {state})")
            }
            LookupError::Unanswered => f.write_str("no answer to this question"),
            LookupError::Malformed => f.write_str("the answer is malformed"),
        }
    }
}

impl core::error::Error for LookupError {}

impl ListenerQuery {
    /// Asks for a destination.
    ///
    /// `source` is the client's address. It matters only within an `SO_REUSEPORT` group, whose
    /// member is picked by all four numbers; a source of the other family is left out.
    #[must_use]
    pub fn new(destination: SocketAddr, source: Option<SocketAddr>) -> Self {
        let destination = Endpoint::new(destination);
        let interface = match destination.address() {
            SocketAddr::V6(v6) => v6.scope_id(),
            SocketAddr::V4(_) => 0,
        };
        Self {
            destination,
            source: source
                .map(Endpoint::new)
                .filter(|source| source.address().is_ipv4() == destination.address().is_ipv4()),
            interface,
        }
    }

    /// The same question for a segment that arrives on this interface (its index).
    #[must_use]
    pub const fn on_interface(mut self, interface: u32) -> Self {
        self.interface = interface;
        self
    }

    /// The message to send to port id 0 of a `NETLINK_SOCK_DIAG` socket.
    #[must_use]
    pub fn encode(&self, sequence: u32) -> [u8; QUERY_BYTES] {
        self.write(sequence).finish()
    }

    fn write(&self, sequence: u32) -> Writer<QUERY_BYTES> {
        let destination = self.destination.address();
        let (source_port, source_ip) = match self.source.map(Endpoint::address) {
            Some(source) => (source.port(), padded(source.ip())),
            None => (0, [0; 16]),
        };
        let family = if destination.is_ipv4() { AF_INET } else { AF_INET6 };
        Writer::new()
            // struct nlmsghdr
            .u32(QUERY_BYTES as u32)
            .u16(BY_FAMILY)
            .u16(REQUEST)
            .u32(sequence)
            .u32(0)
            // struct inet_diag_req_v2
            .u8(family)
            .u8(IPPROTO_TCP)
            .u8(0)
            .u8(0)
            .u32(1 << TCP_LISTEN)
            // struct inet_diag_sockid
            .put(&destination.port().to_be_bytes())
            .put(&source_port.to_be_bytes())
            .put(&padded(destination.ip()))
            .put(&source_ip)
            .u32(self.interface)
            .u32(NO_COOKIE)
            .u32(NO_COOKIE)
    }

    /// Reads the answer out of one datagram.
    ///
    /// `sequence` is what [`ListenerQuery::encode`] was given, `port_id` the port id of the
    /// asking socket. The caller has checked that the datagram comes from port id 0, the kernel.
    ///
    /// # Errors
    /// [`LookupError`] says why there is no listener.
    pub fn decode(&self, datagram: &[u8], sequence: u32, port_id: u32) -> Result<Listener, LookupError> {
        match self.read(datagram, sequence, port_id)? {
            (TCP_LISTEN, listener) => Ok(listener),
            (state, _) => Err(LookupError::NotListening(state)),
        }
    }

    /// The same where it is asked for the connection between the two addresses: its inode, 0 for one that no process
    /// has any more. `None` if there is a listener in its place.
    ///
    /// # Errors
    /// [`LookupError`] says why there is no socket.
    pub fn decode_connected(&self, datagram: &[u8], sequence: u32, port_id: u32) -> Result<Option<u32>, LookupError> {
        let (state, found) = self.read(datagram, sequence, port_id)?;
        Ok((state != TCP_LISTEN).then_some(found.inode))
    }

    /// The state of what was found, and what is told of it.
    fn read(&self, datagram: &[u8], sequence: u32, port_id: u32) -> Result<(u8, Listener), LookupError> {
        let answer = match find_reply(datagram, sequence, port_id, BY_FAMILY) {
            Reply::Message(answer) => answer,
            Reply::Refused(errno) => return Err(LookupError::Refused(errno)),
            Reply::Nothing => return Err(LookupError::Unanswered),
            Reply::Malformed => return Err(LookupError::Malformed),
        };
        let (state, listener) = read_answer(answer).ok_or(LookupError::Malformed)?;
        if listener.local.port() != self.destination.address().port() {
            return Err(LookupError::Malformed);
        }
        Ok((state, listener))
    }
}

/// `struct inet_diag_msg`: family, state, timer, retrans (a byte each), the socket's id (48 bytes),
/// then expires, rqueue, wqueue, uid and inode (4 bytes each).
fn read_answer(answer: &[u8]) -> Option<(u8, Listener)> {
    let answer = answer.first_chunk::<ANSWER_BYTES>()?;
    let state = u8_at(answer, 1)?;
    let port = u16::from_be_bytes(array_at(answer, 4)?);
    let interface = u32_at(answer, 40)?;
    let ip: [u8; 16] = array_at(answer, 8)?;
    let local = match u8_at(answer, 0)? {
        AF_INET => {
            let [a, b, c, d, ..] = ip;
            SocketAddr::new(IpAddr::V4(Ipv4Addr::new(a, b, c, d)), port)
        }
        AF_INET6 => SocketAddr::V6(SocketAddrV6::new(Ipv6Addr::from(ip), port, 0, 0)),
        _ => return None,
    };
    let low = u32_at(answer, 44)?;
    let high = u32_at(answer, 48)?;
    let cookie = u64::from(low) | (u64::from(high) << 32);
    // The kernel starts at 1, and all ones means "no cookie" in a question.
    if cookie == 0 || cookie == u64::MAX {
        return None;
    }
    let (waiting, backlog) = (u32_at(answer, 56)?, u32_at(answer, 60)?);
    let (uid, inode) = (u32_at(answer, 64)?, u32_at(answer, 68)?);
    Some((state, Listener { cookie, uid, interface, inode, local, waiting, backlog }))
}

/// An address in the 16 bytes that sock_diag has for it, zeros behind an IPv4 address.
fn padded(ip: IpAddr) -> [u8; 16] {
    match ip {
        IpAddr::V4(v4) => Writer::new().put(&v4.octets()).finish(),
        IpAddr::V6(v6) => v6.octets(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::vec::Vec;

    fn query() -> ListenerQuery {
        ListenerQuery::new("127.0.0.1:80".parse().unwrap(), None)
    }

    fn message(kind: u16, sequence: u32, port_id: u32, payload: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::new();
        bytes.extend((16 + payload.len() as u32).to_ne_bytes());
        bytes.extend(kind.to_ne_bytes());
        bytes.extend(0_u16.to_ne_bytes());
        bytes.extend(sequence.to_ne_bytes());
        bytes.extend(port_id.to_ne_bytes());
        bytes.extend(payload);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        bytes
    }

    fn answer(state: u8, port: u16) -> [u8; ANSWER_BYTES] {
        let mut bytes = [0; ANSWER_BYTES];
        bytes[0] = AF_INET;
        bytes[1] = state;
        bytes[4..6].copy_from_slice(&port.to_be_bytes());
        bytes[8..12].copy_from_slice(&[127, 0, 0, 1]);
        bytes[40..44].copy_from_slice(&3_u32.to_ne_bytes());
        bytes[44..48].copy_from_slice(&0xdead_u32.to_ne_bytes());
        bytes[48..52].copy_from_slice(&1_u32.to_ne_bytes());
        bytes[56..60].copy_from_slice(&129_u32.to_ne_bytes());
        bytes[60..64].copy_from_slice(&128_u32.to_ne_bytes());
        bytes[64..68].copy_from_slice(&1000_u32.to_ne_bytes());
        bytes[68..72].copy_from_slice(&55_u32.to_ne_bytes());
        bytes
    }

    #[test]
    fn questions_fill_their_message() {
        for (destination, source) in [
            ("1.2.3.4:5", None),
            ("1.2.3.4:5", Some("4.3.2.1:6")),
            ("[::1]:5", Some("[fe80::1%3]:6")),
            ("[::1]:5", Some("1.2.3.4:5")),
        ] {
            let query = ListenerQuery::new(destination.parse().unwrap(), source.map(|source| source.parse().unwrap()));
            assert_eq!(query.write(9).len(), QUERY_BYTES);
        }
    }

    #[test]
    fn a_question_has_the_listener_as_its_source() {
        let query = ListenerQuery::new("[::ffff:1.2.3.4]:5".parse().unwrap(), Some("4.3.2.1:6".parse().unwrap()));
        let bytes = query.encode(9);
        assert_eq!(bytes[16], AF_INET);
        assert_eq!(bytes[24..28], [0, 5, 0, 6]);
        assert_eq!(bytes[28..32], [1, 2, 3, 4]);
        assert_eq!(bytes[44..48], [4, 3, 2, 1]);
        assert_eq!(bytes[64..72], [0xff; 8]);
    }

    #[test]
    fn an_answer_is_read() {
        let bytes = message(BY_FAMILY, 9, 77, &answer(TCP_LISTEN, 80));
        assert_eq!(
            query().decode(&bytes, 9, 77),
            Ok(Listener {
                cookie: 0x1_0000_dead,
                uid: 1000,
                interface: 3,
                inode: 55,
                local: "127.0.0.1:80".parse().unwrap(),
                waiting: 129,
                backlog: 128,
            })
        );
    }

    #[test]
    fn answers_to_other_questions_are_passed_over() {
        let good = message(BY_FAMILY, 9, 77, &answer(TCP_LISTEN, 80));
        let old = message(BY_FAMILY, 8, 77, &answer(TCP_LISTEN, 81));
        let foreign = message(BY_FAMILY, 9, 78, &answer(TCP_LISTEN, 81));
        let noop = message(1, 9, 77, &[]);
        let unanswered = Err(LookupError::Unanswered);
        assert_eq!(query().decode(&old, 9, 77), unanswered);
        assert_eq!(query().decode(&foreign, 9, 77), unanswered);
        assert_eq!(query().decode(&noop, 9, 77), unanswered);
        assert_eq!(query().decode(&[], 9, 77), unanswered);
        let all = [old, foreign, noop, good].concat();
        assert!(query().decode(&all, 9, 77).is_ok());
    }

    #[test]
    fn refusals_and_oddities_are_told_apart() {
        let decode = |bytes: Vec<u8>| query().decode(&bytes, 9, 77).unwrap_err();
        let refused = |errno: i32| {
            let mut payload = Vec::from((-errno).to_ne_bytes());
            payload.extend([0; 16]);
            decode(message(2, 9, 77, &payload))
        };
        assert_eq!(refused(2), LookupError::Refused(2));
        assert_eq!(refused(13), LookupError::Refused(13));
        assert_eq!(refused(0), LookupError::Malformed);
        assert_eq!(refused(-5), LookupError::Malformed);
        assert_eq!(refused(i32::MIN + 1), LookupError::Malformed);
        assert_eq!(decode(message(2, 9, 77, &[1])), LookupError::Malformed);
        assert_eq!(decode(message(3, 9, 77, &[])), LookupError::Refused(2));
        assert_eq!(decode(message(99, 9, 77, &[])), LookupError::Malformed);
        let state = |state, port| decode(message(BY_FAMILY, 9, 77, &answer(state, port)));
        assert_eq!(state(1, 80), LookupError::NotListening(1));
        assert_eq!(state(TCP_LISTEN, 81), LookupError::Malformed);
        for (offset, value) in [(44, [0; 8]), (44, [0xff; 8])] {
            let mut answer = answer(TCP_LISTEN, 80);
            answer[offset..offset + 8].copy_from_slice(&value);
            assert_eq!(decode(message(BY_FAMILY, 9, 77, &answer)), LookupError::Malformed);
        }
        let mut family = answer(TCP_LISTEN, 80);
        family[0] = 1;
        assert_eq!(decode(message(BY_FAMILY, 9, 77, &family)), LookupError::Malformed);
    }

    #[test]
    fn cut_answers_are_malformed() {
        let bytes = message(BY_FAMILY, 9, 77, &answer(TCP_LISTEN, 80));
        for cut in 1..bytes.len() {
            assert_eq!(query().decode(&bytes[..cut], 9, 77), Err(LookupError::Malformed), "cut to {cut} bytes");
        }
        let mut no_progress = bytes;
        no_progress[..4].copy_from_slice(&[0; 4]);
        assert_eq!(query().decode(&no_progress, 9, 77), Err(LookupError::Malformed));
    }

    proptest! {
        #[test]
        fn any_bytes_are_survived(bytes: Vec<u8>, sequence: u32, port_id: u32) {
            let _ = query().decode(&bytes, sequence, port_id);
        }

        #[test]
        fn damaged_answers_are_survived(offset in 0..88_usize, byte: u8) {
            let mut bytes = message(BY_FAMILY, 9, 77, &answer(TCP_LISTEN, 80));
            bytes[offset] = byte;
            let _ = query().decode(&bytes, 9, 77);
        }
    }
}
