//! Rules: what holds for some connections only.
//!
//! 1. A rule says whom it is for (`program`, `role`, `address`, `port`; all that are said must match) and what then
//!    holds (`path`, and options whose [`Reach`] has rules). **The first rule that matches a connection counts, as a
//!    whole**; a connection that none matches goes by the options of its process.
//! 2. `address` and `port` are the server's, in both roles: where a client connects to, and where a server was
//!    connected to. So one rule speaks of both ends.
//! 3. `program` matches the program's own name: of its file, or, of a script, of the script. A pattern with a `/` is
//!    for the path of the file. `*` stands for any characters, `?` for one. What program it is does not change while it
//!    runs, so a rule for another program is left out when rules are read, and takes no room.
//! 4. The command writes rules as parts of the list of options, `rule=key=value;key=value`. The library keeps
//!    [`RULES_MAX`] of those that are for it, in memory of fixed size; the command refuses more.

use core::net::{IpAddr, SocketAddr};

use super::error::RuleError;
use super::reach::Reach;
use super::table::{KEYS, KINDS, OPTIONS_COUNT, REACHES};
use super::value::Kind;
use crate::Role;

/// How a rule begins in a list of options.
pub const PREFIX: &[u8] = b"rule=";

/// How many rules there may be.
pub const RULES_MAX: usize = 32;

/// How long a list of options may be that has rules in it.
pub const LIST_BYTES_MAX: usize = 4000;

/// The keys that say whom a rule is for.
pub const CONDITIONS: [&str; 4] = ["program", "role", "address", "port"];

/// The key that says which way a connection goes.
pub const PATH: &str = "path";

/// Which way a connection goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Path {
    /// Over a lane, where that can be.
    Lane,
    /// Over TCP.
    Tcp,
}

/// Addresses that begin alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prefix {
    base: IpAddr,
    bits: u32,
}

impl Prefix {
    /// An address, or an address with the number of bits that count.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let (base, bits) = match text.split_once('/') {
            Some((base, bits)) => (base, Some(bits)),
            None => (text, None),
        };
        let base: IpAddr = base.parse().ok()?;
        let most = if base.is_ipv4() { 32 } else { 128 };
        let bits = match bits {
            None => most,
            // Digits only: `parse` alone would also take a plus sign.
            Some(bits) if bits.bytes().all(|byte| byte.is_ascii_digit()) => bits.parse().ok().filter(|b| *b <= most)?,
            Some(_) => return None,
        };
        let prefix = Self { base, bits };
        // Bits beyond the prefix are a typing error.
        (prefix.key(base) == as_bits(base)).then_some(prefix)
    }

    /// Whether it has this address. An IPv4 address is the same one where it is mapped into IPv6.
    #[must_use]
    pub fn has(&self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        address.is_ipv4() == self.base.is_ipv4() && self.key(address) == self.key(self.base)
    }

    /// The bits that count.
    fn key(&self, address: IpAddr) -> u128 {
        let dropped = 128_u32.saturating_sub(self.bits);
        let mask = u128::MAX.checked_shl(dropped).unwrap_or(0);
        as_bits(address) & mask
    }
}

/// An address at the upper end of a number.
fn as_bits(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(v4) => u128::from(v4.to_bits()) << 96,
        IpAddr::V6(v6) => v6.to_bits(),
    }
}

/// The options that a rule may say.
pub fn options() -> impl Iterator<Item = &'static str> {
    KEYS.iter().zip(REACHES).filter(|(_, reach)| reach.has_rules()).map(|(key, _)| *key)
}

/// One rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rule<'a> {
    /// The pattern of the program; for any, if there is none.
    pub program: Option<&'a [u8]>,
    body: Body,
    /// Which keys were said: a bit for each condition, the path, and each option.
    said: u64,
}

/// What of a rule is left once it is known to be for this program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Body {
    role: Option<Role>,
    prefix: Option<Prefix>,
    ports: (u16, u16),
    path: Option<Path>,
    words: [u64; OPTIONS_COUNT],
}

impl Body {
    const EMPTY: Body = Body { role: None, prefix: None, ports: (0, u16::MAX), path: None, words: [0; OPTIONS_COUNT] };

    /// Which way a connection goes.
    #[must_use]
    pub fn path(&self) -> Path {
        self.path.unwrap_or(Path::Lane)
    }

    /// The word for an option, 0 if the rule says nothing of it.
    #[must_use]
    pub fn word(&self, index: usize) -> u64 {
        self.words.get(index).copied().unwrap_or(0)
    }

