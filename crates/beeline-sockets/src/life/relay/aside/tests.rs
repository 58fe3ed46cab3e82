use super::*;

use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::fd::{AsRawFd, IntoRawFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::mpsc::channel;
use std::time::Duration;

use beeline_lane::End;
use beeline_meeting::pool;
use beeline_shm::{SideMemory, lane_bytes};

use crate::life::relay::gate::Attendance;
use crate::life::relay::process::{self, Task};
use crate::life::relay::pump::Relay;
use crate::side::SideState;

const LIMIT: Duration = Duration::from_secs(8);

#[test]
fn what_waits_for_no_file_system_is_known() {
    let (socket, _other) = UnixStream::pair().unwrap();
    let (pipe, _writer) = std::io::pipe().unwrap();
    let memory = beeline_shm::memfd::create(c"test", 4096).unwrap();
    let set = beeline_shm::Fd::own(kernel::epoll_create().unwrap());
    for fd in [socket.as_raw_fd(), pipe.as_raw_fd(), memory.get(), set.get()] {
        assert!(!may_hold_up(fd));
    }
    assert!(may_hold_up(File::open("/proc/self/exe").unwrap().as_raw_fd()));
}

/// A file whose file system never answers a close, as long as it is mounted.
struct Stuck {
    path: PathBuf,
}

impl Stuck {
    const INIT: u32 = 26;
    const OPEN: u32 = 14;

    /// None where that cannot be mounted.
    fn mount() -> Option<Self> {
        let device = File::options().read(true).write(true).open("/dev/fuse").ok()?;
        let path = std::env::temp_dir().join(format!("beeline-stuck-{}", std::process::id()));
        fs::write(&path, "").unwrap();
        let target = std::ffi::CString::new(path.to_str().unwrap()).unwrap();
        let options = format!("fd={},rootmode=100644,user_id=0,group_id=0\0", device.as_raw_fd());
        let kind = c"fuse".as_ptr();
        // SAFETY: strings that end in NUL.
        let mounted = unsafe { libc::mount(kind, target.as_ptr(), kind, libc::MS_NOSUID, options.as_ptr().cast()) };
        if mounted != 0 {
            fs::remove_file(&path).unwrap();
            return None;
        }
        std::thread::spawn(|| Self::serve(device));
        Some(Self { path })
    }

    /// Answers what it takes to open the file, until that is mounted no more (linux/fuse.h).
    fn serve(mut device: File) {
        let mut request = vec![0; 1 << 17];
        while let Ok(40..) = device.read(&mut request) {
            let word = |at: usize| u32::from_ne_bytes(request[at..at + 4].try_into().unwrap());
            let body = match word(4) {
                Self::INIT => {
                    let mut body = vec![0; 64];
                    body[..4].copy_from_slice(&7u32.to_ne_bytes());
                    body[4..8].copy_from_slice(&31u32.to_ne_bytes());
                    body[20..24].copy_from_slice(&4096u32.to_ne_bytes());
                    body
                }
                Self::OPEN => vec![0; 16],
                _ => continue,
            };
            let mut answer = Vec::from((16 + body.len() as u32).to_ne_bytes());
            answer.extend([0; 4]);
            answer.extend(&request[8..16]);
            answer.extend(body);
            device.write_all(&answer).unwrap();
        }
    }
}

impl Drop for Stuck {
    /// Whoever waits for the file system is told that it is gone.
    fn drop(&mut self) {
        let path = std::ffi::CString::new(self.path.to_str().unwrap()).unwrap();
        // SAFETY: a string that ends in NUL.
        unsafe { libc::umount2(path.as_ptr(), libc::MNT_FORCE | libc::MNT_DETACH) };
        let _ = fs::remove_file(&self.path);
    }
}

#[test]
fn a_file_that_was_put_aside_holds_up_no_birth_and_no_end() {
    let Some(stuck) = Stuck::mount() else { return };
    let file = File::open(&stuck.path).unwrap().into_raw_fd();
    hidden::hidden_add(file);
    let (memory, _) = SideMemory::create().unwrap();
    // SAFETY: a side consists of atomics only and is valid when zeroed; it stays mapped.
    let side: &'static SideState = unsafe { memory.as_ref() };
    let lane = pool::client_lane(12).unwrap().sent().memory();
    let (anchor, peer) = UnixStream::pair().unwrap();
    let (program, socket) = UnixStream::pair().unwrap();
    socket.set_nonblocking(true).unwrap();
    let (anchor_fd, socket_fd) = (anchor.as_raw_fd(), socket.as_raw_fd());
    let (is_born, born) = channel();
    let birth = std::thread::spawn(move || {
        let set = Relay::watch(anchor_fd, socket_fd).unwrap();
        let attendance = Attendance::NONE;
        let relay = Relay {
            lane,
            side,
            end: End::Client,
            anchor: anchor_fd,
            socket: socket_fd,
            set,
            attendance,
            spin_ns_max: 0,
        };
        let memory = [
            (lane.address(), lane_bytes(lane.ring_bytes())),
            (core::ptr::from_ref(side) as usize, super::super::SIDE_BYTES),
        ];
        let started = process::start(Task { fds: [anchor_fd, socket_fd, set, -1, -1], memory, relay });
        let _ = beeline_shm::sys::close(set);
        is_born.send(started.is_ok()).unwrap();
    });
    let is_born = born.recv_timeout(LIMIT);
    // Now it has both ends of the connection alone, and ends with it.
    drop((anchor, socket));
    let mut ends = [libc::pollfd { fd: peer.as_raw_fd(), events: 0, revents: 0 }];
    if is_born == Ok(true) {
        lane.set_flags(End::Server, beeline_lane::flags::FIN);
        (&peer).write_all(&[0xbe]).unwrap();
        drop(program);
        // SAFETY: one live entry.
        unsafe { libc::poll(ends.as_mut_ptr(), 1, LIMIT.as_millis() as i32) };
    }
    hidden::hidden_remove(file);
    drop(stuck);
    birth.join().unwrap();
    let _ = beeline_shm::sys::close(file);
    assert_eq!(is_born, Ok(true));
    assert!(ends[0].revents & libc::POLLHUP != 0, "its end of the anchor is closed");
}
