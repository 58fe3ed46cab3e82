//! Rings of io_uring(7), which drive sockets past libc.
//!
//! A ring reads and writes the anchor where the program means its connection, so a program whose ring gets to do with a
//! descriptor of ours has no lanes from then on. liburing makes rings with system calls of its own, so its functions
//! are hooked as libc's are; they return a negative error number and leave errno alone. A program that brings its own
//! copy of liburing does not come here; `beeline_sockets::life` finds it by its text.
//!
//! Most programs with rings mean files: databases. So a ring that liburing makes costs nothing yet. What is submitted
//! to it comes through liburing as well, and is looked at first ([`entries`]). Rings that are made in another way, or
//! that the kernel reads by itself, are not seen into: lanes are given up before they are made.

mod entries;

use core::ffi::CStr;
use core::sync::atomic::{AtomicPtr, Ordering::Relaxed};

use beeline_sockets::{life, stats};
use beeline_stats::{Reason, Role};
use libc::{c_int, c_uint, c_void, size_t};

use super::loading;
use crate::real::{Real, c_name, keeping_errno, look_up};
use entries::{Parameters, Ring, are, flags_of, is_seen_into, note, registers_files, spares};
pub(super) use entries::{is_no_lane, is_theirs};

/// Under which names liburing is known to the dynamic linker.
const LIBRARIES: [&CStr; 4] = [c"liburing.so.2", c"liburing-ffi.so.2", c"liburing.so.1", c"liburing-ffi.so.1"];

/// Gives up all lanes, because a ring is about to be made or to do with one; false if one of them cannot be given up.
/// Then there must be no ring, and most programs go on without.
pub(super) fn may_be_made() -> bool {
    may_go_past_us(Reason::IoUringDenied)
}

/// The same for whatever goes past us, for this reason.
pub(super) fn may_go_past_us(reason: Reason) -> bool {
    if life::has_left_lanes() {
        return true;
    }
    match life::leave_lanes(reason) {
        Ok(()) => true,
        Err(reason) => {
            stats::fell_back(Role::Client, reason);
            false
        }
    }
}

/// Whether what is waiting in a ring may be submitted. Lanes on which other threads sleep cannot be given up; then it
/// is enough that nothing is about one of them.
///
/// # Safety
/// As for [`spares`].
unsafe fn may_be_submitted(ring: *const Ring) -> bool {
    // SAFETY: the caller guarantees it.
    unsafe { spares(ring, is_theirs) || may_be_made() || spares(ring, is_no_lane) }
}

/// As [`may_be_submitted`], for descriptors that are to be known to a ring by their places.
///
/// # Safety
/// As for [`are`].
unsafe fn may_be_registered(files: *const c_int, count: c_uint) -> bool {
    // SAFETY: the caller guarantees it.
    unsafe { are(files, count, is_theirs) || may_be_made() || are(files, count, is_no_lane) }
}

/// Whether a ring that is asked for by number is one of libuv's (src/unix/linux.c there), by sizes and flags that
/// nobody else is known to ask for; libuv sets them on Linux 6.6 and later. Such a ring carries nothing but
/// epoll_ctl(2), or works on files, and libuv makes the calls themselves where there are no rings. Seen with uvloop
/// 0.23.
///
/// # Safety
/// `parameters` must be a `struct io_uring_params`, unless it lies in the first page, which is never mapped.
pub(super) unsafe fn is_libuvs(entries: usize, parameters: usize) -> bool {
    // linux/io_uring.h
    const SQPOLL: u32 = 1 << 1;
    const NO_SQARRAY: u32 = 1 << 16;
    let wanted = match entries {
        256 => NO_SQARRAY,
        64 => SQPOLL | NO_SQARRAY,
        _ => return false,
    };
    // SAFETY: the caller guarantees it.
    unsafe { flags_of(parameters as *const Parameters) == Some(wanted) }
}

/// The library's own function; null if it is not loaded. Rings are made neither in signal handlers nor in vfork
/// children, so it is looked for when it is called: few programs have it. That takes the dynamic linker some dozens of
/// system calls, and the library stays loaded from then on: so what is found is to be kept.
pub(super) fn find(real: &'static Real, name: &CStr, libraries: &[&CStr]) -> *mut c_void {
    let found = real.address();
    if !found.is_null() {
        return found;
    }
    // A plugin may have brought it for itself alone.
    libraries
        .iter()
        .map(|library| {
            // SAFETY: names that end with NUL; the library is not loaded by this, and the reference to one that has the
            // function keeps that where it is. Another's is given back.
            unsafe {
                let handle = loading::open(library.as_ptr(), libc::RTLD_NOLOAD | libc::RTLD_LAZY);
                if handle.is_null() {
                    return handle;
                }
                let function = look_up(handle, name);
                if function.is_null() {
                    libc::dlclose(handle);
                }
                function
            }
        })
        .find(|function| !function.is_null())
        .unwrap_or(core::ptr::null_mut())
}

/// Whether a function is one of a library whose file's name begins so.
pub(super) fn is_of_library(function: *mut c_void, name: &[u8]) -> bool {
    let mut found = core::mem::MaybeUninit::<libc::Dl_info>::zeroed();
    // SAFETY: room for what is told of an address; the path is a string that stays.
    let path = unsafe {
        if libc::dladdr(function, found.as_mut_ptr()) == 0 || found.assume_init_ref().dli_fname.is_null() {
            return false;
        }
        CStr::from_ptr(found.assume_init_ref().dli_fname).to_bytes()
    };
    path.rsplit(|&byte| byte == b'/').next().is_some_and(|file| file.starts_with(name))
}

/// Whether an operation of io_uring_register(2) takes descriptors.
pub(super) fn takes_files(operation: usize) -> bool {
    registers_files(operation as c_uint)
}

