//! Recorded hosts: what is read of them, and which port each of their CPUs gets.

#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, clippy::arithmetic_side_effects)]

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use beeline_topo::host::{Host, Override, Port};
use beeline_topo::rail::Load;
use beeline_topo::reach::links;
use beeline_topo::{PeerRail, Protocol, Question, Rail, Segments, sysfs, xml};

fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(name)
}

fn host(name: &str) -> Host {
    xml::read(&fs::read_to_string(data(name)).unwrap()).unwrap()
}

fn port<'a>(host: &'a Host, name: &str) -> &'a Port {
    host.port(name).unwrap_or_else(|| panic!("{name} is missing in {:?}", host.ports))
}

/// A rail for each port that has one of these names, all in one network.
fn rails(host: &Host, names: &[&str]) -> Vec<Rail> {
    let rail = |(index, name): (usize, &&str)| Rail {
        name: (*name).into(),
        provider: "verbs".into(),
        protocol: Protocol::Roce,
        address: format!("10.0.0.{}/16", index + 1).parse().unwrap(),
        netdev: Some(port(host, name).name().into()),
        pci: None,
        // The place is what the host says.
        node: None,
        speed_mbps: Some(100_000),
        up: true,
        load: Load::default(),
    };
    names.iter().enumerate().map(rail).collect()
}

/// The rail that each CPU takes, by node.
fn taken_by_node(host: &Host, names: &[&str]) -> BTreeMap<u32, String> {
    let rails = rails(host, names);
    let peer = PeerRail { address: "10.0.1.1/16".parse().unwrap(), netdev: None, ..PeerRail::from(&rails[0]) };
    let peer = [peer];
    let links = links(&rails, &peer, &Segments::default());
    let mut taken = BTreeMap::new();
    for cpu in &host.cpus {
        let choice = Question { host, cpu: Some(cpu.id), rails: &rails, peer: &peer, links: &links }.choose();
        let rail = choice.chosen().unwrap().rail.clone();
        let before = taken.insert(cpu.node.unwrap(), rail.clone());
        assert!(before.is_none_or(|before| before == rail), "CPUs of one node differ");
    }
    taken
}

/// How many connections each rail carries when every CPU opens `each`, one after the other, and each is seen by the
/// next.
fn spread(host: &Host, names: &[&str], each: u32) -> BTreeMap<String, u32> {
    let mut rails = rails(host, names);
    let peer = [PeerRail { address: "10.0.1.1/16".parse().unwrap(), netdev: None, ..PeerRail::from(&rails[0]) }];
    let links = links(&rails, &peer, &Segments::default());
    for cpu in (0..each).flat_map(|_| host.cpus.iter().map(|cpu| cpu.id)) {
        let choice = Question { host, cpu: Some(cpu), rails: &rails, peer: &peer, links: &links }.choose();
        let chosen = choice.chosen().unwrap().local;
        rails[chosen].load.connections += 1;
    }
    rails.into_iter().map(|rail| (rail.name, rail.load.connections)).collect()
}

fn by_node(expected: &[(u32, &str)]) -> BTreeMap<u32, String> {
    expected.iter().map(|&(node, rail)| (node, rail.to_owned())).collect()
}

#[test]
fn two_packages_with_an_adapter_of_two_protocols() {
    let host = host("24em64t-2n6c2t-pci.xml");
    assert_eq!(host.name.as_deref(), Some("mirage004"));
    assert_eq!((host.packages.len(), host.nodes.len(), host.cpus.len()), (2, 2, 24));
    assert_eq!(host.nodes[0].memory_bytes, Some(19_316_633_600));
    // CPUs are numbered alternately over the packages.
    assert_eq!((host.node_of_cpu(12), host.node_of_cpu(13)), (Some(0), Some(1)));
    let names: Vec<&str> = host.ports.iter().map(Port::name).collect();
    assert_eq!(names, ["eth0", "eth1", "eth2", "ib0"]);
    // One PCI function with one RDMA device has both ports.
    for name in ["eth2", "ib0"] {
        assert_eq!(port(&host, name).rdma.as_deref(), Some("mlx4_0"));
        assert_eq!(port(&host, name).pci.as_deref(), Some("0000:05:00.0"));
    }
    assert_eq!(
        (&port(&host, "eth0").rdma, port(&host, "eth0").model.as_deref().unwrap()),
        (&None, "82576 Gigabit Network Connection")
    );
}

