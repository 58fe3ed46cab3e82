//! A program of others whose two ends are on two hosts.
//!
//! 1. The script runs at the client's host, and has words that run a command at the server's (`there` of
//!    `programs/common.sh`). MPIs get them as what they start processes with, in place of ssh.
//! 2. Namespaces share files and the list of processes with the instrument, so what a script has at the other end ends
//!    with it. Behind ssh the script copies what the other end reads, and what it started there ends with its
//!    connection: MPIs' daemons see to that.
//! 3. Over Beeline nobody but the bridges can tell that the two ends talked over them: both have to say so.

use std::net::IpAddr;
use std::process::Command;
use std::time::Duration;

use anyhow::{Result, ensure};

use crate::acceleration::Carried;
use crate::hosts::{Host, Moved};
use crate::paper::cell::{Cell, Work};

/// The two ends.
pub struct Apart {
    pub hosts: [Host; 2],
    /// What the first end connects to.
    pub server: IpAddr,
    /// What stands before a command at the second host that has the library preloaded, where that is another's.
    pub preloaded: Vec<String>,
    /// How long it may be silent at least: an emulated host takes long to begin anything.
    pub patience: Duration,
}

/// Why a program cannot run between these hosts.
pub fn objection(hosts: &[Host; 2]) -> Option<String> {
    let is_far = hosts[0].is_remote();
    is_far.then(|| {
        "programs of others begin at this host or in a namespace of it, and the client's is reached by ssh".into()
    })
}

impl Apart {
    /// Whether the second end is another machine.
    pub fn is_far(&self) -> bool {
        self.hosts[1].is_remote()
    }

    /// The command of the script.
    pub fn command(&self, words: [&str; 4]) -> Command {
        let mut command = self.hosts[0].command(words.into_iter());
        let there = match &self.hosts[1] {
            Host::Ssh(destination) => format!("ssh:{destination}"),
            host => host.to_string(),
        };
        let preloaded: Vec<String> = self.preloaded.iter().map(|word| crate::hosts::place::quoted(word)).collect();
        let preloaded = if self.is_far() { preloaded.join(" ") } else { String::new() };
        command.env("SERVER", self.server.to_string()).env("THERE", there).env("RUN_THERE", preloaded);
        command
    }
}

/// Whether the two ends talked over the bridges.
///
/// # Errors
/// What they did instead.
pub fn ensure_bridged(cell: &Cell, carried: &Carried, moved: &Moved) -> Result<()> {
    let fallen_back = carried.complaint().map_or(String::new(), |complaint| format!(": {complaint}"));
    ensure!(carried.bridged > 0 && moved.opened > 0, "no connection went over the bridges{fallen_back}");
    // What launchers say to each other is less than a message of a stream, and more than a small one's.
    let bytes = if cell.work == Work::ProgramLatency { moved.least() } else { moved.there() };
    ensure!(bytes > cell.bytes, "{bytes} bytes went over the bridges, less than one message{fallen_back}");
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn the_second_end_is_reached_as_its_host_is() {
        let apart = |second: &str, preloaded: &[&str]| Apart {
            hosts: Host::parse_two(&format!("netns:a,{second}")).unwrap(),
            server: [10, 9, 0, 2].into(),
            preloaded: preloaded.iter().map(|&word| word.to_owned()).collect(),
            patience: Duration::ZERO,
        };
        let told = |apart: &Apart| {
            let command = apart.command(["sh", "-c", "x", "y"]);
            let told: BTreeMap<_, _> = command
                .get_envs()
                .filter_map(|(name, value)| Some((name.to_str()?.to_owned(), value?.to_str()?.to_owned())))
                .collect();
            (command.get_program().to_owned(), told)
        };
        let (program, told_of) = told(&apart("netns:b", &["beeline", "run"]));
        assert_eq!((program.to_str(), &*told_of["THERE"], &*told_of["RUN_THERE"]), (Some("ip"), "netns:b", ""));
        let (_, told_of) = told(&apart("root@beta", &["beeline", "run", "it's"]));
        assert_eq!((&*told_of["THERE"], &*told_of["SERVER"]), ("ssh:root@beta", "10.9.0.2"));
        assert_eq!(told_of["RUN_THERE"], r"'beeline' 'run' 'it'\''s'");
        assert!(objection(&Host::parse_two("alpha,netns:b").unwrap()).unwrap().contains("ssh"));
        assert_eq!(objection(&Host::parse_two("local,beta").unwrap()), None);
    }

    #[test]
    fn what_did_not_go_over_the_bridges_is_no_sample() {
        let cell = crate::paper::cell::tests::usual();
        let cell = Cell { work: Work::ProgramLatency, bytes: 1000, ..cell };
        let bytes = |bytes| BTreeMap::from([("rail".to_owned(), bytes)]);
        let moved =
            |there, back| Moved { opened: 1, from_client: bytes(there), from_server: bytes(back), ..Moved::default() };
        let carried = Carried { accelerated: 2, bridged: 1, ..Carried::default() };
        assert!(ensure_bridged(&cell, &carried, &moved(5000, 5000)).is_ok());
        assert!(ensure_bridged(&cell, &carried, &moved(5000, 10)).is_err());
        assert!(
            ensure_bridged(&Cell { work: Work::ProgramStream, ..cell.clone() }, &carried, &moved(5000, 10)).is_ok()
        );
        assert!(ensure_bridged(&cell, &Carried { bridged: 0, ..carried.clone() }, &moved(5000, 5000)).is_err());
        let fallen = Carried { fallen_back: BTreeMap::from([("bridge_no_peer".to_owned(), 1)]), ..Carried::default() };
        let why = ensure_bridged(&cell, &fallen, &moved(5000, 5000)).unwrap_err().to_string();
        assert!(why.contains("bridge_no_peer"), "{why}");
    }
}
