//! What `beeline stat` shows of the bridge.

use crate::common::stdout;
use crate::root::{Root, alive, busy, content};

/// What a bridge says that carries one connection of the process in [`busy`].
const STATUS: &str = r#"{"ok": {
  "version": "1", "pid": 7, "name": "alpha", "instance": 9, "insecure": false, "listen": ["[::]:4797"],
  "speaks_for": ["10.0.0.1"], "certificate_days": 300, "control_ends": {}, "tunables": {"spin_us": 50},
  "peers": [{"name": "beta", "is_up": true, "address": "10.0.0.2:4797", "up_s": 3, "round_trip_us": 80,
             "speaks_for": ["10.0.0.2"], "rails": [], "certificate_days": 300, "last_end": null}],
  "data": {
    "uptime_s": 100,
    "rails": [{"id": 0, "trouble": null, "rail": {"name": "verbs/mlx5_0", "provider": "verbs", "protocol": "roce",
      "address": "10.0.0.1/24", "up": true, "load": {"connections": 1, "in_flight_bytes": 0}}}],
    "links": [],
    "connections": [
      {"client": "127.0.0.1:24000", "server": "127.0.0.1:6379", "client_is_here": false, "peer": "beta", "state": "open",
       "cpu": 1, "paths": [{"rail": "verbs/mlx5_0", "peer_rail": "verbs/a"}], "bytes_sent": 1, "bytes_received": 2, "age_s": 3},
      {"client": "127.0.0.1:24001", "server": "127.0.0.1:6379", "client_is_here": false, "peer": "beta", "state": "open",
       "cpu": 1, "paths": [], "bytes_sent": 1, "bytes_received": 2, "age_s": 3}],
    "refusals": {"no_door": 5}, "totals": {},
    "share": {"look": null, "ask": null, "outward": null, "send": null, "inward": null, "own": null}}}}"#;

#[test]
fn the_bridge_tells_its_rails_connections_and_reasons() {
    let root = Root::new();
    let answer = STATUS.replace('\n', " ") + "\n";
    let output = root.with_bridge(&answer, &[]);
    let text = stdout(&output);
    for expected in [
        "No process",
        "\nThe bridge: alpha (beelined 1, process 7), up for 100 s\n",
        "beta  up     10.0.0.2:4797",
        "   0  verbs/mlx5_0  10.0.0.1/24",
        "127.0.0.1:24000  127.0.0.1:6379  beta  open   verbs/mlx5_0",
        "127.0.0.1:24001  127.0.0.1:6379  beta  open   -",
        "      5  no_door: The listener on the destination's host has no door",
    ] {
        assert!(text.contains(expected), "{expected}\n---\n{text}");
    }
    let json = root.with_bridge(&answer, &["--json"]);
    let json: serde_json::Value = serde_json::from_str(stdout(&json)).unwrap();
    assert_eq!(json["bridge"]["state"], "running");
    assert_eq!(json["bridge"]["status"]["data"]["connections"][0]["paths"][0]["rail"], "verbs/mlx5_0");

    root.put(alive(), content(alive(), busy));
    let output = root.with_bridge(&answer, &[&alive().pid.to_string()]);
    let text = stdout(&output);
    assert!(text.contains("To other hosts, by the bridge:") && text.contains("verbs/mlx5_0"), "{text}");
    assert!(!text.contains("24001"), "that one is another process's: {text}");
}

#[test]
fn it_is_said_plainly_that_there_is_no_bridge_or_why_it_says_nothing() {
    let root = Root::new();
    let output = root.stat(&[]);
    let path = root.socket().display().to_string();
    let none =
        format!("\nConnections to other hosts are kernel TCP: no bridge is running (nobody listens on {path}).\n");
    assert!(stdout(&output).ends_with(&none), "{}", stdout(&output));
    assert_eq!(root.json(&[])["bridge"]["state"], "not_running");
    for (answer, state, why) in [
        ("", "not_allowed", "only root and its own user may ask"),
        ("{\"ok\": {}}\n", "failed", "of another version"),
        ("{\"error\": \"busy\"}\n", "refused", "busy"),
    ] {
        let output = root.with_bridge(answer, &[]);
        let text = stdout(&output);
        assert!(text.contains("What goes to other hosts is not known: ") && text.contains(why), "{text}");
        assert_eq!(output.status.code(), Some(0));
        let json = root.with_bridge(answer, &["--json"]);
        let json: serde_json::Value = serde_json::from_str(stdout(&json)).unwrap();
        assert_eq!(json["bridge"]["state"], state);
        assert!(json["bridge"]["why"].as_str().unwrap().contains(why), "{json}");
    }
}
