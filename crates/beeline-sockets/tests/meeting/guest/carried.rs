//! Clients whose connections are carried over to TCP.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsRawFd, FromRawFd, RawFd};

use super::{bind, is_asleep, number, required, say, set, wait};

/// Connects and writes, says so, waits for the test, and then reads the answers.
pub(super) fn writer() {
    let address = required("ADDRESS");
    let mut stream = match number("TIGHT", 0) {
        0 => TcpStream::connect(address).expect("connected"),
        _ => connected_tightly(address.parse().expect("an address")),
    };
    let text = "0123456789abcdef".repeat(number("BYTES", 16) / 16);
    stream.write_all(text.as_bytes()).expect("sent");
    say("written");
    wait();
    if number("CLOSE", 0) != 0 {
        return;
    }
    let result = stream.write_all(b"\n").and_then(|()| {
        let mut answer = String::new();
        BufReader::new(&stream).read_line(&mut answer).map(|_| answer)
    });
    match result {
        Ok(answer) => say(if answer.trim_end().ends_with(&text) { "whole" } else { "broken" }),
        Err(error) => say(error.raw_os_error().unwrap_or(0)),
    }
    if number("AGAIN", 0) != 0 {
        let mut second = BufReader::new(&stream);
        (&stream).write_all(b"more\n").expect("sent");
        let mut answer = String::new();
        second.read_line(&mut answer).expect("an answer");
        say(if answer.ends_with("more\n") { "more" } else { "broken" });
    }
}

/// Connects and writes. When it is let go, one thread reads an answer, and another sends while that one sleeps.
pub(super) fn together() {
    let stream = TcpStream::connect(required("ADDRESS")).expect("connected");
    (&stream).write_all(b"before").expect("sent");
    say("written");
    wait();
    let (sender, receiver) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            // SAFETY: only asks.
            sender.send(unsafe { libc::gettid() }).expect("a listener");
            let mut answer = String::new();
            BufReader::new(&stream).read_line(&mut answer).map(|_| answer)
        });
        let thread = receiver.recv().expect("a thread");
        while !is_asleep(thread) {}
        let sent = [" and ", "meanwhile", "\n"].map(|text| (&stream).write_all(text.as_bytes()));
        say(sent.iter().all(Result::is_ok));
        say(reader.join().expect("no panic").unwrap_or_else(|error| error.to_string()).trim_end());
    });
}

/// A connection whose socket has little room in the kernel, and more in the program's eyes.
fn connected_tightly(server: SocketAddr) -> TcpStream {
    let name = beeline_sockets::kernel::SockAddr::internet(server, libc::AF_INET);
    // SAFETY: plain numbers, then a fresh descriptor.
    let stream = unsafe { TcpStream::from_raw_fd(libc::socket(libc::AF_INET, libc::SOCK_STREAM, 0)) };
    bind(stream.as_raw_fd(), SocketAddr::from(([127, 0, 0, 1], 0)));
    set(stream.as_raw_fd(), libc::SO_SNDBUF, 8192);
    // SAFETY: a live address of the length told.
    assert_eq!(unsafe { libc::connect(stream.as_raw_fd(), (&raw const name.storage).cast(), name.length) }, 0);
    set(stream.as_raw_fd(), libc::SO_SNDBUF, 212_992);
    stream
}

/// Connects, and waits for an answer on a set that watches the set which watches the connection.
pub(super) fn watcher() {
    let mut stream = TcpStream::connect(required("ADDRESS")).expect("connected");
    let outer = set_watching(set_watching(stream.as_raw_fd()));
    say("watching");
    if number("AT_ONCE", 0) == 0 {
        wait();
    }
    let mut event = libc::epoll_event { events: 0, u64: 0 };
    // SAFETY: room for one event.
    let ready = unsafe { libc::epoll_wait(outer, &raw mut event, 1, 5_000) };
    let mut bytes = [0; 16];
    let length = if ready == 1 { stream.read(&mut bytes).expect("an answer") } else { 0 };
    say(String::from_utf8_lossy(&bytes[..length]));
}

/// Connects, is told once that it may send, and asks for the next shots when it is let go: by a change and, with the
/// member taken out and put in again, by an addition.
pub(super) fn shot() {
    let mut stream = TcpStream::connect(required("ADDRESS")).expect("connected");
    let fd = stream.as_raw_fd();
    let change = |set: RawFd, what: i32, events: i32| {
        let mut event = libc::epoll_event { events: (events | libc::EPOLLONESHOT) as u32, u64: 1 };
        // SAFETY: plain numbers, and a live event.
        let result = unsafe { libc::epoll_ctl(set, what, fd, &raw mut event) };
        assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
    };
    let told = |set: RawFd| {
        let mut event = libc::epoll_event { events: 0, u64: 0 };
        // SAFETY: room for one event.
        let count = unsafe { libc::epoll_wait(set, &raw mut event, 1, 5_000) };
        if count == 1 { event.events as i32 } else { 0 }
    };
    // SAFETY: plain numbers.
    let sets = [(); 2].map(|()| unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) });
    for set in sets {
        change(set, libc::EPOLL_CTL_ADD, libc::EPOLLOUT);
        assert_eq!(told(set), libc::EPOLLOUT);
    }
    say("told");
    wait();
    let _ = stream.write_all(b"a message");
    let mut bytes = [0; 16];
    let length = stream.read(&mut bytes).expect("an answer");
    change(sets[0], libc::EPOLL_CTL_MOD, libc::EPOLLOUT);
    change(sets[1], libc::EPOLL_CTL_DEL, 0);
    change(sets[1], libc::EPOLL_CTL_ADD, libc::EPOLLOUT);
    assert_eq!(sets.map(told), [libc::EPOLLOUT; 2]);
    say(String::from_utf8_lossy(&bytes[..length]));
}

/// A new set that watches one descriptor for input.
fn set_watching(fd: RawFd) -> RawFd {
    let mut event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: fd as u64 };
    // SAFETY: plain numbers, and a live event.
    unsafe {
        let set = libc::epoll_create1(libc::EPOLL_CLOEXEC);
        assert_eq!(libc::epoll_ctl(set, libc::EPOLL_CTL_ADD, fd, &raw mut event), 0);
        set
    }
}
