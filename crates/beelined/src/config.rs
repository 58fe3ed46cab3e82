//! What the administrator has written: `/etc/beeline/beelined.toml`.
//!
//! 1. The file belongs to root or to the user who runs the bridge, and nobody else may write it.
//! 2. Everything that is not understood is an error with its line and column: a setting that is silently not in force
//!    costs somebody an afternoon, and here perhaps more.
//! 3. With `insecure = true` the addresses in the file say who is who; without it certificates do, and addresses in
//!    the file would look as if they meant something, so they are refused.

#![forbid(unsafe_code)]

mod file;
mod rails;

use std::fmt;
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, bail};
use serde::Deserialize;
use toml::Spanned;

pub use file::{Private, check_directory, read_guarded};
pub use rails::{Admission, RailRule, RailRules};

use crate::agent::rules::Rules;
use crate::name::BridgeName;
use crate::prefix::Prefix;
use crate::priority;
use crate::tunables::Tunables;
use crate::user::User;

/// Where the configuration is when nobody says otherwise.
pub const PATH: &str = "/etc/beeline/beelined.toml";

/// The port of the control connection when nobody says otherwise.
pub const PORT: u16 = 4797;

const PEERS_MAX: usize = 256;

/// The configuration of a bridge.
#[derive(Clone, Debug)]
pub struct Config {
    /// This bridge's name. Without it, its certificate says it; with both, they must be the same.
    pub name: Option<BridgeName>,
    /// Where the control port listens. Empty: every address, port [`PORT`].
    pub listen: Vec<SocketAddr>,
    /// The bridges to connect to. With certificates, others may connect to us, too.
    pub peers: Vec<Peer>,
    /// Who is who.
    pub identity: Identity,
    /// Which rails are used.
    pub rails: RailRules,
    /// What can be changed later.
    pub tunables: Tunables,
    /// Who to become when everything that needs root is open.
    pub user: Option<String>,
    /// The bridge's priority, where it may have that.
    pub nice: i32,
    /// A peer that says nothing for so long is gone.
    pub peer_timeout: Duration,
    /// The administrator's socket.
    pub admin_socket: PathBuf,
    /// Who of this host's network namespaces may meet, for the agent.
    pub namespaces: Option<Rules>,
}

/// A bridge to connect to.
#[derive(Clone, Debug)]
pub struct Peer {
    /// Its name.
    pub name: BridgeName,
    /// Its control addresses, tried in turn.
    pub control: Vec<SocketAddr>,
    /// What it may speak for, if nothing but this file says so (`insecure`).
    pub addresses: Vec<Prefix>,
}

/// How the bridges know each other.
#[derive(Clone, Debug)]
pub enum Identity {
    /// TLS, with one certificate a peer.
    Certificates(CertificatePaths),
    /// Plain TCP: whoever has the address has the name.
    Insecure {
        /// What this bridge speaks for.
        addresses: Vec<Prefix>,
    },
}

/// Where the key, its certificate and those of the peers are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CertificatePaths {
    /// This bridge's certificate (PEM).
    pub certificate: PathBuf,
    /// Its private key (PEM).
    pub key: PathBuf,
    /// A directory with one certificate a peer.
    pub trusted: PathBuf,
    /// The number of the configuration's `user`, to whom key and certificate may belong as well.
    pub user: Option<u32>,
}

impl Default for CertificatePaths {
    fn default() -> Self {
        let directory = Path::new("/etc/beeline");
        Self {
            certificate: directory.join("beelined.crt"),
            key: directory.join("beelined.key"),
            trusted: directory.join("trusted"),
            user: None,
        }
    }
}

