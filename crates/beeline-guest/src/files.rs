//! Files of the library's own: those in the user's directory in `/dev/shm`, and what the kernel shows in `/proc`.

use core::ffi::CStr;

use beeline_shm::Fd;
use beeline_shm::sys::{self, call};
use beeline_stats::layout;

use crate::Errno;

/// `openat(2)`, close-on-exec, of a path whose last part is no symbolic link.
///
/// # Errors
/// Those of openat(2).
pub fn open(directory: i32, path: &CStr, flags: i32, mode: u32) -> Result<Fd, Errno> {
    let flags = flags | libc::O_CLOEXEC | libc::O_NOFOLLOW;
    // SAFETY: a NUL-terminated string and plain numbers.
    unsafe { call(libc::SYS_openat, [directory as usize, path.as_ptr() as usize, flags as usize, mode as usize, 0, 0]) }
        .map(|fd| Fd::own(fd as i32))
}

/// The user's directory, made if need be, and refused if it is not the user's own.
///
/// # Errors
/// Those of mkdir(2) and open(2); `EPERM` for one that others may change.
pub fn open_directory(uid: u32) -> Result<Fd, Errno> {
    let path = layout::directory_path(uid);
    let open_it = || open(libc::AT_FDCWD, path.as_c_str(), libc::O_RDONLY | libc::O_DIRECTORY, 0);
    let directory = match open_it() {
        Err(Errno(libc::ENOENT)) => {
            make_directory(path.as_c_str())?;
            open_it()
        }
        opened => opened,
    }?;
    // SAFETY: all-zero is a valid value of this plain C struct.
    let mut stat: libc::stat = unsafe { core::mem::zeroed() };
    // SAFETY: the kernel writes one `struct stat` into a live local of that type.
    let asked = unsafe { call(libc::SYS_fstat, [directory.get() as usize, (&raw mut stat) as usize, 0, 0, 0, 0]) };
    if asked.is_err() || stat.st_uid != uid || stat.st_mode & 0o077 != 0 {
        return Err(Errno(libc::EPERM));
    }
    Ok(directory)
}

fn make_directory(path: &CStr) -> Result<(), Errno> {
    // SAFETY: a NUL-terminated string and plain numbers.
    match unsafe { call(libc::SYS_mkdirat, [libc::AT_FDCWD as usize, path.as_ptr() as usize, 0o700, 0, 0, 0]) } {
        // Another process was faster.
        Ok(_) | Err(Errno(libc::EEXIST)) => Ok(()),
        Err(errno) => Err(errno),
    }
}

/// The effective user.
///
/// # Errors
/// What a filter of system calls says; the kernel itself always answers.
pub fn user() -> Result<u32, Errno> {
    // SAFETY: no arguments.
    unsafe { call(libc::SYS_geteuid, [0; 6]) }.map(|uid| uid as u32)
}

/// Whether a file may become `length` bytes long. Beyond the limit the kernel would raise `SIGXFSZ`.
#[must_use]
pub fn may_be_long(length: usize) -> bool {
    sys::limit(libc::RLIMIT_FSIZE) >= length as u64
}
