//! Resets, closes and deaths reach the other side as what they are.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::fd::AsRawFd;

use beeline_sockets::side::mark_linger;
use beeline_sockets::{Outcome, calls, io, kernel, table};

use super::stage::*;

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
            side.linger.set(Some(0));
        }
        close(client);
        assert_eq!(program.read(&mut bytes).unwrap(), 10);
        assert_eq!(program.read(&mut bytes).unwrap_err().kind(), std::io::ErrorKind::ConnectionReset);
        relay.ends();
    }
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
    assert_eq!(calls::shutdown(client, libc::SHUT_WR), Outcome::OK);
    assert_eq!(ended(&mut program), b"");
    kill(client);
    // The second write at the latest finds out, as with TCP.
    while program.write_all(b"more").is_ok() {
        std::thread::yield_now();
    }
    relay.ends();
    // With SO_LINGER zero, which the kernel heeds, too.
    let (client, mut program, relay) = relayed();
    assert_eq!(send(client, b"last"), Outcome::Done(4));
    let desc = table::get(client).unwrap();
    desc.side().linger.set(Some(0));
    mark_linger(&desc.lane(), desc.end(), desc.side());
    kill(client);
    let mut bytes = [0; 64];
    assert_eq!(program.read(&mut bytes).unwrap(), 4);
    assert_eq!(program.read(&mut bytes).unwrap_err().kind(), std::io::ErrorKind::ConnectionReset);
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

/// Kills a relay that has nothing left to do.
fn kill_relay(relay: Relay) {
    relay.sleeps();
    // SAFETY: the relay is ours.
    assert_eq!(unsafe { libc::kill(relay.0 as i32, libc::SIGKILL) }, 0);
    relay.ends();
}

/// What a lane's end is told when its relay is killed before the program's end of stream: a reset, but in a container
/// an end, as what ends there may kill a relay in the ordinary course of things.
fn lost() -> Outcome {
    let namespace = std::fs::read_link("/proc/self/ns/pid").unwrap();
    let is_hosts = namespace.to_str() == Some("pid:[4026531836]");
    if is_hosts { Outcome::fail(libc::ECONNRESET) } else { Outcome::Done(0) }
}

#[test]
fn a_killed_relay_has_reset_the_connection_for_whoever_has_not_got_its_end() {
    let _turn = turn();
    let mut bytes = [0; 64];
    let is_reset = |program: &mut TcpStream| {
        assert_eq!(program.read(&mut [0]).unwrap_err().kind(), std::io::ErrorKind::ConnectionReset);
    };
    // Nobody has, and all bytes have arrived, which nobody could know.
    let (client, mut program, relay) = relayed();
    assert_eq!(send(client, b"x"), Outcome::Done(1));
    program.write_all(b"y").unwrap();
    kill_relay(relay);
    assert_eq!(program.read(&mut bytes).unwrap(), 1);
    is_reset(&mut program);
    assert_eq!(recv(client, &mut bytes), Outcome::Done(1));
    assert_eq!(recv(client, &mut bytes), lost());
    close(client);
    // The program has.
    let (client, mut program, relay) = relayed();
    assert_eq!(calls::shutdown(client, libc::SHUT_WR), Outcome::OK);
    assert_eq!(ended(&mut program), b"");
    kill_relay(relay);
    assert_eq!(program.read(&mut bytes).unwrap(), 0);
    assert_eq!(recv(client, &mut bytes), lost());
    close(client);
    // The lane's end has.
    let (client, mut program, relay) = relayed();
    program.shutdown(std::net::Shutdown::Write).unwrap();
    assert_eq!(rest(client), b"");
    kill_relay(relay);
    is_reset(&mut program);
    assert_eq!(recv(client, &mut bytes), Outcome::Done(0));
    close(client);
}

#[test]
fn bytes_that_a_killed_relay_had_not_passed_on_are_lost_before_no_end_of_stream() {
    let _turn = turn();
    let (client, mut program, relay) = relayed();
    let bytes = vec![7; 1 << 16];
    // More than the relay can give to a program that does not read.
    while matches!(dont_wait(client, &bytes), Outcome::Done(_)) {
        while matches!(dont_wait(client, &bytes), Outcome::Done(_)) {}
        relay.sleeps();
    }
    kill_relay(relay);
    let mut got = Vec::new();
    assert_eq!(program.read_to_end(&mut got).unwrap_err().kind(), std::io::ErrorKind::ConnectionReset);
    assert_eq!(recv(client, &mut [0]), Outcome::fail(libc::ECONNRESET));
    close(client);
}
