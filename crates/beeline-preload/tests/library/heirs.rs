//! Connections that are handed on: what receivers of messages see of it; and that those that a program inherits are
//! handed on in a time that grows with their number, and not faster.

use super::*;

/// Ends of connections.
const ENDS: u32 = 2_000;

cases! { passes:
    a_passed_end_goes_on
    a_passed_end_is_shared
    a_peeked_message_keeps_its_end
    strangers_pass_ends_and_listeners
    a_receiver_without_the_library_goes_on
    a_relative_without_the_library_goes_on
    a_relative_that_accepts_without_the_library_goes_on;
}

/// What the kernel does for the child of a vfork grows with their number, and so does what the child does, which is
/// less. Where it looks through all of them for each it is two to five times as much.
#[test]
fn many_connections_are_handed_on_by_a_vfork_without_a_look_at_all_for_each() {
    let mut command = Command::new(guest("heirs"));
    command.arg(ENDS.to_string());
    preload::apply(&mut command, Some(library()));
    command.env("BEELINE_OPTIONS", "ring_bytes=64K,short_lived_lanes=on");
    let output = command.output().expect("the guest runs");
    assert!(output.status.success(), "{output:?}");
    let said = String::from_utf8_lossy(&output.stdout);
    let taken_us: Vec<u64> = said.split_whitespace().map(|number| number.parse().expect("a time")).collect();
    let [own, kernels] = taken_us[..] else { panic!("{said}") };
    assert!(own < kernels, "{own} us in the child, {kernels} us in the kernel");
}
