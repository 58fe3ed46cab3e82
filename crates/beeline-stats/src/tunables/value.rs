//! What values options take, and how a value is written: in text, and as the word that the statistics file holds.

use core::fmt;

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
    /// `auto`, `off`, or a number of bytes within these bounds, both included. The least is above [`Threshold::WORDS`].
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

impl Kind {
    /// Whether the number stands for a value: of a switch 0 or 1, of words their place in the list.
    #[must_use]
    pub const fn admits(self, number: u64) -> bool {
        match self {
            Kind::Switch => number <= 1,
            Kind::Choice(words) => number < words.len() as u64,
            Kind::Number { min, max } | Kind::Bytes { min, max } => min <= number && number <= max,
            Kind::PowerOfTwo { min, max } => number.is_power_of_two() && min <= number && number <= max,
            Kind::Threshold { min, max } => number < Threshold::WORDS.len() as u64 || min <= number && number <= max,
        }
    }

    /// The greatest number that stands for a value.
    #[must_use]
    pub const fn greatest(self) -> u64 {
        match self {
            Kind::Switch => 1,
            Kind::Choice(words) => (words.len() as u64).saturating_sub(1),
            Kind::Number { max, .. }
            | Kind::Bytes { max, .. }
            | Kind::PowerOfTwo { max, .. }
            | Kind::Threshold { max, .. } => max,
        }
    }

    /// The value that a word of the statistics file stands for: one more than its number, so that zero is none.
    #[must_use]
    pub fn value_of_word(self, word: u64) -> Option<Value> {
        let number = word.checked_sub(1).filter(|number| self.admits(*number))?;
        match self {
            Kind::Switch => Some(Value::Switch(number == 1)),
            Kind::Choice(words) => words.get(usize::try_from(number).ok()?).copied().map(Value::Choice),
            Kind::Number { .. } | Kind::Bytes { .. } | Kind::PowerOfTwo { .. } => Some(Value::Number(number)),
            Kind::Threshold { .. } => Threshold::from_number(number).map(OptionType::value),
        }
    }

    /// The word that stands for a value of this kind in its text form.
    #[must_use]
    pub fn word_of_text(self, text: &[u8]) -> Option<u64> {
        let number = match self {
            Kind::Switch => u64::from(bool::read(text, self)?),
            Kind::Choice(words) => words.iter().position(|word| word.as_bytes() == text)? as u64,
            Kind::Number { .. } | Kind::Bytes { .. } | Kind::PowerOfTwo { .. } => u64::read(text, self)?,
            Kind::Threshold { .. } => Threshold::read(text, self)?.number(),
        };
        number.checked_add(1)
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

/// A type that an option can have.
pub trait OptionType: Copy {
    /// Reads its text form.
    fn read(text: &[u8], kind: Kind) -> Option<Self>;
    /// The value, of whatever type.
    fn value(self) -> Value;
    /// The number that stands for it ([`Kind::admits`]).
    fn number(self) -> u64;
    /// What an admitted number stands for.
    fn from_number(number: u64) -> Option<Self>;
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

    #[inline]
    fn number(self) -> u64 {
        u64::from(self)
    }

    #[inline]
    fn from_number(number: u64) -> Option<Self> {
        Some(number == 1)
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

    #[inline]
    fn number(self) -> u64 {
        self
    }

    #[inline]
    fn from_number(number: u64) -> Option<Self> {
        Some(number)
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

impl Threshold {
    /// The words for what is no number of bytes; as numbers, their places in this list stand for them.
    pub const WORDS: &'static [&'static str] = &["auto", "off"];
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

    #[inline]
    fn number(self) -> u64 {
        match self {
            Threshold::Auto => 0,
            Threshold::Off => 1,
            Threshold::Bytes(bytes) => bytes,
        }
    }

    #[inline]
    fn from_number(number: u64) -> Option<Self> {
        Some(match number {
            0 => Threshold::Auto,
            1 => Threshold::Off,
            bytes => Threshold::Bytes(bytes),
        })
    }
}
