//! A TCP socket whose lock somebody holds.

use std::io;
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsRawFd, OwnedFd};
use std::thread::JoinHandle;
use std::time::Duration;

use super::{check, owned};

const PAGE_BYTES: usize = 4096;
/// Of linux/userfaultfd.h: `UFFD_API`, and the numbers of the requests.
const API: u64 = 0xaa;
const UFFDIO_API: libc::c_ulong = 0xc018_aa3f;
const UFFDIO_REGISTER: libc::c_ulong = 0xc020_aa00;
const UFFDIO_ZEROPAGE: libc::c_ulong = 0xc020_aa04;
const REGISTER_MISSING: u64 = 1;

/// A TCP connection whose lock a thread holds until this is dropped: it sends from a page that does not come.
pub struct Locked {
    pub socket: TcpStream,
    _deaf: TcpStream,
    page: u64,
    faults: OwnedFd,
    sender: Option<JoinHandle<()>>,
}

impl Locked {
    /// `None` where pages cannot be kept back: without the right to userfaultfd(2).
    ///
    /// # Errors
    /// Those of the other calls.
    pub fn new() -> io::Result<Option<Self>> {
        // SAFETY: a plain number.
        let faults = unsafe { libc::syscall(libc::SYS_userfaultfd, libc::O_CLOEXEC) };
        if faults < 0 {
            return Ok(None);
        }
        let faults = owned(faults);
        request(&faults, UFFDIO_API, &mut [API, 0, 0, 0])?;
        let (prot, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a fresh mapping; nothing existing is replaced.
        let page = unsafe { libc::mmap(std::ptr::null_mut(), PAGE_BYTES, prot, flags, -1, 0) } as u64;
        request(&faults, UFFDIO_REGISTER, &mut [page, PAGE_BYTES as u64, REGISTER_MISSING, 0])?;
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let socket = TcpStream::connect(listener.local_addr()?)?;
        let (deaf, _) = listener.accept()?;
        let number = socket.as_raw_fd();
        let sender = std::thread::spawn(move || {
            // SAFETY: the page stays mapped until this thread has ended; the kernel waits for it with the lock held.
            unsafe { libc::send(number, page as *const libc::c_void, PAGE_BYTES, libc::MSG_NOSIGNAL) };
        });
        std::thread::sleep(Duration::from_millis(200));
        Ok(Some(Self { socket, _deaf: deaf, page, faults, sender: Some(sender) }))
    }
}

fn request(faults: &OwnedFd, number: libc::c_ulong, words: &mut [u64; 4]) -> io::Result<()> {
    // SAFETY: room for what each of these requests reads and writes.
    check(i64::from(unsafe { libc::ioctl(faults.as_raw_fd(), number as _, words.as_mut_ptr()) })).map(drop)
}

impl Drop for Locked {
    fn drop(&mut self) {
        let _ = request(&self.faults, UFFDIO_ZEROPAGE, &mut [self.page, PAGE_BYTES as u64, 0, 0]);
        if let Some(sender) = self.sender.take() {
            let _ = sender.join();
        }
        // SAFETY: our own page, which nobody uses any more.
        unsafe { libc::munmap(self.page as *mut libc::c_void, PAGE_BYTES) };
    }
}
