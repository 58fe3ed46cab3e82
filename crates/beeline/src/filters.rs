//! Filters of system calls (seccomp(2)) that this process is under, and so is the program that it becomes: mostly those
//! of a service manager (`SystemCallFilter=` and others of systemd.exec(5)).
//!
//! What a filter does with a call can only be found out by making the call, and it may end whoever makes it. A program
//! must never be ended for a call that only the library makes, so in a program that begins under a filter the library
//! does nothing, unless it is told that all its calls have been tried: [`tried`] makes them in a child, with arguments
//! that the kernel refuses. A call that a filter answers with an error is none that matters: the library stands all
//! errors.

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use anyhow::{Context, bail};
use beeline_stats::{UNCOUNTED, filters_in};

macro_rules! calls {
    ($($number:ident)*) => { [$((stringify!($number), libc::$number),)*] };
}

/// The system calls that the library makes of its own accord, or that the C library makes for it. A test compares them
/// with the library's source. The last is how the child ends.
const CALLS: [(&str, libc::c_long); 89] = calls! {
    SYS_accept4 SYS_bind SYS_brk SYS_chdir SYS_clock_getres SYS_clock_gettime SYS_clone SYS_clone3 SYS_close
    SYS_close_range SYS_connect SYS_dup SYS_dup3 SYS_epoll_create1 SYS_epoll_ctl SYS_epoll_pwait SYS_epoll_pwait2
    SYS_epoll_wait SYS_eventfd2 SYS_faccessat SYS_fallocate SYS_fcntl SYS_fgetxattr SYS_fstat SYS_fstatfs SYS_ftruncate
    SYS_futex SYS_get_robust_list SYS_getcpu SYS_getdents64 SYS_getegid SYS_geteuid SYS_getgid SYS_getpeername
    SYS_getpid SYS_getppid SYS_getrandom SYS_getrusage SYS_getsockname SYS_getsockopt SYS_gettid SYS_getuid SYS_ioctl
    SYS_kill SYS_listen SYS_lseek SYS_madvise SYS_memfd_create SYS_mkdirat SYS_mlock SYS_mlockall SYS_mmap SYS_mprotect
    SYS_munlock SYS_munmap SYS_newfstatat SYS_openat SYS_pidfd_open SYS_pipe2 SYS_ppoll SYS_prctl SYS_pread64
    SYS_preadv2 SYS_prlimit64 SYS_pselect6 SYS_pwrite64 SYS_pwritev2 SYS_read SYS_readlinkat SYS_recvfrom SYS_recvmsg
    SYS_restart_syscall SYS_rt_sigaction SYS_rt_sigprocmask SYS_rt_tgsigqueueinfo SYS_sched_getaffinity SYS_sendmsg
    SYS_sendto SYS_setsid SYS_setsockopt SYS_shutdown SYS_socket SYS_socketpair SYS_splice SYS_tgkill SYS_unlinkat
    SYS_wait4 SYS_write SYS_exit_group
};

/// What [`make_all`] has begun: a place in [`CALLS`], nothing yet, or the end.
const NOTHING: u32 = u32::MAX;
const DONE: u32 = u32::MAX - 1;

/// Tries the filters that this process is under, if they are more than `known`, and finds that none of them ends a
/// program for a call of the library's. How many they are, or 0 where the library need not be told: it takes those of
/// process 1 for a container's.
///
/// # Errors
/// When one does, or that cannot be found out.
pub fn tried(known: u64) -> anyhow::Result<u32> {
    let filters = |status: &str| std::fs::read(status).ok().and_then(|text| filters_in(&text));
    let own = filters("/proc/self/status").unwrap_or(0);
    if u64::from(own) <= known {
        return Ok(0);
    }
    let is_containers = filters("/proc/1/status") == Some(own);
    if own == UNCOUNTED && !is_containers {
        bail!("there are filters of system calls, and this kernel does not count them (Linux 5.9 does)");
    }
    try_all()?;
    Ok(if is_containers { 0 } else { own })
}

/// Makes all calls in a child.
fn try_all() -> anyhow::Result<()> {
    let (prot, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_ANONYMOUS);
    // SAFETY: a new mapping of whole pages, at an address of the kernel's choice.
    let page = unsafe { libc::mmap(std::ptr::null_mut(), size_of::<AtomicU32>(), prot, flags, -1, 0) };
    if page == libc::MAP_FAILED {
        return Err(std::io::Error::last_os_error()).context("filters of system calls cannot be tried");
    }
    // SAFETY: a whole page that stays mapped; only atomics of this process and its child touch it.
    let begun: &AtomicU32 = unsafe { &*page.cast() };
    begun.store(NOTHING, Relaxed);
    // SAFETY: this process has one thread, so its child may do what it likes.
    match unsafe { libc::fork() } {
        0 => make_all(begun),
        -1 => return Err(std::io::Error::last_os_error()).context("filters of system calls cannot be tried"),
        child => {
            // SAFETY: a child that nobody else waits for; what became of it stands in the page.
            while unsafe { libc::waitpid(child, std::ptr::null_mut(), 0) } < 0 {
                let error = std::io::Error::last_os_error();
                match error.raw_os_error() {
                    Some(libc::EINTR) => {}
                    // SIGCHLD is ignored; the child has ended.
                    Some(libc::ECHILD) => break,
                    _ => return Err(error).context("filters of system calls cannot be tried"),
                }
            }
        }
    }
    match begun.load(Relaxed) {
        DONE => Ok(()),
        begun => {
            let name = CALLS.get(begun as usize).map_or("SYS_prctl", |(name, _)| name);
            bail!("a filter of system calls ends programs for `{}`, which lanes need", name.trim_start_matches("SYS_"))
        }
    }
}

