//! System calls without libc.
//!
//! Inside an app, libc's wrappers are the names we interpose; calling them would recurse, be a
//! cancellation point in the wrong place, and touch `errno`. These functions enter the kernel directly
//! and report errors by value.

use core::arch::asm;
use core::sync::atomic::AtomicU32;

/// A kernel error number (always positive), as in errno(3).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Errno(pub i32);

/// Result of a system call that returns a non-negative number.
pub type SysResult = Result<usize, Errno>;

/// Enters the kernel with six arguments; unused ones are zero.
///
/// The number comes negated on x86-64, so that a test program that has this linked in is not taken for one that makes
/// system calls about sockets past the C library (`life::text` of beeline-sockets), and keeps its lanes.
///
/// # Safety
/// The arguments must be valid for system call `number`: pointers live and of the size the kernel
/// expects, and the call must not break invariants of code that is not aware of it.
#[inline]
pub unsafe fn syscall6(number: libc::c_long, args: [usize; 6]) -> isize {
    let ret: isize;
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the kernel's x86-64 convention; rcx and r11 are clobbered by `syscall`; the caller
    // vouches for number and arguments.
    unsafe {
        asm!("neg rax", "syscall", inlateout("rax") (number as isize).wrapping_neg() => ret,
            in("rdi") args[0], in("rsi") args[1], in("rdx") args[2],
            in("r10") args[3], in("r8") args[4], in("r9") args[5],
            lateout("rcx") _, lateout("r11") _, options(nostack));
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: the kernel's arm64 convention; the caller vouches for number and arguments.
    unsafe {
        asm!("svc 0", in("x8") number as isize, inlateout("x0") args[0] as isize => ret,
            in("x1") args[1], in("x2") args[2], in("x3") args[3],
            in("x4") args[4], in("x5") args[5], options(nostack));
    }
    ret
}

/// [`syscall6`] with the kernel's error convention decoded.
///
/// # Safety
/// As for [`syscall6`].
#[inline]
pub unsafe fn call(number: libc::c_long, args: [usize; 6]) -> SysResult {
    // SAFETY: forwarded from the caller.
    let ret = unsafe { syscall6(number, args) };
    if (-4095..0).contains(&ret) { Err(Errno(ret.unsigned_abs() as i32)) } else { Ok(ret as usize) }
}

/// `close(2)`. The descriptor is gone whatever the result.
pub fn close(fd: i32) -> SysResult {
    // SAFETY: closing a number touches no memory.
    unsafe { call(libc::SYS_close, [fd as usize, 0, 0, 0, 0, 0]) }
}

/// Thread id of the caller, `gettid(2)`.
pub fn gettid() -> u32 {
    // SAFETY: no arguments.
    unsafe { syscall6(libc::SYS_gettid, [0; 6]) as u32 }
}

/// Process id of the caller, `getpid(2)`.
pub fn getpid() -> u32 {
    // SAFETY: no arguments.
    unsafe { syscall6(libc::SYS_getpid, [0; 6]) as u32 }
}

/// Process id of the caller's parent, 0 if it has none in this pid namespace, `getppid(2)`.
pub fn getppid() -> u32 {
    // SAFETY: no arguments.
    unsafe { syscall6(libc::SYS_getppid, [0; 6]) as u32 }
}

/// The limit of a resource that holds for this process now, getrlimit(2); `RLIM_INFINITY` if it is not told.
#[must_use]
pub fn limit(resource: libc::__rlimit_resource_t) -> u64 {
    let mut limit = libc::rlimit { rlim_cur: libc::RLIM_INFINITY, rlim_max: libc::RLIM_INFINITY };
    let args = [0, resource as usize, 0, (&raw mut limit) as usize, 0, 0];
    // SAFETY: a live rlimit for the old value, none for the new one.
    let _ = unsafe { call(libc::SYS_prlimit64, args) };
    limit.rlim_cur
}

/// How often the process's threads were taken a CPU that they wanted on, getrusage(2); 0 if that is not told.
#[must_use]
pub fn involuntary_switches() -> u64 {
    // SAFETY: all-zero is a valid value of this plain C struct.
    let mut usage: libc::rusage = unsafe { core::mem::zeroed() };
    let args = [libc::RUSAGE_SELF as usize, (&raw mut usage) as usize, 0, 0, 0, 0];
    // SAFETY: the kernel writes one `struct rusage` into a live local of that type.
    let _ = unsafe { call(libc::SYS_getrusage, args) };
    usage.ru_nivcsw.cast_unsigned()
}

/// `futex(2)` on a word that may be shared between processes.
pub fn futex(word: &AtomicU32, operation: i32, value: u32, timeout: Option<&libc::timespec>) {
    let timeout = timeout.map_or(core::ptr::null(), core::ptr::from_ref);
    let args = [word.as_ptr() as usize, operation as usize, value as usize, timeout as usize, 0, 0];
    // SAFETY: the word and the timeout outlive the call. Waiting and waking only read them; an operation on a second
    // word fails, as its address is null, and one that writes to the first does so atomically.
    unsafe { syscall6(libc::SYS_futex, args) };
}

/// `mmap(2)`: a shared mapping of `length` bytes of `fd` from offset 0.
pub fn map_shared(fd: i32, length: usize) -> Result<*mut u8, Errno> {
    let prot = (libc::PROT_READ | libc::PROT_WRITE) as usize;
    // SAFETY: a fresh mapping at an address the kernel chooses; nothing existing is replaced.
    unsafe { call(libc::SYS_mmap, [0, length, prot, libc::MAP_SHARED as usize, fd as usize, 0]) }
        .map(|address| address as *mut u8)
}

/// `mmap(2)`: `length` bytes of zeroed memory, shared with the processes that this one forks.
pub fn map_shared_anonymous(length: usize) -> Result<*mut u8, Errno> {
    let prot = (libc::PROT_READ | libc::PROT_WRITE) as usize;
    let flags = (libc::MAP_SHARED | libc::MAP_ANONYMOUS) as usize;
    // SAFETY: a fresh mapping at an address the kernel chooses; nothing existing is replaced.
    unsafe { call(libc::SYS_mmap, [0, length, prot, flags, usize::MAX, 0]) }.map(|address| address as *mut u8)
}

/// `mmap(2)`: a shared mapping of `length` bytes of `fd` in the place of another.
///
/// # Safety
/// `[base, base + length)` must be a mapping whose users can do with what is in the file.
pub unsafe fn map_shared_over(base: *mut u8, fd: i32, length: usize) -> Result<(), Errno> {
    let prot = (libc::PROT_READ | libc::PROT_WRITE) as usize;
    let flags = (libc::MAP_SHARED | libc::MAP_FIXED) as usize;
    // SAFETY: forwarded from the caller.
    unsafe { call(libc::SYS_mmap, [base as usize, length, prot, flags, fd as usize, 0]) }.map(drop)
}

/// `mmap(2)`: `length` bytes of zeroed private memory, not yet resident.
pub fn map_private(length: usize) -> Result<*mut u8, Errno> {
    let prot = (libc::PROT_READ | libc::PROT_WRITE) as usize;
    let flags = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE) as usize;
    // SAFETY: a fresh mapping at an address the kernel chooses; nothing existing is replaced.
    unsafe { call(libc::SYS_mmap, [0, length, prot, flags, usize::MAX, 0]) }.map(|address| address as *mut u8)
}

