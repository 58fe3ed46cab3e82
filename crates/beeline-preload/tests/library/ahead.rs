//! A sender that is asked not to run far ahead of a reader that has others to serve.

use super::*;

const RING_KIB: u64 = 4096;
const PIECE_KIB: u64 = 64;

fn ahead(arguments: &[&str]) -> String {
    let mut command = Command::new(guest("ahead"));
    preload::apply(&mut command, Some(library()));
    let output = command.args(arguments).env("GUEST_EXPECTS_LANES", "1").output().expect("the guest runs");
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn who_reads_nothing_for_a_while_finds_as_much_as_ever() {
    let said = ahead(&[]);
    assert_eq!(said.lines().count(), 2, "{said}");
    for taken in said.lines() {
        assert!(taken.parse::<u64>().unwrap() > RING_KIB - PIECE_KIB, "{said}");
    }
}

#[test]
fn streams_to_a_reader_that_has_others_to_serve_are_whole() {
    ahead(&["stream"]);
}
