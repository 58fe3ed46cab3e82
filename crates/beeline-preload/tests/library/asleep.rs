//! What a message to a sleeper costs in system calls, so that none creeps back in: one that tells it, one by which it
//! sleeps, and one that takes out what told it, which a thread that sleeps on a set or a connection alone does now and
//! then only.
//! Counted by strace, which makes it a matter of chance who finds its message there and does not sleep. So what is held
//! is what a sleep costs, not how many there are.

use std::collections::BTreeMap;

use super::*;

/// Messages each way.
const MESSAGES: u32 = 1000;
/// Fewer sleeps than that, and a side has shown nothing.
const SLEEPS_LEAST: u32 = MESSAGES / 20;
/// What a sleep may cost beside the call that sleeps: one, and that of messages that came before it slept.
const BESIDE_MOST: f64 = 1.4;
/// The same for a thread that sleeps on a set or a connection alone.
const BESIDE_MOST_ALONE: f64 = 0.5;
/// What the beginning costs.
const AT_THE_BEGINNING: f64 = 50.0;
/// The same with the guest's connections that have fired.
const WITH_FIRED: f64 = 400.0;

fn traced(summary: &Path, program: &'static str, arguments: &[&str]) -> Command {
    let mut command = Command::new("strace");
    command.args(["-f", "-c", "-U", "name,calls", "-o"]).arg(summary);
    command.arg("-E").arg(format!("LD_PRELOAD={}", library().display()));
    command.arg("-E").arg("BEELINE_OPTIONS=wait=wait");
    command.arg(guest(program)).args(arguments);
    command
}

/// How often each system call was made.
pub fn counts(summary: &Path) -> BTreeMap<String, u32> {
    let text = std::fs::read_to_string(summary).expect("a summary");
    let row = |line: &str| {
        let (name, calls) = line.trim().split_once(' ')?;
        Some((name.to_owned(), calls.trim().parse().ok()?))
    };
    text.lines().filter_map(row).collect()
}

/// Has both sides wait by `style`, and sleep by the system call `sleep`. Beside other work both may find that looking
/// pays, for a while: what costs more each time is none of that.
fn a_sleep_costs_a_call_or_two(style: &str, sleep: &str) {
    const TRIES: usize = 3;
    let dear: Vec<String> = (0..TRIES).map_while(|_| costs(style, sleep).err()).collect();
    assert!(dear.len() < TRIES, "{dear:#?}");
}

/// Whether a sleep costs no more than it may.
fn costs(style: &str, sleep: &str) -> Result<(), String> {
    let count = MESSAGES.to_string();
    let summaries =
        ["asked", "asking"].map(|side| Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{side}-{style}")));
    converse(traced(&summaries[0], "asleep", &["serve", style, &count]), |port| {
        traced(&summaries[1], "asleep", &["ask", style, port, &count])
    });
    for summary in summaries {
        let calls = counts(&summary);
        let of = |name: &str| calls.get(name).copied().unwrap_or(0);
        let sleeps = of(sleep);
        let beside = of("recvmsg") + of("ioctl") + of("epoll_ctl") + of("futex");
        let beginning = if style == "fired" { WITH_FIRED } else { AT_THE_BEGINNING };
        let each = (f64::from(beside) - beginning) / f64::from(sleeps);
        // A wait that sleeps does not look at the kernel before, but in poll(2) for descriptors of the kernel's own.
        let looks = of("epoll_wait");
        let most = if style == "beside" { 2 * MESSAGES + MESSAGES / 4 } else { MESSAGES + MESSAGES / 10 };
        let is_alone = matches!(style, "recv" | "poll" | "level" | "edge" | "full");
        let each_most = if is_alone { BESIDE_MOST_ALONE } else { BESIDE_MOST };
        if sleeps <= SLEEPS_LEAST || each >= each_most || looks + sleeps >= most {
            return Err(format!(
                "{style}: {each:.2} system calls beside each of {sleeps} sleeps, {looks} looks: {calls:?}"
            ));
        }
    }
    Ok(())
}

#[test]
fn a_sleep_in_recv_costs_a_call_or_two() {
    a_sleep_costs_a_call_or_two("recv", "epoll_pwait2");
}

#[test]
fn a_sleep_in_poll_costs_a_call_or_two() {
    a_sleep_costs_a_call_or_two("poll", "epoll_pwait2");
}

#[test]
fn a_sleep_on_a_set_costs_a_call_or_two_by_level() {
    a_sleep_costs_a_call_or_two("level", "epoll_pwait2");
}

#[test]
fn a_sleep_on_a_set_costs_a_call_or_two_by_edge() {
    a_sleep_costs_a_call_or_two("edge", "epoll_pwait2");
}

/// And the kernel is not told of each shot.
#[test]
fn a_sleep_on_a_set_costs_a_call_or_two_by_one_shot() {
    a_sleep_costs_a_call_or_two("oneshot", "epoll_pwait2");
}

/// Nor where a program was started since the set was made, which has not got it.
#[test]
fn a_sleep_on_a_set_costs_a_call_or_two_after_a_program_was_started() {
    a_sleep_costs_a_call_or_two("spawned", "epoll_pwait2");
}

/// Nor does it cost more, or take a look before, beside connections that were told of and not asked for again.
#[test]
fn a_sleep_on_a_set_costs_a_call_or_two_beside_many_that_have_fired() {
    a_sleep_costs_a_call_or_two("fired", "epoll_pwait2");
}

/// One, as over TCP, where no lane is in the set.
#[test]
fn a_sleep_on_a_set_of_the_kernel_s_costs_what_it_costs_there() {
    a_sleep_costs_a_call_or_two("tcp", "epoll_pwait2");
}

/// Also where the peer's ring was full once, of which a set was to tell.
#[test]
fn a_sleep_on_a_set_costs_a_call_or_two_by_edges_after_room_was_awaited() {
    a_sleep_costs_a_call_or_two("full", "epoll_pwait2");
}

/// Nor does it look at the kernel again after it.
#[test]
fn a_sleep_in_poll_beside_a_pipe_costs_a_call_or_two() {
    a_sleep_costs_a_call_or_two("beside", "ppoll");
}

/// And one of two threads is woken.
#[test]
fn a_sleep_of_two_threads_on_a_set_costs_a_call_or_two_by_one_shot() {
    a_sleep_costs_a_call_or_two("threads", "epoll_pwait2");
}

/// Redis asks for it in each of its threads.
#[test]
fn a_message_of_a_thread_that_may_be_cancelled_anywhere_costs_no_call() {
    let summary = Path::new(env!("CARGO_TARGET_TMPDIR")).join("anywhere");
    let status = traced(&summary, "steps", &[&MESSAGES.to_string(), "anywhere"]).status().expect("strace runs");
    assert!(status.success());
    let calls = counts(&summary);
    let all: u32 = calls.iter().filter(|(name, _)| *name != "total").map(|(_, calls)| calls).sum();
    assert!(all < MESSAGES, "{calls:?}");
}
