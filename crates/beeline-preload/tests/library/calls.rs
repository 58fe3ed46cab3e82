//! What a short connection costs in system calls, so that none creeps back in. Counted by strace, which makes waits and
//! what they end with a matter of chance: these calls, and the program's own, are left out. Those by which the kernel's
//! tables are asked now and then are counted apart: a client that is so slow asks who listens for each connection, and
//! no more. Where the machine is busy some connections take the long way, so the one in the middle counts.

use std::time::Duration;

use super::*;

/// Connections of one run.
const CONNECTIONS: usize = 300;

/// The calls of one side in a connection.
#[derive(Clone, Copy, Default)]
struct Calls {
    /// Those that make, take and end it.
    made: usize,
    /// Those that ask the kernel's tables.
    asked: usize,
}

/// The calls of one side in each connection, which begins with a call that `is_first` knows: the medians. None if there
/// are too few such connections.
fn per_connection(trace: &str, is_first: impl Fn(&str) -> bool) -> Option<Calls> {
    const OF_WAITS: [&str; 7] =
        ["epoll_wait(", "epoll_pwait2(", "epoll_ctl(", "ppoll(", "ioctl(", "recvmsg(", "sendto("];
    let calls = trace.lines().filter_map(|line| line.split_once(' ')).map(|(_, call)| call.trim_start());
    let mut in_netlink = false;
    let mut connections: Vec<Calls> = Vec::new();
    for call in calls {
        if is_first(call) {
            connections.push(Calls::default());
        }
        let is_netlink = in_netlink || call.starts_with("socket(AF_NETLINK");
        in_netlink = is_netlink && !call.starts_with("close(");
        // Before the first connection the library looks around in the process.
        let Some(connection) = connections.last_mut() else { continue };
        if is_netlink {
            connection.asked += 1;
        } else if !OF_WAITS.iter().any(|waiting| call.starts_with(waiting)) {
            connection.made += 1;
        }
    }
    // What is before these a server takes from its own door, to see how many fit in there.
    let earlier = connections.len().checked_sub(CONNECTIONS)?;
    let connections = &connections[earlier..];
    let median = |calls: fn(&Calls) -> usize| {
        let mut all: Vec<usize> = connections.iter().map(calls).collect();
        *all.select_nth_unstable(CONNECTIONS / 2).1
    };
    Some(Calls { made: median(|calls| calls.made), asked: median(|calls| calls.asked) })
}

/// Whether a client begins with its next connection.
fn makes_one(call: &str) -> bool {
    call.starts_with("socket(AF_INET, SOCK_STREAM")
}

/// Whether a server takes its next connection.
fn takes_one(call: &str) -> bool {
    call.starts_with("accept4(") && !call.contains("= -1")
}

/// Whether a server takes its next connection over an end that stands.
fn takes_one_again(call: &str) -> bool {
    call.contains("F_DUPFD, 0)") || call.contains("F_DUPFD_CLOEXEC, 0)")
}

fn traced(trace: &Path, options: &str, arguments: &[&str]) -> Command {
    let mut command = Command::new("strace");
    command.arg("-f").arg("-o").arg(trace);
    command.arg("-E").arg(format!("LD_PRELOAD={}", library().display()));
    // Where TCP makes them faster they would be left to it, and slow they are here.
    command.arg("-E").arg(format!("BEELINE_OPTIONS=short_lived_lanes=on,{options}"));
    command.arg(guest("short")).args(arguments);
    command
}

