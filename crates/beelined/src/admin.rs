//! The administrator's socket: what `beelined status` and `beelined set` talk to.
//!
//! 1. It is a stream socket of the file system. Root and the bridge's own user may use it, by the kernel's word
//!    (`SO_PEERCRED`), whatever the file's mode says.
//! 2. A request is a line of JSON, `{"request": "status"}`; so is the answer, `{"ok": ...}` or `{"error": "..."}`. A client
//!    asks one thing at a time.
//! 3. It must not keep the bridge from its work: few clients, short lines, bounded time.

#![forbid(unsafe_code)]

mod client;
mod server;
pub mod table;

use std::collections::BTreeMap;
use std::time::Instant;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::control::{Control, PeerStatus};
use crate::tunables::Tunables;

pub use client::ask;
pub use server::Admin;

/// Where it is when nobody says otherwise.
pub const PATH: &str = "/run/beeline/beelined.sock";

/// What can be asked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "request", rename_all = "snake_case", deny_unknown_fields)]
pub enum Request {
    /// Everything: a [`Document`].
    Status {},
    /// Change a setting.
    Set {
        /// Which.
        key: String,
        /// To what.
        value: String,
    },
    /// Read the trusted certificates again.
    Reload {},
}

/// What is answered.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Answer {
    /// It is done; this is the result.
    Ok(Value),
    /// It is not; this is why.
    Error(String),
}

/// What answers: the bridge's engine, and its control plane.
pub trait Backend {
    /// Everything there is to say.
    fn document(&self) -> Document;
    /// Changes a setting. The error is a sentence.
    fn set(&mut self, key: &str, value: &str) -> Result<(), String>;
    /// Reads the trusted certificates again. The result is what is wrong with single ones.
    fn reload(&mut self) -> Result<Vec<String>, String>;
}

/// All that a bridge tells of itself.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Document {
    /// Of the program.
    pub version: String,
    /// The bridge's process.
    pub pid: u32,
    /// The bridge's name.
    pub name: String,
    /// Which start of it.
    pub instance: u64,
    /// Whether peers are known by address only.
    pub insecure: bool,
    /// Where the control port is.
    pub listen: Vec<String>,
    /// What the bridge speaks for.
    pub speaks_for: Vec<String>,
    /// Days until its certificate expires.
    pub certificate_days: Option<i64>,
    /// The peers that are there or should be.
    pub peers: Vec<PeerStatus>,
    /// How many control connections have ended, and why.
    pub control_ends: BTreeMap<String, u64>,
    /// The settings in force.
    pub tunables: Tunables,
    /// Rails, links, connections and counters, as the data plane tells them.
    pub data: Value,
}

impl Document {
    /// From the control plane and what the data plane says.
    pub fn new(control: &Control, tunables: Tunables, data: impl Serialize, now: Instant) -> Self {
        Self {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            pid: std::process::id(),
            name: control.name().to_string(),
            instance: control.instance(),
            insecure: control.is_insecure(),
            listen: control.local_addresses().iter().map(ToString::to_string).collect(),
            speaks_for: control.own_prefixes().iter().map(ToString::to_string).collect(),
            certificate_days: control.certificate_days(),
            peers: control.peers(now),
            control_ends: control.ends().iter().map(|(name, count)| ((*name).to_owned(), *count)).collect(),
            tunables,
            // What cannot be said in JSON is left out: the rest of the document is worth having.
            data: serde_json::to_value(data).unwrap_or_default(),
        }
    }
}

/// The answer to a line.
fn answer(line: &[u8], backend: &mut dyn Backend) -> Answer {
    let result = match serde_json::from_slice(line) {
        Err(error) => Err(format!("the request is not understood: {error}")),
        Ok(Request::Status {}) => serde_json::to_value(backend.document()).map_err(|error| error.to_string()),
        Ok(Request::Set { key, value }) => backend.set(&key, &value).map(|()| Value::Null),
        Ok(Request::Reload {}) => backend.reload().map(Value::from),
    };
    match result {
        Ok(value) => Answer::Ok(value),
        Err(error) => Answer::Error(error),
    }
}

#[cfg(test)]
mod tests;
