//! Files of strangers that were put aside ([`crate::meet::strangers`]), in a relay.
//!
//! Each close of such a file may take as long as the stranger likes, and not even SIGKILL ends it. So the relay, which
//! has a copy of each descriptor, keeps these. They are among the hidden ones, and the only ones there whose name is a
//! path, but for files of ours, which do no harm.

use core::iter;

use crate::life::rings::write_path;
use crate::{hidden, kernel};
use beeline_shm::sys::call;

/// Descriptors of a relay's own.
pub(super) const OWN: usize = 5;
/// Files that it can keep.
const ASIDE: usize = 59;

/// These descriptors, and those put aside; negative numbers stand for none.
pub(super) fn with_put_aside(own: [i32; OWN]) -> [i32; OWN + ASIDE] {
    let mut from = 0;
    let hidden = iter::from_fn(|| {
        let fd = hidden::next_hidden(from, u32::MAX)?;
        from = fd.saturating_add(1);
        Some(fd.cast_signed())
    });
    let hidden = hidden.take(hidden::hidden_count() as usize);
    let mut kept = [-1; OWN + ASIDE];
    kept.iter_mut().zip(own.into_iter().chain(hidden.filter(|fd| may_hold_up(*fd)))).for_each(|(kept, fd)| *kept = fd);
    kept
}

/// Whether a close may have to wait for a file system. Asks none.
fn may_hold_up(fd: i32) -> bool {
    let is_known = kernel::is_memory_file(fd)
        || kernel::getsockopt::<i32>(fd, libc::SOL_SOCKET, libc::SO_TYPE).is_ok()
        || kernel::is_pipe(fd);
    !is_known && !is_nowhere(fd)
}

/// Whether `fd` is of no file system that can be mounted: its name is no path.
fn is_nowhere(fd: i32) -> bool {
    let mut path = [0u8; 32];
    write_path(&mut path, b"/proc/self", fd);
    let mut first = 0u8;
    let args = [libc::AT_FDCWD as usize, path.as_ptr() as usize, (&raw mut first) as usize, 1, 0, 0];
    // SAFETY: a path that ends in NUL, and room for one byte.
    (unsafe { call(libc::SYS_readlinkat, args) }) == Ok(1) && first != b'/'
}

#[cfg(test)]
mod tests;
