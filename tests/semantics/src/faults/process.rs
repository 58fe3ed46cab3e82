//! What the processes of a round do to themselves and to each other: forking, timers, limits, passing descriptors.

use beeline_testkit::sys;
use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::time::Duration;

/// Forks without the parent's death being the child's: an heir outlives whoever made it.
pub fn fork(child: impl FnOnce()) -> i32 {
    // SAFETY: the processes of a round fork while they have one thread.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        child();
        leave();
    }
    pid
}

/// Ends this process without what belongs to its parent.
pub fn leave() -> ! {
    // SAFETY: no preconditions.
    unsafe { libc::_exit(0) }
}

/// Waits for a child to end.
pub fn wait_for(pid: i32) {
    let mut status = 0;
    // SAFETY: `status` is valid for writing.
    while unsafe { libc::waitpid(pid, &raw mut status, 0) } < 0
        && std::io::Error::last_os_error().raw_os_error() == Some(libc::EINTR)
    {}
}

/// A child that has ended, with its status.
pub fn reap(block: bool) -> Option<(i32, i32)> {
    let mut status = 0;
    // SAFETY: `status` is valid for writing.
    let pid = unsafe { libc::waitpid(-1, &raw mut status, if block { 0 } else { libc::WNOHANG }) };
    (pid > 0).then_some((pid, status))
}

/// A timer that ends with a signal.
pub struct Timer(libc::timer_t);

impl Timer {
    /// Takes it back; true when it was too late for that. Disarming and asking are one step: a timer that ran out
    /// between two would stop a process that nobody expects to be stopped.
    #[must_use]
    pub fn stop(self) -> bool {
        // SAFETY: itimerspec is plain data for which zeroes are a valid value.
        let (never, mut left): (libc::itimerspec, libc::itimerspec) =
            unsafe { (std::mem::zeroed(), std::mem::zeroed()) };
        // SAFETY: the timer is this process's own, and nobody uses it afterwards.
        unsafe {
            libc::timer_settime(self.0, 0, &raw const never, &raw mut left);
            libc::timer_delete(self.0);
        }
        left.it_value.tv_sec == 0 && left.it_value.tv_nsec == 0
    }
}

/// Has the kernel send this process `signal` after a while, at whatever instruction it is then.
pub fn signal_after(signal: i32, after: Duration) -> Timer {
    // SAFETY: sigevent is plain data for which zeroes are a valid value.
    let mut event: libc::sigevent = unsafe { std::mem::zeroed() };
    event.sigev_notify = libc::SIGEV_SIGNAL;
    event.sigev_signo = signal;
    let mut timer: libc::timer_t = std::ptr::null_mut();
    let of = |time: Duration| libc::timespec { tv_sec: time.as_secs() as i64, tv_nsec: i64::from(time.subsec_nanos()) };
    let spec = libc::itimerspec { it_interval: of(Duration::ZERO), it_value: of(after.max(Duration::from_nanos(1))) };
    // SAFETY: all pointers are valid; the timer lives until the process ends.
    unsafe {
        libc::timer_create(libc::CLOCK_MONOTONIC, &raw mut event, &raw mut timer);
        libc::timer_settime(timer, 0, &raw const spec, std::ptr::null_mut());
    }
    Timer(timer)
}

/// A limit that was lowered; the old one comes back when this is dropped.
pub struct Lowered {
    resource: libc::__rlimit_resource_t,
    before: libc::rlimit,
}

impl Lowered {
    fn new(resource: libc::__rlimit_resource_t, limit: u64) -> Self {
        let mut before = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        // SAFETY: `before` is valid for writing.
        unsafe { libc::getrlimit(resource, &raw mut before) };
        let lowered = libc::rlimit { rlim_cur: limit.min(before.rlim_max), rlim_max: before.rlim_max };
        // SAFETY: the value is valid.
        unsafe { libc::setrlimit(resource, &raw const lowered) };
        Self { resource, before }
    }

    /// Leaves `spare` descriptors.
    #[must_use]
    pub fn descriptors(spare: u64) -> Self {
        let next = sys::dup(2).value;
        sys::close(next as i32);
        Self::new(libc::RLIMIT_NOFILE, next as u64 + spare)
    }

    /// Leaves `spare` bytes of address space.
    #[must_use]
    pub fn memory(spare: u64) -> Self {
        let pages = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
        let pages: u64 = pages.split(' ').next().and_then(|word| word.parse().ok()).unwrap_or(1 << 40);
        Self::new(libc::RLIMIT_AS, pages * 4096 + spare)
    }
}

impl Drop for Lowered {
    fn drop(&mut self) {
        // SAFETY: the value is valid.
        unsafe { libc::setrlimit(self.resource, &raw const self.before) };
    }
}

/// Executes this program anew as `program`, with or without what is loaded in front of libc. Returns if that fails.
pub fn execute_self(program: &str, keep_library: bool) {
    let words = ["semantics", "child", program, "--trace", "/dev/null"];
    execute("/proc/self/exe", &words, keep_library);
}

/// Executes a program. Returns if that fails.
pub fn execute(path: &str, words: &[&str], keep_library: bool) {
    let text = |bytes: &[u8]| CString::new(bytes).unwrap_or_default();
    let words: Vec<CString> = words.iter().map(|word| text(word.as_bytes())).collect();
    let variables: Vec<CString> = std::env::vars_os()
        .filter(|(name, _)| keep_library || name != "LD_PRELOAD")
        .map(|(name, value)| text(&[name.as_bytes(), b"=", value.as_bytes()].concat()))
        .collect();
    let pointers = |list: &[CString]| -> Vec<*const libc::c_char> {
        list.iter().map(|item| item.as_ptr()).chain([std::ptr::null()]).collect()
    };
    let (words, variables, path) = (pointers(&words), pointers(&variables), text(path.as_bytes()));
    // SAFETY: NUL-terminated strings in arrays that end with NULL.
    unsafe { libc::execve(path.as_ptr(), words.as_ptr(), variables.as_ptr()) };
}

/// Passes a descriptor over a Unix socket.
pub fn pass(socket: i32, fd: i32) -> bool {
    sys::sendmsg_with_control(socket, b"f", libc::SOL_SOCKET, libc::SCM_RIGHTS, fd).is_ok()
}

/// Takes a descriptor that was passed.
pub fn take(socket: i32) -> Option<i32> {
    let mut byte = 0_u8;
    let mut part = libc::iovec { iov_base: (&raw mut byte).cast(), iov_len: 1 };
    let mut control = [0_u64; 8];
    // SAFETY: zeroes are a valid msghdr; the vector and the control space are live and of the lengths told, and a
    // message of the right kind has a descriptor.
    unsafe {
        let mut header: libc::msghdr = std::mem::zeroed();
        (header.msg_iov, header.msg_iovlen) = (&raw mut part, 1);
        (header.msg_control, header.msg_controllen) = (control.as_mut_ptr().cast(), size_of_val(&control));
        if libc::recvmsg(socket, &raw mut header, 0) <= 0 {
            return None;
        }
        let message = libc::CMSG_FIRSTHDR(&raw const header);
        if message.is_null() || (*message).cmsg_type != libc::SCM_RIGHTS {
            return None;
        }
        Some(libc::CMSG_DATA(message).cast::<i32>().read_unaligned())
    }
}
