//! The statistics file: one for each process that has the library loaded.
//!
//! 1. It is `/dev/shm/beeline-<uid>/<pid>.<start>`, where `start` is field 22 of
//!    `/proc/<pid>/stat` (proc_pid_stat(5)): a process id that is used again names another file.
//!    The directory has mode 0700, the file 0600. Whoever opens either checks first that it is a
//!    real directory or file (no symbolic link) and belongs to that user.
//! 2. The process is the only writer, but for what rule 9 says. It maps the first [`HEADER_BYTES`] bytes as a
//!    [`StatsHeader`] and the pages after them as [`ConnectionSlot`]s; all fields are atomics, so
//!    threads of the process share them through plain references.
//! 3. The magic number is stored last: a file without it is not ready yet and is left alone.
//! 4. Slots come in pages of [`SLOTS_PER_PAGE`]. A page is allocated (`fallocate`, so that a full
//!    `/dev/shm` is an error rather than a SIGBUS) before `slots_high_water` rises over its
//!    slots. Readers use `read`, never `mmap`, and take the shorter of the file and the header's claim.
//! 5. Numbers of a live connection stand in its slot. When the connection closes they are added
//!    to the counters and the slot becomes free, so a sum over counters and live slots never
//!    counts a byte twice for longer than that moment.
//! 6. A reader may see a slot while it changes. That is a picture out of focus, never an error:
//!    these numbers are for people.
//! 7. A child of `fork` makes a file of its own and must not write to its parent's.
//! 8. The process holds a write lock of its open file description on byte 0 (`F_OFD_SETLK`, fcntl(2)) if `is_locked`
//!    says so. The mapping keeps the description open, so the lock lasts until the process has ended or runs another
//!    program, and whoever finds it free (`F_OFD_GETLK`) knows that, whatever pid namespace the process was in.
//! 9. `settings` of the header and `own` of a slot are written by others, too: by `beeline set`, for the same user or
//!    root. Each is a word of its own, 0 for "nothing said", otherwise one more than the number of the value
//!    ([`crate::tunables::Kind`]). The process reads a word when it needs it, never before it is going to wait or
//!    connect, and believes it only if it stands for a value; another one is taken back and counted
//!    ([`Counter::SettingsRefused`]). A word that is seen half-written is one or the other, for a moment.

use core::net::{IpAddr, SocketAddr};
use core::sync::atomic::{AtomicI32, AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering};

use crate::tunables::{CONNECTION_OPTIONS, KINDS, OPTIONS_COUNT, REACHES, Reach};
use crate::{Counter, Family, Poison, Reason, Role, Text};

/// "BEELSTAT", as a little-endian word.
pub const MAGIC: u64 = u64::from_le_bytes(*b"BEELSTAT");

/// The version of this layout, and of the numbering of the closed lists.
pub const VERSION: u32 = 4;

/// Where a file says that its process locks it.
pub const IS_LOCKED_OFFSET: usize = core::mem::offset_of!(StatsHeader, is_locked);

/// The size of the header, and the offset of the first slot.
pub const HEADER_BYTES: usize = 4096;

/// The size of one slot.
pub const SLOT_BYTES: usize = 128;

/// How many slots one page holds: the step in which the file grows.
pub const SLOTS_PER_PAGE: usize = 32;

/// The greatest number of slots. Connections beyond them are counted but not listed.
pub const SLOTS_MAX: usize = 65_536;

/// The greatest size of a statistics file.
pub const FILE_BYTES_MAX: usize = HEADER_BYTES + SLOTS_MAX * SLOT_BYTES;

/// Room for entries in each array of the header, with some to spare for later versions.
pub const LIST_ENTRIES_MAX: usize = 96;

/// Room for the program's name. Longer names are cut, shorter ones padded with zeros.
pub const PROGRAM_BYTES: usize = 64;

/// Room for the words of options in the header.
pub const SETTINGS_MAX: usize = 32;

/// Room for the words of options of one connection.
pub const OWN_MAX: usize = 3;

const _: () = assert!(OPTIONS_COUNT <= SETTINGS_MAX && CONNECTION_OPTIONS <= OWN_MAX);
#[allow(
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    reason = "while compiling, where a panic is an error"
)]
const _: () = {
    // The word of an option of one connection has 32 bits.
    let mut index = 0;
    while index < OPTIONS_COUNT {
        assert!(!matches!(REACHES[index], Reach::Connection) || KINDS[index].greatest() < u32::MAX as u64);
        index += 1;
    }
};
const _: () = assert!(Counter::COUNT <= LIST_ENTRIES_MAX);
const _: () = assert!(Reason::COUNT <= LIST_ENTRIES_MAX);
const _: () = assert!(Poison::COUNT <= LIST_ENTRIES_MAX);
const _: () = assert!(SLOTS_MAX.is_multiple_of(SLOTS_PER_PAGE));

