//! Sealed memory files (`memfd_create(2)`).
//!
//! A memfd that crosses a process boundary is sealed `SHRINK | GROW | SEAL`: its size can never change,
//! so a mapping of the checked size cannot fault beyond its end. Punching holes stays possible for a
//! peer; on tmpfs a hole reads as zeroes and faults in a fresh page, which is a wrong value. That is why
//! the file-system type is checked, too: hugetlbfs memfds carry the same seals, and their pages can run
//! out, which is a SIGBUS.
//!
//! A fresh page of tmpfs is a SIGBUS, too, where the kernel counts memory strictly and refuses it
//! (`vm.overcommit_memory=2`): memory files count page by page, when they are touched. So nobody who
//! may not be ended makes or maps one there (`limits` of beeline-guest). A limit of a memory cgroup is
//! none: the kernel ends a process of its choice then, as for any other memory.

use crate::Fd;
use crate::sys::{self, Errno, call};

const SEALS: i32 = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;
const PUBLISHED: i32 = SEALS | libc::F_SEAL_FUTURE_WRITE;

/// What is wrong with a memfd that somebody sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MemfdFault {
    /// It does not carry exactly the seals `SHRINK | GROW | SEAL`, or is no memfd at all.
    Seals,
    /// It does not live on tmpfs.
    FileSystem,
    /// Its size is not the expected one.
    Size,
}

/// Identity of a memory file: device and inode number, unique while the file lives.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct FileId {
    /// `st_dev`.
    pub device: u64,
    /// `st_ino`.
    pub inode: u64,
}

/// Makes a sealed, close-on-exec memfd of `length` bytes.
///
/// A limit of file sizes counts for memory files, too, and ftruncate(2) would raise `SIGXFSZ` beyond it.
///
/// # Errors
/// Those of memfd_create(2), ftruncate(2) and fcntl(2); `EFBIG` for the limit.
pub fn create(name: &core::ffi::CStr, length: usize) -> Result<Fd, Errno> {
    let fd = make(name, length)?;
    seal(&fd, SEALS)?;
    Ok(fd)
}

/// The same for what one process writes and others read: once `map` has its mapping, nobody can make another one that
/// writes.
///
/// # Errors
/// As above, and those of `map`.
pub fn publish<T>(
    name: &core::ffi::CStr,
    length: usize,
    map: impl FnOnce(i32) -> Result<T, Errno>,
) -> Result<(Fd, T), Errno> {
    let fd = make(name, length)?;
    let mapped = map(fd.get())?;
    seal(&fd, PUBLISHED)?;
    Ok((fd, mapped))
}

fn seal(fd: &Fd, seals: i32) -> Result<(), Errno> {
    // SAFETY: plain numbers.
    unsafe { call(libc::SYS_fcntl, [fd.get() as usize, libc::F_ADD_SEALS as usize, seals as usize, 0, 0, 0]) }
        .map(|_| ())
}

/// Makes an empty one without seals, for this process alone to write to and to read.
///
/// # Errors
/// Those of memfd_create(2); `EFBIG` where files may not have a MiB.
pub fn scratch(name: &core::ffi::CStr) -> Result<Fd, Errno> {
    const BYTES: u64 = 1 << 20;
    if sys::limit(libc::RLIMIT_FSIZE) < BYTES {
        return Err(Errno(libc::EFBIG));
    }
    make(name, 0)
}

/// A memfd of this length, without seals.
fn make(name: &core::ffi::CStr, length: usize) -> Result<Fd, Errno> {
    if sys::limit(libc::RLIMIT_FSIZE) < length as u64 {
        return Err(Errno(libc::EFBIG));
    }
    let flags = (libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING) as usize;
    // SAFETY: `name` is a NUL-terminated string that outlives the call.
    let fd = unsafe { call(libc::SYS_memfd_create, [name.as_ptr() as usize, flags, 0, 0, 0, 0]) }?;
    let fd = Fd::own(fd as i32);
    // SAFETY: plain numbers.
    unsafe { call(libc::SYS_ftruncate, [fd.get() as usize, length, 0, 0, 0, 0]) }?;
    Ok(fd)
}

