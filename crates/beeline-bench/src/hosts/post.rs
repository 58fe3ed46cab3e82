//! A host of a run: how it is asked, and what it says of itself.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};

use super::place::Host;
use crate::machine::{Machine, allowed_cpus, hash};
use crate::process::Guard;

/// The NUMA nodes of a host: each with the CPUs that may be used, nodes without CPUs left out.
pub type Nodes = std::collections::BTreeMap<u32, Vec<usize>>;

/// What a host says of itself.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct About {
    pub version: String,
    pub machine: Machine,
    pub nodes: Nodes,
    /// The hash of the library there, where there is one.
    #[serde(default)]
    pub library: Option<String>,
}

impl About {
    /// With the library that is given, or the one that belongs to this program.
    pub fn here(library: Option<&Path>) -> Result<About> {
        let allowed = allowed_cpus()?;
        let host = beeline_topo::sysfs::read(Path::new("/sys")).unwrap_or_default();
        let mut nodes = Nodes::new();
        for cpu in host.cpus.iter().filter(|cpu| allowed.contains(&(cpu.id as usize))) {
            if let Some(node) = cpu.node {
                nodes.entry(node).or_default().push(cpu.id as usize);
            }
        }
        let library = match library {
            Some(path) => Some(path.to_owned()),
            None => {
                let own = std::env::current_exe()?;
                let places = ["libbeeline.so", "../lib/beeline/libbeeline.so"].map(|place| own.with_file_name(place));
                places.into_iter().find(|path| path.exists())
            }
        };
        let library = library.as_deref().and_then(|path| hash(path).ok());
        Ok(About { version: env!("CARGO_PKG_VERSION").to_owned(), machine: Machine::describe()?, nodes, library })
    }
}

/// A host, and the `beeline` there.
#[derive(Clone, Debug)]
pub struct Post {
    pub host: Host,
    pub beeline: String,
    /// How long a command may take that measures nothing.
    pub patience: Duration,
}

impl Post {
    /// The output of a `beeline` command there.
    pub fn ask(&self, words: &[&str]) -> Result<String> {
        let line = std::iter::once(self.beeline.as_str()).chain(words.iter().copied());
        let output = Guard::start(self.host.command(line), true)?.output(self.patience);
        let output = output.with_context(|| format!("{}: `beeline {}`", self.host, words.join(" ")))?;
        if output.status.success() {
            return Ok(output.text);
        }
        if self.host.failed_to_reach(&output) {
            bail!("cannot reach {}: {output}", self.host);
        }
        bail!("{}: `{} {}`: {output}", self.host, self.beeline, words.join(" "));
    }

    /// What the host says of itself, and of the library if it is another than its own.
    ///
    /// # Errors
    /// When it has another release.
    pub fn describe(&self, library: Option<&str>) -> Result<About> {
        let mut words = vec!["bench", "about"];
        words.extend(library.into_iter().flat_map(|library| ["--library", library]));
        let text = self.ask(&words)?;
        let about: About = serde_json::from_str(&text).with_context(|| {
            format!("{}: `{}` is another release: it describes no machine", self.host, self.beeline)
        })?;
        if about.version != env!("CARGO_PKG_VERSION") {
            bail!("{} has Beeline {}, this is {}", self.host, about.version, env!("CARGO_PKG_VERSION"));
        }
        Ok(about)
    }
}
