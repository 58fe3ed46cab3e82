//! Splices, and receives beside them, from and to lanes whose other end is the test's.

use super::*;

fn splice(from: i32, to: i32, count: usize) -> Outcome {
    // SAFETY: no offsets.
    unsafe { io::splice(from, std::ptr::null(), to, std::ptr::null(), count, 0) }
}

fn a_pipe() -> [i32; 2] {
    let mut ends = [-1; 2];
    // SAFETY: room for two descriptors.
    assert_eq!(unsafe { libc::pipe(ends.as_mut_ptr()) }, 0);
    ends
}

/// What the peer has made up is the end of the connection for any call, which does not look at it again and again.
fn received_from_a_liar(receive: fn(i32) -> Outcome) {
    let [_client, server] = lane_pair();
    let lane = table::get(server).unwrap().lane();
    lane.set_cursor(End::Client, beeline_lane::Cursor { tail: 2 << 20, base: 0 });
    let (tell, told) = std::sync::mpsc::channel();
    std::thread::spawn(move || tell.send([receive(server), receive(server)]));
    let found = told.recv_timeout(Duration::from_secs(10)).expect("it returns");
    assert_eq!(found, [Outcome::fail(libc::ECONNRESET), Outcome::OK]);
}

#[test]
fn a_receive_from_a_liar_ends() {
    received_from_a_liar(|server| recv(server, &mut [0; 16], 0));
}

#[test]
fn a_splice_from_a_liar_ends() {
    received_from_a_liar(|server| splice(server, a_pipe()[1], 16));
}

/// How many pages the calling thread has been given.
fn page_faults() -> i64 {
    // SAFETY: all-zero is a valid value of this plain C struct, which is live.
    unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        assert_eq!(libc::getrusage(libc::RUSAGE_THREAD, &raw mut usage), 0);
        usage.ru_minflt
    }
}

/// Memory for parts is there for as many calls as move bytes at a moment, however many wait for some.
#[test]
fn splices_that_wait_have_no_memory_that_others_need() {
    const PEEKS: i64 = 1000;
    let sleepers = [(); 8].map(|()| {
        let [client, server] = lane_pair();
        let (tell, told) = std::sync::mpsc::channel();
        let thread = std::thread::spawn(move || {
            // SAFETY: only asks.
            tell.send(unsafe { libc::gettid() }).unwrap();
            splice(server, a_pipe()[1], 16)
        });
        let stat = format!("/proc/self/task/{}/stat", told.recv().unwrap());
        while !std::fs::read_to_string(&stat).unwrap().rsplit_once(") ").unwrap().1.starts_with('S') {}
        (client, thread)
    });
    let [client, server] = lane_pair();
    assert_eq!(send(client, b"x"), Outcome::Done(1));
    let before = page_faults();
    for _ in 0..PEEKS {
        assert_eq!(recv(server, &mut [0; 16], libc::MSG_PEEK), Outcome::Done(1));
    }
    let faults = page_faults() - before;
    assert!(faults < PEEKS / 2, "{faults}");
    for (client, thread) in sleepers {
        assert_eq!(send(client, b"x"), Outcome::Done(1));
        assert_eq!(thread.join().unwrap(), Outcome::Done(1));
    }
}
