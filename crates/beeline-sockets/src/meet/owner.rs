//! Who gets the signals of a connection, when another file comes under its number.

use beeline_shm::sys;

use crate::kernel;
use crate::linux::{F_GETOWN_EX, F_GETSIG, F_SETOWN_EX, F_SETSIG};

/// Gives the file under `to` the owner of the one under `from` (`F_SETOWN`, `F_SETSIG`).
pub(crate) fn carry_owner(from: i32, to: i32) {
    /// `struct f_owner_ex` of fcntl(2).
    #[repr(C)]
    struct Owner {
        kind: i32,
        id: i32,
    }
    let mut owner = Owner { kind: 0, id: 0 };
    let mut ask = |fd: i32, command: i32| {
        let args = [fd as usize, command as usize, (&raw mut owner) as usize, 0, 0, 0];
        // SAFETY: both commands take one `struct f_owner_ex`, which is live; one writes it, the other reads it.
        unsafe { sys::call(libc::SYS_fcntl, args) }
    };
    if ask(from, F_GETOWN_EX).is_ok() {
        let _ = ask(to, F_SETOWN_EX);
    }
    // SAFETY: the one takes no argument, the other a number.
    let _ = unsafe { kernel::fcntl(from, F_GETSIG, 0).and_then(|signal| kernel::fcntl(to, F_SETSIG, signal)) };
}
