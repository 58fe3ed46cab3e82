//! Code that a program loads while it runs, and its ways past our hooks.
//!
//! 1. A library loaded with `RTLD_DEEPBIND` is bound to libc's functions although ours come first: PHP loads its
//!    extensions so. A connection that such code and the program share would be ours to one of them and a bare
//!    anchor to the other. So before dlopen(3) returns, its references are turned to our functions ([`slots`]).
//! 2. dlsym(3) on a handle of libc gives libc's functions: so languages call C. It gives ours.
//! 3. What was loaded may make rings of io_uring: its text is searched before the next connection is made.
//!
//! Both functions look at who called them, which decides where they search. So the stubs leave no frame: they ask what
//! is to be done and jump there. Only a path names the same file whoever calls, so such a load can be made from here.
//! Before a deep one of a mere name, lanes are left; a lane on which another thread sleeps at that moment stays.
//!
//! Out of reach are namespaces of their own (dlmopen(3)), dlvsym(3), libraries that are bound deeply as long as their
//! constructors run or when they ask dlsym(3) for `RTLD_DEFAULT` or `RTLD_NEXT`, and who finds libc's functions without
//! the dynamic linker.

mod next;
mod slots;
mod twins;

use core::ffi::{CStr, c_char};

use beeline_sockets::{life, stats};
use beeline_stats::{Reason, Role};
use libc::{c_int, c_void};

use crate::real::look_up;
use next::{next_dlopen, next_dlsym};
pub use next::{open, resolve};

/// Asks a function where to go on, with all arguments as they were, and goes there.
macro_rules! stub {
    ($(#[$attribute:meta])* $name:ident, $before:ident) => {
        #[cfg(target_arch = "x86_64")]
        #[unsafe(naked)]
        #[unsafe(no_mangle)]
        $(#[$attribute])*
        pub unsafe extern "C" fn $name() {
            core::arch::naked_asm!(
                // Three words keep the stack aligned for the call.
                "push rdi",
                "push rsi",
                "sub rsp, 8",
                "call {before}",
                "add rsp, 8",
                "pop rsi",
                "pop rdi",
                "jmp rax",
                before = sym $before,
            )
        }

        #[cfg(target_arch = "aarch64")]
        #[unsafe(naked)]
        #[unsafe(no_mangle)]
        $(#[$attribute])*
        pub unsafe extern "C" fn $name() {
            core::arch::naked_asm!(
                "stp x29, x30, [sp, #-32]!",
                "stp x0, x1, [sp, #16]",
                "bl {before}",
                "mov x16, x0",
                "ldp x0, x1, [sp, #16]",
                "ldp x29, x30, [sp], #32",
                "br x16",
                before = sym $before,
            )
        }
    };
}

stub!(
    /// dlopen(3).
    dlopen,
    before_load
);

stub!(
    /// dlsym(3).
    dlsym,
    before_look_up
);

/// Where a dlopen(3) is to go on.
unsafe extern "C" fn before_load(path: *const c_char, flags: c_int) -> *const c_void {
    if path.is_null() || flags & libc::RTLD_NOLOAD != 0 || life::has_left_lanes() {
        return next_dlopen();
    }
    life::code_is_loaded();
    if flags & libc::RTLD_DEEPBIND == 0 {
        return next_dlopen();
    }
    // SAFETY: the program's argument, a string.
    let path = unsafe { CStr::from_ptr(path) }.to_bytes();
    // The caller decides what `$ORIGIN` is, too.
    let is_plain = path.contains(&b'/') && !path.contains(&b'$');
    // They become known now, as what dlerror(3) is to tell would be forgotten afterwards.
    if is_plain && twins::know() {
        return load_deeply as *const c_void;
    }
    leave_lanes();
    next_dlopen()
}

/// dlopen(3) of a path with `RTLD_DEEPBIND`.
unsafe extern "C" fn load_deeply(path: *const c_char, flags: c_int) -> *mut c_void {
    // SAFETY: the program's arguments.
    let handle = unsafe { open(path, flags) };
    // SAFETY: what dlopen has returned.
    if !handle.is_null() && !unsafe { slots::turn(handle) } {
        leave_lanes();
    }
    handle
}

fn leave_lanes() {
    if let Err(reason) = life::leave_lanes(Reason::DeeplyBound) {
        stats::fell_back(Role::Client, reason);
    }
}

/// Where a dlsym(3) is to go on.
unsafe extern "C" fn before_look_up(handle: *mut c_void, name: *const c_char) -> *const c_void {
    let is_special = handle == libc::RTLD_NEXT || handle == libc::RTLD_DEFAULT;
    if is_special || name.is_null() || life::has_left_lanes() {
        return next_dlsym();
    }
    // The load may have ended since it was told.
    life::code_is_loaded();
    // SAFETY: the program's arguments.
    if unsafe { ours(handle, name) }.is_null() { next_dlsym() } else { ours as *const c_void }
}

/// Our function of this name, if the handle's library has libc's and ours calls that; null if not.
unsafe extern "C" fn ours(handle: *mut c_void, name: *const c_char) -> *mut c_void {
    // SAFETY: the program's arguments.
    let name = unsafe { CStr::from_ptr(name) };
    let Some(twin) = twins::named(name.to_bytes()) else { return core::ptr::null_mut() };
    if !twins::know() || !twin.is_next() {
        return core::ptr::null_mut();
    }
    // SAFETY: as above.
    let found = unsafe { look_up(handle, name) };
    if twin.is_libcs(found as usize) { twin.ours() } else { core::ptr::null_mut() }
}
