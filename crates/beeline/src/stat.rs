//! `beeline stat`: what processes that run with Beeline are doing, why connections are on TCP, and what the bridge
//! carries to other hosts.

pub mod absent;
mod apart;
pub mod bridge;
pub mod collect;
mod containers;
pub mod namespaces;
pub mod process;
pub mod table;
pub mod terminal;
pub mod unloaded;

use std::io::IsTerminal;
use std::process::ExitCode;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use bridge::Bridge;
use collect::Collected;
use serde::Serialize;
use terminal::Keys;

use crate::cli::{Selection, StatArgs};
use crate::{configuration, output};

/// What `--json` prints.
#[derive(Serialize)]
struct Document<'a> {
    /// Of this document's form.
    version: u32,
    unix_ns: u64,
    #[serde(flatten)]
    collected: &'a Collected,
}

pub fn run(arguments: &StatArgs) -> anyhow::Result<ExitCode> {
    let clears = arguments.watch.is_some() && !arguments.json && std::io::stdout().is_terminal();
    let socket = arguments.socket.clone().unwrap_or_else(configuration::admin_socket);
    let keys = arguments.watch.and_then(|_| Keys::watch());
    let mut before: Option<(Instant, Collected)> = None;
    loop {
        let now = Instant::now();
        let bridge = before.as_ref().map_or_else(|| Bridge::ask(&socket), |(_, before)| before.bridge.again(&socket));
        let collected = collect(arguments, bridge)?;
        let text = if arguments.json {
            json(&collected, arguments.watch.is_some())?
        } else {
            let rates = before.as_ref().map(|(then, before)| (before, now.duration_since(*then)));
            let hint = match (arguments.watch, rates, &keys) {
                (Some(_), None, Some(_)) => "\nRates follow; q ends this.\n",
                (Some(_), None, None) => "\nRates follow.\n",
                _ => "",
            };
            let mut text = table::render(&collected, &arguments.selection, rates);
            if clears {
                // What is left out is told below.
                text = output::screen(&text, hint.lines().count() + collected.unreadable.len());
            }
            text + hint
        };
        let missing = collected.is_empty() && arguments.selection != Selection::All;
        let is_read = output::print(&text)?;
        collected.complain();
        let Some(interval) = arguments.watch else {
            return Ok(ExitCode::from(u8::from(missing)));
        };
        if missing || !is_read {
            return Ok(ExitCode::from(u8::from(missing && before.is_none())));
        }
        before = Some((now, collected));
        match &keys {
            Some(keys) if keys.end_within(interval) => return Ok(ExitCode::SUCCESS),
            Some(_) => {}
            None => std::thread::sleep(interval),
        }
    }
}

/// What there is. A process with a /dev/shm of its own, as in a container, is looked for there.
fn collect(arguments: &StatArgs, bridge: Bridge) -> anyhow::Result<Collected> {
    let collected = Collected::of(&arguments.root, bridge, &arguments.selection, arguments.ended)?;
    if let Selection::Pid(pid) = arguments.selection
        && collected.is_empty()
        && let Some((root, own_number)) = absent::private_root(pid)
        && let Ok(private) = Collected::of(&root, Bridge::left_out(), &Selection::Pid(own_number), arguments.ended)
        && !private.processes.is_empty()
    {
        return Ok(Collected { bridge: collected.bridge, ..private });
    }
    Ok(collected)
}

fn json(collected: &Collected, one_line: bool) -> anyhow::Result<String> {
    let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let document =
        Document { version: 1, unix_ns: u64::try_from(since_1970.as_nanos()).unwrap_or(u64::MAX), collected };
    let text = if one_line { serde_json::to_string(&document)? } else { serde_json::to_string_pretty(&document)? };
    Ok(text + "\n")
}
