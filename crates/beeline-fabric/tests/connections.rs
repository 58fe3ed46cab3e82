//! Connecting, refusing, ending.

mod common;

use std::io::Write;
use std::net::{Shutdown, TcpStream};

use beeline_fabric::{Error, Event, Filter, Options, PRIVATE_DATA_BYTES_MAX, ports};
use common::{Pair, Side, address, port, provider, until};

#[test]
fn a_port_says_what_it_is() {
    let port = port();
    assert_eq!((port.provider.as_str(), port.address), (provider().as_str(), address()));
    assert!(port.netdev.is_some(), "{port:?}");
    assert!(port.operation_bytes_max >= 1 << 20 && port.link_up == Some(true), "{port:?}");
    assert!(port.name().contains(&port.domain));
}

/// `BEELINE_FABRIC_NODES` says what is expected: `10.9.1.1=0 10.9.2.1=1`. Loopback stands nowhere.
#[test]
fn a_port_stands_at_the_numa_node_of_its_hardware() {
    let expected = std::env::var("BEELINE_FABRIC_NODES").unwrap_or_else(|_| format!("{}=none", address()));
    for (address, node) in expected.split(' ').map(|pair| pair.split_once('=').unwrap()) {
        let port = common::port_at(address.parse().unwrap());
        assert_eq!(port.numa_node.map_or("none".to_owned(), |node| node.to_string()), node, "{port:?}");
        assert_eq!(port.pci.is_some(), node != "none", "{port:?}");
    }
}

#[test]
fn a_port_that_is_not_there_is_named_in_the_error() {
    let filter = Filter { providers: vec![provider()], devices: vec!["nosuch0".to_owned()], ..Filter::default() };
    let Err(Error::NoSuchPort { wanted, present }) = ports(&filter) else { panic!("found nosuch0") };
    assert!(wanted.contains("nosuch0"), "{wanted}");
    assert!(present.contains(&address().to_string()), "{present}");
    let filter = Filter { providers: vec!["nosuchprovider".to_owned()], ..Filter::default() };
    let text = ports(&filter).unwrap_err().to_string();
    assert!(text.contains("nosuchprovider") && text.contains("none"), "{text}");
}

#[test]
fn private_data_goes_both_ways_with_an_acceptance() {
    let (mut a, mut b) = (Side::new(Options::default()), Side::new(Options::default()));
    let to = b.rail.listen(0).unwrap();
    assert_eq!(b.rail.listening_on(), Some(to));
    let (question, answer) = ([7; PRIVATE_DATA_BYTES_MAX], [9; PRIVATE_DATA_BYTES_MAX]);
    let to_b = a.rail.connect(to, &question).unwrap();
    let request = until(&mut a, &mut b, "a request", |_, b| b.take_request());
    assert_eq!(request.data, question);
    assert_eq!(request.peer.map(|peer| peer.ip()), Some(address()));
    let to_a = b.rail.accept(request, &answer).unwrap();
    assert_eq!(until(&mut a, &mut b, "a", |a, _| a.take_connected()), (to_b, answer.to_vec()));
    assert_eq!(until(&mut a, &mut b, "b", |_, b| b.take_connected()), (to_a, Vec::new()));
}

#[test]
fn a_refusal_carries_its_reason_and_closes_the_endpoint() {
    let (mut a, mut b) = (Side::new(Options::default()), Side::new(Options::default()));
    let to = b.rail.listen(0).unwrap();
    let to_b = a.rail.connect(to, b"who are you").unwrap();
    let request = until(&mut a, &mut b, "a request", |_, b| b.take_request());
    b.rail.reject(request, b"not for you").unwrap();
    until(&mut a, &mut b, "a refusal", |a, _| {
        a.events.pop().map(|event| match event {
            Event::Refused { endpoint, data, .. } => {
                assert_eq!((endpoint, data.as_slice()), (to_b, &b"not for you"[..]))
            }
            other => panic!("{other:?}"),
        })
    });
    assert!(matches!(a.rail.close(to_b), Err(Error::NotConnected { .. })));
    // The listener goes on.
    common::join(&mut a, &mut b, to);
}

#[test]
fn nobody_listening_is_a_refusal() {
    let (mut a, mut b) = (Side::new(Options::default()), Side::new(Options::default()));
    let to = b.rail.listen(0).unwrap();
    drop(b);
    b = Side::new(Options::default());
    // Some providers find out at once.
    let Ok(to_b) = a.rail.connect(to, b"") else { return };
    until(&mut a, &mut b, "a refusal", |a, _| {
        a.events.pop().map(|event| match event {
            Event::Refused { endpoint, failure, .. } => {
                assert_eq!(endpoint, to_b);
                assert!(!failure.text.is_empty());
            }
            other => panic!("{other:?}"),
        })
    });
}

