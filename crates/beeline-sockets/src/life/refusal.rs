//! What the kernel must not be asked to do.

use crate::desc::{Desc, Kind};
use crate::orphan::orphan_used;
use crate::{Errno, follow, table};

/// What the kernel must not be asked to do with `fd`, although nobody claimed the call: an anchor never
/// sees an app's bytes. No lock may be held.
#[must_use]
#[inline]
pub fn refusal(fd: i32) -> Option<Errno> {
    refusal_of(fd, table::get(fd)?)
}

#[cold]
fn refusal_of(fd: i32, desc: &'static Desc) -> Option<Errno> {
    match desc.kind() {
        // Another holder has demoted it; if this one cannot follow it is an orphan now.
        Kind::Lane if follow::follow_if_relayed(fd, desc) && desc.kind() == Kind::Orphan => Some(orphan_used(desc)),
        Kind::Orphan => Some(orphan_used(desc)),
        // The moment between the end of a lane and the close of its anchor, seen by another thread.
        Kind::Closed => Some(Errno(libc::EBADF)),
        _ => None,
    }
}
