//! Relays: a program that holds a plain TCP socket cannot tell it from the connection that it stands for.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsRawFd, FromRawFd};
use std::sync::atomic::{AtomicU16, Ordering::Relaxed};
use std::time::{Duration, Instant};

use beeline_lane::{End, LaneMemory};
use beeline_shm::SideMemory;
use beeline_sockets::desc::{DESCS, Kind};
use beeline_sockets::side::SideState;
use beeline_sockets::{Outcome, io, kernel, life, table};

/// Relays are told apart by their sockets, and some tests count processes or time.
static ONE_AT_A_TIME: std::sync::Mutex<()> = std::sync::Mutex::new(());

fn turn() -> std::sync::MutexGuard<'static, ()> {
    ONE_AT_A_TIME.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// Addresses that no other test uses.
fn addresses() -> [SocketAddr; 2] {
    static PORT: AtomicU16 = AtomicU16::new(12_100);
    let port = PORT.fetch_add(2, Relaxed);
    [SocketAddr::from(([127, 0, 0, 1], port)), SocketAddr::from(([127, 0, 0, 1], port + 1))]
}

/// The fds of a fresh lane, client's and server's, with the addresses of both.
fn lane_pair() -> ([i32; 2], [SocketAddr; 2]) {
    let mut fds = [-1; 2];
    // SAFETY: room for two descriptors.
    assert_eq!(unsafe { libc::socketpair(libc::AF_UNIX, libc::SOCK_STREAM, 0, fds.as_mut_ptr()) }, 0);
    let (lane, memfd) = LaneMemory::create(1 << 20).unwrap();
    // SAFETY: ours.
    unsafe { libc::close(memfd) };
    let names = addresses();
    lane.set_flags(End::Server, beeline_lane::flags::TAKEN);
    for (fd, end) in fds.into_iter().zip([End::Client, End::Server]) {
        // SAFETY: a side is valid when zeroed and lives as long as the process.
        let side: &'static SideState = unsafe { SideMemory::create().unwrap().0.as_ref() };
        side.holders.store(1, Relaxed);
        side.family.store(libc::AF_INET as u32, Relaxed);
        side.local.set(names[end as usize]);
        side.remote.set(names[end.peer() as usize]);
        side.rx.begin_armed();
        lane.read_wake(end).store(1, Relaxed);
        let desc = DESCS.take().unwrap();
        desc.begin(Kind::Tcp, fd, libc::AF_INET as u32, life::forks());
        desc.become_lane(lane, side, end);
        table::set(fd, Some(desc)).unwrap();
    }
    (fds, names)
}

/// A lane whose server's end was demoted: the client's fd, what the program holds, and the relay's process.
fn relayed() -> (i32, TcpStream, Relay) {
    let ([client, server], _) = lane_pair();
    let relay = demote(server);
    (client, adopt(server), relay)
}

fn demote(fd: i32) -> Relay {
    let inode = inode(fd);
    life::demote(fd).unwrap();
    Relay::of(inode)
}

/// The program's view of a demoted fd.
fn adopt(fd: i32) -> TcpStream {
    table::set(fd, None).unwrap();
    // SAFETY: the fd is the test's.
    unsafe { TcpStream::from_raw_fd(fd) }
}

fn inode(fd: i32) -> u64 {
    beeline_shm::memfd::identify(fd).unwrap().0.inode
}

/// A relay's process.
#[derive(Clone, Copy)]
struct Relay(u32);

