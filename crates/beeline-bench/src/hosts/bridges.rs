//! The two bridges: what they have moved, and over which rails; and their settings.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use beeline_topo::Rail;
use serde::{Deserialize, Serialize};

use super::post::Post;

/// The time between two looks at them.
const LOOK: Duration = Duration::from_millis(300);

/// What is used of `beelined status --json`.
#[derive(Deserialize)]
struct Status {
    name: String,
    speaks_for: Vec<String>,
    peers: Vec<Peer>,
    tunables: BTreeMap<String, u64>,
    data: Data,
}

#[derive(Deserialize)]
struct Peer {
    name: String,
    is_up: bool,
    last_end: Option<String>,
}

#[derive(Deserialize)]
struct Data {
    rails: Vec<Numbered>,
    links: Vec<Link>,
    totals: Totals,
}

#[derive(Deserialize)]
struct Numbered {
    id: u32,
    rail: Rail,
}

#[derive(Deserialize)]
struct Link {
    peer: String,
    rail: String,
    peer_rail: u32,
    up: bool,
    bytes_sent: u64,
}

#[derive(Deserialize)]
struct Totals {
    opened: u64,
    accepted: u64,
    links_made: u64,
    pushes: u64,
    pulls: u64,
}

/// A rail of the client's host that leads to one of the server's: what each is called, and the NUMA node it is at.
#[derive(Clone, Debug)]
pub struct Common {
    pub names: [String; 2],
    pub server_address: IpAddr,
    pub nodes: [Option<u32>; 2],
}

/// How fast a rail that joins the two hosts says that it is, at the slower end.
#[derive(Clone, Debug)]
pub struct Speed {
    /// Of the client's host; empty where the rail has none.
    pub netdev: String,
    pub bytes_per_second: Option<f64>,
}

/// What both bridges have done for a workload.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Moved {
    /// Connections that the client's bridge asked for.
    pub opened: u64,
    /// Connections that the server's bridge made.
    pub accepted: u64,
    pub pushes: u64,
    pub pulls: u64,
    /// Bytes sent over each rail, from the client's host and from the server's.
    pub from_client: BTreeMap<String, u64>,
    pub from_server: BTreeMap<String, u64>,
}

impl Moved {
    /// The share of a link's rails in what was sent to the server's host, and in what was sent back.
    pub fn shares_of(&self, [there, back]: [&str; 2]) -> [f64; 2] {
        let share = |rails: &BTreeMap<String, u64>, rail: &str| {
            rails.get(rail).copied().unwrap_or(0) as f64 / sum(rails).max(1) as f64
        };
        [share(&self.from_client, there), share(&self.from_server, back)]
    }

    /// Bytes sent to the server's host.
    pub fn there(&self) -> u64 {
        sum(&self.from_client)
    }

    /// Bytes sent the way that less was sent.
    pub fn least(&self) -> u64 {
        sum(&self.from_client).min(sum(&self.from_server))
    }

    pub fn since(&self, before: &Moved) -> Moved {
        // A link that was made anew counts from nothing.
        let rails = |now: &BTreeMap<String, u64>, before: &BTreeMap<String, u64>| {
            let grown = |(rail, &bytes): (&String, &u64)| {
                (rail.clone(), bytes.saturating_sub(before.get(rail).copied().unwrap_or(0)))
            };
            now.iter().map(grown).collect()
        };
        Moved {
            opened: self.opened.saturating_sub(before.opened),
            accepted: self.accepted.saturating_sub(before.accepted),
            pushes: self.pushes.saturating_sub(before.pushes),
            pulls: self.pulls.saturating_sub(before.pulls),
            from_client: rails(&self.from_client, &before.from_client),
            from_server: rails(&self.from_server, &before.from_server),
        }
    }

