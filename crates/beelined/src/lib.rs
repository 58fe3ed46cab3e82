//! The bridge: a daemon on each host that carries Beeline's connections to and from other hosts.
//!
//! `docs/design/0004-bridge.md` has the whole picture. The parts:
//!
//! * the **control plane** says who is who: configuration ([`config`]), keys and trusted certificates, the
//!   control connection to each peer, the socket for the administrator;
//! * the **agent** ([`agent`]) is another program than the bridge: it brings network namespaces of one host together;
//! * the **data plane** moves bytes: lanes of local processes, rails to other hosts, and the records between.

pub mod admin;
pub mod agent;
pub mod config;
pub mod control;
pub mod data;
pub mod front;
pub mod keys;
pub mod log;
pub mod name;
pub mod notify;
pub mod ports;
pub mod prefix;
pub mod priority;
pub mod serve;
pub mod tunables;
pub mod user;
