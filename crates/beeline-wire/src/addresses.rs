//! The addresses of a network namespace: a dump of `RTM_GETADDR` (rtnetlink(7)).
//!
//! The answer comes in datagrams of many messages. [`read`] takes one of them; whoever asks decides how many to read,
//! since a namespace may have as many addresses as its owner likes.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::bytes::{Writer, array_at, u8_at};
use crate::netlink::{HEADER_BYTES, REQUEST, attributes, messages};

/// Bytes of the question.
pub const DUMP_BYTES: usize = HEADER_BYTES + 8;
/// Room for a datagram, as the kernel sends them to who asks for so much at once.
pub const DATAGRAM_BYTES: usize = 32 * 1024;

const RTM_NEWADDR: u16 = 20;
const RTM_GETADDR: u16 = 22;
/// `NLM_F_DUMP`.
const DUMP: u16 = 0x300;
const AF_INET: u8 = 2;
const AF_INET6: u8 = 10;
const IFA_ADDRESS: u16 = 1;
const IFA_LOCAL: u16 = 2;

/// Asks for all addresses of the namespace that the socket belongs to.
#[must_use]
pub fn dump(sequence: u32) -> [u8; DUMP_BYTES] {
    Writer::new().u32(DUMP_BYTES as u32).u16(RTM_GETADDR).u16(REQUEST | DUMP).u32(sequence).u32(0).put(&[0; 8]).finish()
}

/// Gives the addresses in one datagram of the answer to `found`. Whether more datagrams will come.
pub fn read(datagram: &[u8], sequence: u32, mut found: impl FnMut(IpAddr)) -> bool {
    for (kind, its_sequence, payload) in messages(datagram) {
        if its_sequence != sequence {
            continue;
        }
        if kind != RTM_NEWADDR {
            return false;
        }
        found_in(payload).into_iter().for_each(&mut found);
    }
    !datagram.is_empty()
}

/// The address of one interface; of a point-to-point link the near one.
fn found_in(payload: &[u8]) -> Option<IpAddr> {
    let family = u8_at(payload, 0)?;
    let (mut address, mut local) = (None, None);
    for attribute in attributes(payload.get(8..)?) {
        let (kind, value) = attribute?;
        let ip = match family {
            AF_INET => array_at::<4>(value, 0).map(|octets| IpAddr::V4(Ipv4Addr::from(octets))),
            AF_INET6 => array_at::<16>(value, 0).map(|octets| IpAddr::V6(Ipv6Addr::from(octets))),
            _ => None,
        };
        match kind {
            IFA_ADDRESS => address = ip,
            IFA_LOCAL => local = ip,
            _ => {}
        }
    }
    local.or(address)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::vec::Vec;

    fn message(kind: u16, family: u8, attributes: &[(u16, &[u8])]) -> Vec<u8> {
        let mut body = Vec::from([family, 24, 0, 0, 1, 0, 0, 0]);
        for (kind, value) in attributes {
            body.extend(((value.len() + 4) as u16).to_ne_bytes());
            body.extend(kind.to_ne_bytes());
            body.extend(*value);
            body.resize(body.len().next_multiple_of(4), 0);
        }
        let mut all = Vec::new();
        all.extend(((HEADER_BYTES + body.len()) as u32).to_ne_bytes());
        all.extend(kind.to_ne_bytes());
        all.extend([0; 2]);
        all.extend(7u32.to_ne_bytes());
        all.extend([0; 4]);
        all.extend(body);
        all
    }

    fn all(datagram: &[u8]) -> (bool, Vec<IpAddr>) {
        let mut found = Vec::new();
        (read(datagram, 7, |ip| found.push(ip)), found)
    }

    #[test]
    fn addresses_of_both_families_are_found_and_the_near_one_counts() {
        let v4 =
            message(RTM_NEWADDR, AF_INET, &[(IFA_ADDRESS, &[10, 0, 0, 9]), (IFA_LOCAL, &[10, 0, 0, 1]), (3, b"eth0")]);
        let v6 = message(RTM_NEWADDR, AF_INET6, &[(IFA_ADDRESS, &Ipv6Addr::LOCALHOST.octets())]);
        let wanted: Vec<IpAddr> = Vec::from(["10.0.0.1".parse().unwrap(), "::1".parse().unwrap()]);
        assert_eq!(all(&[v4.clone(), v6].concat()), (true, wanted));
        let done = message(3, 0, &[]);
        assert_eq!(all(&[v4.clone(), done].concat()), (false, Vec::from(["10.0.0.1".parse().unwrap()])));
        assert!(read(&v4, 8, |_| panic!("another's")));
        assert_eq!(all(&[]), (false, Vec::new()));
        assert_eq!(dump(7).len(), DUMP_BYTES);
    }

    proptest! {
        #[test]
        fn any_bytes_are_survived(bytes: Vec<u8>) {
            read(&bytes, 7, |_| ());
        }
    }
}
