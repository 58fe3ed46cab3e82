mod shares;

use super::*;
use crate::agent::offers::{PROBED, UNCONFIRMED};
use crate::agent::waiting::ASKED;
use beeline_wire::agent::place_of;

/// Carriers and lanes are numbers here.
type Tried = Desk<&'static str, u32>;

const A: Holder = (1000, 1);
const B: Holder = (1001, 2);
const EVERYBODY: u64 = 1;
const SERVER: Server = Server { holder: B, groups: EVERYBODY };

/// A page that nobody reads.
pub fn page() -> Page {
    Page::create().unwrap()
}

fn there() -> SocketAddr {
    "10.0.0.2:80".parse().unwrap()
}

fn pair(number: u32) -> Pair {
    Pair { client: u64::from(number), server: u64::from(!number) }
}

fn desk(now: Instant) -> Tried {
    let mut desk = Desk::new(page(), true, now);
    desk.announced(B, [(there(), EVERYBODY)], now);
    assert!(desk.come(1, "client", A, now) && desk.come(2, "server", B, now));
    desk
}

/// A client with this carrier has its end of a lane.
fn offer(desk: &mut Tried, carrier: u64, lane: u32, now: Instant) -> u32 {
    let Queried::Likely(offer) = desk.query(carrier, there(), EVERYBODY, true, now) else { panic!("not likely") };
    assert!(desk.offered(carrier, offer, lane, now));
    offer
}

fn say(to: &'static str, answer: Answer) -> Vec<Say<&'static str, u32>> {
    vec![Say { to, answer, besides: Besides::default(), with: None }]
}

fn done() -> Vec<Say<&'static str, u32>> {
    say("client", Answer::Done)
}

fn none() -> Vec<Say<&'static str, u32>> {
    say("server", Answer::None)
}

fn lane(number: u32) -> Vec<Say<&'static str, u32>> {
    let besides = Besides { cuts: true, own_user: false };
    vec![Say { to: "server", answer: Answer::Lane, besides, with: Some(number) }]
}

fn asked(server: Server, at: SocketAddr, now: Instant) -> Asked {
    let place = place_of(server.holder.1, at.port());
    Asked { carrier: 2, server, at, is_own: true, place, since: now, patience: ASKED, newest: 0 }
}

fn place() -> u32 {
    place_of(B.1, there().port())
}

fn ask(desk: &mut Tried, number: u32, now: Instant) -> Vec<Say<&'static str, u32>> {
    desk.asked(pair(number), asked(SERVER, there(), now), now)
}

#[test]
fn a_lane_goes_to_who_has_the_connections_other_end_once_its_client_is_in_place() {
    let now = Instant::now();
    let mut desk = desk(now);
    offer(&mut desk, 1, 7, now);
    assert_eq!(desk.confirmed(1, Some(pair(70)), EVERYBODY, now), done());
    // Once, and to nobody who holds another connection, or who may not.
    assert_eq!(ask(&mut desk, 71, now), none());
    assert_eq!(ask(&mut desk, 70, now), lane(7));
    assert_eq!(ask(&mut desk, 70, now), none());
    // Not to the client's own namespace.
    offer(&mut desk, 1, 9, now);
    desk.confirmed(1, Some(pair(90)), EVERYBODY, now);
    let inside = asked(Server { holder: A, ..SERVER }, there(), now);
    assert_eq!(desk.asked(pair(90), inside, now), none());
    offer(&mut desk, 1, 8, now);
    desk.confirmed(1, Some(pair(80)), EVERYBODY, now);
    let stranger = asked(Server { groups: 2, ..SERVER }, there(), now);
    assert_eq!(desk.asked(pair(80), stranger, now), none());
}

