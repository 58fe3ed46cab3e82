use super::*;

use std::io::Write;
use std::os::fd::{AsRawFd, IntoRawFd};
use std::os::unix::net::UnixStream;
use std::sync::mpsc::channel;
use std::time::Duration;

use beeline_lane::End;
use beeline_meeting::pool;
use beeline_shm::{SideMemory, lane_bytes};
use beeline_testkit::hostile::Fuse;

use crate::hidden;
use crate::life::relay::gate::Attendance;
use crate::side::SideState;

const LIMIT: Duration = Duration::from_secs(8);

#[test]
fn a_file_that_was_put_aside_holds_up_no_birth_and_no_end() {
    let Some(mut fuse) = Fuse::new(4 * LIMIT) else { return };
    // Nobody closes it any more, in this process.
    let file = fuse.file().unwrap().into_raw_fd();
    hidden::hidden_add(file);
    beeline_guest::aside::put(file);
    fuse.is_slow_from_now_on();
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
        let started = start(Task { fds: [anchor_fd, socket_fd, set, -1, -1], memory, relay });
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
    drop(fuse);
    birth.join().unwrap();
    assert_eq!(is_born, Ok(true));
    assert!(ends[0].revents & libc::POLLHUP != 0, "its end of the anchor is closed");
}
