//! `syscall(2)`: programs that call the kernel by number.
//!
//! The numbers of the calls we interpose lead to the same functions; every other one goes to libc's
//! `syscall` by a jump, because some of them return twice or on another stack. A set of bits says which is
//! which.

use core::sync::atomic::{AtomicPtr, Ordering::Release};

use beeline_sockets::{Outcome, in_first_page, life};
use libc::{c_int, c_long, c_uint, c_void};

use super::{aio, data, exec, fds, process, ready, rings, sandbox, sockets};
use crate::real::Real;

static REAL: AtomicPtr<c_void> = AtomicPtr::new(core::ptr::null_mut());

/// Finds libc's `syscall`.
pub fn resolve() {
    REAL.store(Real::new(c"syscall").resolve(), Release);
}

/// Calls whose number is below this are looked up.
const NUMBERS: usize = 512;

/// Makes the set of bits and the function that dispatches.
macro_rules! numbers {
    ($( $number:ident => |$a:ident, $b:ident, $c:ident, $d:ident, $e:ident, $f:ident| $call:expr; )+) => {
        /// Which numbers are in the table.
        #[allow(clippy::indexing_slicing, reason = "done while compiling")]
        static OURS: [u64; NUMBERS / 64] = {
            let mut bits = [0u64; NUMBERS / 64];
            $( bits[libc::$number as usize / 64] |= 1 << (libc::$number as usize % 64); )+
            bits
        };

        unsafe extern "C" fn dispatch(
            number: c_long, a: usize, b: usize, c: usize, d: usize, e: usize, f: usize,
        ) -> c_long {
            match number {
                $(
                    libc::$number => {
                        let ($a, $b, $c, $d, $e, $f) = (a, b, c, d, e, f);
                        let _ = ($a, $b, $c, $d, $e, $f);
                        // SAFETY: the app's arguments, which are what the call's manual page asks for.
                        unsafe { $call as c_long }
                    }
                )+
                _ => crate::real::fail(libc::ENOSYS) as c_long,
            }
        }
    };
}

