//! Making and ending processes.
//!
//! `fork` is covered by its own handlers (pthread_atfork(3)), which are not told that it has failed. What starts
//! another program is in [`super::exec`].

use core::sync::atomic::AtomicPtr;

use beeline_sockets::life;
use libc::{c_int, c_void, pid_t};

use crate::real::{Function, Real, fail, reals};

reals! {
    fn _exit(status: c_int) -> !;
    fn _Exit(status: c_int) -> !;
    fn fork() -> pid_t;
    fn _Fork() -> pid_t;
}

type Exit = unsafe extern "C" fn(c_int) -> !;
type Fork = unsafe extern "C" fn() -> pid_t;

#[unsafe(link_section = ".text.fork")]
pub(super) unsafe fn leave(exit: &Function<Exit>, status: c_int) -> ! {
    life::leave();
    beeline_sockets::stats::remove_file();
    if let Some(exit) = exit.get() {
        // SAFETY: a plain number.
        unsafe { exit(status) }
    }
    std::process::abort()
}

/// _exit(2): runs no destructors, so what ours do is done here.
#[unsafe(no_mangle)]
#[unsafe(link_section = ".text.fork")]
pub unsafe extern "C" fn _exit(status: c_int) -> ! {
    // SAFETY: _exit(2) takes any status.
    unsafe { leave(&reals::_exit, status) }
}

/// _Exit(3), the same.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn _Exit(status: c_int) -> ! {
    // SAFETY: _Exit(3) takes any status.
    unsafe { leave(&reals::_Exit, status) }
}

/// fork(2), whose handlers are ours.
#[unsafe(no_mangle)]
#[unsafe(link_section = ".text.fork")]
pub unsafe extern "C" fn fork() -> pid_t {
    life::around_fork(|| real_fork(&reals::fork))
}

/// _Fork(3): a fork that runs no fork handlers, so ours are run here.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn _Fork() -> pid_t {
    let fork = life::may_accelerate().then(life::around_fork_prepare);
    let pid = real_fork(&reals::_Fork);
    after_fork(fork, pid.into());
    pid
}

fn real_fork(fork: &Function<Fork>) -> pid_t {
    let Some(fork) = fork.get() else { return fail(libc::ENOSYS) as pid_t };
    // SAFETY: no arguments.
    unsafe { fork() }
}

/// What our fork handlers do after the fork that was prepared as this number, if it was, and has returned `pid`.
pub(super) fn after_fork(number: Option<u32>, pid: i64) {
    let Some(number) = number else { return };
    if pid == 0 {
        life::around_fork_child();
    } else {
        life::around_fork_parent();
        life::forked(number, pid);
    }
}

static VFORK: AtomicPtr<c_void> = AtomicPtr::new(core::ptr::null_mut());
static CLONE: AtomicPtr<c_void> = AtomicPtr::new(core::ptr::null_mut());

/// Finds the functions behind the stubs.
pub fn resolve() {
    for (name, place) in [(c"vfork", &VFORK), (c"clone", &CLONE)] {
        place.store(Real::new(name).resolve(), core::sync::atomic::Ordering::Release);
    }
}

