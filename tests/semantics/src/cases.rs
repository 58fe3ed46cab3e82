//! All cases, by group.

mod accept;
mod cancel;
mod connect;
mod data;
mod descriptors;
mod duo;
mod epoll;
mod epoll_entries;
mod epoll_sets;
mod every_option;
mod flags;
mod fork;
mod forms;
mod listeners;
mod moving;
mod names;
mod options;
mod ready;
mod signals;
mod states;
mod stdio;
mod threads;
mod timeouts;
mod urgent;
mod vectors;
mod waiters;
mod waking;

use crate::case::{Case, Group};
use crate::variant::Variant;

const GROUPS: &[Group] = &[
    connect::GROUP,
    accept::GROUP,
    data::GROUP,
    flags::GROUP,
    vectors::GROUP,
    moving::GROUP,
    urgent::GROUP,
    stdio::GROUP,
    cancel::GROUP,
    forms::GROUP,
    names::GROUP,
    options::GROUP,
    every_option::GROUP,
    descriptors::GROUP,
    listeners::GROUP,
    states::GROUP,
    ready::GROUP,
    epoll::GROUP,
    epoll_entries::GROUP,
    epoll_sets::GROUP,
    waking::GROUP,
    signals::GROUP,
    timeouts::GROUP,
    threads::GROUP,
    fork::GROUP,
    duo::GROUP,
];

/// A signal handler that does nothing.
extern "C" fn ignore_signal(_: i32) {}

/// A case with the variant it runs under.
pub struct Instance {
    /// `GROUP/CASE@VARIANT`.
    pub name: String,
    pub case: &'static Case,
    pub variant: Variant,
}

/// Every case under every variant it has.
#[must_use]
pub fn instances() -> Vec<Instance> {
    let mut instances = Vec::new();
    for group in GROUPS {
        for case in group.cases {
            for variant in case.variants() {
                let name = format!("{}/{}@{variant}", group.name, case.name);
                instances.push(Instance { name, case, variant });
            }
        }
    }
    instances
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn names_are_unique() {
        let all = instances();
        let names: HashSet<&str> = all.iter().map(|instance| instance.name.as_str()).collect();
        assert_eq!(names.len(), all.len());
    }
}
