//! The choice of a link, on hosts as they are sold.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::arithmetic_side_effects)]

use beeline_topo::choice::Verdict;
use beeline_topo::host::{Cpu, Host, Node};
use beeline_topo::rail::Load;
use beeline_topo::reach::links;
use beeline_topo::{Choice, PeerRail, Protocol, Question, Rail, Segments};
use proptest::prelude::*;

/// Two packages with a node and two CPUs each.
fn two_sockets() -> Host {
    let cpu = |id| Cpu { id, core: id % 2, package: id / 2, node: Some(id / 2) };
    Host {
        nodes: (0..2).map(|id| Node { id, memory_bytes: None }).collect(),
        distances: vec![vec![10, 21], vec![21, 10]],
        cpus: (0..4).map(cpu).collect(),
        ..Host::default()
    }
}

fn roce(name: &str, address: &str, node: Option<u32>) -> Rail {
    Rail {
        name: name.into(),
        provider: "verbs".into(),
        protocol: Protocol::Roce,
        address: address.parse().unwrap(),
        netdev: Some(format!("{name}-if")),
        pci: None,
        node,
        speed_mbps: Some(100_000),
        up: true,
        load: Load::default(),
    }
}

fn tcp(name: &str, address: &str, node: Option<u32>) -> Rail {
    Rail { provider: "tcp".into(), protocol: Protocol::Tcp, ..roce(name, address, node) }
}

fn choose_with(host: &Host, cpu: Option<u32>, rails: &[Rail], peer: &[PeerRail]) -> Choice {
    let links = links(rails, peer, &Segments::default());
    Question { host, cpu, rails, peer, links: &links }.choose()
}

fn choose(cpu: u32, rails: &[Rail], peer: &[Rail]) -> Choice {
    let peer: Vec<PeerRail> = peer.iter().map(PeerRail::from).collect();
    choose_with(&two_sockets(), Some(cpu), rails, &peer)
}

fn taken(choice: &Choice) -> (&str, &str) {
    let chosen = choice.chosen().unwrap();
    (&chosen.rail, chosen.peer_rail.as_deref().unwrap())
}

fn verdict(choice: &Choice, rail: &str) -> Verdict {
    choice.candidates.iter().find(|candidate| candidate.rail == rail).unwrap().verdict
}

/// The three layouts of the Socket Direct document: one adapter, used from its own socket and from the other one, and
/// an adapter with a path to each socket.
mod socket_direct {
    use super::*;

    const LOCAL: u32 = 0;
    const REMOTE: u32 = 2;

    #[test]
    fn local_cpu_takes_the_one_adapter() {
        let choice = choose(LOCAL, &[roce("r0", "10.0.0.1/24", Some(0))], &[roce("r0", "10.0.0.2/24", Some(0))]);
        assert_eq!((taken(&choice), choice.chosen().unwrap().distance.value), (("r0", "r0"), 10));
        assert_eq!(choice.chosen().unwrap().effective_mbps, 100_000);
    }

    #[test]
    fn remote_cpu_takes_it_too_and_sees_that_it_is_far() {
        let choice = choose(REMOTE, &[roce("r0", "10.0.0.1/24", Some(0))], &[roce("r0", "10.0.0.2/24", Some(0))]);
        assert_eq!((taken(&choice), choice.chosen().unwrap().distance.value), (("r0", "r0"), 21));
        assert_eq!(choice.chosen().unwrap().effective_mbps, 47_619);
    }