/// Counts and jumps to libc's function with every register as it was. If libc's is not known yet (a `vfork`
/// in another library's constructor), it is found first.
macro_rules! stub {
    ($(#[$attribute:meta])* $name:ident, $place:ident) => {
        #[cfg(target_arch = "x86_64")]
        #[unsafe(naked)]
        $(#[$attribute])*
        pub unsafe extern "C" fn $name() {
            core::arch::naked_asm!(
                "lock inc dword ptr [rip + {forks}]",
                "lock inc dword ptr [rip + {vforks}]",
                "mov rax, [rip + {real}]",
                "test rax, rax",
                "jz 2f",
                "jmp rax",
                "2:",
                // Six registers carry arguments; seven pushes keep the stack aligned for the call.
                "push rdi",
                "push rsi",
                "push rdx",
                "push rcx",
                "push r8",
                "push r9",
                "push rax",
                "call {resolve}",
                "pop rax",
                "pop r9",
                "pop r8",
                "pop rcx",
                "pop rdx",
                "pop rsi",
                "pop rdi",
                "jmp [rip + {real}]",
                forks = sym life::FORKS,
                vforks = sym life::VFORKS,
                real = sym $place,
                resolve = sym resolve_c,
            )
        }

        #[cfg(target_arch = "aarch64")]
        #[unsafe(naked)]
        $(#[$attribute])*
        pub unsafe extern "C" fn $name() {
            core::arch::naked_asm!(
                "adrp x16, {forks}",
                "add x16, x16, :lo12:{forks}",
                "2: ldxr w17, [x16]",
                "add w17, w17, #1",
                "stxr w15, w17, [x16]",
                "cbnz w15, 2b",
                "adrp x16, {vforks}",
                "add x16, x16, :lo12:{vforks}",
                "3: ldxr w17, [x16]",
                "add w17, w17, #1",
                "stxr w15, w17, [x16]",
                "cbnz w15, 3b",
                "adrp x16, {real}",
                "ldr x16, [x16, :lo12:{real}]",
                "cbnz x16, 4f",
                "stp x29, x30, [sp, #-80]!",
                "stp x0, x1, [sp, #16]",
                "stp x2, x3, [sp, #32]",
                "stp x4, x5, [sp, #48]",
                "stp x6, x7, [sp, #64]",
                "bl {resolve}",
                "ldp x0, x1, [sp, #16]",
                "ldp x2, x3, [sp, #32]",
                "ldp x4, x5, [sp, #48]",
                "ldp x6, x7, [sp, #64]",
                "ldp x29, x30, [sp], #80",
                "adrp x16, {real}",
                "ldr x16, [x16, :lo12:{real}]",
                "4: br x16",
                forks = sym life::FORKS,
                vforks = sym life::VFORKS,
                real = sym $place,
                resolve = sym resolve_c,
            )
        }
    };
}

unsafe extern "C" fn resolve_c() {
    resolve();
}

stub!(
    #[unsafe(no_mangle)]
    vfork,
    VFORK
);
stub!(
    #[unsafe(no_mangle)]
    __vfork,
    VFORK
);
stub!(clone_in_memory, CLONE);

/// clone(2): a child that runs in this memory is only counted; one that gets a copy is a fork.
#[cfg(target_arch = "x86_64")]
#[unsafe(naked)]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn clone() {
    core::arch::naked_asm!(
        "test edx, {here}",
        "jnz {in_memory}",
        "jmp {copy}",
        here = const libc::CLONE_VM,
        in_memory = sym clone_in_memory,
        copy = sym clone_copy,
    )
}

/// clone(2), as above.
#[cfg(target_arch = "aarch64")]
#[unsafe(naked)]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn clone() {
    core::arch::naked_asm!(
        "mov w16, {here}",
        "tst w2, w16",
        "b.ne {in_memory}",
        "b {copy}",
        here = const libc::CLONE_VM,
        in_memory = sym clone_in_memory,
        copy = sym clone_copy,
    )
}

type ChildFunction = unsafe extern "C" fn(*mut c_void) -> c_int;
type RealClone =
    unsafe extern "C" fn(Option<ChildFunction>, *mut c_void, c_int, *mut c_void, usize, usize, usize) -> c_int;

/// What the child of a [`clone_copy`] is to run.
struct Start {
    function: ChildFunction,
    argument: *mut c_void,
}

/// clone(2) of a child that gets a copy of the memory: libc's fork handlers do not run, so ours are run here. With
/// thread-local memory that we do not know the child cannot run them: all its calls are the kernel's, as those of a
/// `vfork`'s child are.
unsafe extern "C" fn clone_copy(
    function: Option<ChildFunction>,
    stack: *mut c_void,
    flags: c_int,
    argument: *mut c_void,
    parent_tid: usize,
    tls: usize,
    child_tid: usize,
) -> c_int {
    unsafe extern "C" fn begin(start: *mut c_void) -> c_int {
        life::around_fork_child();
        // SAFETY: the copy of what lies on the parent's stack. The app's function gets its argument.
        let status = unsafe {
            let Start { function, argument } = start.cast::<Start>().read();
            function(argument)
        };
        // libc ends the process without a word.
        life::leave();
        beeline_sockets::stats::remove_file();
        status
    }
    let mut real = CLONE.load(core::sync::atomic::Ordering::Acquire);
    if real.is_null() {
        // Not in each call: in the child of a fork that libc does not know of, the linker may be locked for ever.
        resolve();
        real = CLONE.load(core::sync::atomic::Ordering::Acquire);
    }
    if real.is_null() {
        return fail(libc::ENOSYS) as c_int;
    }
    // SAFETY: libc's function has this type when it is called with all arguments that it may read.
    let real: RealClone = unsafe { core::mem::transmute(real) };
    if flags & libc::CLONE_SETTLS != 0 {
        // SAFETY: the app's arguments, passed on.
        return life::around_strange_copy(|| unsafe {
            real(function, stack, flags, argument, parent_tid, tls, child_tid)
        });
    }
    let Some(begins) = function.filter(|_| life::may_accelerate() && !stack.is_null()) else {
        // SAFETY: the app's arguments, passed on.
        return unsafe { real(function, stack, flags, argument, parent_tid, tls, child_tid) };
    };
    let mut start = Start { function: begins, argument };
    let fork = life::around_clone_prepare(flags as u64);
    // SAFETY: the app's arguments, passed on; the child reads its copy of `start`.
    let child = unsafe { real(Some(begin), stack, flags, (&raw mut start).cast(), parent_tid, tls, child_tid) };
    after_fork(Some(fork), child.into());
    child
}
