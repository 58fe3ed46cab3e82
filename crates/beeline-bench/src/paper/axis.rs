//! The values that axes of a plan can have. Each is read by a type that refuses what cannot be, so that the TOML reader
//! names the line and the column.

use std::fmt;

use beeline_stats::tunables::{OptionSpec, Reach};
use clap::ValueEnum;
use serde::de::{Error, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

/// The largest message.
const BYTES_MAX: u64 = 64 << 20;
const STREAMS_MAX: u64 = 64;
/// Socket buffers: from what every kernel takes to what none gives.
/// As the bridges take them.
const CHUNK_BYTES: std::ops::RangeInclusive<u64> = 4096..=16 << 20;
const BUFFER_BYTES: std::ops::RangeInclusive<u64> = 4096..=1 << 30;
/// Messages a second that a timer can pace.
const PACE: std::ops::RangeInclusive<u64> = 1..=20_000;
/// MTUs that Ethernet and veth have.
const MTU: std::ops::RangeInclusive<u64> = 576..=65_535;
/// NetPIPE takes a size between two powers of two as well, and each size with so many bytes more and less.
const NETPIPE_PERTURBATION: u64 = 3;

/// `8`, `"64K"`, `"4M"`.
pub fn parse_bytes(text: &str) -> Result<u64, String> {
    let wrong = || format!("`{text}` is no number of bytes: expected one such as 64, \"64K\" or \"4M\"");
    let (digits, unit) = match text.as_bytes() {
        [.., b'K' | b'k'] => (&text[..text.len() - 1], 1 << 10),
        [.., b'M' | b'm'] => (&text[..text.len() - 1], 1 << 20),
        [.., b'G' | b'g'] => (&text[..text.len() - 1], 1 << 30),
        _ => (text, 1),
    };
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(wrong());
    }
    digits.parse::<u64>().ok().and_then(|number| number.checked_mul(unit)).ok_or_else(wrong)
}

/// As people write it: `64 KiB`.
pub fn show_bytes(bytes: u64) -> String {
    match bytes {
        b if b >= 1 << 20 && b.is_multiple_of(1 << 20) => format!("{} MiB", b >> 20),
        b if b >= 1 << 10 && b.is_multiple_of(1 << 10) => format!("{} KiB", b >> 10),
        b => format!("{b} B"),
    }
}

fn message(bytes: u64) -> Result<u64, String> {
    if (1..=BYTES_MAX).contains(&bytes) {
        return Ok(bytes);
    }
    Err(format!("a message of {bytes} bytes is not possible: expected 1 to {}", show_bytes(BYTES_MAX)))
}

/// A number or a word, as TOML has them.
enum Scalar {
    Number(i64),
    Real(f64),
    Word(String),
}

impl<'de> Deserialize<'de> for Scalar {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Any;
        impl Visitor<'_> for Any {
            type Value = Scalar;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a number or a word")
            }
            fn visit_i64<E: Error>(self, number: i64) -> Result<Scalar, E> {
                Ok(Scalar::Number(number))
            }
            fn visit_i128<E: Error>(self, number: i128) -> Result<Scalar, E> {
                Err(E::custom(format!("{number} is larger than any number here can be")))
            }
            fn visit_f64<E: Error>(self, number: f64) -> Result<Scalar, E> {
                Ok(Scalar::Real(number))
            }
            fn visit_str<E: Error>(self, word: &str) -> Result<Scalar, E> {
                Ok(Scalar::Word(word.to_owned()))
            }
        }
        deserializer.deserialize_any(Any)
    }
}

impl Scalar {
    fn bytes(self) -> Result<u64, String> {
        match self {
            Scalar::Number(number) => {
                u64::try_from(number).map_err(|_| format!("{number} is no number of bytes: expected 1 or more"))
            }
            Scalar::Real(number) => Err(format!("{number} is no number of bytes: expected a whole one")),
            Scalar::Word(word) => parse_bytes(&word),
        }
    }
}