/// What fails at the client before it is in place must not have been seen: it goes on over TCP.
#[test]
fn nobody_gets_a_lane_whose_client_is_not_in_place() {
    let now = Instant::now();
    let mut desk = desk(now);
    offer(&mut desk, 1, 7, now);
    assert_eq!(ask(&mut desk, 70, now), []);
    // The client's carrier ends: it has taken the lane back.
    assert_eq!(desk.gone(1, now), none());
    assert!(desk.come(3, "client", A, now));
    offer(&mut desk, 3, 8, now);
    assert_eq!(ask(&mut desk, 80, now), []);
    assert_eq!(desk.confirmed(3, Some(pair(80)), EVERYBODY, now), [done(), lane(8)].concat());
    assert_eq!(desk.gone(3, now), []);
    // With an address that is in no group of its it is nobody's.
    assert!(desk.come(4, "client", A, now));
    offer(&mut desk, 4, 9, now);
    desk.confirmed(4, Some(pair(90)), 0, now);
    assert_eq!(ask(&mut desk, 90, now), none());
}

#[test]
fn a_client_that_holds_no_connection_has_no_lane_to_give() {
    let now = Instant::now();
    let mut desk = desk(now);
    offer(&mut desk, 1, 7, now);
    assert_eq!(ask(&mut desk, 70, now), []);
    assert_eq!(desk.confirmed(1, None, EVERYBODY, now), [none(), say("client", Answer::Unproved)].concat());
    // Nor one that says that its connection is another's.
    offer(&mut desk, 1, 8, now);
    desk.confirmed(1, Some(pair(80)), EVERYBODY, now);
    offer(&mut desk, 1, 9, now);
    assert_eq!(desk.confirmed(1, Some(pair(80)), EVERYBODY, now), say("client", Answer::Unproved));
    assert_eq!(ask(&mut desk, 80, now), lane(8));
    // Without a query there is nothing to confirm.
    assert_eq!(desk.confirmed(1, Some(pair(90)), EVERYBODY, now), say("client", Answer::Refused));
}

/// A server asks about a connection that has nothing to do with the client that is on its way to it.
#[test]
fn who_waits_does_so_no_longer_than_anybody_is_on_the_way() {
    let now = Instant::now();
    let mut desk = desk(now);
    assert_eq!(ask(&mut desk, 10, now), none(), "nobody is");
    assert!(desk.come(3, "client", A, now));
    offer(&mut desk, 1, 7, now);
    offer(&mut desk, 3, 8, now);
    assert_eq!(ask(&mut desk, 10, now), []);
    assert_eq!(desk.confirmed(1, Some(pair(70)), EVERYBODY, now), done());
    assert_eq!(desk.confirmed(3, Some(pair(80)), EVERYBODY, now), [done(), none()].concat());
    assert_eq!(ask(&mut desk, 11, now), none());
    // Another listener of that namespace is not concerned.
    assert!(desk.come(4, "client", A, now));
    offer(&mut desk, 4, 9, now);
    let other = asked(SERVER, "10.0.0.2:81".parse().unwrap(), now);
    assert_eq!(desk.asked(pair(12), other, now), none());
}

#[test]
fn a_client_that_is_slow_holds_a_server_up_for_a_moment_and_not_often() {
    let now = Instant::now();
    let mut desk = desk(now);
    let mut at = now;
    for number in 0.. {
        assert!(desk.come(100 + number, "client", A, at));
        if desk.query(100 + number, there(), EVERYBODY, true, at) == Queried::No(Answer::Full) {
            assert_eq!(number as usize, VAIN_MAX.of_holder);
            break;
        }
        assert_eq!(ask(&mut desk, 70, at), []);
        assert_eq!(desk.expire(at + ASKED - Duration::from_millis(1)), []);
        at += ASKED;
        assert_eq!(desk.expire(at), none());
        // Its carrier ends, and with it what is reserved.
        let offers: Vec<u32> = (0..u32::MAX).take(64).filter(|id| desk.offers.get(*id).is_some()).collect();
        offers.into_iter().for_each(|offer| drop(desk.forget(offer, at)));
    }
    // Others are not concerned, nor is it a minute later.
    assert!(desk.come(900, "other", (1000, 77), at));
    offer(&mut desk, 900, 1, at);
    let later = at + Duration::from_secs(60);
    assert!(desk.come(901, "client", A, later));
    offer(&mut desk, 901, 2, later);
}