// This module is x86-64's alone ([`super`]), so the calls are here that later machines do not have: poll, select,
// epoll_create, fork and others.
numbers! {
    SYS_socket => |a, b, c, d, e, f| sockets::socket(a as c_int, b as c_int, c as c_int);
    SYS_bind => |a, b, c, d, e, f| sockets::bind(a as c_int, b as _, c as _);
    SYS_listen => |a, b, c, d, e, f| sockets::listen(a as c_int, b as c_int);
    SYS_connect => |a, b, c, d, e, f| sockets::connect(a as c_int, b as _, c as _);
    SYS_accept => |a, b, c, d, e, f| sockets::accept(a as c_int, b as _, c as _);
    SYS_accept4 => |a, b, c, d, e, f| sockets::accept4(a as c_int, b as _, c as _, d as c_int);
    SYS_getsockname => |a, b, c, d, e, f| sockets::getsockname(a as c_int, b as _, c as _);
    SYS_getpeername => |a, b, c, d, e, f| sockets::getpeername(a as c_int, b as _, c as _);
    SYS_shutdown => |a, b, c, d, e, f| sockets::shutdown(a as c_int, b as c_int);
    SYS_getsockopt => |a, b, c, d, e, f| sockets::getsockopt(a as c_int, b as c_int, c as c_int, d as _, e as _);
    SYS_setsockopt => |a, b, c, d, e, f| sockets::setsockopt(a as c_int, b as c_int, c as c_int, d as _, e as _);
    SYS_read => |a, b, c, d, e, f| data::read(a as c_int, b as _, c);
    SYS_write => |a, b, c, d, e, f| data::write(a as c_int, b as _, c);
    SYS_readv => |a, b, c, d, e, f| data::readv(a as c_int, b as _, c as c_int);
    SYS_writev => |a, b, c, d, e, f| data::writev(a as c_int, b as _, c as c_int);
    SYS_preadv2 => |a, b, c, d, e, f| data::preadv2(a as c_int, b as _, c as c_int, d as _, f as c_int);
    SYS_pwritev2 => |a, b, c, d, e, f| data::pwritev2(a as c_int, b as _, c as c_int, d as _, f as c_int);
    SYS_recvfrom => |a, b, c, d, e, f| data::recvfrom(a as c_int, b as _, c, d as c_int, e as _, f as _);
    SYS_sendto => |a, b, c, d, e, f| data::sendto(a as c_int, b as _, c, d as c_int, e as _, f as _);
    SYS_recvmsg => |a, b, c, d, e, f| data::recvmsg(a as c_int, b as _, c as c_int);
    SYS_sendmsg => |a, b, c, d, e, f| data::sendmsg(a as c_int, b as _, c as c_int);
    SYS_recvmmsg => |a, b, c, d, e, f| data::recvmmsg(a as c_int, b as _, c as c_uint, d as c_int, e as _);
    SYS_sendmmsg => |a, b, c, d, e, f| data::sendmmsg(a as c_int, b as _, c as c_uint, d as c_int);
    SYS_sendfile => |a, b, c, d, e, f| data::sendfile(a as c_int, b as c_int, c as _, d);
    SYS_splice => |a, b, c, d, e, f| data::splice(a as c_int, b as _, c as c_int, d as _, e, f as c_uint);
    SYS_ppoll => |a, b, c, d, e, f| ready::ppoll(a as _, b as _, c as _, d as _);
    SYS_pselect6 => |a, b, c, d, e, f| pselect6(a, b, c, d, e, f);
    SYS_poll => |a, b, c, d, e, f| ready::poll(a as _, b as _, c as c_int);
    SYS_select => |a, b, c, d, e, f| ready::select(a as c_int, b as _, c as _, d as _, e as _);
    SYS_epoll_create => |a, b, c, d, e, f| ready::epoll_create(a as c_int);
    SYS_epoll_create1 => |a, b, c, d, e, f| ready::epoll_create1(a as c_int);
    SYS_epoll_ctl => |a, b, c, d, e, f| ready::epoll_ctl(a as c_int, b as c_int, c as c_int, d as _);
    SYS_epoll_wait => |a, b, c, d, e, f| ready::epoll_wait(a as c_int, b as _, c as c_int, d as c_int);
    SYS_epoll_pwait => |a, b, c, d, e, f| ready::epoll_pwait(a as c_int, b as _, c as c_int, d as c_int, e as _);
    SYS_epoll_pwait2 => |a, b, c, d, e, f| ready::epoll_pwait2(a as c_int, b as _, c as c_int, d as _, e as _);
    SYS_close => |a, b, c, d, e, f| fds::close(a as c_int);
    SYS_close_range => |a, b, c, d, e, f| fds::close_range(a as c_uint, b as c_uint, c as c_int);
    SYS_dup => |a, b, c, d, e, f| fds::dup(a as c_int);
    SYS_dup2 => |a, b, c, d, e, f| fds::dup2(a as c_int, b as c_int);
    SYS_dup3 => |a, b, c, d, e, f| fds::dup3(a as c_int, b as c_int, c as c_int);
    SYS_fcntl => |a, b, c, d, e, f| fds::fcntl(a as c_int, b as c_int, c);
    SYS_ioctl => |a, b, c, d, e, f| fds::ioctl(a as c_int, b as _, c);
    SYS_execve => |a, b, c, d, e, f| exec::execve(a as _, b as _, c as _);
    SYS_execveat => |a, b, c, d, e, f| exec::execveat(a as c_int, b as _, c as _, d as _, e as c_int);
    SYS_exit_group => |a, b, c, d, e, f| exit_group(a as c_int);
    SYS_fork => |a, b, c, d, e, f| fork([libc::SYS_fork as usize, 0, 0, 0, 0, 0]);
    // Only where the stub has seen that the child will run on a copy of this stack.
    SYS_clone => |a, b, c, d, e, f| fork([libc::SYS_clone as usize, a, b, c, d, e]);
    SYS_clone3 => |a, b, c, d, e, f| fork([libc::SYS_clone3 as usize, a, b, 0, 0, 0]);
    SYS_prctl => |a, b, c, d, e, f| sandbox::prctl(a as c_int, b as _, c as _, d as _, e as _);
    SYS_seccomp => |a, b, c, d, e, f| seccomp(a, b, c);
    SYS_setrlimit => |a, b, c, d, e, f| sandbox::setrlimit(a as c_uint, b as _);
    SYS_prlimit64 => |a, b, c, d, e, f| sandbox::prlimit(a as c_int, b as c_uint, c as _, d as _);
    SYS_mlockall => |a, b, c, d, e, f| sandbox::mlockall(a as c_int);
    SYS_io_submit => |a, b, c, d, e, f| submit_if_possible(a, b, c);
    SYS_io_uring_setup => |a, b, c, d, e, f| set_up_ring(a, b);
    SYS_io_uring_enter => |a, b, c, d, e, f| enter_ring([a, b, c, d, e, f]);
    SYS_io_uring_register => |a, b, c, d, e, f| register_with_ring([a, b, c, d, e, f]);
}

