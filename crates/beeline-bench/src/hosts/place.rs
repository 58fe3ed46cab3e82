//! A place where programs run: this host, a network namespace of it, or another host.

use std::fmt;
use std::process::Command;

use crate::process::Output;

/// ssh's own exit code when there is no connection.
const SSH_FAILED: i32 = 255;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Host {
    Local,
    /// A network namespace as `ip netns` names it. Entering one takes root.
    Namespace(String),
    /// What ssh connects to.
    Ssh(String),
}

impl Host {
    /// For the command line.
    pub fn parse_two(text: &str) -> Result<[Host; 2], String> {
        let (a, b) = text.split_once(',').ok_or("expected two hosts, as in alpha,beta")?;
        Ok([Host::parse(a)?, Host::parse(b)?])
    }

    fn parse(text: &str) -> Result<Host, String> {
        let name = text.strip_prefix("netns:").unwrap_or(text);
        // A name that begins with a minus would be an option of ssh or ip.
        if name.is_empty() || name.starts_with('-') || name.contains(|c: char| c.is_whitespace() || c == ',') {
            return Err(format!("`{text}` names no host"));
        }
        Ok(match text {
            "local" => Host::Local,
            _ if text.starts_with("netns:") => Host::Namespace(name.to_owned()),
            _ => Host::Ssh(name.to_owned()),
        })
    }

    /// Whether files of this host are not there.
    pub fn is_remote(&self) -> bool {
        matches!(self, Host::Ssh(_))
    }

    /// The command that runs a program there, with its standard streams here.
    pub fn command<'a>(&self, words: impl Iterator<Item = &'a str>) -> Command {
        match self {
            Host::Local => {
                let mut words = words;
                let mut command = Command::new(words.next().unwrap_or_default());
                command.args(words);
                command
            }
            Host::Namespace(name) => {
                let mut command = Command::new("ip");
                command.args(["netns", "exec", name.as_str()]).args(words);
                command
            }
            Host::Ssh(destination) => {
                // The shell becomes the program, so that the program is the child of the ssh server.
                let line = words.fold(String::from("exec"), |line, word| line + " " + &quoted(word));
                let mut command = Command::new("ssh");
                command.args(["-T", "-o", "BatchMode=yes", "-o", "ConnectTimeout=10", "--", destination]).arg(line);
                command
            }
        }
    }

    /// Whether what failed was not the program but the way to it.
    pub fn failed_to_reach(&self, output: &Output) -> bool {
        self.is_remote() && output.status.code() == Some(SSH_FAILED)
    }
}

/// One word for any shell.
pub fn quoted(word: &str) -> String {
    format!("'{}'", word.replace('\'', r"'\''"))
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Host::Local => f.write_str("local"),
            Host::Namespace(name) => write!(f, "netns:{name}"),
            Host::Ssh(destination) => f.write_str(destination),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_are_two() {
        let both = Host::parse_two("netns:a,root@beta").unwrap();
        assert_eq!(both, [Host::Namespace("a".into()), Host::Ssh("root@beta".into())]);
        assert_eq!(Host::parse_two("local,beta").unwrap()[0], Host::Local);
        for bad in ["alpha", "alpha,", "alpha,beta,gamma", "-oProxyCommand=x,b", "netns:-b,c", "a b,c"] {
            assert!(Host::parse_two(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn words_survive_the_shell() {
        let words = ["printf", "%s|", "a b", "it's", "$HOME", "*", ""];
        let command = Host::Ssh("alpha".into()).command(words.into_iter());
        let line = command.get_args().last().unwrap();
        let output = Command::new("sh").arg("-c").arg(line).output().unwrap();
        assert_eq!(String::from_utf8(output.stdout).unwrap(), "a b|it's|$HOME|*||");
    }
}
