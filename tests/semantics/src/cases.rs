//! All cases, by group.

mod accept;
mod connect;
mod data;
mod epoll;
mod flags;
mod ready;
mod signals;
mod states;
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
    states::GROUP,
    ready::GROUP,
    epoll::GROUP,
    waking::GROUP,
    signals::GROUP,
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
