//! This host as hwloc sees it, for the bridge's choice of rails.
//!
//! A crate of its own because whoever depends on it is linked against libhwloc and does not start where that is not
//! installed. The bridge depends on it; the `beeline` command does not (`docs/design/0005-topology.md`).
//!
//! 1. hwloc discovers and writes its XML, and [`beeline_topo::xml`] reads that: the same code that reads recorded
//!    hosts.
//! 2. CPUs and nodes that this process may not use are described, too: a bridge that is kept to some CPUs serves
//!    programs on all of them.
//! 3. What hwloc would do to find accelerators (load their drivers' libraries, talk to an X server) is left out.
//! 4. The kernel adds what hwloc does not say: how fast ports are, and RDMA devices in software.

#![forbid(unsafe_code)]

use std::path::Path;

use beeline_topo::host::Host;
use beeline_topo::xml::XmlError;
use beeline_topo::{sysfs, xml};
use hwlocality::Topology;
use hwlocality::topology::builder::{BuildFlags, TopologyBuilder, TypeFilter};
use hwlocality::topology::export::xml::XMLExportFlags;

/// hwloc's components that look for accelerators.
const ACCELERATORS: [&str; 6] = ["opencl", "cuda", "nvml", "rsmi", "levelzero", "gl"];

/// Why there is no description.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// hwloc could not do it.
    #[error("hwloc cannot describe this host: {0}")]
    Hwloc(String),
    /// What hwloc wrote was not understood.
    #[error("hwloc's description of this host is not understood: {0}")]
    Xml(#[from] XmlError),
}

/// Describes this host. It takes some tens of milliseconds.
pub fn discover() -> Result<Host, Error> {
    let topology = builder()?.build().map_err(said)?;
    let mut host = xml::read(&topology.export_xml(XMLExportFlags::empty()).map_err(said)?)?;
    if let Ok(kernel) = sysfs::read(Path::new("/sys")) {
        host.complete_from(kernel);
    }
    host.source = "hwloc".into();
    Ok(host)
}

fn builder() -> Result<TopologyBuilder, Error> {
    // Without this filter hwloc leaves out PCI functions and what is behind them.
    let mut builder = Topology::builder().with_io_type_filter(TypeFilter::KeepImportant).map_err(said)?;
    builder = builder.with_flags(BuildFlags::INCLUDE_DISALLOWED).map_err(said)?;
    for component in ACCELERATORS {
        // hwloc refuses names that it does not know, as those of plugins that are not installed; this one may be lost.
        if TopologyBuilder::new().without_component(component).is_ok() {
            builder = builder.without_component(component).map_err(said)?;
        }
    }
    Ok(builder)
}

fn said(error: impl std::fmt::Display) -> Error {
    Error::Hwloc(error.to_string())
}
