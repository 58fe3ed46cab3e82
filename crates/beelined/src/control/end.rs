//! Why a control connection ended: a closed list, counted by name, with a sentence for people.

use std::fmt;
use std::io;

use crate::name::BridgeName;
use crate::prefix::Prefix;

/// Why a control connection ended, or never began.
#[derive(Debug)]
pub enum End {
    /// The other end closed it without a word.
    Closed,
    /// The other end said why.
    Bye(String),
    /// A system call failed.
    Io(io::Error),
    /// TLS failed: an unknown or expired certificate, or no TLS at all.
    Tls(rustls::Error),
    /// Nothing was heard for too long.
    Silent,
    /// It could not be established in time.
    Slow,
    /// The other end sends more than any bridge would.
    Flood,
    /// The other end does not read what is sent.
    NotReading,
    /// A frame is longer than frames may be.
    TooLong(u32),
    /// A frame is no message.
    Malformed(String),
    /// A message came at a time when it means nothing.
    OutOfTurn(&'static str),
    /// The other end speaks another version.
    Version(u32),
    /// The other end says a name that is not its certificate's, or not the one that was dialed.
    WrongName { said: BridgeName, expected: BridgeName },
    /// The other end says our own name.
    OwnName,
    /// The other end claims addresses that its certificate (or the configuration) does not give it.
    Beyond(Prefix),
    /// Without certificates: nobody with this name and address is configured.
    Stranger,
    /// The certificate was trusted when the connection was made, and is no more.
    NoLongerTrusted,
    /// There is a better connection to the same bridge.
    Duplicate,
    /// The other bridge has started again and made a new connection.
    Restarted,
    /// Too many connections wait to say who they are; this was the oldest.
    Crowded,
    /// This bridge stops.
    Stopping,
}

impl End {
    /// Its name, for counting.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Closed => "closed",
            Self::Bye(_) => "bye",
            Self::Io(_) => "io",
            Self::Tls(_) => "tls",
            Self::Silent => "silent",
            Self::Slow => "slow",
            Self::Flood => "flood",
            Self::NotReading => "not_reading",
            Self::TooLong(_) => "too_long",
            Self::Malformed(_) => "malformed",
            Self::OutOfTurn(_) => "out_of_turn",
            Self::Version(_) => "version",
            Self::WrongName { .. } => "wrong_name",
            Self::OwnName => "own_name",
            Self::Beyond(_) => "beyond",
            Self::Stranger => "stranger",
            Self::NoLongerTrusted => "no_longer_trusted",
            Self::Duplicate => "duplicate",
            Self::Restarted => "restarted",
            Self::Crowded => "crowded",
            Self::Stopping => "stopping",
        }
    }

    /// Whether the two bridges have another connection, which stays: neither a failure nor a refusal. The other end
    /// says so with our own words.
    pub fn is_duplicate(&self) -> bool {
        match self {
            Self::Duplicate => true,
            Self::Bye(why) => *why == Self::Duplicate.to_string(),
            _ => false,
        }
    }

    /// Whether the other end can still be told.
    pub fn is_worth_a_bye(&self) -> bool {
        !matches!(self, Self::Closed | Self::Bye(_) | Self::Io(_) | Self::Tls(_) | Self::NotReading)
    }
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Closed => f.write_str("the other end closed the connection"),
            Self::Bye(why) => write!(f, "the other end says: {why}"),
            Self::Io(error) => error.fmt(f),
            Self::Tls(error) => write!(f, "TLS: {error}"),
            Self::Silent => f.write_str("nothing was heard for too long"),
            Self::Slow => f.write_str("the connection was not established in time"),
            Self::Flood => f.write_str("more came than any bridge would send"),
            Self::NotReading => f.write_str("the other end does not read"),
            Self::TooLong(bytes) => write!(f, "a frame of {bytes} bytes"),
            Self::Malformed(error) => write!(f, "a frame that is no message: {error}"),
            Self::OutOfTurn(kind) => write!(f, "a message out of turn: {kind}"),
            Self::Version(theirs) => write!(
                f,
                "the protocol's versions differ: {theirs} and {}; install the same release on both hosts",
                super::message::VERSION
            ),
            Self::WrongName { said, expected } => write!(f, "it says it is `{said}`, but it is `{expected}`"),
            Self::OwnName => f.write_str("both bridges have the same name"),
            Self::Beyond(prefix) => write!(f, "it claims {prefix}, which it may not speak for"),
            Self::Stranger => f.write_str("no bridge of this name at this address is configured"),
            Self::NoLongerTrusted => f.write_str("its certificate is no longer trusted"),
            Self::Duplicate => f.write_str("there is another connection between the two"),
            Self::Restarted => f.write_str("the other bridge has started again"),
            Self::Crowded => f.write_str("too many connections wait to say who they are"),
            Self::Stopping => f.write_str("the bridge stops"),
        }
    }
}

impl From<io::Error> for End {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

impl From<rustls::Error> for End {
    fn from(error: rustls::Error) -> Self {
        Self::Tls(error)
    }
}

impl From<super::frame::TooLong> for End {
    fn from(frame: super::frame::TooLong) -> Self {
        Self::TooLong(frame.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duplicate_is_known_at_both_ends() {
        assert!(End::Duplicate.is_duplicate());
        assert!(End::Bye(End::Duplicate.to_string()).is_duplicate());
        assert!(!End::Bye(End::Restarted.to_string()).is_duplicate() && !End::Closed.is_duplicate());
    }
}
