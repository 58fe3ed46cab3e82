//! `beelined run`: everything opened in order, then the loop.

use std::time::Instant;

use anyhow::Context;
use beeline_fabric::{Filter, Port};
use beeline_meeting::agent::host::own;
use beeline_meeting::bridge;
use beeline_status::Document;
use beeline_topo::Host;

use crate::admin::{self, Backend};
use crate::config::{Admission, Config, RailRules};
use crate::control::Control;
use crate::data::engine::{Engine, Parts};
use crate::front::{Flow, Prepared};
use crate::{log, notify, priority};

/// How long a link may be silent, of the time that a peer may.
const LINK_PATIENCE: f64 = 0.6;

/// The fabric ports that the rules admit. Those that are left out for want of a word are told: without them there may
/// be no rail at all, and everything goes by TCP.
///
/// # Errors
/// When libfabric does not tell.
pub fn ports(rules: &RailRules) -> anyhow::Result<Vec<Port>> {
    let all = beeline_fabric::ports(&Filter::default()).context("cannot ask libfabric for this host's ports")?;
    let admission = |port: &Port| rules.admit(&port.provider, port.netdev.as_deref(), &[port.address]);
    let not_asked = all.iter().filter(|port| admission(port) == Admission::NotAsked).count();
    let admitted: Vec<Port> = all.into_iter().filter(|port| admission(port) == Admission::Used).collect();
    if admitted.is_empty() && not_asked > 0 {
        log::line(format_args!(
            "there is no rail: libfabric has TCP alone here ({not_asked} ports), which is faster without a bridge. Connections go \
             by TCP; `allow = [{{ provider = \"tcp\" }}]` in [rails] asks for it all the same"
        ));
    }
    Ok(admitted)
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
