//! Names of bridges.
//!
//! A name stands in certificates, in configuration and on the wire, and becomes a file name. So it is
//! short and of characters that mean nothing special anywhere.

#![forbid(unsafe_code)]

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// The longest name, in bytes: that of a DNS label, so that every host name will do.
pub const NAME_BYTES_MAX: usize = 63;

/// The name of a bridge.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct BridgeName(String);

impl BridgeName {
    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The name of this host, up to the first dot.
    pub fn of_host() -> anyhow::Result<Self> {
        let name = nix::sys::utsname::uname()?.nodename().to_string_lossy().into_owned();
        let label = name.split('.').next().unwrap_or_default();
        label.parse().map_err(|error| anyhow::anyhow!("the host's name will not do: {error}"))
    }
}

impl FromStr for BridgeName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
        let begins_well = text.bytes().next().is_some_and(|byte| byte.is_ascii_alphanumeric());
        if begins_well && text.len() <= NAME_BYTES_MAX && text.bytes().all(is_plain) {
            return Ok(Self(text.to_owned()));
        }
        Err(format!(
            "`{}` is no name of a bridge: it takes 1 to {NAME_BYTES_MAX} of the characters a-z A-Z 0-9 - . _ and begins \
             with a letter or digit",
            text.chars().take(2 * NAME_BYTES_MAX).collect::<String>().escape_debug()
        ))
    }
}

impl TryFrom<String> for BridgeName {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<BridgeName> for String {
    fn from(name: BridgeName) -> Self {
        name.0
    }
}

impl fmt::Display for BridgeName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_plain() {
        for good in ["a", "Alpha-1.example", "0", &"x".repeat(63)] {
            assert_eq!(good.parse::<BridgeName>().unwrap().as_str(), good);
        }
        for bad in ["", ".", "..", "-a", "a/b", "a b", "ä", "a\n", "a\0", &"x".repeat(64)] {
            assert!(bad.parse::<BridgeName>().is_err(), "{bad:?}");
        }
    }
}