/// The path of the directory that holds the files of one user.
#[must_use]
pub fn directory_path(uid: u32) -> Text<64> {
    // The longest uid has ten digits, so the path has at most 27 bytes.
    Text::format(format_args!("/dev/shm/beeline-{uid}")).unwrap_or(Text::EMPTY)
}

/// The path of the file of one process.
#[must_use]
pub fn file_path(uid: u32, name: FileName) -> Text<128> {
    Text::format(format_args!("/dev/shm/beeline-{uid}/{}", name.text())).unwrap_or(Text::EMPTY)
}

/// The name of a statistics file: which process, and which incarnation of its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FileName {
    /// The process id.
    pub pid: u32,
    /// When the process started, in clock ticks since boot: field 22 of `/proc/<pid>/stat`.
    pub start_ticks: u64,
}

impl FileName {
    /// The name within the directory.
    #[must_use]
    pub fn text(self) -> Text<48> {
        // Ten digits, a dot and twenty digits at most.
        Text::format(format_args!("{}.{}", self.pid, self.start_ticks)).unwrap_or(Text::EMPTY)
    }

    /// Reads a name; only the exact form that [`FileName::text`] writes.
    #[must_use]
    pub fn parse(name: &[u8]) -> Option<Self> {
        let name = core::str::from_utf8(name).ok()?;
        let (pid, start_ticks) = name.split_once('.')?;
        let parsed = Self { pid: pid.parse().ok()?, start_ticks: start_ticks.parse().ok()? };
        (parsed.text().as_str() == name).then_some(parsed)
    }
}

/// Finds the start time in the content of `/proc/<pid>/stat`.
///
/// The program's name in that file may hold spaces and parentheses, so fields are counted from
/// the last closing parenthesis (proc_pid_stat(5)): the state is field 3, the start time field 22.
#[must_use]
pub fn start_ticks_from_proc_stat(stat: &[u8]) -> Option<u64> {
    let close = stat.iter().rposition(|&byte| byte == b')')?;
    let fields = core::str::from_utf8(stat.get(close.checked_add(1)?..)?).ok()?;
    fields.split_ascii_whitespace().nth(19)?.parse().ok()
}

/// The first [`HEADER_BYTES`] bytes of the file.
///
/// `#[repr(C)]`: the offsets are part of the format and asserted below.
#[repr(C, align(128))]
#[derive(Debug)]
pub struct StatsHeader {
    /// [`MAGIC`], stored last.
    pub magic: AtomicU64,
    /// [`VERSION`].
    pub version: AtomicU32,
    /// [`HEADER_BYTES`].
    pub header_bytes: AtomicU32,
    /// The process id, in the process's own pid namespace.
    pub pid: AtomicU32,
    /// The effective user id when the file was made.
    pub uid: AtomicU32,
    /// Start of the process in clock ticks since boot.
    pub start_ticks: AtomicU64,
    /// When the file was made, in nanoseconds since 1970.
    pub created_unix_ns: AtomicU64,
    /// One more than the highest slot ever used.
    pub slots_high_water: AtomicU32,
    /// [`SLOT_BYTES`].
    pub slot_bytes: AtomicU32,
    /// [`Counter::COUNT`] of the writer.
    pub counters_len: AtomicU32,
    /// [`Reason::COUNT`] of the writer.
    pub reasons_len: AtomicU32,
    /// [`Poison::COUNT`] of the writer.
    pub poisons_len: AtomicU32,
    /// The inode of the process's pid namespace (`/proc/self/ns/pid`), 0 if unknown. Whoever tidies up
    /// judges only processes of its own namespace dead. Stored before [`StatsHeader::publish`].
    pub pid_namespace: AtomicU32,
    /// The program's name, padded with zeros.
    pub program: [AtomicU8; PROGRAM_BYTES],
    /// What [`Counter`] lists.
    pub counters: [AtomicU64; LIST_ENTRIES_MAX],
    /// Connections made over TCP, by reason.
    pub reasons_client: [AtomicU64; LIST_ENTRIES_MAX],
    /// Connections accepted over TCP and listeners without a door, by reason.
    pub reasons_server: [AtomicU64; LIST_ENTRIES_MAX],
    /// Connections reset, by what the peer did.
    pub poisons: [AtomicU64; LIST_ENTRIES_MAX],
    /// Why no connection of the process is accelerated any more: a [`Reason`]'s index plus one, 0 as long as they may
    /// be.
    pub stopped: AtomicU32,
    /// 1 if the process locks its file, see rule 8.
    pub is_locked: AtomicU32,
    /// What was said while the process ran, in the order of the table of options: see rule 9.
    pub settings: [AtomicU64; SETTINGS_MAX],
    /// What the process began with, likewise. 0 where its library does not know the option.
    pub options: [AtomicU64; SETTINGS_MAX],
    /// Which of them it was told: a bit each. The others are defaults.
    pub said: AtomicU64,
    /// How many rules it has.
    pub rules: AtomicU32,
    /// Zero.
    pub reserved: AtomicU32,
    /// Zero.
    pub reserved_tail: [AtomicU64; 45],
}