/// Anybody can reach the port of the `tcp` provider.
#[test]
fn strangers_who_say_nothing_or_nonsense_hold_up_nobody() {
    if provider() != "tcp" {
        return;
    }
    let (mut a, mut b) = (Side::new(Options::default()), Side::new(Options::default()));
    let to = b.rail.listen(0).unwrap();
    let mut strangers: Vec<TcpStream> = (0..20).map(|_| TcpStream::connect(to).unwrap()).collect();
    for (index, stranger) in strangers.iter_mut().enumerate() {
        match index % 4 {
            0 => {}
            1 => stranger.write_all(&[0xff; 4096]).unwrap(),
            2 => stranger.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap(),
            _ => stranger.shutdown(Shutdown::Both).unwrap(),
        }
    }
    common::join(&mut a, &mut b, to);
    assert!(b.take_request().is_none(), "a stranger passed for a peer");
    drop(strangers);
    common::join(&mut a, &mut b, to);
}

#[test]
fn too_much_private_data_is_an_error_of_ours() {
    let mut a = Side::new(Options::default());
    let to = a.rail.listen(0).unwrap();
    let error = a.rail.connect(to, &[0; PRIVATE_DATA_BYTES_MAX + 1]).unwrap_err();
    assert!(matches!(error, Error::PrivateDataTooLong { .. }), "{error}");
    assert!(matches!(a.rail.listen(0), Err(Error::AlreadyListening { .. })));
}

#[test]
fn closing_one_end_brings_the_other_down_once_and_what_is_posted_there_is_refused() {
    let mut pair = Pair::new();
    let (to_b, to_a) = (pair.to_b, pair.to_a);
    pair.b.rail.close(to_a).unwrap();
    pair.until("down", |a, _| a.is_down(to_b).then_some(()));
    for _ in 0..100 {
        pair.a.look();
    }
    assert_eq!(pair.a.events.len(), 1, "{:?}", pair.a.events);
    assert!(matches!(pair.a.rail.send(to_b, b"x", 1), Err(Error::NotConnected { .. })));
    pair.a.rail.close(to_b).unwrap();
    assert!(matches!(pair.a.rail.send(to_b, b"x", 1), Err(Error::NotConnected { .. })));
    assert!(matches!(pair.a.rail.close(to_b), Err(Error::NotConnected { .. })));
}

#[test]
fn who_gets_no_answer_gets_a_refusal_when_the_rail_ends() {
    let (mut a, mut b) = (Side::new(Options::default()), Side::new(Options::default()));
    let to = b.rail.listen(0).unwrap();
    let to_b = a.rail.connect(to, b"").unwrap();
    let _unanswered = until(&mut a, &mut b, "a request", |_, b| b.take_request());
    drop(b);
    let mut nobody = Side::new(Options::default());
    until(&mut a, &mut nobody, "a refusal", |a, _| {
        a.events.pop().map(|event| match event {
            Event::Refused { endpoint, .. } => assert_eq!(endpoint, to_b),
            other => panic!("{other:?}"),
        })
    });
}

#[test]
fn a_queue_that_has_no_room_for_an_endpoint_says_so() {
    let options = Options { completion_entries: 100, receives: 64, ..Options::default() };
    let mut pair = Pair::with(options);
    let to = pair.b.rail.listening_on().unwrap();
    let error = pair.a.rail.connect(to, b"").unwrap_err();
    assert!(matches!(error, Error::CompletionQueueFull { entries: 100, .. }), "{error}");
    // Nor has the other side: whom it cannot accept, it refuses.
    let mut c = Side::new(Options::default());
    let to_b = c.rail.connect(to, b"").unwrap();
    let request = until(&mut pair.b, &mut c, "a request", |b, _| b.take_request());
    let error = pair.b.rail.accept(request, b"").unwrap_err();
    assert!(matches!(error, Error::CompletionQueueFull { entries: 100, .. }), "{error}");
    until(&mut pair.b, &mut c, "a refusal", |_, c| {
        c.events.pop().map(|event| match event {
            Event::Refused { endpoint, .. } => assert_eq!(endpoint, to_b),
            other => panic!("{other:?}"),
        })
    });
}

#[test]
fn who_cannot_be_accepted_for_lack_of_memory_is_refused() {
    // More than there are addresses.
    let mut a = Side::new(Options { message_bytes: 1 << 41, ..Options::default() });
    let mut b = Side::new(Options::default());
    let to = a.rail.listen(0).unwrap();
    let to_a = b.rail.connect(to, b"").unwrap();
    let request = until(&mut a, &mut b, "a request", |a, _| a.take_request());
    let error = a.rail.accept(request, b"").unwrap_err();
    assert!(matches!(error, Error::NoMemory { .. }), "{error}");
    until(&mut a, &mut b, "a refusal", |_, b| {
        b.events.pop().map(|event| match event {
            Event::Refused { endpoint, .. } => assert_eq!(endpoint, to_a),
            other => panic!("{other:?}"),
        })
    });
}