/// Whether a descriptor that came from another process is a memfd with the right seals. Never blocks.
///
/// # Errors
/// [`MemfdFault::Seals`].
pub fn check_seals(fd: i32) -> Result<(), MemfdFault> {
    has_seals(fd, SEALS)
}

fn has_seals(fd: i32, wanted: i32) -> Result<(), MemfdFault> {
    // SAFETY: plain numbers.
    let seals = unsafe { call(libc::SYS_fcntl, [fd as usize, libc::F_GET_SEALS as usize, 0, 0, 0, 0]) };
    // `F_SEAL_EXEC` is what the kernel adds where `vm.memfd_noexec` is set: nobody can make the file executable.
    if seals.is_ok_and(|seals| seals as i32 & !libc::F_SEAL_EXEC == wanted) { Ok(()) } else { Err(MemfdFault::Seals) }
}

/// Checks a memfd that came from another process. `F_GET_SEALS` goes first because it never blocks,
/// whatever kind of file the descriptor turns out to be (`fstat` on FUSE may).
///
/// # Errors
/// The first property that does not hold.
pub fn check(fd: i32, length: usize) -> Result<FileId, MemfdFault> {
    check_seals(fd)?;
    check_place_and_size(fd, length)
}

/// The same for one that another process has made with [`publish`].
///
/// # Errors
/// The first property that does not hold.
pub fn check_published(fd: i32, length: usize) -> Result<FileId, MemfdFault> {
    has_seals(fd, PUBLISHED)?;
    check_place_and_size(fd, length)
}

fn check_place_and_size(fd: i32, length: usize) -> Result<FileId, MemfdFault> {
    // SAFETY: all-zero is a valid value of this plain C struct.
    let mut file_system: libc::statfs = unsafe { core::mem::zeroed() };
    // SAFETY: the kernel writes one `struct statfs` into a live local of that type.
    let ok = unsafe { call(libc::SYS_fstatfs, [fd as usize, (&raw mut file_system) as usize, 0, 0, 0, 0]) };
    if ok.is_err() || file_system.f_type != libc::TMPFS_MAGIC {
        return Err(MemfdFault::FileSystem);
    }
    match identify(fd) {
        Ok((id, size)) if size == length as u64 => Ok(id),
        _ => Err(MemfdFault::Size),
    }
}

/// Identity and size in bytes of an open file, `fstat(2)`.
///
/// # Errors
/// Those of fstat(2).
pub fn identify(fd: i32) -> Result<(FileId, u64), Errno> {
    let stat = status(fd)?;
    Ok((FileId { device: stat.st_dev, inode: stat.st_ino }, stat.st_size as u64))
}

/// The user that made a memfd: nobody but root can give a file away.
///
/// # Errors
/// Those of fstat(2).
pub fn owner(fd: i32) -> Result<u32, Errno> {
    status(fd).map(|stat| stat.st_uid)
}

fn status(fd: i32) -> Result<libc::stat, Errno> {
    // SAFETY: all-zero is a valid value of this plain C struct.
    let mut stat: libc::stat = unsafe { core::mem::zeroed() };
    // SAFETY: the kernel writes one `struct stat` into a live local of that type.
    unsafe { call(libc::SYS_fstat, [fd as usize, (&raw mut stat) as usize, 0, 0, 0, 0]) }?;
    Ok(stat)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_memfd_of_ours_passes_the_check_and_others_fail() {
        let fd = create(c"test", 8192).unwrap();
        assert!(check(fd.get(), 8192).is_ok());
        assert_eq!(check(fd.get(), 4096), Err(MemfdFault::Size));
        let args = [c"plain".as_ptr() as usize, 0, 0, 0, 0, 0];
        // SAFETY: the name is a NUL-terminated literal, which the kernel only reads; the flags are a plain number.
        let unsealed = Fd::own(unsafe { call(libc::SYS_memfd_create, args) }.unwrap() as i32);
        assert_eq!(check(unsealed.get(), 0), Err(MemfdFault::Seals));
        assert_eq!(check(0, 0), Err(MemfdFault::Seals));
    }
}
