//! What is wrong with options and rules.

use core::fmt;

use super::value::Kind;

/// What is wrong with one option.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OptionError {
    /// There is no `=` in it.
    NoEquals,
    /// No option has this key.
    UnknownKey,
    /// The option does not take this value.
    BadValue(&'static str, Kind),
    /// A rule cannot be understood.
    Rule(RuleError),
}

impl fmt::Display for OptionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            OptionError::NoEquals => f.write_str("an option is written key=value"),
            OptionError::UnknownKey => f.write_str("there is no option of this name"),
            OptionError::BadValue(key, kind) => write!(f, "{key} must be {kind}"),
            OptionError::Rule(error) => write!(f, "in a rule: {error}"),
        }
    }
}

impl core::error::Error for OptionError {}

/// The first part of a list of options that could not be understood.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ParseError {
    /// Where it begins, in bytes from the start of the list.
    pub offset: usize,
    /// What is wrong with it.
    pub error: OptionError,
}

impl fmt::Display for ParseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "at byte {}: {}", self.offset, self.error)
    }
}

impl core::error::Error for ParseError {}

/// What is wrong with a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RuleError {
    /// A part is no `key=value`.
    NoEquals,
    /// No rule has this key.
    UnknownKey,
    /// The option is there, and cannot be said by a rule.
    NotByRule(&'static str),
    /// The key is said twice.
    Twice,
    /// The program's pattern is empty, too long, or has a character that rules are written with.
    Program,
    /// The role is neither.
    Role,
    /// The address is none.
    Address,
    /// The port is none, nor a range of them.
    Port,
    /// The path is none.
    Path,
    /// The option does not take the value.
    Value(&'static str, Kind),
    /// Nothing is said to hold.
    Nothing,
    /// An option is said of connections that go over TCP.
    Idle,
}

impl fmt::Display for RuleError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RuleError::NoEquals => f.write_str("a rule is written key=value;key=value"),
            RuleError::UnknownKey => {
                f.write_str("a rule has program, role, address, port, path, and options that `beeline run --help` lists with them")
            }
            RuleError::NotByRule(key) => write!(f, "{key} holds for a whole process and cannot be said by a rule"),
            RuleError::Twice => f.write_str("a rule says each key once"),
            RuleError::Program => f.write_str(
                "program must be a name or a path of at most 255 bytes, with * and ? for any characters and none of , ; and space",
            ),
            RuleError::Role => f.write_str("role must be client or server"),
            RuleError::Address => f.write_str(
                "address must be an IPv4 or IPv6 address or a prefix such as 10.0.0.0/8, with no bits beyond it",
            ),
            RuleError::Port => f.write_str("port must be a number from 1 to 65535 or a range such as 8000-8099"),
            RuleError::Path => f.write_str("path must be lane or tcp"),
            RuleError::Value(key, kind) => write!(f, "{key} must be {kind}"),
            RuleError::Nothing => f.write_str("a rule must say what holds: path, or an option"),
            RuleError::Idle => f.write_str("connections of path tcp have no use for other options"),
        }
    }
}

impl core::error::Error for RuleError {}
