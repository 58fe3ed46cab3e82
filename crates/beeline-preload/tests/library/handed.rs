//! A thread that a set has handed a connection to keeps it while the peer answers at once.

use super::*;

/// Answers of a round of the guest's, after each of which the thread could give the connection back.
const ANSWERS: u64 = 2_000;

fn given_back() -> Option<u64> {
    let mut command = Command::new(guest("handed"));
    preload::apply(&mut command, Some(library()));
    command.env("GUEST_EXPECTS_LANES", "1");
    let output = command.output().expect("the guest runs");
    assert!(output.status.success(), "{output:?}");
    // None where there is one CPU alone: then the peer is not waited for.
    String::from_utf8_lossy(&output.stdout).trim().parse().ok()
}

#[test]
fn a_connection_is_kept_while_the_peer_answers_at_once() {
    if let Some(back) = given_back() {
        assert!(back <= ANSWERS / 4, "given back {back} times");
    }
}