/// `pread(2)`.
pub fn read_at(fd: i32, into: &mut [u8], offset: usize) -> SysResult {
    // SAFETY: a live buffer of the length given.
    unsafe { call(libc::SYS_pread64, [fd as usize, into.as_mut_ptr() as usize, into.len(), offset, 0, 0]) }
}

/// Gives the pages of a shared mapping back; they read as zero from now on (`MADV_REMOVE`, madvise(2)).
///
/// # Safety
/// `[base, base + length)` must lie within a mapping of ours, in pages whose contents nobody needs.
pub unsafe fn discard(base: *mut u8, length: usize) {
    // SAFETY: the caller gives the contents up. A kernel that refuses leaves them as they are.
    let _ = unsafe { call(libc::SYS_madvise, [base as usize, length, libc::MADV_REMOVE as usize, 0, 0, 0]) };
}

/// `munmap(2)`.
///
/// # Safety
/// Nothing may use `[base, base + length)` afterwards.
pub unsafe fn unmap(base: *mut u8, length: usize) {
    // SAFETY: the caller gives the range up.
    let _ = unsafe { call(libc::SYS_munmap, [base as usize, length, 0, 0, 0, 0]) };
}

/// Whether the page at `base` is locked into memory (mlock(2), mlockall(2)).
///
/// # Safety
/// `base` must begin a page of a mapping of ours whose contents nobody needs in this process: private memory that is
/// not locked loses them.
#[must_use]
pub unsafe fn is_locked(base: *mut u8) -> bool {
    const PAGE_BYTES: usize = 4096;
    let args = [base as usize, PAGE_BYTES, libc::MADV_DONTNEED as usize, 0, 0, 0];
    // SAFETY: the caller gives the contents up. Locked memory is what the kernel refuses this for.
    unsafe { call(libc::SYS_madvise, args) == Err(Errno(libc::EINVAL)) }
}

/// A cheap clock, the same for all processes of the host: the time-stamp counter where there is one, nanoseconds
/// elsewhere. Constants in ticks are orders of magnitude: there are two to three to a nanosecond on the machines
/// measured, and one elsewhere.
#[must_use]
#[inline]
pub fn ticks() -> u64 {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: rdtsc has no preconditions on x86-64 Linux in user mode.
    unsafe {
        core::arch::x86_64::_rdtsc()
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: a live timespec.
        unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut now) };
        (now.tv_sec as u64).wrapping_mul(1_000_000_000).wrapping_add(now.tv_nsec as u64)
    }
}

/// `munlock(2)`.
pub fn unlock(base: *mut u8, length: usize) {
    // SAFETY: changes no contents. An address that is not mapped is an error, which changes nothing.
    let _ = unsafe { call(libc::SYS_munlock, [base as usize, length, 0, 0, 0, 0]) };
}

/// As [`map_shared`], in a process that locks what it maps: the mapping is not locked, and nothing is made resident.
pub fn map_shared_unlocked(fd: i32, length: usize) -> Result<*mut u8, Errno> {
    let flags = libc::MAP_SHARED as usize;
    let arguments = [0, length, libc::PROT_NONE as usize, flags, fd as usize, 0];
    // SAFETY: a fresh mapping at an address the kernel chooses. What may not be touched is not made resident.
    let base = unsafe { call(libc::SYS_mmap, arguments) }? as *mut u8;
    unlock(base, length);
    let prot = (libc::PROT_READ | libc::PROT_WRITE) as usize;
    // SAFETY: the mapping was made just now and has no user.
    unsafe {
        match call(libc::SYS_mprotect, [base as usize, length, prot, 0, 0, 0]) {
            Ok(_) => Ok(base),
            Err(errno) => {
                unmap(base, length);
                Err(errno)
            }
        }
    }
}
