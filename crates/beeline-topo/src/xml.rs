//! A host as hwloc describes it: its XML, version 2, as `lstopo FILE.xml` and the library write it.
//!
//! 1. Objects are nested as the hardware is. A port's place is the node set of the innermost object around it that has
//!    one; bridges and devices have none.
//! 2. A PCI function has the network interfaces and RDMA devices inside it. If it has one RDMA device, that belongs to
//!    each of its interfaces: adapters with two ports in one function have one device for both.
//! 3. hwloc does not write how fast a port is.

use roxmltree::{Document, Node as Element, ParsingOptions};

use crate::host::{Cpu, Host, Node, Package, Port};
use crate::sets;

/// More objects than any host has; a file with more is refused.
const ELEMENTS_MAX: u32 = 1 << 20;

/// Why a text is no description of a host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum XmlError {
    /// It is not XML.
    Malformed(String),
    /// It is XML of something else.
    NotTopology,
    /// It is of a version of hwloc that is not known here.
    Version(String),
    /// An object lacks this attribute, or it has a value it cannot have.
    Attribute {
        /// The object's type.
        object: String,
        /// The attribute.
        attribute: &'static str,
    },
    /// The table of distances does not fit the nodes.
    Distances,
}

impl std::fmt::Display for XmlError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Malformed(why) => write!(f, "this is not XML: {why}"),
            Self::NotTopology => f.write_str("this XML is not a topology written by hwloc"),
            Self::Version(version) => {
                write!(
                    f,
                    "this is hwloc's XML of version {version}, and version 2 is needed (lstopo -i OLD.xml NEW.xml)"
                )
            }
            Self::Attribute { object, attribute } => {
                write!(f, "an object {object} has no {attribute}, or one that cannot be")
            }
            Self::Distances => f.write_str("the table of distances does not fit the NUMA nodes"),
        }
    }
}

impl std::error::Error for XmlError {}

/// Reads a host.
pub fn read(text: &str) -> Result<Host, XmlError> {
    // hwloc's files name a DTD; nothing of it is fetched or expanded.
    let options = ParsingOptions { allow_dtd: true, nodes_limit: ELEMENTS_MAX, ..ParsingOptions::default() };
    let document = Document::parse_with_options(text, options).map_err(|why| XmlError::Malformed(why.to_string()))?;
    let root = document.root_element();
    if !root.has_tag_name("topology") {
        return Err(XmlError::NotTopology);
    }
    let version = root.attribute("version").unwrap_or("1");
    if !(version == "2" || version.starts_with("2.")) {
        return Err(XmlError::Version(version.to_owned()));
    }
    let mut reader = Reader { host: Host { source: "hwloc's XML".into(), ..Host::default() } };
    for object in objects(root) {
        reader.object(object, &Around::default())?;
    }
    reader.distances(root)?;
    reader.finish()
}

/// The innermost objects around the one that is read.
#[derive(Clone, Default)]
struct Around {
    package: Option<u32>,
    core: Option<u32>,
    nodes: Vec<u32>,
}

struct Reader {
    host: Host,
}

impl Reader {
    fn object(&mut self, object: Element<'_, '_>, around: &Around) -> Result<(), XmlError> {
        let mut around = around.clone();
        if let Some(text) = object.attribute("nodeset") {
            around.nodes = sets::bitmap(text).ok_or_else(|| wrong(object, "nodeset"))?;
        }
        match object.attribute("type").unwrap_or_default() {
            "Machine" => self.host.name = info(object, "HostName"),
            "Package" => {
                let id = index(object)?;
                around.package = Some(id);
                self.host.packages.push(Package { id, model: info(object, "CPUModel") });
            }
            "NUMANode" => {
                let memory_bytes = object.attribute("local_memory").and_then(|text| text.parse().ok());
                self.host.nodes.push(Node { id: index(object)?, memory_bytes });
            }
            "Core" => around.core = object.attribute("os_index").and_then(|text| text.parse().ok()),
            "PU" => {
                let id = index(object)?;
                self.host.cpus.push(Cpu {
                    id,
                    core: around.core.unwrap_or(id),
                    package: around.package.unwrap_or(0),
                    node: around.nodes.first().copied(),
                });
            }
            "PCIDev" => self.ports(object, &around),
            // Devices inside a PCI function were taken with it; others (USB) have a place, too.
            "OSDev" if !inside_pci(object) => self.ports(object, &around),
            _ => {}
        }
        objects(object).try_for_each(|inner| self.object(inner, &around))
    }

    /// The ports of a PCI function, or of a device outside of any.
    fn ports(&mut self, object: Element<'_, '_>, around: &Around) {
        let devices = |kind: &str| -> Vec<String> {
            let is_kind = |device: &Element<'_, '_>| device.attribute("osdev_type") == Some(kind);
            let inside = object.descendants().filter(is_kind);
            inside.filter_map(|device| device.attribute("name")).map(str::to_owned).collect()
        };
        let (netdevs, rdma) = (devices("2"), devices("3"));
        let only = match rdma.as_slice() {
            [one] => Some(one.clone()),
            _ => None,
        };
        let port = Port {
            pci: object.attribute("pci_busid").map(str::to_owned),
            model: info(object, "PCIDevice").or_else(|| info(object, "PCIVendor")),
            nodes: around.nodes.clone(),
            ..Port::default()
        };
        let is_covered = only.is_some() && !netdevs.is_empty();
        for netdev in netdevs {
            self.host.ports.push(Port { netdev: Some(netdev), rdma: only.clone(), ..port.clone() });
        }
        for device in rdma.into_iter().filter(|_| !is_covered) {
            self.host.ports.push(Port { rdma: Some(device), ..port.clone() });
        }
    }