/// The child: makes each call, with arguments that the kernel refuses, or that change nothing outside of it.
fn make_all(begun: &AtomicU32) -> ! {
    // It is no news if a filter ends it.
    // SAFETY: plain numbers.
    unsafe { libc::prctl(libc::PR_SET_DUMPABLE, 0) };
    for (index, (_, number)) in (0..).zip(CALLS) {
        begun.store(if number == libc::SYS_exit_group { DONE } else { index }, Relaxed);
        // SAFETY: -1 is no address, descriptor, process, length or command; a call without arguments only asks, or
        // concerns this child alone.
        unsafe { libc::syscall(number, first_of(number), -1, -1, -1, -1, -1) };
        if number == libc::SYS_socket {
            make_sockets();
        }
    }
    // SAFETY: ends the child at once, and nothing else.
    unsafe { libc::_exit(0) }
}

/// Makes sockets as the library does, for filters that look at arguments.
fn make_sockets() {
    let made = |domain: libc::c_int, kind: libc::c_int, protocol: libc::c_int| {
        // SAFETY: plain numbers.
        unsafe { libc::syscall(libc::SYS_socket, domain, kind | libc::SOCK_CLOEXEC, protocol) >= 0 }
    };
    for kind in [libc::SOCK_STREAM, libc::SOCK_DGRAM] {
        made(libc::AF_UNIX, kind, 0);
    }
    let ask = |protocol: libc::c_int| made(libc::AF_NETLINK, libc::SOCK_RAW, protocol);
    if !(ask(libc::NETLINK_ROUTE) && ask(libc::NETLINK_SOCK_DIAG)) {
        // Who may not ask the kernel tries what it would have asked.
        made(libc::AF_INET, libc::SOCK_DGRAM, 0);
    }
}

/// The first argument of a call that changes nothing: to kill(2) -1 is everybody.
fn first_of(number: libc::c_long) -> libc::c_long {
    if number == libc::SYS_kill { libc::c_long::from(i32::MAX) } else { -1 }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::Path;

    use super::CALLS;

    /// Of the crates that the library is made of.
    const CRATES: [&str; 9] = ["shm", "guest", "lane", "meeting", "descriptors", "sockets", "wire", "preload", "stats"];
    /// What names calls without making them, makes those of the program, or is the agent's.
    const OTHERS: [&str; 4] = ["/hooks/syscall", "/life/text", "/tests", "/agent/host"];
    /// What the C library does for the library, or the kernel for the C library: clocks, memory, processes, signals.
    const OF_LIBC: [&str; 5] = ["SYS_brk", "SYS_clock_getres", "SYS_clone3", "SYS_restart_syscall", "SYS_rt_sigaction"];

    /// What the library makes only under no filters at all.
    const UNFILTERED: [&str; 2] = ["SYS_process_vm_readv", "SYS_sched_setaffinity"];

    fn sources(directory: &Path, into: &mut Vec<String>) {
        for entry in std::fs::read_dir(directory).unwrap().map(Result::unwrap) {
            let path = entry.path();
            let name = path.to_str().unwrap();
            if OTHERS.iter().any(|other| name.contains(other)) {
                continue;
            }
            if path.is_dir() {
                sources(&path, into);
            } else if name.ends_with(".rs") {
                into.push(std::fs::read_to_string(&path).unwrap());
            }
        }
    }

    #[test]
    fn the_calls_are_those_of_the_librarys_source() {
        let mut texts = Vec::new();
        for name in CRATES {
            sources(&Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../beeline-{name}/src")), &mut texts);
        }
        let code = texts.iter().map(|text| text.split("#[cfg(test)]\nmod ").next().unwrap());
        let code = code.flat_map(str::lines).map(|line| line.split("//").next().unwrap());
        let words = code.flat_map(|line| line.split(|c: char| !c.is_ascii_alphanumeric() && c != '_'));
        let made: BTreeSet<&str> =
            words.filter(|word| word.starts_with("SYS_") && !UNFILTERED.contains(word)).chain(OF_LIBC).collect();
        let tried: BTreeSet<&str> = CALLS.iter().map(|(name, _)| *name).collect();
        assert_eq!(tried, made);
    }
}
