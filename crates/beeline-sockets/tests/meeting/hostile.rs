//! Clients that break the rules at the door, and doors that are not what they claim to be. None of them may hold up
//! or hurt anybody else.

use beeline_lane::{End, LaneMemory, flags};
use beeline_sockets::Errno;
use beeline_sockets::kernel::{self, SockAddr};
use beeline_wire::{ConnName, DoorName, Endpoint, Hello};
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

use crate::stage::{Guest, Role, visit};

struct Target {
    server: Guest,
    address: String,
    cookie: u64,
}

impl Target {
    fn start() -> Target {
        let mut server = Role::new("server").set("ADDRESS", "127.0.0.1:0").set("SAY_RESETS", 1).start();
        let address = server.line();
        let cookie = server.number();
        visit(&address, 1, "first", true);
        Target { server, address, cookie }
    }

    fn socket() -> OwnedFd {
        // SAFETY: a fresh descriptor.
        unsafe {
            OwnedFd::from_raw_fd(
                kernel::socket(libc::AF_UNIX, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0).unwrap() as RawFd
            )
        }
    }

    fn knock(&self, anchor: &OwnedFd) {
        let door = SockAddr::abstract_unix(DoorName::encode(self.cookie).as_bytes()).unwrap();
        kernel::connect(anchor.as_raw_fd(), &door).unwrap();
    }

    /// A client of this name at the door.
    fn client(&self, client: &str, server: Option<&str>) -> OwnedFd {
        let server: SocketAddr = server.unwrap_or(&self.address).parse().unwrap();
        let name = ConnName { client: Endpoint::new(client.parse().unwrap()), server: Endpoint::new(server) };
        let anchor = Self::socket();
        kernel::bind(anchor.as_raw_fd(), &SockAddr::abstract_unix(name.encode().as_bytes()).unwrap()).unwrap();
        self.knock(&anchor);
        anchor
    }

    /// The others are served as ever, over lanes.
    fn still_serves(&self) {
        let (_, carried) = visit(&self.address, 2, "well", true);
        assert_eq!(carried.accelerated, 2, "{carried}");
    }

    /// Waits until the server has sent the client away, which shows as end of file.
    fn is_sent_away(anchor: &OwnedFd) {
        let mut byte = [0];
        // ECONNRESET when it left our hello unread.
        assert!(matches!(kernel::recv(anchor.as_raw_fd(), &mut byte, 0), Ok(0) | Err(_)));
    }

    /// A client has broken the rules: the server has accepted it as one that was reset, and goes on.
    fn poisoned_by(mut self, poison: &str) {
        assert_eq!(self.server.line(), "connection reset");
        self.still_serves();
        let carried = self.server.carried();
        assert_eq!(carried.poisoned.get(poison), Some(&1), "{carried}");
        self.server.end();
    }
}

/// Sends bytes with descriptors attached.
fn send(anchor: &OwnedFd, bytes: &[u8], descriptors: &[RawFd]) {
    let mut part = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    let mut control = [0u64; 160];
    // SAFETY: zeroed message, live parts, control space larger than the 253 descriptors that fit.
    unsafe {
        let mut message: libc::msghdr = std::mem::zeroed();
        message.msg_iov = &raw mut part;
        message.msg_iovlen = 1;
        if !descriptors.is_empty() {
            let length = size_of_val(descriptors) as u32;
            message.msg_control = control.as_mut_ptr().cast();
            message.msg_controllen = libc::CMSG_SPACE(length) as usize;
            let header = libc::CMSG_FIRSTHDR(&raw const message);
            (*header).cmsg_level = libc::SOL_SOCKET;
            (*header).cmsg_type = libc::SCM_RIGHTS;
            (*header).cmsg_len = libc::CMSG_LEN(length) as usize;
            std::ptr::copy_nonoverlapping(descriptors.as_ptr(), libc::CMSG_DATA(header).cast(), descriptors.len());
        }
        // A server that has already refused us for our name does not wait for more.
        let sent = kernel::sendmsg(anchor.as_raw_fd(), &message, libc::MSG_NOSIGNAL);
        assert!(matches!(sent, Ok(_) | Err(Errno(libc::EPIPE))), "{sent:?}");
    }
}