/// The file as it is written.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    name: Option<BridgeName>,
    #[serde(default)]
    listen: Vec<Address>,
    #[serde(default)]
    peers: Vec<Spanned<WrittenPeer>>,
    #[serde(default)]
    insecure: bool,
    addresses: Option<Spanned<Vec<Prefix>>>,
    certificate: Option<Spanned<PathBuf>>,
    key: Option<Spanned<PathBuf>>,
    trusted: Option<Spanned<PathBuf>>,
    #[serde(default)]
    rails: RailRules,
    #[serde(default)]
    tunables: Tunables,
    user: Option<String>,
    nice: Option<Spanned<Nice>>,
    peer_timeout_s: Option<Spanned<Seconds>>,
    admin_socket: Option<PathBuf>,
    namespaces: Option<Spanned<Rules>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenPeer {
    name: BridgeName,
    control: OneOrMore<Address>,
    addresses: Option<Spanned<Vec<Prefix>>>,
}

#[derive(Deserialize)]
#[serde(untagged, expecting = "expected an address like \"10.0.0.2\" or \"10.0.0.2:4797\", or a list of them")]
enum OneOrMore<T> {
    One(T),
    More(Vec<T>),
}

#[derive(Deserialize)]
#[serde(untagged, expecting = "nice must be a number from -20 to 0")]
enum Nice {
    Number(i32),
}

#[derive(Deserialize)]
#[serde(untagged, expecting = "peer_timeout_s must be a number from 1 to 3600")]
enum Seconds {
    Number(f64),
}

/// An address with or without a port.
#[derive(Deserialize)]
#[serde(try_from = "String")]
struct Address(SocketAddr);

impl TryFrom<String> for Address {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let with_port = || text.parse().ok();
        let without = || Some(SocketAddr::new(text.parse().ok()?, PORT));
        with_port().or_else(without).map(Self).ok_or_else(|| {
            format!("`{}` is neither an IP address nor one with a port, like 10.0.0.2:{PORT}", text.escape_debug())
        })
    }
}

impl Config {
    /// Reads the file, and checks whose it is.
    pub fn read(path: &Path) -> anyhow::Result<Self> {
        let text = read_guarded(path, Private::No, None).map_err(|error| {
            let kind = error.downcast_ref::<std::io::Error>().map(std::io::Error::kind);
            let hint = if kind == Some(ErrorKind::NotFound) { "; beelined.toml(5) tells what it holds" } else { "" };
            anyhow::anyhow!("cannot use the configuration {}: {error:#}{hint}", path.display())
        })?;
        Self::parse(&path.display().to_string(), &text)
    }

    /// Understands the text of a file; `name` is what errors begin with.
    pub fn parse(name: &str, text: &str) -> anyhow::Result<Self> {
        let place = Place { name, text };
        let written: Written = toml::from_str(text).map_err(|error| {
            let offset = error.span().map_or(0, |span| span.start);
            anyhow::anyhow!("{}: {}", place.at(offset), error.message())
        })?;
        written.checked(&place)
    }

    /// The certificates' places, if there are certificates.
    pub fn certificate_paths(&self) -> Option<&CertificatePaths> {
        match &self.identity {
            Identity::Certificates(paths) => Some(paths),
            Identity::Insecure { .. } => None,
        }
    }
}

/// Turns offsets into lines and columns.
struct Place<'a> {
    name: &'a str,
    text: &'a str,
}

impl Place<'_> {
    fn at(&self, offset: usize) -> impl fmt::Display {
        let before = self.text.get(..offset).unwrap_or(self.text);
        let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
        let line = before.matches('\n').count() + 1;
        let column = before[line_start..].chars().count() + 1;
        format!("{}:{line}:{column}", self.name)
    }
}

