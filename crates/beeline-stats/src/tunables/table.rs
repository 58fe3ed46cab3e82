//! The table itself, and what is made of it.

use super::error::OptionError;
use super::reach::Reach;
use super::value::{Kind, OptionType, Threshold, Value};

/// One row of the table.
#[derive(Clone, Copy, Debug)]
pub struct OptionSpec {
    /// The key.
    pub key: &'static str,
    /// What values it takes.
    pub kind: Kind,
    /// What it is when nobody says anything.
    pub default: Value,
    /// When it may be said.
    pub reach: Reach,
    /// What it does, for people.
    pub sentence: &'static str,
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

            #[inline]
            fn number(self) -> u64 {
                self as u64
            }

            #[inline]
            fn from_number(number: u64) -> Option<Self> {
                $( if number == $name::$variant as u64 { return Some($name::$variant); } )+
                None
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
    /// Whether both ends of a closed connection wait for the next one between the same two processes.
    pub enum Standing {
        /// From the second connection over a lane on.
        Auto = "auto",
        /// From the first on.
        On = "on",
        /// Never.
        Off = "off",
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
    ( $( $key:ident : $kind_of:ty = $default:expr, $kind:expr, $reach:expr, $sentence:literal; )+ ) => {
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

            /// The words that stand for all options in the statistics file, in the table's order.
            #[must_use]
            pub fn words(&self) -> [u64; OPTIONS_COUNT] {
                [ $( OptionType::number(self.$key).saturating_add(1), )+ ]
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
                    reach: $reach,
                    sentence: $sentence,
                }, )+ ]
            }
        }

        /// How many options there are.
        pub const OPTIONS_COUNT: usize = [ $( stringify!($key), )+ ].len();

        /// The keys, in the table's order.
        pub const KEYS: [&str; OPTIONS_COUNT] = [ $( stringify!($key), )+ ];

        /// What values they take, likewise.
        pub const KINDS: [Kind; OPTIONS_COUNT] = [ $( $kind, )+ ];

        /// When they may be said, likewise.
        pub const REACHES: [Reach; OPTIONS_COUNT] = [ $( $reach, )+ ];

        /// The options by their keys, each with its type: for those that may be said while a program runs.
        #[allow(non_upper_case_globals)]
        pub mod option {
            use super::*;

            $( #[doc = $sentence] pub const $key: Key<$kind_of> = Key::new(place(stringify!($key)), $kind, |all: &Tunables| all.$key); )+
        }
    };
}

tunables! {
    accelerate: bool = true, Kind::Switch, Reach::Running,
        "Use lanes at all; off passes every call through to the kernel.";
    wait: Wait = Wait::Lazy, Kind::Choice(Wait::WORDS), Reach::Connection,
        "How a call waits: lazy spins while that pays and then sleeps, poll spins on, wait sleeps at once.";
    spin_ns_max: u64 = 50_000, Kind::Number { min: 0, max: 10_000_000 }, Reach::Connection,
        "The longest a lazy call spins before it sleeps, in nanoseconds; the time that eight system calls take is added, and on an epoll set 4,000 for each busy connection after the first.";
    ring_bytes: u64 = 4_194_304, Kind::PowerOfTwo { min: 65_536, max: 16_777_216 }, Reach::Running,
        "The size of each direction's ring; memory is used only as far as a stream fills it.";
    turn_bytes: Threshold = Threshold::Auto, Kind::Threshold { min: 16_384, max: 8_388_608 }, Reach::Running,
        "After how many bytes a blocking sender of long messages lets a receiver on its own CPU read; auto measures whether that is faster, and off never does.";
    zcopy_threshold_bytes: Threshold = Threshold::Off, Kind::Threshold { min: 16_384, max: 1 << 30 }, Reach::Connection,
        "From which length on a message to a receiver that waits for it on another CPU is copied once, from memory to memory, where the kernel allows that; auto measures whether that is faster.";
    stream_bytes_max: u64 = 268_435_456, Kind::Bytes { min: 0, max: 1 << 40 }, Reach::Running,
        "How much memory the rings of long streams may keep in one process before idle ones give theirs back.";
    door_backlog: u64 = 256, Kind::Number { min: 1, max: 4096 }, Reach::Start,
        "How many clients may wait at a door; more of them go over TCP.";
    pool_lanes_max: u64 = 128, Kind::Number { min: 0, max: 1024 }, Reach::Running,
        "How many closed lanes are kept for the next connection to the same peer; more than 32 only as far as they take no more than a 128th of the limit of descriptors, and an eighth of what rings may.";
    standing: Standing = Standing::Auto, Kind::Choice(Standing::WORDS), Reach::Running,
        "Keep both ends of a closed connection for the next one between the same two processes; auto does so from the second on.";
    policy: Policy = Policy::Default, Kind::Choice(Policy::WORDS), Reach::Start,
        "Which connections may use lanes; strict keeps those that packet filters or sandboxes could concern on TCP.";
    trust_root_listeners: bool = false, Kind::Switch, Reach::Start,
        "Trust the door of a listener that root made and a less privileged user serves, whoever that user is.";
    foreign_uid: ForeignUid = ForeignUid::Auto, Kind::Choice(ForeignUid::WORDS), Reach::Start,
        "Share lanes with processes of other users; auto does so where the kernel makes it safe.";
    bridge: bool = true, Kind::Switch, Reach::Running,
        "Ask this host's bridge about destinations on other hosts.";
    bridge_uid: u64 = 0, Kind::Number { min: 0, max: 4_294_967_294 }, Reach::Start,
        "The user who is trusted to run the bridge, beside root.";
    bridge_short_lived: bool = false, Kind::Switch, Reach::Running,
        "Carry connections over the bridge or the agent even to places where the last ones were short-lived.";
    agent: bool = true, Kind::Switch, Reach::Start,
        "Ask this host's agent about destinations in other network namespaces, if there is one.";
    short_lived_lanes: bool = false, Kind::Switch, Reach::Rule,
        "Use lanes even for connections to loopback addresses where the last ones were short-lived and TCP was faster.";
    follow: bool = true, Kind::Switch, Reach::Start,
        "Stay in the programs that a program starts, even when it cleans their environment.";
    filters_tried: u64 = 0, Kind::Number { min: 0, max: 1024 }, Reach::Start,
        "Have lanes even in a program that begins under filters of system calls (seccomp), if there are no more of them than this; `beeline run` tries those that it is under, and sets it.";
    stats: bool = true, Kind::Switch, Reach::Start,
        "Keep a statistics file that beeline stat reads.";
    part_ends: bool = true, Kind::Switch, Reach::Running,
        "Move a thread that waits again and again for a peer on its own CPU to an idle one that it may use, once.";
}

