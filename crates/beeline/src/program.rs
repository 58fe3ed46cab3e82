//! Finding the program as execvp(3) does, and telling whether the library can be loaded into it.
//!
//! A program that cannot be accelerated is run all the same: Beeline is there to make programs
//! faster, not to decide which may run. It only says so, once, before the program starts.

use std::ffi::{CString, OsStr, OsString};
use std::fs::{File, Metadata};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use crate::elf::{Architecture, Elf};
use crate::failure::Failure;

/// Finds the file that `command` names.
pub fn find(command: &OsStr, path: Option<&OsStr>) -> anyhow::Result<PathBuf> {
    let shown = command.display();
    if command.is_empty() {
        return Err(Failure::error(Failure::NOT_FOUND, "the program's name is empty"));
    }
    if command.as_bytes().contains(&b'/') {
        let file = PathBuf::from(command);
        return match executable(&file) {
            Ok(()) => Ok(file),
            Err(error) if is_missing(&error) => {
                Err(Failure::error(Failure::NOT_FOUND, format!("{shown}: there is no such program")))
            }
            Err(error) => Err(not_executable(&file, &error)),
        };
    }
    // What confstr(_CS_PATH) gives on glibc, which execvp uses when there is no PATH.
    let path = path.unwrap_or(OsStr::new("/bin:/usr/bin"));
    let mut refused = None;
    for directory in std::env::split_paths(path) {
        let directory = if directory.as_os_str().is_empty() { Path::new(".") } else { &directory };
        let file = directory.join(command);
        match executable(&file) {
            Ok(()) => return Ok(file),
            Err(error) if is_missing(&error) => {}
            Err(error) => {
                refused.get_or_insert((file, error));
            }
        }
    }
    match refused {
        Some((file, error)) => Err(not_executable(&file, &error)),
        None => Err(Failure::error(Failure::NOT_FOUND, format!("{shown}: there is no such program in PATH"))),
    }
}

fn is_missing(error: &std::io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ENOTDIR | libc::ESTALE))
}

fn not_executable(file: &Path, error: &std::io::Error) -> anyhow::Error {
    let why = match error.raw_os_error() {
        Some(libc::EISDIR) => "it is a directory".to_owned(),
        Some(libc::EACCES) => "you have no permission to execute it".to_owned(),
        _ => error.to_string(),
    };
    Failure::error(Failure::NOT_EXECUTABLE, format!("{}: {why}", file.display()))
}

fn executable(file: &Path) -> std::io::Result<()> {
    if std::fs::metadata(file)?.is_dir() {
        return Err(std::io::Error::from_raw_os_error(libc::EISDIR));
    }
    let file = CString::new(file.as_os_str().as_bytes())?;
    // SAFETY: the pointer is to a C string that outlives the call.
    let result = unsafe { libc::faccessat(libc::AT_FDCWD, file.as_ptr(), libc::X_OK, libc::AT_EACCESS) };
    if result == 0 { Ok(()) } else { Err(std::io::Error::last_os_error()) }
}

/// Whether and why not the library gets into a program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Loading {
    /// It will be loaded, as far as one can tell from outside.
    Loads,
    /// It cannot be loaded into this program, but asking for it does no harm, and programs that
    /// this one starts may still be accelerated.
    Ignored(String),
    /// It must not be asked for: the program would fail, or its loader would complain.
    Harmful(String),
}

/// How many interpreters of scripts the kernel follows (`bprm_execve`: five levels in all).
const SCRIPTS_MAX: usize = 5;

/// Looks at a program that [`find`] has found. `path` is its PATH, to follow `#!/usr/bin/env`.
pub fn inspect(file: &Path, library: Architecture, path: Option<&OsStr>) -> Loading {
    let mut file = file.to_owned();
    let mut through = String::new();
    for _ in 0..SCRIPTS_MAX {
        // A program that may be executed but not read is left to its luck.
        let Ok(opened) = File::open(&file) else {
            return Loading::Loads;
        };
        match script_interpreter(&opened, path) {
            Some(interpreter) => {
                through = format!(" (the interpreter of the script {})", file.display());
                file = interpreter;
            }
            None => return inspect_binary(&file, &opened, library, &through),
        }
    }
    Loading::Loads
}