    #[test]
    fn with_a_path_to_each_socket_every_cpu_takes_its_own() {
        // One flat network: each port reaches both of the peer's.
        let here = [roce("r0", "10.0.0.1/24", Some(0)), roce("r1", "10.0.0.2/24", Some(1))];
        let there = [roce("r0", "10.0.0.3/24", Some(0)), roce("r1", "10.0.0.4/24", Some(1))];
        for (cpu, own, other) in [(0, "r0", "r1"), (1, "r0", "r1"), (2, "r1", "r0"), (3, "r1", "r0")] {
            let mut peer: Vec<PeerRail> = there.iter().map(PeerRail::from).collect();
            // The server sits at the socket of the same number.
            peer[0].distance = Some(if own == "r0" { 10 } else { 21 });
            peer[1].distance = Some(if own == "r1" { 10 } else { 21 });
            let choice = choose_with(&two_sockets(), Some(cpu), &here, &peer);
            assert_eq!(taken(&choice), (own, own), "cpu {cpu}");
            assert_eq!(verdict(&choice, other), Verdict::Farther, "cpu {cpu}");
            // A large transfer uses both, one pair of ports each.
            let striped: Vec<_> =
                choice.striped().map(|link| (&*link.rail, link.peer_rail.as_deref().unwrap())).collect();
            assert_eq!(striped, [(own, own), (other, other)], "cpu {cpu}");
        }
    }

    #[test]
    fn load_on_the_local_path_moves_nobody_across_the_interconnect() {
        let mut here = [roce("r0", "10.0.0.1/24", Some(0)), roce("r1", "10.0.0.2/24", Some(1))];
        here[0].load = Load { in_flight_bytes: 1 << 30, connections: 1_000 };
        let choice = choose(LOCAL, &here, &[roce("r0", "10.0.0.3/24", None)]);
        assert_eq!(taken(&choice), ("r0", "r0"));
    }
}

#[test]
fn ports_are_paired_off_where_nobody_says_which_of_the_peer_s_is_near() {
    let here = [roce("r0", "10.0.0.1/24", Some(0)), roce("r1", "10.0.0.2/24", Some(1))];
    let there = [roce("s0", "10.0.0.3/24", None), roce("s1", "10.0.0.4/24", None)];
    assert_eq!(taken(&choose(0, &here, &there)), ("r0", "s0"));
    assert_eq!(taken(&choose(2, &here, &there)), ("r1", "s1"));
    assert_eq!(taken(&choose(2, &here, &there[..1])), ("r1", "s0"));
}

#[test]
fn a_far_fast_adapter_comes_before_a_near_slow_one() {
    let mut here = [roce("near", "10.0.0.1/24", Some(0)), roce("far", "10.0.0.2/24", Some(1))];
    here[0].speed_mbps = Some(10_000);
    let choice = choose(0, &here, &[roce("r", "10.0.0.3/24", None)]);
    assert_eq!((taken(&choice).0, verdict(&choice, "near")), ("far", Verdict::Slower));
}

#[test]
fn of_equal_ports_the_one_with_less_to_carry_is_taken() {
    let mut here = [roce("p0", "10.0.0.1/24", Some(0)), roce("p1", "10.0.0.2/24", Some(0))];
    let there = [roce("r", "10.0.0.3/24", None)];
    let choice = choose(0, &here, &there);
    assert_eq!((taken(&choice).0, verdict(&choice, "p1")), ("p0", Verdict::Equal));
    here[0].load.connections = 1;
    let choice = choose(0, &here, &there);
    assert_eq!((taken(&choice).0, verdict(&choice, "p0")), ("p1", Verdict::Busier));
    // What is in flight tells more than how many connections there are.
    here[1].load.in_flight_bytes = 1;
    assert_eq!(taken(&choose(0, &here, &there)).0, "p0");
}

#[test]
fn load_is_seen_in_proportion_to_speed() {
    let mut here = [roce("p0", "10.0.0.1/24", Some(0)), roce("p1", "10.0.0.2/24", Some(0))];
    here[0].speed_mbps = Some(95_000);
    here[0].load.in_flight_bytes = 950;
    here[1].load.in_flight_bytes = 1_010;
    assert_eq!(taken(&choose(0, &here, &[roce("r", "10.0.0.3/24", None)])).0, "p0");
    here[1].load.in_flight_bytes = 990;
    assert_eq!(taken(&choose(0, &here, &[roce("r", "10.0.0.3/24", None)])).0, "p1");
}

