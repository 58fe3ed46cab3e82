//! What a worker and the conductor say to each other.

use std::collections::BTreeMap;
use std::io::{BufRead, Write};

use anyhow::{Result, bail};
use serde::{Deserialize, Serialize};

use crate::acceleration::Carried;

/// What a worker tells the conductor.
#[derive(Serialize, Deserialize, Debug, Clone, PartialEq)]
#[serde(tag = "event", rename_all = "lowercase")]
pub enum Event {
    /// A server listens here.
    Ready { address: String },
    /// A point has been reached; the worker waits for a line.
    At { point: String },
    /// What was measured. The last event.
    Result(Outcome),
}

/// Figures of one worker.
#[derive(Serialize, Deserialize, Debug, Clone, PartialEq, Default)]
pub struct Outcome {
    /// Named figures.
    pub values: BTreeMap<String, f64>,
    /// The pieces that the main figure is the median or mean of.
    #[serde(default)]
    pub samples: Vec<f64>,
    /// How often each time came, in the unit of [`times`](super::times); only where it was asked for.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub counts: Vec<(u64, u64)>,
    /// What the library's statistics said at the end; added by the conductor, or told by a worker of another host.
    #[serde(default)]
    pub carried: Carried,
}

impl Outcome {
    pub fn of(name: &str, value: f64, samples: Vec<f64>) -> Self {
        Outcome { values: BTreeMap::from([(name.to_owned(), value)]), samples, ..Outcome::default() }
    }
}

/// Says one line to the conductor.
pub fn tell(event: &Event) -> Result<()> {
    let mut line = serde_json::to_string(event)?;
    line.push('\n');
    let mut out = std::io::stdout().lock();
    out.write_all(line.as_bytes())?;
    out.flush()?;
    Ok(())
}

/// Reports a point and waits until the conductor says to go on.
pub fn pause(point: &str) -> Result<()> {
    tell(&Event::At { point: point.to_owned() })?;
    if !wait_for_word()? {
        bail!("the conductor is gone");
    }
    Ok(())
}

/// Waits for a line from the conductor. `false` when it has closed the pipe.
pub fn wait_for_word() -> Result<bool> {
    let mut line = String::new();
    Ok(std::io::stdin().lock().read_line(&mut line)? > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_survive_the_pipe() {
        let events = [
            Event::Ready { address: "127.0.0.1:1".into() },
            Event::At { point: "idle".into() },
            Event::Result(Outcome::of("ns", 12.5, vec![1.0])),
        ];
        for event in events {
            let line = serde_json::to_string(&event).unwrap();
            assert_eq!(serde_json::from_str::<Event>(&line).unwrap(), event);
        }
    }
}
