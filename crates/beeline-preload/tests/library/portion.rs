//! Who reads a connection until there is nothing gets to the others, however fast its peer sends.

use super::*;

/// Far more than lies in a ring, and far less than the guest's stream: 256 MiB.
const MOST_KIB: u64 = 16 * 1024;

fn portion(arguments: &[&str]) -> std::process::Output {
    let mut command = Command::new(guest("portion"));
    preload::apply(&mut command, Some(library()));
    let output = command.args(arguments).env("GUEST_EXPECTS_LANES", "1").output().expect("the guest runs");
    assert!(output.status.success(), "{output:?}");
    output
}

#[test]
fn a_reader_by_edges_is_told_that_there_is_nothing_while_its_peer_sends() {
    let output = portion(&[]);
    // No number where there is one CPU alone: then the peer does not send meanwhile.
    if let Ok(kib) = String::from_utf8_lossy(&output.stdout).trim().parse::<u64>() {
        assert!(kib <= MOST_KIB, "{kib} KiB before it was told so");
    }
}

#[test]
fn what_a_set_of_sets_has_told_of_is_read_or_told_of_again() {
    portion(&["nested"]);
}