#[test]
fn rdma_comes_before_the_kernel_however_far() {
    let here = [tcp("t", "10.0.1.1/24", Some(0)), roce("r", "10.0.0.1/24", Some(1))];
    let there = [tcp("t", "10.0.1.2/24", None), roce("r", "10.0.0.2/24", None)];
    let choice = choose(0, &here, &there);
    assert_eq!((taken(&choice).0, verdict(&choice, "t")), ("r", Verdict::ThroughKernel));
    // And the kernel's rail takes no part in its stripes.
    assert_eq!(choice.stripe, [0]);
}

#[test]
fn a_port_that_is_used_past_the_kernel_is_said_to_be() {
    let mut tcp = tcp("t", "10.0.0.1/24", Some(0));
    tcp.netdev = Some("r-if".into());
    let here = [roce("r", "10.0.0.1/24", Some(0)), tcp.clone()];
    let there = [roce("r", "10.0.0.2/24", None), Rail { address: "10.0.0.2/24".parse().unwrap(), ..tcp }];
    let choice = choose(0, &here, &there);
    assert_eq!((taken(&choice).0, verdict(&choice, "t")), ("r", Verdict::PortTaken));
    assert_eq!(verdict(&choose(0, &here, &[]), "t"), Verdict::Unreachable);
}

#[test]
fn an_unknown_place_comes_between_near_and_far() {
    let there = [roce("r", "10.0.0.9/24", None)];
    let near = [roce("u", "10.0.0.1/24", None), roce("near", "10.0.0.2/24", Some(0))];
    assert_eq!(taken(&choose(0, &near, &there)).0, "near");
    let far = [roce("far", "10.0.0.1/24", Some(1)), roce("u", "10.0.0.2/24", None)];
    let choice = choose(0, &far, &there);
    assert_eq!(taken(&choice).0, "u");
    assert!(!choice.chosen().unwrap().distance.known);
}

#[test]
fn without_a_cpu_all_places_are_the_same() {
    let here = [roce("r1", "10.0.0.2/24", Some(1)), roce("r0", "10.0.0.1/24", Some(0))];
    let peer = [PeerRail::from(&roce("r", "10.0.0.3/24", None))];
    let choice = choose_with(&two_sockets(), None, &here, &peer);
    assert_eq!((taken(&choice).0, verdict(&choice, "r1")), ("r0", Verdict::Equal));
}

#[test]
fn rails_that_cannot_be_used_are_named_with_the_reason() {
    let mut here = [
        roce("down", "10.0.0.1/24", Some(0)),
        roce("alone", "10.7.0.1/24", Some(0)),
        roce("good", "10.0.0.2/24", Some(1)),
    ];
    here[0].up = false;
    let choice = choose(0, &here, &[roce("r", "10.0.0.3/24", None)]);
    assert_eq!(taken(&choice).0, "good");
    assert_eq!((verdict(&choice, "down"), verdict(&choice, "alone")), (Verdict::Down, Verdict::Unreachable));
    let nobody = choose(0, &here, &[]);
    assert!(nobody.chosen().is_none() && nobody.stripe.is_empty());
    assert_eq!(nobody.candidates.len(), 3);
}

#[test]
fn stripes_share_no_port_and_leave_out_what_is_too_slow() {
    let mut here = [
        roce("a", "10.0.0.1/24", Some(0)),
        roce("b", "10.0.0.2/24", Some(0)),
        roce("slow", "10.0.0.3/24", Some(0)),
        roce("z-same-port", "10.9.0.1/24", Some(0)),
    ];
    here[2].speed_mbps = Some(10_000);
    here[3].netdev = here[0].netdev.clone();
    let there = [
        roce("a", "10.0.0.4/24", None),
        roce("b", "10.0.0.5/24", None),
        roce("c", "10.0.0.6/24", None),
        roce("d", "10.9.0.2/24", None),
    ];
    let choice = choose(0, &here, &there);
    let striped: Vec<_> = choice.striped().map(|link| (&*link.rail, link.peer_rail.as_deref().unwrap())).collect();
    assert_eq!(striped, [("a", "a"), ("b", "b")]);
}

