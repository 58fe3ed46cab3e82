//! The door dies before the hello was taken: the client begins again over TCP, and not a byte is lost.

use crate::places::inherit;
use crate::stage::{Guest, Role};
use std::net::TcpListener;
use std::os::fd::AsRawFd;

/// A server whose door is open and which accepts no more, and the listener that it shares with this process.
fn stalled_server() -> (TcpListener, String, Guest, Guest) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let mut role = Role::new("dropped").set("LISTENER", listener.as_raw_fd());
    inherit(&mut role, listener.as_raw_fd());
    let mut server = role.start();
    assert_eq!(server.line(), address);
    let mut first = Role::new("writer").set("ADDRESS", &address).start();
    assert_eq!(first.line(), "written");
    assert_eq!(server.line(), "stalled");
    (listener, address, server, first)
}

/// Answers what comes over TCP as guests do.
fn answer_over_tcp(listener: &TcpListener) {
    use std::io::{BufRead, BufReader, Write};
    let (mut stream, _) = listener.accept().unwrap();
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    let mut line = String::new();
    while reader.read_line(&mut line).unwrap() != 0 {
        stream.write_all(format!("tcp {line}").as_bytes()).unwrap();
        line.clear();
    }
}

fn begins_again(bytes: usize, kill: bool) {
    let (listener, address, mut server, first) = stalled_server();
    let mut client = Role::new("writer").set("ADDRESS", &address).set("BYTES", bytes).set("AGAIN", 1).start();
    assert_eq!(client.line(), "written");
    assert_eq!(client.carried().accelerated, 1, "{}", client.carried());
    let tcp = std::thread::spawn(move || answer_over_tcp(&listener));
    if kill {
        server.signal(libc::SIGKILL);
    } else {
        server.go();
        assert_eq!(server.line(), "dropped");
    }
    client.go();
    assert_eq!(client.line(), "whole");
    assert_eq!(client.line(), "more");
    assert_eq!(client.carried().fallen_back.get("door_died"), Some(&1), "{}", client.carried());
    client.end();
    tcp.join().unwrap();
    drop(first);
    drop(server);
}

#[test]
fn a_few_bytes_are_carried_over_when_the_server_is_killed() {
    begins_again(16, true);
}

#[test]
fn a_full_ring_is_carried_over_when_the_server_is_killed() {
    begins_again(1 << 20, true);
}

#[test]
fn bytes_are_carried_over_when_the_server_closes_its_listener() {
    begins_again(4096, false);
}

/// TCP's queue has one place, which is taken: it takes a second until the client's reader is connected, and its other
/// thread sends meanwhile. That does not ring, as at a door of this host nothing does before the hello is taken.
#[test]
fn bytes_that_another_thread_sends_while_one_begins_again_are_carried_over() {
    let (listener, address, server, first) = stalled_server();
    let mut client = Role::new("together").set("ADDRESS", &address).start();
    assert_eq!(client.line(), "written");
    assert_eq!(client.carried().accelerated, 1, "{}", client.carried());
    // SAFETY: plain numbers.
    assert_eq!(unsafe { libc::listen(listener.as_raw_fd(), 0) }, 0);
    let in_the_way = std::net::TcpStream::connect(&address).unwrap();
    server.signal(libc::SIGKILL);
    drop(server);
    client.go();
    assert_eq!(client.line(), "true");
    drop(listener.accept().unwrap());
    let tcp = std::thread::spawn(move || answer_over_tcp(&listener));
    assert_eq!(client.line(), "tcp before and meanwhile");
    client.end();
    tcp.join().unwrap();
    drop(in_the_way);
    drop(first);
}