impl Relay {
    /// The relay that holds the socket with this inode.
    fn of(inode: u64) -> Relay {
        let wanted = format!("socket:[{inode}]");
        let processes = std::fs::read_dir("/proc").unwrap().flatten();
        let holds = |pid: &u32| {
            let Ok(fds) = std::fs::read_dir(format!("/proc/{pid}/fd")) else { return false };
            let named =
                std::fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name == "beeline-relay\n");
            named && fds.flatten().any(|fd| std::fs::read_link(fd.path()).is_ok_and(|to| to.to_str() == Some(&wanted)))
        };
        let mut found = processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).filter(holds);
        Relay(found.next().expect("a relay holds the anchor"))
    }

    fn lives(self) -> bool {
        std::fs::read_to_string(format!("/proc/{}/comm", self.0)).is_ok_and(|name| name == "beeline-relay\n")
            && !self.stat().starts_with('Z')
    }

    /// What follows the name in the process' stat.
    fn stat(self) -> String {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.0)).unwrap_or_default();
        stat.rsplit(") ").next().unwrap_or_default().to_owned()
    }

    /// A field of the stat by its number in proc(5).
    fn field(self, number: usize) -> u64 {
        self.stat().split(' ').nth(number - 3).unwrap().parse().unwrap()
    }

    fn ends(self) {
        let patience = Instant::now() + Duration::from_secs(10);
        while self.lives() {
            assert!(Instant::now() < patience, "the relay {} lives on", self.0);
            std::thread::yield_now();
        }
    }
}

fn send(fd: i32, bytes: &[u8]) -> Outcome {
    // SAFETY: a live slice.
    unsafe { io::send(fd, bytes.as_ptr(), bytes.len(), libc::MSG_NOSIGNAL) }
}

fn recv(fd: i32, bytes: &mut [u8]) -> Outcome {
    // SAFETY: a live slice.
    unsafe { io::recv(fd, bytes.as_mut_ptr(), bytes.len(), 0) }
}

/// Reads until the end of the stream.
fn rest(fd: i32) -> Vec<u8> {
    let mut all = Vec::new();
    let mut bytes = [0; 4096];
    loop {
        match recv(fd, &mut bytes) {
            Outcome::Done(0) => return all,
            Outcome::Done(count) => all.extend_from_slice(&bytes[..count as usize]),
            other => panic!("{other:?} after {} bytes", all.len()),
        }
    }
}

fn close(fd: i32) {
    assert_eq!(life::close(fd), Outcome::OK);
}

/// Bytes that the peer has not read (`SIOCOUTQ`).
fn unread(fd: i32) -> i32 {
    let mut bytes = -1;
    // SAFETY: room for an int.
    let asked = unsafe { life::ioctl(fd, libc::TIOCOUTQ, (&raw mut bytes) as usize) };
    assert_eq!(asked, Outcome::OK);
    bytes
}

#[test]
fn a_demoted_connection_goes_on_under_its_own_addresses() {
    let _turn = turn();
    let ([client, server], [from, to]) = lane_pair();
    assert_eq!(send(client, b"sent before"), Outcome::Done(11));
    assert_eq!(send(server, b"greeting"), Outcome::Done(8));
    let relay = demote(server);
    let mut program = adopt(server);
    assert_eq!((program.local_addr().unwrap(), program.peer_addr().unwrap()), (to, from));
    let mut bytes = [0; 64];
    program.read_exact(&mut bytes[..11]).unwrap();
    assert_eq!(&bytes[..11], b"sent before");
    program.write_all(b", answer").unwrap();
    drop(program);
    assert_eq!(rest(client), b"greeting, answer");
    close(client);
    relay.ends();
}

#[test]
fn either_end_of_a_lane_can_be_demoted_and_both() {
    let _turn = turn();
    let ([client, server], [from, to]) = lane_pair();
    let relays = [demote(client), demote(server)];
    let (mut client, mut server) = (adopt(client), adopt(server));
    assert_eq!((client.local_addr().unwrap(), client.peer_addr().unwrap()), (from, to));
    // There cannot be a second connection of this name.
    assert_eq!((server.local_addr().unwrap().ip(), server.peer_addr().unwrap()), (to.ip(), from));
    client.write_all(b"there").unwrap();
    let mut bytes = [0; 5];
    server.read_exact(&mut bytes).unwrap();
    server.write_all(b"again").unwrap();
    client.read_exact(&mut bytes).unwrap();
    assert_eq!(&bytes, b"again");
    drop(client);
    assert_eq!(server.read(&mut bytes).unwrap(), 0);
    drop(server);
    relays.into_iter().for_each(Relay::ends);
}