/// Sizes of messages: a list, or a range with steps: `"1..4M doubling"`, `"1..4M netpipe"`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sizes(pub Vec<u64>);

impl Sizes {
    fn range(text: &str) -> Result<Self, String> {
        let wrong = || {
            format!(
                "`{text}` names no sizes: expected a list, or a range such as \"1..4M doubling\" or \"1..4M netpipe\""
            )
        };
        let (range, steps) = text.split_once(' ').ok_or_else(wrong)?;
        let (first, last) = range.split_once("..").ok_or_else(wrong)?;
        let (first, last) = (message(parse_bytes(first)?)?, message(parse_bytes(last)?)?);
        if first > last {
            return Err(format!("`{range}` has no sizes in it: expected the smaller one first"));
        }
        let mut sizes = match steps {
            "doubling" => doubling(first, last),
            "netpipe" => netpipe(first, last),
            _ => return Err(wrong()),
        };
        // The end of the range is meant to be measured, whatever the steps.
        sizes.push(last);
        sizes.dedup();
        Ok(Sizes(sizes))
    }

    /// So many of them, the first and the last among them.
    pub fn thin(&self, most: usize) -> Vec<u64> {
        let last = self.0.len().saturating_sub(1);
        if last < most {
            return self.0.clone();
        }
        (0..most).map(|index| self.0[index * last / (most - 1)]).collect()
    }
}

fn doubling(first: u64, last: u64) -> Vec<u64> {
    std::iter::successors(Some(first), |size| Some(size * 2)).take_while(|size| *size <= last).collect()
}

/// 1, 2, 3, 4, 6, 8, 12, 13, 16, 19, 21, 24, 27, …: powers of two and what lies in the middle between them, from 16 on
/// with three bytes more and less, as NetPIPE's tables show them.
fn netpipe(first: u64, last: u64) -> Vec<u64> {
    let mut sizes = std::collections::BTreeSet::new();
    for power in std::iter::successors(Some(1u64), |size| Some(size * 2)).take_while(|size| *size <= last) {
        for size in [power, power + power / 2] {
            sizes.insert(size);
            if size >= 16 {
                sizes.extend([size - NETPIPE_PERTURBATION, size + NETPIPE_PERTURBATION]);
            }
        }
    }
    sizes.into_iter().filter(|size| (first..=last).contains(size)).collect()
}

impl<'de> Deserialize<'de> for Sizes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Either;
        impl<'de> Visitor<'de> for Either {
            type Value = Sizes;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list of sizes, or a range such as \"1..4M doubling\"")
            }
            fn visit_str<E: Error>(self, text: &str) -> Result<Sizes, E> {
                Sizes::range(text).map_err(E::custom)
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Sizes, A::Error> {
                let mut sizes = Vec::new();
                while let Some(Message(size)) = list.next_element()? {
                    sizes.push(size);
                }
                Ok(Sizes(sizes))
            }
        }
        deserializer.deserialize_any(Either)
    }
}

/// What is measured beside TCP and Beeline, through interfaces of its own.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Beside {
    /// A program's own way through shared memory
    SharedMemory,
    /// UCX through shared memory
    Ucx,
    /// libfabric: its provider for shared memory; of Open MPI the one for TCP
    Libfabric,
    /// RDMA verbs
    Verbs,
}

impl Beside {
    /// As it stands at the head of a column.
    pub fn title(self) -> &'static str {
        match self {
            Beside::SharedMemory => "shared memory",
            Beside::Ucx => "UCX",
            Beside::Libfabric => "libfabric",
            Beside::Verbs => "verbs",
        }
    }
}

/// Reads a scalar by a function that says what is wrong.
macro_rules! checked {
    ($(#[$doc:meta])* $name:ident($inner:ty), $read:expr) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub struct $name(pub $inner);

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let read: fn(Scalar) -> Result<$inner, String> = $read;
                read(Scalar::deserialize(deserializer)?).map($name).map_err(D::Error::custom)
            }
        }
    };
}

