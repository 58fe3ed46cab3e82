//! The program of [`super`], and what it takes of bpf(2). `struct bpf_tcp_sock`, `struct bpf_sock` and the attributes
//! of the call are those of `linux/bpf.h`.
//!
//! The kernel lets only programs look into its own types that say that they may be used under the GPL. This one, the
//! numbers that [`steps`] gives out, may, as anything under the MIT licence may: it is loaded as "Dual MIT/GPL".

use std::os::fd::{AsRawFd, OwnedFd};

use beeline_shm::sys::call;

use super::super::own;
use crate::Errno;

// Where things stand in the packet that the program is given, and that it writes its findings to.
pub const TUPLE_BYTES: i16 = 16;
pub const TOKEN: i16 = 20;
pub const TUPLE: i16 = 24;
pub const FOUND: i16 = 60;
pub const STATE: i16 = 64;
pub const NUMBERS: i16 = 68;
pub const FLOWS: i16 = 88;
pub const PACKET: usize = 96;
/// Of `struct bpf_tcp_sock`: `rcv_nxt`, `snd_nxt`, `snd_una`, `data_segs_in`, `data_segs_out`.
const FIELDS: [i16; 5] = [16, 20, 24, 60, 68];
/// `struct bpf_sock_tuple`, for each family.
pub const TUPLE_V4: u8 = 12;
pub const TUPLE_V6: u8 = 36;

/// Lays a token into a socket's storage.
pub fn mark(storage: &OwnedFd, socket: i32, token: u32) -> Result<(), Errno> {
    // SAFETY: key and value are live and of the map's sizes.
    unsafe { bpf(MAP_UPDATE, &Element::of(storage, &socket, &token)) }.map(|_| ())
}

/// Takes it out again.
pub fn unmark(storage: &OwnedFd, socket: i32) {
    // SAFETY: as above.
    let _ = unsafe { bpf(MAP_DELETE, &Element::of(storage, &socket, &0)) };
}

/// Runs the program over a packet, which holds its findings then.
pub fn run(program: &OwnedFd, packet: &mut [u8; PACKET]) -> Result<(), Errno> {
    let run = Run {
        program: program.as_raw_fd(),
        returned: 0,
        bytes_in: PACKET as u32,
        bytes_out: PACKET as u32,
        packet_in: packet.as_ptr() as u64,
        packet_out: packet.as_mut_ptr() as u64,
        repeat: 1,
        duration: 0,
        rest: [0; 4],
    };
    // SAFETY: both buffers are live and of the sizes given; the kernel reads all of the one before it writes the other.
    unsafe { bpf(PROG_TEST_RUN, &run) }.map(|_| ())
}

const MAP_CREATE: usize = 0;
const MAP_UPDATE: usize = 2;
const MAP_DELETE: usize = 3;
const PROG_LOAD: usize = 5;
const PROG_TEST_RUN: usize = 10;
const BTF_LOAD: usize = 18;

#[repr(C)]
struct Element {
    map: i32,
    rest: u32,
    key: u64,
    value: u64,
    flags: u64,
}

impl Element {
    fn of(map: &OwnedFd, key: &i32, value: &u32) -> Self {
        let (key, value) = (core::ptr::from_ref(key) as u64, core::ptr::from_ref(value) as u64);
        Self { map: map.as_raw_fd(), rest: 0, key, value, flags: 0 }
    }
}

#[repr(C)]
struct Run {
    program: i32,
    returned: u32,
    bytes_in: u32,
    bytes_out: u32,
    packet_in: u64,
    packet_out: u64,
    repeat: u32,
    duration: u32,
    rest: [u64; 4],
}

/// # Safety
/// `attributes` are those of the command, and what they point to is live and as long as they say.
unsafe fn bpf<T>(command: usize, attributes: &T) -> Result<usize, Errno> {
    let args = [command, core::ptr::from_ref(attributes) as usize, size_of::<T>(), 0, 0, 0];
    // SAFETY: forwarded from the caller.
    unsafe { call(libc::SYS_bpf, args) }
}