#[test]
fn half_closes_are_passed_on_and_the_other_half_goes_on() {
    let _turn = turn();
    let (client, mut program, relay) = relayed();
    assert_eq!(send(client, b"question"), Outcome::Done(8));
    assert_eq!(io::shutdown(client, libc::SHUT_WR), Outcome::OK);
    let mut question = String::new();
    program.read_to_string(&mut question).unwrap();
    assert_eq!(question, "question");
    program.write_all(b"answer").unwrap();
    assert!(relay.lives());
    program.shutdown(std::net::Shutdown::Write).unwrap();
    assert_eq!(rest(client), b"answer");
    relay.ends();
    close(client);

    let (client, mut program, relay) = relayed();
    program.write_all(b"said all").unwrap();
    program.shutdown(std::net::Shutdown::Write).unwrap();
    assert_eq!(rest(client), b"said all");
    assert_eq!(send(client, b"fine"), Outcome::Done(4));
    let mut bytes = [0; 4];
    program.read_exact(&mut bytes).unwrap();
    close(client);
    assert_eq!(program.read(&mut bytes).unwrap(), 0);
    relay.ends();
}

#[test]
fn a_shut_down_half_is_shut_down_after_the_demotion() {
    let _turn = turn();
    let ([client, server], _) = lane_pair();
    assert_eq!(send(server, b"bye"), Outcome::Done(3));
    assert_eq!(io::shutdown(server, libc::SHUT_WR), Outcome::OK);
    let relay = demote(server);
    let mut program = adopt(server);
    assert_eq!(program.write(b"x").unwrap_err().kind(), std::io::ErrorKind::BrokenPipe);
    assert_eq!(rest(client), b"bye");
    assert_eq!(send(client, b"heard"), Outcome::Done(5));
    close(client);
    let mut heard = String::new();
    program.read_to_string(&mut heard).unwrap();
    assert_eq!(heard, "heard");
    relay.ends();
}

fn abort(socket: &TcpStream) {
    let linger = libc::linger { l_onoff: 1, l_linger: 0 };
    kernel::setsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, libc::SO_LINGER, &linger).unwrap();
}

#[test]
fn resets_are_passed_on_after_the_bytes_before_them() {
    let _turn = turn();
    // By the program: with SO_LINGER zero, and by closing with bytes unread.
    for unread in [false, true] {
        let (client, mut program, relay) = relayed();
        program.write_all(b"last words").unwrap();
        if unread {
            assert_eq!(send(client, b"never read"), Outcome::Done(10));
            while program.peek(&mut [0]).unwrap() == 0 {}
        } else {
            abort(&program);
        }
        drop(program);
        let mut bytes = [0; 64];
        assert_eq!(recv(client, &mut bytes), Outcome::Done(10));
        assert_eq!(recv(client, &mut bytes), Outcome::fail(libc::ECONNRESET));
        assert_eq!(send(client, b"x"), Outcome::fail(libc::EPIPE));
        relay.ends();
        close(client);
    }
    // By the peer: with SO_LINGER zero, and by closing with bytes unread.
    for unread in [false, true] {
        let (client, mut program, relay) = relayed();
        let side = table::get(client).unwrap().side();
        assert_eq!(send(client, b"last words"), Outcome::Done(10));
        let mut bytes = [0; 64];
        assert_eq!(program.peek(&mut bytes).unwrap(), 10);
        if unread {
            program.write_all(b"never read").unwrap();
            while io_unread(client) < 10 {
                std::thread::yield_now();
            }
        } else {
            side.linger.store(1, Relaxed);
        }
        close(client);
        assert_eq!(program.read(&mut bytes).unwrap(), 10);
        assert_eq!(program.read(&mut bytes).unwrap_err().kind(), std::io::ErrorKind::ConnectionReset);
        relay.ends();
    }
}

