//! Rings of io_uring(7), which drive sockets past libc.
//!
//! A ring reads and writes the anchor where the program means its connection, so a program that makes one has no
//! lanes from then on. liburing makes rings with system calls of its own, so its functions are hooked as libc's
//! are; they return a negative error number and leave errno alone. A program that brings its own copy of liburing
//! does not come here; `beeline_sockets::life` finds it by its text.

use core::ffi::CStr;

use beeline_sockets::{life, stats};
use beeline_stats::{Reason, Role};
use libc::{c_int, c_uint, c_void, size_t};

use crate::real::{Real, real_named};

/// Under which names liburing is known to the dynamic linker.
const LIBRARIES: [&CStr; 4] = [c"liburing.so.2", c"liburing-ffi.so.2", c"liburing.so.1", c"liburing-ffi.so.1"];

/// Gives up all lanes, because a ring is about to be made; false if one of them cannot be given up. Then there must be
/// no ring, and most programs go on without.
pub(super) fn may_be_made() -> bool {
    if !beeline_sockets::config().accelerate {
        return true;
    }
    match life::leave_lanes(Reason::IoUringDenied) {
        Ok(()) => true,
        Err(reason) => {
            stats::fell_back(Role::Client, reason);
            false
        }
    }
}

/// Whether a ring that is asked for by number is one of libuv's (src/unix/linux.c there), by sizes and flags that nobody else
/// is known to ask for; libuv sets them on Linux 6.6 and later. Such a ring carries nothing but epoll_ctl(2), or works on
/// files, and libuv makes the calls themselves where there are no rings. Seen with uvloop 0.23.
///
/// # Safety
/// `parameters` must be a `struct io_uring_params`, unless it lies in the first page, which is never mapped.
pub(super) unsafe fn is_libuvs(entries: usize, parameters: usize) -> bool {
    // linux/io_uring.h
    const SQPOLL: u32 = 1 << 1;
    const NO_SQARRAY: u32 = 1 << 16;
    /// sq_entries and cq_entries come before the flags.
    type Beginning = [u32; 3];
    let wanted = match entries {
        256 => NO_SQARRAY,
        64 => SQPOLL | NO_SQARRAY,
        _ => return false,
    };
    if parameters < 4096 {
        return false;
    }
    // SAFETY: the beginning of the program's structure, by the caller's word. Its alignment is the program's affair.
    let [.., flags] = unsafe { (parameters as *const Beginning).read_unaligned() };
    flags == wanted
}

/// liburing's own function; null if it is not loaded. Rings are made neither in signal handlers nor in vfork children,
/// so it is looked for when it is called: few programs have it.
fn find(real: &'static Real, name: &CStr) -> *mut c_void {
    let found = real.address();
    if !found.is_null() {
        return found;
    }
    // A plugin may have brought it for itself alone.
    LIBRARIES
        .iter()
        .map(|library| {
            // SAFETY: names that end with NUL; the library is not loaded by this, and the reference to one that is
            // keeps the function where it is.
            unsafe {
                let handle = libc::dlopen(library.as_ptr(), libc::RTLD_NOLOAD | libc::RTLD_LAZY);
                if handle.is_null() { handle } else { libc::dlsym(handle, name.as_ptr()) }
            }
        })
        .find(|function| !function.is_null())
        .unwrap_or(core::ptr::null_mut())
}

macro_rules! rings {
    ($( fn $name:ident($($argument:ident: $type:ty),*); )*) => { $(
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($argument: $type),*) -> c_int {
            static REAL: Real = real_named!($name);
            if !may_be_made() {
                return -libc::ENOSYS;
            }
            let name = concat!(stringify!($name), "\0");
            let Ok(name) = CStr::from_bytes_with_nul(name.as_bytes()) else { return -libc::ENOSYS };
            let real = find(&REAL, name);
            if real.is_null() {
                return -libc::ENOSYS;
            }
            // SAFETY: liburing's function of this name has this type.
            let real: unsafe extern "C" fn($($type),*) -> c_int = unsafe { core::mem::transmute(real) };
            // SAFETY: the program's arguments, passed on.
            unsafe { real($($argument),*) }
        }
    )* };
}

rings! {
    fn io_uring_queue_init(entries: c_uint, ring: *mut c_void, flags: c_uint);
    fn io_uring_queue_init_params(entries: c_uint, ring: *mut c_void, parameters: *mut c_void);
    fn io_uring_queue_init_mem(
        entries: c_uint,
        ring: *mut c_void,
        parameters: *mut c_void,
        memory: *mut c_void,
        size: size_t
    );
    fn io_uring_setup(entries: c_uint, parameters: *mut c_void);
}
