//! Socket addresses as libfabric has them (`sockaddr`) and as Rust has them.

use std::ffi::CStr;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::ptr;

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

/// The network device that has an address.
pub(crate) fn netdev_of(address: IpAddr) -> Option<String> {
    let mut list = ptr::null_mut();
    // SAFETY: `list` takes the result.
    if unsafe { libc::getifaddrs(&raw mut list) } != 0 {
        return None;
    }
    let mut found = None;
    let mut next = list;
    // SAFETY: `next` is an entry of the list, which is there until it is freed below, or null.
    while let Some(entry) = unsafe { next.as_ref() }.filter(|_| found.is_none()) {
        // SAFETY: an entry's address is null, or a socket address as long as its family says.
        if unsafe { from_raw(entry.ifa_addr) }.is_some_and(|own| own.ip() == address) {
            // SAFETY: an entry's name ends in NUL.
            found = Some(unsafe { CStr::from_ptr(entry.ifa_name) }.to_string_lossy().into_owned());
        }
        next = entry.ifa_next;
    }
    // SAFETY: the list came from getifaddrs, and nothing refers to it any more.
    unsafe { libc::freeifaddrs(list) };
    found
}

/// The IP address that a `sockaddr` holds.
///
/// # Safety
/// It is null, or points to a socket address that is as long as its family says.
unsafe fn from_raw(raw: *const libc::sockaddr) -> Option<SocketAddr> {
    // SAFETY: the caller's promise; the family is a part of every socket address.
    let bytes = match i32::from(unsafe { raw.as_ref() }?.sa_family) {
        libc::AF_INET => size_of::<libc::sockaddr_in>(),
        libc::AF_INET6 => size_of::<libc::sockaddr_in6>(),
        _ => return None,
    };
    let mut storage = empty();
    // SAFETY: the caller's promise makes `bytes` readable, and the storage, which is another place, has room for any
    // address.
    unsafe { ptr::copy_nonoverlapping(raw.cast::<u8>(), (&raw mut storage).cast::<u8>(), bytes) };
    from_storage(&storage, u32::try_from(bytes).ok()?)
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

    #[test]
    fn a_network_device_is_found_by_its_address() {
        assert_eq!(netdev_of("127.0.0.1".parse().unwrap()).as_deref(), Some("lo"));
        assert_eq!(netdev_of("192.0.2.1".parse().unwrap()), None);
    }
}
