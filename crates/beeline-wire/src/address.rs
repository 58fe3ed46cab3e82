//! An address as a field of a message: family (0, 4 or 6), a zero, port (2), scope id (4), and 16 bytes, of IPv4 in its
//! mapped form. Numbers are in native order: both ends are on one host.

use core::net::{IpAddr, Ipv6Addr, SocketAddr, SocketAddrV6};

use crate::bytes::{Writer, array_at, u8_at, u16_at, u32_at};

/// Bytes of the field.
pub(crate) const ADDRESS_BYTES: usize = 24;

/// The field of an address, or of none.
pub(crate) fn written(address: Option<SocketAddr>) -> [u8; ADDRESS_BYTES] {
    let (family, port, scope, octets) = match address {
        None => (0, 0, 0, [0; 16]),
        Some(SocketAddr::V4(v4)) => (4, v4.port(), 0, v4.ip().to_ipv6_mapped().octets()),
        Some(SocketAddr::V6(v6)) => (6, v6.port(), v6.scope_id(), v6.ip().octets()),
    };
    Writer::new().u8(family).u8(0).u16(port).u32(scope).put(&octets).finish()
}

/// The address at a place of a message, or that there is none; `None` for what is no address.
#[allow(clippy::option_option, reason = "none written, and nothing readable, are two things")]
pub(crate) fn address_at(bytes: &[u8], at: usize) -> Option<Option<SocketAddr>> {
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
