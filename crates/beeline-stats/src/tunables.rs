//! The options: one table, read by the library, the command line, the manual and the tests.
//!
//! 1. An option is `key=value`; several are separated by commas, with no spaces around them.
//!    Numbers are decimal and carry their unit in the key (`spin_ns_max`, `ring_bytes`). A number of bytes may end in
//!    `K`, `M` or `G`, for 2^10, 2^20 or 2^30 of them.
//! 2. The library reads them from the environment variable [`ENVIRONMENT`]. A guest does not stop
//!    its host over a typing error: what it cannot understand it leaves at its default, and tells
//!    the first such place. The command line refuses the same text instead.
//! 3. The last value of a key counts, so a later list overrides an earlier one.

use core::fmt;

/// The environment variable that carries options into the library.
pub const ENVIRONMENT: &str = "BEELINE_OPTIONS";

/// What values an option takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// `on` or `off`.
    Switch,
    /// One of these words.
    Choice(&'static [&'static str]),
    /// A number within these bounds, both included.
    Number {
        /// The least value.
        min: u64,
        /// The greatest value.
        max: u64,
    },
    /// A number of bytes within these bounds, both included.
    Bytes {
        /// The least value.
        min: u64,
        /// The greatest value.
        max: u64,
    },
    /// A number of bytes that is a power of two, within these bounds, both included.
    PowerOfTwo {
        /// The least value.
        min: u64,
        /// The greatest value.
        max: u64,
    },
    /// `auto`, `off`, or a number of bytes within these bounds, both included.
    Threshold {
        /// The least value.
        min: u64,
        /// The greatest value.
        max: u64,
    },
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Kind::Switch => f.write_str("on or off"),
            Kind::Choice(words) => {
                f.write_str("one of ")?;
                for (index, word) in words.iter().enumerate() {
                    if index > 0 {
                        f.write_str(", ")?;
                    }
                    f.write_str(word)?;
                }
                Ok(())
            }
            Kind::Number { min, max } => write!(f, "a number from {min} to {max}"),
            Kind::Bytes { min, max } => write!(f, "a number of bytes from {} to {}", Bytes(*min), Bytes(*max)),
            Kind::PowerOfTwo { min, max } => write!(f, "a power of two from {} to {}", Bytes(*min), Bytes(*max)),
            Kind::Threshold { min, max } => {
                write!(f, "auto, off, or a number of bytes from {} to {}", Bytes(*min), Bytes(*max))
            }
        }
    }
}

/// A number of bytes as options take it.
struct Bytes(u64);

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            bytes if bytes == 0 || bytes % (1 << 10) != 0 => write!(f, "{bytes}"),
            bytes if bytes % (1 << 20) != 0 => write!(f, "{}K", bytes >> 10),
            bytes if bytes % (1 << 30) != 0 => write!(f, "{}M", bytes >> 20),
            bytes => write!(f, "{}G", bytes >> 30),
        }
    }
}

/// The value of an option of any kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Value {
    /// `on` or `off`.
    Switch(bool),
    /// A word.
    Choice(&'static str),
    /// A number.
    Number(u64),
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Value::Switch(true) => f.write_str("on"),
            Value::Switch(false) => f.write_str("off"),
            Value::Choice(word) => f.write_str(word),
            Value::Number(number) => write!(f, "{number}"),
        }
    }
}

/// One row of the table.
#[derive(Clone, Copy, Debug)]
pub struct OptionSpec {
    /// The key.
    pub key: &'static str,
    /// What values it takes.
    pub kind: Kind,
    /// What it is when nobody says anything.
    pub default: Value,
    /// What it does, for people.
    pub sentence: &'static str,
}

/// What is wrong with one option.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OptionError {
    /// There is no `=` in it.
    NoEquals,
    /// No option has this key.
    UnknownKey,
    /// The option does not take this value.
    BadValue(&'static str, Kind),
}

impl fmt::Display for OptionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            OptionError::NoEquals => f.write_str("an option is written key=value"),
            OptionError::UnknownKey => f.write_str("there is no option of this name"),
            OptionError::BadValue(key, kind) => write!(f, "{key} must be {kind}"),
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

/// A type that an option can have.
trait OptionType: Copy {
    fn read(text: &[u8], kind: Kind) -> Option<Self>;
    fn value(self) -> Value;
}

impl OptionType for bool {
    fn read(text: &[u8], _: Kind) -> Option<Self> {
        match text {
            b"on" => Some(true),
            b"off" => Some(false),
            _ => None,
        }
    }

    fn value(self) -> Value {
        Value::Switch(self)
    }
}

