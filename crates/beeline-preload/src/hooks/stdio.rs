//! `fdopen`: stdio on a connection.
//!
//! libc's streams read and write with system calls of their own, past any hook. For a lane the app gets a
//! stream whose reading and writing we do ([fopencookie(3)]); libc buffers, formats and locks as ever. A socket
//! that is not connected yet stays on TCP when a stream is made of it.
//!
//! `dprintf` formats into memory first and sends that.

use core::ffi::c_void;

use beeline_sockets::desc::Kind;
use beeline_sockets::{options, table};
use beeline_stats::Reason;
use libc::{FILE, c_char, c_int, size_t};

use super::{data, fds};
use crate::real::{fail, reals};

// A `va_list` parameter is a pointer on the machines that are supported: to one element of an array on x86-64,
// to a copy of a structure on aarch64.
reals! {
    fn fdopen(fd: c_int, mode: *const c_char) -> *mut FILE;
    fn vdprintf(fd: c_int, format: *const c_char, arguments: *mut c_void) -> c_int;
    fn __vdprintf_chk(fd: c_int, flag: c_int, format: *const c_char, arguments: *mut c_void) -> c_int;
}

#[repr(C)]
struct Functions {
    read: unsafe extern "C" fn(*mut c_void, *mut c_char, size_t) -> isize,
    write: unsafe extern "C" fn(*mut c_void, *const c_char, size_t) -> isize,
    seek: unsafe extern "C" fn(*mut c_void, *mut i64, c_int) -> c_int,
    close: unsafe extern "C" fn(*mut c_void) -> c_int,
}

unsafe extern "C" {
    fn vasprintf(text: *mut *mut c_char, format: *const c_char, arguments: *mut c_void) -> c_int;
    fn fopencookie(cookie: *mut c_void, mode: *const c_char, functions: Functions) -> *mut FILE;
}

/// What a stream of ours keeps, from libc's heap as libc's own streams are.
#[repr(C)]
struct Cookie {
    fd: c_int,
    /// As long as libc makes one for a socket (`st_blksize`): how far a stream reads ahead can be seen.
    buffer: [u8; 4096],
}

/// The fd of a stream of ours.
unsafe fn fd_of(cookie: *mut c_void) -> c_int {
    // SAFETY: the caller guarantees that `open` made it.
    unsafe { (*cookie.cast::<Cookie>()).fd }
}

unsafe extern "C" fn read(cookie: *mut c_void, buffer: *mut c_char, length: size_t) -> isize {
    // SAFETY: our cookie, and stdio's own buffer.
    unsafe { data::read(fd_of(cookie), buffer.cast(), length) }
}

unsafe extern "C" fn write(cookie: *mut c_void, buffer: *const c_char, length: size_t) -> isize {
    // SAFETY: our cookie, and stdio's own buffer.
    let written = unsafe { data::write(fd_of(cookie), buffer.cast(), length) };
    // stdio asks for 0 where write(2) returns -1.
    written.max(0)
}

unsafe extern "C" fn seek(_: *mut c_void, _: *mut i64, _: c_int) -> c_int {
    crate::real::fail(libc::ESPIPE) as c_int
}

unsafe extern "C" fn close(cookie: *mut c_void) -> c_int {
    // SAFETY: our cookie, which stdio uses no more; it only forgets a buffer that it was given.
    unsafe {
        let fd = fd_of(cookie);
        libc::free(cookie);
        fds::close(fd)
    }
}

/// A stream on a lane; null with errno set if there cannot be one.
unsafe fn open(fd: c_int, mode: *const c_char) -> *mut FILE {
    let functions = Functions { read, write, seek, close };
    // SAFETY: the mode is the app's; the functions match their types; the cookie is written before it is used, and
    // lives until the stream is closed.
    unsafe {
        let cookie = libc::malloc(size_of::<Cookie>()).cast::<Cookie>();
        if cookie.is_null() {
            return core::ptr::null_mut();
        }
        (*cookie).fd = fd;
        let stream = fopencookie(cookie.cast(), mode, functions);
        if stream.is_null() {
            libc::free(cookie.cast());
            return stream;
        }
        libc::setvbuf(stream, (&raw mut (*cookie).buffer).cast(), libc::_IOFBF, size_of_val(&(*cookie).buffer));
        // A cookie stream has -2 there, which libc uses for nothing else.
        stream.cast::<u8>().add(FILENO_OFFSET).cast::<c_int>().write(fd);
        if mode.read() == b'a' as c_char {
            // Then libc makes the description append, and tries to go to the end.
            let flags = fds::fcntl(fd, libc::F_GETFL, 0);
            fds::fcntl(fd, libc::F_SETFL, (flags | libc::O_APPEND) as usize);
            crate::real::fail(libc::ESPIPE);
        }
        stream
    }
}

/// Where `fileno` finds the fd: `_fileno` of glibc's `struct _IO_FILE` on 64-bit machines, part of its ABI.
const FILENO_OFFSET: usize = 112;