/// Which end of a connection a reason is counted for. The same as the role of the process in it.
pub type Side = Role;

impl StatsHeader {
    /// Fills a header of zeros and stores the magic number last.
    pub fn publish(&self, name: FileName, uid: u32, created_unix_ns: u64, program: &[u8]) {
        self.version.store(VERSION, Ordering::Relaxed);
        self.header_bytes.store(4096, Ordering::Relaxed);
        self.slot_bytes.store(128, Ordering::Relaxed);
        self.pid.store(name.pid, Ordering::Relaxed);
        self.uid.store(uid, Ordering::Relaxed);
        self.start_ticks.store(name.start_ticks, Ordering::Relaxed);
        self.created_unix_ns.store(created_unix_ns, Ordering::Relaxed);
        self.counters_len.store(count(Counter::COUNT), Ordering::Relaxed);
        self.reasons_len.store(count(Reason::COUNT), Ordering::Relaxed);
        self.poisons_len.store(count(Poison::COUNT), Ordering::Relaxed);
        for (target, source) in self.program.iter().zip(program) {
            target.store(*source, Ordering::Relaxed);
        }
        // Pairs with nothing in this process: it keeps the stores above before the magic number
        // for a reader that copies the page.
        self.magic.store(MAGIC, Ordering::Release);
    }

    /// Adds to a counter.
    #[inline]
    pub fn add(&self, counter: Counter, amount: u64) {
        if let Some(word) = self.counters.get(counter.index()) {
            word.fetch_add(amount, Ordering::Relaxed);
        }
    }

    /// What a counter has come to.
    #[inline]
    #[must_use]
    pub fn counter(&self, counter: Counter) -> u64 {
        self.counters.get(counter.index()).map_or(0, |word| word.load(Ordering::Relaxed))
    }

    /// Takes from a counter that goes up and down, such as [`Counter::HiddenFds`].
    #[inline]
    pub fn subtract(&self, counter: Counter, amount: u64) {
        if let Some(word) = self.counters.get(counter.index()) {
            word.fetch_sub(amount, Ordering::Relaxed);
        }
    }

    /// Counts one fallback.
    pub fn fell_back(&self, side: Side, reason: Reason) {
        let (words, counter) = match side {
            Role::Client => (&self.reasons_client, Counter::ConnectionsFallenBackClient),
            Role::Server => (&self.reasons_server, Counter::ConnectionsFallenBackServer),
        };
        if let Some(word) = words.get(reason.index()) {
            word.fetch_add(1, Ordering::Relaxed);
        }
        self.add(counter, 1);
    }

    /// Says why nothing is accelerated any more.
    pub fn stop(&self, reason: Reason) {
        self.stopped.store(count(reason.index()).saturating_add(1), Ordering::Relaxed);
    }

    /// Counts one connection that the peer has poisoned.
    pub fn poisoned(&self, poison: Poison) {
        if let Some(word) = self.poisons.get(poison.index()) {
            word.fetch_add(1, Ordering::Relaxed);
        }
        self.add(Counter::Poisoned, 1);
    }

    /// Says that slots below `slots` may be in use. Their pages must exist already.
    pub fn raise_high_water(&self, slots: u32) {
        self.slots_high_water.fetch_max(slots, Ordering::Release);
    }
}

/// The lists have at most [`LIST_ENTRIES_MAX`] entries, so this never cuts.
#[allow(clippy::cast_possible_truncation)]
const fn count(entries: usize) -> u32 {
    entries as u32
}