    fn distances(&mut self, root: Element<'_, '_>) -> Result<(), XmlError> {
        let is_latency = |table: &Element<'_, '_>| {
            table.has_tag_name("distances2")
                && table.attribute("type") == Some("NUMANode")
                && table.attribute("name").is_none_or(|name| name == "NUMALatency")
                && table.attribute("indexing") == Some("os")
        };
        let Some(table) = root.children().find(is_latency) else { return Ok(()) };
        let numbers = |tag: &str| -> Result<Vec<u32>, XmlError> {
            let texts = table.children().filter(|child| child.has_tag_name(tag)).filter_map(|child| child.text());
            let words = texts.flat_map(str::split_whitespace);
            words.map(|word| word.parse().map_err(|_| XmlError::Distances)).collect()
        };
        let (indexes, values) = (numbers("indexes")?, numbers("u64values")?);
        if Some(values.len()) != indexes.len().checked_mul(indexes.len()) {
            return Err(XmlError::Distances);
        }
        self.host.nodes.sort_by_key(|node| node.id);
        let places: Option<Vec<usize>> =
            self.host.nodes.iter().map(|node| indexes.iter().position(|&index| index == node.id)).collect();
        // A table of some of the nodes (those with memory of another kind left out) tells too little to choose by.
        let Some(places) = places else { return Ok(()) };
        let row = |from: &usize| -> Option<Vec<u32>> {
            let rest = values.get(from.checked_mul(indexes.len())?..)?;
            places.iter().map(|to| rest.get(*to).copied()).collect()
        };
        self.host.distances = places.iter().map(row).collect::<Option<_>>().ok_or(XmlError::Distances)?;
        Ok(())
    }

    fn finish(mut self) -> Result<Host, XmlError> {
        if self.host.cpus.is_empty() {
            return Err(XmlError::NotTopology);
        }
        if self.host.packages.is_empty() {
            self.host.packages.push(Package { id: 0, model: None });
        }
        self.host.nodes.sort_by_key(|node| node.id);
        self.host.put_in_order();
        Ok(self.host)
    }
}

fn objects<'a, 'input>(parent: Element<'a, 'input>) -> impl Iterator<Item = Element<'a, 'input>> {
    parent.children().filter(|child| child.has_tag_name("object"))
}

fn inside_pci(object: Element<'_, '_>) -> bool {
    object.ancestors().skip(1).any(|outer| outer.attribute("type") == Some("PCIDev"))
}

fn info(object: Element<'_, '_>, name: &str) -> Option<String> {
    let entry = object.children().find(|child| child.has_tag_name("info") && child.attribute("name") == Some(name))?;
    let value = entry.attribute("value")?.split_whitespace().collect::<Vec<_>>().join(" ");
    (!value.is_empty()).then_some(value)
}

fn index(object: Element<'_, '_>) -> Result<u32, XmlError> {
    object.attribute("os_index").and_then(|text| text.parse().ok()).ok_or_else(|| wrong(object, "os_index"))
}

fn wrong(object: Element<'_, '_>, attribute: &'static str) -> XmlError {
    XmlError::Attribute { object: object.attribute("type").unwrap_or("without a type").to_owned(), attribute }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn topology(inside: &str) -> String {
        format!("<?xml version=\"1.0\"?><topology version=\"2.0\">{inside}</topology>")
    }

    #[test]
    fn what_is_no_topology_is_refused() {
        assert!(matches!(read("<topology"), Err(XmlError::Malformed(_))));
        assert_eq!(read("<host/>"), Err(XmlError::NotTopology));
        assert_eq!(read("<topology/>"), Err(XmlError::Version("1".into())));
        assert_eq!(read("<topology version='3.0'/>"), Err(XmlError::Version("3.0".into())));
        assert_eq!(read(&topology("")), Err(XmlError::NotTopology));
        let wrong = |inside: &str| read(&topology(inside)).unwrap_err();
        assert_eq!(
            wrong("<object type='PU' os_index='x'/>"),
            XmlError::Attribute { object: "PU".into(), attribute: "os_index" }
        );
        assert_eq!(
            wrong("<object type='Machine' nodeset='0xf...f'/>"),
            XmlError::Attribute { object: "Machine".into(), attribute: "nodeset" }
        );
    }

    #[test]
    fn distances_must_fit() {
        let with = |indexes: &str, values: &str| {
            let node = |id| format!("<object type='NUMANode' os_index='{id}'/>");
            let table = format!(
                "<distances2 type='NUMANode' name='NUMALatency' indexing='os'><indexes>{indexes}</indexes>\
                 <u64values>{values}</u64values></distances2>"
            );
            let text = topology(&format!("{}{}<object type='PU' os_index='0'/>{table}", node(4), node(1)));
            read(&text).map(|host| host.distances)
        };
        assert_eq!(with("4 1", "10 21 17 10"), Ok(vec![vec![10, 17], vec![21, 10]]));
        assert_eq!(with("4 1", "10 21 17"), Err(XmlError::Distances));
        assert_eq!(with("4 1", "10 21 17 x"), Err(XmlError::Distances));
        assert_eq!(with("4 2", "10 21 17 10"), Ok(vec![]));
    }
}