/// pselect6(2) takes mask and size behind one pointer.
///
/// # Safety
/// As for pselect6(2).
unsafe fn pselect6(count: usize, read: usize, write: usize, except: usize, timeout: usize, sigmask: usize) -> c_int {
    let mask = if in_first_page(sigmask) {
        core::ptr::null()
    } else {
        // SAFETY: the caller guarantees a pointer and a size.
        unsafe { *(sigmask as *const *const libc::sigset_t) }
    };
    // SAFETY: sets and timeout are those that the caller guarantees for pselect6(2), the same as pselect(2) takes; the
    // mask is null, or the one that the caller's pointer and size name.
    unsafe { ready::pselect(count as c_int, read as _, write as _, except as _, timeout as _, mask) }
}

/// exit_group(2). Unsafe as the table's other rows are; it asks for nothing.
unsafe fn exit_group(status: c_int) -> c_int {
    // SAFETY: _exit(2) takes any status.
    unsafe { process::leave(&process::reals::_exit, status) }
}

/// A fork by number: libc's fork handlers do not run, so ours are run here, unless the child has thread-local memory
/// that we do not know.
///
/// # Safety
/// `call` is a number and arguments that make a child which returns here on a copy of this stack.
unsafe fn fork(call: [usize; 6]) -> c_long {
    let [number, a, b, c, d, e] = call;
    let flags = match number as c_long {
        libc::SYS_clone => a as u64,
        // SAFETY: the stub has read them there, and the kernel is about to.
        libc::SYS_clone3 => unsafe { (a as *const u64).read_unaligned() },
        _ => 0,
    };
    // SAFETY: forwarded.
    let make = || unsafe { by_number(number as c_long, a, b, c, d, e, 0) };
    if flags & libc::CLONE_SETTLS as u64 != 0 {
        return life::around_strange_copy(make);
    }
    let fork = life::may_accelerate().then(|| life::around_clone_prepare(flags));
    let pid = make();
    super::process::after_fork(fork, pid);
    pid
}

/// A ring of io_uring(7) by number.
///
/// # Safety
/// As for io_uring_setup(2).
unsafe fn set_up_ring(entries: usize, parameters: usize) -> c_long {
    // SAFETY: forwarded.
    let dispensable = beeline_sockets::config().accelerate && unsafe { rings::is_libuvs(entries, parameters) };
    if dispensable || !rings::may_be_made() {
        return crate::real::fail(libc::ENOSYS) as c_long;
    }
    // SAFETY: forwarded.
    unsafe { by_number(libc::SYS_io_uring_setup, entries, parameters, 0, 0, 0, 0) }
}

/// # Safety
/// As for io_uring_enter(2).
unsafe fn enter_ring([ring, submit, c, d, e, f]: [usize; 6]) -> c_long {
    if submit != 0 && !rings::may_be_made() {
        return crate::real::fail(libc::EAGAIN) as c_long;
    }
    // SAFETY: forwarded.
    unsafe { by_number(libc::SYS_io_uring_enter, ring, submit, c, d, e, f) }
}

/// # Safety
/// As for io_uring_register(2).
unsafe fn register_with_ring([ring, operation, c, d, e, f]: [usize; 6]) -> c_long {
    if rings::takes_files(operation) && !rings::may_be_made() {
        return crate::real::fail(libc::EAGAIN) as c_long;
    }
    // SAFETY: forwarded.
    unsafe { by_number(libc::SYS_io_uring_register, ring, operation, c, d, e, f) }
}

/// io_submit(2) has no function in libc.
///
/// # Safety
/// As for io_submit(2).
unsafe fn submit_if_possible(context: usize, count: usize, requests: usize) -> c_long {
    // SAFETY: forwarded.
    if unsafe { aio::refuses(count, requests) } {
        return -1;
    }
    // SAFETY: forwarded.
    unsafe { by_number(libc::SYS_io_submit, context, count, requests, 0, 0, 0) }
}

