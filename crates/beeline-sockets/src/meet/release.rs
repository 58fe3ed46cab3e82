//! Numbers that are hidden are given back where the program needs them.

use beeline_shm::sys::SysResult;

use super::{pool, retreat};
use crate::{Errno, changing};

/// Gives up descriptors that are hidden, those that are only there for speed before all others. Returns whether there
/// were any: the call that ran into the limit may be tried again. The caller does not hold `changing::changing`.
fn release_descriptors() -> bool {
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