checked!(
    /// The size of one message.
    Message(u64),
    |scalar| message(scalar.bytes()?)
);
checked!(
    /// How many streams at once.
    Streams(usize),
    |scalar| match scalar {
        Scalar::Number(number) if (1..=STREAMS_MAX as i64).contains(&number) => Ok(number as usize),
        _ => Err(format!("expected a number of streams from 1 to {STREAMS_MAX}")),
    }
);
checked!(
    /// SO_SNDBUF and SO_RCVBUF; `"default"` leaves them to the kernel.
    Buffer(Option<u64>),
    |scalar| match scalar {
        Scalar::Word(word) if word == "default" => Ok(None),
        scalar => Some(scalar.bytes()?).filter(|bytes| BUFFER_BYTES.contains(bytes)).map(Some).ok_or_else(|| {
            let [least, most] = [BUFFER_BYTES.start(), BUFFER_BYTES.end()].map(|bytes| show_bytes(*bytes));
            format!("expected \"default\" or a buffer of {least} to {most}")
        }),
    }
);
checked!(
    /// Messages a second; `"full"` is as many as there can be.
    Pace(Option<u32>),
    |scalar| match scalar {
        Scalar::Word(word) if word == "full" => Ok(None),
        Scalar::Number(number) if u64::try_from(number).is_ok_and(|number| PACE.contains(&number)) => {
            Ok(Some(number as u32))
        }
        _ => Err(format!("expected \"full\" or {} to {} messages a second", PACE.start(), PACE.end())),
    }
);
checked!(
    /// The interfaces' MTU; `"as-is"` leaves it.
    Mtu(Option<u32>),
    |scalar| match scalar {
        Scalar::Word(word) if word == "as-is" => Ok(None),
        Scalar::Number(number) if u64::try_from(number).is_ok_and(|number| MTU.contains(&number)) => {
            Ok(Some(number as u32))
        }
        _ => Err(format!("expected \"as-is\" or an MTU of {} to {}", MTU.start(), MTU.end())),
    }
);
checked!(
    /// The largest piece that the bridges move at once; `"default"` leaves it to them.
    Chunk(Option<u64>),
    |scalar| match scalar {
        Scalar::Word(word) if word == "default" => Ok(None),
        scalar => Some(scalar.bytes()?).filter(|bytes| CHUNK_BYTES.contains(bytes)).map(Some).ok_or_else(|| {
            let [least, most] = [CHUNK_BYTES.start(), CHUNK_BYTES.end()].map(|bytes| show_bytes(*bytes));
            format!("expected \"default\" or chunks of {least} to {most}")
        }),
    }
);
/// What the rails between two hosts are limited to, as tc takes rates: `"800mbit"`, `"300mbit+800mbit"`; `"as-are"` is
/// any.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rails(pub Option<String>);

impl<'de> Deserialize<'de> for Rails {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let expected = "expected \"as-are\" or rates of rails such as \"800mbit\" or \"300mbit+800mbit\"";
        match Scalar::deserialize(deserializer)? {
            Scalar::Word(word) if word == "as-are" => Ok(Rails(None)),
            Scalar::Word(word) => {
                let rates: Option<Vec<u64>> = word.split('+').map(parse_rate).collect();
                let rates = rates.ok_or_else(|| D::Error::custom(format!("`{word}` are no rails: {expected}")))?;
                Ok(Rails(Some(show_rates(rates))))
            }
            _ => Err(D::Error::custom(expected)),
        }
    }
}

/// Bits a second, of what tc takes.
fn parse_rate(text: &str) -> Option<u64> {
    let (digits, unit) = [("gbit", 1_000_000_000), ("mbit", 1_000_000), ("kbit", 1000)]
        .into_iter()
        .find_map(|(unit, factor)| Some((text.strip_suffix(unit)?, factor)))?;
    let is_number = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    digits.parse::<u64>().ok().filter(|rate| is_number && *rate > 0)?.checked_mul(unit)
}