/// [`ConnectionSlot::state`]: nobody uses the slot.
pub const SLOT_FREE: u32 = 0;
/// [`ConnectionSlot::state`]: the slot describes a connection.
pub const SLOT_LIVE: u32 = 1;
/// [`ConnectionSlot::state`]: the slot is taken and not filled yet.
pub const SLOT_TAKEN: u32 = 2;

/// What is known about a connection when it begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Opening {
    /// The app's descriptor.
    pub fd: i32,
    /// Which end this process is.
    pub role: Role,
    /// The address of this end.
    pub local: SocketAddr,
    /// The address of the other end.
    pub remote: SocketAddr,
    /// The process at the other end when the connection began, 0 if unknown.
    pub peer_pid: u32,
    /// When the connection began, in nanoseconds since 1970.
    pub opened_unix_ns: u64,
    /// The inode of the lane's memory, 0 if unknown.
    pub lane_inode: u64,
    /// What holds for this connection alone.
    pub own: [u32; OWN_MAX],
}

/// One accelerated connection.
///
/// What the sending thread counts is on the first cache line, what the receiving thread counts on
/// the second, so that a connection with a thread for each direction shares no line over its statistics.
#[repr(C, align(128))]
#[derive(Debug)]
pub struct ConnectionSlot {
    /// [`SLOT_FREE`], [`SLOT_LIVE`] or [`SLOT_TAKEN`].
    pub state: AtomicU32,
    /// The app's descriptor.
    pub fd: AtomicI32,
    /// Port of this end, in host order.
    pub local_port: AtomicU16,
    /// Port of the other end, in host order.
    pub remote_port: AtomicU16,
    /// The process at the other end.
    pub peer_pid: AtomicU32,
    /// Address of this end: 16 bytes in network order, an IPv4 address in the first 4.
    pub local_address: [AtomicU64; 2],
    /// Address of the other end, likewise.
    pub remote_address: [AtomicU64; 2],
    /// Bytes sent.
    pub tx_bytes: AtomicU64,
    /// Doorbells sent.
    pub tx_bells: AtomicU64,

    /// Bytes received.
    pub rx_bytes: AtomicU64,
    /// Doorbells drained.
    pub rx_bells: AtomicU64,
    /// Times a call slept on this connection.
    pub sleeps: AtomicU64,
    /// Times a spin saved a sleep on this connection.
    pub spins_paid: AtomicU64,
    /// When the connection began, in nanoseconds since 1970.
    pub opened_unix_ns: AtomicU64,
    /// The inode of the lane's memory.
    pub lane_inode: AtomicU64,
    /// 1 client, 2 server.
    pub role: AtomicU8,
    /// 4 or 6.
    pub family: AtomicU8,
    /// Zero.
    pub reserved: AtomicU16,
    /// What holds for this connection alone, in the order of those options that may: see rule 9.
    pub own: [AtomicU32; OWN_MAX],
}

