//! The programs of the demo: how they are started, and what they print.

use std::collections::BTreeSet;

use anyhow::{Result, bail};
use serde_json::Value;

use crate::process::find;
use crate::report::{Row, Unit};

/// A program and the Debian package that brings it.
type Need = (&'static str, &'static str);

/// A server program and what is played against it.
pub struct Contest {
    pub name: &'static str,
    pub needs: &'static [Need],
    pub server: fn(port: u16) -> Vec<String>,
    /// The server ends after one client.
    pub one_shot: bool,
    pub matches: &'static [Match],
}

/// One client run, and the figure in its output.
pub struct Match {
    pub row: Row,
    pub load: Load,
    pub server_stays: bool,
    pub client: fn(port: u16, load: u64) -> Vec<String>,
    pub parse: fn(output: &str) -> Option<f64>,
}

/// How long a client runs.
pub enum Load {
    /// The program knows a time itself.
    Timed,
    /// The program wants a number of requests: a first run with so many finds out how many make a second.
    Requests { first: u64 },
}

const fn row(id: &'static str, title: &'static str, unit: Unit) -> Row {
    Row { id, title, unit, limit: None }
}

fn words(line: String) -> Vec<String> {
    line.split_whitespace().map(str::to_owned).collect()
}

const fn redis(row: Row, client: fn(u16, u64) -> Vec<String>, first: u64) -> Match {
    Match { row, load: Load::Requests { first }, server_stays: true, client, parse: parse_redis }
}

fn redis_get(port: u16, load: u64, clients: u32, pipeline: u32) -> Vec<String> {
    words(format!("redis-benchmark -h 127.0.0.1 -p {port} -t get -n {load} -c {clients} -P {pipeline} --csv"))
}

fn netpipe(port: u16, bytes: u32) -> Vec<String> {
    words(format!("NPtcp -P {port} -o /dev/stdout -p 0 -l {bytes} -u {bytes}"))
}

fn netpipe_client(port: u16, bytes: u32) -> Vec<String> {
    let mut words = netpipe(port, bytes);
    words.extend(["-h".to_owned(), "127.0.0.1".to_owned()]);
    words
}

const fn netpipe_match(row: Row, client: fn(u16, u64) -> Vec<String>, parse: fn(&str) -> Option<f64>) -> Match {
    Match { row, load: Load::Timed, server_stays: false, client, parse }
}

/// All contests, in the order of the table.
pub const CONTESTS: &[Contest] = &[
    Contest {
        name: "redis",
        needs: &[("redis-server", "redis-server"), ("redis-benchmark", "redis-tools")],
        server: |port| {
            let mut words = words(format!(
                "redis-server --port {port} --bind 127.0.0.1 --daemonize no --appendonly no --dir /tmp --save"
            ));
            words.push(String::new());
            words
        },
        one_shot: false,
        matches: &[
            redis(
                row("redis-1", "Redis GET, 1 client", Unit::RequestsPerSecond),
                |port, load| redis_get(port, load, 1, 1),
                10_000,
            ),
            redis(
                row("redis-1-pipeline", "Redis GET, 1 client, pipeline 16", Unit::RequestsPerSecond),
                |port, load| redis_get(port, load, 1, 16),
                50_000,
            ),
            redis(
                row("redis-50", "Redis GET, 50 clients", Unit::RequestsPerSecond),
                |port, load| redis_get(port, load, 50, 1),
                20_000,
            ),
            redis(
                row("redis-50-pipeline", "Redis GET, 50 clients, pipeline 16", Unit::RequestsPerSecond),
                |port, load| redis_get(port, load, 50, 16),
                200_000,
            ),
        ],
    },
    Contest {
        name: "iperf3",
        needs: &[("iperf3", "iperf3")],
        server: |port| words(format!("iperf3 -s -1 -B 127.0.0.1 -p {port}")),
        one_shot: true,
        matches: &[Match {
            row: row("iperf3", "iperf3, one stream", Unit::BytesPerSecond),
            load: Load::Timed,
            server_stays: false,
            client: |port, _| words(format!("iperf3 -c 127.0.0.1 -p {port} -t 2 -J")),
            parse: parse_iperf3,
        }],
    },
    // Both ends of NetPIPE must be told the same sizes.
    Contest {
        name: "netpipe",
        needs: &[("NPtcp", "netpipe-tcp")],
        server: |port| netpipe(port, 1),
        one_shot: true,
        matches: &[netpipe_match(
            row("netpipe-1", "NetPIPE, 1 B, one way", Unit::Nanoseconds),
            |port, _| netpipe_client(port, 1),
            |text| parse_netpipe(text).map(|line| line.ns),
        )],
    },
    Contest {
        name: "netpipe",
        needs: &[("NPtcp", "netpipe-tcp")],
        server: |port| netpipe(port, 65_536),
        one_shot: true,
        matches: &[netpipe_match(
            row("netpipe-64k", "NetPIPE, 64 KiB", Unit::BytesPerSecond),
            |port, _| netpipe_client(port, 65_536),
            |text| parse_netpipe(text).map(|line| line.bytes_per_second),
        )],
    },
    Contest {
        name: "sockperf",
        needs: &[("sockperf", "sockperf")],
        server: |port| words(format!("sockperf server --tcp -i 127.0.0.1 -p {port}")),
        one_shot: false,
        matches: &[
            Match {
                row: row("sockperf-pp", "sockperf ping-pong, 14 B, one way", Unit::Nanoseconds),
                load: Load::Timed,
                server_stays: true,
                // By default sockperf makes room for 600,000 round trips a second and ends with an error beyond.
                client: |port, _| {
                    words(format!("sockperf ping-pong --tcp -i 127.0.0.1 -p {port} -t 2 -m 14 --mps=4000000"))
                },
                parse: |text| Some(number_after(text, "Latency is ")? * 1e3),
            },
            Match {
                row: row("sockperf-tp", "sockperf throughput, 64 B sends", Unit::MessagesPerSecond),
                load: Load::Timed,
                server_stays: true,
                client: |port, _| words(format!("sockperf throughput --tcp -i 127.0.0.1 -p {port} -t 1 -m 64")),
                parse: |text| number_after(text, "Message Rate is "),
            },
        ],
    },
];

