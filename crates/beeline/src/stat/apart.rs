//! Looking into other processes in a child, which may hang.
//!
//! A process's environment and mappings are read under the lock of its memory, and its user may let it keep that for as
//! long as he likes: by one thread that reads through `/proc/self/mem` what lies in a file system of his own (FUSE),
//! and one that waits to change a mapping. Before Linux 4.17 he may also put such a file where the environment is, and
//! no signal ends the wait of whoever reads it. So:
//!
//! 1. What may wait is done in a child that has nothing of the command's open but the pipe for its answers.
//! 2. Who is not heard of for [`PATIENCE`] is left alone: that process is one of which nothing is known, and another
//!    child goes on with those after it.
//! 3. A command leaves [`ABANDONED_MAX`] children alone at a time that do not end when they are killed, and waits in
//!    vain [`SILENT_MAX`] times in one look. Then it looks no further, and says so.
//! 4. What is heard is judged as it comes: processes may have much to tell, and all of them together more than fits.

use std::fs::File;
use std::io::{self, PipeReader, PipeWriter, Read, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

/// A look at a process takes microseconds, or however long CPUs are short.
const PATIENCE: Duration = Duration::from_secs(1);
const ABANDONED_MAX: usize = 4;
const SILENT_MAX: usize = 8;
/// Of what the kernel tells of a process, whose own words may be without end.
const BYTES_MAX: u64 = 32 << 20;
/// In place of a length: nothing is known.
const NOTHING: u32 = u32::MAX;

/// Children that were left alone, and may hang.
static ABANDONED: Mutex<Vec<libc::pid_t>> = Mutex::new(Vec::new());

/// What was not heard.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Unheard {
    /// Items that did not answer in time.
    pub silent: usize,
    /// Items that were not looked at.
    pub left_out: usize,
}

impl Unheard {
    /// Of two looks at the same processes.
    pub fn at_most(self, other: Self) -> Self {
        Self { silent: self.silent.max(other.silent), left_out: self.left_out.max(other.left_out) }
    }
}

/// What `look` says of items, in their order, is given to `take`. `look` runs in another process.
pub fn each<T>(items: &[T], look: impl Fn(&T) -> Option<Vec<u8>>, mut take: impl FnMut(&T, Vec<u8>)) -> Unheard {
    let (mut rest, mut silent) = (items, 0);
    let mut abandoned = ABANDONED.lock().unwrap_or_else(PoisonError::into_inner);
    while !rest.is_empty() && silent < SILENT_MAX && may_abandon(&mut abandoned) {
        let Ok((child, mut pipe)) = begin(rest, &look) else { break };
        rest = hear(&mut pipe, rest, &mut take);
        // SAFETY: our own child, which is not waited for yet.
        unsafe { libc::kill(child, libc::SIGKILL) };
        if let Some((_, others)) = rest.split_first() {
            (rest, silent) = (others, silent + 1);
            abandoned.push(child);
        } else {
            // SAFETY: the same; it looks at nothing any more, so it ends.
            unsafe { libc::waitpid(child, std::ptr::null_mut(), 0) };
        }
    }
    Unheard { silent, left_out: rest.len() }
}

/// Whether one more child may be left alone. Most have ended by then.
fn may_abandon(abandoned: &mut Vec<libc::pid_t>) -> bool {
    // SAFETY: our own children; no status is asked for.
    abandoned.retain(|child| unsafe { libc::waitpid(*child, std::ptr::null_mut(), libc::WNOHANG) } == 0);
    abandoned.len() < ABANDONED_MAX
}

/// A file that tells of a process. `None` if there is no answer.
pub fn read(path: &Path) -> Option<io::Result<Vec<u8>>> {
    // An answer of its own for each outcome: the error's number, or nothing and the bytes.
    let look = |path: &&Path| match read_here(path) {
        Ok(bytes) => Some([&0_i32.to_ne_bytes(), bytes.as_slice()].concat()),
        Err(error) => Some(error.raw_os_error().unwrap_or(libc::EIO).to_ne_bytes().to_vec()),
    };
    let mut answer = None;
    let _ = each(&[path], look, |_, bytes| answer = Some(bytes));
    let mut bytes = answer?;
    let errno = i32::from_ne_bytes(*bytes.first_chunk()?);
    Some(if errno == 0 { Ok(bytes.split_off(size_of::<i32>())) } else { Err(io::Error::from_raw_os_error(errno)) })
}

/// The same where it may wait.
pub fn read_here(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path)?.take(BYTES_MAX).read_to_end(&mut bytes)?;
    Ok(bytes)
}

fn begin<T>(items: &[T], look: impl Fn(&T) -> Option<Vec<u8>>) -> io::Result<(libc::pid_t, PipeReader)> {
    let (reader, writer) = io::pipe()?;
    // SAFETY: the child makes calls and allocates, which glibc allows after a fork of several threads, too; it takes no
    // lock that another thread of ours may have had, and ends without running what is registered for an end.
    match unsafe { libc::fork() } {
        0 => {
            keep_only(&writer);
            answer(items, look, writer);
            // SAFETY: ends the child at once, and nothing else.
            unsafe { libc::_exit(0) }
        }
        -1 => Err(io::Error::last_os_error()),
        child => Ok((child, reader)),
    }
}

