//! A relay as a process, and connections that several processes hold when they become relayed.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr};
use std::time::{Duration, Instant};

use beeline_sockets::{Outcome, calls, life, options};

use super::stage::*;

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

/// Whether a listener can be bound to an address with this option set.
fn can_listen(at: SocketAddr, option: i32) -> bool {
    let SocketAddr::V4(at) = at else { return false };
    // SAFETY: plain numbers, and live structs of the sizes given; the descriptor is closed.
    unsafe {
        let fd = libc::socket(libc::AF_INET, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0);
        let one = 1i32;
        assert_eq!(libc::setsockopt(fd, libc::SOL_SOCKET, option, (&raw const one).cast(), 4), 0);
        let mut address: libc::sockaddr_in = core::mem::zeroed();
        address.sin_family = libc::AF_INET as u16;
        address.sin_port = at.port().to_be();
        address.sin_addr.s_addr = u32::from(*at.ip()).to_be();
        let bound = libc::bind(fd, (&raw const address).cast(), size_of_val(&address) as u32) == 0;
        let listens = bound && libc::listen(fd, 4) == 0;
        libc::close(fd);
        listens
    }
}

/// The relay of a client sits on the server's port, and the server's own end of the connection is a lane.
#[test]
fn a_servers_port_is_its_own_beside_a_clients_relay() {
    let _turn = turn();
    for servers_ends_first in [false, true] {
        let ([client, server], [_, at]) = lane_pair();
        let relay = demote(client);
        let program = adopt(client);
        assert_eq!(program.peer_addr().unwrap(), at, "there is something to share");
        for option in [libc::SO_REUSEADDR, libc::SO_REUSEPORT] {
            assert!(can_listen(at, option), "while the connection lasts");
        }
        let ends: [&mut dyn FnMut(); 2] = [&mut || close(server), &mut || program.shutdown(Shutdown::Both).unwrap()];
        let [server, client] = ends;
        if servers_ends_first {
            server();
            client();
        } else {
            client();
            server();
        }
        drop(program);
        relay.ends();
        for option in [libc::SO_REUSEADDR, libc::SO_REUSEPORT] {
            assert!(can_listen(at, option), "after it, {servers_ends_first}");
        }
    }
}

/// What the socket says may be the mark of another process that shares the listener, and makes a relay just now.
#[test]
fn a_listener_reuses_its_port_only_if_its_program_has_said_so() {
    let _turn = turn();
    for (before, after) in [(0, None), (1, None), (0, Some(1)), (1, Some(0))] {
        let ([client, server], at, fd) = lane_pair_beside_a_socket(before);
        assert_eq!(calls::listen(fd, 4), Outcome::OK);
        if let Some(value) = after {
            let number = (&raw const value).cast();
            // SAFETY: a live number of four bytes.
            let set = unsafe { options::setsockopt(fd, libc::SOL_SOCKET, libc::SO_REUSEPORT, number, 4) };
            assert_eq!(set, Outcome::OK);
        }
        // As another process does it.
        reuse_port(fd, 1);
        let relay = demote(server);
        let program = adopt(server);
        assert_eq!(program.local_addr().unwrap(), at, "it was bound beside the listener");
        assert_eq!(reuses_port(fd), after.unwrap_or(before), "{before} {after:?}");
        drop(program);
        close(client);
        relay.ends();
        close(fd);
    }
}

/// A lane, and a socket of the kernel's that is bound to its server's address, with `SO_REUSEPORT` as given. Another
/// program may have that port: then there is another lane.
fn lane_pair_beside_a_socket(reuses_port: i32) -> ([i32; 2], SocketAddr, i32) {
    const TRIES: usize = 20;
    for _ in 0..TRIES {
        let (ends, [_, at]) = lane_pair();
        if let Some(fd) = bound(at, reuses_port) {
            return (ends, at, fd);
        }
        ends.into_iter().for_each(close);
    }
    panic!("each port is somebody else's");
}

