//! Both ways, within this process.

use std::fs::File;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::fd::AsRawFd;
use std::process::Command;
use std::sync::mpsc;

use beeline_meeting::bridge;

use super::super::ledger::Times;
use super::*;
use crate::control::PeerId;
use crate::control::message::Token;

const HERE: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

/// A way that takes a given time for each exchange, for which it really waits.
struct Slow(Duration);

impl Way for Slow {
    fn send(&mut self, _: &[u8], _: Instant) -> io::Result<()> {
        Ok(())
    }

    fn receive(&mut self, _: &mut [u8], until: Instant) -> io::Result<()> {
        let end = Instant::now() + self.0;
        std::thread::sleep(self.0.min(until.saturating_duration_since(Instant::now())));
        if end > until { Err(io::ErrorKind::TimedOut.into()) } else { Ok(()) }
    }
}

#[test]
fn a_round_over_a_lane_and_over_tcp_is_whole() {
    let guests = Guests::default();
    let token = Token::from_bytes([7; Token::BYTES]);
    guests.enter(PeerId(1), HERE, token);
    let served = Serving::start(0, guests.clone()).unwrap();
    let to = SocketAddr::new(HERE, served.port);
    let (client, server) = bridge::pair().unwrap();
    assert!(server.take());
    let (back, ended) = mpsc::channel();
    assert!(serve_lane(server, false, back).is_ok());
    let mut lane = LaneWay::new(client, false);
    let mut tcp = TcpWay::connect(to, &token, Duration::from_secs(1)).unwrap();
    let round = measure(&mut lane, &mut tcp).unwrap();
    let whole = |times: &Times| (times.bridge.len(), times.tcp.len());
    // On a machine that stands still a round may be broken off: what there is of it came in turns.
    for times in &round {
        let (bridge, tcp) = whole(times);
        assert!(tcp >= bridge && tcp <= bridge + IN_TURN, "{:?}", round.each_ref().map(whole));
    }
    assert!(round[0].bridge.iter().all(|ns| (1..ROUND.as_nanos() as u64 * 2).contains(ns)));
    lane.close();
    ended.recv_timeout(Duration::from_secs(5)).unwrap().close();
}

/// What tells the test that it is in a process of its own.
const ALONE: &str = "BEELINED_TEST_ALONE";

#[test]
fn without_a_thread_nothing_of_a_lane_is_left() {
    if !nix::unistd::geteuid().is_root() {
        return;
    }
    if std::env::var_os(ALONE).is_none() {
        let name = concat!(module_path!(), "::without_a_thread_nothing_of_a_lane_is_left");
        let (_, name) = name.split_once("::").unwrap();
        let program = std::env::current_exe().unwrap();
        let done = Command::new(program).args([name, "--exact", "--nocapture"]).env(ALONE, "1").output().unwrap();
        let said = String::from_utf8_lossy(&done.stdout);
        let complaint = String::from_utf8_lossy(&done.stderr);
        assert!(done.status.success() && said.contains("1 passed"), "{said}\n{complaint}");
        return;
    }
    let (back, _ended) = mpsc::channel();
    let lowest = || File::open("/dev/null").unwrap().as_raw_fd();
    let drop_end = |lane: bridge::LaneEnd| {
        lane.say(bridge::flags::RESET | bridge::flags::CLOSED);
        lane.retire();
    };
    let mut numbers = Vec::new();
    // The first lane is made, and the others are the same again.
    for round in 0..8 {
        let (client, server) = bridge::pair().unwrap();
        assert!(server.take());
        if round == 0 {
            nix::sys::resource::setrlimit(nix::sys::resource::Resource::RLIMIT_NPROC, 0, 0).unwrap();
            // Root may have any number of threads. The call, unlike libc's function, is about this one alone.
            // SAFETY: it takes numbers.
            assert_eq!(unsafe { libc::syscall(libc::SYS_setresuid, 65_534, 65_534, 65_534) }, 0);
        }
        let server = serve_lane(server, false, back.clone()).expect_err("there is a thread");
        [client, *server].into_iter().for_each(drop_end);
        numbers.push(lowest());
    }
    assert!(numbers.iter().all(|number| *number == numbers[0]), "{numbers:?}");
}

#[test]
fn who_shows_nothing_or_something_else_is_not_served() {
    let guests = Guests::default();
    let token = Token::from_bytes([7; Token::BYTES]);
    let served = Serving::start(0, guests.clone()).unwrap();
    let to = SocketAddr::new(HERE, served.port);
    let is_served = |token: &Token| {
        let until = Instant::now() + Duration::from_secs(5);
        let mut buffer = vec![0; MUCH as usize];
        let way = TcpWay::connect(to, token, Duration::from_secs(5));
        way.is_ok_and(|mut way| exchange(&mut way, Kind::Short, &mut buffer, until).is_ok())
    };
    assert!(!is_served(&token), "nobody is expected");
    guests.enter(PeerId(1), HERE, token);
    assert!(is_served(&token));
    assert!(!is_served(&Token::from_bytes([8; Token::BYTES])));
    guests.leave(PeerId(1));
    assert!(!is_served(&token));
    guests.enter(PeerId(2), IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1)), token);
    assert!(!is_served(&token), "it is somebody else's");
}

#[test]
fn a_way_that_hangs_is_slow_and_not_unknown() {
    let began = Instant::now();
    let round = measure(&mut Slow(Duration::from_secs(60)), &mut Slow(Duration::from_micros(10))).unwrap();
    assert!(began.elapsed() < ROUND * 4);
    assert_eq!(round[0].bridge.len(), 1);
    assert!(round[0].bridge[0] > round[0].tcp[0]);
}

#[test]
fn a_way_that_is_gone_is_told() {
    let (client, server) = bridge::pair().unwrap();
    assert!(server.take());
    LaneWay::new(server, false).close();
    let mut lane = LaneWay::new(client, false);
    assert!(measure(&mut lane, &mut Slow(Duration::from_micros(10))).is_err());
    lane.close();
}
