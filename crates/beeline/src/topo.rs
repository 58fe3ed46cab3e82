//! `beeline topo`: this host's packages, nodes and rails, and the path that connections take from each CPU.
//!
//! 1. The host and its rails are what the bridge says (`beelined rails --json`), because it is the bridge that chooses.
//!    Without a bridge the host is read from `/sys`, and the drawing says why rails are unknown.
//! 2. The paths are not asked of the bridge but chosen anew, by the same code and from what the bridge said.
//! 3. Nothing here needs libfabric or hwloc.

mod bridge;
mod document;
mod draw;
pub mod near;
mod paths;
mod tree;

use std::process::ExitCode;

use crate::cli::TopoArgs;
use crate::output;
use document::Document;
use tree::Style;

pub fn run(arguments: &TopoArgs) -> anyhow::Result<ExitCode> {
    let document = Document::of(arguments)?;
    let text = if arguments.json {
        serde_json::to_string_pretty(&document)? + "\n"
    } else {
        draw::draw(&document, arguments.why).render(&Style::of_terminal(arguments.ascii))
    };
    output::print(&text)?;
    Ok(ExitCode::SUCCESS)
}