fn bound(at: SocketAddr, reuses_port: i32) -> Option<i32> {
    let SocketAddr::V4(at) = at else { unreachable!() };
    // SAFETY: plain numbers, and a live struct of the size given; the descriptor is the test's.
    unsafe {
        let fd = libc::socket(libc::AF_INET, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0);
        reuse_port(fd, reuses_port);
        let mut address: libc::sockaddr_in = core::mem::zeroed();
        address.sin_family = libc::AF_INET as u16;
        address.sin_port = at.port().to_be();
        address.sin_addr.s_addr = u32::from(*at.ip()).to_be();
        if libc::bind(fd, (&raw const address).cast(), size_of_val(&address) as u32) != 0 {
            assert_eq!(std::io::Error::last_os_error().raw_os_error(), Some(libc::EADDRINUSE));
            libc::close(fd);
            return None;
        }
        Some(fd)
    }
}

fn reuse_port(fd: i32, value: i32) {
    // SAFETY: a live number of four bytes.
    let set = unsafe { libc::setsockopt(fd, libc::SOL_SOCKET, libc::SO_REUSEPORT, (&raw const value).cast(), 4) };
    assert_eq!(set, 0);
}

fn reuses_port(fd: i32) -> i32 {
    let (mut value, mut length) = (-1i32, 4u32);
    let place = (&raw mut value).cast();
    // SAFETY: live places of the sizes given.
    let asked = unsafe { libc::getsockopt(fd, libc::SOL_SOCKET, libc::SO_REUSEPORT, place, &raw mut length) };
    assert_eq!(asked, 0);
    value
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
                && life::demote_number(server).is_ok()
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
    let used = || all.iter().map(|(_, _, relay)| relay.field(14) + relay.field(15)).sum::<u64>();
    let switches = || all.iter().map(|(_, _, relay)| voluntary_switches(*relay)).sum::<u64>();
    // Each is asleep once it has spun for nothing; on a busy machine that takes a while.
    let is_idle = |_| {
        let before = (used(), switches());
        std::thread::sleep(Duration::from_millis(1000));
        (used(), switches()) == before
    };
    assert!((0..10).any(is_idle), "{:?} ticks and switches", (used(), switches()));
    for (client, program, relay) in all {
        drop(program);
        close(client);
        relay.ends();
    }
}

/// Of room at an end that reads no more nothing tells but a look.
#[test]
fn a_relay_that_waits_for_an_end_that_reads_no_more_takes_little_time() {
    let _turn = turn();
    let (client, mut program, relay) = relayed();
    assert_eq!(calls::shutdown(client, libc::SHUT_RD), Outcome::OK);
    program.set_nonblocking(true).unwrap();
    let (mut sent, mut refusals) = (0, 0);
    while refusals < 20 {
        match program.write(&[7; 1 << 16]) {
            Ok(count) => (sent, refusals) = (sent + count, 0),
            Err(_) => {
                refusals += 1;
                std::thread::sleep(Duration::from_millis(5));
            }
        }
    }
    let used = || relay.field(14) + relay.field(15);
    let before = used();
    std::thread::sleep(Duration::from_millis(400));
    assert!(used() - before < 20, "{} ticks of a hundredth of a second", used() - before);
    let (mut got, patience) = (0, Instant::now() + Duration::from_secs(10));
    while got < sent {
        assert!(Instant::now() < patience, "{got} of {sent} bytes came");
        match recv(client, &mut [0; 1 << 16]) {
            Outcome::Done(count) => got += count as usize,
            other => panic!("{other:?} after {got} bytes"),
        }
    }
    drop(program);
    close(client);
    relay.ends();
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
        if life::demote_number(server).is_err() || any_send(server, b"child ") != 6 {
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
            let demoted = life::demote_number(server).is_ok() && any_send(server, b"said") == 4;
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
            relay.sleeps();
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
        if life::demote_number(server).is_err() {
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
    assert_eq!(calls::shutdown(client, libc::SHUT_WR), Outcome::OK);
    assert_eq!(rest(client), b"");
    close(client);
    relay.ends();
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
            let done = life::demote_number(server).is_ok();
            ready.1.write_all(&[u8::from(done)]).unwrap();
            // The parent is to have the news, not this process.
            // SAFETY: pause(2).
            unsafe { libc::pause() };
        });
        let set = match beeline_sockets::calls::epoll_create(0) {
            Outcome::Done(set) => set as i32,
            other => panic!("{other:?}"),
        };
        let mut event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: 7 };
        // SAFETY: a live event.
        let added = unsafe { beeline_sockets::calls::epoll_ctl(set, libc::EPOLL_CTL_ADD, server, &raw mut event) };
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
