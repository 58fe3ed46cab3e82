//! Network namespaces of this host, and the lanes between them.

use std::collections::BTreeMap;
use std::path::Path;

use serde::Serialize;

use super::bridge::Bridge;
use super::collect::{Collected, SHARED_MEMORY};
use crate::cli::Selection;

/// What the command's own network namespace is called.
const OWN: &str = "this one";

/// A network namespace with processes that run with Beeline.
#[derive(Debug, Default, PartialEq, Eq, Serialize)]
pub struct Namespace {
    pub name: String,
    pub processes: u64,
    /// Open connections that use lanes, by the namespace that they lead to, as far as that is known.
    pub lanes: BTreeMap<String, u64>,
}

/// All of them, if there are processes in others than the command's own. Nothing is removed.
pub fn all() -> Vec<Namespace> {
    Collected::of(Path::new(SHARED_MEMORY), Bridge::left_out(), &Selection::All, true)
        .map(|collected| of(&collected))
        .unwrap_or_default()
}

fn of(collected: &Collected) -> Vec<Namespace> {
    let live = || collected.processes.iter().filter(|process| process.is_known_here());
    if live().all(|process| process.network_namespace.is_none()) {
        return Vec::new();
    }
    let mut found: BTreeMap<String, Namespace> = BTreeMap::new();
    let name = |name: &Option<String>| name.clone().unwrap_or_else(|| OWN.into());
    for process in live() {
        let its = name(&process.network_namespace);
        let namespace = found.entry(its.clone()).or_insert_with(|| Namespace { name: its, ..Namespace::default() });
        namespace.processes += 1;
        for open in &process.connections {
            let to = open.peer.as_ref().map_or_else(|| "others".into(), |peer| name(&peer.network_namespace));
            *namespace.lanes.entry(to).or_default() += 1;
        }
    }
    found.into_values().collect()
}