fn inspect_binary(file: &Path, opened: &File, library: Architecture, through: &str) -> Loading {
    let name = format!("{}{through}", file.display());
    let on_tcp = "so it runs on kernel TCP";
    let Ok(Some(elf)) = Elf::read(opened) else {
        // No ELF and no script: a shell will run it, or the kernel refuses it.
        return Loading::Loads;
    };
    if elf.architecture != library {
        return Loading::Harmful(format!("{name} is built for another architecture than Beeline's library, {on_tcp}"));
    }
    let Some(interpreter) = elf.interpreter else {
        // A dynamic loader that is called as a program asks for no loader itself.
        if is_glibc_loader(file.as_os_str().as_bytes()) {
            return Loading::Loads;
        }
        return Loading::Ignored(format!("{name} is statically linked: Beeline cannot be loaded, {on_tcp}"));
    };
    if !is_glibc_loader(&interpreter) {
        let interpreter = String::from_utf8_lossy(&interpreter);
        return Loading::Harmful(format!(
            "{name} uses another C library than glibc (its loader is {interpreter}), {on_tcp}"
        ));
    }
    match opened.metadata().ok().and_then(|metadata| raises_privileges(file, &metadata)) {
        Some(how) => Loading::Ignored(format!("{name} {how}: the system loads no foreign library into it, {on_tcp}")),
        None => Loading::Loads,
    }
}

/// Whether a program that runs is one that no library can be asked into: it has no dynamic loader, or not glibc's.
pub fn is_unloadable(executable: &Path) -> bool {
    let elf = File::open(executable).and_then(|file| Elf::read(&file));
    matches!(elf, Ok(Some(elf)) if elf.interpreter.as_deref().is_none_or(|loader| !is_glibc_loader(loader)))
}

fn is_glibc_loader(path: &[u8]) -> bool {
    let name = path.rsplit(|&byte| byte == b'/').next().unwrap_or_default();
    // ld-linux-x86-64.so.2, ld-linux-aarch64.so.1, ld64.so.2 (POWER, s390x), ld-2.31.so, ld.so
    [b"ld-linux".as_slice(), b"ld64.so", b"ld.so", b"ld-2."].iter().any(|start| name.starts_with(start))
}

/// Whether executing the file makes the kernel set `AT_SECURE` (getauxval(3)), upon which the loader
/// leaves `LD_PRELOAD` out: new user or group, or capabilities for somebody who is not root.
fn raises_privileges(file: &Path, metadata: &Metadata) -> Option<&'static str> {
    // SAFETY: these calls take no pointers and cannot fail.
    let (uid, euid, gid, egid) = unsafe { (libc::getuid(), libc::geteuid(), libc::getgid(), libc::getegid()) };
    // The kernel compares what the program will have with the real user and group of now
    // (`cap_bprm_creds_from_file`).
    if euid != uid || egid != gid {
        return Some("would run with the rights of another user or group");
    }
    // SAFETY: likewise; the call only asks.
    let no_new_privileges = unsafe { libc::prctl(libc::PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0) } == 1;
    if no_new_privileges || is_nosuid(file) {
        return None;
    }
    let mode = metadata.permissions().mode();
    if mode & libc::S_ISUID != 0 && metadata.uid() != uid {
        return Some("is set-uid");
    }
    let group_bits = libc::S_ISGID | libc::S_IXGRP;
    if mode & group_bits == group_bits && metadata.gid() != gid {
        return Some("is set-gid");
    }
    if uid != 0 && has_capabilities(file) {
        return Some("has file capabilities");
    }
    None
}

fn is_nosuid(file: &Path) -> bool {
    let Ok(file) = CString::new(file.as_os_str().as_bytes()) else {
        return false;
    };
    // SAFETY: all-zero bytes are a valid statvfs.
    let mut system: libc::statvfs = unsafe { std::mem::zeroed() };
    // SAFETY: the pointers are to a C string and a whole statvfs that outlive the call.
    let result = unsafe { libc::statvfs(file.as_ptr(), &raw mut system) };
    result == 0 && system.f_flag & libc::ST_NOSUID != 0
}

