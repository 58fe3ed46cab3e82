//! Both ways, within this process.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
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
    serve_lane(server, false, back).unwrap();
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
