//! `libbeeline.so`: the table of interposed calls.
//!
//! The dynamic linker resolves an app's socket calls to the functions of this library. Each is thin: it asks
//! `beeline-sockets` and does what the answer says. What a call means is written there.
//!
//! 1. A table ([`hooks`]) makes the functions. Everything a row exports is resolved in libc when the library
//!    starts, because `dlsym` later might be called from a signal handler or a `vfork` child.
//! 2. A call on an fd that is not ours costs a look-up of two loads and a jump.
//! 3. errno is written when a call fails and at no other time.
//! 4. A thread that is cancelled in a real function unwinds through our frames. That works because the library
//!    is built with `panic = "abort"`: such frames have unwind tables but no landing pads, so libc's forced
//!    unwinding passes them by. (`extern "C-unwind"` would not do: there rustc adds pads that end the program.)
//! 5. `vfork`, `clone` and `syscall` are stubs in assembly that leave no frame: they may return twice, or on
//!    another stack.

#![allow(clippy::missing_safety_doc)]
// Nothing in here may end the program that it is a guest of.
#![deny(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects
)]

mod hooks;
mod real;
mod unwinder;

use core::ffi::{c_int, c_void};

/// What the dynamic linker calls when the library is loaded.
#[used]
#[unsafe(link_section = ".init_array")]
static START: unsafe extern "C" fn(c_int, *const *const u8, *const *const u8) = {
    unsafe extern "C" fn start(count: c_int, arguments: *const *const u8, environment: *const *const u8) {
        hooks::resolve_all();
        // SAFETY: what the program was started with.
        unsafe { hooks::note_environment(count, arguments.cast(), environment.cast()) };
        beeline_sockets::life::start();
        // SAFETY: a function of this type, which stays, as the library does.
        unsafe { __cxa_atexit(end, core::ptr::null_mut(), core::ptr::null_mut()) };
    }
    start
};

unsafe extern "C" {
    /// Of the ABI of C++ (Itanium, 3.3.5): without a library, what it registers is called by exit(3) alone.
    fn __cxa_atexit(function: unsafe extern "C" fn(*mut c_void), argument: *mut c_void, library: *mut c_void) -> c_int;
}

/// What is called when the process ends with `exit`: last of all but the writing of what is in streams. What is
/// registered first is called last, and libc registers the destructors of all libraries after their constructors,
/// before the program begins. A destructor of ours would run before those of others, which may use a connection.
unsafe extern "C" fn end(_: *mut c_void) {
    beeline_sockets::life::leave_but(hooks::has_stream_of_ours);
    beeline_sockets::stats::remove_file();
}
