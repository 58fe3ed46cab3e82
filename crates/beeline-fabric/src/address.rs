//! Socket addresses as libfabric has them (`sockaddr`) and as Rust has them.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};

/// The address in the first `bytes` of `storage`; `None` for a family that is not IP or a length that is short.
pub(crate) fn from_storage(storage: &libc::sockaddr_storage, bytes: u32) -> Option<SocketAddr> {
    let bytes = usize::try_from(bytes).ok()?;
    match i32::from(storage.ss_family) {
        libc::AF_INET if bytes >= size_of::<libc::sockaddr_in>() => {
            // SAFETY: a `sockaddr_storage` is as large and as aligned as any socket address; any bytes are a valid
            // `sockaddr_in`, and the family says that these are meant as one.
            let v4 = unsafe { &*std::ptr::from_ref(storage).cast::<libc::sockaddr_in>() };
            let ip = Ipv4Addr::from(u32::from_be(v4.sin_addr.s_addr));
            Some(SocketAddr::new(IpAddr::V4(ip), u16::from_be(v4.sin_port)))
        }
        libc::AF_INET6 if bytes >= size_of::<libc::sockaddr_in6>() => {
            // SAFETY: as above, for `sockaddr_in6`.
            let v6 = unsafe { &*std::ptr::from_ref(storage).cast::<libc::sockaddr_in6>() };
            let ip = Ipv6Addr::from(v6.sin6_addr.s6_addr);
            Some(SocketAddr::V6(SocketAddrV6::new(ip, u16::from_be(v6.sin6_port), 0, v6.sin6_scope_id)))
        }
        _ => None,
    }
}

/// The address as C has it, and how many bytes of that are the address.
pub(crate) fn to_storage(address: &SocketAddr) -> (libc::sockaddr_storage, usize) {
    match address {
        SocketAddr::V4(v4) => storage_of(libc::sockaddr_in {
            sin_family: libc::AF_INET as libc::sa_family_t,
            sin_port: v4.port().to_be(),
            sin_addr: libc::in_addr { s_addr: u32::from(*v4.ip()).to_be() },
            sin_zero: [0; 8],
        }),
        SocketAddr::V6(v6) => storage_of(libc::sockaddr_in6 {
            sin6_family: libc::AF_INET6 as libc::sa_family_t,
            sin6_port: v6.port().to_be(),
            sin6_flowinfo: 0,
            sin6_addr: libc::in6_addr { s6_addr: v6.ip().octets() },
            sin6_scope_id: v6.scope_id(),
        }),
    }
}

fn storage_of<T>(address: T) -> (libc::sockaddr_storage, usize) {
    const { assert!(size_of::<T>() <= size_of::<libc::sockaddr_storage>()) };
    let mut storage = empty();
    // SAFETY: the storage is as large (checked) and as aligned as any socket address, which is what `T` is.
    unsafe { std::ptr::from_mut(&mut storage).cast::<T>().write(address) };
    (storage, size_of::<T>())
}

/// No address at all.
pub(crate) fn empty() -> libc::sockaddr_storage {
    // SAFETY: a `sockaddr_storage` is plain numbers, for which zero is a value.
    unsafe { std::mem::zeroed() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_both_families_survive_and_short_or_foreign_ones_are_not_read() {
        for text in ["10.9.0.1:4242", "[fd00::7]:1", "[fe80::1%3]:65535"] {
            let address: SocketAddr = text.parse().unwrap();
            let (storage, bytes) = to_storage(&address);
            let bytes = u32::try_from(bytes).unwrap();
            assert_eq!(from_storage(&storage, bytes), Some(address));
            assert_eq!(from_storage(&storage, bytes - 1), None);
        }
        assert_eq!(from_storage(&empty(), 28), None);
    }
}
