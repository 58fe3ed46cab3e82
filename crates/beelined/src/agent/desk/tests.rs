use super::*;
use std::time::Instant;

/// Carriers and lanes are numbers here.
type Tried = Desk<&'static str, u32>;

const A: Holder = (1000, 1);
const B: Holder = (1001, 2);
const EVERYBODY: u64 = 1;
const SERVER: Server = Server { holder: B, groups: EVERYBODY };

fn there() -> SocketAddr {
    "10.0.0.2:80".parse().unwrap()
}

fn here() -> SocketAddr {
    "10.0.0.1:4000".parse().unwrap()
}

fn desk(now: Instant) -> Tried {
    let mut desk = Desk::new(Page::create().unwrap(), true, now);
    desk.announced(B, [(there(), EVERYBODY)], now);
    assert!(desk.come(1, "client", A, now) && desk.come(2, "server", B, now));
    desk
}

/// A client with this carrier has its number and its end of a lane.
fn offer(desk: &mut Tried, carrier: u64, number: u32, now: Instant) {
    let queried = desk.query(carrier, there(), EVERYBODY, true, || Some(number), now);
    assert_eq!(queried, Queried::Number { number, likely: true });
    assert!(desk.offered(carrier, number, number, now));
}

fn lane(number: u32) -> Vec<Say<&'static str, u32>> {
    let besides = Besides { cuts: true, own_user: false };
    vec![Say { to: "server", answer: Answer::Lane, besides, with: Some(number) }]
}

fn none() -> Vec<Say<&'static str, u32>> {
    vec![Say { to: "server", answer: Answer::None, besides: Besides::default(), with: None }]
}

fn ask(desk: &mut Tried, number: u32, now: Instant) -> Vec<Say<&'static str, u32>> {
    desk.asked(2, number, SERVER, here(), now).0
}

#[test]
fn a_lane_goes_to_who_has_the_number_once_its_client_is_in_place() {
    let now = Instant::now();
    let mut desk = desk(now);
    offer(&mut desk, 1, 7, now);
    assert_eq!(desk.confirmed(1, here(), EVERYBODY, now), []);
    // Once, and to nobody whose connection comes from elsewhere, or who may not.
    let elsewhere = "10.0.0.1:4001".parse().unwrap();
    assert_eq!(desk.asked(2, 7, SERVER, elsewhere, now).0, none());
    assert_eq!(ask(&mut desk, 7, now), lane(7));
    assert_eq!(ask(&mut desk, 7, now), none());
    offer(&mut desk, 1, 8, now);
    desk.confirmed(1, here(), EVERYBODY, now);
    assert_eq!(desk.asked(2, 8, Server { groups: 2, ..SERVER }, here(), now).0, none());
}

/// What fails at the client before it is in place must not have been seen: it goes on over TCP.
#[test]
fn nobody_gets_a_lane_whose_client_is_not_in_place() {
    let now = Instant::now();
    let mut desk = desk(now);
    offer(&mut desk, 1, 7, now);
    assert_eq!(ask(&mut desk, 7, now), []);
    // The client's carrier ends: it has taken the lane back.
    assert_eq!(desk.gone(1), none());
    assert!(desk.come(3, "client", A, now));
    offer(&mut desk, 3, 8, now);
    assert_eq!(ask(&mut desk, 8, now), []);
    assert_eq!(desk.confirmed(3, here(), EVERYBODY, now), lane(8));
    assert_eq!(desk.gone(3), []);
    // With an address that is in no group of its it is nobody's.
    assert!(desk.come(4, "client", A, now));
    offer(&mut desk, 4, 9, now);
    desk.confirmed(4, here(), 0, now);
    assert_eq!(ask(&mut desk, 9, now), none());
}

#[test]
fn a_client_that_is_slow_holds_a_server_up_for_a_moment_and_not_often() {
    let now = Instant::now();
    let mut desk = desk(now);
    for number in 1.. {
        let queried = desk.query(1, there(), EVERYBODY, true, || Some(number), now);
        if queried == Queried::No(Answer::Full) {
            assert_eq!(number as usize, VAIN_MAX.of_holder + 1);
            break;
        }
        assert!(desk.offered(1, number, number, now));
        assert_eq!(ask(&mut desk, number, now), []);
        assert_eq!(desk.expire(now + ASKED - Duration::from_millis(1)), []);
        assert_eq!(desk.expire(now + ASKED), none());
        assert_eq!(desk.confirmed(1, here(), EVERYBODY, now), []);
        assert_eq!(ask(&mut desk, number, now), none());
    }
    // Others are not concerned, nor is it a minute later.
    let other = (1000, 77);
    assert!(desk.come(9, "other", other, now));
    offer(&mut desk, 9, 1_000_000, now);
    let later = now + Duration::from_secs(60);
    assert!(desk.come(10, "client", A, later));
    offer(&mut desk, 10, 1_000_001, later);
}

