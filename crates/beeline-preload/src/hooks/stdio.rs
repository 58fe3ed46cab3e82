//! `fdopen`: stdio on a connection.
//!
//! libc's streams read and write with system calls of their own, past any hook. For a lane the app gets a
//! stream whose reading and writing we do ([fopencookie(3)]); libc buffers, formats and locks as ever. A socket
//! that is not connected yet stays on TCP when a stream is made of it. `dprintf` on a lane is not covered: it
//! writes past us without leaving a trace beforehand.

use core::ffi::c_void;

use beeline_sockets::desc::Kind;
use beeline_sockets::{options, table};
use beeline_stats::Reason;
use libc::{FILE, c_char, c_int, size_t};

use super::{data, fds};
use crate::real::Real;

static FDOPEN: Real = crate::real::real_named!(fdopen);

/// libc's functions behind this table.
pub static REALS: &[&Real] = &[&FDOPEN];

#[repr(C)]
struct Functions {
    read: unsafe extern "C" fn(*mut c_void, *mut c_char, size_t) -> isize,
    write: unsafe extern "C" fn(*mut c_void, *const c_char, size_t) -> isize,
    seek: *const c_void,
    close: unsafe extern "C" fn(*mut c_void) -> c_int,
}

unsafe extern "C" {
    fn fopencookie(cookie: *mut c_void, mode: *const c_char, functions: Functions) -> *mut FILE;
}

unsafe extern "C" fn read(cookie: *mut c_void, buffer: *mut c_char, length: size_t) -> isize {
    // SAFETY: stdio's own buffer.
    unsafe { data::read(cookie as c_int, buffer.cast(), length) }
}

unsafe extern "C" fn write(cookie: *mut c_void, buffer: *const c_char, length: size_t) -> isize {
    // SAFETY: stdio's own buffer.
    let written = unsafe { data::write(cookie as c_int, buffer.cast(), length) };
    // stdio asks for 0 where write(2) returns -1.
    written.max(0)
}

unsafe extern "C" fn close(cookie: *mut c_void) -> c_int {
    // SAFETY: a plain number.
    unsafe { fds::close(cookie as c_int) }
}

/// Where `fileno` finds the fd: `_fileno` of glibc's `struct _IO_FILE` on 64-bit machines, part of its ABI.
const FILENO_OFFSET: usize = 112;

/// fdopen(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fdopen(fd: c_int, mode: *const c_char) -> *mut FILE {
    if let Some(desc) = table::get(fd) {
        match desc.kind() {
            Kind::Lane => {
                let functions = Functions { read, write, seek: core::ptr::null(), close };
                // SAFETY: the mode is the app's; the functions match their types; the cookie is a number.
                unsafe {
                    let stream = fopencookie(fd as usize as *mut c_void, mode, functions);
                    if !stream.is_null() {
                        // A cookie stream has -2 there, which libc uses for nothing else.
                        stream.cast::<u8>().add(FILENO_OFFSET).cast::<c_int>().write(fd);
                    }
                    return stream;
                }
            }
            Kind::Tcp => options::block(desc, Reason::StdioDescriptor),
            _ => {}
        }
    }
    let real = FDOPEN.address();
    if real.is_null() {
        crate::real::fail(libc::ENOSYS);
        return core::ptr::null_mut();
    }
    // SAFETY: libc's function of this name has this type.
    let real: unsafe extern "C" fn(c_int, *const c_char) -> *mut FILE = unsafe { core::mem::transmute(real) };
    // SAFETY: the app's arguments, passed on.
    unsafe { real(fd, mode) }
}
