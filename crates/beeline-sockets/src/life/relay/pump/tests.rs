use super::*;

use std::io::Write;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::sync::mpsc::channel;
use std::time::Duration;

use beeline_shm::{RING_BYTES_MIN, SideMemory};

const LIMIT: Duration = Duration::from_secs(8);

/// A pump of the server's end, and what is at both ends of it.
struct Stage {
    pump: Pump,
    lane: LaneMemory,
    /// The client's.
    side: &'static SideState,
    program: UnixStream,
    /// The client's anchor, and what the pump has: the server's, and the other end of the program's socket.
    fds: [UnixStream; 3],
}

fn side() -> &'static SideState {
    let (memory, _) = SideMemory::create().unwrap();
    // SAFETY: a side consists of atomics only and is valid when zeroed; it stays mapped.
    unsafe { memory.as_ref() }
}

fn stage() -> Stage {
    let (lane, _) = LaneMemory::create(RING_BYTES_MIN).unwrap();
    let (client, anchor) = UnixStream::pair().unwrap();
    let (program, socket) = UnixStream::pair().unwrap();
    let set = Relay::watch(anchor.as_raw_fd(), socket.as_raw_fd()).unwrap();
    let relay = Relay {
        lane,
        side: side(),
        end: End::Server,
        anchor: anchor.as_raw_fd(),
        socket: socket.as_raw_fd(),
        set,
        attendance: Attendance::NONE,
        spin_ns_max: 0,
    };
    Stage { pump: Pump::new(relay), lane, side: side(), program, fds: [client, anchor, socket] }
}

impl Stage {
    /// The client's end of the lane.
    fn reader(&self) -> Reader<'_, LaneMemory> {
        Reader::new(self.lane, End::Client, &self.side.rx, &self.side.tx)
    }

    /// The client's bells.
    fn bells(&self) -> SomeBells {
        let relay = Relay { end: End::Client, anchor: self.fds[0].as_raw_fd(), ..self.pump.relay };
        SomeBells { relay, kept: 0 }
    }

    /// What the set has to tell by now is told.
    fn hear_all(&self) {
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; 4];
        // SAFETY: room for as many events.
        while unsafe { libc::epoll_wait(self.pump.relay.set, events.as_mut_ptr(), 4, 0) } > 0 {}
    }
}

#[test]
fn what_the_peer_reads_before_a_sleep_is_seen_by_it() {
    const MORE: usize = 1000;
    let mut stage = stage();
    stage.program.write_all(&vec![7; RING_BYTES_MIN as usize + MORE]).unwrap();
    while stage.pump.turn() == Moved::Some {}
    stage.hear_all();
    // The program has said all it has to say. Now the peer reads all that is there, and would sleep.
    assert_eq!(stage.reader().skip(usize::MAX, &stage.bells()), Ok(RING_BYTES_MIN as usize));
    let (done, is_done) = channel();
    std::thread::spawn(move || {
        let moved = stage.pump.sleep();
        done.send((moved, stage)).unwrap();
    });
    let Ok((moved, mut stage)) = is_done.recv_timeout(LIMIT) else { panic!("the relay sleeps, and so does the peer") };
    assert!(moved == Moved::Some && stage.pump.turn() == Moved::Some);
    assert_eq!(stage.reader().unread(), Ok(MORE as u32));
}
