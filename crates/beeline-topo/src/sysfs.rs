//! A host as the Linux kernel describes it in `/sys`, for where hwloc is not installed.
//!
//! 1. Every file may be missing, unreadable or of another form: containers hide some, old kernels lack some. What
//!    cannot be read is unknown; only a host without a CPU is an error.
//! 2. A network interface is a port if it belongs to a device, lies on one (bond, VLAN, bridge), or has an RDMA device
//!    (also one in software). Others (loopback, tunnels, ends of containers) lead nowhere by themselves.
//! 3. A port's place is its device's `numa_node`, or the nodes of its `local_cpulist`; if that is all nodes, it is
//!    unknown.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::host::{Cpu, Host, LOCAL_DISTANCE, Node, Package, Port};
use crate::sets;

/// How deep interfaces may lie on each other.
const STACK_MAX: u32 = 4;

/// Reads the host whose `/sys` is at `root`.
pub fn read(root: &Path) -> io::Result<Host> {
    let mut host = Host { source: "the kernel (/sys)".into(), ..Host::default() };
    let nodes = read_nodes(&mut host, root);
    read_cpus(&mut host, root, &nodes);
    if host.cpus.is_empty() {
        let why = format!("{} describes no CPU", root.join("devices/system/cpu").display());
        return Err(io::Error::new(io::ErrorKind::NotFound, why));
    }
    read_ports(&mut host, root, &nodes);
    host.put_in_order();
    Ok(host)
}

/// The node of each CPU.
type NodeOf = BTreeMap<u32, u32>;

fn read_nodes(host: &mut Host, root: &Path) -> NodeOf {
    let mut node_of = NodeOf::new();
    for (id, directory) in numbered(&root.join("devices/system/node"), "node") {
        host.nodes.push(Node { id, memory_bytes: memory_bytes(&directory) });
        for cpu in word(&directory, "cpulist").and_then(|text| sets::list(&text)).unwrap_or_default() {
            node_of.insert(cpu, id);
        }
        let row = word(&directory, "distance").unwrap_or_default();
        host.distances.push(row.split_whitespace().filter_map(|number| number.parse().ok()).collect());
    }
    // A kernel without NUMA says nothing of nodes, and a row for each node is the only table that can be used.
    if host.distances.iter().any(|row| row.len() != host.nodes.len()) || host.distances == [[LOCAL_DISTANCE]] {
        host.distances.clear();
    }
    node_of
}

fn memory_bytes(directory: &Path) -> Option<u64> {
    let text = fs::read_to_string(directory.join("meminfo")).ok()?;
    let line = text.lines().find(|line| line.contains("MemTotal:"))?;
    let kib: u64 = line.split_whitespace().rev().nth(1)?.parse().ok()?;
    kib.checked_mul(1024)
}

fn read_cpus(host: &mut Host, root: &Path, nodes: &NodeOf) {
    let directory = root.join("devices/system/cpu");
    let online = word(&directory, "online").and_then(|text| sets::list(&text));
    for (id, cpu) in numbered(&directory, "cpu") {
        if online.as_ref().is_some_and(|online| !online.contains(&id)) {
            continue;
        }
        let topology = |name: &str| word(&cpu, &format!("topology/{name}")).and_then(|text| text.parse().ok());
        let package = topology("physical_package_id").unwrap_or(0);
        if host.packages.iter().all(|known| known.id != package) {
            host.packages.push(Package { id: package, model: None });
        }
        let core = topology("core_id").unwrap_or(id);
        host.cpus.push(Cpu { id, core, package, node: nodes.get(&id).copied() });
    }
}

fn read_ports(host: &mut Host, root: &Path, nodes: &NodeOf) {
    let mut rdma_of: BTreeMap<String, String> = BTreeMap::new();
    let mut alone: Vec<Port> = Vec::new();
    for (name, directory) in entries(&root.join("class/infiniband")) {
        let netdevs = netdevs_of_rdma(&directory);
        if netdevs.is_empty() {
            let port = Port { rdma: Some(name.clone()), speed_mbps: rdma_speed(&directory), ..Port::default() };
            alone.push(place(port, &directory, host, nodes));
        }
        rdma_of.extend(netdevs.into_iter().map(|netdev| (netdev, name.clone())));
    }
    for (name, directory) in entries(&root.join("class/net")) {
        let rdma = rdma_of.get(&name).cloned();
        let Some(device) = device_below(root, &directory, STACK_MAX).or_else(|| rdma.is_some().then(PathBuf::new))
        else {
            continue;
        };
        let own_speed = word(&directory, "speed").and_then(|text| text.parse().ok()).filter(|&speed| speed > 0);
        let rdma_directory = rdma.as_ref().map(|rdma| root.join("class/infiniband").join(rdma));
        let speed_mbps = own_speed.or_else(|| rdma_speed(&rdma_directory?));
        let port = Port { netdev: Some(name), rdma, speed_mbps, ..Port::default() };
        host.ports.push(place(port, &device, host, nodes));
    }
    host.ports.append(&mut alone);
}

