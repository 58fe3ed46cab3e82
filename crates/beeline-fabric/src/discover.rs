//! Which fabric ports this host has.
//!
//! 1. A port is one provider on one local address. A device with two addresses gives two ports.
//! 2. Only ports that carry messages and remote memory access over connections (`FI_EP_MSG`, `FI_MSG | FI_RMA`) and
//!    deliver a message after the write before it (`FI_ORDER_SAW`) are listed.
//! 3. The `verbs` provider covers InfiniBand, RoCE and iWARP; `tcp` runs on every network device. Loopback and
//!    link-local addresses are listed only when they are asked for by name.
//! 4. What is listed is what is there now, but for RDMA devices: the provider knows those that were there when the
//!    process first asked.

use std::ffi::CString;
use std::fmt;
use std::net::IpAddr;

use crate::error::{Error, Failure};
use crate::handles::{ENODATA, Info};
use crate::sysfs::{PciAddress, Sysfs};
use crate::{address, ffi};

/// Providers that are asked when the filter names none, the better first.
pub const PROVIDERS: [&str; 2] = ["verbs", "tcp"];

/// Which ports are wanted. An empty list wants all.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Filter {
    pub providers: Vec<String>,
    /// Names of network devices or of RDMA devices.
    pub devices: Vec<String>,
    pub addresses: Vec<IpAddr>,
}

impl Filter {
    fn admits(&self, port: &Port) -> bool {
        let names = [Some(&port.domain), port.netdev.as_ref()];
        let by_device = self.devices.is_empty() || names.iter().flatten().any(|name| self.devices.contains(name));
        let by_address = self.addresses.is_empty() || self.addresses.contains(&port.address);
        let named = self.addresses.contains(&port.address) || names.iter().flatten().any(|n| self.devices.contains(n));
        by_device && by_address && (named || !is_confined(port.address))
    }
}

impl fmt::Display for Filter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut parts = Vec::new();
        let mut part = |what: &str, names: Vec<String>| {
            if !names.is_empty() {
                parts.push(format!("{what} {}", names.join(" or ")));
            }
        };
        part("provider", self.providers.clone());
        part("device", self.devices.clone());
        part("address", self.addresses.iter().map(IpAddr::to_string).collect());
        f.write_str(if parts.is_empty() { "any" } else { "" })?;
        f.write_str(&parts.join(", "))
    }
}

/// An address that leads no further than this host or this link.
fn is_confined(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => v4.is_loopback() || v4.is_link_local(),
        IpAddr::V6(v6) => v6.is_loopback() || v6.is_unicast_link_local(),
    }
}

/// A fabric port of this host, from which a [`crate::Rail`] can be opened.
#[derive(Clone)]
pub struct Port {
    pub provider: String,
    /// The provider's name of the network the port is on: an IP prefix, an InfiniBand subnet.
    pub fabric: String,
    /// The provider's name of the device: a network device for `tcp`, an RDMA device for `verbs`.
    pub domain: String,
    pub address: IpAddr,
    pub netdev: Option<String>,
    pub pci: Option<PciAddress>,
    pub numa_node: Option<u32>,
    pub link_bits_per_second: Option<u64>,
    pub link_up: Option<bool>,
    /// Link layer, as the provider names it (`Ethernet`, `InfiniBand`); may be empty.
    pub link_layer: String,
    /// RDMA over TCP (RFC 5040 ff.), which promises less: see [`Port::connector_speaks_first`] and
    /// [`crate::Flags::DELIVERED`].
    pub iwarp: bool,
    /// Longest single operation.
    pub operation_bytes_max: usize,
    /// Longest message that is sent without a buffer.
    pub inject_bytes_max: usize,
    /// Longest queues of one endpoint.
    pub(crate) queue_sizes: (usize, usize),
    /// Remote operations name the target's virtual address; else an offset into the region.
    pub(crate) virtual_addresses: bool,
    /// The provider chooses keys; else we do.
    pub(crate) provider_keys: bool,
    pub(crate) info: Info,
}

impl Port {
    /// Short name for people, logs and errors.
    pub fn name(&self) -> String {
        format!("{} {} ({})", self.provider, self.domain, self.address)
    }

    /// The place of a received write is decided by the adapter, which stops when the region is closed; else by the
    /// provider's code in this process, which may be in the middle of it.
    pub(crate) fn places_by_hardware(&self) -> bool {
        self.provider == "verbs"
    }

    /// [`crate::Rail::connect`] waits, for two seconds, if the host does not answer: librdmacm finds the way to an
    /// address in the call (`VERBS_RESOLVE_TIMEOUT` in libfabric's prov/verbs).
    #[must_use]
    pub fn connect_waits(&self) -> bool {
        self.provider == "verbs"
    }

    /// A connection is made over a TCP connection to the same port. Soft-iWARP makes that within
    /// [`crate::Rail::connect`], and waits there for as long as TCP tries (tcp(7), `tcp_syn_retries`: two minutes).
    #[must_use]
    pub fn connects_over_tcp(&self) -> bool {
        self.iwarp
    }

    /// On a new connection the end that accepted must say nothing before it has heard the other one, which may not be
    /// ready (RFC 5044, 7.1).
    #[must_use]
    pub fn connector_speaks_first(&self) -> bool {
        self.iwarp
    }

