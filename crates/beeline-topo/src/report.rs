//! What `beelined rails --json` prints: the bridge's own view, from which `beeline topo` draws.
//!
//! One JSON object. Fields that are not known here are ignored, so that a newer bridge may say more; [`FORMAT`] changes
//! only when the meaning of a field does. `docs/rails-json.md` describes it for people.

use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

use crate::host::Host;
use crate::rail::{PeerRail, Rail};
use crate::reach::Segments;

/// The form of the object.
pub const FORMAT: u32 = 1;

/// The bridge's view.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    /// [`FORMAT`].
    pub format: u32,
    /// This host as the bridge sees it when it chooses; without it the reader looks for itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<Host>,
    /// The rails, with what is on them if the bridge is running.
    pub rails: Vec<Rail>,
    /// Ports that are no rails, and why.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unused: Vec<Unused>,
    /// Subnets that the configuration joins.
    #[serde(default)]
    pub segments: Segments,
    /// The bridges that this one is connected with.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub peers: Vec<Peer>,
    /// The connections that are carried now.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub connections: Vec<Connection>,
}

/// A port that is no rail.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unused {
    /// The port, or the rail that the configuration names.
    pub name: String,
    /// One sentence.
    pub reason: String,
}

/// Another host's bridge.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Peer {
    /// Its name.
    pub name: String,
    /// Its rails.
    pub rails: Vec<PeerRail>,
}

/// A connection that the bridge carries.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Connection {
    /// This host's end.
    pub local: SocketAddr,
    /// The other end.
    pub remote: SocketAddr,
    /// The peer's name.
    pub peer: String,
    /// The CPU that its rail was chosen for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu: Option<u32>,
    /// The paths that it takes: its own first, then those that its large transfers take, too. None while no rail is
    /// left.
    pub paths: Vec<Path>,
}

/// From a rail of this host to one of the peer's, by their names.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Path {
    /// The local rail.
    pub rail: String,
    /// The peer's rail.
    pub peer_rail: String,
}

/// Why a text is no report.
#[derive(Debug)]
pub enum ReportError {
    /// It is not JSON, or lacks something.
    Malformed(serde_json::Error),
    /// It is of another form.
    Format(u32),
}

impl std::fmt::Display for ReportError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Malformed(why) => write!(f, "this is no list of rails: {why}"),
            Self::Format(format) => {
                write!(f, "the list of rails has form {format}, and form {FORMAT} is understood: the versions differ")
            }
        }
    }
}

impl std::error::Error for ReportError {}

impl Report {
    /// Reads one.
    pub fn read(text: &str) -> Result<Self, ReportError> {
        /// What every form has.
        #[derive(Deserialize)]
        struct Form {
            format: u32,
        }
        let form: Form = serde_json::from_str(text).map_err(ReportError::Malformed)?;
        if form.format != FORMAT {
            return Err(ReportError::Format(form.format));
        }
        serde_json::from_str(text).map_err(ReportError::Malformed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEAST: &str = r#"{"format": 1, "rails": [], "later": true}"#;

    #[test]
    fn a_report_may_lack_all_but_its_rails_and_say_more() {
        let report = Report::read(LEAST).unwrap();
        assert_eq!((report.host.is_none(), report.peers.len(), report.segments.joined.len()), (true, 0, 0));
        let again = Report::read(&serde_json::to_string(&report).unwrap()).unwrap();
        assert_eq!(again, report);
    }

    #[test]
    fn another_form_is_named_and_nothing_else_is_read_of_it() {
        assert!(matches!(Report::read(r#"{"format": 2, "rails": 7}"#), Err(ReportError::Format(2))));
        assert!(matches!(Report::read(r#"{"format": 1}"#), Err(ReportError::Malformed(_))));
        assert!(matches!(Report::read("rails"), Err(ReportError::Malformed(_))));
    }

    #[test]
    fn the_documented_example_is_one() {
        let document = include_str!("../../../docs/rails-json.md");
        let example = document.split("```json").nth(1).unwrap().split("```").next().unwrap();
        let report = Report::read(example).unwrap();
        assert!(report.host.is_none() && !report.rails.is_empty() && !report.unused.is_empty());
        assert!(!report.peers.is_empty() && !report.connections.is_empty() && !report.segments.joined.is_empty());
    }
}