#[test]
fn two_packages_with_all_ports_at_the_second() {
    let host = host("32em64t-2n8c2t-pci-normalio.xml");
    assert_eq!(host.distances, [[10, 20], [20, 10]]);
    for name in ["eth0", "eth1", "ib0", "mlx5_0"] {
        assert_eq!(port(&host, name).nodes, [1], "{name}");
    }
    assert_eq!((host.distance(Some(0), &[1]).value, host.distance(Some(8), &[1]).value), (20, 10));
    assert_eq!(taken_by_node(&host, &["ib0"]), by_node(&[(0, "ib0"), (1, "ib0")]));
}

#[test]
fn four_packages_with_ports_near_two_nodes_each() {
    let host = host("40intel64-2g2n4c+pci.xml");
    assert_eq!((host.packages.len(), host.nodes.len(), host.cpus.len()), (4, 4, 40));
    assert_eq!((port(&host, "eth0").nodes.as_slice(), port(&host, "ib0").nodes.as_slice()), (&[0, 2][..], &[1, 3][..]));
    assert_eq!(taken_by_node(&host, &["eth0", "ib0"]), by_node(&[(0, "eth0"), (1, "ib0"), (2, "eth0"), (3, "ib0")]));
}

#[test]
fn four_nodes_with_ports_at_each() {
    let host = host("96em64t-4n4d3ca2co-pci.xml");
    assert_eq!((host.packages.len(), host.nodes.len(), host.cpus.len(), host.ports.len()), (16, 4, 96, 8));
    assert_eq!(host.between(0, 3), 26);
    let all: Vec<&str> = host.ports.iter().map(Port::name).collect();
    let taken = taken_by_node(&host, &all);
    for (node, rail) in &taken {
        assert_eq!(port(&host, rail).nodes, [*node], "node {node} takes {rail}");
    }
    assert_eq!(taken.len(), 4);
}

#[test]
fn an_adapter_with_a_path_to_each_package_serves_each_from_its_own() {
    let host = host("constructed-socket-direct.xml");
    let both = ["mlx5_0", "mlx5_1"];
    assert_eq!(taken_by_node(&host, &both), by_node(&[(0, "mlx5_0"), (1, "mlx5_1")]));
    // With one path alone, one package is local to it and the other remote.
    assert_eq!(taken_by_node(&host, &both[..1]), by_node(&[(0, "mlx5_0"), (1, "mlx5_0")]));
    let at = |cpu| host.distance(Some(cpu), &port(&host, "mlx5_0").nodes).value;
    assert_eq!((at(0), at(7)), (10, 21));
}

#[test]
fn connections_spread_over_equal_ports_and_no_further() {
    let counts = |spread: BTreeMap<String, u32>| spread.into_values().collect::<Vec<_>>();
    // Both ports are at the second package: near for half of the 32 CPUs, far for the others, and equal for each.
    let host_32 = host("32em64t-2n8c2t-pci-normalio.xml");
    assert_eq!(counts(spread(&host_32, &["eth0", "eth1"], 1)), [16, 16]);
    assert_eq!(counts(spread(&host_32, &["eth0", "eth1", "ib0"], 3)), [32, 32, 32]);
    // A port near two nodes each, of ten CPUs: what is far stays far, whatever is on the near one.
    let host_40 = host("40intel64-2g2n4c+pci.xml");
    assert_eq!(counts(spread(&host_40, &["eth0", "ib0"], 5)), [100, 100]);
    assert_eq!(counts(spread(&host_40, &["eth0", "eth1", "ib0"], 1)), [10, 10, 20]);
    // Each node's own ports share what its CPUs open.
    let host_96 = host("96em64t-4n4d3ca2co-pci.xml");
    let names: Vec<&str> = host_96.ports.iter().map(Port::name).collect();
    for (name, count) in spread(&host_96, &names, 2) {
        let nodes = &port(&host_96, &name).nodes;
        let sharing = host_96.ports.iter().filter(|other| other.nodes == *nodes).count();
        let cpus = host_96.cpus.iter().filter(|cpu| nodes.contains(&cpu.node.unwrap())).count();
        assert_eq!(count as usize, 2 * cpus / sharing, "{name}");
    }
    assert_eq!(counts(spread(&host("constructed-socket-direct.xml"), &["mlx5_0", "mlx5_1"], 4)), [16, 16]);
}

/// Builds a `/sys` from its listing.
fn unpack(listing: &str, root: &Path) {
    for line in listing.lines() {
        let (name, is_link, value) = match line.split_once(" -> ") {
            Some((name, target)) => (name, true, target),
            None => {
                let (name, value) = line.split_once(" =").unwrap();
                (name, false, value)
            }
        };
        let path = root.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        if is_link {
            std::os::unix::fs::symlink(value, path).unwrap();
        } else {
            fs::write(path, format!("{}\n", value.trim())).unwrap();
        }
    }
}

