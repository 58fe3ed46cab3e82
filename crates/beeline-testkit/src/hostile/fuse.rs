//! A file whose every close takes a while: one of a FUSE file system (linux/fuse.h) that is slow to answer.

use std::ffi::CString;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::{check, owned};

const LOOKUP: u32 = 1;
const GETATTR: u32 = 3;
const OPEN: u32 = 14;
const RELEASE: u32 = 18;
const FLUSH: u32 = 25;
const INIT: u32 = 26;
const OUT_BYTES: usize = 16;
/// Version 7.31, and what the rest of the first answer is.
const VERSION: [u32; 2] = [7, 31];
const INIT_BYTES: usize = 64;
const ROOT: u64 = 1;

/// The file system, as long as this lives.
pub struct Fuse {
    file: Option<File>,
    slow: Arc<AtomicBool>,
    ends: Arc<AtomicBool>,
    daemon: Option<JoinHandle<()>>,
}

impl Fuse {
    /// One with a file, which is open. Once [`Fuse::is_slow_from_now_on`] each close of it takes `pause`.
    /// `None` where file systems cannot be mounted.
    #[must_use]
    pub fn new(pause: Duration) -> Option<Self> {
        let path = c"/dev/fuse".as_ptr();
        // SAFETY: a NUL-terminated literal.
        let device = unsafe { libc::open(path, libc::O_RDWR | libc::O_NONBLOCK | libc::O_CLOEXEC) };
        let device = check(i64::from(device)).map(owned).ok()?;
        let directory = std::env::temp_dir().join(format!("beeline-fuse-{}", std::process::id()));
        std::fs::create_dir_all(&directory).ok()?;
        let place = CString::new(directory.to_str()?).ok()?;
        let options = format!("fd={},rootmode=40000,user_id=0,group_id=0", device.as_raw_fd());
        let options = CString::new(options).ok()?;
        let (kind, data) = (c"fuse".as_ptr(), options.as_ptr());
        // SAFETY: NUL-terminated strings.
        let mounted = unsafe { libc::mount(kind, place.as_ptr(), kind, libc::MS_NOSUID | libc::MS_NODEV, data.cast()) };
        let (slow, ends) = (Arc::<AtomicBool>::default(), Arc::<AtomicBool>::default());
        let fuse = (mounted == 0).then(|| {
            let daemon = Daemon { device, slow: slow.clone(), ends: ends.clone(), pause, late: Vec::new() };
            let daemon = Some(std::thread::spawn(move || daemon.run()));
            let file = File::open(directory.join("file")).ok();
            // SAFETY: a NUL-terminated string.
            unsafe { libc::umount2(place.as_ptr(), libc::MNT_DETACH) };
            Self { file, slow, ends, daemon }
        });
        let _ = std::fs::remove_dir(&directory);
        fuse.filter(|fuse| fuse.file.is_some())
    }

    /// The file; the file system has no other.
    #[must_use]
    pub const fn file(&mut self) -> Option<File> {
        self.file.take()
    }

    /// Each close takes its time.
    pub fn is_slow_from_now_on(&self) {
        self.slow.store(true, SeqCst);
    }
}

impl Drop for Fuse {
    fn drop(&mut self) {
        self.ends.store(true, SeqCst);
        // With its device closed the kernel answers for it.
        let _ = self.daemon.take().map(JoinHandle::join);
    }
}

struct Daemon {
    device: OwnedFd,
    slow: Arc<AtomicBool>,
    ends: Arc<AtomicBool>,
    pause: Duration,
    /// Questions that are answered only then.
    late: Vec<(Instant, u64)>,
}

