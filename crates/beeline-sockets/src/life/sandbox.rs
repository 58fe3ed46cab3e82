//! Filters of system calls (seccomp(2)): a program under one must never be ended for a call that only we make.
//!
//! # Rules
//!
//! 1. A filter that the program is about to set up is heard of first ([`before_filter`]). All lanes are demoted while
//!    relays can still be made, epoll sets become the kernel's alone, and the fd table is emptied: from then on every
//!    call goes to libc as it came, and nothing of ours asks the kernel for anything. It is called *sealed*.
//! 2. A limit of descriptors that leaves no room for a relay, for good, announces a filter: that is how programs shut
//!    themselves in. They leave lanes then ([`before_limit`]), because afterwards it would be too late. A limit of
//!    processes announces nothing: servers forbid themselves to fork, and go on serving.
//! 3. A program that begins under a filter is sealed from the beginning: what the filter does with our calls cannot be
//!    found out without making them. That is asked with the calls that the dynamic linker has just made itself. A
//!    filter that process 1 is under, too, is the container's: made for programs of every kind, it lets our calls pass
//!    or answers them with errors, which every one of them stands. Filters that `beeline run` was under, too, it has
//!    tried in a child, and says how many they are (option `filters_tried`): nobody gets rid of a filter, so a program
//!    that is under no more of them is under those.
//! 4. A sealed process cannot ask what the descriptors are that it receives, so connections are sent to it as to one
//!    without the library. Its relatives are told by a mark on the pairs of sockets that it has ([`pairs`]), which it
//!    makes before; others see its filters ([`may_be_sealed`]).
//! 5. In the child of a `vfork` nothing is done: it has no use for the parent's connections.
//! 6. The statistics file stays when a sealed process ends, as it does when a process is killed.

use beeline_stats::{Reason, Role, Text, filters_in};

use super::{pairs, relay};
use crate::changing::changing;
use crate::process::{self, config, is_guest_of_parent, is_sealed};
use crate::{Errno, Outcome, epoll, io, kernel, proc, stats, table};

/// Descriptors that the making of a relay may take.
const RELAY_FDS: usize = 16;
/// Longest text of /proc/PID/status that is looked at: the lines wanted come before the long ones about CPUs and
/// memory.
const STATUS_BYTES: usize = 4096;

/// The program is about to put itself under a filter. If a lane cannot be given up there must be none.
pub fn before_filter() -> Outcome {
    if is_sealed() || is_guest_of_parent() {
        return Outcome::Kernel;
    }
    if let Err(reason) = relay::leave_lanes(Reason::SystemCallFilter) {
        stats::fell_back(Role::Client, reason);
        return Outcome::fail(libc::ENOMEM);
    }
    pairs::mark(|_| true);
    let _changing = changing();
    epoll::leave_sets();
    table::for_each(|fd, _| {
        let _ = table::set(fd, None);
    });
    stats::keep_file();
    process::seal();
    Outcome::Kernel
}

/// The program is about to limit itself.
pub fn before_limit(resource: u32, limit: &libc::rlimit) {
    if is_sealed() {
        return;
    }
    if resource == libc::RLIMIT_NOFILE && !is_guest_of_parent() {
        let _changing = changing();
        crate::meet::descriptor_limit_changes(limit.rlim_cur);
    }
    if resource == libc::RLIMIT_AS && limit.rlim_cur != libc::RLIM_INFINITY && !is_guest_of_parent() {
        // Clients whose lanes take addresses that the program means to have for itself.
        let _changing = changing();
        crate::meet::retreat_from_doors(Reason::AddressSpaceLimited);
    }
    if !leaves_no_relay(resource, limit.rlim_max) || is_guest_of_parent() {
        return;
    }
    if let Err(reason) = relay::leave_lanes(Reason::SystemCallFilter) {
        stats::fell_back(Role::Client, reason);
    }
}

fn leaves_no_relay(resource: u32, most: u64) -> bool {
    // A limit in the thousands leaves room, or else the program has used it up already.
    if resource != libc::RLIMIT_NOFILE || most > 1024 {
        return false;
    }
    let is_free = |fd: &u64| kernel::is_close_on_exec(*fd as i32) == Err(Errno(libc::EBADF));
    (0..most).filter(is_free).take(RELAY_FDS).count() < RELAY_FDS
}

/// Whether the program has begun under a filter of its own. Seals it then.
pub(super) fn begin() -> bool {
    let mut buffer = [0; STATUS_BYTES];
    let own = filters(c"/proc/self/status", &mut buffer);
    let sealed = own.is_some_and(|own| {
        u64::from(own) > config().filters_tried && filters(c"/proc/1/status", &mut buffer) != Some(own)
    });
    if sealed {
        stats::stop_accelerating(Reason::SystemCallFilter);
        process::seal();
    }
    sealed
}

/// Whether another process may be sealed, as far as its filters tell: it is under some that are neither a container's
/// nor those that this process is under, too, and has lanes all the same.
pub(super) fn may_be_sealed(pid: u32) -> bool {
    let Some(path) = Text::<32>::format(format_args!("/proc/{pid}/status")) else { return true };
    io::with_part(|buffer| match filters(path.as_c_str(), buffer) {
        Some(0) => false,
        None => true,
        theirs => {
            let are_known = |of| filters(of, buffer) == theirs;
            ![c"/proc/1/status", c"/proc/self/status"].into_iter().any(are_known)
        }
    })
}

/// Filters that a process is under. `None` if that cannot be read.
fn filters(status: &core::ffi::CStr, buffer: &mut [u8]) -> Option<u32> {
    filters_in(proc::read(status, buffer)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filters_can_be_counted_here() {
        assert!(filters(c"/proc/self/status", &mut [0; STATUS_BYTES]).is_some());
    }

    #[test]
    fn what_this_process_is_under_seals_nobody() {
        assert!(!may_be_sealed(std::process::id()));
        assert!(may_be_sealed(u32::MAX), "nothing is known of nobody");
    }

    #[test]
    fn only_limits_without_room_announce_a_filter() {
        assert!(leaves_no_relay(libc::RLIMIT_NOFILE, 1));
        assert!(!leaves_no_relay(libc::RLIMIT_NOFILE, 1024));
        assert!(!leaves_no_relay(libc::RLIMIT_NOFILE, 1 << 20));
        assert!(!leaves_no_relay(libc::RLIMIT_NPROC, 0));
    }
}
