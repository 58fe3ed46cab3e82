//! Where a port sits in the machine: its network device, PCI address and NUMA node, as `/sys` tells them.
//!
//! 1. A hardware RDMA device and its network device share a PCI device. A software one (rxe, siw) has none; its
//!    network device is named by `ports/N/gid_attrs/ndevs/`, and its place is that device's.
//! 2. A network device stands on its hardware directly (`device`), one level above it (virtio: `device/..`), or on
//!    other network devices (`lower_*`: VLAN, bond).

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// A PCI function.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PciAddress {
    pub domain: u16,
    pub bus: u8,
    pub device: u8,
    pub function: u8,
}

impl fmt::Display for PciAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:04x}:{:02x}:{:02x}.{:x}", self.domain, self.bus, self.device, self.function)
    }
}

impl FromStr for PciAddress {
    type Err = ();

    /// The form of `/sys/bus/pci/devices`: `0000:40:00.0`.
    fn from_str(text: &str) -> Result<PciAddress, ()> {
        let (rest, function) = text.split_once('.').ok_or(())?;
        let mut parts = rest.split(':');
        let mut part = || parts.next().ok_or(());
        let (domain, bus, device) = (part()?, part()?, part()?);
        let byte = |text| u8::from_str_radix(text, 16).map_err(|_| ());
        let domain = u16::from_str_radix(domain, 16).map_err(|_| ())?;
        Ok(PciAddress { domain, bus: byte(bus)?, device: byte(device)?, function: byte(function)? })
    }
}

/// Levels of stacked network devices that are followed.
const STACK_DEPTH_MAX: u32 = 4;

/// What `/sys` says, below a root that tests can replace.
pub(crate) struct Sysfs {
    root: PathBuf,
}

impl Sysfs {
    pub fn new() -> Sysfs {
        Sysfs { root: PathBuf::from("/sys") }
    }

    /// The network device of an RDMA device.
    pub fn netdev_of_rdma_device(&self, device: &str) -> Option<String> {
        let ports = self.root.join("class/infiniband").join(component(device)?).join("ports");
        let mut ports: Vec<_> = fs::read_dir(ports).ok()?.flatten().map(|port| port.path()).collect();
        ports.sort();
        ports
            .iter()
            .filter_map(|port| fs::read_to_string(port.join("gid_attrs/ndevs/0")).ok())
            .map(|name| name.trim().to_owned())
            .find(|name| !name.is_empty())
    }

    /// The PCI function that a network device or RDMA device stands on.
    pub fn pci(&self, netdev: Option<&str>, rdma: Option<&str>) -> Option<PciAddress> {
        self.hardware(netdev, rdma).iter().find_map(|path| path.file_name()?.to_str()?.parse().ok())
    }

    /// Its NUMA node; `None` when the machine does not say.
    pub fn numa_node(&self, netdev: Option<&str>, rdma: Option<&str>) -> Option<u32> {
        self.hardware(netdev, rdma).iter().find_map(|path| number(&path.join("numa_node")))
    }

    /// Speed of a network device's link in bits per second.
    pub fn link_speed(&self, netdev: &str) -> Option<u64> {
        let megabits: u64 = number(&self.netdev(netdev)?.join("speed"))?;
        (megabits > 0).then_some(megabits * 1_000_000)
    }

    /// Whether a network device runs. (A provider's own word for its port is as old as the process.)
    pub fn is_up(&self, netdev: &str) -> Option<bool> {
        let state = fs::read_to_string(self.netdev(netdev)?.join("operstate")).ok()?;
        // A device without a notion of carrier says "unknown" while it is up.
        Some(matches!(state.trim(), "up" | "unknown"))
    }

    fn netdev(&self, name: &str) -> Option<PathBuf> {
        Some(self.root.join("class/net").join(component(name)?))
    }

    /// Directories of the hardware below the device, nearest first, with links followed.
    fn hardware(&self, netdev: Option<&str>, rdma: Option<&str>) -> Vec<PathBuf> {
        let rdma = rdma.and_then(component).map(|name| self.root.join("class/infiniband").join(name));
        let netdev = netdev.and_then(|name| self.netdev(name));
        let mut found = Vec::new();
        for class_entry in rdma.into_iter().chain(netdev) {
            collect_hardware(&class_entry, STACK_DEPTH_MAX, &mut found);
        }
        found
    }
}

