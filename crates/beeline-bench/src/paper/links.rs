//! The interfaces between two hosts: what a cell asks of them, what they are limited to, and how they are set and set
//! back.
//!
//! What a cell sets is set in both hosts before its programs begin, and is as it was when they have ended, whether or
//! not they succeeded.

use std::net::IpAddr;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use super::axis::show_rates;
use super::cell::Cell;
use crate::hosts::{Host, Speed};
use crate::process::{Guard, Output};

/// Behind ssh an emulated host may take a command as long as others a second.
const PATIENCE: Duration = Duration::from_secs(60);

/// Why the rails between the hosts are not those of the cell, if they are not.
pub fn other_rails(cell: &Cell, hosts: &[Host; 2]) -> Result<Option<String>> {
    let Some(wanted) = &cell.rails else { return Ok(None) };
    let mut found = Vec::new();
    for host in hosts {
        found.push(show_rates(rates(host)?));
    }
    let differs = found.iter().find(|found| *found != wanted);
    let show = |found: &String| if found.is_empty() { "has no limit".to_owned() } else { format!("has {found}") };
    Ok(differs.map(|found| format!("it takes rails of {wanted} (tests/hosts/papers.sh), this pair {}", show(found))))
}

/// Runs something with the interfaces' MTU set in both namespaces, and sets it back.
pub fn with_mtu<T>(cell: &Cell, hosts: &[Host; 2], run: impl FnOnce() -> Result<T>) -> Result<T> {
    let Some(mtu) = cell.mtu else { return run() };
    let mut before = Vec::new();
    for host in hosts {
        for (link, mtu) in links(host)? {
            before.push((host, link, mtu));
        }
    }
    ensure!(!before.is_empty(), "the namespaces have no veth whose MTU could be set");
    let set = before.iter().try_for_each(|(host, link, _)| set_mtu(host, link, mtu));
    let result = set.and_then(|()| run());
    let restored: Vec<Result<()>> = before.iter().map(|(host, link, mtu)| set_mtu(host, link, *mtu)).collect();
    let result = result?;
    restored.into_iter().collect::<Result<()>>().context("the MTU could not be set back")?;
    Ok(result)
}

/// The veth of a namespace, with their MTUs.
fn links(host: &Host) -> Result<Vec<(String, u32)>> {
    let text = ask(host, ["ip", "-j", "link", "show", "type", "veth"].into_iter())?;
    read_links(&text).with_context(|| format!("{host}: ip says `{text}`"))
}

/// Of others than were asked for some releases of `ip` print an object with nothing in it.
fn read_links(text: &str) -> Result<Vec<(String, u32)>> {
    #[derive(serde::Deserialize)]
    struct Link {
        ifname: Option<String>,
        mtu: Option<u32>,
    }
    let links: Vec<Link> = serde_json::from_str(text)?;
    Ok(links.into_iter().filter_map(|link| link.ifname.zip(link.mtu)).collect())
}

/// What tc limits a host's interfaces to, in bits a second.
fn rates(host: &Host) -> Result<Vec<u64>> {
    #[derive(serde::Deserialize)]
    struct Discipline {
        kind: String,
        #[serde(default)]
        options: serde_json::Value,
    }
    let text = ask(host, ["tc", "-j", "qdisc", "show"].into_iter())?;
    let all: Vec<Discipline> = serde_json::from_str(&text).with_context(|| format!("{host}: tc says `{text}`"))?;
    let limits = all.iter().filter(|discipline| discipline.kind == "tbf");
    // In bytes a second.
    Ok(limits.filter_map(|limit| limit.options["rate"].as_u64()).map(|rate| 8 * rate).collect())
}

fn set_mtu(host: &Host, link: &str, mtu: u32) -> Result<()> {
    ask(host, ["ip", "link", "set", "dev", link, "mtu", &mtu.to_string()].into_iter()).map(drop)
}

/// The interfaces of the two hosts that lead to each other, where the server has this address.
pub fn between(hosts: &[Host; 2], server: IpAddr) -> Result<[String; 2]> {
    #[derive(serde::Deserialize)]
    struct Way {
        dev: String,
        prefsrc: Option<IpAddr>,
    }
    let way = |host: &Host, to: IpAddr| -> Result<Way> {
        let text = ask(host, ["ip", "-j", "route", "get", &to.to_string()].into_iter())?;
        let ways: Vec<Way> = serde_json::from_str(&text).with_context(|| format!("{host}: ip says `{text}`"))?;
        ways.into_iter().next().with_context(|| format!("{host}: there is no way to {to}"))
    };
    let there = way(&hosts[0], server)?;
    let client =
        there.prefsrc.with_context(|| format!("{}: nobody knows its address on the way to {server}", hosts[0]))?;
    Ok([there.dev, way(&hosts[1], client)?.dev])
}

/// What all rails between the hosts carry one way, in bytes a second: as tc limits them, or as fast as they say that
/// they are.
pub fn peak(hosts: &[Host; 2], speeds: &[Speed]) -> Result<Option<f64>> {
    let mut limits = Vec::new();
    for host in hosts {
        limits.push(rates(host)?.iter().sum::<u64>() as f64 / 8.0);
    }
    if limits.iter().all(|limit| *limit > 0.0) {
        return Ok(limits.into_iter().reduce(f64::min));
    }
    // A veth says 10 Gbit/s, which it does not keep to.
    let veths: Vec<String> = links(&hosts[0])?.into_iter().map(|(name, _)| name).collect();
    Ok(sum_of(speeds, &veths))
}

fn sum_of(speeds: &[Speed], veths: &[String]) -> Option<f64> {
    let known = |speed: &Speed| speed.bytes_per_second.filter(|_| !veths.contains(&speed.netdev));
    let all: Option<Vec<f64>> = speeds.iter().map(known).collect();
    all.filter(|all| !all.is_empty()).map(|all| all.iter().sum())
}

fn ask<'a>(host: &Host, words: impl Iterator<Item = &'a str>) -> Result<String> {
    let output = output(host, words)?;
    if !output.status.success() {
        bail!("{host}: {output}");
    }
    Ok(output.text)
}

/// What a command says at a host, and how it ended.
pub fn output<'a>(host: &Host, words: impl Iterator<Item = &'a str>) -> Result<Output> {
    Guard::start(host.command(words), true)?.output(PATIENCE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_of_another_kind_may_be_empty() {
        let text = r#"[{},{"ifindex":7,"ifname":"veth0","mtu":1500,"qdisc":"noqueue"},{}]"#;
        assert_eq!(read_links(text).unwrap(), [("veth0".to_owned(), 1500)]);
        assert_eq!(read_links("[{},{}]").unwrap(), []);
        assert!(read_links("no").is_err());
    }

    #[test]
    fn a_peak_is_known_when_all_rails_say_theirs() {
        let speed = |netdev: &str, bytes_per_second| Speed { netdev: netdev.into(), bytes_per_second };
        let two = [speed("a", Some(1e9)), speed("b", Some(2e9))];
        assert_eq!(sum_of(&two, &[]), Some(3e9));
        assert_eq!(sum_of(&two, &["b".to_owned()]), None);
        assert_eq!(sum_of(&[speed("a", Some(1e9)), speed("b", None)], &[]), None);
        assert_eq!(sum_of(&[], &[]), None);
    }
}