#[test]
fn urgent_bytes_stay_urgent_and_in_their_place() {
    let _turn = turn();
    let (client, mut program, relay) = relayed();
    let urgent = |fd, text: &[u8]| {
        // SAFETY: a live slice.
        unsafe { io::send(fd, text.as_ptr(), text.len(), libc::MSG_OOB) }
    };
    assert_eq!(urgent(client, b"ab!"), Outcome::Done(3));
    assert_eq!(send(client, b"cd"), Outcome::Done(2));
    let take = |fd: i32| {
        let mut byte = 0u8;
        // SAFETY: room for a byte.
        let got = unsafe { libc::recv(fd, (&raw mut byte).cast(), 1, libc::MSG_OOB) };
        (got == 1).then_some(byte)
    };
    let patience = Instant::now() + Duration::from_secs(10);
    let byte = loop {
        match take(program.as_raw_fd()) {
            Some(byte) => break byte,
            None => assert!(Instant::now() < patience),
        }
    };
    assert_eq!(byte, b'!');
    let mut bytes = [0; 8];
    assert_eq!(program.read(&mut bytes).unwrap(), 2);
    program.read_exact(&mut bytes[2..4]).unwrap();
    assert_eq!(&bytes[..4], b"abcd");
    // SAFETY: a live slice.
    assert_eq!(unsafe { libc::send(program.as_raw_fd(), b"xy?".as_ptr().cast(), 3, libc::MSG_OOB) }, 3);
    program.write_all(b"z").unwrap();
    // Two and the byte behind the urgent one, which is not among them.
    while io_unread(client) < 2 {
        assert!(Instant::now() < patience);
    }
    assert_eq!(recv(client, &mut bytes), Outcome::Done(2));
    let mut byte = [0];
    // SAFETY: room for a byte.
    let mut taken = || unsafe { io::recv(client, byte.as_mut_ptr(), 1, libc::MSG_OOB) };
    while taken() != Outcome::Done(1) {
        assert!(Instant::now() < patience);
    }
    assert_eq!(&byte, b"?");
    assert_eq!(recv(client, &mut bytes), Outcome::Done(1));
    assert_eq!(bytes[0], b'z');
    drop(program);
    close(client);
    relay.ends();
}

fn io_unread(fd: i32) -> i32 {
    let mut count = 0i32;
    // SAFETY: room for an int.
    assert_eq!(unsafe { life::ioctl(fd, libc::FIONREAD, (&raw mut count) as usize) }, Outcome::OK);
    count
}

#[test]
fn sends_to_an_end_that_is_closed_reset_the_sender() {
    let _turn = turn();
    let (client, mut program, relay) = relayed();
    close(client);
    let mut byte = [0];
    assert_eq!(program.read(&mut byte).unwrap(), 0);
    program.write_all(b"first is taken").unwrap();
    relay.ends();
    assert_eq!(program.write(b"x").unwrap_err().kind(), std::io::ErrorKind::BrokenPipe);

    let (client, program, relay) = relayed();
    drop(program);
    assert_eq!(rest(client), b"");
    assert_eq!(send(client, b"first is taken"), Outcome::Done(14));
    relay.ends();
    assert_eq!(send(client, b"x"), Outcome::fail(libc::EPIPE));
    close(client);
}

/// What the kernel does to the fds of a killed process.
fn kill(fd: i32) {
    // SAFETY: a plain number.
    assert_eq!(unsafe { libc::syscall(libc::SYS_close, fd) }, 0);
}

fn ended(program: &mut TcpStream) -> Vec<u8> {
    let mut bytes = Vec::new();
    program.read_to_end(&mut bytes).unwrap();
    bytes
}

