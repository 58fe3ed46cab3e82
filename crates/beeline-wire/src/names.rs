//! Abstract `AF_UNIX` names of doors and of clients' anchors.
//!
//! Both are the bytes *after* the leading NUL of `sun_path`; with it they fit into the 108 bytes
//! of `sockaddr_un` (unix(7)).
//!
//! 1. A door is `beeline/1/door/<cookie>`: the `SO_COOKIE` of its TCP listener as 16 hex digits.
//!    The kernel gives each socket another cookie, so a door cannot be mistaken for the door
//!    of an earlier listener on the same port.
//! 2. A client's anchor is `beeline/1/conn/<client>/<server>`. An endpoint is `4`, 8 hex digits of
//!    address and 4 of port, or `6`, 32 of address, 8 of scope id and 4 of port. All fields have
//!    fixed width, so the longest name, between two IPv6 endpoints, has 106 bytes and fits.
//! 3. There is exactly one name for a value: lower-case digits, IPv4-mapped addresses as IPv4,
//!    no flow label, and a scope id only where the kernel looks at it (link-local addresses).
//!    Anything else is not a name, so that comparing names is comparing values.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};

/// The longest name, without the leading NUL: `sizeof(sun_path) - 1` (unix(7)).
pub const NAME_BYTES_MAX: usize = 107;

const DOOR_PREFIX: &[u8] = b"beeline/1/door/";
const CONN_PREFIX: &[u8] = b"beeline/1/conn/";

/// A name, without the leading NUL.
#[derive(Clone, Copy)]
pub struct NameBuf {
    bytes: [u8; NAME_BYTES_MAX],
    len: usize,
}

impl NameBuf {
    const EMPTY: Self = Self { bytes: [0; NAME_BYTES_MAX], len: 0 };

    /// The bytes that follow the leading NUL in `sun_path`.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        self.bytes.get(..self.len).unwrap_or_default()
    }

    /// Adds bytes. The longest name fits, as a test shows, so nothing is ever left out.
    fn push(&mut self, source: &[u8]) {
        let end = self.len.saturating_add(source.len());
        if let Some(target) = self.bytes.get_mut(self.len..end) {
            target.copy_from_slice(source);
            self.len = end;
        }
    }

    fn push_hex(&mut self, source: &[u8]) {
        for byte in source {
            self.push(&[digit(byte >> 4), digit(byte & 15)]);
        }
    }
}

impl PartialEq for NameBuf {
    fn eq(&self, other: &Self) -> bool {
        self.as_bytes() == other.as_bytes()
    }
}

impl Eq for NameBuf {}

impl core::fmt::Debug for NameBuf {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "@{}", self.as_bytes().escape_ascii())
    }
}

/// The name of a door.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DoorName {
    /// `SO_COOKIE` of the TCP listener, which sock_diag shows to everybody.
    pub cookie: u64,
}

impl DoorName {
    /// The name for a cookie.
    #[must_use]
    pub fn encode(cookie: u64) -> NameBuf {
        let mut name = NameBuf::EMPTY;
        name.push(DOOR_PREFIX);
        name.push_hex(&cookie.to_be_bytes());
        name
    }

    /// Reads a name; only the exact form that [`DoorName::encode`] writes.
    #[must_use]
    pub fn parse(name: &[u8]) -> Option<Self> {
        let mut reader = Reader(name.strip_prefix(DOOR_PREFIX)?);
        let cookie = u64::from_be_bytes(reader.hex()?);
        reader.end()?;
        Some(Self { cookie })
    }
}

/// One end of a connection in its one canonical form.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Endpoint {
    address: SocketAddr,
}

impl Endpoint {
    /// Brings an address into canonical form: an IPv4-mapped IPv6 address becomes IPv4, the flow
    /// label is dropped, and the scope id is dropped unless the address is link-local.
    #[must_use]
    pub fn new(address: SocketAddr) -> Self {
        let address = match address {
            SocketAddr::V4(v4) => SocketAddr::V4(v4),
            SocketAddr::V6(v6) => match v6.ip().to_ipv4_mapped() {
                Some(ip) => SocketAddr::V4(SocketAddrV4::new(ip, v6.port())),
                None => {
                    let scope = if has_scope(*v6.ip()) { v6.scope_id() } else { 0 };
                    SocketAddr::V6(SocketAddrV6::new(*v6.ip(), v6.port(), 0, scope))
                }
            },
        };
        Self { address }
    }

    /// The canonical address.
    #[must_use]
    pub const fn address(self) -> SocketAddr {
        self.address
    }

    fn push_to(self, name: &mut NameBuf) {
        match self.address {
            SocketAddr::V4(v4) => {
                name.push(b"4");
                name.push_hex(&v4.ip().octets());
            }
            SocketAddr::V6(v6) => {
                name.push(b"6");
                name.push_hex(&v6.ip().octets());
                name.push_hex(&v6.scope_id().to_be_bytes());
            }
        }
        name.push_hex(&self.address.port().to_be_bytes());
    }

