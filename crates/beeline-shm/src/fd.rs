//! A descriptor that has an owner.

use crate::sys::{self, Errno, call};

/// Closes its descriptor when it goes out of scope, unless that was given away. The close enters the kernel directly,
/// where that of `std::os::fd::OwnedFd` is libc's: inside an app, a name that we interpose.
#[derive(PartialEq, Eq, Debug)]
pub struct Fd(i32);

impl Fd {
    /// Takes a descriptor that nobody else closes.
    #[must_use]
    pub const fn own(fd: i32) -> Fd {
        Fd(fd)
    }

    /// The descriptor, which stays owned.
    #[must_use]
    pub const fn get(&self) -> i32 {
        self.0
    }

    /// The descriptor, for good.
    #[must_use]
    pub const fn give_away(self) -> i32 {
        let fd = self.0;
        core::mem::forget(self);
        fd
    }
}

impl Drop for Fd {
    fn drop(&mut self) {
        let _ = sys::close(self.0);
    }
}

/// Two `AF_UNIX` stream sockets that are connected to each other, close-on-exec and not blocking.
///
/// # Errors
/// Those of socketpair(2).
pub fn socket_pair() -> Result<[Fd; 2], Errno> {
    let mut ends = [-1i32; 2];
    let kind = libc::SOCK_STREAM | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    let args = [libc::AF_UNIX as usize, kind as usize, 0, (&raw mut ends) as usize, 0, 0];
    // SAFETY: room for two descriptors.
    unsafe { call(libc::SYS_socketpair, args) }.map(|_| ends.map(Fd::own))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memfd;

    fn is_open(fd: i32) -> bool {
        memfd::identify(fd).is_ok()
    }

    #[test]
    fn it_is_closed_with_its_owner_and_not_if_it_was_given_away() {
        let [one, other] = socket_pair().unwrap();
        let (first, second) = (one.get(), other.give_away());
        assert!(is_open(first) && is_open(second));
        drop(one);
        assert!(!is_open(first) && is_open(second));
        drop(Fd::own(second));
        assert!(!is_open(second));
    }
}
