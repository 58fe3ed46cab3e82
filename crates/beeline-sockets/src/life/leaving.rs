//! Ends that a process shares and does not take along when it becomes another program.
//!
//! The kernel closes their anchors in the middle of `execve`, and the process lives on. So it has to be off the list of
//! those who share the end before that, or a relay would keep the connection open for its sake as long as it lives.
//!
//! 1. With what another holder has demoted already the process goes over to the TCP connection ([`crate::follow`]),
//!    which the kernel closes in `execve`, and which it has if that fails.
//! 2. It takes itself off the list of any other end, under the lock for sending of the side: who demotes the end has
//!    that, too, and starts its relay with the list as it is then.
//! 3. Where `execve` fails it is listed again. If the end was demoted in between, it follows as ever: it may come too
//!    late, if all others have let the connection go, and finds it reset.
//! 4. It stays one of the side's holders for good. To take that back as well would be to let the others take the end
//!    for theirs alone before anybody knows whether `execve` succeeds.
//! 5. The child of a `vfork` is on no list, and its parent stays where it is.

use core::sync::atomic::Ordering::Relaxed;

use super::handover::stays_open;
use crate::changing::changing;
use crate::desc::Desc;
use crate::follow::{self, follow_if_relayed};
use crate::side::{SideState, state};
use crate::{process, table};

/// Naps for which another holder of an end is waited for: one that is stopped holds nobody up.
const NAPS: u32 = 20;

fn is_shared(fd: i32, desc: &Desc) -> bool {
    desc.is_lane() && desc.shared.load(Relaxed) && desc.fd.load(Relaxed) == fd
}

/// Before this process becomes another program. Whether it has left anything.
pub(super) fn before_exec() -> bool {
    let mut any = false;
    table::for_each(|fd, desc| any |= is_shared(fd, desc) && !stays(fd, desc));
    if !any {
        return false;
    }
    follow::with_all();
    let _changing = changing();
    table::for_each(|fd, desc| {
        if is_shared(fd, desc) && !stays(fd, desc) && !unless_relayed(desc, |side| side.leave(process::identity())) {
            let _ = follow_if_relayed(fd, desc);
        }
    });
    true
}

/// `execve` has failed.
pub(super) fn exec_failed() {
    follow::with_all();
    let _changing = changing();
    table::for_each(|fd, desc| {
        if is_shared(fd, desc) {
            unless_relayed(desc, |side| side.join(process::identity()));
        }
    });
}

/// Whether a number of the connection survives `execve`.
fn stays(fd: i32, desc: &'static Desc) -> bool {
    let mut stays = false;
    table::each_fd(fd, desc, |fd| stays |= stays_open(fd));
    stays
}

/// Does something about the list of an end that nobody demotes meanwhile. False if somebody has.
fn unless_relayed(desc: &'static Desc, change: impl FnOnce(&SideState)) -> bool {
    let _both = desc.lock_both();
    if !desc.is_lane() {
        return true;
    }
    let side = desc.side();
    let _sharing = side.tx_lock.lock_within(NAPS);
    let is_relayed = side.is(state::RELAYED);
    if !is_relayed {
        change(side);
    }
    !is_relayed
}
