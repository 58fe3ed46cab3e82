//! Small files of /proc, read without libc.

use core::ffi::CStr;

use beeline_shm::Fd;
use beeline_shm::sys::{self, call};

use crate::linux::PID_NS_INIT_INO;

/// Reads the beginning of a file. `None` when it cannot be opened or read.
pub fn read<'a>(path: &CStr, buffer: &'a mut [u8]) -> Option<&'a [u8]> {
    let flags = libc::O_RDONLY | libc::O_CLOEXEC;
    let args = [libc::AT_FDCWD as usize, path.as_ptr() as usize, flags as usize, 0, 0, 0];
    // SAFETY: a NUL-terminated path and plain numbers.
    let file = Fd::own(unsafe { call(libc::SYS_openat, args) }.ok()? as i32);
    let args = [file.get() as usize, buffer.as_mut_ptr() as usize, buffer.len(), 0, 0, 0];
    // SAFETY: a live buffer of the length given.
    let length = unsafe { call(libc::SYS_read, args) }.ok()?;
    buffer.get(..length)
}

/// What is read at a time, and the longest line.
const PAGE_BYTES: usize = 4096;

/// Runs `f` with two pages: mapped for the call, as threads may have 16 KiB of stack and these calls come deep in them.
fn with_pages<R>(f: impl FnOnce(&mut [u8], &mut [u8]) -> R) -> R {
    #[inline(never)]
    fn on_stack<R>(f: impl FnOnce(&mut [u8], &mut [u8]) -> R) -> R {
        f(&mut [0; PAGE_BYTES], &mut [0; PAGE_BYTES])
    }
    let Ok(base) = sys::map_private(2 * PAGE_BYTES) else { return on_stack(f) };
    // SAFETY: mapped just now, with no other user.
    let (one, two) = unsafe { core::slice::from_raw_parts_mut(base, 2 * PAGE_BYTES) }.split_at_mut(PAGE_BYTES);
    let result = f(one, two);
    // SAFETY: as above; nobody uses them any more.
    unsafe { sys::unmap(base, 2 * PAGE_BYTES) };
    result
}

/// Reads a whole file, part by part, as long as `f` wants more. `None` when it cannot be opened or read.
pub(crate) fn each_part(path: &CStr, f: impl FnMut(&[u8]) -> bool) -> Option<()> {
    with_pages(|buffer, _| each_part_by(path, buffer, f))
}

fn each_part_by(path: &CStr, buffer: &mut [u8], mut f: impl FnMut(&[u8]) -> bool) -> Option<()> {
    let flags = libc::O_RDONLY | libc::O_CLOEXEC;
    let args = [libc::AT_FDCWD as usize, path.as_ptr() as usize, flags as usize, 0, 0, 0];
    // SAFETY: a NUL-terminated path and plain numbers.
    let file = Fd::own(unsafe { call(libc::SYS_openat, args) }.ok()? as i32);
    loop {
        let args = [file.get() as usize, buffer.as_mut_ptr() as usize, buffer.len(), 0, 0, 0];
        // SAFETY: a live buffer of the length given.
        match unsafe { call(libc::SYS_read, args) } {
            Ok(0) => return Some(()),
            Ok(length) if !f(buffer.get(..length).unwrap_or_default()) => return Some(()),
            Ok(_) => {}
            Err(_) => return None,
        }
    }
}

/// Calls `f` for each line of a file, without its end, as long as it wants more. Lines that are longer than a page are
/// passed over. `None` when the file cannot be opened or read.
pub(crate) fn each_line(path: &CStr, f: impl FnMut(&[u8]) -> bool) -> Option<()> {
    with_pages(|buffer, line| each_line_by(path, buffer, line, f))
}

fn each_line_by(path: &CStr, buffer: &mut [u8], line: &mut [u8], mut f: impl FnMut(&[u8]) -> bool) -> Option<()> {
    let mut length = 0_usize;
    each_part_by(path, buffer, |part| {
        part.split_inclusive(|&byte| byte == b'\n').all(|piece| {
            let (piece, ends) = match piece.strip_suffix(b"\n") {
                Some(piece) => (piece, true),
                None => (piece, false),
            };
            if let Some(place) = line.get_mut(length..length.saturating_add(piece.len())) {
                place.copy_from_slice(piece);
            }
            length = length.saturating_add(piece.len());
            if !ends {
                return true;
            }
            let whole = line.get(..core::mem::take(&mut length));
            whole.is_none_or(&mut f)
        })
    })
}

