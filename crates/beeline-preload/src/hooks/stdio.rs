//! `fdopen`: stdio on a connection.
//!
//! libc's streams read and write with system calls of their own, past any hook. For a lane the app gets a
//! stream whose reading and writing we do ([fopencookie(3)]); libc buffers, formats and locks as ever. A socket
//! that is not connected yet stays on TCP when a stream is made of it.
//!
//! Such a stream is one of bytes, as libc's own is once a byte went through it: wide functions fail on it.
//! `freopen` makes one of libc's own of it.
//!
//! `dprintf` formats into memory first and sends that; so does `backtrace_symbols_fd`, in a file without a name, as
//! handlers of crashes call it, who may allocate nothing.

use core::ffi::c_void;

use beeline_shm::{memfd, sys};
use beeline_sockets::desc::Kind;
use beeline_sockets::{kernel, options, table};
use beeline_stats::Reason;
use libc::{FILE, c_char, c_int, size_t};

use super::streams::{self, FILENO_OFFSET, is_ours};
use super::{data, fds};
use crate::real::{fail, keeping_errno, reals};

// A `va_list` parameter is a pointer on the machines that are supported: to one element of an array on x86-64,
// to a copy of a structure on aarch64.
reals! {
    fn fdopen(fd: c_int, mode: *const c_char) -> *mut FILE;
    fn freopen(path: *const c_char, mode: *const c_char, stream: *mut FILE) -> *mut FILE;
    fn freopen64(path: *const c_char, mode: *const c_char, stream: *mut FILE) -> *mut FILE;
    fn vdprintf(fd: c_int, format: *const c_char, arguments: *mut c_void) -> c_int;
    fn __vdprintf_chk(fd: c_int, flag: c_int, format: *const c_char, arguments: *mut c_void) -> c_int;
    fn backtrace_symbols_fd(addresses: *const *mut c_void, count: c_int, fd: c_int) -> ();
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
    fn flockfile(stream: *mut FILE);
    fn funlockfile(stream: *mut FILE);
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

/// Writes all of it unless that fails, as libc's own streams do: a write that a signal cut short goes on, and what
/// is not written in the end, stdio forgets. It asks for 0 where write(2) returns -1.
unsafe extern "C" fn write(cookie: *mut c_void, buffer: *const c_char, length: size_t) -> isize {
    // SAFETY: our cookie, and stdio's own buffer.
    unsafe { write_all(fd_of(cookie), buffer, length) as isize }
}

/// Writes until all is written or nothing can be; returns how much was.
///
/// # Safety
/// `bytes` must be `length` bytes of the app's.
unsafe fn write_all(fd: c_int, bytes: *const c_char, length: usize) -> usize {
    let mut done = 0usize;
    while done < length {
        // SAFETY: as many bytes are left.
        let written = unsafe { data::write(fd, bytes.add(done).cast(), length.saturating_sub(done)) };
        if written <= 0 {
            break;
        }
        done = done.saturating_add(written as usize);
    }
    done
}

unsafe extern "C" fn seek(_: *mut c_void, _: *mut i64, _: c_int) -> c_int {
    fail(libc::ESPIPE) as c_int
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
        part::<c_int>(stream, FILENO_OFFSET).write(fd);
        // And -1 there, where its wide functions look before they look at the orientation.
        part::<*const c_void>(stream, WIDE_OFFSET).write((&raw const NOTHING_WIDE).cast::<c_void>());
        streams::note(stream);
        if mode.read() == b'a' as c_char {
            // Then libc makes the description append, and tries to go to the end.
            let flags = fds::fcntl(fd, libc::F_GETFL, 0);
            fds::fcntl(fd, libc::F_SETFL, (flags | libc::O_APPEND) as usize);
            fail(libc::ESPIPE);
        }
        stream
    }
}

/// Where a stream of glibc's has `_wide_data`, what is kept for wide characters.
const WIDE_OFFSET: usize = 160;
/// Behind all that a stream with a cookie has that one (`struct _IO_cookie_file`).
const COOKIE_OFFSET: usize = 224;

/// Room for glibc's `struct _IO_wide_data`, of which versions have some 230 to 310 bytes.
const WIDE_BYTES: usize = 512;
/// A buffer without room and without anything in it, for streams of ours, which have no use for one: they are known
/// by it.
static NOTHING_WIDE: [usize; WIDE_BYTES / size_of::<usize>()] = [0; _];

/// What a stream has there.
unsafe fn part<T>(stream: *mut FILE, offset: usize) -> *mut T {
    // SAFETY: the caller names a place within it.
    unsafe { stream.cast::<u8>().add(offset).cast() }
}

/// The cookie of a stream of ours; none if it is another's.
unsafe fn cookie_of(stream: *mut FILE) -> Option<*mut Cookie> {
    // SAFETY: the caller guarantees a stream, and nobody else gives one that address.
    unsafe {
        let wide = part::<*const c_void>(stream, WIDE_OFFSET).read();
        (wide == (&raw const NOTHING_WIDE).cast()).then(|| part::<*mut Cookie>(stream, COOKIE_OFFSET).read())
    }
}

/// freopen(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn freopen(path: *const c_char, mode: *const c_char, stream: *mut FILE) -> *mut FILE {
    // SAFETY: the app's arguments, passed on.
    unsafe { reopen(reals::freopen.get(), path, mode, stream) }
}

