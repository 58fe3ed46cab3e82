//! Whether the library gets into a program that is about to be executed.
//!
//! The file is looked at as the kernel and the dynamic linker will look at it: scripts lead to their interpreters;
//! statically linked programs, those of another architecture or C library, and those that raise privileges
//! (ld.so(8), "secure-execution mode") do without the library. Who cannot read a file cannot know; that counts as no.
//! A file that is not there is not judged: `execve` will fail.

use core::ffi::CStr;

use beeline_shm::sys::{self, call};

/// Interpreters that are followed; the kernel's own limit is five levels in all.
const SCRIPTS_MAX: usize = 5;
/// Bytes of a file's start that are read: the kernel reads 256 to find an interpreter.
const HEAD_BYTES: usize = 256;
/// The longest path, with its terminator.
const PATH_BYTES: usize = 4096;
const PT_INTERP: u32 = 3;

/// How well a program gets on with the library.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Image {
    /// It will have it.
    Takes,
    /// It will not, and does not care if asked to.
    Ignores,
    /// Nobody can tell, because it cannot be read. It is not counted on.
    Unknown,
    /// It would fail or complain if asked to.
    Harmed,
}

impl Image {
    /// Whether it is known that it will not have the library.
    pub(super) fn is_stranger(self) -> bool {
        matches!(self, Self::Ignores | Self::Harmed)
    }

    /// Whether the dynamic linker may load the library if it is asked to.
    pub(super) fn loads(self) -> bool {
        matches!(self, Self::Takes | Self::Unknown)
    }
}

