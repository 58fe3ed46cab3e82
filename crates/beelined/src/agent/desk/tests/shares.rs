//! What each may have of the desk, and for how long others are kept waiting.

use super::*;

/// Any number of users together, each of whom keeps within his share.
#[test]
fn a_server_is_kept_waiting_only_so_long_by_all_clients_together() {
    let now = Instant::now();
    let (mut desk, mut at) = (desk(now), now);
    let mut waited = Duration::ZERO;
    for number in 0..200u32 {
        let (id, holder) = (u64::from(100 + number), (2000 + number, 1));
        assert!(desk.come(id, "other", holder, at));
        offer(&mut desk, id, 1, at);
        assert_eq!(ask(&mut desk, number, at), []);
        if desk.expire(at + HASTE) == none() {
            at += HASTE;
            break;
        }
        // Half of them are in place just before nobody waits any more.
        let until = at + ASKED - Duration::from_millis(u64::from(number % 2));
        match number % 2 {
            0 => assert_eq!(desk.expire(until), none()),
            _ => assert_eq!(desk.confirmed(id, Some(pair(9000 + number)), 0, until).len(), 2),
        }
        assert_eq!(desk.vain.counts(until).of_holder(holder), 1, "{number}");
        waited += until - at;
        at = until;
        let _ = desk.gone(id, at);
    }
    assert!(waited >= STALLED_MAX / NEVER_IN_PLACE && waited < STALLED_MAX / 2, "{waited:?}");
    // A client that comes then is waited for no longer than one takes that makes haste. One that does not hears at once
    // that its server has gone on, is not left lying, and not blamed.
    assert!(desk.come(3, "client", A, at));
    let id = offer(&mut desk, 3, 8, at);
    assert_eq!(ask(&mut desk, 80, at), []);
    let hasty = at + HASTE / 2;
    assert_eq!(desk.confirmed(3, Some(pair(80)), EVERYBODY, hasty), [done(), lane(8)].concat());
    assert!(desk.offers.get(id).is_none());
    let id = offer(&mut desk, 3, 9, hasty);
    assert_eq!(ask(&mut desk, 81, hasty), []);
    at = hasty + HASTE;
    assert_eq!(desk.expire(at), none());
    assert_eq!(desk.vain.counts(at).of_holder(A), 0);
    assert_eq!(desk.confirmed(3, Some(pair(81)), EVERYBODY, at), done());
    assert!(desk.offers.get(id).is_none());
    // Another listener is not concerned, nor is it a minute later.
    let other = SocketAddr::new(there().ip(), 81);
    desk.announced(B, [(other, EVERYBODY)], at);
    assert!(desk.come(4, "client", A, at));
    assert!(matches!(desk.query(4, other, EVERYBODY, true, at), Queried::Likely(_)));
    assert_eq!(desk.asked(pair(90), asked(SERVER, other, at), at), []);
    let later = now + Duration::from_secs(60);
    assert!(desk.come(5, "client", A, later));
    offer(&mut desk, 5, 9, later);
    assert_eq!(ask(&mut desk, 91, later), []);
}

#[test]
fn everybody_has_a_share_of_the_agents_time() {
    let now = Instant::now();
    let mut desk = desk(now);
    let spoken = (0..100_000).filter(|_| desk.may_speak(A, now)).count();
    assert_eq!(spoken, MESSAGES.of_holder - 1, "one was for the carrier");
    assert!(!desk.come(9, "client", A, now) && desk.come(9, "other", (7, 7), now));
    assert_eq!((0..1000).filter(|_| desk.may_announce(A, now)).count(), ANNOUNCED.of_holder);
    assert!(desk.may_announce(B, now) && desk.may_speak(B, now));
    assert_eq!((0..1000).filter(|_| desk.seldom_leaves_unread(A, now)).count(), UNREAD.of_holder);
    assert!(desk.seldom_leaves_unread(B, now));
    let later = now + Duration::from_secs(1);
    assert!(desk.may_announce(A, later) && desk.may_speak(A, later));
}

#[test]
fn who_asks_because_of_others_is_heard_when_its_own_offer_comes() {
    let now = Instant::now();
    let mut desk = desk(now);
    // This one stays, as that of a client that has died.
    offer(&mut desk, 1, 7, now);
    desk.confirmed(1, Some(pair(70)), EVERYBODY, now);
    for number in 0..2 * MISSED.of_holder as u32 {
        assert!(desk.may_ask(B, place(), now));
        assert_eq!(ask(&mut desk, 1000 + number, now), none());
    }
    assert!(desk.come(3, "client", A, now));
    offer(&mut desk, 3, 8, now);
    desk.confirmed(3, Some(pair(80)), EVERYBODY, now);
    assert!(desk.may_ask(B, place(), now));
    assert_eq!(ask(&mut desk, 80, now), lane(8));
    // Where nothing is marked nobody has a reason to ask.
    assert!(desk.may_ask(B, place() ^ 1, now));
    let elsewhere = asked(SERVER, "10.0.0.2:81".parse().unwrap(), now);
    (0..MISSED.of_holder as u32).for_each(|number| drop(desk.asked(pair(5000 + number), elsewhere, now)));
    assert!(!desk.may_ask(B, elsewhere.place, now) && desk.may_ask(B, place(), now));
}

