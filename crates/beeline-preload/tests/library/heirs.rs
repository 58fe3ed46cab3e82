//! Connections that are handed on: what receivers of messages see of it; and that many go in a time that grows with
//! their number, and not faster: those that a program inherits, and those that are dealt out to several receivers.

use super::*;

/// Ends of connections.
const ENDS: u32 = 2_000;
/// Messages that bring a connection.
const MESSAGES: usize = 400;

cases! { passes:
    a_passed_end_goes_on
    a_passed_end_is_shared
    a_peeked_message_keeps_its_end
    a_copy_on_its_way_goes_on
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
    command.env("BEELINE_OPTIONS", OPTIONS);
    let output = command.output().expect("the guest runs");
    assert!(output.status.success(), "{output:?}");
    let said = String::from_utf8_lossy(&output.stdout);
    let taken_us: Vec<u64> = said.split_whitespace().map(|number| number.parse().expect("a time")).collect();
    let [own, kernels] = taken_us[..] else { panic!("{said}") };
    assert!(own < kernels, "{own} us in the child, {kernels} us in the kernel");
}

/// What the guests have: many lanes.
const OPTIONS: &str = "ring_bytes=64K,short_lived_lanes=on";

/// Clients that have bound their ports: the sockets that hold these are parts of their ends.
#[test]
fn many_connections_are_taken_over_by_a_program_without_a_question_about_all_for_each() {
    const ENDS: usize = 400;
    let trace = Path::new(env!("CARGO_TARGET_TMPDIR")).join("heirs-trace");
    let mut command = Command::new("strace");
    command.args(["-e", "trace=getsockopt,execve", "-o"]).arg(&trace);
    command.arg("-E").arg(format!("LD_PRELOAD={}", library().display()));
    command.arg("-E").arg(format!("BEELINE_OPTIONS={OPTIONS}"));
    let status = command.arg(guest("heirs")).arg(ENDS.to_string()).arg("becomes").status().expect("strace runs");
    assert!(status.success());
    let trace = std::fs::read_to_string(trace).expect("a trace");
    let questions = trace.lines().skip(1).skip_while(|line| !line.starts_with("execve"));
    let questions = questions.filter(|line| line.starts_with("getsockopt")).count();
    assert!((ENDS..6 * ENDS).contains(&questions), "{questions} questions about {ENDS} ends");
}

#[test]
fn receivers_that_take_turns_are_remembered() {
    let trace = Path::new(env!("CARGO_TARGET_TMPDIR")).join("deals-trace");
    let mut command = Command::new("strace");
    // The dealer alone.
    command.args(["-e", "trace=openat", "-o"]).arg(&trace);
    command.arg("-E").arg(format!("LD_PRELOAD={}", library().display()));
    command.arg("-E").arg("GUEST_EXPECTS_LANES=1");
    let status = command.arg(guest("deals")).status().expect("strace runs");
    assert!(status.success());
    let trace = std::fs::read_to_string(trace).expect("a trace");
    let looks = trace.lines().filter(|line| line.contains("/maps\"") && !line.contains("/self/")).count();
    assert!(
        (1..MESSAGES / 8).contains(&looks),
        "looked into a receiver's memory {looks} times for {MESSAGES} messages"
    );
}
