//! Which system calls matter when a program makes them itself.
//!
//! A call for what has nothing to do with descriptors that may be connections, such as futex(2), getrandom(2) or
//! openat(2), is nobody's affair: allocators, runtimes of languages and of threads make them everywhere. ioctl(2) is
//! among these, as programs make it for terminals and files: about a connection it would tell of the anchor.

/// What a call means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Nothing.
    Harmless,
    /// A ring of io_uring(7).
    Ring,
    /// It is about sockets, or waits for readiness.
    Socket,
    /// It is about descriptors of any kind, or about the whole process.
    Descriptor,
    /// It stops another process and reads its memory.
    Trace,
}

/// What the call with this number means.
pub fn kind(number: u32) -> Kind {
    let is_in = |list: &[libc::c_long]| list.contains(&libc::c_long::from(number));
    match () {
        () if is_in(&RING) => Kind::Ring,
        () if is_in(&SOCKET) => Kind::Socket,
        () if is_in(&DESCRIPTOR) => Kind::Descriptor,
        () if is_in(&[libc::SYS_ptrace]) => Kind::Trace,
        () => Kind::Harmless,
    }
}

const RING: [libc::c_long; 1] = [libc::SYS_io_uring_setup];

/// A program that makes or binds its sockets itself is on TCP in any case, so socket(2), bind(2) and listen(2) are
/// missing.
const SOCKET: [libc::c_long; 25] = [
    libc::SYS_poll,
    libc::SYS_ppoll,
    libc::SYS_select,
    libc::SYS_pselect6,
    libc::SYS_epoll_create,
    libc::SYS_epoll_create1,
    libc::SYS_epoll_ctl,
    libc::SYS_epoll_wait,
    libc::SYS_epoll_pwait,
    libc::SYS_epoll_pwait2,
    libc::SYS_accept,
    libc::SYS_accept4,
    libc::SYS_connect,
    libc::SYS_sendto,
    libc::SYS_sendmmsg,
    libc::SYS_recvfrom,
    libc::SYS_recvmsg,
    libc::SYS_recvmmsg,
    libc::SYS_shutdown,
    libc::SYS_getsockname,
    libc::SYS_getpeername,
    libc::SYS_getsockopt,
    libc::SYS_setsockopt,
    libc::SYS_sendfile,
    libc::SYS_splice,
];

const DESCRIPTOR: [libc::c_long; 19] = [
    libc::SYS_read,
    libc::SYS_write,
    libc::SYS_readv,
    libc::SYS_writev,
    libc::SYS_preadv2,
    libc::SYS_pwritev2,
    libc::SYS_sendmsg,
    libc::SYS_close,
    libc::SYS_close_range,
    libc::SYS_dup,
    libc::SYS_dup2,
    libc::SYS_dup3,
    libc::SYS_fcntl,
    libc::SYS_io_submit,
    libc::SYS_pidfd_getfd,
    libc::SYS_fork,
    libc::SYS_vfork,
    libc::SYS_execve,
    libc::SYS_execveat,
];
