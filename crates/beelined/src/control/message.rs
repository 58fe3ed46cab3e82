//! What the bridges say to each other on the control connection. `docs/protocol.md` describes every field.
//!
//! A frame is a JSON object with one member, whose name is the kind of message: `{"ping": {"n": 7}}`. Members that are
//! not known are errors; whoever adds one raises [`VERSION`].

use std::fmt;

use beeline_topo::PeerRail;
use serde::{Deserialize, Serialize};

use crate::log::plain;
use crate::name::BridgeName;
use crate::prefix::Prefix;

/// The version of all that bridges say to each other.
pub const VERSION: u32 = 4;

/// The most rails that a bridge offers.
pub const RAILS_MAX: usize = 64;

const TEXT_BYTES_MAX: usize = 256;
const WHY_BYTES_MAX: usize = 512;

/// Everything that can be in a frame.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Frame {
    /// The first of both.
    Hello(Hello),
    /// Are you there?
    Ping(Ping),
    /// I am.
    Pong(Ping),
    /// What is offered has changed.
    Rails(Rails),
    /// The sender has closed its end of a link.
    LinkDown(LinkDown),
    /// The sender is about to stop, and takes no new connections.
    Leaving(Leaving),
    /// The end.
    Bye(Bye),
}

/// What the engine says to the engine of another bridge.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    /// What is offered has changed.
    Rails(Rails),
    /// The sender has closed its end of a link; the receiver shall, too.
    LinkDown(LinkDown),
    /// The sender is about to stop, and takes no new connections.
    Leaving(Leaving),
}

impl From<Message> for Frame {
    fn from(message: Message) -> Self {
        match message {
            Message::Rails(rails) => Self::Rails(rails),
            Message::LinkDown(down) => Self::LinkDown(down),
            Message::Leaving(leaving) => Self::Leaving(leaving),
        }
    }
}

/// Who the sender is, and what it offers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Hello {
    /// [`VERSION`].
    pub version: u32,
    /// The sender's name.
    pub name: BridgeName,
    /// A random number for each start of the sender.
    pub instance: u64,
    /// The addresses that the sender speaks for.
    pub speaks_for: Vec<Prefix>,
    /// The rails it offers.
    pub rails: Vec<Rail>,
    /// What the receiver has to show when it connects a rail.
    pub token: Token,
    /// The TCP port at which the receiver may measure the way, with its token; 0 if there is none.
    pub measure_port: u16,
}

/// A question for life, and its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Ping {
    /// Counts the sender's questions from 1; the answer has the same.
    pub n: u64,
}

/// The rails that are offered from now on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rails {
    /// All of them.
    pub rails: Vec<Rail>,
}

/// A link that died: a connection between a rail of each side.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LinkDown {
    /// Its number, which the side that connected it chose.
    pub link: u64,
    /// What happened, for people.
    pub why: String,
}

/// No new connections any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Leaving {}

/// The end, and why.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Bye {
    /// For people.
    pub why: String,
}

/// A rail on offer: a port of a fabric, and where it listens.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rail {
    /// The sender's number for it.
    pub id: u32,
    /// The port on which it listens, at the description's address.
    pub port: u16,
    /// What is needed to choose among rails. Members that are not known are no errors in it.
    pub description: PeerRail,
}

/// A secret of 32 bytes that ties a rail's endpoint to a control connection.
#[derive(Clone, Copy, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Token([u8; Self::BYTES]);

impl Token {
    /// How long it is.
    pub const BYTES: usize = 32;

    /// The bytes to show.
    pub fn as_bytes(&self) -> &[u8; Self::BYTES] {
        &self.0
    }

    /// From its bytes.
    pub fn from_bytes(bytes: [u8; Self::BYTES]) -> Self {
        Self(bytes)
    }

    /// Whether these are its bytes, found out in a time that does not tell how many are right.
    pub fn is(&self, bytes: &[u8]) -> bool {
        bytes.len() == Self::BYTES
            && self.0.iter().zip(bytes).fold(0, |difference, (ours, theirs)| difference | (ours ^ theirs)) == 0
    }
}