/// One option: its place in the table, and how to read it.
#[derive(Clone, Copy, Debug)]
pub struct Key<T: 'static> {
    index: usize,
    place: usize,
    kind: Kind,
    of: fn(&Tunables) -> T,
}

impl<T: OptionType> Key<T> {
    pub(super) const fn new(index: usize, kind: Kind, of: fn(&Tunables) -> T) -> Self {
        Self { index, place: connection_place(index), kind, of }
    }

    /// The option's place in the table.
    #[must_use]
    #[inline]
    pub const fn index(&self) -> usize {
        self.index
    }

    /// The option's place among those that may be said for one connection. Beyond them if it is none.
    #[must_use]
    #[inline]
    pub const fn place(&self) -> usize {
        self.place
    }

    /// The greatest number that it takes.
    #[must_use]
    pub const fn greatest(&self) -> u64 {
        self.kind.greatest()
    }

    /// What the option is among those that a program began with.
    #[inline]
    pub fn of(&self, tunables: &Tunables) -> T {
        (self.of)(tunables)
    }

    /// What a word of the statistics file says; `None` if that is nothing, or impossible.
    #[inline]
    pub fn read_word(&self, word: u64) -> Option<T> {
        word.checked_sub(1).filter(|number| self.kind.admits(*number)).and_then(T::from_number)
    }

    /// The word for a value.
    #[inline]
    pub fn word(&self, value: T) -> u64 {
        value.number().saturating_add(1)
    }
}

/// How many options before this place of the table may be said for one connection.
#[allow(
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    reason = "while compiling, where a panic is an error"
)]
const fn connection_place(index: usize) -> usize {
    let (mut place, mut before) = (0, 0);
    while before < index && before < OPTIONS_COUNT {
        if matches!(REACHES[before], Reach::Connection) {
            place += 1;
        }
        before += 1;
    }
    place
}

/// The place of a key in the table.
#[allow(
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    reason = "while compiling, where a panic is an error"
)]
const fn place(key: &str) -> usize {
    let mut index = 0;
    while index < OPTIONS_COUNT {
        if same(KEYS[index].as_bytes(), key.as_bytes()) {
            return index;
        }
        index += 1;
    }
    OPTIONS_COUNT
}

#[allow(
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    reason = "while compiling, where a panic is an error"
)]
const fn same(one: &[u8], other: &[u8]) -> bool {
    let mut index = 0;
    while index < one.len() && index < other.len() && one[index] == other[index] {
        index += 1;
    }
    index == one.len() && index == other.len()
}

/// How many options may be said for one connection.
pub const CONNECTION_OPTIONS: usize = connection_place(OPTIONS_COUNT);

/// The place in the table of the option that has this place among those that may be said for one connection.
#[must_use]
pub fn connection_option(place: usize) -> Option<usize> {
    (0..OPTIONS_COUNT).filter(|index| matches!(REACHES.get(*index), Some(Reach::Connection))).nth(place)
}

/// Which keys a list says, valid ones or not: a bit each, in the table's order.
#[must_use]
pub fn said(list: &[u8]) -> u64 {
    let keys = list.split(|&byte| byte == b',').filter_map(|part| part.split(|&byte| byte == b'=').next());
    keys.filter_map(|key| KEYS.iter().position(|known| known.as_bytes() == key))
        .fold(0, |said, index| said | 1 << (index & 63))
}