/// freopen(3), by its name for large files.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn freopen64(path: *const c_char, mode: *const c_char, stream: *mut FILE) -> *mut FILE {
    // SAFETY: the app's arguments, passed on.
    unsafe { reopen(reals::freopen64.get(), path, mode, stream) }
}

type Reopen = unsafe extern "C" fn(*const c_char, *const c_char, *mut FILE) -> *mut FILE;

/// libc's `freopen` makes a stream of a file of any stream. It takes the number by system calls of its own, and wants
/// memory for wide characters, which it leaves alone.
unsafe fn reopen(real: Option<Reopen>, path: *const c_char, mode: *const c_char, stream: *mut FILE) -> *mut FILE {
    let Some(real) = real else {
        fail(libc::ENOSYS);
        return core::ptr::null_mut();
    };
    // SAFETY: the app's stream, which it may not close meanwhile; the cookie is ours and as old as the stream. libc
    // frees a cookie and its buffer never, and uses them no more once it has closed what was open.
    unsafe {
        if stream.is_null() {
            return real(path, mode, stream);
        }
        let Some(cookie) = cookie_of(stream) else { return real(path, mode, stream) };
        flockfile(stream);
        libc::fflush(stream);
        let was_open = (*cookie).fd != -1;
        // Not freed any more, as libc knows only of what it has allocated with a stream.
        let wide = libc::calloc(1, WIDE_BYTES);
        let result = if wide.is_null() || !leave_number((*cookie).fd) {
            libc::free(wide);
            // It is closed whatever becomes of it.
            keeping_errno(|| {
                fds::close((*cookie).fd);
                (*cookie).fd = -1;
                part::<c_int>(stream, FILENO_OFFSET).write(-1);
            });
            core::ptr::null_mut()
        } else {
            part::<*const c_void>(stream, WIDE_OFFSET).write(wide);
            let result = real(path, mode, stream);
            if was_open {
                keeping_errno(|| libc::free(cookie.cast()));
            }
            result
        };
        funlockfile(stream);
        result
    }
}

/// Makes a number that leads to something of ours one that libc may take by itself. Nothing can be opened by its name,
/// as by that of a connection. False, with errno set, if that cannot be.
fn leave_number(fd: c_int) -> bool {
    if table::get(fd).is_none() {
        return true;
    }
    match kernel::socket(libc::AF_UNIX, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0) {
        Ok(other) => {
            let other = other as c_int;
            // SAFETY: both are open.
            unsafe {
                let done = fds::dup3(other, fd, libc::O_CLOEXEC) == fd;
                keeping_errno(|| fds::close(other));
                done
            }
        }
        Err(errno) => {
            fail(errno.0);
            false
        }
    }
}

/// backtrace_symbols_fd(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn backtrace_symbols_fd(addresses: *const *mut c_void, count: c_int, fd: c_int) {
    let Some(real) = reals::backtrace_symbols_fd.get() else { return };
    if !is_ours(fd) {
        // SAFETY: the app's arguments, passed on.
        return unsafe { real(addresses, count, fd) };
    }
    let Ok(text) = memfd::scratch(c"beeline-text") else { return };
    // SAFETY: as above.
    unsafe { real(addresses, count, text.get()) };
    let (mut bytes, mut place) = ([0u8; 512], 0usize);
    while let Ok(length @ 1..) = sys::read_at(text.get(), &mut bytes, place) {
        // SAFETY: so many bytes were read.
        let taken = unsafe { data::write(fd, bytes.as_ptr().cast(), length) };
        if taken <= 0 {
            break;
        }
        place = place.saturating_add(taken as usize);
    }
}

/// fdopen(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fdopen(fd: c_int, mode: *const c_char) -> *mut FILE {
    if let Some(desc) = table::get(fd) {
        match desc.kind() {
            // SAFETY: the app's arguments, as fdopen(3) asks for.
            Kind::Lane => return unsafe { open(fd, mode) },
            Kind::Tcp => options::block(desc, Reason::StdioDescriptor),
            _ => {}
        }
    }
    // SAFETY: the app's arguments, as fdopen(3) asks for.
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
        // SAFETY: the app's arguments, as vdprintf(3) asks for.
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
        // SAFETY: the app's arguments, as vdprintf(3) asks for.
        return unsafe { format_and_send(fd, format, arguments) };
    }
    let Some(vdprintf_chk) = reals::__vdprintf_chk.get() else { return fail(libc::ENOSYS) as c_int };
    // SAFETY: the app's arguments, passed on.
    unsafe { vdprintf_chk(fd, flag, format, arguments) }
}

unsafe fn format_and_send(fd: c_int, format: *const c_char, arguments: *mut c_void) -> c_int {
    let mut text: *mut c_char = core::ptr::null_mut();
    // SAFETY: the app's format and arguments.
    let length = unsafe { vasprintf(&raw mut text, format, arguments) };
    let whole = usize::try_from(length).unwrap_or(0);
    // SAFETY: `text` holds `length` bytes.
    let sent = unsafe { write_all(fd, text, whole) };
    if length >= 0 {
        // The errno of a failed write survives.
        // SAFETY: vasprintf allocated it.
        keeping_errno(|| unsafe { libc::free(text.cast()) });
    }
    if sent == whole { length } else { -1 }
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
