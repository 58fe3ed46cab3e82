//! `beelined run`: everything opened in order, then the loop.

use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout};

use crate::admin::{Backend, Document};
use crate::config::Config;
use crate::control::Control;
use crate::front::{Flow, Prepared};
use crate::tunables::Tunables;
use crate::{log, notify};

struct Bridge {
    control: Control,
    tunables: Tunables,
}

impl Backend for Bridge {
    fn document(&self) -> Document {
        Document::new(&self.control, self.tunables, (), Instant::now())
    }

    fn set(&mut self, key: &str, value: &str) -> Result<(), String> {
        self.tunables.set(key, value)
    }

    fn reload(&mut self) -> Result<Vec<String>, String> {
        self.control.reload(Instant::now()).map_err(|error| format!("{error:#}"))
    }
}

/// Runs the bridge until it is told to stop.
pub fn run(config: &Config) -> anyhow::Result<()> {
    let prepared = Prepared::new(config)?;
    let control = Control::new(config, Instant::now())?;
    let mut front = prepared.open()?;
    let mut bridge = Bridge { control, tunables: config.tunables };
    notify::ready();
    log::line("ready");
    loop {
        let now = Instant::now();
        bridge.control.turn(now);
        if front.turn(now, &mut bridge) == Flow::Stop {
            break;
        }
        let deadline = bridge.control.deadline(now).min(front.deadline().unwrap_or(now + Duration::from_secs(1)));
        let wait = deadline.saturating_duration_since(Instant::now());
        let wait = PollTimeout::try_from(wait + Duration::from_millis(1)).unwrap_or(PollTimeout::ZERO);
        let control = PollFd::new(bridge.control.as_fd(), PollFlags::POLLIN);
        let _ = nix::poll::poll(&mut [control, PollFd::new(front.as_fd(), PollFlags::POLLIN)], wait);
    }
    notify::stopping();
    bridge.control.stop();
    log::line("stopped");
    Ok(())
}
