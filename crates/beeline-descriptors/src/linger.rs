//! Descriptors that are closed while calls sleep on them.
//!
//! The kernel keeps a file for as long as a call uses it. A thread that sleeps in recv(2) sleeps on when another thread
//! closes the descriptor, is given what comes, and only when it returns does the connection end. So it is here:
//!
//! 1. Whoever closes the last number of a description that some call waits for ([`Pin::while_waiting`], [`Desc::hold`])
//!    gives it a hidden number first. The app's number is closed, and free for whatever comes next.
//! 2. Calls that wait keep the description, not the number. After a wait they ask which number leads there
//!    ([`Pin::fd`]), under one of the description's locks, both of which are held while the numbers change. What the
//!    kernel said about a number without a lock counts if the number leads to the description afterwards.
//! 3. The last pin closes the hidden number, with all that closing means.
//! 4. In the child of a `fork` no call waits: hidden numbers are closed at once. A program that is executed does not
//!    get them.
//! 5. Where no number is to be had, the description ends at once, and the calls with `EBADF`. So do those that find
//!    that the connection has become TCP meanwhile: the app's number, which the kernel would be asked for, is not
//!    theirs.
//!
//! [`Pin::while_waiting`]: crate::desc::Pin::while_waiting
//! [`Pin::fd`]: crate::desc::Pin::fd

use beeline_shm::sys;

use crate::changing::changing;
use crate::close::settle;
use crate::desc::{Desc, Kind};
use crate::hidden::{self, hidden_remove};
use crate::process::is_guest_of_parent;
use crate::table;

/// `fd`, which leads to `desc`, is about to be closed or to lead elsewhere: if it is the last number, and calls wait,
/// `desc` gets a hidden one. The caller holds [`changing`], or the change of that last number.
pub fn keep(fd: i32, desc: &'static Desc) {
    let is_last = desc.keepers.has_last_number();
    if !is_last || !desc.keepers.is_awaited() || !matches!(desc.kind(), Kind::Lane | Kind::Listener | Kind::Epoll) {
        return;
    }
    let Some(hidden) = hidden::hidden_twin(fd) else { return };
    if table::set(hidden, Some(desc)).is_err() {
        return hidden::close_hidden(hidden);
    }
    desc.keepers.linger(hidden);
}

/// Closes the hidden number of `desc`, if it has one and no call needs it any more. No lock may be held.
pub fn end_lingering(desc: &'static Desc) {
    if is_guest_of_parent() {
        return;
    }
    let settled = {
        let _changing = changing();
        // A pin that is made from now on finds that no number leads here.
        if desc.keepers.pins() != 0 {
            return;
        }
        let Some(hidden) = desc.keepers.take_lingering() else { return };
        let settled = settle(hidden, desc);
        hidden_remove(hidden);
        let _ = sys::close(hidden);
        settled
    };
    settled.finish();
}

/// In the child of a `fork`, where no call waits.
pub fn end_all_in_child() {
    table::for_each(|fd, desc| {
        if desc.keepers.lingers_as(fd) {
            end_lingering(desc);
        }
    });
}