/// fdopen(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fdopen(fd: c_int, mode: *const c_char) -> *mut FILE {
    if let Some(desc) = table::get(fd) {
        match desc.kind() {
            // SAFETY: forwarded.
            Kind::Lane => return unsafe { open(fd, mode) },
            Kind::Tcp => options::block(desc, Reason::StdioDescriptor),
            _ => {}
        }
    }
    // SAFETY: forwarded.
    unsafe { open_plain(fd, mode) }
}

/// libc's fdopen(3).
///
/// # Safety
/// As for fdopen(3).
pub(super) unsafe fn open_plain(fd: c_int, mode: *const c_char) -> *mut FILE {
    let Some(fdopen) = reals::fdopen.get() else {
        fail(libc::ENOSYS);
        return core::ptr::null_mut();
    };
    // SAFETY: the app's arguments, passed on.
    unsafe { fdopen(fd, mode) }
}

/// vdprintf(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vdprintf(fd: c_int, format: *const c_char, arguments: *mut c_void) -> c_int {
    if is_ours(fd) {
        // SAFETY: forwarded.
        return unsafe { format_and_send(fd, format, arguments) };
    }
    let Some(vdprintf) = reals::vdprintf.get() else { return fail(libc::ENOSYS) as c_int };
    // SAFETY: the app's arguments, passed on.
    unsafe { vdprintf(fd, format, arguments) }
}

/// What _FORTIFY_SOURCE makes of vdprintf; its check is of the format, which libc's own does.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __vdprintf_chk(
    fd: c_int,
    flag: c_int,
    format: *const c_char,
    arguments: *mut c_void,
) -> c_int {
    if is_ours(fd) {
        // SAFETY: forwarded.
        return unsafe { format_and_send(fd, format, arguments) };
    }
    let Some(vdprintf_chk) = reals::__vdprintf_chk.get() else { return fail(libc::ENOSYS) as c_int };
    // SAFETY: the app's arguments, passed on.
    unsafe { vdprintf_chk(fd, flag, format, arguments) }
}

fn is_ours(fd: c_int) -> bool {
    table::get(fd).is_some_and(|desc| matches!(desc.kind(), Kind::Lane | Kind::Orphan))
}

unsafe fn format_and_send(fd: c_int, format: *const c_char, arguments: *mut c_void) -> c_int {
    let mut text: *mut c_char = core::ptr::null_mut();
    // SAFETY: the app's format and arguments.
    let length = unsafe { vasprintf(&raw mut text, format, arguments) };
    let mut sent = 0;
    while sent < length {
        // SAFETY: `text` holds `length` bytes.
        let taken = unsafe { data::write(fd, text.add(sent as usize).cast(), length.saturating_sub(sent) as usize) };
        if taken <= 0 {
            break;
        }
        sent = sent.saturating_add(taken as c_int);
    }
    if length >= 0 {
        // SAFETY: vasprintf allocated it. The errno of a failed write survives.
        unsafe {
            let errno = *libc::__errno_location();
            libc::free(text.cast());
            *libc::__errno_location() = errno;
        }
    }
    if sent == length { length } else { -1 }
}

/// A variadic function that hands its arguments on as a `va_list`: stable Rust cannot define one. By the
/// System V ABI for x86-64 (3.5.7) the registers are saved first, vector ones if `al` says that there are any;
/// `va_list` is { offset of the next integer register, of the next vector register, rest on the stack, save
/// area }.
#[cfg(target_arch = "x86_64")]
macro_rules! variadic {
    ($name:ident, $named_bytes:literal, $list_register:literal, $target:ident) => {
        #[unsafe(naked)]
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name() {
            core::arch::naked_asm!(
                ".cfi_startproc",
                "sub rsp, 216",
                ".cfi_adjust_cfa_offset 216",
                "mov [rsp], rdi",
                "mov [rsp + 8], rsi",
                "mov [rsp + 16], rdx",
                "mov [rsp + 24], rcx",
                "mov [rsp + 32], r8",
                "mov [rsp + 40], r9",
                "test al, al",
                "jz 2f",
                "movaps [rsp + 48], xmm0",
                "movaps [rsp + 64], xmm1",
                "movaps [rsp + 80], xmm2",
                "movaps [rsp + 96], xmm3",
                "movaps [rsp + 112], xmm4",
                "movaps [rsp + 128], xmm5",
                "movaps [rsp + 144], xmm6",
                "movaps [rsp + 160], xmm7",
                "2:",
                concat!("mov dword ptr [rsp + 176], ", $named_bytes),
                "mov dword ptr [rsp + 180], 48",
                "lea rax, [rsp + 224]",
                "mov [rsp + 184], rax",
                "mov [rsp + 192], rsp",
                concat!("lea ", $list_register, ", [rsp + 176]"),
                "call {target}",
                "add rsp, 216",
                ".cfi_adjust_cfa_offset -216",
                "ret",
                ".cfi_endproc",
                target = sym $target,
            )
        }
    };
}

#[cfg(target_arch = "x86_64")]
variadic!(dprintf, "16", "rdx", vdprintf);
#[cfg(target_arch = "x86_64")]
variadic!(__dprintf_chk, "24", "rcx", __vdprintf_chk);