/// Rails by their rates in bits a second, the slowest first.
pub fn show_rates(mut rates: Vec<u64>) -> String {
    rates.sort_unstable();
    let show = |rate: &u64| match rate {
        rate if rate.is_multiple_of(1_000_000_000) => format!("{}gbit", rate / 1_000_000_000),
        rate if rate.is_multiple_of(1_000_000) => format!("{}mbit", rate / 1_000_000),
        rate => format!("{}kbit", rate / 1000),
    };
    rates.iter().map(show).collect::<Vec<_>>().join("+")
}

/// What is turned while a stream runs, from which value to which: `"turn_bytes=off..256K"`, `"pull_min=64M..4K"`.
/// Without the first value it is what the process has anyway.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Turn {
    pub key: String,
    pub from: Option<String>,
    pub to: String,
    /// Whether it is a setting of the bridges, not an option of the library.
    pub is_of_bridges: bool,
}

impl Turn {
    /// # Errors
    /// What was expected.
    pub fn parse(text: &str) -> Result<Turn, String> {
        let expected = "expected KEY=VALUE or KEY=FROM..TO with an option of the library that may be set while a program runs, or \
                        pull_min=FROM..TO of the bridges";
        let (key, values) = text.split_once('=').ok_or_else(|| format!("`{text}` turns nothing: {expected}"))?;
        let (from, to) = values.split_once("..").map_or((None, values), |(from, to)| (Some(from), to));
        let is_of_bridges = key == PULL_MIN;
        let value = |value: &str| match is_of_bridges {
            true => parse_bytes(value).map(|bytes| bytes.to_string()),
            false => value_of_library(key, value).map_err(|why| format!("`{text}`: {why}; {expected}")),
        };
        let (from, to) = (from.map(value).transpose()?, value(to)?);
        if is_of_bridges && from.is_none() {
            return Err(format!("`{text}` does not say from where: expected {PULL_MIN}=FROM..TO"));
        }
        Ok(Turn { key: key.to_owned(), from, to, is_of_bridges })
    }
}

/// The bridges' setting that a plan can turn.
const PULL_MIN: &str = "pull_min";

/// A value that an option of the library takes while a program runs.
fn value_of_library(key: &str, value: &str) -> Result<String, String> {
    let spec = OptionSpec::all().into_iter().find(|spec| spec.key == key);
    let spec = spec.ok_or_else(|| format!("there is no option {key}"))?;
    if spec.reach == Reach::Start {
        return Err(format!("{key} is read when a program starts"));
    }
    match value == "default" || spec.kind.word_of_text(value.as_bytes()).is_some() {
        true => Ok(value.to_owned()),
        false => Err(format!("{key} is {}, not `{value}`", spec.kind)),
    }
}

/// What a plan has of a [`Turn`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Turned(pub String);

impl<'de> Deserialize<'de> for Turned {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        Turn::parse(&text).map_err(D::Error::custom)?;
        Ok(Turned(text))
    }
}

checked!(
    /// A share in percent: `5`, `99.5`, `"5%"`.
    Percent(Hundredths),
    |scalar| match scalar {
        Scalar::Number(number) => parse_percent(&number.to_string()),
        Scalar::Real(number) => parse_percent(&number.to_string()),
        Scalar::Word(word) => parse_percent(&word),
    }
);

/// Hundredths of a percent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Hundredths(pub u32);

impl Hundredths {
    pub fn share(self) -> f64 {
        f64::from(self.0) / 1e4
    }
}

impl fmt::Display for Hundredths {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} %", f64::from(self.0) / 1e2)
    }
}

