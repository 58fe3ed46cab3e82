//! The number in the SYN that the kernel has kept of a connection.

use beeline_wire::agent::number_in_syn;

use crate::kernel;

const TCP_SAVED_SYN: i32 = 28;
/// A saved SYN has at most two headers of 60 bytes, and less for IPv6 without extensions.
const SYN_BYTES: usize = 256;

/// The number in the SYN that began an accepted connection, if its listener keeps them. Can be read once.
#[must_use]
pub fn saved_number(fd: i32) -> Option<u32> {
    let syn: [u8; SYN_BYTES] = kernel::getsockopt(fd, libc::IPPROTO_TCP, TCP_SAVED_SYN).ok()?;
    number_in_syn(&syn)
}