impl ConnectionSlot {
    /// Takes a free slot; false when it is in use.
    pub fn try_take(&self) -> bool {
        self.state.compare_exchange(SLOT_FREE, SLOT_TAKEN, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    /// Fills a slot that [`ConnectionSlot::try_take`] has taken, and shows it.
    pub fn open(&self, opening: &Opening) {
        self.fd.store(opening.fd, Ordering::Relaxed);
        self.role.store(opening.role as u8, Ordering::Relaxed);
        let family = match opening.local {
            SocketAddr::V4(_) => Family::V4,
            SocketAddr::V6(_) => Family::V6,
        };
        self.family.store(family as u8, Ordering::Relaxed);
        store_address(&self.local_address, opening.local.ip());
        store_address(&self.remote_address, opening.remote.ip());
        self.local_port.store(opening.local.port(), Ordering::Relaxed);
        self.remote_port.store(opening.remote.port(), Ordering::Relaxed);
        self.peer_pid.store(opening.peer_pid, Ordering::Relaxed);
        self.opened_unix_ns.store(opening.opened_unix_ns, Ordering::Relaxed);
        self.lane_inode.store(opening.lane_inode, Ordering::Relaxed);
        for word in [&self.tx_bytes, &self.tx_bells, &self.rx_bytes, &self.rx_bells, &self.sleeps, &self.spins_paid] {
            word.store(0, Ordering::Relaxed);
        }
        for (target, source) in self.own.iter().zip(opening.own) {
            target.store(source, Ordering::Relaxed);
        }
        self.state.store(SLOT_LIVE, Ordering::Release);
    }

    /// Frees the slot and adds what it counted to the process's totals. `Sleeps` and `SpinsPaid`
    /// are counted for the process as they happen, so they are not added again.
    pub fn close(&self, header: &StatsHeader) {
        let totals = [
            (Counter::BytesSent, &self.tx_bytes),
            (Counter::BytesReceived, &self.rx_bytes),
            (Counter::DoorbellsSent, &self.tx_bells),
            (Counter::DoorbellsDrained, &self.rx_bells),
        ];
        let closed = totals.map(|(counter, word)| (counter, word.load(Ordering::Relaxed)));
        self.state.store(SLOT_FREE, Ordering::Release);
        for (counter, amount) in closed {
            header.add(counter, amount);
        }
        header.add(Counter::ConnectionsClosed, 1);
    }
}

fn store_address(words: &[AtomicU64; 2], address: IpAddr) {
    let mut bytes = [0_u8; 16];
    match address {
        IpAddr::V4(v4) => {
            for (target, source) in bytes.iter_mut().zip(v4.octets()) {
                *target = source;
            }
        }
        IpAddr::V6(v6) => bytes = v6.octets(),
    }
    let (chunks, _) = bytes.as_chunks::<8>();
    // Native order, so that the bytes lie in memory as they lie in the address.
    for (word, chunk) in words.iter().zip(chunks) {
        word.store(u64::from_ne_bytes(*chunk), Ordering::Relaxed);
    }
}

macro_rules! assert_offsets {
    ($kind:ty { $( $field:ident = $offset:expr ),+ $(,)? } size $size:expr) => {
        const _: () = {
            $( assert!(core::mem::offset_of!($kind, $field) == $offset); )+
            assert!(core::mem::size_of::<$kind>() == $size);
        };
    };
}

// The reader takes its offsets from these structures, so it cannot drift from the writer; these asserts
// keep both from drifting from files written by another build.
assert_offsets!(StatsHeader {
    magic = 0, version = 8, header_bytes = 12, pid = 16, uid = 20, start_ticks = 24,
    created_unix_ns = 32, slots_high_water = 40, slot_bytes = 44, counters_len = 48,
    reasons_len = 52, poisons_len = 56, pid_namespace = 60, program = 64, counters = 128,
    reasons_client = 896, reasons_server = 1664, poisons = 2432, stopped = 3200,
    is_locked = 3204, settings = 3208, options = 3464, said = 3720, rules = 3728, reserved = 3732,
    reserved_tail = 3736,
} size HEADER_BYTES);

assert_offsets!(ConnectionSlot {
    state = 0, fd = 4, local_port = 8, remote_port = 10, peer_pid = 12, local_address = 16,
    remote_address = 32, tx_bytes = 48, tx_bells = 56, rx_bytes = 64, rx_bells = 72, sleeps = 80,
    spins_paid = 88, opened_unix_ns = 96, lane_inode = 104, role = 112, family = 113,
    reserved = 114, own = 116,
} size SLOT_BYTES);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_names_lead_back_to_themselves() {
        let name = FileName { pid: 4_294_967_295, start_ticks: u64::MAX };
        assert_eq!(FileName::parse(name.text().as_bytes()), Some(name));
        for wrong in ["", ".", "1", "1.", ".1", "01.2", "+1.2", "1.2 ", "1.2.3", "1.02"] {
            assert_eq!(FileName::parse(wrong.as_bytes()), None, "{wrong:?}");
        }
    }

    #[test]
    fn paths_are_where_they_should_be() {
        let name = FileName { pid: u32::MAX, start_ticks: u64::MAX };
        assert_eq!(directory_path(u32::MAX).as_str(), "/dev/shm/beeline-4294967295");
        assert_eq!(file_path(u32::MAX, name).as_str(), "/dev/shm/beeline-4294967295/4294967295.18446744073709551615");
    }

    #[test]
    fn start_time_is_found_behind_a_nasty_program_name() {
        let stat = b"42 (a) S 1 (b c)) S 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 777 19 20\n";
        assert_eq!(start_ticks_from_proc_stat(stat), Some(777));
        assert_eq!(start_ticks_from_proc_stat(b"42 (x) S 1 2"), None);
        assert_eq!(start_ticks_from_proc_stat(b""), None);
    }

    #[test]
    fn own_start_time_is_found() {
        let stat = std::fs::read("/proc/self/stat").unwrap();
        assert!(start_ticks_from_proc_stat(&stat).unwrap() > 0);
    }
}