#[test]
fn a_number_is_not_to_be_guessed() {
    let now = Instant::now();
    let mut desk = desk(now);
    offer(&mut desk, 1, 7, now);
    desk.confirmed(1, here(), EVERYBODY, now);
    for wrong in 0..WRONG_MAX.of_holder as u32 {
        assert_eq!(ask(&mut desk, 100 + wrong, now), none());
    }
    assert_eq!(ask(&mut desk, 7, now), none(), "not even the right one");
    assert_eq!(ask(&mut desk, 7, now + Duration::from_secs(1)), lane(7));
}

#[test]
fn a_place_is_learnt_from_a_number_without_a_lane() {
    let now = Instant::now();
    let mut desk = desk(now);
    let service: SocketAddr = "10.96.0.1:80".parse().unwrap();
    let queried = desk.query(1, service, EVERYBODY, true, || Some(5), now);
    assert_eq!(queried, Queried::Number { number: 5, likely: false });
    desk.probed(5, now);
    let (says, client) = desk.asked(2, 5, SERVER, here(), now);
    assert_eq!(says, none());
    desk.learnt(client.unwrap(), SERVER, Some(there()), now);
    let queried = desk.query(1, service, EVERYBODY, true, || Some(6), now);
    assert_eq!(queried, Queried::Number { number: 6, likely: true });
    // Where that one wanted to go is its word: it counts for nobody else.
    assert!(desk.come(3, "other", (1000, 5), now));
    assert_eq!(desk.query(3, service, EVERYBODY, false, || Some(8), now), Queried::No(Answer::Unknown));
    // A connection within one namespace teaches nothing.
    assert!(desk.come(4, "inside", B, now));
    assert_eq!(desk.query(4, there(), EVERYBODY, true, || Some(9), now), Queried::Number { number: 9, likely: false });
    desk.probed(9, now);
    assert_eq!(desk.asked(2, 9, SERVER, here(), now).1, None);
}

#[test]
fn a_client_that_dies_leaves_what_it_wrote_to_its_server() {
    let now = Instant::now();
    let mut desk = desk(now);
    offer(&mut desk, 1, 7, now);
    desk.confirmed(1, here(), EVERYBODY, now);
    desk.hung_up(7, now);
    assert_eq!(desk.gone(1), []);
    assert_eq!(ask(&mut desk, 7, now + Duration::from_secs(3)), lane(7));
}

#[test]
fn all_that_is_held_for_anybody_ends() {
    let now = Instant::now();
    let mut desk = desk(now);
    for (carrier, number) in [(11, 7), (12, 8), (13, 9)] {
        assert!(desk.come(carrier, "client", A, now));
        offer(&mut desk, carrier, number, now);
    }
    desk.confirmed(11, here(), EVERYBODY, now);
    desk.query(1, "10.5.5.5:1".parse().unwrap(), EVERYBODY, true, || Some(10), now);
    let mut at = now;
    while let Some(due) = desk.deadline() {
        assert!(due > at || at == now);
        at = due.max(at);
        desk.expire(at);
    }
    assert!(at <= now + KEPT && desk.offers.is_empty() && desk.carriers.is_empty() && desk.shares.is_unused());
}

#[test]
fn a_user_who_fills_the_desk_gives_way() {
    let now = Instant::now();
    let mut desk: Tried = Desk::new(Page::create().unwrap(), true, now);
    let mut id = 0;
    let mut come = |desk: &mut Tried, holder| {
        id += 1;
        desk.come(id, "carrier", holder, now)
    };
    // Two users, in as many namespaces as they like.
    for user in [1, 2] {
        let taken = (0..5000).filter(|namespace| come(&mut desk, (user, *namespace))).count();
        assert_eq!(taken, CARRIERS.of_user);
    }
    assert!(come(&mut desk, (3, 1)) && come(&mut desk, (3, 1)));
    assert!(!come(&mut desk, (1, 1)));
}
