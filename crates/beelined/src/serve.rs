//! `beelined run`: everything opened in order, then the loop.

use std::time::Instant;

use anyhow::Context;
use beeline_fabric::{Filter, Port};
use beeline_meeting::agent::host::own;
use beeline_meeting::bridge;
use beeline_status::Document;
use beeline_status::number::plural;
use beeline_topo::Host;

use crate::admin::{self, Backend};
use crate::config::{Admission, Config, RailRules};
use crate::control::Control;
use crate::data::engine::{Engine, Parts};
use crate::front::{Flow, Prepared};
use crate::{log, notify, priority};

/// How long a link may be silent, of the time that a peer may.
const LINK_PATIENCE: f64 = 0.6;

/// The fabric ports that the rules admit. Where there are none it is told why: everything goes by TCP then.
///
/// # Errors
/// When libfabric does not tell.
pub fn ports(rules: &RailRules) -> anyhow::Result<Vec<Port>> {
    let all = beeline_fabric::ports(&Filter::default()).context("cannot ask libfabric for this host's ports")?;
    let admission = |port: &Port| rules.admit(&port.provider, port.netdev.as_deref(), &[port.address]);
    let admissions: Vec<Admission> = all.iter().map(admission).collect();
    if let Some(why) = no_rail(&admissions) {
        log::line(why);
    }
    Ok(all.into_iter().filter(|port| admission(port) == Admission::Used).collect())
}

/// Why there is no rail, if there is none, from what the rules say of each port.
fn no_rail(admissions: &[Admission]) -> Option<String> {
    let number = |said| admissions.iter().filter(|admission| **admission == said).count() as u64;
    if number(Admission::Used) > 0 {
        return None;
    }
    let by_rules = [
        (Admission::NotAllowed, "for which no allow rule holds"),
        (Admission::Denied, "denied by a rule"),
        (Admission::NotAsked, "over TCP, which no rule allows by name"),
    ];
    let left_out = by_rules.into_iter().filter(|(said, _)| number(*said) > 0);
    let left_out: Vec<String> = left_out.map(|(said, why)| format!("{} {why}", plural(number(said), "port"))).collect();
    Some(match (admissions.len() as u64, number(Admission::NotAsked)) {
        (0, _) => "there is no rail, for libfabric finds no port here. Connections go by TCP".into(),
        (all, not_asked) if all == not_asked => format!(
            "there is no rail: libfabric has TCP alone here ({}), which is faster without a bridge. Connections go \
             by TCP; `allow = [{{ provider = \"tcp\" }}]` in [rails] asks for it all the same",
            plural(all, "port")
        ),
        _ => format!(
            "there is no rail: libfabric has {}. Connections go by TCP; `beelined rails` shows the ports",
            left_out.join(", ")
        ),
    })
}

/// This host, for the choice of rails: without hwloc's word only distances are missing.
#[must_use]
pub fn host() -> Host {
    beeline_hwloc::discover().unwrap_or_else(|error| {
        log::line(format_args!("distances are not known: {error}"));
        Host::default()
    })
}

impl Backend for Engine {
    fn document(&self) -> Document {
        admin::document(self.control(), self.tunables, self.status(), Instant::now())
    }

    fn set(&mut self, key: &str, value: &str) -> Result<(), String> {
        self.tunables.set(key, value)
    }

    fn reload(&mut self) -> Result<Vec<String>, String> {
        self.control_mut().reload(Instant::now()).map_err(|error| format!("{error:#}"))
    }

    fn drain(&mut self) -> bool {
        Engine::drain(self)
    }
}

/// Runs the bridge until it is told to stop.
///
/// # Errors
/// What keeps it from starting, or the kernel's refusal to go on.
pub fn run(config: &Config) -> anyhow::Result<()> {
    // Before its power goes.
    priority::allow(config.nice);
    let prepared = Prepared::new(config)?;
    let control = Control::new(config, Instant::now())?;
    let mut front = prepared.open()?;
    // As the bridge's user: the door's user is what clients trust.
    let door = bridge::listen_for_clients()
        .map_err(|errno| std::io::Error::from_raw_os_error(errno.0))
        .context("cannot open the door: is another bridge running in this network namespace?")?;
    let name = control.name().clone();
    let parts = Parts {
        name,
        control,
        tunables: config.tunables,
        door: own(door.give_away()),
        host: host(),
        ports: ports(&config.rails)?,
        segments: config.rails.segments(),
        // A host that is gone has its links given up before its control connection.
        patience: config.peer_timeout.mul_f64(LINK_PATIENCE),
        nice: config.nice,
    };
    let mut engine = Engine::new(parts)?;
    engine.watch_outside(front.as_fd())?;
    notify::ready();
    log::line("ready");
    engine.run(|engine| front.turn(Instant::now(), engine) == Flow::Stop)?;
    notify::stopping();
    engine.stop();
    log::line("stopped");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::Admission::{Denied, NotAllowed, NotAsked, Used};
    use super::*;

    #[test]
    fn it_is_told_why_there_is_no_rail() {
        assert_eq!(no_rail(&[NotAllowed, Used]), None);
        let mistyped = no_rail(&[NotAllowed, NotAllowed, Denied]).unwrap();
        assert!(mistyped.contains("2 ports for which no allow rule holds, 1 port denied by a rule."), "{mistyped}");
        assert!(mistyped.contains("`beelined rails`"), "{mistyped}");
        let not_asked = no_rail(&[NotAsked]).unwrap();
        assert!(not_asked.contains("TCP alone here (1 port)"), "{not_asked}");
        assert!(no_rail(&[]).unwrap().contains("finds no port"));
    }
}