impl OptionType for u64 {
    fn read(text: &[u8], kind: Kind) -> Option<Self> {
        let is_bytes = matches!(kind, Kind::Bytes { .. } | Kind::PowerOfTwo { .. } | Kind::Threshold { .. });
        let (text, unit) = match (is_bytes, text) {
            (true, [digits @ .., b'K' | b'k']) => (digits, 1 << 10),
            (true, [digits @ .., b'M' | b'm']) => (digits, 1 << 20),
            (true, [digits @ .., b'G' | b'g']) => (digits, 1 << 30),
            _ => (text, 1),
        };
        // Digits only: `parse` alone would also take a plus sign.
        if !text.iter().all(u8::is_ascii_digit) {
            return None;
        }
        let number: u64 = core::str::from_utf8(text).ok()?.parse().ok()?;
        let number = number.checked_mul(unit)?;
        let allowed = match kind {
            Kind::Number { min, max } | Kind::Bytes { min, max } | Kind::Threshold { min, max } => {
                (min..=max).contains(&number)
            }
            Kind::PowerOfTwo { min, max } => number.is_power_of_two() && (min..=max).contains(&number),
            Kind::Switch | Kind::Choice(_) => false,
        };
        allowed.then_some(number)
    }

    fn value(self) -> Value {
        Value::Number(self)
    }
}

/// A number of bytes from which something is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Threshold {
    /// What is measured to be best.
    Auto,
    /// Never.
    Off,
    /// This many.
    Bytes(u64),
}

impl OptionType for Threshold {
    fn read(text: &[u8], kind: Kind) -> Option<Self> {
        match text {
            b"auto" => Some(Threshold::Auto),
            b"off" => Some(Threshold::Off),
            _ => u64::read(text, kind).map(Threshold::Bytes),
        }
    }

    fn value(self) -> Value {
        match self {
            Threshold::Auto => Value::Choice("auto"),
            Threshold::Off => Value::Choice("off"),
            Threshold::Bytes(bytes) => Value::Number(bytes),
        }
    }
}

macro_rules! choice {
    ($(#[$meta:meta])* pub enum $name:ident { $( $(#[$doc:meta])* $variant:ident = $word:literal, )+ }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum $name { $( $(#[$doc])* $variant, )+ }

        impl $name {
            /// The words for the variants.
            pub const WORDS: &'static [&'static str] = &[ $( $word, )+ ];

            /// The word for this variant.
            #[must_use]
            pub const fn word(self) -> &'static str {
                match self { $( $name::$variant => $word, )+ }
            }
        }

        impl OptionType for $name {
            fn read(text: &[u8], _: Kind) -> Option<Self> {
                $( if text == $word.as_bytes() { return Some($name::$variant); } )+
                None
            }

            fn value(self) -> Value {
                Value::Choice(self.word())
            }
        }
    };
}

choice! {
    /// How a call waits for a lane to have news.
    pub enum Wait {
        /// Spin for a bounded, adaptive time, then sleep.
        Lazy = "lazy",
        /// Spin on: lowest latency, a whole CPU.
        Poll = "poll",
        /// Sleep at once: no CPU spent on hope.
        Sleep = "wait",
    }
}

choice! {
    /// Which connections may use lanes.
    pub enum Policy {
        /// All that can be carried faithfully.
        Default = "default",
        /// Only those that no packet filter or sandbox rule for TCP could concern.
        Strict = "strict",
    }
}

choice! {
    /// Whether lanes may be shared with processes of other users.
    pub enum ForeignUid {
        /// Where the kernel has `SO_PASSRIGHTS` (6.16), which makes it safe.
        Auto = "auto",
        /// Always.
        On = "on",
        /// Never.
        Off = "off",
    }
}

macro_rules! tunables {
    ( $( $key:ident : $kind_of:ty = $default:expr, $kind:expr, $sentence:literal; )+ ) => {
        /// All options with their values.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub struct Tunables {
            $( #[doc = $sentence] pub $key: $kind_of, )+
        }

        impl Tunables {
            /// What holds when nobody says anything.
            pub const DEFAULT: Tunables = Tunables { $( $key: $default, )+ };

            /// Sets one option.
            ///
            /// # Errors
            /// When there is no such option or it does not take the value; nothing changes then.
            pub fn set(&mut self, key: &[u8], value: &[u8]) -> Result<(), OptionError> {
                $(
                    if key == stringify!($key).as_bytes() {
                        self.$key = <$kind_of as OptionType>::read(value, $kind)
                            .ok_or(OptionError::BadValue(stringify!($key), $kind))?;
                        return Ok(());
                    }
                )+
                Err(OptionError::UnknownKey)
            }

            /// The value of one option.
            #[must_use]
            pub fn get(&self, key: &str) -> Option<Value> {
                match key {
                    $( stringify!($key) => Some(OptionType::value(self.$key)), )+
                    _ => None,
                }
            }
        }

        impl OptionSpec {
            /// The table, sorted as a reader would want it.
            #[must_use]
            pub fn all() -> [OptionSpec; OPTIONS_COUNT] {
                [ $( OptionSpec {
                    key: stringify!($key),
                    kind: $kind,
                    default: OptionType::value(Tunables::DEFAULT.$key),
                    sentence: $sentence,
                }, )+ ]
            }
        }

        /// How many options there are.
        pub const OPTIONS_COUNT: usize = [ $( stringify!($key), )+ ].len();
    };
}

