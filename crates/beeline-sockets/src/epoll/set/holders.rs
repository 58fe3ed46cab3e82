//! Who else may have a set: copies of this process, and programs that it has started.

use core::sync::atomic::Ordering::Relaxed;

use super::Set;
use crate::process;

impl Set {
    /// Whether the kernel's side of the set is seen by this process's calls on its one number, and by nobody else.
    pub fn is_private(&self) -> bool {
        !self.exposed.load(Relaxed) && !self.inheritable.load(Relaxed) && !is_shared(self)
    }

    /// Whether a process was made since the set was, of whatever kind.
    pub fn has_seen_children(&self) -> bool {
        self.owner().is_none_or(|owner| owner.born.load(Relaxed) != crate::forks())
    }
}

/// Whether other processes may have the set, and may have added members of their own: copies of this one (`fork`), and
/// programs that it has started, unless the set was closed to them (`FD_CLOEXEC`). What runs in this memory until it is
/// such a program (`vfork`) sees what a thread would.
pub(in crate::epoll) fn is_shared(set: &Set) -> bool {
    set.copies.load(Relaxed) != process::copies() || set.handed_on.load(Relaxed) && set.has_seen_children()
}

/// Whether nobody else has ever had the set: all its members are known here.
pub(in crate::epoll) fn knows_all_members(set: &Set) -> bool {
    !set.had_copies.load(Relaxed) && !is_shared(set)
}
