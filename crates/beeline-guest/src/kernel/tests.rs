//! What the kernel says of its own sockets.

use super::*;
use crate::linux::TCP_CLOSE_WAIT;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd;

fn refused(by: SocketAddr) -> i32 {
    let fd = socket(libc::AF_INET, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0).unwrap() as i32;
    assert_eq!(connect(fd, &SockAddr::internet(by, libc::AF_INET)), Err(Errno(libc::ECONNREFUSED)));
    fd
}

#[test]
fn a_connection_that_ended_in_good_order_was_connected_whoever_ended_it() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let there = listener.local_addr().unwrap();
    for client_first in [false, true] {
        let mut client = TcpStream::connect(there).unwrap();
        let mut server = listener.accept().unwrap().0;
        assert!(!never_was_connected(client.as_raw_fd()));
        if client_first {
            client.shutdown(Shutdown::Write).unwrap();
            assert_eq!(server.read(&mut [0; 8]).unwrap(), 0);
        }
        server.write_all(b"answer").unwrap();
        drop(server);
        assert_eq!(client.read_to_end(&mut Vec::new()).unwrap(), 6);
        assert_eq!(tcp_state(client.as_raw_fd()) == Some(TCP_CLOSE_WAIT), !client_first);
        client.shutdown(Shutdown::Both).ok();
        // The last acknowledgement may be under way.
        let begun_ns = now_ns();
        while tcp_state(client.as_raw_fd()) != Some(TCP_CLOSE) {
            assert!(now_ns() - begun_ns < 10_000_000_000, "it does not end");
            std::thread::yield_now();
        }
        assert!(!never_was_connected(client.as_raw_fd()));
    }
    drop(listener);
    let refused = refused(there);
    assert!(never_was_connected(refused));
    assert!(!never_was_connected(-1));
    // SAFETY: a number of this test's own.
    unsafe { libc::close(refused) };
}
