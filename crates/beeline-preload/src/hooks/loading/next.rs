//! The functions behind our stubs: libc's, or those of a library that comes between.

use core::ffi::{CStr, c_char};
use core::sync::atomic::{
    AtomicPtr,
    Ordering::{Acquire, Release},
};

use libc::{c_int, c_void};

use crate::real::look_up;

type Open = unsafe extern "C" fn(*const c_char, c_int) -> *mut c_void;

/// The next function of this name, ours not counted: libc's, or that of a library that comes between. Threads that ask
/// together find the same.
fn next(place: &AtomicPtr<c_void>, name: &CStr) -> *mut c_void {
    let known = place.load(Acquire);
    if !known.is_null() {
        return known;
    }
    // SAFETY: a handle of the dynamic linker.
    let found = unsafe { look_up(libc::RTLD_NEXT, name) };
    place.store(found, Release);
    if found.is_null() { absent as *mut c_void } else { found }
}

/// libc has no dynamic linker.
extern "C" fn absent() -> *mut c_void {
    core::ptr::null_mut()
}

pub fn next_dlopen() -> *mut c_void {
    static DLOPEN: AtomicPtr<c_void> = AtomicPtr::new(core::ptr::null_mut());
    next(&DLOPEN, c"dlopen")
}

pub fn next_dlsym() -> *mut c_void {
    static DLSYM: AtomicPtr<c_void> = AtomicPtr::new(core::ptr::null_mut());
    next(&DLSYM, c"dlsym")
}

/// Finds the functions behind the stubs.
pub fn resolve() {
    next_dlopen();
    next_dlsym();
}

/// dlopen(3), past the hook.
///
/// # Safety
/// As for dlopen(3).
pub unsafe fn open(path: *const c_char, flags: c_int) -> *mut c_void {
    // SAFETY: the function has this type, `absent` as well as libc's.
    let next: Open = unsafe { core::mem::transmute(next_dlopen()) };
    // SAFETY: the caller guarantees it.
    unsafe { next(path, flags) }
}
