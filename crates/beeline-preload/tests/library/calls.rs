//! What a short connection costs in system calls, so that none creeps back in. Counted by strace, which makes waits and what
//! they end with a matter of chance: these calls, and the program's own, are left out. Those by which the kernel's tables are
//! asked now and then are counted apart: a client that is so slow asks who listens for each connection, and no more.

use super::*;

/// Connections of one run.
const CONNECTIONS: usize = 300;
/// Of the first ones, which make what the others use again, and of waits that ended otherwise, in calls a connection.
const SLACK: f64 = 0.9;

/// The calls of one side in each connection: those that make, take and end it, and those that ask the kernel's tables.
fn per_connection(trace: &str) -> [f64; 2] {
    const OF_WAITS: [&str; 7] =
        ["epoll_wait(", "epoll_pwait2(", "epoll_ctl(", "ppoll(", "ioctl(", "recvmsg(", "sendto("];
    let calls = trace.lines().filter_map(|line| line.split_once(' ')).map(|(_, call)| call.trim_start());
    let mut in_netlink = false;
    let mut asked = 0;
    let made = calls.filter(|call| {
        let is_netlink = in_netlink || call.starts_with("socket(AF_NETLINK");
        in_netlink = is_netlink && !call.starts_with("close(");
        asked += u32::from(is_netlink);
        !is_netlink && !OF_WAITS.iter().any(|waiting| call.starts_with(waiting))
    });
    // Before the first socket the library looks around in the process.
    let made = made.skip_while(|call| !call.starts_with("socket(AF_INET"));
    let made = made.count();
    [made as f64, f64::from(asked)].map(|calls| calls / CONNECTIONS as f64)
}

fn traced(trace: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new("strace");
    command.arg("-f").arg("-o").arg(trace);
    command.arg("-E").arg(format!("LD_PRELOAD={}", library().display()));
    // Where TCP makes them faster they would be left to it, and slow they are here.
    command.arg("-E").arg("BEELINE_OPTIONS=short_lived_lanes=on");
    command.arg(guest("short")).args(arguments);
    command
}

/// What client and server call for each connection.
fn calls(style: &str) -> [[f64; 2]; 2] {
    let count = CONNECTIONS.to_string();
    let traces =
        ["client", "server"].map(|side| Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{side}-{style}")));
    converse(traced(&traces[1], &["serve", style, &count]), |port| traced(&traces[0], &["connect", port, &count]));
    traces.map(|trace| per_connection(&std::fs::read_to_string(trace).expect("a trace")))
}

fn a_connection_costs(style: &str, server_most: f64) {
    const CLIENT_MOST: f64 = 23.4;
    // One question.
    const ASKED_MOST: f64 = 5.0;
    let [[client, asked], [server, _]] = calls(style);
    // Fewer than these took no lane.
    assert!(client > 12.0 && server > 6.0, "{style}: client {client:.2}, server {server:.2}");
    assert!(client < CLIENT_MOST + SLACK, "{style}: client {client:.2} system calls a connection");
    assert!(asked < ASKED_MOST + SLACK, "{style}: the client asks with {asked:.2} system calls a connection");
    assert!(server < server_most + SLACK, "{style}: server {server:.2} system calls a connection");
}

#[test]
fn a_short_connection_costs_a_server_that_sleeps_in_accept_so_many_calls() {
    a_connection_costs("accept", 12.3);
}

#[test]
fn a_short_connection_costs_a_server_with_a_nonblocking_listener_so_many_calls() {
    a_connection_costs("nonblocking", 13.5);
}

#[test]
fn a_short_connection_costs_a_server_with_a_blocking_listener_in_a_set_so_many_calls() {
    a_connection_costs("blocking", 23.1);
}
