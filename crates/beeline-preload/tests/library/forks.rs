//! What a fork costs, in page faults: a count that a busy machine does not change, and most of what there is to pay.

use super::*;

/// Forks of the guest.
const FORKS: u64 = 100;

/// Runs of the guest, of which the best counts: where the kernel puts stack and libraries decides on a page or two.
const RUNS: usize = 5;

/// Page faults of all forks, in parent and child.
fn faults(library: Option<&Path>) -> (u64, u64) {
    let runs: Vec<(u64, u64)> = (0..RUNS).map(|_| faults_of_a_run(library)).collect();
    let least = |of: fn(&(u64, u64)) -> u64| runs.iter().map(of).min().expect("there are runs");
    (least(|run| run.0), least(|run| run.1))
}

fn faults_of_a_run(library: Option<&Path>) -> (u64, u64) {
    let mut command = Command::new(guest("forks"));
    preload::apply(&mut command, library);
    let output = command.output().expect("the guest runs");
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8_lossy(&output.stdout);
    let numbers: Vec<u64> = text.split_whitespace().filter_map(|number| number.parse().ok()).collect();
    let [parent, child] = numbers[..] else { panic!("{text}") };
    (parent, child)
}

/// Whoever makes a fork write to more pages shall notice.
#[test]
fn a_fork_costs_few_page_faults() {
    let (parent, child) = faults(None);
    let (ours_parent, ours_child) = faults(Some(library()));
    // Of so many forks one may have a page fault more by chance.
    let more = |ours: u64, without: u64| (ours.saturating_sub(without) + FORKS / 2) / FORKS;
    assert!(more(ours_parent, parent) <= 2, "parent: {ours_parent} in {FORKS} forks, {parent} without the library");
    assert!(more(ours_child, child) <= 3, "child: {ours_child} in {FORKS} forks, {child} without the library");
}