    fn is_for(&self, role: Role, port: u16) -> bool {
        self.role.is_none_or(|wanted| wanted == role) && (self.ports.0..=self.ports.1).contains(&port)
    }

    fn matches(&self, role: Role, server: SocketAddr) -> bool {
        self.is_for(role, server.port()) && self.prefix.is_none_or(|prefix| prefix.has(server.ip()))
    }
}

impl<'a> Rule<'a> {
    /// With nothing said.
    pub const EMPTY: Self = Self { program: None, body: Body::EMPTY, said: 0 };

    /// Reads a rule, `key=value;key=value`.
    ///
    /// # Errors
    /// The first thing that is wrong with it.
    pub fn parse(text: &'a [u8]) -> Result<Self, RuleError> {
        let mut rule = Self::EMPTY;
        for part in text.split(|&byte| byte == b';') {
            let equals = part.iter().position(|&byte| byte == b'=').ok_or(RuleError::NoEquals)?;
            let (key, value) = part.split_at_checked(equals).ok_or(RuleError::NoEquals)?;
            rule.set(key, value.get(1..).unwrap_or_default())?;
        }
        rule.check()?;
        Ok(rule)
    }

    /// Says one key.
    ///
    /// # Errors
    /// What is wrong with it; nothing changes then.
    pub fn set(&mut self, key: &[u8], value: &'a [u8]) -> Result<(), RuleError> {
        let text = core::str::from_utf8(value).ok();
        let condition = CONDITIONS.iter().position(|known| known.as_bytes() == key);
        let option = KEYS.iter().position(|known| known.as_bytes() == key);
        let bit = match (condition, option) {
            (Some(index), _) => index,
            (None, Some(index)) => index.saturating_add(CONDITIONS.len()).saturating_add(1),
            (None, None) if key == PATH.as_bytes() => CONDITIONS.len(),
            (None, None) => return Err(RuleError::UnknownKey),
        };
        if self.said >> bit & 1 != 0 {
            return Err(RuleError::Twice);
        }
        let body = &mut self.body;
        match (key, option) {
            (b"program", _) => self.program = Some(program(value).ok_or(RuleError::Program)?),
            (b"role", _) => {
                body.role = Some(match value {
                    b"client" => Role::Client,
                    b"server" => Role::Server,
                    _ => return Err(RuleError::Role),
                });
            }
            (b"address", _) => body.prefix = Some(text.and_then(Prefix::parse).ok_or(RuleError::Address)?),
            (b"port", _) => body.ports = text.and_then(ports).ok_or(RuleError::Port)?,
            (b"path", _) => {
                body.path = Some(match value {
                    b"lane" => Path::Lane,
                    b"tcp" => Path::Tcp,
                    _ => return Err(RuleError::Path),
                });
            }
            (_, Some(index)) => {
                let of = |table: &[Kind; OPTIONS_COUNT]| table.get(index).copied();
                let (key, kind) = KEYS.get(index).copied().zip(of(&KINDS)).ok_or(RuleError::UnknownKey)?;
                if !REACHES.get(index).copied().is_some_and(Reach::has_rules) {
                    return Err(RuleError::NotByRule(key));
                }
                let word = kind.word_of_text(value).ok_or(RuleError::Value(key, kind))?;
                body.words.get_mut(index).into_iter().for_each(|place| *place = word);
            }
            _ => return Err(RuleError::UnknownKey),
        }
        self.said |= 1 << bit;
        Ok(())
    }

    /// Whether the rule as a whole makes sense.
    ///
    /// # Errors
    /// Why it does not.
    pub fn check(&self) -> Result<(), RuleError> {
        let says = self.body.words.iter().any(|word| *word != 0);
        match self.body.path {
            None if !says => Err(RuleError::Nothing),
            Some(Path::Tcp) if says => Err(RuleError::Idle),
            _ => Ok(()),
        }
    }

    /// Whether it is for a program whose file is `path`, and whose name, as `ps` shows it, is `name`.
    #[must_use]
    pub fn is_for_program(&self, path: &[u8], name: &[u8]) -> bool {
        /// How much of a program's name the kernel keeps.
        const COMM_BYTES: usize = 15;
        let Some(pattern) = self.program else { return true };
        if pattern.contains(&b'/') {
            return glob(pattern, path);
        }
        let file = path.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
        let is_cut = || name.len() == COMM_BYTES && pattern.starts_with(name);
        !file.is_empty() && glob(pattern, file) || !name.is_empty() && (glob(pattern, name) || is_cut())
    }
}