/// io_submit(2) as libaio makes it: returns a negative error number.
///
/// # Safety
/// As for io_submit(2).
pub(super) unsafe fn submit(context: usize, count: usize, requests: usize) -> isize {
    // SAFETY: forwarded; libc's per-thread errno.
    unsafe {
        match by_number(libc::SYS_io_submit, context, count, requests, 0, 0, 0) {
            -1 => (*libc::__errno_location() as isize).wrapping_neg(),
            submitted => submitted as isize,
        }
    }
}

/// seccomp(2) has no function in libc.
///
/// # Safety
/// As for seccomp(2).
unsafe fn seccomp(operation: usize, flags: usize, arguments: usize) -> c_long {
    if let Outcome::Fail(errno) = sandbox::before_seccomp(operation, arguments) {
        return crate::real::fail(errno.0) as c_long;
    }
    // SAFETY: forwarded.
    unsafe { by_number(libc::SYS_seccomp, operation, flags, arguments, 0, 0, 0) }
}

unsafe extern "C" fn fail(errno: c_int) -> c_long {
    crate::real::fail(errno) as c_long
}

/// What libc's `syscall` does, for before it is known and for calls that must not be dispatched again.
#[unsafe(naked)]
unsafe extern "C" fn by_number(_: c_long, _: usize, _: usize, _: usize, _: usize, _: usize, _: usize) -> c_long {
    core::arch::naked_asm!(
        "mov rax, rdi",
        "mov rdi, rsi",
        "mov rsi, rdx",
        "mov rdx, rcx",
        "mov r10, r8",
        "mov r8, r9",
        "mov r9, [rsp + 8]",
        "syscall",
        "cmp rax, -4095",
        "jae 2f",
        "ret",
        "2:",
        "mov edi, eax",
        "neg edi",
        "jmp {fail}",
        fail = sym fail,
    )
}

unsafe extern "C" fn before_strange_copy() {
    life::before_strange_copy();
}

/// `syscall(2)`. A clone is dispatched only if the child gets a copy of the memory (no `CLONE_VM`) and no
/// stack of its own; clone3(2) has its flags first and the stack's address at 40 in a struct. One that gets a copy, and
/// returns on another stack, is told of before. One that runs in this memory and is no thread is only counted, as
/// vfork(2) is: whoever comes back from here may overwrite what lay on the stack, so nothing does.
#[unsafe(naked)]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn syscall() {
    core::arch::naked_asm!(
        "cmp rdi, {numbers}",
        "jae 3f",
        "cmp edi, {vfork}",
        "je 7f",
        "lea rax, [rip + {ours}]",
        "bt qword ptr [rax], rdi",
        "jnc 3f",
        "cmp edi, {clone}",
        "jne 2f",
        "test esi, {vm}",
        "jnz 6f",
        "test rdx, rdx",
        "jnz 8f",
        "2:",
        "cmp edi, {clone3}",
        "jne 4f",
        "cmp rsi, 4096",
        "jb 3f",
        "test dword ptr [rsi], {vm}",
        "jnz 5f",
        "cmp qword ptr [rsi + 40], 0",
        "jne 8f",
        "4:",
        "jmp {dispatch}",
        "5:",
        "test dword ptr [rsi], {thread}",
        "jnz 3f",
        "jmp 7f",
        "6:",
        "test esi, {thread}",
        "jnz 3f",
        "7:",
        "lock inc dword ptr [rip + {forks}]",
        "lock inc dword ptr [rip + {vforks}]",
        "3:",
        "mov rax, [rip + {real}]",
        "test rax, rax",
        "jz 9f",
        "jmp rax",
        "9:",
        "jmp {by_number}",
        "8:",
        // Six registers carry arguments; seven pushes keep the stack aligned for the call.
        "push rdi",
        "push rsi",
        "push rdx",
        "push rcx",
        "push r8",
        "push r9",
        "push rax",
        "call {before_strange_copy}",
        "pop rax",
        "pop r9",
        "pop r8",
        "pop rcx",
        "pop rdx",
        "pop rsi",
        "pop rdi",
        "jmp 3b",
        numbers = const NUMBERS,
        vfork = const libc::SYS_vfork,
        clone = const libc::SYS_clone,
        clone3 = const libc::SYS_clone3,
        vm = const libc::CLONE_VM,
        thread = const libc::CLONE_THREAD,
        ours = sym OURS,
        forks = sym life::FORKS,
        vforks = sym life::VFORKS,
        before_strange_copy = sym before_strange_copy,
        real = sym REAL,
        dispatch = sym dispatch,
        by_number = sym by_number,
    )
}