/// The decimal numbers in a text, separated by white space; what is no number ends them.
pub fn numbers(text: &[u8]) -> impl Iterator<Item = u32> {
    text.split(u8::is_ascii_whitespace)
        .filter(|word| !word.is_empty())
        .map_while(|word| core::str::from_utf8(word).ok()?.parse().ok())
}

/// The state of a thread of this pid namespace as a letter, as in proc_pid_stat(5): `Z` for one that has ended and is
/// not yet waited for. `None` when there is no such thread, or /proc cannot be read.
pub fn state_of(tid: u32) -> Option<u8> {
    // Slashes more than needed mean nothing.
    let mut path = *b"/proc/////////////stat\0";
    let mut rest = tid;
    for place in path.get_mut(7..17)?.iter_mut().rev() {
        *place = b'0' + (rest % 10) as u8;
        rest /= 10;
        if rest == 0 {
            break;
        }
    }
    let mut buffer = [0; 128];
    let stat = read(CStr::from_bytes_with_nul(&path).ok()?, &mut buffer)?;
    // The program's name stands before it in parentheses and may contain some; only numbers follow.
    let end = stat.iter().rposition(|&byte| byte == b')')?;
    stat.get(end.checked_add(2)?).copied()
}

/// The inode of the process's pid namespace, 0 if unknown.
pub(crate) fn pid_namespace() -> u32 {
    inode_of(c"/proc/self/ns/pid")
}

/// Whether the process is in the host's own pid namespace, which does not end before the host does, as far as /proc
/// tells.
pub fn is_in_first_pid_namespace() -> bool {
    pid_namespace() == PID_NS_INIT_INO
}

/// Whether what this thread forks is in the process's own pid namespace (unshare(2), setns(2)), as far as /proc tells.
pub fn forks_into_own_pid_namespace() -> bool {
    let own = pid_namespace();
    own == 0 || inode_of(c"/proc/thread-self/ns/pid_for_children") == own
}

/// The inode of the process's user namespace, 0 if unknown.
pub fn user_namespace() -> u32 {
    inode_of(c"/proc/self/ns/user")
}

fn inode_of(path: &CStr) -> u32 {
    // SAFETY: all-zero is a valid value of this plain C struct.
    let mut stat: libc::stat = unsafe { core::mem::zeroed() };
    let args = [libc::AT_FDCWD as usize, path.as_ptr() as usize, (&raw mut stat) as usize, 0, 0, 0];
    // SAFETY: a NUL-terminated string; the kernel writes one `struct stat` into a live local of that type.
    match unsafe { call(libc::SYS_newfstatat, args) } {
        Ok(_) => u32::try_from(stat.st_ino).unwrap_or(0),
        Err(_) => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use beeline_shm::sys;

    #[test]
    fn lines_are_whole_and_long_ones_passed_over() {
        let path = std::env::temp_dir().join(format!("beeline-lines-{}", std::process::id()));
        let long = "x".repeat(5000);
        let rows: Vec<String> = (0..900).map(|i| format!("row {i}")).collect();
        std::fs::write(&path, format!("{}\n{long}\nlast\nnot a line", rows.join("\n"))).unwrap();
        let name = std::ffi::CString::new(path.to_str().unwrap()).unwrap();
        let mut seen = Vec::new();
        each_line(&name, |line| {
            seen.push(String::from_utf8(line.to_vec()).unwrap());
            true
        })
        .unwrap();
        std::fs::remove_file(path).unwrap();
        assert_eq!(seen.len(), 901);
        assert_eq!(seen[899..], ["row 899", "last"]);
        assert!(each_line(c"/proc/no/such/file", |_| true).is_none());
    }

    #[test]
    fn numbers_end_where_text_begins() {
        assert!(numbers(b"32768\t60999\n").eq([32768, 60999]));
        assert!(numbers(b" 7 x 8").eq([7]));
        assert!(numbers(b"").eq([]));
    }

    #[test]
    fn a_running_thread_has_a_state_and_a_missing_one_has_none() {
        assert_eq!(state_of(sys::gettid()), Some(b'R'));
        assert!(matches!(state_of(1), Some(b'S' | b'R' | b'I' | b'D')));
        assert_eq!(state_of(u32::MAX), None);
    }

    #[test]
    fn a_file_is_read_and_a_missing_one_is_none() {
        let mut buffer = [0; 64];
        let text = read(c"/proc/sys/kernel/overflowuid", &mut buffer).unwrap();
        assert_eq!(numbers(text).next(), Some(65534));
        assert!(read(c"/proc/no/such/file", &mut [0; 8]).is_none());
    }
}
