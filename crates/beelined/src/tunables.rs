//! The settings that can be changed while the bridge runs, as one table: configuration, `beelined set`, status
//! and documentation are all made from it.

#![forbid(unsafe_code)]

use std::fmt;
use std::ops::RangeInclusive;

use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, Error as _, MapAccess, Visitor};

/// One setting.
#[derive(Debug)]
pub struct Spec {
    /// Its name.
    pub key: &'static str,
    /// What it is when nobody sets it.
    pub default: u64,
    /// What it may be.
    pub range: RangeInclusive<u64>,
    /// What it does.
    pub sentence: &'static str,
    field: fn(&mut Tunables) -> &mut u64,
}

/// Declares the fields, their accessors and the table together, so that none can be forgotten.
macro_rules! tunables {
    ($($key:ident = $default:expr, $range:expr, $sentence:literal;)*) => {
        /// The settings, each in the unit its name ends with (bytes when it says nothing).
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub struct Tunables {
            $(#[doc = $sentence] pub $key: u64,)*
        }

        impl Tunables {
            /// What holds when nobody sets anything.
            pub const DEFAULT: Self = Self { $($key: $default,)* };
        }

        /// All settings, in the order in which they are shown.
        pub static SPECS: &[Spec] = &[
            $(Spec {
                key: stringify!($key),
                default: $default,
                range: $range,
                sentence: $sentence,
                field: |tunables| &mut tunables.$key,
            },)*
        ];
    };
}

tunables! {
    inline_max = 4096, 0..=8000,
        "Up to this many bytes travel inside the message itself.";
    pull_min = 1_048_576, 4096..=u32::MAX as u64,
        "Pieces of at least this many bytes are read by the receiver, smaller ones are written by the sender.";
    pull_over_tcp = 0, 0..=1,
        "1: lets receivers read over the tcp provider, too, which gains nothing; libfabric before 1.18 mixes up bytes if a link is lost meanwhile.";
    chunk = 262_144, 4096..=16_777_216,
        "A large piece is moved in chunks of this many bytes, over all rails there are.";
    stripe_min = 131_072, 4096..=u32::MAX as u64,
        "Once this many bytes of a stream are under way, its pieces go over all rails there are; before, they stay on the rail of their connection.";
    registered_max = 0, 0..=1 << 50,
        "Each rail registers at most this many bytes of rings; large pieces of further streams are copied into messages. 0: a quarter of the host's memory.";
    peer_connections_max = 65_536, 1..=1_048_576,
        "How many connections are carried with one peer; what would be more is left to TCP.";
    compare_s = 10, 0..=86_400,
        "How often the way to a host in use is compared with TCP, in seconds; new connections go by TCP where that is faster. 0: never.";
    drain_s = 60, 0..=604_800,
        "How long connections may go on when the bridge is told to stop (SIGTERM, `beelined drain`), in seconds.";
    spin_us = 50, 0..=1_000_000,
        "How long the bridge looks for news, in microseconds, before it sleeps.";
    measure = 0, 0..=1,
        "1: takes the time of the bridge's own share of each message's trip, which the status then tells.";
}

impl Default for Tunables {
    fn default() -> Self {
        Self::DEFAULT
    }
}

impl Tunables {
    /// Sets one. The error is a sentence for whoever asked.
    pub fn set(&mut self, key: &str, value: &str) -> Result<(), String> {
        let spec = find(key)?;
        // Beyond u64 is beyond every range, and the message says which.
        let value = value.parse().ok().filter(|value| spec.range.contains(value)).ok_or_else(|| spec.complaint())?;
        *(spec.field)(self) = value;
        Ok(())
    }

    /// The value of one.
    pub fn get(mut self, spec: &Spec) -> u64 {
        *(spec.field)(&mut self)
    }
}

impl Spec {
    fn complaint(&self) -> String {
        format!("{} must be a number from {} to {}", self.key, self.range.start(), self.range.end())
    }
}

fn find(key: &str) -> Result<&'static Spec, String> {
    SPECS.iter().find(|spec| spec.key == key).ok_or_else(|| {
        let likeness = |spec: &Spec| strsim::jaro_winkler(spec.key, key);
        let shown = key.chars().take(40).collect::<String>();
        let shown = shown.escape_debug();
        match SPECS.iter().max_by(|a, b| likeness(a).total_cmp(&likeness(b))) {
            Some(nearest) if likeness(nearest) > 0.75 => {
                format!("there is no setting `{shown}`; did you mean `{}`?", nearest.key)
            }
            _ => {
                let keys: Vec<&str> = SPECS.iter().map(|spec| spec.key).collect();
                format!("there is no setting `{shown}`, only {}", keys.join(", "))
            }
        }
    })
}