#[test]
fn a_killed_peer_is_an_end_of_stream_or_a_reset() {
    let _turn = turn();
    // At rest.
    let (client, mut program, relay) = relayed();
    kill(client);
    assert_eq!(ended(&mut program), b"");
    drop(program);
    relay.ends();
    // With bytes on their way from it.
    let (client, mut program, relay) = relayed();
    assert_eq!(send(client, b"last"), Outcome::Done(4));
    kill(client);
    assert_eq!(ended(&mut program), b"last");
    drop(program);
    relay.ends();
    // With bytes for it that it will never read.
    let (client, mut program, relay) = relayed();
    program.write_all(b"unread").unwrap();
    while io_unread(client) < 6 {
        std::thread::yield_now();
    }
    kill(client);
    assert_eq!(program.read(&mut [0]).unwrap_err().kind(), std::io::ErrorKind::ConnectionReset);
    relay.ends();
    // After the end of the stream towards it.
    let (client, mut program, relay) = relayed();
    program.write_all(b"read").unwrap();
    program.shutdown(std::net::Shutdown::Write).unwrap();
    assert_eq!(rest(client), b"read");
    kill(client);
    assert_eq!(ended(&mut program), b"");
    relay.ends();
    // After the end of its own stream.
    let (client, mut program, relay) = relayed();
    assert_eq!(io::shutdown(client, libc::SHUT_WR), Outcome::OK);
    assert_eq!(ended(&mut program), b"");
    kill(client);
    // The second write at the latest finds out, as with TCP.
    while program.write_all(b"more").is_ok() {
        std::thread::yield_now();
    }
    relay.ends();
    // With a program that does not read, and more than any buffer holds.
    let (client, program, relay) = relayed();
    let bytes = vec![7; 1 << 16];
    while matches!(dont_wait(client, &bytes), Outcome::Done(_)) {}
    kill(client);
    drop(program);
    relay.ends();
}

fn dont_wait(fd: i32, bytes: &[u8]) -> Outcome {
    // SAFETY: a live slice.
    unsafe { io::send(fd, bytes.as_ptr(), bytes.len(), libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT) }
}

/// The bytes of a stream whose every part can be told from every other.
fn fill(bytes: &mut [u8], from: u64) {
    for (index, word) in bytes.chunks_mut(8).enumerate() {
        let value = (from / 8 + index as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15).to_le_bytes();
        word.copy_from_slice(&value[..word.len()]);
    }
}

/// Bytes of the long streams.
const LONG: u64 = 1 << 30;
const PART: usize = 1 << 16;

/// Checks a stream of [`LONG`] bytes that comes in parts of any size.
fn check(mut read: impl FnMut(&mut [u8]) -> usize) {
    let (mut bytes, mut expected) = (vec![0u8; PART], vec![0u8; PART]);
    let mut filled = 0;
    let mut got = 0u64;
    loop {
        let count = read(&mut bytes[filled..]);
        filled += count;
        if filled == PART || count == 0 {
            fill(&mut expected, got);
            assert!(bytes[..filled] == expected[..filled], "within {PART} bytes after {got}");
            got += filled as u64;
            filled = 0;
        }
        if count == 0 {
            break;
        }
    }
    assert_eq!(got, LONG);
}

fn write_long(mut write: impl FnMut(&[u8])) {
    let mut bytes = vec![0u8; PART];
    for part in 0..LONG / PART as u64 {
        fill(&mut bytes, part * PART as u64);
        write(&bytes);
    }
}

