//! Two hosts: how programs are started there, and what their bridges say. The client runs on the first, the server on
//! the second.
//!
//! 1. Workers are the same program with the same arguments as on one host; for the Beeline column `beeline run` stands
//!    in front. Nothing else differs between the columns.
//! 2. A worker of another host ends with its ssh connection: it is the child of the ssh server's process, and asks for
//!    SIGKILL when that ends.
//! 3. A Beeline sample counts only if the library's statistics say that the bridge carried it, or why not; a TCP sample
//!    only if the library was not loaded. Workers tell this themselves: files of another host cannot be read.
//! 4. Settings of bridges that a workload changes are as before when it ends, whether or not it succeeds.

mod bridges;
mod layouts;
pub mod place;
mod post;

use std::net::IpAddr;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

use crate::args::BenchOptions;
use crate::socket::LOOPBACK;
use crate::transport::Transport;
use crate::worker::args::{Role, WorkerArgs};

#[cfg(test)]
pub use bridges::Common;
pub use bridges::{Bridges, Moved, Speed};
pub use layouts::{Layout, Layouts, Load, Stand, loads};
pub use place::Host;
use post::Post;
pub use post::{About, Nodes};

/// The two hosts of a run.
#[derive(Clone, Debug)]
pub struct Hosts {
    posts: [Post; 2],
    abouts: [About; 2],
    /// Where servers listen.
    address: IpAddr,
    /// For `beeline run`.
    library: Option<String>,
}

impl Hosts {
    /// Asks the hosts, and both bridges if there is something to measure over them.
    ///
    /// # Errors
    /// What makes the run impossible: a host that cannot be reached or has another release, a bridge that does not run.
    pub fn new(options: &BenchOptions, hosts: &[Host; 2], beeline: &Path) -> Result<(Hosts, Option<Bridges>)> {
        let own = beeline.to_str().context("this program's path is not UTF-8")?;
        let post = |host: &Host| Post {
            host: host.clone(),
            beeline: if host.is_remote() { options.remote.clone() } else { own.to_owned() },
            patience: Duration::from_secs(options.patience),
        };
        let posts = [post(&hosts[0]), post(&hosts[1])];
        let library = match &options.library {
            Some(path) if hosts.iter().any(Host::is_remote) => Some(path.clone()),
            Some(path) => Some(path.canonicalize().with_context(|| format!("there is no library {}", path.display()))?),
            None => None,
        };
        let library = library.map(|path| path.to_string_lossy().into_owned());
        let about = |post: &Post| post.describe(library.as_deref());
        let abouts = [about(&posts[0])?, about(&posts[1])?];
        let bridges = match options.transports.contains(&Transport::Beeline) {
            true => Some(Bridges::new(posts.clone(), options.bridge_sockets.clone())?),
            false => None,
        };
        let address = match (options.address, &bridges) {
            (Some(address), _) => address,
            (None, Some(bridges)) => bridges.server_address()?,
            (None, None) => bail!("without the bridge nobody says at which address {} is; give --address IP", hosts[1]),
        };
        Ok((Hosts { posts, abouts, address, library }, bridges))
    }

    /// The command of a worker. `args` get what only matters between hosts.
    pub fn worker(&self, column: Transport, args: &mut WorkerArgs, library_options: Option<&str>) -> Command {
        if args.listen == LOOPBACK {
            args.listen = self.address;
        }
        args.tell_carried = true;
        let post = match args.role {
            Role::Client => &self.posts[0],
            Role::Server => &self.posts[1],
        };
        let mut line = if column == Transport::Beeline { self.preloaded(post, library_options) } else { Vec::new() };
        line.extend([post.beeline.clone(), "bench".into()]);
        line.extend(args.to_args().into_iter().map(|word| word.to_string_lossy().into_owned()));
        post.host.command(line.iter().map(String::as_str))
    }

    /// What stands before a program of a host that has the library preloaded.
    fn preloaded(&self, post: &Post, library_options: Option<&str>) -> Vec<String> {
        let mut line = vec![post.beeline.clone(), "run".into(), "--quiet".into()];
        if let Some(library) = &self.library {
            line.extend(["--library".into(), library.clone()]);
        }
        for option in library_options.iter().flat_map(|list| list.split(',')) {
            line.extend(["--option".into(), option.to_owned()]);
        }
        line.push("--".into());
        line
    }

    /// The same at the server's host.
    pub fn preloaded_at_server(&self, library_options: &str) -> Vec<String> {
        self.preloaded(&self.posts[1], Some(library_options))
    }

    /// The layouts of programs and rails.
    ///
    /// # Errors
    /// Why there are none.
    pub fn layouts(&self, bridges: Option<&Bridges>) -> Result<Layouts> {
        let bridges = bridges.context("the bridges are not asked")?;
        Layouts::find(self.abouts.each_ref(), bridges.rails_in_common())
    }

    /// The NUMA nodes of each.
    pub fn nodes(&self) -> [Nodes; 2] {
        self.abouts.each_ref().map(|about| about.nodes.clone())
    }

    /// Hashes of the library at each, as far as they are known.
    pub fn libraries(&self) -> Vec<String> {
        self.abouts.iter().filter_map(|about| about.library.clone()).collect()
    }

    pub fn server_address(&self) -> IpAddr {
        self.address
    }

    /// How long a worker may be silent beyond its samples.
    pub fn patience(&self) -> Duration {
        self.posts[0].patience
    }

    /// `A and B`, for people.
    pub fn names(&self) -> String {
        format!("{} and {}", self.posts[0].host, self.posts[1].host)
    }

    /// Lines about the machines, for the head of a table. Two namespaces are one machine.
    pub fn lines(&self) -> Vec<String> {
        let line = |end: usize| format!("{}: {}", self.posts[end].host, self.abouts[end].machine.line());
        match self.posts.iter().any(|post| post.host.is_remote()) {
            true => vec![line(0), line(1)],
            false => vec![self.abouts[0].machine.line()],
        }
    }

    /// For the document.
    pub fn document(&self, bridges: Option<&Bridges>) -> Value {
        let end = |end: usize| json!({ "host": self.posts[end].host.to_string(), "machine": self.abouts[end].machine });
        json!({
            "client": end(0),
            "server": end(1),
            "server_address": self.address,
            "moved": bridges.map(Bridges::all_moved),
        })
    }
}