    fn add(&mut self, more: &Moved) {
        self.opened += more.opened;
        self.accepted += more.accepted;
        self.pushes += more.pushes;
        self.pulls += more.pulls;
        for (rail, bytes) in &more.from_client {
            *self.from_client.entry(rail.clone()).or_default() += bytes;
        }
        for (rail, bytes) in &more.from_server {
            *self.from_server.entry(rail.clone()).or_default() += bytes;
        }
    }

    /// The share of each rail, where there are several. What only acknowledges says nothing and is left out.
    pub fn shares(&self) -> Option<String> {
        if self.from_client.len() < 2 && self.from_server.len() < 2 {
            return None;
        }
        let ways = [("there", &self.from_client), ("back", &self.from_server)];
        let most = ways.iter().map(|(_, rails)| sum(rails)).max()?;
        let told = ways.iter().filter(|(_, rails)| sum(rails) > most / 20).map(|(way, rails)| {
            let all = sum(rails).max(1) as f64;
            let each = rails.iter().map(|(rail, &bytes)| format!("{rail} {:.0} %", bytes as f64 / all * 100.0));
            format!("{way} {}", each.collect::<Vec<_>>().join(", "))
        });
        Some(told.collect::<Vec<_>>().join("; "))
    }
}

/// The bridges of the two hosts.
pub struct Bridges {
    posts: [Post; 2],
    sockets: Option<[String; 2]>,
    /// What the server's bridge speaks for.
    server_speaks_for: Vec<String>,
    rails: Vec<Common>,
    speeds: Vec<Speed>,
    /// By workload.
    moved: RefCell<BTreeMap<&'static str, Moved>>,
}

impl Bridges {
    /// Waits until the two bridges have settled.
    ///
    /// # Errors
    /// When a bridge does not answer, the two do not know each other, or do not settle.
    pub fn new(posts: [Post; 2], sockets: Option<[String; 2]>) -> Result<Bridges> {
        let mut bridges = Bridges {
            posts,
            sockets,
            server_speaks_for: Vec::new(),
            rails: Vec::new(),
            speeds: Vec::new(),
            moved: RefCell::default(),
        };
        let [client, server] = bridges.settled(bridges.posts[0].patience)?;
        bridges.rails = in_common(&client, &server);
        bridges.speeds = joined(&client, &server).map(|(own, other)| speed(own, other)).collect();
        bridges.server_speaks_for = server.speaks_for;
        Ok(bridges)
    }

    /// Waits until both bridges say that they have each other, over links that stay: two that have just met may begin
    /// a control connection each, and make their links anew when one of the two is given up.
    fn settled(&self, patience: Duration) -> Result<[Status; 2]> {
        let deadline = Instant::now() + patience;
        let mut before = None;
        loop {
            let both = [self.status(0)?, self.status(1)?];
            let trouble = match (self.trouble(&both), both.each_ref().map(|status| status.data.totals.links_made)) {
                (None, made) if before == Some(made) => return Ok(both),
                (None, made) => {
                    before = Some(made);
                    "their links do not stay".to_owned()
                }
                (Some(trouble), _) => {
                    before = None;
                    trouble
                }
            };
            let seconds = patience.as_secs();
            ensure!(Instant::now() < deadline, "the bridges have not settled within {seconds} s: {trouble}");
            std::thread::sleep(LOOK);
        }
    }

    /// What keeps the bridges from carrying connections between them, if anything does.
    fn trouble(&self, both: &[Status; 2]) -> Option<String> {
        let names = [0, 1].map(|end| format!("{} ({})", both[end].name, self.posts[end].host));
        if both[0].name == both[1].name {
            return Some(format!("{} and {} are the same", names[0], names[1]));
        }
        for (here, there) in [(0, 1), (1, 0)] {
            let (own, other, name) = (&names[here], &names[there], &both[there].name);
            match both[here].peers.iter().find(|peer| peer.name == *name) {
                Some(peer) if peer.is_up => {}
                Some(Peer { last_end: Some(why), .. }) => {
                    return Some(format!("{own} has no connection to {other}: {why}"));
                }
                Some(_) => return Some(format!("{own} has no connection to {other}")),
                None => return Some(format!("{own} knows nothing of {other}")),
            }
            if !both[here].data.links.iter().any(|link| link.peer == *name && link.up) {
                return Some(format!("{own} has no rail in common with {other}; `beelined status` shows each side's"));
            }
        }
        None
    }