impl<'de> Deserialize<'de> for Tunables {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Table;
        impl<'de> Visitor<'de> for Table {
            type Value = Tunables;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a table of settings")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Tunables, A::Error> {
                let mut tunables = Tunables::DEFAULT;
                while let Some(Key(spec)) = map.next_key()? {
                    *(spec.field)(&mut tunables) = map.next_value_seed(spec)?;
                }
                Ok(tunables)
            }
        }
        deserializer.deserialize_map(Table)
    }
}

/// A value in its range: another is an error at its own place in the file.
impl<'de> DeserializeSeed<'de> for &'static Spec {
    type Value = u64;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<u64, D::Error> {
        deserializer.deserialize_u64(Number(self))
    }
}

struct Number(&'static Spec);

impl Visitor<'_> for Number {
    type Value = u64;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a number from {} to {}", self.0.range.start(), self.0.range.end())
    }

    fn visit_i64<E: serde::de::Error>(self, value: i64) -> Result<u64, E> {
        // A negative one is out of every range.
        let value = u64::try_from(value).ok().filter(|value| self.0.range.contains(value));
        value.ok_or_else(|| E::custom(self.0.complaint()))
    }

    fn visit_u64<E: serde::de::Error>(self, value: u64) -> Result<u64, E> {
        self.visit_i64(i64::try_from(value).unwrap_or(-1))
    }
}

/// A key that exists: an unknown one is an error at its own place in the file.
struct Key(&'static Spec);

impl<'de> Deserialize<'de> for Key {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let key = String::deserialize(deserializer)?;
        find(&key).map(Self).map_err(D::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_are_in_range_and_what_the_table_says() {
        for spec in SPECS {
            assert!(spec.range.contains(&spec.default), "{}", spec.key);
            assert_eq!(Tunables::DEFAULT.get(spec), spec.default);
            assert!(spec.sentence.ends_with('.'));
        }
    }

    #[test]
    fn values_are_checked() {
        let mut tunables = Tunables::DEFAULT;
        tunables.set("spin_us", "7").unwrap();
        assert_eq!(tunables.spin_us, 7);
        for bad in ["-1", "x", "1000001", "99999999999999999999999", ""] {
            assert_eq!(tunables.set("spin_us", bad), Err("spin_us must be a number from 0 to 1000000".into()));
        }
        assert_eq!(tunables.spin_us, 7);
        assert_eq!(tunables.set("spin", "1"), Err("there is no setting `spin`; did you mean `spin_us`?".into()));
        let keys: Vec<&str> = SPECS.iter().map(|spec| spec.key).collect();
        assert!(tunables.set("zzz", "1").unwrap_err().ends_with(&format!("only {}", keys.join(", "))));
    }

    #[test]
    fn they_are_read_from_a_table() {
        let tunables: Tunables = toml::from_str("chunk = 8192").unwrap();
        assert_eq!(tunables, Tunables { chunk: 8192, ..Tunables::DEFAULT });
        assert!(toml::from_str::<Tunables>("chunks = 8192").is_err());
        assert!(toml::from_str::<Tunables>("chunk = 1").is_err());
    }
}
