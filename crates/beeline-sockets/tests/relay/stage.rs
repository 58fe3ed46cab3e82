//! What every test needs: lanes, relays, the calls on both ends.

use std::io::Read;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::FromRawFd;
use std::sync::atomic::{AtomicU16, Ordering::Relaxed};
use std::time::{Duration, Instant};

use beeline_lane::{End, LaneMemory};
use beeline_shm::SideMemory;
use beeline_sockets::desc::{DESCS, Kind};
use beeline_sockets::side::SideState;
use beeline_sockets::{Outcome, io, life, meet, table};

/// Relays are told apart by their sockets, and some tests count processes or time.
static ONE_AT_A_TIME: std::sync::Mutex<()> = std::sync::Mutex::new(());

pub fn turn() -> std::sync::MutexGuard<'static, ()> {
    ONE_AT_A_TIME.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// Addresses of two ports that nobody has, not even a connection that ended within the last minute: a relay could not
/// listen there.
fn addresses() -> [SocketAddr; 2] {
    static PORT: AtomicU16 = AtomicU16::new(12_100);
    loop {
        let port = PORT.fetch_add(2, Relaxed);
        let both = [port, port + 1].map(|port| SocketAddr::from(([127, 0, 0, 1], port)));
        if both.iter().all(|&address| TcpListener::bind(address).is_ok()) {
            return both;
        }
    }
}

/// A connection from there that is over: for a minute its port is nobody else's.
pub fn leave_behind(from: SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let to = listener.local_addr().unwrap();
    // SAFETY: a fresh socket, addresses of its family with their lengths.
    let client = unsafe {
        let socket = libc::socket(libc::AF_INET, libc::SOCK_STREAM, 0);
        for (call, address) in [(libc::bind as Call, from), (libc::connect as Call, to)] {
            let mut name: libc::sockaddr_in = std::mem::zeroed();
            name.sin_family = libc::AF_INET as _;
            name.sin_port = address.port().to_be();
            name.sin_addr.s_addr = u32::from(std::net::Ipv4Addr::LOCALHOST).to_be();
            assert_eq!(call(socket, (&raw const name).cast(), size_of_val(&name) as u32), 0, "{address}");
        }
        TcpStream::from_raw_fd(socket)
    };
    let (mut server, _) = listener.accept().unwrap();
    drop(client);
    assert_eq!(server.read(&mut [0]).unwrap(), 0);
}

type Call = unsafe extern "C" fn(i32, *const libc::sockaddr, u32) -> i32;

/// Whether this process has `CAP_NET_ADMIN`.
pub fn may_administer_network() -> bool {
    const CAP_NET_ADMIN: u32 = 12;
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let capabilities = status.lines().find_map(|line| line.strip_prefix("CapEff:\t")).unwrap();
    u64::from_str_radix(capabilities, 16).unwrap() & 1 << CAP_NET_ADMIN != 0
}

/// The fds of a fresh lane, client's and server's, with the addresses of both.
pub fn lane_pair() -> ([i32; 2], [SocketAddr; 2]) {
    let mut fds = [-1; 2];
    // SAFETY: room for two descriptors.
    assert_eq!(unsafe { libc::socketpair(libc::AF_UNIX, libc::SOCK_STREAM, 0, fds.as_mut_ptr()) }, 0);
    let (lane, _) = LaneMemory::create(1 << 20).unwrap();
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
        meet::begin_bare(desc, lane, side, end);
        table::set(fd, Some(desc)).unwrap();
    }
    (fds, names)
}

/// A lane whose server's end was demoted: the client's fd, what the program holds, and the relay's process.
pub fn relayed() -> (i32, TcpStream, Relay) {
    let ([client, server], _) = lane_pair();
    let relay = demote(server);
    (client, adopt(server), relay)
}

pub fn demote(fd: i32) -> Relay {
    let inode = inode(fd);
    life::demote_number(fd).unwrap();
    Relay::of(inode)
}

/// The program's view of a demoted fd.
pub fn adopt(fd: i32) -> TcpStream {
    table::set(fd, None).unwrap();
    // SAFETY: the fd is the test's.
    unsafe { TcpStream::from_raw_fd(fd) }
}

pub fn inode(fd: i32) -> u64 {
    beeline_shm::memfd::identify(fd).unwrap().0.inode
}

/// A relay's process.
#[derive(Clone, Copy)]
pub struct Relay(pub u32);

impl Relay {
    /// The relay that holds the socket with this inode.
    pub fn of(inode: u64) -> Relay {
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

    pub fn lives(self) -> bool {
        std::fs::read_to_string(format!("/proc/{}/comm", self.0)).is_ok_and(|name| name == "beeline-relay\n")
            && !self.stat().starts_with('Z')
    }

    /// What follows the name in the process' stat.
    pub fn stat(self) -> String {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.0)).unwrap_or_default();
        stat.rsplit(") ").next().unwrap_or_default().to_owned()
    }

    /// A field of the stat by its number in proc(5).
    pub fn field(self, number: usize) -> u64 {
        self.stat().split(' ').nth(number - 3).unwrap().parse().unwrap()
    }

    /// Waits until it is asleep whenever one looks.
    pub fn sleeps(self) {
        let patience = Instant::now() + Duration::from_secs(10);
        let mut looks = 0;
        while looks < 20 {
            assert!(Instant::now() < patience, "the relay {} does not sleep", self.0);
            looks = if self.stat().starts_with('S') { looks + 1 } else { 0 };
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    pub fn ends(self) {
        let patience = Instant::now() + Duration::from_secs(10);
        while self.lives() {
            assert!(Instant::now() < patience, "the relay {} lives on", self.0);
            std::thread::yield_now();
        }
    }
}

pub fn send(fd: i32, bytes: &[u8]) -> Outcome {
    // SAFETY: a live slice.
    unsafe { io::send(fd, bytes.as_ptr(), bytes.len(), libc::MSG_NOSIGNAL) }
}

pub fn recv(fd: i32, bytes: &mut [u8]) -> Outcome {
    // SAFETY: a live slice.
    unsafe { io::recv(fd, bytes.as_mut_ptr(), bytes.len(), 0) }
}

/// Reads until the end of the stream.
pub fn rest(fd: i32) -> Vec<u8> {
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

pub fn close(fd: i32) {
    assert_eq!(life::close(fd), Outcome::OK);
}

pub fn io_unread(fd: i32) -> i32 {
    let mut count = 0i32;
    // SAFETY: room for an int.
    assert_eq!(unsafe { life::ioctl(fd, libc::FIONREAD, (&raw mut count) as usize) }, Outcome::OK);
    count
}

/// What the kernel does to the fds of a killed process.
pub fn kill(fd: i32) {
    // SAFETY: a plain number.
    assert_eq!(unsafe { libc::syscall(libc::SYS_close, fd) }, 0);
}

pub fn ended(program: &mut TcpStream) -> Vec<u8> {
    let mut bytes = Vec::new();
    program.read_to_end(&mut bytes).unwrap();
    bytes
}