    /// Whether they still can.
    ///
    /// # Errors
    /// Why not.
    pub fn check(&self) -> Result<()> {
        match self.trouble(&[self.status(0)?, self.status(1)?]) {
            None => Ok(()),
            Some(trouble) => bail!("{trouble}"),
        }
    }

    /// An address of the server's host: the first single one that its bridge speaks for.
    pub fn server_address(&self) -> Result<IpAddr> {
        let address = self.server_speaks_for.iter().find_map(|prefix| prefix.parse().ok());
        address.with_context(|| {
            format!("the bridge of {} speaks for prefixes only; give --address IP", self.posts[1].host)
        })
    }

    /// The rails that join the two hosts, by name.
    pub fn rails_in_common(&self) -> &[Common] {
        &self.rails
    }

    /// How fast they are.
    pub fn speeds(&self) -> &[Speed] {
        &self.speeds
    }

    /// Runs something that uses the bridges, and notes what they did meanwhile.
    pub fn watch<T>(&self, workload: &'static str, run: impl FnOnce() -> Result<T>) -> Result<(T, Moved)> {
        let before = self.totals()?;
        let result = run()?;
        let moved = self.totals()?.since(&before);
        self.moved.borrow_mut().entry(workload).or_default().add(&moved);
        Ok((result, moved))
    }

    /// Runs something with a setting changed on both.
    pub fn with_setting<T>(&self, key: &str, value: u64, run: impl FnOnce() -> Result<T>) -> Result<T> {
        self.with_settings(key, [value; 2], run)
    }

    /// The same with a value for each.
    pub fn with_settings<T>(&self, key: &str, values: [u64; 2], run: impl FnOnce() -> Result<T>) -> Result<T> {
        let value_of = |end: usize| {
            let value = self.status(end)?.tunables.get(key).copied();
            value.with_context(|| format!("the bridge of {} has no setting {key}", self.posts[end].host))
        };
        let before = [value_of(0)?, value_of(1)?];
        let result = self.set(0, key, values[0]).and_then(|()| self.set(1, key, values[1])).and_then(|()| run());
        let restored = [self.set(0, key, before[0]), self.set(1, key, before[1])];
        let result = result?;
        restored.into_iter().collect::<Result<()>>().with_context(|| format!("{key} could not be set back"))?;
        Ok(result)
    }

    /// Runs something that changes a setting of both, which then is as before.
    pub fn kept<T>(&self, key: &str, run: impl FnOnce() -> Result<T>) -> Result<T> {
        let present = self.status(0)?.tunables.get(key).copied();
        self.with_setting(key, present.with_context(|| format!("the bridges have no setting {key}"))?, run)
    }

    /// Changes a setting of both while they work.
    pub fn set_both(&self, key: &str, value: u64) -> Result<()> {
        self.set(0, key, value).and_then(|()| self.set(1, key, value))
    }

    /// What was moved in all Beeline samples of each workload.
    pub fn all_moved(&self) -> BTreeMap<&'static str, Moved> {
        self.moved.borrow().clone()
    }

    /// What both have done since they began.
    pub fn totals(&self) -> Result<Moved> {
        let (client, server) = (self.status(0)?, self.status(1)?);
        Ok(Moved {
            opened: client.data.totals.opened,
            accepted: server.data.totals.accepted,
            pushes: client.data.totals.pushes + server.data.totals.pushes,
            pulls: client.data.totals.pulls + server.data.totals.pulls,
            from_client: rails(&client, &server.name),
            from_server: rails(&server, &client.name),
        })
    }

    fn status(&self, end: usize) -> Result<Status> {
        let text = self.ask(end, &["bridge", "status", "--json"])?;
        serde_json::from_str(&text).with_context(|| {
            format!("the bridge of {} is of another release: its status is not understood", self.posts[end].host)
        })
    }

    fn set(&self, end: usize, key: &str, value: u64) -> Result<()> {
        self.ask(end, &["bridge", "set", key, &value.to_string()]).map(drop)
    }

    fn ask(&self, end: usize, words: &[&str]) -> Result<String> {
        let mut words = words.to_vec();
        if let Some(sockets) = &self.sockets {
            words.extend(["--socket", &sockets[end]]);
        }
        self.posts[end].ask(&words)
    }
}