tunables! {
    accelerate: bool = true, Kind::Switch,
        "Use lanes at all; off passes every call through to the kernel.";
    wait: Wait = Wait::Lazy, Kind::Choice(Wait::WORDS),
        "How a call waits: lazy spins while that pays and then sleeps, poll spins on, wait sleeps at once.";
    spin_ns_max: u64 = 50_000, Kind::Number { min: 0, max: 10_000_000 },
        "The longest a lazy call spins before it sleeps; the time of eight system calls more, and on an epoll set 4,000 for each further busy connection.";
    ring_bytes: u64 = 4_194_304, Kind::PowerOfTwo { min: 65_536, max: 16_777_216 },
        "The size of each direction's ring; memory is used only as far as a stream fills it.";
    turn_bytes: Threshold = Threshold::Auto, Kind::Threshold { min: 16_384, max: 8_388_608 },
        "After how many bytes a blocking sender of long messages lets a receiver on its own CPU read; auto measures whether that is faster, and off never does.";
    stream_bytes_max: u64 = 268_435_456, Kind::Bytes { min: 0, max: 1 << 40 },
        "How much memory the rings of long streams may keep in one process before idle ones give theirs back.";
    door_backlog: u64 = 256, Kind::Number { min: 1, max: 4096 },
        "How many clients may wait at a door; more of them go over TCP.";
    pool_lanes_max: u64 = 32, Kind::Number { min: 0, max: 1024 },
        "How many closed lanes are kept for the next connection to the same peer.";
    policy: Policy = Policy::Default, Kind::Choice(Policy::WORDS),
        "Which connections may use lanes; strict keeps those that packet filters or sandboxes could concern on TCP.";
    trust_root_listeners: bool = false, Kind::Switch,
        "Trust the door of a listener that root made and a less privileged user serves, whoever that user is.";
    foreign_uid: ForeignUid = ForeignUid::Auto, Kind::Choice(ForeignUid::WORDS),
        "Share lanes with processes of other users; auto does so where the kernel makes it safe.";
    bridge: bool = true, Kind::Switch,
        "Ask this host's bridge about destinations on other hosts.";
    bridge_uid: u64 = 0, Kind::Number { min: 0, max: 4_294_967_294 },
        "The user who is trusted to run the bridge, beside root.";
    bridge_short_lived: bool = false, Kind::Switch,
        "Carry connections over the bridge or the agent even to places where the last ones were short-lived.";
    agent: bool = true, Kind::Switch,
        "Ask this host's agent about destinations in other network namespaces, if there is one.";
    short_lived_lanes: bool = false, Kind::Switch,
        "Use lanes even for connections to loopback addresses where the last ones were short-lived and TCP was faster.";
    follow: bool = true, Kind::Switch,
        "Stay in the programs that a program starts, even when it cleans their environment.";
    stats: bool = true, Kind::Switch,
        "Keep a statistics file that beeline stat reads.";
}

impl Default for Tunables {
    fn default() -> Self {
        Self::DEFAULT
    }
}

impl Tunables {
    /// Reads a list of options over the defaults. What cannot be understood is left out, and the
    /// first such place is returned.
    #[must_use]
    pub fn parse_env(list: &[u8]) -> (Self, Option<ParseError>) {
        let mut tunables = Self::DEFAULT;
        let error = tunables.apply(list);
        (tunables, error)
    }

    /// Reads a list of options over the present values, like [`Tunables::parse_env`].
    pub fn apply(&mut self, list: &[u8]) -> Option<ParseError> {
        let mut first_error = None;
        let mut offset = 0_usize;
        for part in list.split(|&byte| byte == b',') {
            // Empty parts are allowed: lists are glued together with commas.
            if !part.is_empty()
                && let Err(error) = self.apply_one(part)
                && first_error.is_none()
            {
                first_error = Some(ParseError { offset, error });
            }
            // Part and comma lie within a slice, so the sum cannot reach beyond isize::MAX.
            offset = offset.saturating_add(part.len()).saturating_add(1);
        }
        first_error
    }

    /// Reads one `key=value`.
    ///
    /// # Errors
    /// When it cannot be understood; nothing changes then.
    pub fn apply_one(&mut self, option: &[u8]) -> Result<(), OptionError> {
        let equals = option.iter().position(|&byte| byte == b'=').ok_or(OptionError::NoEquals)?;
        let (key, value) = option.split_at_checked(equals).ok_or(OptionError::NoEquals)?;
        self.set(key, value.get(1..).unwrap_or_default())
    }
}

#[cfg(test)]
mod tests;