/// More than 0 and less than 100 percent.
pub fn parse_percent(text: &str) -> Result<Hundredths, String> {
    let number = text.trim_end_matches('%').trim_end().parse::<f64>().ok().filter(|n| *n > 0.0 && *n < 100.0);
    let hundredths = number.map(|number| (number * 100.0).round() as u32).filter(|hundredths| *hundredths > 0);
    hundredths.map(Hundredths).ok_or_else(|| format!("`{text}` is no percentage between 0 and 100"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_have_the_papers_steps() {
        assert_eq!(Sizes::range("1..4M doubling").unwrap().0.len(), 23);
        assert_eq!(Sizes::range("3..20 doubling").unwrap().0, [3, 6, 12, 20]);
        // What NetPIPE 3.6.2 prints with -u 128, in the Sockets-MX document.
        let published =
            [1, 2, 3, 4, 6, 8, 12, 13, 16, 19, 21, 24, 27, 29, 32, 35, 45, 48, 51, 61, 64, 67, 93, 96, 99, 125, 128];
        assert_eq!(Sizes::range("1..128 netpipe").unwrap().0, published);
        for wrong in ["1..4M", "4..1 doubling", "0..8 doubling", "1..8 tripling", "1-8 doubling", "1..4T doubling", ""]
        {
            assert!(Sizes::range(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_thinned_axis_keeps_its_ends() {
        let all = Sizes::range("1..4M doubling").unwrap();
        let few = all.thin(5);
        assert_eq!((few.len(), few[0], few[4]), (5, 1, 4 << 20));
        assert_eq!(Sizes(vec![8, 64]).thin(5), [8, 64]);
    }

    #[test]
    fn numbers_of_bytes() {
        assert_eq!(parse_bytes("64K"), Ok(65_536));
        assert_eq!(show_bytes(65_536), "64 KiB");
        assert_eq!(show_bytes(1000), "1000 B");
        for wrong in ["", "K", "-1", "+1", "1.5M", "99999999999999G", "1 K"] {
            assert!(parse_bytes(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn rails_have_one_name_each() {
        let name = |text: &str| text.split('+').map(parse_rate).collect::<Option<Vec<_>>>().map(show_rates);
        assert_eq!(name("800mbit+300mbit").as_deref(), Some("300mbit+800mbit"));
        assert_eq!(name("1gbit").as_deref(), Some("1gbit"));
        assert_eq!(name("1500000kbit").as_deref(), Some("1500mbit"));
        for wrong in ["", "800", "mbit", "0mbit", "-1mbit", "1mbit+", "99999999999999gbit"] {
            assert_eq!(name(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn what_is_turned_can_be() {
        let turn = Turn::parse("turn_bytes=off..256K").unwrap();
        assert_eq!((turn.from.as_deref(), turn.to.as_str(), turn.is_of_bridges), (Some("off"), "256K", false));
        assert_eq!(Turn::parse("turn_bytes=256K").unwrap().from, None);
        let turn = Turn::parse("pull_min=64M..4K").unwrap();
        assert_eq!((turn.from.as_deref(), turn.to.as_str(), turn.is_of_bridges), (Some("67108864"), "4096", true));
        for wrong in
            ["", "turn_bytes", "turn_bytes=", "turn_bytes=5", "turn_bytes=off..", "pull_min=4K", "pull_min=x..4K"]
        {
            assert!(Turn::parse(wrong).is_err(), "{wrong}");
        }
        assert!(Turn::parse("stats=off").unwrap_err().contains("when a program starts"));
        assert!(Turn::parse("colour=red").unwrap_err().contains("no option colour"));
    }

    #[test]
    fn percentages() {
        assert_eq!(parse_percent("99.5").unwrap(), Hundredths(9950));
        assert_eq!(parse_percent("5%").unwrap().share(), 0.05);
        assert_eq!(parse_percent("99.5%").unwrap().to_string(), "99.5 %");
        for wrong in ["0", "100", "-5", "x", "%", "NaN", "0.001"] {
            assert!(parse_percent(wrong).is_err(), "{wrong}");
        }
    }
}