fn mapped_lane() -> (LaneMemory, OwnedFd, Hello) {
    let (memory, fd) = LaneMemory::create(1 << 16).unwrap();
    let (id, _) = beeline_shm::memfd::identify(fd.get()).unwrap();
    let hello =
        Hello { reuse: false, ring_bytes: 1 << 16, generation: 0, pid_hint: 1, lane_inode: id.inode, held: None };
    // SAFETY: a fresh descriptor.
    (memory, unsafe { OwnedFd::from_raw_fd(fd.give_away()) }, hello)
}

fn lane() -> (OwnedFd, Hello) {
    let (_, memfd, hello) = mapped_lane();
    (memfd, hello)
}

/// A server that has to have clients' sockets closed elsewhere again and again lets nobody in at its door any more.
#[test]
fn who_sends_sockets_again_and_again_has_the_door_shut() {
    let mut target = Target::start();
    let socket = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    for index in 0..9 {
        let client = target.client(&format!("127.0.0.1:{}", 2000 + index), None);
        send(&client, &lane().1.encode(), &[socket.as_raw_fd()]);
        assert_eq!(target.server.line(), "connection reset");
        Target::is_sent_away(&client);
    }
    let served = target.server.carried().accelerated;
    let (_, carried) = visit(&target.address, 2, "well", true);
    // The first finds the door open yet. If it says hello before the server looks, it counts a lane, too, before it
    // begins again.
    assert_eq!(carried.fallen_back.values().sum::<u64>(), 2, "{carried}");
    let carried = target.server.carried();
    assert_eq!(carried.accelerated, served, "{carried}");
    assert_eq!(carried.poisoned.get("hello_seals"), Some(&9), "{carried}");
    assert!(carried.fallen_back.contains_key("hostile_clients"), "{carried}");
    target.server.end();
}

#[test]
fn silent_clients_hold_up_nobody() {
    let target = Target::start();
    let silent: Vec<_> = (0..40).map(|index| target.client(&format!("127.0.0.1:{}", 2000 + index), None)).collect();
    target.still_serves();
    let (_, tcp) = visit(&target.address, 2, "well", false);
    assert_eq!(tcp.accelerated, 0);
    drop(silent);
    target.still_serves();
    target.server.end();
}

#[test]
fn a_client_that_speaks_late_is_served() {
    let target = Target::start();
    let anchor = target.client("127.0.0.1:2100", None);
    target.still_serves();
    let (memory, memfd, hello) = mapped_lane();
    send(&anchor, &hello.encode(), &[memfd.as_raw_fd()]);
    while memory.flags(End::Server) & flags::TAKEN == 0 {
        std::thread::yield_now();
    }
    // Until it leaves, the server has eyes for nobody else.
    drop(anchor);
    target.still_serves();
    target.server.end();
}

#[test]
fn broken_hellos_are_told_apart() {
    type Change = fn(&mut Vec<u8>);
    let cases: [(&str, Change); 6] = [
        ("hello_short", |bytes| bytes.truncate(63)),
        ("hello_short", |bytes| bytes.truncate(1)),
        ("hello_magic", |bytes| bytes[0] ^= 1),
        ("hello_flags", |bytes| bytes[10] = 4),
        ("hello_ring_bytes", |bytes| bytes[12] = 1),
        ("hello_reserved", |bytes| bytes[63] = 1),
    ];
    for (poison, change) in cases {
        let target = Target::start();
        let anchor = target.client("127.0.0.1:2200", None);
        let (memfd, hello) = lane();
        let mut bytes = hello.encode().to_vec();
        change(&mut bytes);
        send(&anchor, &bytes, &[memfd.as_raw_fd()]);
        Target::is_sent_away(&anchor);
        target.poisoned_by(poison);
    }
}

