//! A file whose every close takes a while: one of a FUSE file system (linux/fuse.h) that is slow to answer.
//!
//! A process of its own serves it, which alone has the device open. Were it in the test's process, a child that another
//! test makes at that moment would have a copy: if it closed the file then, it would wait for an answer that nobody
//! gives any more, and keep the device open meanwhile, for ever. With its server the file system ends, and with it all
//! such waits.

use std::ffi::{CStr, CString};
use std::fs::File;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::SeqCst};
use std::time::{Duration, Instant};

const LOOKUP: u32 = 1;
const GETATTR: u32 = 3;
const OPEN: u32 = 14;
const RELEASE: u32 = 18;
const FLUSH: u32 = 25;
const INIT: u32 = 26;
const FORGET: u32 = 2;
const INTERRUPT: u32 = 36;
const BATCH_FORGET: u32 = 42;
const OUT_BYTES: usize = 16;
/// Version 7.31, and what the rest of the first answer is.
const VERSION: [u32; 2] = [7, 31];
const INIT_BYTES: usize = 64;
const REQUEST_BYTES: usize = 1 << 17;
const ROOT: u64 = 1;
/// The number of the device in the process that serves, which has closed all others but the first three.
const DEVICE: i32 = 3;
const OPTIONS: &CStr = c"fd=3,rootmode=40000,user_id=0,group_id=0";
/// Closes that are answered late at one time; others are answered at once.
const LATE: usize = 64;
/// For the file system to be there.
const PATIENCE: Duration = Duration::from_secs(20);

/// The file system, as long as this lives.
pub struct Fuse {
    file: Option<File>,
    shared: &'static Shared,
    server: i32,
}

/// What the test and the process that serves share.
struct Shared {
    /// Whether the file system is mounted: [`MOUNTED`] or [`REFUSED`].
    mounted: AtomicU32,
    slow: AtomicBool,
}

const MOUNTED: u32 = 1;
const REFUSED: u32 = 2;

/// How many were made by this process.
static MADE: AtomicU32 = AtomicU32::new(0);

impl Fuse {
    /// One with a file, which is open. Once [`Fuse::is_slow_from_now_on`] each close of it takes `pause`.
    /// `None` where file systems cannot be mounted.
    #[must_use]
    pub fn new(pause: Duration) -> Option<Self> {
        let shared = shared_page()?;
        // One above another on the same directory would be the other's file.
        let (process, number) = (std::process::id(), MADE.fetch_add(1, SeqCst));
        let directory = std::env::temp_dir().join(format!("beeline-fuse-{process}-{number}"));
        std::fs::create_dir_all(&directory).ok()?;
        let place = CString::new(directory.to_str()?).ok()?;
        let (how, nothing) = (libc::SIGCHLD as usize, 0_usize);
        // SAFETY: as fork(2), without what the process does around one. The child makes plain calls only.
        let server = unsafe { libc::syscall(libc::SYS_clone, how, nothing, nothing, nothing, nothing) };
        if server == 0 {
            serve(&place, shared, pause);
        }
        let mut fuse = (server > 0).then(|| Self { file: None, shared, server: server as i32 })?;
        let until = Instant::now() + PATIENCE;
        while fuse.shared.mounted.load(SeqCst) == 0 && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(1));
        }
        if fuse.shared.mounted.load(SeqCst) == MOUNTED {
            fuse.file = File::open(directory.join("file")).ok();
            // SAFETY: a NUL-terminated string.
            unsafe { libc::umount2(place.as_ptr(), libc::MNT_DETACH) };
        }
        let _ = std::fs::remove_dir(&directory);
        Some(fuse).filter(|fuse| fuse.file.is_some())
    }

    /// The file; the file system has no other.
    #[must_use]
    pub const fn file(&mut self) -> Option<File> {
        self.file.take()
    }

    /// Each close takes its time.
    pub fn is_slow_from_now_on(&self) {
        self.shared.slow.store(true, SeqCst);
    }
}

impl Drop for Fuse {
    fn drop(&mut self) {
        // SAFETY: a child of ours that nobody else waits for, and room for no status.
        unsafe {
            libc::kill(self.server, libc::SIGKILL);
            libc::waitpid(self.server, std::ptr::null_mut(), 0);
        }
    }
}

/// Zeroes that a child has, too, for as long as this process lives.
fn shared_page() -> Option<&'static Shared> {
    let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_ANONYMOUS);
    // SAFETY: a fresh mapping.
    let page = unsafe { libc::mmap(std::ptr::null_mut(), size_of::<Shared>(), protection, flags, -1, 0) };
    // SAFETY: of atomics, for which zero is valid, and never unmapped.
    (page != libc::MAP_FAILED).then(|| unsafe { &*page.cast::<Shared>() })
}

