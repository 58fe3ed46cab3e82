//! What a call does not take any more.

use std::net::TcpListener;
use std::os::fd::AsRawFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};

use beeline_testkit::hostile::Client;

use super::*;
use crate::desc::{DESCS, Desc};
use crate::meet::listener::LISTENERS;
use crate::meet::readable;
use crate::process;

/// A listener of this process, with a door.
struct Served {
    tcp: TcpListener,
    door: UnixListener,
    name: SocketAddr,
    desc: &'static Desc,
    listener: &'static Listener,
}

impl Served {
    fn new(name: &str) -> Self {
        let name = SocketAddr::from_abstract_name(format!("beeline-{name}-{}", std::process::id())).unwrap();
        let (tcp, door) = (TcpListener::bind("127.0.0.1:0").unwrap(), UnixListener::bind_addr(&name).unwrap());
        door.set_nonblocking(true).unwrap();
        let (listener, desc) = (LISTENERS.take().unwrap(), DESCS.take().unwrap());
        listener.begin(1, tcp.local_addr().unwrap());
        listener.door.set(Some(door.as_raw_fd()));
        listener.lobby.open();
        desc.begin(Kind::Tcp, tcp.as_raw_fd(), libc::AF_INET as u32, crate::forks());
        desc.listener.store(core::ptr::from_ref(listener).cast_mut().cast(), Relaxed);
        desc.become_kind(Kind::Listener);
        Served { tcp, door, name, desc, listener }
    }

    fn call(&self) -> Accepting {
        let Served { tcp, desc, listener, .. } = self;
        let fd = tcp.as_raw_fd();
        Accepting { fd, desc, listener, flags: 0, peer: SockAddr::empty(), owed_until_ns: 0 }
    }

    /// A client that has come to the door, and says nothing.
    fn silent_client(&self) -> Client {
        Client::of(UnixStream::connect_addr(&self.name).unwrap().into())
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        lobby::dismiss(self.listener);
        self.listener.lobby.close();
        self.listener.door.set(None);
        self.desc.listener.store(core::ptr::null_mut(), Relaxed);
        self.desc.become_kind(Kind::Closed);
        self.desc.give_if_unused();
        LISTENERS.give(self.listener);
    }
}

/// Whether a client that says nothing is sent away where a fork comes while `wait`, which has taken it from the door,
/// waits for it. Each listener has a whole wait for its first client; on a busy machine the fork may come too late.
fn sends_away(name: &str, wait: impl Fn(&Served)) -> bool {
    (0..50).any(|_| {
        let served = Served::new(name);
        let (client, door) = (served.silent_client(), served.door.as_raw_fd());
        std::thread::scope(|threads| {
            threads.spawn(|| {
                while kernel::poll_now(door, libc::POLLIN) != 0 {
                    std::thread::yield_now();
                }
                process::count_spawn();
            });
            wait(&served);
        });
        !served.listener.lobby.is_occupied() && client.is_sent_away()
    })
}

/// The child has the client's end, too, which nobody there would ever close.
#[test]
fn a_silent_client_that_a_fork_has_copied_is_sent_away() {
    assert!(sends_away("accepts", |served| assert_eq!(from_queue(&mut served.call()), Ok(None))));
    assert!(sends_away("looks", |served| assert!(!readable::door_ready(served.desc))));
}

/// The place of a listener that another thread closes while a client is waited for may be another listener's soon.
#[test]
fn a_listener_that_was_closed_meanwhile_gives_no_clients() {
    let name = SocketAddr::from_abstract_name(format!("beeline-accept-{}", std::process::id())).unwrap();
    let door = UnixListener::bind_addr(&name).unwrap();
    door.set_nonblocking(true).unwrap();
    let _client = UnixStream::connect_addr(&name).unwrap();
    let listener = LISTENERS.take().unwrap();
    listener.begin(1, "127.0.0.1:1".parse().unwrap());
    listener.door.set(Some(door.as_raw_fd()));
    let desc = DESCS.take().unwrap();
    desc.begin(Kind::Tcp, -1, libc::AF_INET as u32, crate::forks());
    let mut call = Accepting { fd: -1, desc, listener, flags: 0, peer: SockAddr::empty(), owed_until_ns: 0 };
    assert_eq!(from_queue(&mut call).err(), Some(Errno(libc::EBADF)));
    assert!(door.accept().is_ok(), "the other one's client waits for it");
    listener.door.set(None);
    LISTENERS.give(listener);
    desc.give_if_unused();
}

/// The next client of a run over TCP is taken, whether the listener still blocks or not.
#[test]
fn nobody_asks_whether_a_listener_blocks_for_the_next_of_a_run() {
    let served = Served::new("run");
    let (desc, listener) = (served.desc, served.listener);
    let next = |run: u32| {
        listener.tcp_run.store(run, Relaxed);
        let found = next_of_run(&mut served.call(), &desc.pin());
        (found, listener.tcp_run.load(Relaxed))
    };
    assert!(matches!(next(2), (Run::Unknown, 2)), "it has not been asked yet");
    listener.note_blocks(true);
    assert!(matches!(next(0), (Run::Unknown, 0)));
    assert!(matches!(next(2), (Run::Over, 0)), "nobody is there");
    for blocks in [true, false] {
        served.tcp.set_nonblocking(!blocks).unwrap();
        let client = std::net::TcpStream::connect(served.tcp.local_addr().unwrap()).unwrap();
        let (Run::Taken(Ok(accepted)), 1) = next(2) else { panic!("it is there, and one may follow") };
        drop((client, beeline_shm::Fd::own(accepted)));
        assert!(matches!(next(2), (Run::Over, 0)));
    }
    let door = listener.door.get();
    listener.door.set(None);
    assert!(matches!(next(2), (Run::Unknown, 2)), "the kernel may sleep");
    listener.door.set(door);
}
