//! Reading a statistics file: a private copy of bytes that somebody else wrote.

use core::mem::offset_of;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use crate::layout::{
    ConnectionSlot, HEADER_BYTES, LIST_ENTRIES_MAX, MAGIC, OWN_MAX, PROGRAM_BYTES, SLOT_BYTES, SLOT_LIVE, SLOTS_MAX,
    StatsHeader, VERSION,
};
use crate::role::{Family, Role};
use crate::tunables::{KINDS, Value, connection_option};
use crate::{Counter, Poison, Reason};

/// Why bytes are no statistics file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LayoutError {
    /// Shorter than a header.
    Short,
    /// All of the header is there, but not its magic number: not ready yet, or something else.
    Magic,
    /// Written by another version of Beeline.
    Version(u32),
    /// The sizes or list lengths in the header are not those of this version.
    Sizes,
}

impl core::fmt::Display for LayoutError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            LayoutError::Short => f.write_str("it is shorter than a header"),
            LayoutError::Magic => f.write_str("it does not begin with the magic number"),
            LayoutError::Version(version) => {
                write!(f, "it has version {version}, this program reads version {VERSION}")
            }
            LayoutError::Sizes => f.write_str("the sizes in its header are impossible"),
        }
    }
}

impl core::error::Error for LayoutError {}

/// A checked view of one process's statistics.
#[derive(Clone, Copy, Debug)]
pub struct Snapshot<'a> {
    header: &'a [u8],
    slots: &'a [u8],
}

