//! How programs shut themselves in: filters of system calls, limits, locked memory.

use beeline_sockets::{Outcome, in_first_page, life, limits};
use libc::{c_int, c_uint, c_ulong, pid_t, rlimit};

use crate::real::hooks;

/// A filter that stands from now on. Without a program for it the call only asks what the kernel can do.
fn filter(is_one: bool, program: usize) -> Outcome {
    if is_one && program != 0 { life::before_filter() } else { Outcome::Kernel }
}

/// A limit of this process, unless it is only asked for.
///
/// # Safety
/// `limit` as for setrlimit(2).
unsafe fn note_limit(resource: c_uint, limit: *const rlimit) {
    if !in_first_page(limit as usize) {
        // SAFETY: the caller guarantees it; the first page is never mapped.
        life::before_limit(resource, unsafe { &*limit });
    }
}

/// Before seccomp(2), which libc has no function for.
#[cfg(target_arch = "x86_64")]
pub(super) fn before_seccomp(operation: usize, program: usize) -> Outcome {
    let strict = operation == libc::SECCOMP_SET_MODE_STRICT as usize;
    // The strict mode has no program.
    filter(strict || operation == libc::SECCOMP_SET_MODE_FILTER as usize, if strict { 1 } else { program })
}

// prctl is variadic in C: see `fds`.
hooks! {
    fn prctl: (option: c_int, a: c_ulong, b: c_ulong, c: c_ulong, d: c_ulong) -> c_int [] => {
        let strict = a == c_ulong::from(libc::SECCOMP_MODE_STRICT);
        filter(option == libc::PR_SET_SECCOMP, if strict { 1 } else { b as usize })
    };

    fn setrlimit | setrlimit64: (resource: c_uint, limit: *const rlimit) -> c_int [] => {
        note_limit(resource, limit);
        Outcome::Kernel
    };

    fn mlockall: (flags: c_int) -> c_int [] => limits::mlockall(flags);

    fn prlimit | prlimit64: (pid: pid_t, resource: c_uint, new: *const rlimit, old: *mut rlimit) -> c_int [] => {
        if pid == 0 || pid == libc::getpid() {
            note_limit(resource, new);
        }
        Outcome::Kernel
    };
}