#[test]
fn the_kernel_s_own_files_tell_the_same_as_hwloc() {
    let root = tempfile::tempdir().unwrap();
    unpack(&fs::read_to_string(data("40intel64-2g2n4c+pci.sys")).unwrap(), root.path());
    let mut from_sys = sysfs::read(root.path()).unwrap();
    let mut from_xml = host("40intel64-2g2n4c+pci.xml");
    // This host's firmware does not say where the Ethernet ports are, and says one of two nodes for InfiniBand. hwloc
    // was told by hand, and so is Beeline.
    assert_eq!(
        (port(&from_sys, "eth0").nodes.as_slice(), port(&from_sys, "ib0").nodes.as_slice()),
        (&[][..], &[2][..])
    );
    let near = |port: &str, nodes: &[u32]| Override { port: port.into(), nodes: nodes.into(), speed_mbps: None };
    let overrides: Vec<Override> = (0..4).map(|index| near(&format!("eth{index}"), &[0, 2])).collect();
    from_sys.apply(&overrides).unwrap();
    from_sys.apply(&[near("qib0", &[1, 3])]).unwrap();
    assert_eq!((port(&from_sys, "eth0").speed_mbps, port(&from_sys, "ib0").speed_mbps), (Some(1_000), Some(40_000)));
    // What only one of them knows: speeds are in /sys, names and models in hwloc's XML.
    from_xml.complete_from(from_sys.clone());
    from_sys.complete_from(from_xml.clone());
    from_xml.packages.iter_mut().for_each(|package| package.model = None);
    from_sys.source.clone_from(&from_xml.source);
    assert_eq!(from_sys, from_xml);
}

#[test]
fn interfaces_in_software_have_the_place_of_what_they_lie_on() {
    let root = tempfile::tempdir().unwrap();
    let listing = "\
devices/system/cpu/cpu0/topology/core_id = 0
devices/system/cpu/cpu1/topology/core_id = 1
devices/system/node/node0/cpulist = 0
devices/system/node/node1/cpulist = 1
devices/system/node/node0/distance = 10 21
devices/system/node/node1/distance = 21 10
devices/pci0000:80/0000:80:02.0/0000:81:00.0/numa_node = 1
devices/pci0000:80/0000:80:02.0/0000:81:00.0/virtio0/net/eth0/speed = 25000
devices/pci0000:80/0000:80:02.0/0000:81:00.0/virtio0/net/eth0/device -> ../../../virtio0
class/net/eth0 -> ../../devices/pci0000:80/0000:80:02.0/0000:81:00.0/virtio0/net/eth0
devices/virtual/net/vlan7/lower_eth0 -> ../../../pci0000:80/0000:80:02.0/0000:81:00.0/virtio0/net/eth0
devices/virtual/net/vlan7/speed = 25000
class/net/vlan7 -> ../../devices/virtual/net/vlan7
devices/virtual/net/veth0/speed = 10000
class/net/veth0 -> ../../devices/virtual/net/veth0
devices/virtual/net/dummy0/mtu = 1500
class/net/dummy0 -> ../../devices/virtual/net/dummy0
class/infiniband/rxe0/ports/1/gid_attrs/ndevs/0 = dummy0
class/infiniband/rxe0/ports/1/rate = 2.5 Gb/sec (1X SDR)
";
    unpack(listing, root.path());
    let host = sysfs::read(root.path()).unwrap();
    let names: Vec<&str> = host.ports.iter().map(Port::name).collect();
    assert_eq!(names, ["dummy0", "eth0", "vlan7"]);
    for name in ["eth0", "vlan7"] {
        let port = port(&host, name);
        assert_eq!((port.nodes.as_slice(), port.pci.as_deref()), (&[1][..], Some("0000:81:00.0")), "{name}");
    }
    let software = port(&host, "rxe0");
    assert_eq!((software.name(), software.nodes.as_slice(), software.speed_mbps), ("dummy0", &[][..], Some(2_500)));
}

#[test]
fn a_host_without_anything_is_an_error_and_this_one_is_not() {
    let root = tempfile::tempdir().unwrap();
    assert!(sysfs::read(root.path()).is_err());
    let here = sysfs::read(Path::new("/sys")).unwrap();
    assert!(!here.cpus.is_empty() && !here.packages.is_empty());
}