    fn read(reader: &mut Reader<'_>) -> Option<Self> {
        let read = match reader.byte()? {
            b'4' => {
                let ip = IpAddr::V4(Ipv4Addr::from(reader.hex::<4>()?));
                SocketAddr::new(ip, u16::from_be_bytes(reader.hex()?))
            }
            b'6' => {
                let ip = Ipv6Addr::from(reader.hex::<16>()?);
                let scope = u32::from_be_bytes(reader.hex()?);
                let port = u16::from_be_bytes(reader.hex()?);
                SocketAddr::V6(SocketAddrV6::new(ip, port, 0, scope))
            }
            _ => return None,
        };
        let endpoint = Self::new(read);
        (endpoint.address == read).then_some(endpoint)
    }
}

impl From<SocketAddr> for Endpoint {
    fn from(address: SocketAddr) -> Self {
        Self::new(address)
    }
}

/// Whether the kernel looks at the scope id of an address (`__ipv6_addr_needs_scope_id` for what a
/// TCP connection can have): link-local unicast.
fn has_scope(ip: Ipv6Addr) -> bool {
    ip.is_unicast_link_local()
}

/// The name of a client's anchor: it reserves the client's address for this connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ConnName {
    /// The address that the client takes.
    pub client: Endpoint,
    /// The address that the client connects to.
    pub server: Endpoint,
}

impl ConnName {
    /// The name for this connection.
    #[must_use]
    pub fn encode(&self) -> NameBuf {
        let mut name = NameBuf::EMPTY;
        name.push(CONN_PREFIX);
        self.client.push_to(&mut name);
        name.push(b"/");
        self.server.push_to(&mut name);
        name
    }

    /// A number by which names are told apart at first sight; never 0, and below 2^30.
    #[must_use]
    pub fn sum(&self) -> u32 {
        /// Spreads what differs in few bits.
        const SPREAD: u64 = 0x9E37_79B9_7F4A_7C15;
        let sum = [self.client, self.server].into_iter().fold(0, |sum: u64, Endpoint { address }| {
            let ip = match address.ip() {
                IpAddr::V4(ip) => u128::from(ip.to_bits()),
                IpAddr::V6(ip) => ip.to_bits(),
            };
            [(ip >> 64) as u64, ip as u64, address.port().into()]
                .into_iter()
                .fold(sum, |sum, part| (sum ^ part ^ sum >> 32).wrapping_mul(SPREAD))
        });
        (sum >> 34) as u32 | 1
    }

    /// Reads a name; only the exact form that [`ConnName::encode`] writes.
    #[must_use]
    pub fn parse(name: &[u8]) -> Option<Self> {
        let mut reader = Reader(name.strip_prefix(CONN_PREFIX)?);
        let client = Endpoint::read(&mut reader)?;
        if reader.byte()? != b'/' {
            return None;
        }
        let server = Endpoint::read(&mut reader)?;
        reader.end()?;
        Some(Self { client, server })
    }
}

struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn byte(&mut self) -> Option<u8> {
        let (first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*first)
    }

    fn hex<const N: usize>(&mut self) -> Option<[u8; N]> {
        let mut bytes = [0; N];
        for target in &mut bytes {
            *target = (value(self.byte()?)? << 4) | value(self.byte()?)?;
        }
        Some(bytes)
    }

    fn end(self) -> Option<()> {
        self.0.is_empty().then_some(())
    }
}

/// The digit for a number below 16.
const fn digit(value: u8) -> u8 {
    match value {
        0..=9 => b'0'.wrapping_add(value),
        _ => b'a'.wrapping_add(value.wrapping_sub(10)),
    }
}