/// What a call of the `exec` family names.
#[derive(Clone, Copy, Debug)]
pub enum Program<'a> {
    /// A path, relative to a directory.
    At(i32, &'a CStr),
    /// A name to be looked for in `PATH`, if it holds no slash.
    Named(&'a CStr),
    /// An open file.
    Open(i32),
}

/// A path put together.
struct Path<const N: usize> {
    bytes: [u8; N],
}

impl<const N: usize> Path<N> {
    fn of(parts: &[&[u8]]) -> Option<Self> {
        let mut bytes = [0; N];
        let mut end = 0usize;
        for part in parts {
            let next = end.checked_add(part.len())?;
            // The last byte stays zero.
            bytes.get_mut(end..next).filter(|_| next < N)?.copy_from_slice(part);
            end = next;
        }
        Some(Self { bytes })
    }

    fn as_c_str(&self) -> &CStr {
        CStr::from_bytes_until_nul(&self.bytes).unwrap_or_default()
    }
}

/// Looks at a program.
pub fn inspect(program: Program<'_>, path: Option<&[u8]>) -> Image {
    match program {
        Program::Open(fd) => of_file(fd, SCRIPTS_MAX),
        Program::At(directory, file) => at(directory, file, SCRIPTS_MAX),
        Program::Named(name) if name.to_bytes().contains(&b'/') => at(libc::AT_FDCWD, name, SCRIPTS_MAX),
        Program::Named(name) => {
            // What confstr(_CS_PATH) gives on glibc, which execvp uses when there is no PATH.
            for directory in path.unwrap_or(b"/bin:/usr/bin").split(|byte| *byte == b':') {
                let slash: &[u8] = if directory.is_empty() { b"" } else { b"/" };
                let parts = [directory, slash, name.to_bytes()];
                // Nearly all are short, and the stack may be, too.
                let is_short = parts.iter().map(|part| part.len()).sum::<usize>() < HEAD_BYTES;
                let found = if is_short { found::<HEAD_BYTES>(&parts) } else { found::<PATH_BYTES>(&parts) };
                if let Some(image) = found {
                    return image;
                }
            }
            Image::Takes
        }
    }
}

/// The program of this path, if there is one.
#[inline(never)]
fn found<const N: usize>(parts: &[&[u8]]) -> Option<Image> {
    let path = Path::<N>::of(parts)?;
    may_execute(path.as_c_str()).then(|| at(libc::AT_FDCWD, path.as_c_str(), SCRIPTS_MAX))
}

fn may_execute(file: &CStr) -> bool {
    let args = [libc::AT_FDCWD as usize, file.as_ptr() as usize, libc::X_OK as usize, 0, 0, 0];
    // SAFETY: a NUL-terminated path and plain numbers.
    unsafe { call(libc::SYS_faccessat, args) }.is_ok()
}

fn at(directory: i32, file: &CStr, scripts: usize) -> Image {
    let flags = libc::O_RDONLY | libc::O_CLOEXEC | libc::O_NONBLOCK;
    let args = [directory as usize, file.as_ptr() as usize, flags as usize, 0, 0, 0];
    // SAFETY: a NUL-terminated path and plain numbers.
    match unsafe { call(libc::SYS_openat, args) } {
        Ok(fd) => {
            let image = of_file(fd as i32, scripts);
            let _ = sys::close(fd as i32);
            image
        }
        Err(crate::Errno(libc::EACCES | libc::EPERM)) => unreadable(directory, file),
        Err(_) => Image::Takes,
    }
}

/// A program that can be executed and not read: its mode can be seen all the same.
fn unreadable(directory: i32, file: &CStr) -> Image {
    let flags = libc::O_PATH | libc::O_CLOEXEC;
    let args = [directory as usize, file.as_ptr() as usize, flags as usize, 0, 0, 0];
    // SAFETY: a NUL-terminated path and plain numbers.
    let Ok(fd) = (unsafe { call(libc::SYS_openat, args) }) else { return Image::Ignores };
    let raises = raises_privileges(fd as i32);
    let _ = sys::close(fd as i32);
    if raises { Image::Ignores } else { Image::Unknown }
}

fn of_file(fd: i32, scripts: usize) -> Image {
    let mut head = [0u8; HEAD_BYTES];
    let Some(length) = read_at(fd, &mut head, 0) else { return Image::Ignores };
    let head = head.get(..length).unwrap_or_default();
    if let Some(line) = head.strip_prefix(b"#!") {
        let words = line.split(|byte| *byte == b'\n').next().unwrap_or_default();
        let interpreter = words.split(|byte| matches!(byte, b' ' | b'\t')).find(|word| !word.is_empty());
        return match (interpreter.and_then(|name| Path::<HEAD_BYTES>::of(&[name])), scripts.checked_sub(1)) {
            (Some(path), Some(scripts)) => at(libc::AT_FDCWD, path.as_c_str(), scripts),
            _ => Image::Takes,
        };
    }
    let Some(elf) = Elf::of(head) else { return Image::Takes };
    if !elf.is_ours() {
        return Image::Harmed;
    }
    match elf.loader(fd) {
        Loader::Glibc if raises_privileges(fd) => Image::Ignores,
        Loader::Glibc => Image::Takes,
        Loader::None => Image::Ignores,
        Loader::Other => Image::Harmed,
    }
}

/// `pread(2)`.
fn read_at(fd: i32, buffer: &mut [u8], offset: u64) -> Option<usize> {
    let args = [fd as usize, buffer.as_mut_ptr() as usize, buffer.len(), offset as usize, 0, 0];
    // SAFETY: a live buffer of the length given.
    unsafe { call(libc::SYS_pread64, args) }.ok()
}

/// Whether the dynamic linker will run in secure-execution mode: the program's effective user or group will not be the
/// real one, or it gets capabilities. The effective ones are the file's if it has set-user-ID and set-group-ID bits
/// that count, and the process's own if they do not, because the file system is mounted `nosuid` or the process has
/// given such bits up (`PR_SET_NO_NEW_PRIVS`). That is not asked: either may be.
fn raises_privileges(fd: i32) -> bool {
    // SAFETY: all-zero is a valid value of this plain C struct.
    let mut stat: libc::stat = unsafe { core::mem::zeroed() };
    // SAFETY: the kernel writes one `struct stat` into a live local of that type.
    if unsafe { call(libc::SYS_fstat, [fd as usize, (&raw mut stat) as usize, 0, 0, 0, 0]) }.is_err() {
        return true;
    }
    let id = |number| {
        // SAFETY: no arguments.
        unsafe { call(number, [0; 6]) }.map_or(u32::MAX, |id| id as u32)
    };
    let (user, group) = (id(libc::SYS_getuid), id(libc::SYS_getgid));
    let by_itself = user != id(libc::SYS_geteuid) || group != id(libc::SYS_getegid);
    let by_user = stat.st_mode & libc::S_ISUID != 0 && stat.st_uid != user;
    let by_group = stat.st_mode & libc::S_ISGID != 0 && stat.st_gid != group;
    let name = c"security.capability".as_ptr() as usize;
    // SAFETY: a NUL-terminated name, and no buffer: only the size is asked for.
    let capable = || unsafe { call(libc::SYS_fgetxattr, [fd as usize, name, 0, 0, 0, 0]) }.is_ok_and(|size| size != 0);
    by_itself || by_user || by_group || user != 0 && capable()
}

/// The header of a program.
struct Elf<'a>(&'a [u8]);

