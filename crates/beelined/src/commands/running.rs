//! `beelined status`, `set` and `drain`: asking the running bridge.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context;

use super::output::{print, print_json, report};
use crate::cli::{DrainArgs, SetArgs, SocketArgs, StatusArgs};
use beeline_status::{Document, Problem, people};
use beelined::admin::{self, Request};

/// Where the running bridge is. Without a configuration it can only be at the usual place.
pub fn socket(arguments: &SocketArgs) -> anyhow::Result<PathBuf> {
    if let Some(path) = &arguments.socket {
        return Ok(path.clone());
    }
    Ok(arguments.config.read()?.map_or_else(|| admin::PATH.into(), |config| config.admin_socket))
}

/// Shows what the bridge tells.
pub fn status(arguments: &StatusArgs) -> anyhow::Result<()> {
    let value = admin::ask(&socket(&arguments.socket)?, &Request::Status {})?;
    if arguments.json {
        return print_json(&value);
    }
    let document: Document =
        serde_json::from_value(value).context("the running bridge is of another version; --json shows what it says")?;
    print(&people::render(&document))
}

/// Changes a setting.
pub fn set(arguments: &SetArgs) -> anyhow::Result<()> {
    let request = Request::Set { key: arguments.key.clone(), value: arguments.value.clone() };
    admin::ask(&socket(&arguments.socket)?, &request)?;
    print(&format!("{}={}\n", arguments.key, arguments.value))
}

/// How often a bridge that stops is asked how far it is.
const DRAIN_LOOK: Duration = Duration::from_millis(200);

/// Lets the bridge stop, and waits for it.
pub fn drain(arguments: &DrainArgs) -> anyhow::Result<()> {
    let socket = socket(&arguments.socket)?;
    admin::ask(&socket, &Request::Drain {})?;
    if arguments.no_wait {
        return Ok(());
    }
    let mut told = None;
    loop {
        let document = match beeline_status::ask::status(&socket) {
            Ok(document) => document,
            // It ends as soon as it may, perhaps in the middle of an answer, or before it. It has let us ask already.
            Err(Problem::NotRunning(_) | Problem::Failed(_) | Problem::NotAllowed(_)) => break,
            Err(error) => return Err(error.into()),
        };
        let Some(draining) = document.data.draining else { break };
        if told != Some(draining.connections) {
            told = Some(draining.connections);
            report(format_args!("{} connections are left, for {} s at most", draining.connections, draining.left_s));
        }
        std::thread::sleep(DRAIN_LOOK);
    }
    Ok(())
}