/// What client and server call for each connection. `extra` are more than those that count, for a beginning that takes
/// another way. None if more took that.
fn calls(
    style: &str,
    options: &str,
    (client, extra): (&str, usize),
    takes_one: fn(&str) -> bool,
) -> Option<[Calls; 2]> {
    let count = (CONNECTIONS + extra).to_string();
    let traces = ["client", "server"]
        .map(|side| Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{side}-{style}-{options}")));
    let server = traced(&traces[1], options, &["serve", style, &count]);
    converse(server, |port| traced(&traces[0], options, &[client, port, &count]));
    let [client, server] = traces.map(|trace| std::fs::read_to_string(trace).expect("a trace"));
    Some([per_connection(&client, makes_one)?, per_connection(&server, takes_one)?])
}

/// A connection whose client says hello at the door.
fn a_connection_costs(style: &str, server_most: usize) {
    const CLIENT_MOST: usize = 23;
    // One question.
    const ASKED_MOST: usize = 5;
    let [client, server] = calls(style, "standing=off", ("connect", 0), takes_one).expect("all connections");
    // Fewer than these took no lane.
    assert!(client.made > 12 && server.made > 6, "{style}: client {}, server {}", client.made, server.made);
    assert!(client.made <= CLIENT_MOST, "{style}: client {} system calls a connection", client.made);
    assert!(client.asked <= ASKED_MOST, "{style}: the client asks with {} system calls a connection", client.asked);
    assert!(server.made <= server_most, "{style}: server {} system calls a connection", server.made);
}

#[test]
fn a_short_connection_costs_a_server_that_sleeps_in_accept_so_many_calls() {
    a_connection_costs("accept", 10);
}

#[test]
fn a_short_connection_costs_a_server_with_a_nonblocking_listener_so_many_calls() {
    a_connection_costs("nonblocking", 11);
}

#[test]
fn a_short_connection_costs_a_server_with_a_blocking_listener_in_a_set_so_many_calls() {
    a_connection_costs("blocking", 22);
}

/// A connection over an end that stands: no name, no door, no hello. A server that is told of it looks for it no more.
/// Traced as they are, both sides are slow, and at some time may find that the other one does not answer in time: then
/// most connections of that run take another way.
#[test]
fn a_short_connection_over_an_end_that_stands_costs_so_many_calls() {
    const SERVER_MOST: usize = 11;
    const RUNS: usize = 10;
    // A client that binds its port does so, and hides the socket that holds it.
    for (kind, client_most) in [("again", 14), ("connect", 17)] {
        for style in ["accept", "nonblocking", "blocking"] {
            let runs = (0..RUNS).map(|_| calls(style, "standing=on", (kind, 100), takes_one_again));
            let mut runs = runs.map(|calls| calls.map(|[client, server]| (client.made, server.made)));
            let mut seen = Vec::new();
            let is_cheap = runs.any(|made| {
                seen.push(made);
                made.is_some_and(|(client, server)| client <= client_most && server <= SERVER_MOST)
            });
            assert!(is_cheap, "{kind} {style}: {seen:?} system calls a connection");
            let (client, server) = seen.last().copied().flatten().expect("a run");
            assert!(client > 6 && server > 5, "{kind} {style}: {client}, {server}");
        }
    }
}

/// To ask all queues each time costs a tenth of such a connection: at least one look in each, and two where the
/// listener blocks. Now it is one for each five, or two, and some where a client comes late.
#[test]
fn a_client_over_tcp_costs_a_server_hardly_a_look_at_its_door() {
    for style in ["nonblocking", "blocking"] {
        let trace = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("over-tcp-{style}"));
        let count = CONNECTIONS.to_string();
        converse(traced(&trace, "standing=auto", &["serve", style, &count]), |port| {
            let mut client = Command::new(guest("short"));
            client.args(["connect", port, &count]);
            client
        });
        let trace = std::fs::read_to_string(trace).expect("a trace");
        let calls = trace.lines().filter_map(|line| line.split_once(' ')).map(|(_, call)| call.trim_start());
        let is_look = |call: &str| {
            call.starts_with("ppoll(") && call.contains("}, {fd=")
                || call.starts_with("accept4(") && call.contains("EAGAIN")
        };
        let looks = calls.filter(|call| is_look(call)).count();
        assert!(looks < CONNECTIONS * 3 / 4, "{style}: {looks} looks");
    }
}

/// What a program that makes one connection, to a server without Beeline, makes more of than without the library: at
/// its start, to find out that there is no door, and to put the reason on record. It was 162. Four of them spare it a
/// search of its text, which other processes have made.
#[test]
fn one_connection_to_a_server_without_beeline_costs_so_many_calls_more() {
    const MORE_MOST: usize = 119;
    let listener = std::net::TcpListener::bind(("127.0.0.1", 0)).expect("a listener");
    let port = listener.local_addr().expect("its address").port().to_string();
    let calls = |library: Option<&Path>| {
        let trace = Path::new(env!("CARGO_TARGET_TMPDIR")).join("one-connection");
        let mut command = Command::new("strace");
        command.env_remove("LD_LIBRARY_PATH").arg("-f").arg("-o").arg(&trace);
        if let Some(library) = library {
            command.arg("-E").arg(format!("LD_PRELOAD={}", library.display()));
        }
        let status = command.args(["nc", "-z", "127.0.0.1", &port]).status().expect("strace runs");
        assert!(status.success());
        std::fs::read_to_string(trace).expect("a trace").lines().count()
    };
    let least = |library| (0..5).map(|_| calls(library)).min().unwrap_or(0);
    let without = least(None);
    // Beside other programs of this user there are their files of statistics to look at: until there are few of them.
    let mut ours = least(Some(library()));
    for _ in 0..100 {
        if ours.saturating_sub(without) <= MORE_MOST {
            break;
        }
        std::thread::sleep(Duration::from_millis(100));
        ours = ours.min(calls(Some(library())));
    }
    assert!(ours > without && ours - without <= MORE_MOST, "{ours}, without {without}");
}