#[test]
fn a_client_of_another_version_is_sent_to_tcp_and_the_app_hears_nothing() {
    let target = Target::start();
    let anchor = target.client("127.0.0.1:2250", None);
    let (memfd, hello) = lane();
    let mut bytes = hello.encode();
    bytes[8] = 9;
    send(&anchor, &bytes, &[memfd.as_raw_fd()]);
    Target::is_sent_away(&anchor);
    target.still_serves();
    let carried = target.server.carried();
    assert_eq!(carried.fallen_back.get("version_mismatch"), Some(&1), "{carried}");
    assert!(carried.poisoned.is_empty(), "{carried}");
    // A connection that the app had accepted would have said so first.
    target.server.end();
}

#[test]
fn a_hello_without_its_lane_or_with_more_than_that_is_refused() {
    for (count, poison) in [(0, "hello_no_lane"), (2, "hello_extra_fds"), (253, "hello_extra_fds")] {
        let target = Target::start();
        let anchor = target.client("127.0.0.1:2300", None);
        let (memfd, hello) = lane();
        send(&anchor, &hello.encode(), &vec![memfd.as_raw_fd(); count]);
        Target::is_sent_away(&anchor);
        target.poisoned_by(poison);
    }
}

/// A memfd of this size, with or without seals.
fn memfd(bytes: i64, flags: u32, seals: i32) -> Option<OwnedFd> {
    // SAFETY: a NUL-terminated name, then plain numbers on a fresh descriptor.
    unsafe {
        let fd = libc::memfd_create(c"hostile".as_ptr(), flags);
        if fd < 0 || libc::ftruncate(fd, bytes) != 0 {
            return None;
        }
        assert_eq!(libc::fcntl(fd, libc::F_ADD_SEALS, seals), 0);
        Some(OwnedFd::from_raw_fd(fd))
    }
}

#[test]
fn memory_that_could_change_its_size_or_fault_is_refused() {
    let whole = 2 * ((1i64 << 16) + 4096);
    let seals = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;
    let huge = (2i64 << 20, libc::MFD_ALLOW_SEALING | libc::MFD_HUGETLB);
    let cases = [
        (memfd(whole, libc::MFD_ALLOW_SEALING, libc::F_SEAL_GROW), "hello_seals"),
        (memfd(whole, libc::MFD_ALLOW_SEALING, seals | libc::F_SEAL_WRITE), "hello_seals"),
        (memfd(whole - 4096, libc::MFD_ALLOW_SEALING, seals), "hello_size"),
        (memfd(whole + 4096, libc::MFD_ALLOW_SEALING, seals), "hello_size"),
        // Pages that raise SIGBUS when there are no more of them.
        (memfd(huge.0, huge.1, seals), "hello_not_tmpfs"),
    ];
    for (file, poison) in cases {
        let Some(file) = file else { continue };
        let target = Target::start();
        let anchor = target.client("127.0.0.1:2400", None);
        let (id, _) = beeline_shm::memfd::identify(file.as_raw_fd()).unwrap();
        let hello = Hello { lane_inode: id.inode, ..lane().1 };
        send(&anchor, &hello.encode(), &[file.as_raw_fd()]);
        Target::is_sent_away(&anchor);
        target.poisoned_by(poison);
    }
}

#[test]
fn sockets_that_linger_do_not_make_the_server_wait() {
    let target = Target::start();
    let anchor = target.client("127.0.0.1:2500", None);
    // A connection with unsent bytes and a long linger: whoever closes it last waits.
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let clogged = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    clogged.set_nonblocking(true).unwrap();
    while std::io::Write::write(&mut &clogged, &[0; 65536]).is_ok() {}
    let linger = libc::linger { l_onoff: 1, l_linger: 100_000 };
    kernel::setsockopt(clogged.as_raw_fd(), libc::SOL_SOCKET, libc::SO_LINGER, &linger).unwrap();
    send(&anchor, &lane().1.encode(), &[clogged.as_raw_fd(); 5]);
    // The message holds the last references.
    let raw = clogged.as_raw_fd();
    std::mem::forget(clogged);
    let _ = beeline_shm::sys::close(raw);
    Target::is_sent_away(&anchor);
    target.poisoned_by("hello_extra_fds");
}