fn collect_hardware(class_entry: &Path, depth: u32, found: &mut Vec<PathBuf>) {
    if let Ok(device) = fs::canonicalize(class_entry.join("device")) {
        found.extend(device.parent().map(Path::to_owned).into_iter().fold(vec![device.clone()], |mut all, parent| {
            all.push(parent);
            all
        }));
    }
    if depth == 0 {
        return;
    }
    let mut lower: Vec<_> = fs::read_dir(class_entry)
        .into_iter()
        .flatten()
        .flatten()
        .filter(|entry| entry.file_name().as_encoded_bytes().starts_with(b"lower_"))
        .map(|entry| entry.path())
        .collect();
    lower.sort();
    for entry in lower {
        collect_hardware(&entry, depth - 1, found);
    }
}

/// A name that is one component of a path and nothing else.
fn component(name: &str) -> Option<&str> {
    (!name.is_empty() && name != "." && name != ".." && !name.contains('/')).then_some(name)
}

/// The number in a file; `None` for one that is not there, negative (`-1`: not known) or not a number.
fn number<T: FromStr>(path: &Path) -> Option<T> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    /// A `/sys` with one PCI card, one virtio card, a VLAN on the first, and rxe devices on VLAN and a dummy.
    fn machine(name: &str) -> Sysfs {
        let root = std::env::temp_dir().join(format!("fabric-sysfs-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&root);
        let write = |path: &str, text: &str| {
            let path = root.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        write("devices/pci0000:40/0000:40:00.0/numa_node", "1\n");
        write("devices/pci0000:00/0000:00:03.0/numa_node", "0\n");
        write("devices/pci0000:00/0000:00:03.0/virtio0/id", "x");
        write("class/net/eth0/speed", "25000\n");
        write("class/net/eth0/operstate", "up\n");
        write("class/net/eth1/speed", "-1\n");
        write("class/net/eth1/operstate", "lowerlayerdown\n");
        write("class/net/eth0.7/flags", "x");
        write("class/net/dummy0/flags", "x");
        write("class/infiniband/rxe0/ports/1/gid_attrs/ndevs/0", "eth0.7\n");
        write("class/infiniband/rxe1/ports/1/gid_attrs/ndevs/0", "dummy0\n");
        symlink(root.join("devices/pci0000:40/0000:40:00.0"), root.join("class/net/eth0/device")).unwrap();
        symlink(root.join("devices/pci0000:00/0000:00:03.0/virtio0"), root.join("class/net/eth1/device")).unwrap();
        symlink(root.join("class/net/eth0"), root.join("class/net/eth0.7/lower_eth0")).unwrap();
        Sysfs { root }
    }

    #[test]
    fn a_place_is_found_directly_above_virtio_and_below_a_vlan() {
        let sys = machine("place");
        let pci = |text: &str| Some(text.parse().unwrap());
        assert_eq!(sys.pci(Some("eth0"), None), pci("0000:40:00.0"));
        assert_eq!(sys.numa_node(Some("eth0"), None), Some(1));
        assert_eq!(sys.link_speed("eth0"), Some(25_000_000_000));
        assert_eq!([sys.is_up("eth0"), sys.is_up("eth1"), sys.is_up("eth9")], [Some(true), Some(false), None]);
        assert_eq!(sys.pci(Some("eth1"), None), pci("0000:00:03.0"));
        assert_eq!(sys.numa_node(Some("eth1"), None), Some(0));
        assert_eq!(sys.link_speed("eth1"), None);
        let netdev = sys.netdev_of_rdma_device("rxe0");
        assert_eq!(netdev.as_deref(), Some("eth0.7"));
        assert_eq!(sys.numa_node(netdev.as_deref(), Some("rxe0")), Some(1));
        fs::remove_dir_all(&sys.root).unwrap();
    }

    #[test]
    fn a_device_without_hardware_has_no_place_and_a_wild_name_leads_nowhere() {
        let sys = machine("none");
        assert_eq!(sys.netdev_of_rdma_device("rxe1").as_deref(), Some("dummy0"));
        assert_eq!(sys.numa_node(Some("dummy0"), Some("rxe1")), None);
        assert_eq!(sys.pci(Some("dummy0"), None), None);
        assert_eq!(sys.numa_node(Some("../../devices/pci0000:40/0000:40:00.0"), None), None);
        assert_eq!(sys.netdev_of_rdma_device(".."), None);
        fs::remove_dir_all(&sys.root).unwrap();
    }

    #[test]
    fn pci_addresses_are_read_and_written_alike() {
        let text = "0000:c1:1f.7";
        assert_eq!(text.parse::<PciAddress>().unwrap().to_string(), text);
        for bad in ["", "virtio0", "0000:c1:1f", "0000:c1.0", "zz00:00:00.0"] {
            assert!(bad.parse::<PciAddress>().is_err(), "{bad}");
        }
    }
}