fn program(value: &[u8]) -> Option<&[u8]> {
    let writable = |byte: &u8| byte.is_ascii_graphic() && !matches!(byte, b',' | b';') || *byte >= 0x80;
    (!value.is_empty() && value.len() <= 255 && value.iter().all(writable)).then_some(value)
}

fn ports(text: &str) -> Option<(u16, u16)> {
    let port = |text: &str| {
        // Digits only: `parse` alone would also take a plus sign.
        let digits = text.bytes().all(|byte| byte.is_ascii_digit());
        text.parse().ok().filter(|port: &u16| digits && *port != 0)
    };
    match text.split_once('-') {
        Some((first, last)) => port(first).zip(port(last)).filter(|(first, last)| first <= last),
        None => port(text).map(|port| (port, port)),
    }
}

/// Whether a text fits a pattern: `*` stands for any characters, `?` for one.
///
/// After a mismatch only the last `*` is tried with one character more, which finds every match, in time that grows
/// with the product of both lengths at most.
#[must_use]
pub fn glob(pattern: &[u8], text: &[u8]) -> bool {
    let (mut p, mut t) = (0_usize, 0_usize);
    let mut star: Option<(usize, usize)> = None;
    while let Some(byte) = text.get(t) {
        match pattern.get(p) {
            Some(b'*') => {
                star = Some((p, t));
                p = p.saturating_add(1);
            }
            Some(wanted) if wanted == byte || *wanted == b'?' => {
                (p, t) = (p.saturating_add(1), t.saturating_add(1));
            }
            _ => {
                let Some((at, taken)) = star else { return false };
                let taken = taken.saturating_add(1);
                star = Some((at, taken));
                (p, t) = (at.saturating_add(1), taken);
            }
        }
    }
    pattern.get(p..).unwrap_or_default().iter().all(|byte| *byte == b'*')
}

/// The rules that are for one program, the first one first.
#[derive(Clone, Copy, Debug)]
pub struct Rules {
    count: usize,
    rules: [Body; RULES_MAX],
}

impl Default for Rules {
    fn default() -> Self {
        Self::NONE
    }
}

impl Rules {
    /// No rules.
    pub const NONE: Self = Self { count: 0, rules: [Body::EMPTY; RULES_MAX] };

    /// Reads those rules of a list of options that `is_ours` picks. What cannot be understood, and what there is no
    /// room for, is left out: a guest does not stop its host over a typing error.
    pub fn read(&mut self, list: &[u8], mut is_ours: impl FnMut(&Rule<'_>) -> bool) {
        let texts = list.split(|&byte| byte == b',').filter_map(|part| part.strip_prefix(PREFIX));
        let rules = texts.filter_map(|text| Rule::parse(text).ok());
        for rule in rules.filter(|rule| is_ours(rule)) {
            if let Some(place) = self.rules.get_mut(self.count) {
                *place = rule.body;
                self.count = self.count.saturating_add(1);
            }
        }
    }

    fn all(&self) -> &[Body] {
        self.rules.get(..self.count).unwrap_or_default()
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.count
    }

    /// Whether there are none.
    #[must_use]
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The rule that counts for a connection: the first that matches.
    #[must_use]
    #[inline]
    pub fn of(&self, role: Role, server: SocketAddr) -> Option<&Body> {
        if self.is_empty() { None } else { self.find(role, server) }
    }

    #[cold]
    fn find(&self, role: Role, server: SocketAddr) -> Option<&Body> {
        self.all().iter().find(|rule| rule.matches(role, server))
    }

    /// Which way a connection goes.
    #[must_use]
    #[inline]
    pub fn path(&self, role: Role, server: SocketAddr) -> Path {
        self.of(role, server).map_or(Path::Lane, Body::path)
    }

    /// Which way those connections of a listener go that go the farthest: a listener on all addresses has lanes if
    /// connections to any of them may.
    #[must_use]
    pub fn path_of_listener(&self, bound: SocketAddr) -> Path {
        if !bound.ip().to_canonical().is_unspecified() {
            return self.path(Role::Server, bound);
        }
        for rule in self.all().iter().filter(|rule| rule.is_for(Role::Server, bound.port())) {
            match (rule.prefix, rule.path()) {
                (Some(_), Path::Tcp) => {}
                (_, path) => return path,
            }
        }
        Path::Lane
    }
}

#[cfg(test)]
mod tests;
