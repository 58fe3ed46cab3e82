//! Bytes, urgent bytes and ends of stream pass a relay as they are.

use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use beeline_sockets::{Outcome, calls, io};

use super::stage::*;

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
fn signals_of_a_demoted_connection_go_to_the_same_owner() {
    let _turn = turn();
    const F_SETSIG: i32 = 10;
    const F_GETSIG: i32 = 11;
    let ([client, server], _) = lane_pair();
    // SAFETY: plain numbers.
    let ask = |fd: i32, command: i32, number: i32| unsafe { libc::fcntl(fd, command, number) };
    // SAFETY: no arguments.
    let group = unsafe { libc::getpgrp() };
    assert_eq!(ask(server, libc::F_SETOWN, -group), 0);
    assert_eq!(ask(server, F_SETSIG, libc::SIGUSR1), 0);
    let relay = demote(server);
    let program = adopt(server);
    assert_eq!(ask(program.as_raw_fd(), F_GETSIG, 0), libc::SIGUSR1);
    assert_eq!(ask(program.as_raw_fd(), libc::F_GETOWN, 0), -group);
    drop(program);
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

/// What is left of that connection for a minute forbids to listen at its port, and not to a socket that is put into
/// its state by hand.
#[test]
fn the_peers_port_may_have_been_anothers_a_moment_ago() {
    let _turn = turn();
    if !may_administer_network() {
        return;
    }
    let ([client, server], [from, to]) = lane_pair();
    leave_behind(from);
    let relays = [demote(client), demote(server)];
    let [client, server] = [client, server].map(adopt);
    assert_eq!((client.local_addr().unwrap(), client.peer_addr().unwrap()), (from, to));
    assert_eq!(server.peer_addr().unwrap(), from);
    drop((client, server));
    relays.into_iter().for_each(Relay::ends);
}

#[test]
fn half_closes_are_passed_on_and_the_other_half_goes_on() {
    let _turn = turn();
    let (client, mut program, relay) = relayed();
    assert_eq!(send(client, b"question"), Outcome::Done(8));
    assert_eq!(calls::shutdown(client, libc::SHUT_WR), Outcome::OK);
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
    assert_eq!(calls::shutdown(server, libc::SHUT_WR), Outcome::OK);
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
            assert_eq!(calls::shutdown(client, libc::SHUT_WR), Outcome::OK);
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