/// A client that opens one offer before it closes the last used to keep each server waiting for all of its 20 ms.
#[test]
fn a_server_waits_for_nobody_who_came_after_it_had_asked() {
    let now = Instant::now();
    let mut desk = desk(now);
    offer(&mut desk, 1, 7, now);
    assert_eq!(ask(&mut desk, 70, now), []);
    assert!(desk.come(3, "client", A, now));
    offer(&mut desk, 3, 8, now);
    assert_eq!(desk.gone(1, now), none());
    // One that asks now waits for the second, and still does when a third has come and gone.
    assert_eq!(ask(&mut desk, 71, now), []);
    assert!(desk.come(4, "client", A, now));
    offer(&mut desk, 4, 9, now);
    assert_eq!(desk.gone(4, now), []);
    assert_eq!(desk.confirmed(3, Some(pair(71)), EVERYBODY, now), [done(), lane(8)].concat());
}

#[test]
fn a_place_is_learnt_from_a_connection_without_a_lane() {
    let now = Instant::now();
    for early in [false, true] {
        let mut desk = desk(now);
        let service: SocketAddr = "10.96.0.1:80".parse().unwrap();
        assert_eq!(desk.query(1, service, EVERYBODY, true, now), Queried::Probe);
        // The server may ask before its client has said that it is connected; nobody waits.
        if early {
            assert_eq!(ask(&mut desk, 50, now), none());
            assert_eq!(desk.confirmed(1, Some(pair(50)), EVERYBODY, now), done());
        } else {
            // Its client hears when the server has asked, as what it sent before would leave nothing to prove.
            assert_eq!(desk.confirmed(1, Some(pair(50)), EVERYBODY, now), []);
            assert_eq!(ask(&mut desk, 50, now), [none(), done()].concat());
        }
        assert!(desk.held.is_empty());
        assert!(desk.offers.is_empty(), "a probe that has told its tale is over");
        assert!(matches!(desk.query(1, service, EVERYBODY, true, now), Queried::Likely(_)));
        // Where that one wanted to go is its word: it counts for nobody else.
        assert!(desk.come(3, "other", (1000, 5), now));
        assert_eq!(desk.query(3, service, EVERYBODY, false, now), Queried::No(Answer::Unknown));
        // A connection within one namespace teaches nothing.
        assert!(desk.come(4, "inside", B, now));
        assert_eq!(desk.query(4, there(), EVERYBODY, true, now), Queried::Probe);
        desk.confirmed(4, Some(pair(60)), EVERYBODY, now);
        assert_eq!(ask(&mut desk, 60, now), [none(), say("inside", Answer::Done)].concat());
        assert_eq!(desk.query(4, there(), EVERYBODY, false, now), Queried::No(Answer::Unknown));
    }
}

#[test]
fn a_probe_that_tells_nothing_is_not_made_again_at_once_and_nobody_makes_many() {
    let now = Instant::now();
    let mut desk = desk(now);
    let service: SocketAddr = "10.96.0.1:80".parse().unwrap();
    assert_eq!(desk.query(1, service, EVERYBODY, true, now), Queried::Probe);
    assert_eq!(desk.confirmed(1, Some(pair(50)), EVERYBODY, now), []);
    assert_eq!(desk.deadline(), Some(now + HELD));
    assert_eq!(desk.expire(now + HELD), done());
    let later = now + PROBED;
    assert_eq!(desk.expire(later), []);
    assert_eq!(desk.query(1, service, EVERYBODY, true, later), Queried::No(Answer::Unknown));
    let again = now + Duration::from_secs(11);
    for number in 0..20 {
        assert!(desk.come(100 + number, "client", A, again));
        let other = SocketAddr::from(([10, 7, 0, 1], 1000 + number as u16));
        let is_probe = desk.query(100 + number, other, EVERYBODY, true, again) == Queried::Probe;
        assert_eq!(is_probe, (number as usize) < PROBES.of_holder);
    }
}