impl Daemon {
    fn run(mut self) {
        while !self.ends.load(SeqCst) {
            let now = Instant::now();
            let (due, later) = self.late.iter().partition::<Vec<_>, _>(|(at, _)| *at <= now);
            self.late = later;
            due.iter().for_each(|(_, unique)| self.answer(*unique, Ok(&[])));
            let mut request = vec![0_u8; 1 << 17];
            match self.read(&mut request) {
                Ok(length) if length >= 24 => self.serve(&request[..length]),
                _ => std::thread::sleep(Duration::from_millis(1)),
            }
        }
    }

    fn read(&self, room: &mut [u8]) -> io::Result<usize> {
        // SAFETY: room for as many bytes.
        let length = unsafe { libc::read(self.device.as_raw_fd(), room.as_mut_ptr().cast(), room.len()) };
        check(length as i64).map(|length| length as usize)
    }

    fn serve(&mut self, request: &[u8]) {
        let number = |at: usize| u32::from_ne_bytes(request[at..at + 4].try_into().unwrap_or_default());
        let long = |at: usize| u64::from_ne_bytes(request[at..at + 8].try_into().unwrap_or_default());
        let (operation, unique, node) = (number(4), long(8), long(16));
        match operation {
            INIT => {
                let mut init = [0; INIT_BYTES];
                init[..4].copy_from_slice(&VERSION[0].to_ne_bytes());
                init[4..8].copy_from_slice(&VERSION[1].to_ne_bytes());
                // The largest write, which must not be nothing.
                init[20..24].copy_from_slice(&4096_u32.to_ne_bytes());
                self.answer(unique, Ok(&init));
            }
            LOOKUP => {
                let mut entry = [0; 40].to_vec();
                entry[..8].copy_from_slice(&(ROOT + 1).to_ne_bytes());
                entry.extend(attributes(ROOT + 1));
                self.answer(unique, Ok(&entry));
            }
            GETATTR => {
                let mut attr = [0; 16].to_vec();
                attr.extend(attributes(node));
                self.answer(unique, Ok(&attr));
            }
            OPEN => self.answer(unique, Ok(&[0; 16])),
            FLUSH if self.slow.load(SeqCst) => self.late.push((Instant::now() + self.pause, unique)),
            FLUSH | RELEASE => self.answer(unique, Ok(&[])),
            // FORGET and INTERRUPT, to which there is no answer.
            2 | 36 | 42 => {}
            _ => self.answer(unique, Err(libc::ENOSYS)),
        }
    }

    fn answer(&self, unique: u64, answer: Result<&[u8], i32>) {
        let body = answer.unwrap_or_default();
        let mut bytes = ((OUT_BYTES + body.len()) as u32).to_ne_bytes().to_vec();
        bytes.extend((-answer.err().unwrap_or(0)).to_ne_bytes());
        bytes.extend(unique.to_ne_bytes());
        bytes.extend(body);
        // SAFETY: live bytes. Whoever asked may be gone.
        let _ = unsafe { libc::write(self.device.as_raw_fd(), bytes.as_ptr().cast(), bytes.len()) };
    }
}

/// `struct fuse_attr` of a node.
fn attributes(node: u64) -> [u8; 88] {
    let mode = if node == ROOT { libc::S_IFDIR | 0o755 } else { libc::S_IFREG | 0o644 };
    let mut attributes = [0; 88];
    attributes[..8].copy_from_slice(&node.to_ne_bytes());
    attributes[60..64].copy_from_slice(&mode.to_ne_bytes());
    attributes[64..68].copy_from_slice(&1_u32.to_ne_bytes());
    attributes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_close_takes_as_long_as_it_is_told_to() {
        const PAUSE: Duration = Duration::from_millis(300);
        let Some(mut fuse) = Fuse::new(PAUSE) else { return };
        let file = fuse.file().unwrap();
        let copy = file.try_clone().unwrap();
        drop(copy);
        fuse.is_slow_from_now_on();
        let copy = file.try_clone().unwrap();
        let began = Instant::now();
        drop(copy);
        assert!(began.elapsed() >= PAUSE, "{:?}", began.elapsed());
    }
}