/// The interfaces of an RDMA device: those of its PCI function, or those that its addresses belong to.
fn netdevs_of_rdma(directory: &Path) -> BTreeSet<String> {
    let beside = entries(&directory.join("device/net")).into_iter().map(|(name, _)| name);
    let mut netdevs: BTreeSet<String> = beside.collect();
    for (_, port) in entries(&directory.join("ports")) {
        for (_, file) in entries(&port.join("gid_attrs/ndevs")) {
            netdevs.extend(fs::read_to_string(file).ok().map(|text| text.trim().to_owned()));
        }
    }
    netdevs.remove("");
    netdevs
}

/// The speed of an RDMA device's first port: `100 Gb/sec (4X EDR)`.
fn rdma_speed(directory: &Path) -> Option<u32> {
    let text = word(directory, "ports/1/rate")?;
    let (number, _) = text.split_once(" Gb/sec")?;
    // Some rates have a half: 2.5 Gb/s.
    let (whole, tenths) = number.split_once('.').unwrap_or((number, "0"));
    let (whole, tenths): (u32, u32) = (whole.parse().ok()?, tenths.parse().ok().filter(|&tenths| tenths < 10)?);
    whole.checked_mul(1_000)?.checked_add(tenths.checked_mul(100)?)
}

/// The directory in which `device` leads to the hardware: the interface's own, or that of the one it lies on, if all
/// that it lies on are at the same place.
fn device_below(root: &Path, directory: &Path, depth: u32) -> Option<PathBuf> {
    if directory.join("device").exists() {
        return Some(directory.to_owned());
    }
    let depth = depth.checked_sub(1)?;
    let names = entries(directory).into_iter().filter_map(|(name, _)| name.strip_prefix("lower_").map(str::to_owned));
    let below: Vec<PathBuf> =
        names.filter_map(|name| device_below(root, &root.join("class/net").join(name), depth)).collect();
    let numa_node = |directory: &PathBuf| numa_node(&directory.join("device"));
    let first = below.first()?;
    let is_one_place = below.iter().all(|other| numa_node(other) == numa_node(first));
    // Interfaces at several places make one that is nowhere: an empty path has no device.
    Some(if is_one_place { first.clone() } else { PathBuf::new() })
}

/// Fills in where a port is, from the device that `directory` belongs to.
fn place(mut port: Port, directory: &Path, host: &Host, nodes: &NodeOf) -> Port {
    if let [only] = host.nodes.as_slice() {
        port.nodes = vec![only.id];
    }
    let Ok(device) = fs::canonicalize(directory.join("device")) else { return port };
    port.pci = pci_function(&device);
    let functions = device.ancestors().take_while(|path| path.file_name().is_some_and(|name| name != "devices"));
    // virtio and the like: the device's parent is the PCI function that knows the place.
    for directory in functions {
        if let Some(node) = numa_node(directory).filter(|node| host.nodes.iter().any(|known| known.id == *node)) {
            port.nodes = vec![node];
            return port;
        }
        if let Some(cpus) = word(directory, "local_cpulist").and_then(|text| sets::list(&text)) {
            port.nodes = cpus.iter().filter_map(|cpu| nodes.get(cpu).copied()).collect();
            return port;
        }
    }
    port
}

fn numa_node(device: &Path) -> Option<u32> {
    word(device, "numa_node")?.parse().ok()
}

/// The innermost PCI function on a device's path.
fn pci_function(device: &Path) -> Option<String> {
    let is_function = |name: &&str| {
        let hex = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        let parts: Vec<&str> = name.split([':', '.']).collect();
        matches!(parts.as_slice(), [domain, bus, slot, function]
            if domain.len() >= 4 && bus.len() == 2 && slot.len() == 2 && [domain, bus, slot, function].iter().all(|p| hex(p)))
    };
    let names = device.ancestors().filter_map(|path| path.file_name()?.to_str());
    names.into_iter().find(is_function).map(str::to_owned)
}

/// Entries `PREFIXnumber` in the order of the numbers.
fn numbered(directory: &Path, prefix: &str) -> Vec<(u32, PathBuf)> {
    let number = |(name, path): (String, PathBuf)| Some((name.strip_prefix(prefix)?.parse().ok()?, path));
    let mut found: Vec<(u32, PathBuf)> = entries(directory).into_iter().filter_map(number).collect();
    found.sort();
    found
}

fn entries(directory: &Path) -> Vec<(String, PathBuf)> {
    let read = fs::read_dir(directory).into_iter().flatten().flatten();
    let mut found: Vec<_> =
        read.filter_map(|entry| Some((entry.file_name().into_string().ok()?, entry.path()))).collect();
    found.sort();
    found
}

/// A file's text without the space around it.
fn word(directory: &Path, name: &str) -> Option<String> {
    fs::read_to_string(directory.join(name)).ok().map(|text| text.trim().to_owned())
}
