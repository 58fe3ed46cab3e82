//! All cases, by group.

mod accept;
mod cancel;
mod closing;
mod connect;
mod data;
mod descriptors;
mod duo;
mod epoll;
mod epoll_deleted;
mod epoll_entries;
mod epoll_order;
mod epoll_sets;
mod every_option;
mod flags;
mod foreign;
mod fork;
mod forms;
mod groups;
mod holders;
mod listeners;
mod low_water;
mod moving;
mod moving_pipes;
mod names;
mod options;
mod ready;
mod signals;
mod spawned;
mod states;
mod stdio;
mod threads;
mod timeouts;
mod urgent;
mod vectors;
mod waiters;
mod waking;
mod zerocopy;

use crate::case::{Case, Group};
use crate::variant::Variant;

const GROUPS: &[Group] = &[
    connect::GROUP,
    accept::GROUP,
    data::GROUP,
    flags::GROUP,
    vectors::GROUP,
    moving::GROUP,
    moving_pipes::GROUP,
    urgent::GROUP,
    stdio::GROUP,
    cancel::GROUP,
    forms::GROUP,
    holders::GROUP,
    names::GROUP,
    options::GROUP,
    every_option::GROUP,
    foreign::GROUP,
    zerocopy::GROUP,
    low_water::GROUP,
    descriptors::GROUP,
    listeners::GROUP,
    groups::GROUP,
    states::GROUP,
    ready::GROUP,
    epoll::GROUP,
    epoll_deleted::GROUP,
    epoll_entries::GROUP,
    epoll_order::GROUP,
    epoll_sets::GROUP,
    waking::GROUP,
    signals::GROUP,
    timeouts::GROUP,
    threads::GROUP,
    closing::GROUP,
    spawned::GROUP,
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

    /// "More than" must be true, and not by far: a case more does not ask for a new sentence.
    #[test]
    fn the_readme_has_the_number_of_cases() {
        let readme = include_str!("../../../README.md");
        let (before, _) = readme.split_once(" cases (some").expect("the README tells the number of cases");
        let (_, written) = before.rsplit_once("more than ").expect("the README says \"more than\"");
        let written: usize = written.replace(',', "").parse().expect("a number");
        let cases = instances().len();
        assert!((written..written + 500).contains(&cases), "README.md says more than {written}, and there are {cases}");
    }

    #[test]
    fn the_table_of_semantics_names_cases_that_exist() {
        use beeline_stats::semantics::{CALLS, FLAGS, OPTIONS, REQUESTS};
        let options = OPTIONS.iter().map(|option| &option.row);
        for row in [CALLS, FLAGS, REQUESTS].into_iter().flatten().chain(options) {
            for test in row.tests.iter().filter(|test| test.contains('/')) {
                let (group, case) = test.split_once('/').unwrap_or((test, ""));
                let found = GROUPS
                    .iter()
                    .filter(|known| known.name == group)
                    .flat_map(|known| known.cases)
                    .any(|known| case.is_empty() || known.name == case);
                assert!(found, "{:?} names {test}, which is no case", row.names);
            }
        }
    }

    #[test]
    fn the_documented_differences_are_those_of_the_cases() {
        let known: HashSet<(String, &str)> = GROUPS
            .iter()
            .flat_map(|group| group.cases.iter().map(move |case| (format!("{}/{}", group.name, case.name), case)))
            .filter_map(|(name, case)| Some((name, case.deviation?)))
            .collect();
        let documented: HashSet<(String, &str)> =
            beeline_stats::semantics::DIFFERENCES.iter().map(|(case, what)| ((*case).to_owned(), *what)).collect();
        assert_eq!(known, documented);
    }
}