#[test]
fn who_asks_about_connections_without_offers_does_so_only_so_often() {
    let now = Instant::now();
    let mut desk = desk(now);
    for number in 0..MISSED.of_holder as u32 {
        assert!(desk.may_ask(B, place(), now));
        assert_eq!(ask(&mut desk, number, now), none());
    }
    assert!(
        !desk.may_ask(B, place(), now)
            && desk.may_ask(A, place(), now)
            && desk.may_ask(B, place(), now + Duration::from_secs(1))
    );
    // Whoever gets what is theirs is not counted.
    let later = now + Duration::from_secs(1);
    for number in 0..MISSED.of_holder as u32 + 1 {
        let id = u64::from(1000 + number);
        assert!(desk.come(id, "client", A, later));
        offer(&mut desk, id, 7, later);
        desk.confirmed(id, Some(pair(number)), EVERYBODY, later);
        assert!(desk.may_ask(B, place(), later));
        assert_eq!(ask(&mut desk, number, later), lane(7));
        desk.gone(id, later);
    }
}

#[test]
fn who_confirms_without_an_offer_or_without_a_connection_costs_no_proof() {
    let now = Instant::now();
    let mut desk = desk(now);
    assert_eq!(desk.may_confirm(1, there(), now), Err(Answer::Refused), "no offer");
    let lost = offer(&mut desk, 1, 7, now);
    assert!(desk.may_confirm(1, there(), now).is_ok());
    let _ = desk.forget(lost, now);
    assert_eq!(desk.may_confirm(1, there(), now), Err(Answer::Refused), "it is gone");
    assert_eq!(desk.may_confirm(99, there(), now), Err(Answer::Refused), "nobody");
    for number in 0..UNPROVED.of_holder as u64 {
        let id = 100 + number;
        assert!(desk.come(id, "client", A, now));
        offer(&mut desk, id, 1, now);
        assert!(desk.may_confirm(id, there(), now).is_ok());
        assert_eq!(desk.confirmed(id, None, EVERYBODY, now), say("client", Answer::Unproved));
        let _ = desk.gone(id, now);
    }
    assert!(desk.come(5000, "client", A, now));
    offer(&mut desk, 5000, 1, now);
    assert_eq!(desk.may_confirm(5000, there(), now), Err(Answer::Full));
    assert!(desk.may_confirm(5000, there(), now + Duration::from_secs(1)).is_ok());
}

#[test]
fn a_client_that_leaves_who_waits_for_it_does_so_only_so_often() {
    let now = Instant::now();
    let mut desk = desk(now);
    for number in 0..VAIN_MAX.of_holder as u64 {
        let id = 100 + number;
        assert!(desk.come(id, "client", A, now));
        offer(&mut desk, id, 1, now);
        assert_eq!(desk.gone(id, now), [], "nobody has waited");
        assert!(desk.come(id, "client", A, now));
        offer(&mut desk, id, 1, now);
        assert_eq!(ask(&mut desk, 70, now), []);
        assert_eq!(desk.gone(id, now), none());
    }
    assert!(desk.come(900, "client", A, now));
    assert_eq!(desk.query(900, there(), EVERYBODY, true, now), Queried::No(Answer::Full));
}

/// On busy CPUs one client in some dozens is late, and each minute used to end with TCP.
#[test]
fn who_is_in_place_in_time_mostly_may_be_late_now_and_then() {
    let (mut desk, mut at) = (desk(Instant::now()), Instant::now());
    let mut connect = |late: bool| {
        let id = 3;
        assert!(desk.come(id, "client", A, at));
        let Queried::Likely(offer) = desk.query(id, there(), EVERYBODY, true, at) else { return false };
        assert!(desk.offered(id, offer, 7, at));
        assert_eq!(ask(&mut desk, 70, at), []);
        at += if late { TARDY } else { TARDY / 100 };
        // Its server is another one: it lets this one wait in vain.
        assert_eq!(desk.confirmed(id, Some(pair(71)), EVERYBODY, at), [done(), none()].concat());
        assert_eq!(ask(&mut desk, 71, at), lane(7));
        let _ = desk.gone(id, at);
        true
    };
    assert!((0..20 * VAIN_MAX.of_holder).all(|number| connect(number % (MAKES_UP + 1) == 0)));
    let late = (0..100).filter(|_| connect(true)).count();
    assert!((VAIN_MAX.of_holder - 2..=VAIN_MAX.of_holder).contains(&late), "{late}");
}

#[test]
fn a_user_who_fills_the_desk_gives_way() {
    let now = Instant::now();
    let mut desk: Tried = Desk::new(page(), true, now);
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