impl PartialEq for Token {
    fn eq(&self, other: &Self) -> bool {
        self.is(&other.0)
    }
}

/// Logs are read by more people than should know tokens.
impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(..)")
    }
}

impl From<Token> for String {
    fn from(token: Token) -> Self {
        token.0.iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

impl TryFrom<String> for Token {
    type Error = &'static str;

    fn try_from(text: String) -> Result<Self, &'static str> {
        const WRONG: &str = "a token is 64 hexadecimal digits";
        let digits = text.as_bytes();
        if digits.len() != 2 * Self::BYTES {
            return Err(WRONG);
        }
        let mut bytes = [0; Self::BYTES];
        for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
            let digit = |digit: u8| char::from(digit).to_digit(16).filter(|_| !digit.is_ascii_uppercase());
            let (Some(high), Some(low)) = (digit(pair[0]), digit(pair[1])) else { return Err(WRONG) };
            *byte = (high * 16 + low) as u8;
        }
        Ok(Self(bytes))
    }
}

/// Why a frame will not do, beyond its form.
type Objection = String;

impl Frame {
    /// Understands the body of a frame.
    pub fn decode(body: &[u8]) -> Result<Self, Objection> {
        let mut frame: Self = serde_json::from_slice(body).map_err(|error| plain(&error.to_string()))?;
        frame.check()?;
        if let Self::LinkDown(LinkDown { why, .. }) | Self::Bye(Bye { why }) = &mut frame {
            *why = plain(why);
        }
        Ok(frame)
    }

    /// The body of a frame.
    pub fn encode(&self) -> Vec<u8> {
        // Every key is a string and no `Serialize` here fails by itself; memory does not fail either.
        serde_json::to_vec(self).unwrap_or_default()
    }

    /// The version in a hello, whatever else a hello of that version holds.
    pub fn hello_version(body: &[u8]) -> Option<u32> {
        #[derive(Deserialize)]
        struct Any {
            hello: Version,
        }
        #[derive(Deserialize)]
        struct Version {
            version: u32,
        }
        serde_json::from_slice::<Any>(body).ok().map(|any| any.hello.version)
    }

    fn check(&self) -> Result<(), Objection> {
        match self {
            Self::Hello(hello) => {
                if hello.speaks_for.len() > crate::keys::ADDRESSES_MAX {
                    return Err("it speaks for too many addresses".into());
                }
                check_rails(&hello.rails)
            }
            Self::Rails(rails) => check_rails(&rails.rails),
            Self::LinkDown(LinkDown { why, .. }) | Self::Bye(Bye { why }) if why.len() > WHY_BYTES_MAX => {
                Err("its reason is too long".into())
            }
            _ => Ok(()),
        }
    }
}

/// What must hold for rails that are offered; the sender asks the same before it offers.
pub fn check_rails(rails: &[Rail]) -> Result<(), Objection> {
    if rails.len() > RAILS_MAX {
        return Err(format!("it offers more than {RAILS_MAX} rails"));
    }
    for (index, rail) in rails.iter().enumerate() {
        if rails[..index].iter().any(|other| other.id == rail.id) {
            return Err(format!("it offers rail {} twice", rail.id));
        }
        let PeerRail { name, provider, netdev, .. } = &rail.description;
        let texts = [Some(name), Some(provider), netdev.as_ref()];
        if texts.iter().flatten().any(|text| text.len() > TEXT_BYTES_MAX || text.chars().any(char::is_control)) {
            return Err(format!("a name of rail {} will not do", rail.id));
        }
    }
    Ok(())
}

/// Cuts a reason to what the other end takes, at a character.
pub fn shortened(mut why: String) -> String {
    let mut end = why.len().min(WHY_BYTES_MAX);
    while !why.is_char_boundary(end) {
        end -= 1;
    }
    why.truncate(end);
    why
}

#[cfg(test)]
mod tests;