#[test]
fn bytes_of_a_client_that_closes_after_the_door_died_arrive() {
    use std::io::Read;
    let (listener, address, server, first) = stalled_server();
    let mut client = Role::new("writer").set("ADDRESS", &address).set("BYTES", 32_000).set("CLOSE", 1).start();
    assert_eq!(client.line(), "written");
    assert_eq!(client.carried().accelerated, 1, "{}", client.carried());
    server.signal(libc::SIGKILL);
    drop(server);
    client.go();
    let mut text = String::new();
    listener.accept().unwrap().0.read_to_string(&mut text).unwrap();
    assert_eq!(text, "0123456789abcdef".repeat(2000));
    client.end();
    drop(first);
}

/// Making the switch changes every set that watches the connection; none of them may be held at that time.
fn a_set_in_a_set_sees_the_switch(at_once: bool) {
    use std::io::Write;
    let (listener, address, server, first) = stalled_server();
    let mut client = Role::new("watcher").set("ADDRESS", &address).set("AT_ONCE", i32::from(at_once)).start();
    assert_eq!(client.line(), "watching");
    assert_eq!(client.carried().accelerated, 1, "{}", client.carried());
    server.signal(libc::SIGKILL);
    drop(server);
    if !at_once {
        client.go();
    }
    listener.accept().unwrap().0.write_all(b"over tcp").unwrap();
    assert_eq!(client.line(), "over tcp");
    client.end();
    drop(first);
}

#[test]
fn a_set_in_a_set_that_is_waited_on_later_sees_the_switch() {
    a_set_in_a_set_sees_the_switch(false);
}

#[test]
fn a_set_in_a_set_that_is_waited_on_sees_the_switch() {
    a_set_in_a_set_sees_the_switch(true);
}

/// A member that has fired its one shot is not watched, over TCP, either, until the app asks for the next.
#[test]
fn a_shot_that_was_fired_before_the_switch_is_followed_by_others() {
    use std::io::{Read, Write};
    let (listener, address, server, first) = stalled_server();
    let mut client = Role::new("shot").set("ADDRESS", &address).start();
    assert_eq!(client.line(), "told");
    assert_eq!(client.carried().accelerated, 1, "{}", client.carried());
    server.signal(libc::SIGKILL);
    drop(server);
    client.go();
    let mut stream = listener.accept().unwrap().0;
    stream.read_exact(&mut [0; 9]).unwrap();
    stream.write_all(b"over tcp").unwrap();
    assert_eq!(client.line(), "over tcp");
    client.end();
    drop(first);
}

#[test]
fn what_tcp_does_not_take_in_time_is_never_taken_for_the_whole() {
    use std::io::Read;
    let (listener, address, server, first) = stalled_server();
    // Less than was sent goes into the kernel's buffers when nobody reads.
    let few = 2048i32;
    // SAFETY: a live int of the size told.
    let set = unsafe {
        libc::setsockopt(listener.as_raw_fd(), libc::SOL_SOCKET, libc::SO_RCVBUF, (&raw const few).cast(), 4)
    };
    assert_eq!(set, 0);
    let mut client = Role::new("writer").set("ADDRESS", &address).set("BYTES", 100_000).set("TIGHT", 1).start();
    assert_eq!(client.line(), "written");
    assert_eq!(client.carried().accelerated, 1, "{}", client.carried());
    server.signal(libc::SIGKILL);
    client.go();
    let (mut stream, _) = listener.accept().unwrap();
    assert_eq!(client.line(), libc::ECONNRESET.to_string());
    let mut bytes = Vec::new();
    let ending = stream.read_to_end(&mut bytes).map_err(|error| error.raw_os_error());
    assert!(bytes.len() < 100_000);
    assert_eq!(ending, Err(Some(libc::ECONNRESET)));
    client.end();
    drop(first);
    drop(server);
}

#[test]
fn without_anybody_on_tcp_the_connection_is_reset() {
    let (listener, address, server, first) = stalled_server();
    let mut client = Role::new("writer").set("ADDRESS", &address).start();
    assert_eq!(client.line(), "written");
    drop(listener);
    server.signal(libc::SIGKILL);
    client.go();
    assert_eq!(client.line(), libc::ECONNRESET.to_string());
    client.end();
    drop(first);
    drop(server);
}