/// The two ends of each link that is up, as the client's host sees them.
fn joined<'a>(client: &'a Status, server: &'a Status) -> impl Iterator<Item = (&'a Rail, &'a Rail)> {
    let up = client.data.links.iter().filter(|link| link.up && link.peer == server.name);
    up.filter_map(|link| {
        let own = client.data.rails.iter().find(|own| own.rail.name == link.rail)?;
        let other = server.data.rails.iter().find(|other| other.id == link.peer_rail)?;
        Some((&own.rail, &other.rail))
    })
}

fn speed(own: &Rail, other: &Rail) -> Speed {
    let slower = own.speed_mbps.zip(other.speed_mbps).map(|(own, other)| own.min(other));
    Speed {
        netdev: own.netdev.clone().unwrap_or_default(),
        bytes_per_second: slower.map(|mbps| f64::from(mbps) * 1e6 / 8.0),
    }
}

fn in_common(client: &Status, server: &Status) -> Vec<Common> {
    let ends = joined(client, server).map(|(own, other)| Common {
        names: [own.name.clone(), other.name.clone()],
        server_address: other.address.addr(),
        nodes: [own.node, other.node],
    });
    let mut rails: Vec<_> = ends.collect();
    rails.sort_by(|a, b| a.names.cmp(&b.names));
    rails
}

fn sum(rails: &BTreeMap<String, u64>) -> u64 {
    rails.values().sum()
}

/// Bytes sent to a peer, by rail.
fn rails(status: &Status, peer: &str) -> BTreeMap<String, u64> {
    let mut rails = BTreeMap::new();
    for link in status.data.links.iter().filter(|link| link.peer == peer) {
        *rails.entry(link.rail.clone()).or_default() += link.bytes_sent;
    }
    rails
}

#[cfg(test)]
mod tests {
    use super::*;

    fn moved(rails: &[(&str, u64)]) -> Moved {
        let rails: BTreeMap<_, _> = rails.iter().map(|&(rail, bytes)| (rail.to_owned(), bytes)).collect();
        Moved { opened: 5, from_client: rails.clone(), from_server: rails, ..Moved::default() }
    }

    #[test]
    fn only_what_is_new_counts_and_a_new_link_does_not_wrap() {
        let before = moved(&[("a", 100), ("b", 100)]);
        let after = Moved { opened: 7, ..moved(&[("a", 400), ("b", 50), ("c", 7)]) };
        let grown = after.since(&before);
        assert_eq!(grown.opened, 2);
        assert_eq!(grown.from_client.values().copied().collect::<Vec<_>>(), [300, 0, 7]);
    }

    #[test]
    fn shares_are_told_when_there_are_several_rails() {
        assert_eq!(moved(&[("a", 100)]).shares(), None);
        let shares = moved(&[("a", 300), ("b", 100)]).shares().unwrap();
        assert_eq!(shares, "there a 75 %, b 25 %; back a 75 %, b 25 %");
        let quiet = moved(&[("a", 1), ("b", 2)]).from_server;
        let one_way = Moved { from_server: quiet, ..moved(&[("a", 300), ("b", 100)]) };
        assert_eq!(one_way.shares().unwrap(), "there a 75 %, b 25 %");
    }
}
