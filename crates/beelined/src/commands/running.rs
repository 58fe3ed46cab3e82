//! `beelined status` and `beelined set`: asking the running bridge.

use std::path::PathBuf;

use anyhow::Context;

use super::output::{print, print_json};
use crate::cli::{SetArgs, SocketArgs, StatusArgs};
use beeline_status::{Document, people};
use beelined::admin::{self, Request};
use beelined::config::Config;

/// Where the running bridge is. Without a configuration it can only be at the usual place.
pub fn socket(arguments: &SocketArgs) -> anyhow::Result<PathBuf> {
    if let Some(path) = &arguments.socket {
        return Ok(path.clone());
    }
    if !arguments.config.config.exists() {
        return Ok(admin::PATH.into());
    }
    Ok(Config::read(&arguments.config.config)?.admin_socket)
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
    Ok(())
}