/// The type of what is stored: one integer of 32 bits.
fn word_type() -> Result<OwnedFd, Errno> {
    #[repr(C)]
    struct Types {
        magic: u16,
        version: u8,
        flags: u8,
        header_bytes: u32,
        types_at: u32,
        types_bytes: u32,
        strings_at: u32,
        strings_bytes: u32,
        name: u32,
        kind: u32,
        size: u32,
        bits: u32,
        strings: [u8; 8],
    }
    #[repr(C)]
    struct Load {
        types: u64,
        log: u64,
        bytes: u32,
        log_bytes: u32,
        log_level: u32,
        rest: u32,
    }
    /// `BTF_KIND_INT`.
    const INT: u32 = 1;
    let types = Types {
        magic: 0xeb9f,
        version: 1,
        flags: 0,
        header_bytes: 24,
        types_at: 0,
        types_bytes: 16,
        strings_at: 16,
        strings_bytes: 5,
        name: 1,
        kind: INT << 24,
        size: 4,
        bits: 32,
        strings: *b"\0int\0\0\0\0",
    };
    let load =
        Load { types: (&raw const types) as u64, log: 0, bytes: 24 + 16 + 5, log_bytes: 0, log_level: 0, rest: 0 };
    // SAFETY: the types are live and as long as is said.
    unsafe { bpf(BTF_LOAD, &load) }.map(|fd| own(fd as i32))
}

/// Storage for one word in each socket.
pub fn storage() -> Result<OwnedFd, Errno> {
    #[repr(C)]
    struct Create {
        kind: u32,
        key_bytes: u32,
        value_bytes: u32,
        entries: u32,
        flags: u32,
        inner: u32,
        node: u32,
        name: [u8; 16],
        device: u32,
        types: i32,
        key_type: u32,
        value_type: u32,
        rest: u32,
    }
    /// `BPF_MAP_TYPE_SK_STORAGE`, `BPF_F_NO_PREALLOC`.
    const SK_STORAGE: u32 = 24;
    const NO_PREALLOC: u32 = 1;
    let types = word_type()?;
    let create = Create {
        kind: SK_STORAGE,
        key_bytes: 4,
        value_bytes: 4,
        entries: 0,
        flags: NO_PREALLOC,
        inner: 0,
        node: 0,
        name: *b"beeline\0\0\0\0\0\0\0\0\0",
        device: 0,
        types: types.as_raw_fd(),
        key_type: 1,
        value_type: 1,
        rest: 0,
    };
    // SAFETY: no pointers.
    unsafe { bpf(MAP_CREATE, &create) }.map(|fd| own(fd as i32))
}

/// An instruction: operation, registers (source above, target below), offset, number.
#[derive(Clone, Copy)]
#[repr(C)]
struct Step(u8, u8, i16, i32);

/// Loads the program. `flows`: where a socket has the numbers by which its packets, and those that come, are sorted.
pub fn load(storage: i32, flows: [i16; 2]) -> Result<OwnedFd, Errno> {
    #[repr(C)]
    struct Load {
        kind: u32,
        steps: u32,
        program: u64,
        license: u64,
        log_level: u32,
        log_bytes: u32,
        log: u64,
        version: u32,
        flags: u32,
        name: [u8; 16],
    }
    /// `BPF_PROG_TYPE_SCHED_CLS`.
    const SCHED_CLS: u32 = 3;
    let steps = steps(storage, flows);
    let license = c"Dual MIT/GPL";
    let load = Load {
        kind: SCHED_CLS,
        steps: steps.len() as u32,
        program: steps.as_ptr() as u64,
        license: license.as_ptr() as u64,
        log_level: 0,
        log_bytes: 0,
        log: 0,
        version: 0,
        flags: 0,
        name: *b"beeline\0\0\0\0\0\0\0\0\0",
    };
    // SAFETY: program and licence are live, the one as long as is said, the other ended by a zero.
    unsafe { bpf(PROG_LOAD, &load) }.map(|fd| own(fd as i32))
}