#[test]
fn a_client_that_dies_leaves_what_it_wrote_to_its_server() {
    let now = Instant::now();
    let mut desk = desk(now);
    let id = offer(&mut desk, 1, 7, now);
    desk.confirmed(1, Some(pair(70)), EVERYBODY, now);
    assert_eq!(desk.hung_up(id, false, now), []);
    assert_eq!(desk.gone(1, now), []);
    // It tells nothing of the server, whenever it was.
    let later = now + HARDLY_OFFERED;
    assert_eq!(desk.hung_up(id, false, later), []);
    assert!(desk.come(3, "client", A, later));
    offer(&mut desk, 3, 8, later);
    assert_eq!(ask(&mut desk, 70, now + Duration::from_secs(3)), lane(7));
}

/// An offer that nobody will take used to have its server ask about each connection for 30 s.
#[test]
fn a_client_that_has_taken_its_lane_back_leaves_no_mark() {
    let now = Instant::now();
    let mut desk = desk(now);
    let id = offer(&mut desk, 1, 7, now);
    assert_eq!(desk.parcel_of(id), None);
    desk.confirmed(1, Some(pair(70)), EVERYBODY, now);
    assert_eq!(desk.parcel_of(id), Some(7));
    assert!(desk.offers.page().tells_of(place()));
    let later = now + HARDLY_OFFERED;
    assert_eq!(desk.hung_up(id, true, later), []);
    assert!(desk.offers.is_empty() && !desk.offers.page().tells_of(place()));
    assert_eq!(ask(&mut desk, 70, later), none());
    // It was disappointed all the same; and only once.
    assert_eq!(desk.query(1, there(), EVERYBODY, false, later), Queried::No(Answer::Unknown));
    assert_eq!(desk.hung_up(id, true, later), []);
    // Where its server asks after all it hears so from a connection without a lane.
    assert_eq!(desk.query(1, there(), EVERYBODY, true, later), Queried::Probe);
    assert_eq!(desk.confirmed(1, Some(pair(71)), EVERYBODY, later), []);
    assert_eq!(ask(&mut desk, 71, later), [none(), done()].concat());
    offer(&mut desk, 1, 8, later);
}

#[test]
fn a_client_that_is_late_hears_that_its_server_has_gone_on() {
    let now = Instant::now();
    let mut desk = desk(now);
    let id = offer(&mut desk, 1, 7, now);
    assert_eq!(ask(&mut desk, 70, now), []);
    let late = now + ASKED;
    assert_eq!(desk.expire(late), none());
    assert_eq!(desk.confirmed(1, Some(pair(70)), EVERYBODY, late), done());
    assert!(desk.offers.get(id).is_none());
}

#[test]
fn an_offer_is_for_the_destination_that_its_client_has_asked_about() {
    let now = Instant::now();
    let mut desk = desk(now);
    offer(&mut desk, 1, 7, now);
    let elsewhere = SocketAddr::new(there().ip(), 81);
    assert_eq!(desk.may_confirm(1, elsewhere, now), Err(Answer::Refused));
    assert!(desk.may_confirm(1, there(), now).is_ok());
}

#[test]
fn a_carrier_is_for_a_few_messages() {
    let now = Instant::now();
    let mut desk = desk(now);
    assert_eq!((0..100).filter(|_| desk.goes_on(1)).count(), SPEAKS_TIMES as usize);
    assert!(desk.goes_on(2) && !desk.goes_on(77));
}

#[test]
fn all_that_is_held_for_anybody_ends() {
    let now = Instant::now();
    let mut desk = desk(now);
    for (carrier, number) in [(11, 7), (12, 8), (13, 9)] {
        assert!(desk.come(carrier, "client", A, now));
        offer(&mut desk, carrier, number, now);
    }
    desk.confirmed(11, Some(pair(70)), EVERYBODY, now);
    assert_eq!(ask(&mut desk, 71, now), []);
    assert_eq!(desk.query(1, "10.5.5.5:1".parse().unwrap(), EVERYBODY, true, now), Queried::Probe);
    let mut at = now;
    while let Some(due) = desk.deadline() {
        assert!(due > at || at == now);
        at = due.max(at);
        desk.expire(at);
    }
    assert!(at <= now + UNCONFIRMED.max(super::super::offers::KEPT));
    assert!(desk.offers.is_empty() && desk.waiting.is_empty() && desk.carriers.is_empty() && desk.by_user.is_empty());
    assert!(desk.quotas.is_unused());
}
