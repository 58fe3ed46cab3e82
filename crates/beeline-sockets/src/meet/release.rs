//! Numbers that are hidden are given back where the program needs them.

use beeline_shm::sys::SysResult;

use super::{pool, reserve, retreat};
use crate::{Errno, changing};

/// Gives up descriptors that are hidden, those that are only there for speed before all others. Returns whether there
/// were any: the call that ran into the limit may be tried again. The caller does not hold `changing::changing`.
pub(crate) fn release_descriptors() -> bool {
    let _changing = changing::changing();
    pool::release_descriptors() || retreat::give_up_descriptors()
}

/// Makes a descriptor for the program. A full table gives up what is hidden in it, one kind after the other until there
/// is a number: a program that fills it gets as many as without us, and nothing finds room in it afterwards. The caller
/// does not hold `changing::changing`.
///
/// # Errors
/// Those of `make`.
pub(crate) fn with_room(make: impl Fn() -> SysResult) -> SysResult {
    loop {
        match make() {
            Err(Errno(libc::EMFILE | libc::ENFILE)) if release_descriptors() => {}
            result => return result,
        }
    }
}

/// The same for a descriptor that is closed again at once: before all else a full table gives up what no connection
/// needs, so that connections can still be lent.
///
/// # Errors
/// Those of `make`.
pub(crate) fn with_room_for_a_look(make: impl Fn() -> SysResult) -> SysResult {
    match make() {
        Err(Errno(libc::EMFILE | libc::ENFILE)) => {
            give_up_idle();
            with_room(make)
        }
        result => result,
    }
}

fn give_up_idle() {
    let _changing = changing::changing();
    pool::purge();
    reserve::release_reserve();
}