fn has_capabilities(file: &Path) -> bool {
    let Ok(file) = CString::new(file.as_os_str().as_bytes()) else {
        return false;
    };
    let attribute = c"security.capability".as_ptr();
    // SAFETY: the pointers are to C strings; a size of zero asks for the length only.
    unsafe { libc::getxattr(file.as_ptr(), attribute, std::ptr::null_mut(), 0) > 0 }
}

/// The program that runs a script, if it is one. `#!/usr/bin/env name` is followed to the program
/// that env(1) will find, because that is what opens the sockets.
fn script_interpreter(file: &File, path: Option<&OsStr>) -> Option<PathBuf> {
    // BINPRM_BUF_SIZE
    let mut line = [0; 256];
    let len = file.read_at(&mut line, 0).ok()?;
    let line = line[..len].strip_prefix(b"#!")?;
    let line = line.split(|&byte| byte == b'\n').next()?;
    let mut words = line.split(|byte| b" \t\r\0".contains(byte)).filter(|word| !word.is_empty());
    let interpreter = words.next()?;
    let is_env = interpreter.ends_with(b"/env");
    let rest: Vec<&[u8]> = words.collect();
    let name = match rest.as_slice() {
        [b"-S", name, ..] => Some(*name),
        [name] => Some(*name),
        _ => None,
    };
    if let Some(name) = name
        && is_env
        && !name.starts_with(b"-")
        && !name.contains(&b'=')
        && let Ok(found) = find(OsStr::from_bytes(name), path)
    {
        return Some(found);
    }
    Some(PathBuf::from(OsString::from_vec(interpreter.to_vec())))
}

/// Whether the file is certainly no text for a shell: it begins as an ELF file or holds a zero byte early.
pub fn is_binary(file: &Path) -> bool {
    let mut start = [0; 256];
    File::open(file)
        .and_then(|file| file.read_at(&mut start, 0))
        .is_ok_and(|len| start[..len].starts_with(b"\x7fELF") || start[..len].contains(&0))
}

/// Whether the file is a script whose interpreter is not there: the kernel's ENOENT would
/// otherwise look as if the script itself were missing.
pub fn missing_interpreter(file: &Path) -> Option<PathBuf> {
    let interpreter = script_interpreter(&File::open(file).ok()?, None)?;
    (!interpreter.exists()).then_some(interpreter)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loaders_are_told_apart() {
        for glibc in ["/lib64/ld-linux-x86-64.so.2", "/lib/ld-linux-aarch64.so.1", "/lib64/ld64.so.2"] {
            assert!(is_glibc_loader(glibc.as_bytes()), "{glibc}");
        }
        for other in ["/lib/ld-musl-x86_64.so.1", "/system/bin/linker64", "", "/ld-linux/x"] {
            assert!(!is_glibc_loader(other.as_bytes()), "{other}");
        }
    }

    #[test]
    fn scripts_lead_to_their_interpreters() {
        let directory = tempfile::tempdir().unwrap();
        let script = directory.path().join("script");
        let interpreter = |text: &str| {
            std::fs::write(&script, text).unwrap();
            let path = Some(OsStr::new("/bin:/usr/bin"));
            script_interpreter(&File::open(&script).unwrap(), path)
        };
        assert_eq!(interpreter("#!/bin/sh -e\n"), Some("/bin/sh".into()));
        assert_eq!(interpreter("#! /bin/sh"), Some("/bin/sh".into()));
        assert_eq!(interpreter("#!/usr/bin/env sh\n"), Some("/bin/sh".into()));
        assert_eq!(interpreter("#!/usr/bin/env -S sh -e\n"), Some("/bin/sh".into()));
        assert_eq!(interpreter("#!/usr/bin/env nowhere-to-be-found\n"), Some("/usr/bin/env".into()));
        assert_eq!(interpreter("#!\n"), None);
        assert_eq!(interpreter("echo\n"), None);
        assert_eq!(interpreter(""), None);
    }
}
