//! What is shown of a status that has some of everything.

use beeline_topo::{PeerRail, Protocol, Rail, rail::Load};

use super::*;
use crate::document::{Data, Draining, LinkStatus, Medians, PathStatus, PathTimes, Peer, RailStatus};

fn rail() -> Rail {
    Rail {
        name: "verbs/mlx5_0".into(),
        provider: "verbs".into(),
        protocol: Protocol::Roce,
        address: "10.0.0.1/24".parse().unwrap(),
        netdev: None,
        pci: None,
        node: None,
        speed_mbps: Some(100_000),
        up: true,
        load: Load { in_flight_bytes: 2048, connections: 7 },
    }
}

fn counts_of(counts: &[(&str, u64)]) -> Counts {
    counts.iter().map(|(name, count)| ((*name).to_owned(), *count)).collect()
}

fn document() -> Document {
    let peer = |name: &str, is_up: bool| Peer {
        name: name.into(),
        is_up,
        address: "10.0.0.2:4797".into(),
        up_s: 7300,
        round_trip_us: is_up.then_some(80),
        speaks_for: vec!["10.0.0.2".into()],
        rails: vec![PeerRail::from(&rail()), PeerRail::from(&rail())],
        certificate_days: Some(3),
        last_end: (!is_up).then(|| "connection\x1b refused".into()),
    };
    let path = |rail: &str| Path { rail: rail.into(), peer_rail: "verbs/a".into() };
    Document {
        version: "1".into(),
        pid: 7,
        name: "alpha".into(),
        instance: 9,
        insecure: false,
        listen: vec!["[::]:4797".into()],
        speaks_for: vec!["10.0.0.1".into()],
        certificate_days: Some(300),
        peers: vec![peer("beta", true), peer("gamma", false)],
        control_ends: counts_of(&[("silent", 2), ("tls", 0)]),
        tunables: counts_of(&[("spin_us", 50)]),
        data: Data {
            uptime_s: 100,
            rails: vec![
                RailStatus { id: 1, rail: rail(), trouble: None, registered_bytes: 0 },
                RailStatus {
                    id: 2,
                    rail: Rail { address: "10.0.0.9/24".parse().unwrap(), ..rail() },
                    trouble: None,
                    registered_bytes: 0,
                },
            ],
            links: vec![LinkStatus {
                peer: "beta".into(),
                rail: "verbs/mlx5_0".into(),
                peer_rail: 4,
                peer_rail_name: "verbs/a".into(),
                up: true,
                messages_sent: 3,
                messages_received: 4,
                bytes_sent: 5_000_000_000,
                in_flight_bytes: 0,
                measured_mbps: None,
            }],
            connections: vec![ConnectionStatus {
                client: "10.0.0.1:5".into(),
                server: "10.0.0.2:6".into(),
                client_is_here: true,
                peer: "beta".into(),
                state: "open".into(),
                cpu: None,
                paths: vec![path("verbs/mlx5_0"), path("tcp/eth0")],
                bytes_sent: 1,
                bytes_received: 2,
                age_s: 3,
            }],
            paths: vec![PathStatus {
                peer: "beta".into(),
                short: Some(PathTimes { bridge_ns: 30_250, tcp_ns: 20_000, slower: true }),
                there: Some(PathTimes { bridge_ns: 400_000, tcp_ns: 900_000, slower: false }),
                back: None,
                trouble: None,
            }],
            draining: Some(Draining { connections: 3, left_s: 41 }),
            refusals: counts_of(&[("no_peer", 5), ("full", 0)]),
            totals: counts_of(&[("links_made", 1)]),
            share: Medians { own: Some(700), ..Medians::default() },
        },
    }
}

#[test]
fn peers_rails_connections_and_reasons_are_shown() {
    let text = render(&document());
    for expected in [
        "alpha (beelined 1, process 7), up for 100 s",
        "beta   up     10.0.0.2:4797  2 h  80 us      1  10.0.0.2 (certificate: 3 days)",
        "gamma  down   10.0.0.2:4797    -      -      -  -",
        "gamma: connection? refused",
        "   1  verbs/mlx5_0  10.0.0.1/24  -       100 Gb/s     -            7   2.00 KiB  open",
        "   2  verbs/mlx5_0  10.0.0.9/24  -       100 Gb/s     -            7   2.00 KiB  another address of rail 1",
        "4.66 GiB",
        "STOPS: takes no new connections; 3 are left, for 41 s at most\n",
        "beta        30.2 us  20.0 us     400.0 us  900.0 us           -    -  TCP is faster for some\n",
        "10.0.0.1:5  10.0.0.2:6  beta  open   verbs/mlx5_0, tcp/eth0   1 B       2 B  3 s",
        "        5  no_peer: The destination is on another host, for which no bridge speaks that ours knows.\n",
        "Since the start: links made 1\n",
        "Control connections ended: silent 2\n",
    ] {
        assert!(text.contains(expected), "{expected}\n---\n{text}");
    }
    assert!(!text.contains("full"), "what has not happened is not shown\n{text}");
}

#[test]
fn a_long_list_of_connections_is_cut() {
    let one = document().data.connections.remove(0);
    let text = connections(&vec![one; 25]);
    assert_eq!(text.matches("10.0.0.1:5").count(), 20);
    assert!(text.ends_with("and 5 more; --json lists them all\n"), "{text}");
    assert_eq!(connections(&[]), "");
}

#[test]
fn every_refusal_is_a_reason() {
    for name in crate::document::REFUSALS {
        let reason = format!("bridge_{name}");
        assert!(Reason::ALL.iter().any(|known| known.name() == reason), "{reason}");
    }
}

#[test]
fn a_document_survives_json() {
    let text = serde_json::to_string(&document()).unwrap();
    assert_eq!(serde_json::from_str::<Document>(&text).unwrap(), document());
}
