//! Life in the app's process: start, options, forks, and what happens to fd numbers.
//!
//! [`start`] runs once, from the library's constructor or from the first call that makes something of
//! ours, whichever is earlier: another library's constructor may open sockets before ours has run.

mod adopt;
mod code;
mod control;
pub mod environment;
mod fds;
mod fork;
mod handover;
pub mod image;
mod listeners;
pub mod objects;
mod open_fds;
pub(crate) mod relay;
mod rights;
mod rings;
mod sandbox;
mod stranger;
mod text;

use self::image::{Image, Program};
use crate::desc::{Desc, Kind};
use crate::lock::Lock;
use crate::{Errno, follow, process, slots, stats, table};

pub use crate::changing::{Changing, changing};
pub use crate::hidden::{hidden_add, hidden_remove, is_hidden};
pub(crate) use crate::orphan::orphan_used;
pub use crate::process::{FORKS, VFORKS, config, count_fork, forks, is_guest_of_parent, stopped};
pub use code::{allow_lanes, code_is_loaded};
pub use control::{fcntl, ioctl, sockatmark};
pub use fds::{close, close_range, closefrom, dup, dup2, dup3};
pub use fork::{around_fork, around_fork_child, around_fork_parent, around_fork_prepare, forked, leave};
pub use handover::{Loan, after_spawn, before_exec, before_spawn, exec_failed, named_in_spawn};
pub(crate) use listeners::adopt_listener;
pub use relay::{demote, has_left_lanes, leave_lanes};
pub use rights::{brings_rights, passes_sockets, receive, send};
pub use rings::know_ring;
pub use sandbox::{before_filter, before_limit};
pub(crate) use stranger::serve_streams;

static STARTING: Lock = Lock::new();

/// Prepares the process: options, fork handlers, anchors inherited over `exec`. Later calls do nothing.
pub fn start() {
    if !process::has_begun() {
        start_now();
    }
}

#[cold]
fn start_now() {
    {
        let _guard = STARTING.lock();
        if process::has_begun() {
            return;
        }
        process::become_owner();
        let _ = config();
        if !sandbox::begin() {
            adopt::inherited();
        }
        process::begun();
    }
    if process::is_sealed() {
        return;
    }
    stats::succeed();
    slots::open_slots();
    let mut has_lanes = false;
    table::for_each(|_, desc| has_lanes |= desc.is_lane());
    if config().accelerate || has_lanes {
        // Outside the lock: pthread_atfork allocates, and an allocator may call us.
        fork::install_handlers();
    }
    if has_lanes {
        // They were inherited by a program that may not be fit for them.
        code::settle_lanes();
    }
    if config().accelerate {
        code::look_at_program();
    }
}

/// Whether anything is to be accelerated here and now; starts the process if that has not happened yet.
/// False in a `vfork` child. To be asked before something of ours is made: a socket, a listener, an epoll set.
#[must_use]
#[inline]
pub fn may_accelerate() -> bool {
    start();
    process::accelerates()
}

/// Looks at a program that is about to be executed or spawned.
#[must_use]
pub fn look(program: Program<'_>) -> Image {
    if process::has_started() {
        image::inspect(program, process::environment::variable(b"PATH="))
    } else {
        Image::Takes
    }
}

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