/// liburing's function of this name, looked for once; null if it is not loaded.
fn found(real: &'static Real, name: &'static str, found: &AtomicPtr<c_void>) -> *mut c_void {
    let known = found.load(Relaxed);
    if !known.is_null() {
        return known;
    }
    let function =
        CStr::from_bytes_with_nul(name.as_bytes()).map_or(core::ptr::null_mut(), |name| find(real, name, &LIBRARIES));
    found.store(function, Relaxed);
    function
}

/// `$check` says whether the kernel may be asked; if not, the call fails with `$refused`. `$then` follows a success.
macro_rules! rings {
    ($( fn $name:ident($($argument:ident: $type:ty),*)
        if $check:expr, else $refused:ident $(, then $then:expr)?; )*) => { $(
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($argument: $type),*) -> c_int {
            static REAL: Real = Real::new(c_name!($name));
            static FOUND: AtomicPtr<c_void> = AtomicPtr::new(core::ptr::null_mut());
            // The dynamic linker and what libc does for us may change errno.
            let (may_go_on, real) = keeping_errno(|| {
                #[allow(unused_unsafe)]
                // SAFETY: the program's arguments, as liburing itself would read them.
                let may_go_on = unsafe { $check };
                (may_go_on, found(&REAL, concat!(stringify!($name), "\0"), &FOUND))
            });
            if !may_go_on {
                return -libc::$refused;
            }
            if real.is_null() {
                return -libc::ENOSYS;
            }
            // SAFETY: liburing's function of this name has this type.
            let real: unsafe extern "C" fn($($type),*) -> c_int = unsafe { core::mem::transmute(real) };
            // SAFETY: the program's arguments, passed on.
            let result = unsafe { real($($argument),*) };
            $(
                if result == 0 {
                    // SAFETY: liburing has just made the ring.
                    unsafe { $then };
                }
            )?
            result
        }
    )* };
}

rings! {
    fn io_uring_queue_init(entries: c_uint, ring: *mut Ring, flags: c_uint)
        if is_seen_into(flags) || may_be_made(), else ENOSYS, then note(ring);
    fn io_uring_queue_init_params(entries: c_uint, ring: *mut Ring, parameters: *mut Parameters)
        if flags_of(parameters).is_some_and(is_seen_into) || may_be_made(), else ENOSYS, then note(ring);
    fn io_uring_queue_init_mem(
        entries: c_uint,
        ring: *mut Ring,
        parameters: *mut Parameters,
        memory: *mut c_void,
        size: size_t
    ) if may_be_made(), else ENOSYS;
    fn io_uring_setup(entries: c_uint, parameters: *mut Parameters) if may_be_made(), else ENOSYS;

    fn io_uring_submit(ring: *mut Ring) if may_be_submitted(ring), else EAGAIN;
    fn io_uring_submit_and_wait(ring: *mut Ring, count: c_uint) if may_be_submitted(ring), else EAGAIN;
    fn io_uring_submit_and_get_events(ring: *mut Ring) if may_be_submitted(ring), else EAGAIN;
    fn io_uring_submit_and_wait_timeout(
        ring: *mut Ring,
        outcome: *mut *mut c_void,
        count: c_uint,
        time: *mut c_void,
        mask: *mut c_void
    ) if may_be_submitted(ring), else EAGAIN;
    fn io_uring_submit_and_wait_min_timeout(
        ring: *mut Ring,
        outcome: *mut *mut c_void,
        count: c_uint,
        time: *mut c_void,
        least: c_uint,
        mask: *mut c_void
    ) if may_be_submitted(ring), else EAGAIN;
    fn io_uring_submit_and_wait_reg(
        ring: *mut Ring,
        outcome: *mut *mut c_void,
        count: c_uint,
        index: c_int
    ) if may_be_submitted(ring), else EAGAIN;
    // Before Linux 5.11 these submit, too.
    fn io_uring_wait_cqes(
        ring: *mut Ring,
        outcome: *mut *mut c_void,
        count: c_uint,
        time: *mut c_void,
        mask: *mut c_void
    ) if may_be_submitted(ring), else EAGAIN;
    fn io_uring_wait_cqe_timeout(ring: *mut Ring, outcome: *mut *mut c_void, time: *mut c_void)
        if may_be_submitted(ring), else EAGAIN;
    // What is submitted so is not to be found from here.
    fn io_uring_enter(ring: c_uint, submit: c_uint, complete: c_uint, flags: c_uint, mask: *mut c_void)
        if submit == 0 || may_be_made(), else EAGAIN;
    fn io_uring_enter2(
        ring: c_uint,
        submit: c_uint,
        complete: c_uint,
        flags: c_uint,
        mask: *mut c_void,
        size: size_t
    ) if submit == 0 || may_be_made(), else EAGAIN;

    fn io_uring_register_files(ring: *mut Ring, files: *const c_int, count: c_uint)
        if may_be_registered(files, count), else EAGAIN;
    fn io_uring_register_files_tags(ring: *mut Ring, files: *const c_int, tags: *const u64, count: c_uint)
        if may_be_registered(files, count), else EAGAIN;
    fn io_uring_register_files_update(ring: *mut Ring, offset: c_uint, files: *const c_int, count: c_uint)
        if may_be_registered(files, count), else EAGAIN;
    fn io_uring_register_files_update_tag(
        ring: *mut Ring,
        offset: c_uint,
        files: *const c_int,
        tags: *const u64,
        count: c_uint
    ) if may_be_registered(files, count), else EAGAIN;
    fn io_uring_register(ring: c_uint, operation: c_uint, argument: *const c_void, count: c_uint)
        if !registers_files(operation) || may_be_made(), else EAGAIN;
}
