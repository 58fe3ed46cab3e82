//! The administrator's socket: what `beelined status` and `beelined set` talk to.
//!
//! 1. It is a stream socket of the file system. Root and the bridge's own user may use it, by the kernel's word
//!    (`SO_PEERCRED`), whatever the file's mode says.
//! 2. What is asked and answered is in [`beeline_status::ask`]; its other end is there, too, since `beeline stat` asks
//!    as well. A client asks one thing at a time.
//! 3. It must not keep the bridge from its work: few clients, short lines, bounded time.

#![forbid(unsafe_code)]

mod server;

use std::time::Instant;

use beeline_status::document::{Counts, Data, Document};
use serde::Serialize;
use serde_json::Value;

use crate::control::Control;
use crate::tunables::{SPECS, Tunables};

pub use beeline_status::ask::{Answer, PATH, Request, ask};
pub use server::Admin;

/// What answers: the bridge's engine, and its control plane.
pub trait Backend {
    /// Everything there is to say.
    fn document(&self) -> Document;
    /// Changes a setting. The error is a sentence.
    fn set(&mut self, key: &str, value: &str) -> Result<(), String>;
    /// Reads the trusted certificates again. The result is what is wrong with single ones.
    fn reload(&mut self) -> Result<Vec<String>, String>;
    /// Takes no new connections from now on, and stops when the last has ended. False if that was said before.
    fn drain(&mut self) -> bool;
}

/// All that a bridge tells of itself, from the control plane and what the data plane says.
pub fn document(control: &Control, tunables: Tunables, data: Data, now: Instant) -> Document {
    Document {
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
        tunables: settings(tunables),
        data,
    }
}

fn settings(tunables: Tunables) -> Counts {
    SPECS.iter().map(|spec| (spec.key.to_owned(), tunables.get(spec))).collect()
}

/// The answer to a line, as a line.
fn answer(line: &[u8], backend: &mut dyn Backend) -> Vec<u8> {
    let result = match serde_json::from_slice(line) {
        Err(error) => Err(format!("the request is not understood: {error}")),
        // It may be long, and the loop waits: it is written as it is, and no tree of values is made of it.
        Ok(Request::Status {}) => return line_of(&Answer::Ok(backend.document())),
        Ok(Request::Set { key, value }) => backend.set(&key, &value).map(|()| Value::Null),
        Ok(Request::Reload {}) => backend.reload().map(Value::from),
        Ok(Request::Drain {}) => Ok(Value::from(backend.drain())),
    };
    line_of(&match result {
        Ok(value) => Answer::Ok(value),
        Err(error) => Answer::Error(error),
    })
}

fn line_of(answer: &Answer<impl Serialize>) -> Vec<u8> {
    let mut line = serde_json::to_vec(answer).unwrap_or_default();
    line.push(b'\n');
    line
}

#[cfg(test)]
mod tests;