/// Closes all else: whoever reads what the command prints waits until nobody has that pipe any more.
fn keep_only(kept: &PipeWriter) {
    let kept = kept.as_raw_fd();
    for range in [0..kept, kept + 1..libc::c_int::MAX] {
        if range.is_empty() {
            continue;
        }
        // SAFETY: plain numbers; nothing of what is closed is used by this process again.
        let closed = unsafe { libc::syscall(libc::SYS_close_range, range.start, range.end - 1, 0) };
        if closed != 0 {
            // Before Linux 5.9. More than a few are not open.
            range.take(64).for_each(|fd| {
                // SAFETY: the same.
                unsafe { libc::close(fd) };
            });
        }
    }
}

fn answer<T>(items: &[T], look: impl Fn(&T) -> Option<Vec<u8>>, mut to: PipeWriter) {
    // SAFETY: plain numbers. Nobody waits for it any more when the command has ended.
    unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
    for item in items {
        let answer = look(item).and_then(|answer| Some((u32::try_from(answer.len()).ok()?, answer)));
        let (length, bytes) = answer.unwrap_or((NOTHING, Vec::new()));
        if to.write_all(&length.to_ne_bytes()).and_then(|()| to.write_all(&bytes)).is_err() {
            return;
        }
    }
}

/// Takes the first answers. The items that are left begin with the one of whom there was nothing to hear.
fn hear<'a, T>(from: &mut PipeReader, items: &'a [T], take: &mut impl FnMut(&T, Vec<u8>)) -> &'a [T] {
    let mut rest = items;
    while let Some((item, others)) = rest.split_first() {
        let mut length = [0; 4];
        if hear_all(from, &mut length).is_none() {
            break;
        }
        let length = u32::from_ne_bytes(length);
        if length != NOTHING {
            let mut bytes = vec![0; length as usize];
            if hear_all(from, &mut bytes).is_none() {
                break;
            }
            take(item, bytes);
        }
        rest = others;
    }
    rest
}

fn hear_all(from: &mut PipeReader, mut bytes: &mut [u8]) -> Option<()> {
    let patience = PollTimeout::try_from(PATIENCE).unwrap_or(PollTimeout::MAX);
    while !bytes.is_empty() {
        match poll(&mut [PollFd::new(from.as_fd(), PollFlags::POLLIN)], patience) {
            Ok(0) => return None,
            Err(nix::errno::Errno::EINTR) => continue,
            _ => {}
        }
        let count = from.read(bytes).ok().filter(|count| *count > 0)?;
        bytes = bytes.get_mut(count..)?;
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;
    use std::time::Instant;

    /// A file that nobody ever answers for.
    fn silent(directory: &tempfile::TempDir) -> PathBuf {
        let path = directory.path().join("silent");
        let status = std::process::Command::new("mkfifo").arg(&path).status().unwrap();
        assert!(status.success());
        path
    }

    #[test]
    fn who_never_answers_is_left_out_and_holds_nobody_up() {
        let directory = tempfile::tempdir().unwrap();
        let (silent, none) = (silent(&directory), directory.path().join("none"));
        let file = directory.path().join("file");
        std::fs::write(&file, vec![b'x'; 1 << 20]).unwrap();
        let items = [&file, &silent, &none, &file];
        let since = Instant::now();
        let mut heard = Vec::new();
        let unheard = each(&items, |path| read_here(path).ok(), |path, bytes| heard.push((*path, bytes.len())));
        assert!(since.elapsed() < Duration::from_secs(20));
        assert_eq!(heard, [(&file, 1 << 20), (&file, 1 << 20)]);
        assert_eq!(unheard, Unheard { silent: 1, left_out: 0 });
        assert!(read(&silent).is_none());
        let error = read(&none).map(|answer| answer.map_err(|error| error.kind()));
        assert_eq!(error, Some(Err(io::ErrorKind::NotFound)));
        assert_eq!(read(&file).unwrap().unwrap().len(), 1 << 20);
    }

    /// Killed children make room for the next: more may be silent than are left alone at a time, and no more than are
    /// waited for.
    #[test]
    fn many_that_never_answer_are_counted() {
        let directory = tempfile::tempdir().unwrap();
        let silent = silent(&directory);
        let file = directory.path().join("file");
        std::fs::write(&file, b"x").unwrap();
        let look = |path: &&PathBuf| read_here(path).ok();
        let mut items = vec![&silent; ABANDONED_MAX + 1];
        items.push(&file);
        let mut heard = 0;
        assert_eq!(each(&items, look, |_, _| heard += 1), Unheard { silent: ABANDONED_MAX + 1, left_out: 0 });
        assert_eq!(heard, 1);
        let items = vec![&silent; SILENT_MAX + 3];
        assert_eq!(each(&items, look, |_, _| heard += 1), Unheard { silent: SILENT_MAX, left_out: 3 });
        assert_eq!(heard, 1);
    }

    #[test]
    fn the_child_has_nothing_open_but_its_pipe() {
        let open = |_: &()| {
            let entries = std::fs::read_dir("/proc/self/fd").ok()?;
            // The pipe, and the directory that is read.
            Some(entries.count().to_string().into_bytes())
        };
        let mut heard = Vec::new();
        each(&[()], open, |(), bytes| heard = bytes);
        assert_eq!(heard, b"2");
    }
}