#[test]
fn four_sockets_in_a_ring_take_the_nearer_of_two_far_ones() {
    let mut host = two_sockets();
    host.nodes = (0..4).map(|id| Node { id, memory_bytes: None }).collect();
    host.distances = vec![vec![10, 21, 31, 21], vec![21, 10, 21, 31], vec![31, 21, 10, 21], vec![21, 31, 21, 10]];
    host.cpus = (0..4).map(|id| Cpu { id, core: 0, package: id, node: Some(id) }).collect();
    let here = [roce("r1", "10.0.0.1/24", Some(1)), roce("r2", "10.0.0.2/24", Some(2))];
    let peer = [PeerRail::from(&roce("r", "10.0.0.3/24", None))];
    for (cpu, own) in [(0, "r1"), (1, "r1"), (2, "r2"), (3, "r2")] {
        assert_eq!(taken(&choose_with(&host, Some(cpu), &here, &peer)).0, own, "cpu {cpu}");
    }
}

fn any_rail() -> impl Strategy<Value = Rail> {
    let load = (0_u64..4, 0_u32..4).prop_map(|(bytes, connections)| Load { in_flight_bytes: bytes, connections });
    let place = (0_u8..3, 0_u8..30, proptest::option::of(0_u32..3), proptest::option::of(0_u32..200_000));
    (any::<bool>(), any::<bool>(), place, load).prop_map(|(is_kernel, up, (net, host, node, speed_mbps), load)| {
        let address = format!("10.0.{net}.{}/24", host + 1);
        let rail = if is_kernel { tcp("", &address, node) } else { roce("", &address, node) };
        let name = format!("{}-{address}", rail.provider);
        Rail { netdev: Some(format!("if-{address}")), name, up, load, speed_mbps, ..rail }
    })
}

proptest! {
    #[test]
    fn the_order_of_the_lists_does_not_matter_and_every_rail_is_told_of(
        here in proptest::collection::vec(any_rail(), 0..7),
        there in proptest::collection::vec(any_rail(), 0..7),
        cpu in proptest::option::of(0_u32..5),
        turn in 0_usize..7,
    ) {
        let unique = |mut rails: Vec<Rail>| {
            rails.sort_by(|a, b| a.name.cmp(&b.name));
            rails.dedup_by(|a, b| a.name == b.name);
            rails
        };
        let (here, there) = (unique(here), unique(there));
        let peer: Vec<PeerRail> = there.iter().map(PeerRail::from).collect();
        let choice = choose_with(&two_sockets(), cpu, &here, &peer);
        let (mut turned, mut peer_turned) = (here.clone(), peer.clone());
        turned.rotate_left(turn.min(here.len()));
        peer_turned.reverse();
        let again = choose_with(&two_sockets(), cpu, &turned, &peer_turned);
        let told = |choice: &Choice| -> Vec<_> {
            let of = |c: &beeline_topo::choice::Candidate| (c.rail.clone(), c.peer_rail.clone(), c.effective_mbps, c.verdict);
            choice.candidates.iter().map(of).collect()
        };
        prop_assert_eq!(told(&choice), told(&again));
        prop_assert_eq!(&choice.stripe, &again.stripe);
        for rail in &here {
            prop_assert!(choice.candidates.iter().any(|candidate| candidate.rail == rail.name), "{}", rail.name);
        }
        prop_assert_eq!(choice.chosen().is_some(), !choice.stripe.is_empty());
        let chosen = choice.candidates.iter().filter(|candidate| candidate.verdict == Verdict::Chosen).count();
        prop_assert_eq!(chosen, usize::from(choice.chosen().is_some()));
    }
}