/// Fails with the packages to be installed when a program is missing.
pub fn require(contests: &[&Contest]) -> Result<()> {
    let missing: BTreeSet<&str> = contests
        .iter()
        .flat_map(|contest| contest.needs)
        .filter(|(program, _)| find(program).is_none())
        .map(|&(_, package)| package)
        .collect();
    if missing.is_empty() {
        return Ok(());
    }
    let list: Vec<&str> = missing.into_iter().collect();
    bail!("programs are missing; on Debian: apt-get install --no-install-recommends {}", list.join(" "))
}

/// `"GET","97560.98",…` of `redis-benchmark --csv`.
fn parse_redis(text: &str) -> Option<f64> {
    let line = text.lines().find(|line| line.starts_with("\"GET\""))?;
    line.split(',').nth(1)?.trim_matches('"').parse().ok()
}

/// What the receiver got, of `iperf3 -J`.
fn parse_iperf3(text: &str) -> Option<f64> {
    let document: Value = serde_json::from_str(text).ok()?;
    let bits = document["end"]["sum_received"]["bits_per_second"].as_f64()?;
    Some(bits / 8.0)
}

struct NetpipeLine {
    ns: f64,
    bytes_per_second: f64,
}

/// A line of NetPIPE's output file: bytes, megabits (of 2^20) per second, seconds one way.
fn parse_netpipe(text: &str) -> Option<NetpipeLine> {
    text.lines().rev().find_map(|line| {
        let numbers: Vec<f64> = line.split_whitespace().map(|word| word.parse().ok()).collect::<Option<_>>()?;
        match numbers[..] {
            [_, mbps, seconds] => {
                Some(NetpipeLine { ns: seconds * 1e9, bytes_per_second: mbps * f64::from(1 << 20) / 8.0 })
            }
            _ => None,
        }
    })
}

/// The number behind a word.
fn number_after(text: &str, word: &str) -> Option<f64> {
    let rest = text[text.find(word)? + word.len()..].trim_start();
    let end = rest.find(|c: char| !(c.is_ascii_digit() || c == '.')).unwrap_or(rest.len());
    rest[..end].parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn redis_output() {
        let text = "\"test\",\"rps\",\"avg_latency_ms\"\n\"GET\",\"56338.03\",\"0.014\"\n";
        assert_eq!(parse_redis(text), Some(56338.03));
        assert_eq!(parse_redis("Could not connect"), None);
    }

    #[test]
    fn iperf3_output() {
        let text = r#"{"end":{"sum_received":{"bits_per_second":800.0}}}"#;
        assert_eq!(parse_iperf3(text), Some(100.0));
        assert_eq!(parse_iperf3(r#"{"error":"unable to connect"}"#), None);
    }

    #[test]
    fn netpipe_output() {
        let text = "   65536 31066.970000   0.00001609\n";
        let line = parse_netpipe(text).unwrap();
        assert!((line.ns - 16_090.0).abs() < 1e-6);
        // 65,536 bytes in 16.09 µs.
        assert!((line.bytes_per_second / (65_536.0 / 16.09e-6) - 1.0).abs() < 0.001);
        assert!(parse_netpipe("").is_none());
    }

    #[test]
    fn sockperf_output() {
        let text = "sockperf: Summary: Latency is 2.381 usec\nsockperf: Summary: Message Rate is 3148889 [msg/sec]\n";
        assert_eq!(number_after(text, "Latency is "), Some(2.381));
        assert_eq!(number_after(text, "Message Rate is "), Some(3_148_889.0));
        assert_eq!(number_after(text, "Bandwidth"), None);
    }

    #[test]
    fn an_empty_save_rule_reaches_redis_as_an_empty_word() {
        let words = (CONTESTS[0].server)(1);
        assert_eq!(words[words.len() - 2..], ["--save".to_owned(), String::new()]);
    }
}