enum Loader {
    None,
    Glibc,
    Other,
}

impl<'a> Elf<'a> {
    fn of(head: &'a [u8]) -> Option<Elf<'a>> {
        (head.len() >= 64 && head.starts_with(b"\x7fELF")).then_some(Elf(head))
    }

    /// Whether it is for the machine that this library is for.
    fn is_ours(&self) -> bool {
        const MACHINE: u16 = if cfg!(target_arch = "aarch64") { 183 } else { 62 };
        // 64 bits, little-endian.
        self.0.get(4..6) == Some(&[2, 1]) && number::<2>(self.0, 18).map(u16::from_le_bytes) == Some(MACHINE)
    }

    /// What the program headers name as its loader.
    fn loader(&self, fd: i32) -> Loader {
        let table = number(self.0, 32).map(u64::from_le_bytes);
        let entry_bytes = number(self.0, 54).map(u16::from_le_bytes);
        let entries = number(self.0, 56).map(u16::from_le_bytes);
        let (Some(table), Some(entry_bytes), Some(entries)) = (table, entry_bytes, entries) else {
            return Loader::Other;
        };
        for index in 0..u64::from(entries) {
            let mut entry = [0u8; 56];
            let offset = table.wrapping_add(index.wrapping_mul(entry_bytes.into()));
            if read_at(fd, &mut entry, offset) != Some(entry.len()) {
                return Loader::Other;
            }
            if number(&entry, 0).map(u32::from_le_bytes) != Some(PT_INTERP) {
                continue;
            }
            let Some(at) = number(&entry, 8).map(u64::from_le_bytes) else { return Loader::Other };
            let mut name = [0u8; HEAD_BYTES];
            let length = read_at(fd, &mut name, at).unwrap_or(0);
            let name = name.get(..length).unwrap_or_default().split(|byte| *byte == 0).next().unwrap_or_default();
            let last = name.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
            return if last.starts_with(b"ld-linux") { Loader::Glibc } else { Loader::Other };
        }
        Loader::None
    }
}

fn number<const N: usize>(bytes: &[u8], offset: usize) -> Option<[u8; N]> {
    bytes.get(offset..)?.first_chunk().copied()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::CString;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn programs_are_told_apart() {
        assert_eq!(inspect(Program::At(libc::AT_FDCWD, c"/proc/self/exe"), None), Image::Takes);
        assert_eq!(inspect(Program::Named(c"sh"), None), Image::Takes);
        assert_eq!(inspect(Program::Named(c"no such program"), None), Image::Takes);
        let directory = std::env::temp_dir().join(format!("beeline-image-{}", std::process::id()));
        std::fs::create_dir(&directory).unwrap();
        let write = |name: &str, bytes: &[u8]| {
            let path = directory.join(name);
            std::fs::write(&path, bytes).unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
            CString::new(path.to_str().unwrap()).unwrap()
        };
        let look = |path: &CStr| inspect(Program::At(libc::AT_FDCWD, path), None);
        assert_eq!(look(&write("script", b"#! /bin/sh -e\nexit\n")), Image::Takes);
        let mut elf = std::fs::read("/bin/true").unwrap();
        elf[18] ^= 1;
        assert_eq!(look(&write("other", &elf)), Image::Harmed);
        elf[18] ^= 1;
        // No program headers: nobody to load anything.
        elf[56..58].fill(0);
        let still = write("static", &elf);
        assert_eq!(look(&still), Image::Ignores);
        let script = write("to-static", &[b"#!", still.to_bytes(), b"\n"].concat());
        assert_eq!(look(&script), Image::Ignores);
        let named = CString::new("static").unwrap();
        let path = format!("/nowhere:{}:/bin", directory.display());
        assert_eq!(inspect(Program::Named(&named), Some(path.as_bytes())), Image::Ignores);
        std::fs::remove_dir_all(directory).unwrap();
    }
}
