//! Connections that move from TCP to a lane (`docs/design/0009-moving.md`), for those who wait for several.

use libc::{POLLIN, POLLPRI, POLLRDHUP, POLLRDNORM, pollfd};

use crate::{io, table};

/// The TCP socket below a lane to which bytes still come that way, for somebody who waits for bytes; and whether the anchor has
/// something to tell.
pub(super) fn below(entry: &pollfd, events: i16) -> Option<(i32, bool)> {
    let desc = table::get(entry.fd).filter(|desc| desc.moving.may_cross())?;
    let asks = events & (POLLIN | POLLPRI | POLLRDNORM | POLLRDHUP) != 0;
    if asks { desc.glance(|| io::crossing::below(desc)).flatten() } else { None }
}

/// Whether an entry may take a place more, for that. Nobody keeps what it leads to.
pub(super) fn may_have_below(fd: i32) -> bool {
    table::get(fd).is_some_and(|desc| desc.moving.is_candidate() || desc.moving.may_cross())
}
