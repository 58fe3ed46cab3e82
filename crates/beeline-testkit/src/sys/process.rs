//! Processes and threads.

use super::{Ret, call};

/// Runs `child` in a forked process which then exits with the value it returns. The kernel kills it when the thread
/// that forked it ends, so that nothing is left of a test that was killed.
pub fn fork(child: impl FnOnce() -> i32) -> Ret {
    // SAFETY: the test programs fork from their only thread or run nothing but system calls and their own code in the
    // child; glibc itself makes its allocator usable there.
    let ret = call(|| i64::from(unsafe { libc::fork() }));
    if ret.value == 0 {
        // SAFETY: integers only.
        unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
        let code = child();
        // SAFETY: _exit ends the process without running what belongs to the parent.
        unsafe { libc::_exit(code) };
    }
    ret
}

/// How a child ended, as `exit 0` or `signal SIGKILL`.
pub fn wait_for(child: Ret) -> String {
    let mut status = 0;
    loop {
        // SAFETY: `status` is valid for writing.
        let ret = call(|| i64::from(unsafe { libc::waitpid(child.value as i32, &raw mut status, 0) }));
        if ret.is(libc::EINTR) {
            continue;
        }
        return match ret.is_ok() {
            false => format!("waitpid {ret}"),
            true if libc::WIFEXITED(status) => format!("exit {}", libc::WEXITSTATUS(status)),
            true => format!("signal {}", super::signal_name(libc::WTERMSIG(status))),
        };
    }
}

pub fn kill(process: i32, signal: i32) -> Ret {
    // SAFETY: integers only; tests signal themselves and their own children.
    call(|| i64::from(unsafe { libc::kill(process, signal) }))
}

#[must_use]
pub fn process_id() -> i32 {
    // SAFETY: no preconditions.
    unsafe { libc::getpid() }
}

/// Whether `thread` of this process sleeps in the kernel, by its state in /proc.
#[must_use]
pub fn is_asleep(thread: i32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/self/task/{thread}/stat")).unwrap_or_default();
    stat.rsplit(") ").next().is_some_and(|rest| rest.starts_with('S'))
}

#[must_use]
pub fn thread_id() -> i32 {
    // SAFETY: no preconditions.
    unsafe { libc::gettid() }
}

/// This thread runs on this CPU alone, and so do those that it starts.
pub fn stay_on(cpu: i32) {
    // SAFETY: a set of CPUs is plain data; the kernel reads it.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(usize::try_from(cpu).unwrap_or(0), &mut set);
        libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &raw const set);
    }
}

/// Sends a signal to one thread of this process.
pub fn signal_thread(thread: libc::pthread_t, signal: i32) {
    // SAFETY: the callers pass threads that they have not joined yet.
    unsafe { libc::pthread_kill(thread, signal) };
}

#[must_use]
pub fn this_thread() -> libc::pthread_t {
    // SAFETY: no preconditions.
    unsafe { libc::pthread_self() }
}