    /// Reads wait for everything else on their endpoint, and everything else for them: nothing for bulk.
    #[must_use]
    pub fn reads_one_by_one(&self) -> bool {
        self.iwarp
    }

    fn from_info(info: Info, sysfs: &Sysfs) -> Option<Port> {
        let raw: Box<ffi::Port> = info.describe();
        let address = address::from_storage(&raw.address, raw.address_bytes)?.ip();
        let (provider, domain) = (ffi::text(&raw.provider), ffi::text(&raw.domain));
        // A second face of each verbs device, for shared receive contexts across processes.
        if raw.send_after_write == 0 || domain.ends_with("-xrc") {
            return None;
        }
        let is_rdma = provider == "verbs";
        let rdma = is_rdma.then_some(domain.as_str());
        let netdev = if is_rdma {
            // For iWARP the kernel names none before Linux 6.6; there it is the one that has the address.
            sysfs.netdev_of_rdma_device(&domain).or_else(|| address::netdev_of(address))
        } else {
            Some(domain.clone())
        };
        let byte = |number: u32| u8::try_from(number).unwrap_or(0);
        let pci = (raw.pci_known != 0).then(|| PciAddress {
            domain: u16::try_from(raw.pci_domain).unwrap_or(0),
            bus: byte(raw.pci_bus),
            device: byte(raw.pci_device),
            function: byte(raw.pci_function),
        });
        let size = |number: u64| usize::try_from(number).unwrap_or(usize::MAX);
        Some(Port {
            fabric: ffi::text(&raw.fabric),
            address,
            // A software device reports a PCI address of zeros.
            pci: pci.filter(|&pci| pci.to_string() != "0000:00:00.0").or_else(|| sysfs.pci(netdev.as_deref(), rdma)),
            numa_node: sysfs.numa_node(netdev.as_deref(), rdma),
            link_bits_per_second: (raw.link_speed > 0)
                .then_some(raw.link_speed)
                .or_else(|| netdev.as_deref().and_then(|name| sysfs.link_speed(name))),
            link_up: netdev.as_deref().and_then(|name| sysfs.is_up(name)).or(match raw.link_state {
                1 => Some(false),
                2 => Some(true),
                _ => None,
            }),
            link_layer: ffi::text(&raw.layer),
            iwarp: raw.iwarp != 0,
            operation_bytes_max: size(raw.max_msg_size),
            inject_bytes_max: size(raw.inject_size),
            queue_sizes: (size(raw.tx_size), size(raw.rx_size)),
            virtual_addresses: raw.mr_virt_addr != 0,
            provider_keys: raw.mr_prov_key != 0,
            provider,
            domain,
            netdev,
            info,
        })
    }
}

impl fmt::Debug for Port {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Port")
            .field("name", &self.name())
            .field("fabric", &self.fabric)
            .field("netdev", &self.netdev)
            .field("pci", &self.pci.map(|pci| pci.to_string()))
            .field("numa_node", &self.numa_node)
            .field("link_bits_per_second", &self.link_bits_per_second)
            .field("link_up", &self.link_up)
            .field("link_layer", &self.link_layer)
            .field("iwarp", &self.iwarp)
            .field("operation_bytes_max", &self.operation_bytes_max)
            .field("inject_bytes_max", &self.inject_bytes_max)
            .field("queue_sizes", &self.queue_sizes)
            .field("virtual_addresses", &self.virtual_addresses)
            .field("provider_keys", &self.provider_keys)
            .finish()
    }
}

/// The ports that `filter` admits, `verbs` before `tcp`. A provider that is not there or has no device has none.
///
/// # Errors
/// [`Error::NoSuchPort`] when there is none, with what the host has instead.
pub fn ports(filter: &Filter) -> Result<Vec<Port>, Error> {
    if !ffi::layouts_agree() {
        return Err(Error::LayoutMismatch);
    }
    let names: Vec<&str> = match filter.providers.as_slice() {
        [] => PROVIDERS.to_vec(),
        named => named.iter().map(String::as_str).collect(),
    };
    let mut found = Vec::new();
    for name in names {
        found.extend(ports_of(name)?);
    }
    let (admitted, refused): (Vec<Port>, Vec<Port>) = found.into_iter().partition(|port| filter.admits(port));
    if admitted.is_empty() {
        let present: Vec<String> = refused.iter().map(Port::name).collect();
        let present = if present.is_empty() { "none".to_owned() } else { present.join(", ") };
        return Err(Error::NoSuchPort { wanted: filter.to_string(), present });
    }
    Ok(admitted)
}

fn ports_of(provider: &str) -> Result<Vec<Port>, Error> {
    let fail = |number| Error::Fabric {
        rail: format!("provider {provider}"),
        action: "look for ports",
        failure: Failure::from_number(number),
    };
    let name = CString::new(provider).map_err(|_| fail(-libc::EINVAL))?;
    let infos = match Info::query(&name) {
        Err(ENODATA) => Vec::new(),
        other => other.map_err(fail)?,
    };
    let sysfs = Sysfs::new();
    let mut ports: Vec<Port> = Vec::new();
    for port in infos.into_iter().filter_map(|info| Port::from_info(info, &sysfs)) {
        // The same port comes once for each way to drive it; the provider puts the best first.
        let same = |other: &Port| other.domain == port.domain && other.address == port.address;
        if port.provider == provider && !ports.iter().any(same) {
            ports.push(port);
        }
    }
    Ok(ports)
}