impl<'a> Snapshot<'a> {
    /// Checks a copy of a file. The header must be whole; slots are taken as far as both the
    /// header's claim and the bytes reach, so a file that grows while it is read is no error.
    ///
    /// # Errors
    /// [`LayoutError`] says what is wrong with the header.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, LayoutError> {
        let (header, rest) = bytes.split_at_checked(HEADER_BYTES).ok_or(LayoutError::Short)?;
        let snapshot = Self { header, slots: &[] };
        if snapshot.header_u64(offset_of!(StatsHeader, magic)) != MAGIC {
            return Err(LayoutError::Magic);
        }
        let version = snapshot.header_u32(offset_of!(StatsHeader, version));
        if version != VERSION {
            return Err(LayoutError::Version(version));
        }
        let sizes_are_known = to_usize(snapshot.header_u32(offset_of!(StatsHeader, header_bytes))) == HEADER_BYTES
            && to_usize(snapshot.header_u32(offset_of!(StatsHeader, slot_bytes))) == SLOT_BYTES
            && [
                offset_of!(StatsHeader, counters_len),
                offset_of!(StatsHeader, reasons_len),
                offset_of!(StatsHeader, poisons_len),
            ]
            .into_iter()
            .all(|offset| to_usize(snapshot.header_u32(offset)) <= LIST_ENTRIES_MAX);
        if !sizes_are_known {
            return Err(LayoutError::Sizes);
        }
        let slots = rest.get(..snapshot.slots_bytes()).unwrap_or(rest);
        Ok(Self { header, slots })
    }

    /// The process id, as the process wrote it.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.header_u32(offset_of!(StatsHeader, pid))
    }

    /// The inode of the process's pid namespace as the process wrote it, 0 if unknown.
    #[must_use]
    pub fn pid_namespace(&self) -> u32 {
        self.header_u32(offset_of!(StatsHeader, pid_namespace))
    }

    /// Whether the process locks its file as long as it lives.
    #[must_use]
    pub fn is_locked(&self) -> bool {
        self.header_u32(offset_of!(StatsHeader, is_locked)) == 1
    }

    /// The user id, as the process wrote it.
    #[must_use]
    pub fn uid(&self) -> u32 {
        self.header_u32(offset_of!(StatsHeader, uid))
    }

    /// The start of the process in clock ticks since boot, as the process wrote it.
    #[must_use]
    pub fn start_ticks(&self) -> u64 {
        self.header_u64(offset_of!(StatsHeader, start_ticks))
    }

    /// When the file was made, in nanoseconds since 1970.
    #[must_use]
    pub fn created_unix_ns(&self) -> u64 {
        self.header_u64(offset_of!(StatsHeader, created_unix_ns))
    }

    /// The program's name: arbitrary bytes, to be escaped before they reach a terminal.
    #[must_use]
    pub fn program(&self) -> &'a [u8] {
        let from = offset_of!(StatsHeader, program);
        let field = self.header.get(from..from.saturating_add(PROGRAM_BYTES)).unwrap_or_default();
        let len = field.iter().position(|&byte| byte == 0).unwrap_or(field.len());
        field.get(..len).unwrap_or_default()
    }

    /// A counter. Bytes, doorbells and so on of live connections are in their slots instead.
    #[must_use]
    pub fn counter(&self, counter: Counter) -> u64 {
        self.listed(offset_of!(StatsHeader, counters), counter.index())
    }

    /// How many connections were made or accepted over TCP for a reason.
    #[must_use]
    pub fn reason(&self, side: Role, reason: Reason) -> u64 {
        let array = match side {
            Role::Client => offset_of!(StatsHeader, reasons_client),
            Role::Server => offset_of!(StatsHeader, reasons_server),
        };
        self.listed(array, reason.index())
    }

    /// How many connections were reset because of what the peer did.
    #[must_use]
    pub fn poison(&self, poison: Poison) -> u64 {
        self.listed(offset_of!(StatsHeader, poisons), poison.index())
    }

    /// Why no connection of the process is accelerated any more, if so.
    #[must_use]
    pub fn stopped(&self) -> Option<Reason> {
        let index = self.header_u32(offset_of!(StatsHeader, stopped)).checked_sub(1)?;
        Reason::ALL.get(to_usize(index)).copied()
    }

    /// What was said of an option, by its place in the table, while the process ran. `None` if that is nothing, or
    /// impossible.
    #[must_use]
    pub fn setting(&self, index: usize) -> Option<Value> {
        self.option_word(offset_of!(StatsHeader, settings), index)
    }

    /// What the process began with, likewise. `None` if its library does not know the option.
    #[must_use]
    pub fn option(&self, index: usize) -> Option<Value> {
        self.option_word(offset_of!(StatsHeader, options), index)
    }

    /// Whether it was told so, and it is not the default.
    #[must_use]
    pub fn was_said(&self, index: usize) -> bool {
        u32::try_from(index)
            .ok()
            .and_then(|bit| self.header_u64(offset_of!(StatsHeader, said)).checked_shr(bit))
            .is_some_and(|said| said & 1 == 1)
    }

    /// How many rules the process has.
    #[must_use]
    pub fn rules(&self) -> u32 {
        self.header_u32(offset_of!(StatsHeader, rules))
    }

    fn option_word(&self, array: usize, index: usize) -> Option<Value> {
        KINDS.get(index)?.value_of_word(self.listed(array, index))
    }

    /// How many bytes of slots the header claims, at most as many as a file may have. So far they are read; what is
    /// parsed may have fewer.
    #[must_use]
    pub fn slots_bytes(&self) -> usize {
        let claimed = to_usize(self.header_u32(offset_of!(StatsHeader, slots_high_water)));
        claimed.min(SLOTS_MAX).saturating_mul(SLOT_BYTES)
    }

    /// The accelerated connections that are open.
    #[must_use]
    pub fn connections(&self) -> Connections<'a> {
        Connections { rest: self.slots, next: 0 }
    }

    fn listed(&self, array: usize, index: usize) -> u64 {
        self.header_u64(array.saturating_add(index.saturating_mul(8)))
    }

    fn header_u32(&self, offset: usize) -> u32 {
        u32::from_ne_bytes(field(self.header, offset))
    }

    fn header_u64(&self, offset: usize) -> u64 {
        u64::from_ne_bytes(field(self.header, offset))
    }
}

/// An accelerated connection as its slot describes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Connection {
    /// The app's descriptor.
    pub fd: i32,
    /// Which end the process is.
    pub role: Role,
    /// The address of this end.
    pub local: SocketAddr,
    /// The address of the other end.
    pub remote: SocketAddr,
    /// The process at the other end when the connection began, 0 if unknown.
    pub peer_pid: u32,
    /// Bytes sent.
    pub tx_bytes: u64,
    /// Bytes received.
    pub rx_bytes: u64,
    /// Doorbells sent.
    pub tx_bells: u64,
    /// Doorbells drained.
    pub rx_bells: u64,
    /// Times a call slept on this connection.
    pub sleeps: u64,
    /// Times a spin saved a sleep on this connection.
    pub spins_paid: u64,
    /// When the connection began, in nanoseconds since 1970.
    pub opened_unix_ns: u64,
    /// The inode of the lane's memory, 0 if unknown.
    pub lane_inode: u64,
    /// What holds for this connection alone, as its slot has it.
    pub own: [u32; OWN_MAX],
    /// The number of its slot.
    pub slot: usize,
}

