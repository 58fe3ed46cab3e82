//! hwloc and the kernel are asked about the host the tests run on, and must agree.

#![allow(clippy::unwrap_used)]

use std::path::Path;

use beeline_topo::sysfs;

#[test]
fn hwloc_and_the_kernel_describe_the_same_host() {
    let mut hwloc = beeline_hwloc::discover().unwrap();
    let mut kernel = sysfs::read(Path::new("/sys")).unwrap();
    // What only hwloc says, or says in another way: names, models, and memory without what the kernel keeps for itself.
    kernel.complete_from(hwloc.clone());
    kernel.source.clone_from(&hwloc.source);
    hwloc.packages.iter_mut().for_each(|package| package.model = None);
    hwloc.nodes.iter_mut().chain(&mut kernel.nodes).for_each(|node| node.memory_bytes = None);
    // A kernel without NUMA has no nodes, and hwloc makes one of the whole host.
    if kernel.nodes.is_empty() {
        hwloc.nodes.clear();
        hwloc.cpus.iter_mut().for_each(|cpu| cpu.node = None);
        hwloc.ports.iter_mut().for_each(|port| port.nodes.clear());
    }
    assert_eq!(hwloc, kernel);
}