fn send_all(fd: i32, mut bytes: &[u8]) {
    while !bytes.is_empty() {
        match send(fd, bytes) {
            Outcome::Done(count) => bytes = &bytes[count as usize..],
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn a_gibibyte_each_way_arrives_as_it_was() {
    let _turn = turn();
    let (client, program, relay) = relayed();
    let mut writer = program.try_clone().unwrap();
    let threads = [
        std::thread::spawn(move || {
            write_long(|bytes| writer.write_all(bytes).unwrap());
            writer.shutdown(std::net::Shutdown::Write).unwrap();
        }),
        std::thread::spawn(move || {
            write_long(|bytes| send_all(client, bytes));
            assert_eq!(io::shutdown(client, libc::SHUT_WR), Outcome::OK);
        }),
        std::thread::spawn(move || {
            check(|bytes| match recv(client, bytes) {
                Outcome::Done(count) => count as usize,
                other => panic!("{other:?}"),
            });
        }),
    ];
    let mut reader = program;
    check(|bytes| reader.read(bytes).unwrap());
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    relay.ends();
    close(client);
}

#[test]
fn a_relay_is_a_stranger_that_keeps_nothing() {
    let _turn = turn();
    // Memory that a relay must not keep alive.
    let ballast = vec![1u8; 64 << 20];
    let (client, program, relay) = relayed();
    // SAFETY: no status is asked for.
    assert_eq!(unsafe { libc::waitpid(-1, core::ptr::null_mut(), libc::WNOHANG | libc::__WALL) }, -1);
    assert_eq!(std::io::Error::last_os_error().raw_os_error(), Some(libc::ECHILD));
    // Parent, group, session, terminal.
    assert_ne!(relay.field(4), u64::from(std::process::id()));
    assert_eq!([relay.field(5), relay.field(6), relay.field(7)], [u64::from(relay.0), u64::from(relay.0), 0]);
    assert_eq!(std::fs::read_link(format!("/proc/{}/cwd", relay.0)).unwrap().to_str(), Some("/"));
    let patience = Instant::now() + Duration::from_secs(10);
    let anonymous = || {
        let status = std::fs::read_to_string(format!("/proc/{}/status", relay.0)).unwrap();
        let line = status.lines().find(|line| line.starts_with("RssAnon")).unwrap();
        line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap()
    };
    // While it gives memory back it has the list of mappings open.
    let fds = || std::fs::read_dir(format!("/proc/{}/fd", relay.0)).unwrap().count();
    while anonymous() > 1024 || fds() != 3 {
        assert!(Instant::now() < patience, "{} KiB, {} descriptors", anonymous(), fds());
        std::thread::yield_now();
    }
    drop((ballast, program));
    close(client);
    relay.ends();
}

#[test]
fn a_process_that_adopts_orphans_does_not_see_its_relay() {
    let _turn = turn();
    let ([client, server], _) = lane_pair();
    let anchor = inode(server);
    let child = fork(|| {
        // SAFETY: plain numbers; no status is asked for.
        let quiet = unsafe {
            libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1) == 0
                && life::demote(server).is_ok()
                && libc::waitpid(-1, core::ptr::null_mut(), libc::WNOHANG) == -1
        };
        let alone = std::io::Error::last_os_error().raw_os_error() == Some(libc::ECHILD);
        assert_eq!(any_send(server, if quiet && alone { b"y" } else { b"n" }), 1);
        any_close(client);
        // SAFETY: pause(2).
        unsafe { libc::pause() };
    });
    any_close(server);
    let mut answer = [0];
    assert_eq!(recv(client, &mut answer), Outcome::Done(1));
    assert_eq!(&answer, b"y");
    let relay = Relay::of(anchor);
    // SAFETY: our own child.
    assert_eq!(unsafe { libc::kill(child, libc::SIGKILL) }, 0);
    wait_for(child);
    assert_eq!(rest(client), b"");
    close(client);
    relay.ends();
}

#[test]
fn idle_relays_take_no_time() {
    let _turn = turn();
    let mut all: Vec<_> = (0..100).map(|_| relayed()).collect();
    for (client, program, _) in &mut all {
        program.write_all(b"x").unwrap();
        assert_eq!(recv(*client, &mut [0; 8]), Outcome::Done(1));
    }
    // Each is asleep once it has spun for nothing.
    std::thread::sleep(Duration::from_millis(200));
    let used = || all.iter().map(|(_, _, relay)| relay.field(14) + relay.field(15)).sum::<u64>();
    let switches = || all.iter().map(|(_, _, relay)| voluntary_switches(*relay)).sum::<u64>();
    let before = (used(), switches());
    std::thread::sleep(Duration::from_millis(1000));
    assert_eq!((used(), switches()), before);
    for (client, program, relay) in all {
        drop(program);
        close(client);
        relay.ends();
    }
}

fn voluntary_switches(relay: Relay) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", relay.0)).unwrap();
    let line = status.lines().find(|line| line.starts_with("voluntary_ctxt")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

/// Runs `f` in a child that shares everything that is open, as a program that forks.
fn fork(f: impl FnOnce()) -> i32 {
    life::start();
    // SAFETY: the child calls what `f` does, which takes no lock of the test's other threads, and ends.
    match unsafe { libc::fork() } {
        0 => {
            f();
            // SAFETY: ends the process.
            unsafe { libc::_exit(0) }
        }
        pid => pid,
    }
}

fn wait_for(pid: i32) -> i32 {
    let mut status = -1;
    // SAFETY: room for a status.
    assert_eq!(unsafe { libc::waitpid(pid, &raw mut status, 0) }, pid);
    status
}

/// What a hook does: calls the library, and the kernel if it is told to.
fn hooked(fd: i32, ours: Outcome, real: impl FnOnce() -> isize) -> isize {
    match ours {
        Outcome::Done(value) => value,
        Outcome::Kernel => match life::refusal(fd) {
            None => real(),
            Some(_) => -1,
        },
        Outcome::Fail(_) => -1,
    }
}

fn any_send(fd: i32, bytes: &[u8]) -> isize {
    // SAFETY: a live slice.
    hooked(fd, send(fd, bytes), || unsafe { libc::send(fd, bytes.as_ptr().cast(), bytes.len(), libc::MSG_NOSIGNAL) })
}

fn any_recv(fd: i32, bytes: &mut [u8]) -> isize {
    let ours = recv(fd, bytes);
    // SAFETY: a live slice.
    hooked(fd, ours, || unsafe { libc::recv(fd, bytes.as_mut_ptr().cast(), bytes.len(), 0) })
}

fn any_close(fd: i32) {
    if life::close(fd) == Outcome::Kernel {
        kill(fd);
    }
}

#[test]
fn a_parent_goes_on_after_what_its_child_said_over_the_relay() {
    let _turn = turn();
    let ([client, server], _) = lane_pair();
    let anchor = inode(server);
    assert_eq!(send(server, b"parent "), Outcome::Done(7));
    let child = fork(|| {
        any_close(client);
        if life::demote(server).is_err() || any_send(server, b"child ") != 6 {
            // SAFETY: ends the process.
            unsafe { libc::_exit(1) }
        }
    });
    assert_eq!(wait_for(child), 0);
    let relay = Relay::of(anchor);
    assert_eq!(any_send(server, b"parent again"), 12);
    assert_eq!(send(client, b"heard"), Outcome::Done(5));
    let mut bytes = [0; 64];
    assert_eq!(any_recv(server, &mut bytes), 5);
    any_close(server);
    assert_eq!(rest(client), b"parent child parent again");
    close(client);
    relay.ends();
}

#[test]
fn sharers_that_close_or_die_do_not_keep_the_connection() {
    let _turn = turn();
    for dies in [false, true] {
        let ([client, server], _) = lane_pair();
        let anchor = inode(server);
        // SAFETY: pause(2).
        let other = fork(|| unsafe {
            libc::pause();
        });
        let child = fork(|| {
            any_close(client);
            let demoted = life::demote(server).is_ok() && any_send(server, b"said") == 4;
            // SAFETY: pause(2), and the end of the process.
            unsafe {
                libc::pause();
                libc::_exit(i32::from(!demoted))
            }
        });
        let mut bytes = [0; 4];
        assert_eq!(recv(client, &mut bytes), Outcome::Done(4));
        let relay = Relay::of(anchor);
        if !dies {
            any_close(server);
        }
        for process in [child, other] {
            assert!(relay.lives());
            // SAFETY: our own child.
            assert_eq!(unsafe { libc::kill(process, libc::SIGKILL) }, 0);
            assert_eq!(wait_for(process), libc::SIGKILL);
        }
        if dies {
            // The last holder has never looked at it.
            assert!(relay.lives());
            any_close(server);
        }
        assert_eq!(rest(client), b"");
        close(client);
        relay.ends();
    }
}

#[test]
fn a_relay_outlives_whoever_made_it() {
    let _turn = turn();
    let ([client, server], _) = lane_pair();
    let anchor = inode(server);
    let demoter = fork(|| {
        any_close(client);
        if life::demote(server).is_err() {
            return;
        }
        // The program that holds the socket is a child of the demoter.
        // SAFETY: fork(2); the child reads and writes what it has.
        if unsafe { libc::fork() } == 0 {
            let mut bytes = [0; 64];
            loop {
                let got = any_recv(server, &mut bytes);
                if got <= 0 || any_send(server, &bytes[..got as usize]) != got {
                    return;
                }
            }
        }
        any_close(server);
        // SAFETY: pause(2).
        unsafe { libc::pause() };
    });
    any_close(server);
    let echo = |text: &[u8]| {
        assert_eq!(send(client, text), Outcome::Done(text.len() as isize));
        let mut bytes = vec![0; text.len()];
        let mut got = 0;
        while got < bytes.len() {
            match recv(client, &mut bytes[got..]) {
                Outcome::Done(count @ 1..) => got += count as usize,
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(bytes, text);
    };
    echo(b"with its maker");
    let relay = Relay::of(anchor);
    // SAFETY: our own child.
    assert_eq!(unsafe { libc::kill(demoter, libc::SIGKILL) }, 0);
    wait_for(demoter);
    echo(b"and without");
    assert_eq!(io::shutdown(client, libc::SHUT_WR), Outcome::OK);
    assert_eq!(rest(client), b"");
    close(client);
    relay.ends();
}

#[test]
fn a_killed_relay_is_an_end_for_both() {
    let _turn = turn();
    let (client, mut program, relay) = relayed();
    assert_eq!(send(client, b"x"), Outcome::Done(1));
    program.read_exact(&mut [0]).unwrap();
    // The program has the byte before the relay has noted that it is out of the ring; until then a death is a reset.
    while unread(client) != 0 {
        std::thread::yield_now();
    }
    // SAFETY: the relay is ours.
    assert_eq!(unsafe { libc::kill(relay.0 as i32, libc::SIGKILL) }, 0);
    relay.ends();
    assert_eq!(ended(&mut program), b"");
    assert_eq!(rest(client), b"");
    close(client);
}

#[test]
fn sleepers_of_another_process_wake_for_what_comes_over_the_relay() {
    let _turn = turn();
    for by_epoll in [false, true] {
        let ([client, server], _) = lane_pair();
        let anchor = inode(server);
        let [mut go, mut ready] = [0; 2].map(|_| std::os::unix::net::UnixStream::pair().unwrap());
        let child = fork(|| {
            any_close(client);
            go.1.read_exact(&mut [0]).unwrap();
            let done = life::demote(server).is_ok();
            ready.1.write_all(&[u8::from(done)]).unwrap();
            // The parent is to have the news, not this process.
            // SAFETY: pause(2).
            unsafe { libc::pause() };
        });
        let set = match beeline_sockets::epoll::create(0) {
            Outcome::Done(set) => set as i32,
            other => panic!("{other:?}"),
        };
        let mut event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: 7 };
        // SAFETY: a live event.
        let added = unsafe { beeline_sockets::epoll::ctl(set, libc::EPOLL_CTL_ADD, server, &raw mut event) };
        assert_eq!(added, Outcome::OK);
        let sleeper = std::thread::spawn(move || {
            if by_epoll {
                let mut event = libc::epoll_event { events: 0, u64: 0 };
                // SAFETY: room for an event.
                let waited = unsafe { beeline_sockets::epoll::wait(set, &raw mut event, 1, -1) };
                assert_eq!(waited, Outcome::Done(1));
            }
            let mut bytes = [0; 64];
            let got = any_recv(server, &mut bytes);
            bytes[..got as usize].to_vec()
        });
        // Most probably it sleeps by then; the outcome is the same if not.
        std::thread::sleep(Duration::from_millis(50));
        go.0.write_all(b"x").unwrap();
        let mut done = [0];
        ready.0.read_exact(&mut done).unwrap();
        assert_eq!(done, [1]);
        let relay = Relay::of(anchor);
        std::thread::sleep(Duration::from_millis(50));
        assert_eq!(send(client, b"news"), Outcome::Done(4));
        assert_eq!(sleeper.join().unwrap(), b"news");
        // SAFETY: our own child.
        assert_eq!(unsafe { libc::kill(child, libc::SIGKILL) }, 0);
        wait_for(child);
        any_close(set);
        any_close(server);
        close(client);
        relay.ends();
    }
}