impl Connection {
    /// What holds for this connection alone of the option with this place among those that may.
    #[must_use]
    pub fn own(&self, place: usize) -> Option<Value> {
        let word = self.own.get(place).copied().unwrap_or(0);
        KINDS.get(connection_option(place)?)?.value_of_word(u64::from(word))
    }
}

/// Walks over the slots of a [`Snapshot`], leaving out those that are free or make no sense.
#[derive(Clone, Debug)]
pub struct Connections<'a> {
    rest: &'a [u8],
    next: usize,
}

impl Iterator for Connections<'_> {
    type Item = Connection;

    fn next(&mut self) -> Option<Connection> {
        loop {
            let (slot, rest) = self.rest.split_at_checked(SLOT_BYTES)?;
            self.rest = rest;
            let number = self.next;
            self.next = number.saturating_add(1);
            if let Some(connection) = read_slot(slot, number) {
                return Some(connection);
            }
        }
    }
}

fn read_slot(slot: &[u8], number: usize) -> Option<Connection> {
    let word = |offset| u64::from_ne_bytes(field(slot, offset));
    let half = |offset| u32::from_ne_bytes(field(slot, offset));
    if half(offset_of!(ConnectionSlot, state)) != SLOT_LIVE {
        return None;
    }
    let [role] = field(slot, offset_of!(ConnectionSlot, role));
    let [family] = field(slot, offset_of!(ConnectionSlot, family));
    let role = match role {
        1 => Role::Client,
        2 => Role::Server,
        _ => return None,
    };
    let family = match family {
        4 => Family::V4,
        6 => Family::V6,
        _ => return None,
    };
    let end = |address, port| {
        let octets: [u8; 16] = field(slot, address);
        let ip = match family {
            Family::V4 => {
                let [a, b, c, d, ..] = octets;
                IpAddr::V4(Ipv4Addr::new(a, b, c, d))
            }
            Family::V6 => IpAddr::V6(Ipv6Addr::from(octets)),
        };
        SocketAddr::new(ip, u16::from_ne_bytes(field(slot, port)))
    };
    Some(Connection {
        fd: i32::from_ne_bytes(field(slot, offset_of!(ConnectionSlot, fd))),
        role,
        local: end(offset_of!(ConnectionSlot, local_address), offset_of!(ConnectionSlot, local_port)),
        remote: end(offset_of!(ConnectionSlot, remote_address), offset_of!(ConnectionSlot, remote_port)),
        peer_pid: half(offset_of!(ConnectionSlot, peer_pid)),
        tx_bytes: word(offset_of!(ConnectionSlot, tx_bytes)),
        rx_bytes: word(offset_of!(ConnectionSlot, rx_bytes)),
        tx_bells: word(offset_of!(ConnectionSlot, tx_bells)),
        rx_bells: word(offset_of!(ConnectionSlot, rx_bells)),
        sleeps: word(offset_of!(ConnectionSlot, sleeps)),
        spins_paid: word(offset_of!(ConnectionSlot, spins_paid)),
        opened_unix_ns: word(offset_of!(ConnectionSlot, opened_unix_ns)),
        lane_inode: word(offset_of!(ConnectionSlot, lane_inode)),
        own: core::array::from_fn(|place| {
            half(offset_of!(ConnectionSlot, own).saturating_add(place.saturating_mul(size_of::<u32>())))
        }),
        slot: number,
    })
}

/// A field of fixed size, zeros where the bytes end. Offsets come from `offset_of!` on structures
/// whose whole size was checked before, so the zeros never show.
fn field<const N: usize>(bytes: &[u8], offset: usize) -> [u8; N] {
    bytes.get(offset..).and_then(|rest| rest.first_chunk::<N>()).copied().unwrap_or([0; N])
}

/// Lossless: Beeline runs on 64-bit machines only.
const fn to_usize(number: u32) -> usize {
    number as usize
}
