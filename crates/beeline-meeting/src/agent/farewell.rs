//! How a client that has taken its lane back tells the agent so (rule 17).
//!
//! An anchor whose client's end has closed looks alike whether its client took the lane back or has died; and what one
//! that has died wrote is kept for its server. So a client that has withdrawn, and whose bytes therefore nobody reads
//! there, gives its end of the anchor a name, which the kernel chooses. The agent sees that name at its own end, also
//! after the other one has closed. No descriptor and no byte is touched for it.
//!
//! Whoever lies in this way loses his own lane.

use crate::kernel::{self, SockAddr};

/// The length of an address without a name.
const FAMILY_BYTES: u32 = size_of::<libc::sa_family_t>() as u32;
/// The length of one that the kernel has chosen: a zero, and five digits.
const CHOSEN_BYTES: u32 = FAMILY_BYTES + 6;

/// The client says it. Its end of the lane is withdrawn, for good.
pub fn say(anchor: i32) {
    let mut address = SockAddr::empty();
    address.storage.ss_family = libc::AF_UNIX as u16;
    address.length = FAMILY_BYTES;
    // If it fails the agent keeps the parcel as that of a client that has died.
    let _ = kernel::bind(anchor, &address);
}

/// Whether the client at the other end of a parcel has said so.
#[must_use]
pub fn was_said(parcel: i32) -> bool {
    kernel::getpeername(parcel).is_ok_and(|name| name.length == CHOSEN_BYTES)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agent::host::pair;
    use std::os::fd::AsRawFd;

    #[test]
    fn a_client_that_says_so_is_told_from_one_that_dies_also_after_its_end() {
        let (says, parcel) = pair().unwrap();
        assert!(!was_said(parcel.as_raw_fd()));
        say(says.as_raw_fd());
        assert!(was_said(parcel.as_raw_fd()));
        drop(says);
        assert!(was_said(parcel.as_raw_fd()));
        let (dies, parcel) = pair().unwrap();
        drop(dies);
        assert!(!was_said(parcel.as_raw_fd()) && !was_said(-1));
    }
}