/// Serves the file system until somebody kills this process, which is a copy of one with other threads: it allocates
/// nothing, and touches no lock.
fn serve(place: &CStr, shared: &Shared, pause: Duration) -> ! {
    let kind = c"fuse".as_ptr();
    // SAFETY: plain numbers and NUL-terminated strings.
    let mounted = unsafe {
        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
        libc::syscall(libc::SYS_close_range, DEVICE, u32::MAX, 0);
        libc::open(c"/dev/fuse".as_ptr(), libc::O_RDWR | libc::O_NONBLOCK | libc::O_CLOEXEC) == DEVICE
            && libc::mount(kind, place.as_ptr(), kind, libc::MS_NOSUID | libc::MS_NODEV, OPTIONS.as_ptr().cast()) == 0
    };
    shared.mounted.store(if mounted { MOUNTED } else { REFUSED }, SeqCst);
    if mounted {
        Server { shared, pause, late: [None; LATE] }.run();
    }
    // SAFETY: ends this process and runs nothing of the test's.
    unsafe { libc::_exit(0) }
}

struct Server<'a> {
    shared: &'a Shared,
    pause: Duration,
    /// Questions that are answered only then.
    late: [Option<(Instant, u64)>; LATE],
}

impl Server<'_> {
    fn run(mut self) {
        let mut request = [0_u8; REQUEST_BYTES];
        loop {
            let now = Instant::now();
            for place in &mut self.late {
                if let Some((_, unique)) = place.take_if(|(at, _)| *at <= now) {
                    answer(unique, Ok(&[]));
                }
            }
            // SAFETY: room for as many bytes.
            let length = unsafe { libc::read(DEVICE, request.as_mut_ptr().cast(), REQUEST_BYTES) };
            if length >= 24 {
                self.serve(&request);
            } else {
                let mut look = libc::pollfd { fd: DEVICE, events: libc::POLLIN, revents: 0 };
                // SAFETY: one live entry.
                unsafe { libc::poll(&raw mut look, 1, 1) };
            }
        }
    }

    fn serve(&mut self, request: &[u8; REQUEST_BYTES]) {
        let number = |at: usize| u32::from_ne_bytes([request[at], request[at + 1], request[at + 2], request[at + 3]]);
        let long = |at: usize| u64::from(number(at)) | u64::from(number(at + 4)) << 32;
        let (operation, unique, node) = (number(4), long(8), long(16));
        match operation {
            INIT => {
                let mut init = [0; INIT_BYTES];
                init[..4].copy_from_slice(&VERSION[0].to_ne_bytes());
                init[4..8].copy_from_slice(&VERSION[1].to_ne_bytes());
                // The largest write, which must not be nothing.
                init[20..24].copy_from_slice(&4096_u32.to_ne_bytes());
                answer(unique, Ok(&init));
            }
            LOOKUP => {
                let mut entry = [0; 40 + 88];
                entry[..8].copy_from_slice(&(ROOT + 1).to_ne_bytes());
                entry[40..].copy_from_slice(&attributes(ROOT + 1));
                answer(unique, Ok(&entry));
            }
            GETATTR => {
                let mut attr = [0; 16 + 88];
                attr[16..].copy_from_slice(&attributes(node));
                answer(unique, Ok(&attr));
            }
            OPEN => answer(unique, Ok(&[0; 16])),
            FLUSH if self.shared.slow.load(SeqCst) => match self.late.iter_mut().find(|place| place.is_none()) {
                Some(place) => *place = Some((Instant::now() + self.pause, unique)),
                None => answer(unique, Ok(&[])),
            },
            FLUSH | RELEASE => answer(unique, Ok(&[])),
            // To which there is no answer.
            FORGET | INTERRUPT | BATCH_FORGET => {}
            _ => answer(unique, Err(libc::ENOSYS)),
        }
    }
}

fn answer(unique: u64, answer: Result<&[u8], i32>) {
    let body = answer.unwrap_or_default();
    let mut head = [0; OUT_BYTES];
    head[..4].copy_from_slice(&((OUT_BYTES + body.len()) as u32).to_ne_bytes());
    head[4..8].copy_from_slice(&(-answer.err().unwrap_or(0)).to_ne_bytes());
    head[8..].copy_from_slice(&unique.to_ne_bytes());
    let part = |bytes: &[u8]| libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    // SAFETY: live bytes. Whoever asked may be gone.
    let _ = unsafe { libc::writev(DEVICE, [part(&head), part(body)].as_ptr(), 2) };
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
    use std::os::fd::IntoRawFd;

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

    #[test]
    fn a_close_ends_with_the_file_system_also_where_a_child_has_all_that_is_open_here() {
        let Some(mut fuse) = Fuse::new(Duration::from_secs(600)) else { return };
        let file = fuse.file().unwrap().into_raw_fd();
        fuse.is_slow_from_now_on();
        // SAFETY: the child makes plain calls only.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: a descriptor of this process's, which ends.
            unsafe {
                libc::close(file);
                libc::_exit(7);
            }
        }
        // Not before it waits.
        let waits = |stat: &str| stat.contains(") S") || stat.contains(") D");
        while !waits(&std::fs::read_to_string(format!("/proc/{child}/stat")).unwrap()) {
            std::thread::sleep(Duration::from_millis(1));
        }
        drop(fuse);
        let mut status = 0;
        // SAFETY: room for the status.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert_eq!(libc::WEXITSTATUS(status), 7);
        // SAFETY: ours, and nobody is asked any more.
        unsafe { libc::close(file) };
    }
}