/// Connects as a user who may not speak for other hosts. Root may: it could be the bridge.
fn as_nobody_special<R>(connect: impl FnOnce() -> R) -> R {
    const STRANGER: u32 = 54_321;
    // SAFETY: no preconditions.
    if unsafe { libc::geteuid() } != 0 {
        return connect();
    }
    // The system call concerns this thread alone, and the kernel notes the user when the thread connects.
    // SAFETY: plain numbers; the saved and the real user stay root, so that there is a way back.
    let become_user = |uid: u32| unsafe { libc::syscall(libc::SYS_setresuid, u32::MAX, uid, u32::MAX) };
    assert_eq!(become_user(STRANGER), 0);
    let connected = connect();
    assert_eq!(become_user(0), 0);
    connected
}

#[test]
fn addresses_that_are_not_the_client_s_are_refused() {
    for (client, server, poison) in [
        ("192.0.2.7:2600", None, "hello_address_foreign"),
        ("127.0.0.1:2600", Some("127.0.0.1:1"), "hello_name_mismatch"),
        ("[::1]:2600", None, "hello_name_mismatch"),
    ] {
        let target = Target::start();
        let anchor = as_nobody_special(|| target.client(client, server));
        let (memfd, hello) = lane();
        send(&anchor, &hello.encode(), &[memfd.as_raw_fd()]);
        Target::is_sent_away(&anchor);
        target.poisoned_by(poison);
    }
    let target = Target::start();
    let anchor = Target::socket();
    target.knock(&anchor);
    let (memfd, hello) = lane();
    send(&anchor, &hello.encode(), &[memfd.as_raw_fd()]);
    Target::is_sent_away(&anchor);
    target.poisoned_by("hello_unnamed");
}

#[test]
fn a_client_that_dies_at_any_step_of_its_hello_leaves_no_trace() {
    let target = Target::start();
    drop(Target::socket());
    let anchor = Target::socket();
    target.knock(&anchor);
    drop(anchor);
    drop(target.client("127.0.0.1:2700", None));
    let anchor = target.client("127.0.0.1:2701", None);
    let (memfd, hello) = lane();
    send(&anchor, &hello.encode(), &[memfd.as_raw_fd()]);
    drop(anchor);
    target.still_serves();
    target.server.end();
}

#[test]
fn a_squatted_name_costs_the_door_and_nothing_else() {
    let mut server = Role::new("server").set("ADDRESS", "127.0.0.1:0").set("PAUSE", 1).start();
    let squatter = Target::socket();
    let name = SockAddr::abstract_unix(DoorName::encode(server.number()).as_bytes()).unwrap();
    kernel::bind(squatter.as_raw_fd(), &name).unwrap();
    server.go();
    let address = server.line();
    let (_, carried) = visit(&address, 2, "well", true);
    assert_eq!(carried.fallen_back.get("no_door"), Some(&2), "{carried}");
    assert_eq!(server.carried().fallen_back.get("door_name_taken"), Some(&1), "{}", server.carried());
    drop(squatter);
    server.end();
}

#[test]
fn a_door_of_another_user_is_not_trusted() {
    // SAFETY: no preconditions.
    if unsafe { libc::geteuid() } != 0 {
        return;
    }
    for user in [12345, 65534] {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let cookie: u64 = kernel::getsockopt(listener.as_raw_fd(), libc::SOL_SOCKET, libc::SO_COOKIE).unwrap();
        let squatter = Target::socket();
        kernel::bind(squatter.as_raw_fd(), &SockAddr::abstract_unix(DoorName::encode(cookie).as_bytes()).unwrap())
            .unwrap();
        // Credentials are those of the thread that calls listen.
        std::thread::scope(|scope| {
            scope.spawn(|| {
                // SAFETY: plain numbers; the raw call changes this thread alone.
                assert_eq!(unsafe { libc::syscall(libc::SYS_setresuid, user, user, user) }, 0);
                kernel::listen(squatter.as_raw_fd(), 8).unwrap();
            });
        });
        let mut client = Role::new("writer").set("ADDRESS", &address).start();
        assert_eq!(client.line(), "written");
        let carried = client.carried();
        assert_eq!(carried.fallen_back.get("door_not_trusted"), Some(&1), "{carried}");
        drop(client);
    }
}
