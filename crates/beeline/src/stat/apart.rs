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
//! 3. A command leaves [`ABANDONED_MAX`] children alone at a time. As long as there are so many it looks no further.

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
/// Of what the kernel tells of a process, whose own words may be without end.
const BYTES_MAX: u64 = 32 << 20;
/// In place of a length: nothing is known.
const NOTHING: u32 = u32::MAX;

/// Children that were left alone, and may hang.
static ABANDONED: Mutex<Vec<libc::pid_t>> = Mutex::new(Vec::new());

/// What `look` says of each of the items, in their order. It runs in another process.
pub fn answers<T>(items: &[T], look: impl Fn(&T) -> Option<Vec<u8>>) -> Vec<Option<Vec<u8>>> {
    let mut answers = Vec::with_capacity(items.len());
    let mut abandoned = ABANDONED.lock().unwrap_or_else(PoisonError::into_inner);
    // SAFETY: our own children; no status is asked for.
    abandoned.retain(|child| unsafe { libc::waitpid(*child, std::ptr::null_mut(), libc::WNOHANG) } == 0);
    while abandoned.len() < ABANDONED_MAX
        && let Some(rest) = items.get(answers.len()..)
        && !rest.is_empty()
        && let Ok((child, mut pipe)) = begin(rest, &look)
    {
        let heard = hear(&mut pipe, rest.len());
        let is_done = heard.len() == rest.len();
        answers.extend(heard);
        // SAFETY: our own child, which is not waited for yet.
        unsafe { libc::kill(child, libc::SIGKILL) };
        if is_done {
            // SAFETY: the same; it looks at nothing any more, so it ends.
            unsafe { libc::waitpid(child, std::ptr::null_mut(), 0) };
        } else {
            answers.push(None);
            abandoned.push(child);
        }
    }
    answers.resize(items.len(), None);
    answers
}

/// A file that tells of a process.
pub fn read(path: &Path) -> Option<Vec<u8>> {
    answers(&[path], |path| read_here(path).ok()).pop().flatten()
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

/// The first answers, up to that of whom there is no more to hear.
fn hear(from: &mut PipeReader, count: usize) -> Vec<Option<Vec<u8>>> {
    let mut heard = Vec::with_capacity(count);
    while heard.len() < count {
        let mut length = [0; 4];
        if hear_all(from, &mut length).is_none() {
            break;
        }
        heard.push(match u32::from_ne_bytes(length) {
            NOTHING => None,
            length => {
                let mut bytes = vec![0; length as usize];
                if hear_all(from, &mut bytes).is_none() {
                    break;
                }
                Some(bytes)
            }
        });
    }
    heard
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
        let answers = answers(&items, |path| read_here(path).ok());
        assert!(since.elapsed() < Duration::from_secs(20));
        let lengths: Vec<Option<usize>> = answers.iter().map(|answer| Some(answer.as_ref()?.len())).collect();
        assert_eq!(lengths, [Some(1 << 20), None, None, Some(1 << 20)]);
        assert_eq!(read(&silent), None);
    }

    #[test]
    fn the_child_has_nothing_open_but_its_pipe() {
        let open = |_: &()| {
            let entries = std::fs::read_dir("/proc/self/fd").ok()?;
            // The pipe, and the directory that is read.
            Some(entries.count().to_string().into_bytes())
        };
        assert_eq!(answers(&[()], open), [Some(b"2".to_vec())]);
    }
}