/// The program. Registers: 6 what it was called with, 7 the packet, 8 the packet's end, then the tuple's size, 9 the
/// socket.
fn steps(storage: i32, flows: [i16; 2]) -> std::vec::Vec<Step> {
    // Names as in `linux/bpf.h`; what is loaded and stored has 32 bits.
    const LOAD: u8 = 0x61;
    const STORE: u8 = 0x63;
    const STORE_NUMBER: u8 = 0x62;
    const MOVE: u8 = 0xbf;
    const SET: u8 = 0xb7;
    const ADD: u8 = 0x07;
    const CALL: u8 = 0x85;
    const EXIT: u8 = 0x95;
    const GO_IF_ABOVE: u8 = 0x2d;
    const GO_IF_EQUAL: u8 = 0x15;
    const GO_IF_OTHER: u8 = 0x5d;
    const WIDE: u8 = 0x18;
    const MAP: u8 = 1;
    // `struct __sk_buff` and `struct bpf_sock`.
    const DATA: i16 = 76;
    const DATA_END: i16 = 80;
    const SOCK_STATE: i16 = 72;
    // Helpers.
    const LOOK_UP: i32 = 84;
    const RELEASE: i32 = 86;
    const TCP: i32 = 96;
    const STORED: i32 = 107;
    const WHOLE: i32 = 137;
    const STACK: i16 = -40;
    let two = |source: u8, target: u8| source << 4 | target;
    let load = |target, from, at| Step(LOAD, two(from, target), at, 0);
    let store = |to, at, source| Step(STORE, two(source, to), at, 0);
    let copy = |target, source| Step(MOVE, two(source, target), 0, 0);
    let set = |target, number| Step(SET, target, 0, number);
    let call = |helper| Step(CALL, 0, 0, helper);
    // Where a step goes on is told by how many are left out.
    let go_if = |kind, one, other, over| Step(kind, two(other, one), over, 0);
    let go_if_is = |one, number, over| Step(GO_IF_EQUAL, one, over, number);

    // Each part is made before what leads to it, since a step over it says how long it is.
    let mut own = std::vec::Vec::new();
    for (index, field) in (0i16..).zip(flows) {
        own.extend([load(2, 0, field), store(7, FLOWS + 4 * index, 2)]);
    }
    own.push(Step(STORE_NUMBER, 7, FOUND, 1));
    let mut numbers = std::vec::Vec::new();
    for (index, field) in (0i16..).zip(FIELDS) {
        numbers.extend([load(2, 0, field), store(7, NUMBERS + 4 * index, 2)]);
    }
    numbers.extend([copy(1, 9), call(WHOLE), go_if_is(0, 0, own.len() as i16)]);
    numbers.extend(own);
    let mut found = std::vec![load(2, 9, SOCK_STATE), store(7, STATE, 2)];
    found.extend([copy(1, 9), call(TCP), go_if_is(0, 0, numbers.len() as i16)]);
    found.extend(numbers);

    let mut whole = std::vec![copy(6, 1), load(7, 6, DATA), load(8, 6, DATA_END)];
    whole.extend([copy(2, 7), Step(ADD, 2, 0, PACKET as i32)]);
    let mut body = std::vec::Vec::new();
    for at in (0..i16::from(TUPLE_V6)).step_by(4) {
        body.extend([load(2, 7, TUPLE + at), store(10, STACK + at, 2)]);
    }
    body.extend([load(8, 7, TUPLE_BYTES), copy(1, 6), copy(2, 10), Step(ADD, 2, 0, i32::from(STACK))]);
    body.extend([set(3, i32::from(TUPLE_V6)), go_if_is(8, i32::from(TUPLE_V6), 1), set(3, i32::from(TUPLE_V4))]);
    // In the network namespace of the caller.
    body.extend([set(4, -1), set(5, 0), call(LOOK_UP)]);
    let mut socket = std::vec![copy(9, 0), Step(WIDE, two(MAP, 1), 0, storage), Step(0, 0, 0, 0)];
    socket.extend([copy(2, 9), set(3, 0), set(4, 0), call(STORED)]);
    let mut shown = std::vec![load(1, 0, 0), load(2, 7, TOKEN)];
    shown.push(go_if(GO_IF_OTHER, 1, 2, found.len() as i16));
    shown.extend(found);
    socket.push(go_if_is(0, 0, shown.len() as i16));
    socket.extend(shown);
    socket.extend([copy(1, 9), call(RELEASE)]);
    body.push(go_if_is(0, 0, socket.len() as i16));
    body.extend(socket);
    whole.push(go_if(GO_IF_ABOVE, 2, 8, body.len() as i16));
    whole.extend(body);
    whole.extend([set(0, 0), Step(EXIT, 0, 0, 0)]);
    whole
}
