//! On a host of two packages with a network port at each, as `make test-rdma` makes it in a virtual machine
//! (`tests/rdma/run.sh --numa`): what is seen of it, and the three layouts of a Socket Direct adapter.

#![allow(clippy::unwrap_used, clippy::indexing_slicing)]

use std::path::Path;

use beeline_topo::host::Host;
use beeline_topo::rail::Load;
use beeline_topo::{Choice, Link, PeerRail, Protocol, Question, Rail, sysfs};
use nix::sched::{CpuSet, sched_getcpu, sched_setaffinity};
use nix::unistd::Pid;

/// The guest's CPUs, with the node of each.
const CPUS: [(u32, u32); 4] = [(0, 0), (1, 0), (2, 1), (3, 1)];

/// Port n of the guest, which sits at node n - 1. The rail does not say so: the host has to.
fn rail(number: u32) -> Rail {
    Rail {
        name: format!("verbs/rxe{}", number - 1),
        provider: "verbs".into(),
        protocol: Protocol::Roce,
        address: format!("10.9.{number}.1/24").parse().unwrap(),
        netdev: Some(format!("port{number}")),
        pci: None,
        node: None,
        speed_mbps: None,
        up: true,
        load: Load::default(),
    }
}

/// The choice for a thread that really runs on `cpu`, towards a peer that has the same rails.
fn choose_on(cpu: u32, host: &Host, rails: &[Rail]) -> Choice {
    let mut only = CpuSet::new();
    only.set(usize::try_from(cpu).unwrap()).unwrap();
    sched_setaffinity(Pid::from_raw(0), &only).unwrap();
    let here = u32::try_from(sched_getcpu().unwrap()).unwrap();
    assert_eq!(here, cpu);
    let peer: Vec<PeerRail> = rails.iter().map(PeerRail::from).collect();
    let links: Vec<Link> = (0..rails.len()).map(|index| Link { local: index, peer: index }).collect();
    Question { host, cpu: Some(here), rails, peer: &peer, links: &links }.choose()
}

fn check(host: &Host) {
    assert_eq!((host.packages.len(), host.nodes.len(), host.cpus.len()), (2, 2, 4), "{host:?}");
    assert_eq!(host.distances, [[10, 21], [21, 10]]);
    for (number, node) in [(1, 0), (2, 1)] {
        let port = host.port(&format!("port{number}")).unwrap();
        assert_eq!((port.nodes.as_slice(), port.rdma.clone()), (&[node][..], Some(format!("rxe{node}"))));
        assert!(port.pci.is_some());
    }
    for (cpu, node) in CPUS {
        assert_eq!(host.node_of_cpu(cpu), Some(node));
        // One adapter, at the first package: local to its CPUs, remote to the others.
        let one = choose_on(cpu, host, &[rail(1)]);
        let chosen = one.chosen().unwrap();
        assert_eq!((chosen.rail.as_str(), chosen.distance.value), ("verbs/rxe0", if node == 0 { 10 } else { 21 }));
        // A path to each package: every CPU has its own, and large transfers have both.
        let both = choose_on(cpu, host, &[rail(1), rail(2)]);
        let chosen = both.chosen().unwrap();
        assert_eq!((chosen.rail.clone(), chosen.distance.value), (format!("verbs/rxe{node}"), 10));
        assert!(chosen.distance.known);
        assert_eq!(both.striped().count(), 2);
    }
}

#[test]
#[ignore = "needs two packages with a port at each: make test-rdma"]
fn each_cpu_takes_the_port_of_its_own_package() {
    check(&beeline_hwloc::discover().unwrap());
    check(&sysfs::read(Path::new("/sys")).unwrap());
}
