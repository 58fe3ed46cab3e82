//! `epoll`: kernel sets whose lanes are watched by the kernel when cold and by us when hot.
//!
//! # Rules
//!
//! 1. Every fd the app adds is added to the kernel's set, with the app's data. For a lane that is its anchor,
//!    watched for bells and ends (and for room only while the ring is full). So a cold lane costs nothing, and
//!    a wait in the kernel sees everything at once. What changes nothing to the kernel it is not told
//!    ([`registration`]).
//! 2. A kernel event for a lane is a hint: the lane becomes *hot*, and a hot lane is judged by its ring. Hot
//!    lanes are in a list that each wait looks through. A lane that was looked at [`limits::IDLE_LOOKS`] times in
//!    vain is armed and cold again.
//! 3. Before a thread sleeps in the kernel, all hot lanes of the set are armed. While some thread sleeps so, a
//!    wait that returns arms what stays behind, so that the sleeper learns what comes next.
//! 4. What becomes ready without a bell (a member added or modified while its ring has data) wakes sleepers
//!    through the *waker*: a descriptor that is always readable and that one `EPOLL_CTL_MOD` shows to one
//!    sleeper once.
//! 5. A dead anchor would be reported by the kernel for ever, whatever was asked. It is taken out of the kernel's
//!    set; its state is final and stays with the hot list, but for a reset by this end's own send, which tells who
//!    sleeps. One that only hangs, as both halves are shut, is watched by edges from then on.
//! 6. Edges: data is an edge when the peer's tail has moved since the last report; room is one when a send has
//!    found the ring full since; what the kernel calls a change of state is one, counted in the side, whether the
//!    mask differs or not. As in the kernel, an edge reports the whole mask.
//! 7. The kernel is asked, without waiting, at each wait, unless the wait will most likely sleep, and so ask it then:
//!    nothing hot is ready, the set does not spin (or only for a peer that is near), and the kernel had nothing of its
//!    own to tell for [`limits::FEW_WAITS`], or, where nothing is hot, nothing at once the last time. Only a set of
//!    which the kernel had nothing to tell in [`limits::BUSY_WAITS`] waits is asked after [`limits::LOOK_TICKS_MIN`],
//!    and while that finds nothing, up to [`limits::LOOK_TICKS_MAX`], so that hot lanes cannot starve the rest. A spin
//!    that finds nothing asks it every [`limits::SPIN_LOOK_TICKS`]: it has nothing better to do, and cold lanes ring.
//!    If hot lanes filled the app's array the last time, the kernel is asked first.
//! 8. A bell that finds its lane hot already would be told at each look. If nobody sleeps on the lane it is taken out;
//!    so are the bells of what has been read before a wait sleeps, and that of a member that has been told its one shot
//!    ([`bells`]). Of a lane that the kernel watches by edges, because the app asked for it or as a thread has slept
//!    upon it for a while, they stay where they are ([`lying`]).
//! 9. A fault of a peer may change every set that watches it, so none may be locked when it is answered. What is found
//!    under a lock is noted (`faults`): its lane becomes hot. It is answered when no lock is held; no wait sleeps
//!    before, nor while another thread answers one.
//! 10. A wait spins ([`crate::wait`]) unless no member is known here (all are pipes, or connections over TCP: no lane's
//!     bell can come, and no client through a door), or the peer of the lane that was told last is near, or, where no
//!     lane is hot, the last peer of this process was; or a thread that works for the set needs the CPU
//!     ([`set::Hands`]).
//! 11. A peer that sends on many connections while a thread sleeps on the set rings on one of them ([`company`]).
//! 12. A set that a copy of this process may have (`fork`) is spared nothing until all copies are gone ([`copies`]).

mod all;
mod behind;
mod bells;
mod company;
mod control;
mod cool;
mod copies;
mod events;
mod faults;
mod fork;
mod kernel_events;
mod limits;
mod listeners;
mod look;
mod lying;
mod nested;
mod order;
mod readiness;
mod registration;
mod set;
mod spin;
#[cfg(test)]
mod tests;
mod wait;
mod waker;

pub(crate) use company::{disturb_over, disturb_sets_over};
pub(crate) use control::{begin, ctl, hear_of_calls, leave_sets, listener_gained, listener_lost, remember};
pub(crate) use cool::cool;
pub(crate) use copies::{count_lost_copy, follow_next, fork_has_ended, lose_next, tell_all_before};
pub(crate) use fork::reset_after_fork;
pub(crate) use nested::is_ready;
pub(crate) use registration::hand_on;
#[cfg(test)]
pub(crate) use registration::is_handed_on;
pub use registration::{before_fork, expose, set_inheritable};
pub use wait::{pwait, pwait2, wait};
