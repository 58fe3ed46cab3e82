//! `beeline topo` on recorded hosts, with bridges of every kind in front of it.

#![allow(clippy::unwrap_used)]

mod common;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use common::{beeline, stderr, stdout};

fn recorded(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../beeline-topo/tests/data").join(name)
}

/// With letters beyond ASCII, whatever the tester's own locale is.
fn topo() -> Command {
    let mut command = beeline();
    command.env_remove("LC_ALL").env_remove("LC_CTYPE").env("LANG", "C.UTF-8").arg("topo");
    command
}

const RAILS: &str = r#"{
  "format": 1,
  "rails": [
    {"name": "verbs/mlx5_0", "provider": "verbs", "protocol": "roce", "address": "10.0.0.1/24", "netdev": "enp6s0",
     "speed_mbps": 100000, "up": true, "load": {"connections": 3, "in_flight_bytes": 262144}},
    {"name": "verbs/mlx5_1", "provider": "verbs", "protocol": "roce", "address": "10.0.0.2/24", "netdev": "enp133s0",
     "speed_mbps": 100000, "up": true},
    {"name": "tcp/enp6s0", "provider": "tcp", "protocol": "tcp", "address": "10.0.0.1/24", "netdev": "enp6s0", "up": true},
    {"name": "tcp/eno1", "provider": "tcp", "protocol": "tcp", "address": "192.0.2.1/24", "netdev": "eno1",
     "speed_mbps": 2500, "up": false}
  ],
  "unused": [{"name": "mlx5_1", "reason": "TCP is switched off."}],
  "peers": [
    {"name": "host\u001b[2Jb", "rails": [
      {"name": "verbs/a", "provider": "verbs", "protocol": "roce", "address": "10.0.0.3/24", "netdev": "a"},
      {"name": "tcp/a", "provider": "tcp", "protocol": "tcp", "address": "10.0.0.3/24", "netdev": "a"}]},
    {"name": "front", "rails": [
      {"name": "tcp/eth0", "provider": "tcp", "protocol": "tcp", "address": "192.0.2.9/24"}]}
  ],
  "connections": [
    {"local": "10.0.0.1:40112", "remote": "10.0.0.3:6379", "peer": "hostb", "cpu": 5,
     "paths": [{"rail": "verbs/mlx5_1", "peer_rail": "verbs/a"}, {"rail": "verbs/mlx5_0", "peer_rail": "verbs/b"}]},
    {"local": "10.0.0.1:7000", "remote": "10.0.0.3:6379", "peer": "hostb", "paths": []}]
}"#;

const DRAWN: &str = "\
constructed-socket-direct  as described by FILE
├─ package 0  4 cores
│  └─ node 0  32.0 GiB  CPUs 0-3
│     └─ enp6s0  mlx5_0  0000:06:00.0  MT28800 Family [ConnectX-5 Ex]
│        ├─ rail  verbs/mlx5_0  RoCE (verbs)  10.0.0.1/24  100 Gb/s  3 connections, 256 KiB in flight
│        └─ rail  tcp/enp6s0  TCP  10.0.0.1/24  speed unknown
├─ package 1  4 cores
│  └─ node 1  32.0 GiB  CPUs 4-7
│     └─ enp133s0  mlx5_1  0000:85:00.0  MT28800 Family [ConnectX-5 Ex]  no rail: TCP is switched off.
│        └─ rail  verbs/mlx5_1  RoCE (verbs)  10.0.0.2/24  100 Gb/s
└─ place unknown
   └─ rail  tcp/eno1  TCP  192.0.2.1/24  2.5 Gb/s  down

Distances between nodes  as the firmware says: 10 is the node itself
├─ node 0     10  21
└─ node 1     21  10

