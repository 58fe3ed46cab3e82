//! The process begins: its options, what it has inherited, and what its code may do.

use super::image::{self, Image, Program};
use super::{adopt, code, environment, fork, sandbox};
use crate::lock::Lock;
use crate::process::{self, config};
use crate::{slots, stats, table};

#[unsafe(link_section = ".fork")]
static STARTING: Lock = Lock::new();

/// Prepares the process: options, fork handlers, anchors inherited over `exec`. Later calls do nothing.
pub fn start() {
    if !process::has_started() {
        start_now();
    }
}

#[cold]
fn start_now() {
    {
        let _guard = STARTING.lock();
        if process::has_started() {
            return;
        }
        process::become_owner();
        let _ = config();
        if !sandbox::begin() {
            adopt::inherited();
        }
        process::note_started();
    }
    if process::is_sealed() {
        return;
    }
    stats::succeed();
    slots::open_slots();
    let mut has_lanes = false;
    table::for_each(|_, desc| has_lanes |= desc.is_lane());
    if config().accelerate || has_lanes {
        // Outside the lock: __register_atfork allocates, and an allocator may call us.
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

/// Looks at a program that is about to be executed or spawned.
#[must_use]
pub fn look(program: Program<'_>) -> Image {
    if !process::is_active() {
        return Image::Takes;
    }
    match image::inspect(program, process::environment::variable(b"PATH=")) {
        // After `chroot`, for example, or for another user.
        Image::Takes if !environment::is_there() => Image::Ignores,
        image => image,
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

/// In the child of a `fork`.
pub(super) fn reset_after_fork() {
    STARTING.reset();
}