impl Written {
    fn checked(self, place: &Place<'_>) -> anyhow::Result<Config> {
        let name = match self.name {
            None if self.insecure => Some(BridgeName::of_host().context("`name` is not given, and")?),
            name => name,
        };
        let peers = checked_peers(self.peers, name.as_ref(), self.insecure, place)?;
        let defaults = CertificatePaths::default();
        let identity = if self.insecure {
            let paths = [("certificate", &self.certificate), ("key", &self.key), ("trusted", &self.trusted)];
            for (what, path) in paths {
                if let Some(path) = path {
                    bail!("{}: `{what}` means nothing with `insecure = true`", place.at(path.span().start));
                }
            }
            let Some(addresses) = self.addresses else {
                bail!("{}: with `insecure = true` this bridge's own `addresses` must be given", place.name);
            };
            Identity::Insecure { addresses: addresses.into_inner() }
        } else {
            if let Some(addresses) = self.addresses {
                let at = place.at(addresses.span().start);
                bail!(
                    "{at}: this bridge's addresses are in its certificate; they stand here only with `insecure = true`"
                );
            }
            Identity::Certificates(CertificatePaths {
                certificate: self.certificate.map_or(defaults.certificate, Spanned::into_inner),
                key: self.key.map_or(defaults.key, Spanned::into_inner),
                trusted: self.trusted.map_or(defaults.trusted, Spanned::into_inner),
                // That there is no such user is told when it is to be become.
                user: self.user.as_deref().and_then(|name| User::find(name).ok().flatten()).map(|user| user.uid()),
            })
        };
        let nice = self.nice.map(|nice| (nice.span(), nice.into_inner()));
        let nice = match nice {
            Some((span, Nice::Number(nice))) if !(-20..=0).contains(&nice) => {
                bail!("{}: nice must be a number from -20 to 0", place.at(span.start))
            }
            nice => nice.map_or(priority::DEFAULT, |(_, Nice::Number(nice))| nice),
        };
        let timeout = self.peer_timeout_s.map(|seconds| (seconds.span(), seconds.into_inner()));
        let peer_timeout = match timeout {
            None => Duration::from_secs(5),
            Some((_, Seconds::Number(seconds))) if (1.0..=3600.0).contains(&seconds) => {
                Duration::from_secs_f64(seconds)
            }
            Some((span, _)) => {
                bail!("{}: peer_timeout_s must be a number from 1 to 3600", place.at(span.start))
            }
        };
        if let Some(rules) = &self.namespaces {
            rules.get_ref().check().map_err(|error| anyhow::anyhow!("{}: {error}", place.at(rules.span().start)))?;
        }
        Ok(Config {
            name,
            listen: self.listen.into_iter().map(|address| address.0).collect(),
            peers,
            identity,
            rails: self.rails,
            tunables: self.tunables,
            user: self.user,
            nice,
            peer_timeout,
            admin_socket: self.admin_socket.unwrap_or_else(|| beeline_status::ask::PATH.into()),
            namespaces: self.namespaces.map(Spanned::into_inner),
        })
    }
}

/// The peers, each of another name and with what it needs.
fn checked_peers(
    written: Vec<Spanned<WrittenPeer>>,
    name: Option<&BridgeName>,
    insecure: bool,
    place: &Place<'_>,
) -> anyhow::Result<Vec<Peer>> {
    let mut peers: Vec<Peer> = Vec::new();
    for peer in written {
        let at = place.at(peer.span().start);
        let peer = peer.into_inner();
        if peers.len() == PEERS_MAX {
            bail!("{at}: there are more than {PEERS_MAX} peers");
        }
        if name == Some(&peer.name) {
            bail!("{at}: the peer `{}` has this bridge's own name", peer.name);
        }
        if peers.iter().any(|other| other.name == peer.name) {
            bail!("{at}: there is another peer `{}`", peer.name);
        }
        let control: Vec<SocketAddr> = match peer.control {
            OneOrMore::One(address) => vec![address.0],
            OneOrMore::More(addresses) => addresses.into_iter().map(|address| address.0).collect(),
        };
        if control.is_empty() {
            bail!("{at}: the peer `{}` needs a control address", peer.name);
        }
        if insecure && peer.addresses.is_none() {
            bail!("{at}: with `insecure = true` the peer `{}` needs its `addresses`", peer.name);
        }
        if let (false, Some(addresses)) = (insecure, &peer.addresses) {
            let at = place.at(addresses.span().start);
            bail!("{at}: a peer's addresses are in its certificate; they stand here only with `insecure = true`");
        }
        let addresses = peer.addresses.map(Spanned::into_inner).unwrap_or_default();
        peers.push(Peer { name: peer.name, control, addresses });
    }
    Ok(peers)
}

#[cfg(test)]
mod tests;