/// The number of a digit; lower case only, because a name has one form.
const fn value(digit: u8) -> Option<u8> {
    match digit {
        b'0'..=b'9' => Some(digit.wrapping_sub(b'0')),
        b'a'..=b'f' => Some(digit.wrapping_sub(b'a').wrapping_add(10)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::vec::Vec;

    fn name(client: &str, server: &str) -> ConnName {
        ConnName { client: Endpoint::new(client.parse().unwrap()), server: Endpoint::new(server.parse().unwrap()) }
    }

    #[test]
    fn names_look_as_the_module_says() {
        assert_eq!(DoorName::encode(0xabc).as_bytes(), b"beeline/1/door/0000000000000abc");
        assert_eq!(
            name("127.0.0.1:80", "10.0.0.255:65535").encode().as_bytes(),
            b"beeline/1/conn/47f0000010050/40a0000ffffff"
        );
        assert_eq!(
            name("[fe80::1%7]:1", "[::1]:2").encode().as_bytes(),
            b"beeline/1/conn/6fe800000000000000000000000000001000000070001/600000000000000000000000000000001000000000002"
        );
    }

    #[test]
    fn the_longest_name_fits_whole() {
        let longest = name("[fe80::1%4294967295]:65535", "[fe80::2%4294967295]:65535");
        let encoded = longest.encode();
        assert_eq!(encoded.as_bytes().len(), 106);
        assert_eq!(ConnName::parse(encoded.as_bytes()), Some(longest));
    }

    #[test]
    fn one_value_has_one_form() {
        assert_eq!(Endpoint::new("[::ffff:1.2.3.4]:5".parse().unwrap()), Endpoint::new("1.2.3.4:5".parse().unwrap()));
        assert_eq!(
            Endpoint::new("[2001:db8::1%3]:5".parse().unwrap()),
            Endpoint::new("[2001:db8::1]:5".parse().unwrap())
        );
        assert_ne!(Endpoint::new("[fe80::1%3]:5".parse().unwrap()), Endpoint::new("[fe80::1%4]:5".parse().unwrap()));
        let flow = SocketAddrV6::new(Ipv6Addr::LOCALHOST, 5, 9, 9);
        assert_eq!(Endpoint::new(flow.into()).address(), "[::1]:5".parse().unwrap());
    }

    #[test]
    fn other_forms_are_no_names() {
        for wrong in [
            &b""[..],
            b"beeline/1/door/",
            b"beeline/1/door/0000000000000ABC",
            b"beeline/1/door/0000000000000abc0",
            b"beeline/1/door/0000000000000ab",
            b"beeline/2/door/0000000000000abc",
            b"\0beeline/1/door/0000000000000abc",
        ] {
            assert_eq!(DoorName::parse(wrong), None, "{}", wrong.escape_ascii());
        }
        for wrong in [
            &b""[..],
            b"beeline/1/conn/",
            b"beeline/1/conn/47f0000010050",
            b"beeline/1/conn/47f0000010050/",
            b"beeline/1/conn/47f000001005040a0000ffffff",
            b"beeline/1/conn/47f0000010050/40a0000ffffff/",
            b"beeline/1/conn/47F0000010050/40a0000ffffff",
            b"beeline/1/conn/57f0000010050/40a0000ffffff",
            // A mapped address must be written as IPv4, a scope only where it counts.
            b"beeline/1/conn/600000000000000000000ffff01020304000000000001/40a0000ffffff",
            b"beeline/1/conn/600000000000000000000000000000001000000070001/40a0000ffffff",
        ] {
            assert_eq!(ConnName::parse(wrong), None, "{}", wrong.escape_ascii());
        }
    }

    fn address() -> impl Strategy<Value = SocketAddr> {
        prop_oneof![
            any::<([u8; 4], u16)>().prop_map(|(ip, port)| SocketAddr::new(IpAddr::from(ip), port)),
            any::<([u8; 16], u16, u32, u32)>().prop_map(|(ip, port, flow, scope)| {
                SocketAddrV6::new(Ipv6Addr::from(ip), port, flow, scope).into()
            }),
            any::<([u8; 8], u16, u32)>().prop_map(|(low, port, scope)| {
                let mut ip = [0; 16];
                ip[..2].copy_from_slice(&[0xfe, 0x80]);
                ip[8..].copy_from_slice(&low);
                SocketAddrV6::new(Ipv6Addr::from(ip), port, 0, scope).into()
            }),
            any::<([u8; 4], u16)>()
                .prop_map(|(ip, port)| SocketAddr::new(IpAddr::V6(Ipv4Addr::from(ip).to_ipv6_mapped()), port)),
        ]
    }

    proptest! {
        #[test]
        fn names_lead_back_to_their_values(client in address(), server in address(), cookie: u64) {
            let conn = ConnName { client: Endpoint::new(client), server: Endpoint::new(server) };
            prop_assert_eq!(ConnName::parse(conn.encode().as_bytes()), Some(conn));
            prop_assert_eq!(DoorName::parse(DoorName::encode(cookie).as_bytes()), Some(DoorName { cookie }));
        }

        #[test]
        fn what_parses_is_what_would_be_written(
            client in address(), server in address(), at in 0..120_usize, byte: u8, cut in 0..120_usize
        ) {
            let conn = ConnName { client: Endpoint::new(client), server: Endpoint::new(server) };
            let mut bytes: Vec<u8> = conn.encode().as_bytes().to_vec();
            if let Some(target) = bytes.get_mut(at) { *target = byte; }
            bytes.truncate(cut.max(60));
            if let Some(parsed) = ConnName::parse(&bytes) {
                let encoded = parsed.encode();
                prop_assert_eq!(encoded.as_bytes(), &bytes[..]);
            }
        }

        #[test]
        fn any_bytes_are_survived(bytes: Vec<u8>) {
            let _ = ConnName::parse(&bytes);
            let _ = DoorName::parse(&bytes);
        }
    }

    #[test]
    fn sums_tell_names_apart_and_leave_two_bits() {
        use std::collections::BTreeSet;
        let server = Endpoint::new("127.0.0.1:80".parse().unwrap());
        let names = |client: &str| {
            let ip: IpAddr = client.parse().unwrap();
            (1..=u16::MAX).map(move |port| ConnName { client: Endpoint::new(SocketAddr::new(ip, port)), server })
        };
        let sums: Vec<u32> = names("127.0.0.1").chain(names("::1")).map(|name| name.sum()).collect();
        assert!(sums.iter().all(|sum| *sum != 0 && sum >> 30 == 0));
        let different = sums.iter().collect::<BTreeSet<_>>().len();
        // By chance some 16 of so many numbers below 2^29 are others' again.
        assert!(different + 64 > sums.len(), "{different} of {}", sums.len());
    }
}