Paths to host?[2Jb
├─ node 0  CPUs 0-3  verbs/mlx5_0 → verbs/a  distance 10
│  ├─ verbs/mlx5_1 → verbs/a  An adapter of it is farther from the CPU.  distance 21, counts as 10 Gb/s
│  ├─ tcp/eno1  The rail is down.
│  └─ tcp/enp6s0  Its port is used past the kernel instead.
└─ node 1  CPUs 4-7  verbs/mlx5_1 → verbs/a  distance 10
   ├─ verbs/mlx5_0 → verbs/a  An adapter of it is farther from the CPU.  distance 21, counts as 10 Gb/s
   ├─ tcp/eno1  The rail is down.
   └─ tcp/enp6s0  Its port is used past the kernel instead.

Paths to front
├─ node 0  CPUs 0-3  kernel TCP  no rail reaches this peer
│  ├─ tcp/eno1  The rail is down.
│  ├─ tcp/enp6s0  It reaches none of the peer's rails.
│  ├─ verbs/mlx5_0  It reaches none of the peer's rails.
│  └─ verbs/mlx5_1  It reaches none of the peer's rails.
└─ node 1  CPUs 4-7  kernel TCP  no rail reaches this peer
   ├─ tcp/eno1  The rail is down.
   ├─ tcp/enp6s0  It reaches none of the peer's rails.
   ├─ verbs/mlx5_0  It reaches none of the peer's rails.
   └─ verbs/mlx5_1  It reaches none of the peer's rails.

Connections
├─ 10.0.0.1:40112 ↔ 10.0.0.3:6379  CPU 5  verbs/mlx5_1 → verbs/a  of hostb  large transfers also over verbs/mlx5_0 → verbs/b
└─ 10.0.0.1:7000 ↔ 10.0.0.3:6379  no rail at the moment  of hostb
";

/// The host with an adapter at each package, and the rails above.
fn socket_direct(arguments: &[&str]) -> Output {
    let directory = tempfile::tempdir().unwrap();
    let rails = directory.path().join("rails.json");
    fs::write(&rails, RAILS.replace("\"netdev\": \"a\"", "\"netdev\": \"a\", \"speed_mbps\": 100000")).unwrap();
    let file = recorded("constructed-socket-direct.xml");
    let output = topo().arg("--xml").arg(&file).arg("--rails").arg(&rails).args(arguments).output().unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    output
}

#[test]
fn host_rails_paths_and_reasons_are_drawn() {
    let output = socket_direct(&["--why"]);
    let file = recorded("constructed-socket-direct.xml");
    let drawn = DRAWN.replace("FILE", file.to_str().unwrap()).replace("counts as 10 Gb/s", "counts as 47.6 Gb/s");
    assert_eq!(stdout(&output), drawn);
}

#[test]
fn letters_are_ascii_where_the_locale_is_not_utf_8() {
    for (locale, arguments) in [("C", &[][..]), ("C.UTF-8", &["--ascii"])] {
        let file = recorded("constructed-socket-direct.xml");
        let output = topo().env("LANG", locale).arg("--xml").arg(&file).args(arguments).output().unwrap();
        assert!(output.stdout.is_ascii() && stdout(&output).contains("`- package 1"), "{}", stdout(&output));
    }
    let output = socket_direct(&["--ascii"]);
    assert!(output.stdout.is_ascii() && stdout(&output).contains("verbs/mlx5_0 -> verbs/a"), "{}", stdout(&output));
}

#[test]
fn json_has_every_candidate_with_its_verdict() {
    let document: serde_json::Value = serde_json::from_slice(&socket_direct(&["--json"]).stdout).unwrap();
    assert_eq!(document["version"], 1);
    let from = &document["paths"][0]["from"];
    for (node, own, other) in [(0, "verbs/mlx5_0", "verbs/mlx5_1"), (1, "verbs/mlx5_1", "verbs/mlx5_0")] {
        let candidates = &from[node]["candidates"];
        assert_eq!((candidates[0]["rail"].as_str(), candidates[0]["verdict"].as_str()), (Some(own), Some("chosen")));
        assert_eq!((candidates[1]["rail"].as_str(), candidates[1]["verdict"].as_str()), (Some(other), Some("farther")));
    }
    assert_eq!(document["nearest"][1]["ports"][0], "enp133s0");
    assert!(document.get("rails_unknown").is_none());
}

#[test]
fn a_port_s_place_can_be_set_right() {
    let output = socket_direct(&["--near", "mlx5_0=1", "--near", "enp133s0=0"]);
    assert!(stdout(&output).contains("CPUs 0-3  verbs/mlx5_1"), "{}", stdout(&output));
    let file = recorded("constructed-socket-direct.xml");
    for (near, complaint) in [("eth9=0", "no network port eth9"), ("enp6s0=7", "no NUMA node 7")] {
        let output = topo().arg("--xml").arg(&file).args(["--near", near]).output().unwrap();
        assert_eq!(output.status.code(), Some(1));
        assert!(stderr(&output).contains(complaint), "{}", stderr(&output));
    }
}

#[test]
fn a_file_that_is_something_else_is_an_error_with_its_name() {
    let own_source = Path::new(env!("CARGO_MANIFEST_DIR")).join("Cargo.toml");
    for option in ["--xml", "--rails"] {
        for (path, complaint) in
            [(own_source.as_path(), "Cargo.toml: this is"), (Path::new("/nonexistent"), "/nonexistent")]
        {
            let output = topo().arg(option).arg(path).output().unwrap();
            assert_eq!(output.status.code(), Some(1), "{option}");
            assert!(stderr(&output).contains(complaint), "{}", stderr(&output));
        }
    }
}

/// A bridge that is this shell script.
fn with_bridge(script: &str) -> Output {
    let directory = tempfile::tempdir().unwrap();
    let program = directory.path().join("beelined");
    fs::write(&program, format!("#!/bin/sh\n{script}\n")).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    let output = topo().arg("--bridge").arg(&program).output().unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    output
}

#[test]
fn rails_and_host_come_from_the_bridge() {
    let script = r#"[ "$*" = "rails --json" ] && cat <<END
{"format": 1, "host": {"name": "seen-by-bridge", "source": "hwloc", "packages": [{"id": 0}], "nodes": [],
 "cpus": [{"id": 0, "core": 0, "package": 0}], "ports": [{"netdev": "eth7"}]},
 "rails": [{"name": "tcp/eth7", "provider": "tcp", "protocol": "tcp", "address": "192.0.2.1/24", "netdev": "eth7", "up": true}]}
END"#;
    let drawn = "\
seen-by-bridge  as described by hwloc
├─ package 0  1 core  CPU 0
└─ network ports
   └─ eth7
      └─ rail  tcp/eth7  TCP  192.0.2.1/24  speed unknown

Paths to a peer that all rails reach  (no peer is connected)
└─ CPU 0  tcp/eth7 → tcp/eth7  distance unknown
";
    assert_eq!(stdout(&with_bridge(script)), drawn);
}

#[test]
fn without_a_bridge_s_word_ports_are_shown_and_the_reason() {
    let output = topo().args(["--bridge", "/nonexistent/beelined"]).output().unwrap();
    assert!(output.status.success());
    assert!(stdout(&output).contains("package "), "{}", stdout(&output));
    assert!(stdout(&output).contains("Rails are unknown: no bridge is installed"), "{}", stdout(&output));
    for (script, reason) in [
        ("echo warm-up >&2; echo no libfabric >&2; exit 127", "failed: no libfabric"),
        ("exit 1", "failed: without a word"),
        ("echo '{\"format\": 2}'", "the versions differ"),
        ("echo hello", "was not understood"),
        ("exec sleep 60", "said nothing for 5 s"),
        ("exec >&-; exec sleep 60", "did not end"),
    ] {
        let output = with_bridge(script);
        assert!(stdout(&output).contains("package "), "{}", stdout(&output));
        assert!(stdout(&output).contains(reason), "{script}: {}", stdout(&output));
    }
}

#[test]
fn the_command_needs_neither_hwloc_nor_libfabric() {
    let program = fs::read(env!("CARGO_BIN_EXE_beeline")).unwrap();
    let names = |library: &[u8]| program.windows(library.len()).any(|window| window == library);
    assert!(names(b"libc.so.6"), "the names of libraries are where they are looked for");
    assert!(!names(b"libhwloc.so") && !names(b"libfabric.so"));
}
