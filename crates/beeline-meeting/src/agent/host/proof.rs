//! Which connection a socket is an end of, by the kernel's own sequence numbers.
//!
//! Right after the handshake, before any byte, what the one end will send next is what the other one expects, in both
//! directions: 64 bits, drawn at random by the two kernels' hash, that lie in no other pair of sockets, whatever addresses
//! the two have, and whatever translates these on the way. No system call tells them; a small BPF program does (`SCHED_CLS`,
//! run with `BPF_PROG_TEST_RUN`, attached to nothing). It looks a connection up by its addresses in the network namespace of
//! the thread that runs it, so addresses are only where to look: that what is found is the socket that was shown is proved
//! by a token that was laid into the shown socket's storage (`BPF_MAP_TYPE_SK_STORAGE`) before.
//!
//! None of it takes the socket's lock, or changes what the socket does. `struct bpf_tcp_sock`, `struct bpf_sock` and the
//! attributes of bpf(2) are those of `linux/bpf.h`.

use core::net::SocketAddr;
use core::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::os::fd::{AsRawFd, OwnedFd};

use beeline_shm::sys::call;

use super::own;
use crate::Errno;

/// `TCP_ESTABLISHED` and `TCP_CLOSE_WAIT`.
const ESTABLISHED: u32 = 1;
const CLOSE_WAIT: u32 = 8;

/// A connection, as its client counts: both ends of one have the same, and no others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Pair {
    /// The number of the byte that the client sends first.
    pub client: u32,
    /// The number of the byte that the server sends first.
    pub server: u32,
}

/// Which end of its connection a socket is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The one that has connected.
    Client,
    /// The one that was accepted.
    Server,
}

/// The program, and the storage of sockets that it looks into.
#[derive(Debug)]
pub struct Prover {
    storage: OwnedFd,
    program: OwnedFd,
    next_token: AtomicU32,
}

// Where things stand in the packet that the program is given, and that it writes its findings to.
const TUPLE_BYTES: i16 = 16;
const TOKEN: i16 = 20;
const TUPLE: i16 = 24;
const FOUND: i16 = 60;
const STATE: i16 = 64;
const NUMBERS: i16 = 68;
const PACKET: usize = 96;
/// Of `struct bpf_tcp_sock`: `rcv_nxt`, `snd_nxt`, `snd_una`, `data_segs_in`, `data_segs_out`.
const FIELDS: [i16; 5] = [16, 20, 24, 60, 68];
/// `struct bpf_sock_tuple`, for each family.
const TUPLE_V4: u8 = 12;
const TUPLE_V6: u8 = 36;

impl Prover {
    /// Loads the program.
    ///
    /// # Errors
    /// Those of bpf(2): `EPERM` without the power to, others where the kernel lacks what it needs.
    pub fn new() -> Result<Prover, Errno> {
        let storage = storage()?;
        let program = program(storage.as_raw_fd())?;
        Ok(Prover { storage, program, next_token: AtomicU32::new(1) })
    }

    /// The connection that a socket is an end of, if it is one over which no byte has gone yet. `local` and `remote` are its
    /// addresses, by somebody's word; the calling thread is in the network namespace that the socket is said to be of.
    #[must_use]
    pub fn pair(&self, socket: i32, end: End, local: SocketAddr, remote: SocketAddr) -> Option<Pair> {
        let token = self.next_token.fetch_add(1, Relaxed);
        let mut packet = packet(token, local, remote)?;
        let key = socket;
        let element = Element {
            map: self.storage.as_raw_fd(),
            rest: 0,
            key: (&raw const key) as u64,
            value: (&raw const token) as u64,
            flags: 0,
        };
        // SAFETY: key and value are live and of the map's sizes.
        unsafe { bpf(MAP_UPDATE, &element) }.ok()?;
        let ran = self.run(&mut packet);
        // SAFETY: as above.
        let _ = unsafe { bpf(MAP_DELETE, &element) };
        ran.ok()?;
        judge(&packet, end)
    }

    fn run(&self, packet: &mut [u8; PACKET]) -> Result<(), Errno> {
        let run = Run {
            program: self.program.as_raw_fd(),
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
}

/// What the program has found.
fn judge(packet: &[u8; PACKET], end: End) -> Option<Pair> {
    let word = |at: usize| packet.get(at..at.checked_add(4)?)?.try_into().ok().map(u32::from_ne_bytes);
    let number = |index: usize| word((NUMBERS as usize).checked_add(index.checked_mul(4)?)?);
    if word(FOUND as usize)? != 1 {
        return None;
    }
    let (state, received, sent, acknowledged) = (word(STATE as usize)?, number(0)?, number(1)?, number(2)?);
    let has_carried = number(3)? != 0 || number(4)? != 0;
    if has_carried || sent != acknowledged {
        return None;
    }
    // The end of a connection counts for one byte.
    let received = match state {
        ESTABLISHED => received,
        CLOSE_WAIT => received.wrapping_sub(1),
        _ => return None,
    };
    Some(match end {
        End::Client => Pair { client: sent, server: received },
        End::Server => Pair { client: received, server: sent },
    })
}

fn packet(token: u32, local: SocketAddr, remote: SocketAddr) -> Option<[u8; PACKET]> {
    let mut packet = [0u8; PACKET];
    let mut put = |at: i16, bytes: &[u8]| {
        let at = at as usize;
        if let Some(place) = packet.get_mut(at..at.saturating_add(bytes.len())) {
            place.copy_from_slice(bytes);
        }
    };
    put(TOKEN, &token.to_ne_bytes());
    // As a packet to the socket has them: from its peer to itself.
    let (bytes, ip) = match (remote, local) {
        (SocketAddr::V4(from), SocketAddr::V4(to)) => {
            put(TUPLE, &from.ip().octets());
            put(TUPLE + 4, &to.ip().octets());
            (TUPLE_V4, 4)
        }
        (SocketAddr::V6(from), SocketAddr::V6(to)) => {
            put(TUPLE, &from.ip().octets());
            put(TUPLE + 16, &to.ip().octets());
            (TUPLE_V6, 16)
        }
        _ => return None,
    };
    put(TUPLE + 2 * ip, &remote.port().to_be_bytes());
    put(TUPLE + 2 * ip + 2, &local.port().to_be_bytes());
    put(TUPLE_BYTES, &u32::from(bytes).to_ne_bytes());
    Some(packet)
}

// ---- bpf(2)

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
fn storage() -> Result<OwnedFd, Errno> {
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

fn program(storage: i32) -> Result<OwnedFd, Errno> {
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
    let steps = steps(storage);
    let license = c"Apache-2.0 OR MIT";
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

/// The program. Registers: 6 what it was called with, 7 the packet, 8 the packet's end, then the tuple's size, 9 the socket.
fn steps(storage: i32) -> std::vec::Vec<Step> {
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

    let mut found = std::vec![load(2, 9, SOCK_STATE), store(7, STATE, 2)];
    found.extend([copy(1, 9), call(TCP), go_if_is(0, 0, 2 * FIELDS.len() as i16 + 1)]);
    for (index, field) in (0i16..).zip(FIELDS) {
        found.extend([load(2, 0, field), store(7, NUMBERS + 4 * index, 2)]);
    }
    // Reached only if there are numbers.
    found.push(Step(STORE_NUMBER, 7, FOUND, 1));

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

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::net::{TcpListener, TcpStream};

    fn prover() -> Option<Prover> {
        match Prover::new() {
            Ok(prover) => Some(prover),
            Err(errno) => {
                std::eprintln!("skipped: no power to use bpf(2), or a kernel without what it needs: {errno:?}");
                None
            }
        }
    }

    fn connected(listens: &str, to: &str) -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind(listens).unwrap();
        let to = SocketAddr::new(to.parse().unwrap(), listener.local_addr().unwrap().port());
        (TcpStream::connect(to).unwrap(), listener.accept().unwrap().0)
    }

    fn of(prover: &Prover, socket: &TcpStream, end: End) -> Option<Pair> {
        let plain = beeline_wire::agent::plain;
        let (local, remote) = (socket.local_addr().unwrap(), socket.peer_addr().unwrap());
        prover.pair(socket.as_raw_fd(), end, plain(local), plain(remote))
    }

    #[test]
    fn two_ends_of_a_connection_have_one_pair_and_those_of_others_have_others() {
        let Some(prover) = prover() else { return };
        let mut seen = std::collections::HashSet::new();
        for (listens, to) in [("127.0.0.1:0", "127.0.0.1"), ("[::1]:0", "::1"), ("[::]:0", "127.0.0.1")] {
            let (client, server) = connected(listens, to);
            let pair = of(&prover, &client, End::Client).unwrap();
            assert_eq!(of(&prover, &server, End::Server), Some(pair), "{listens}");
            assert_ne!(of(&prover, &server, End::Client), Some(pair));
            assert!(seen.insert(pair));
        }
    }

    #[test]
    fn only_who_shows_the_socket_itself_has_its_pair() {
        let Some(prover) = prover() else { return };
        let (client, server) = connected("127.0.0.1:0", "127.0.0.1");
        let (other, _its) = connected("127.0.0.1:0", "127.0.0.1");
        let addresses = (client.local_addr().unwrap(), client.peer_addr().unwrap());
        let shown = |fd| prover.pair(fd, End::Client, addresses.0, addresses.1);
        assert!(shown(client.as_raw_fd()).is_some());
        assert_eq!(shown(other.as_raw_fd()), None);
        assert_eq!(shown(server.as_raw_fd()), None);
        let file = std::fs::File::open("/dev/null").unwrap();
        for strange in [file.as_raw_fd(), -1, i32::MAX] {
            assert_eq!(shown(strange), None);
        }
    }

    #[test]
    fn a_connection_that_has_carried_a_byte_has_no_pair_and_one_that_has_ended_has() {
        let Some(prover) = prover() else { return };
        let (mut client, server) = connected("127.0.0.1:0", "127.0.0.1");
        client.write_all(b"x").unwrap();
        server.peek(&mut [0]).unwrap();
        assert_eq!(of(&prover, &client, End::Client), None);
        assert_eq!(of(&prover, &server, End::Server), None);
        let (client, server) = connected("127.0.0.1:0", "127.0.0.1");
        let pair = of(&prover, &client, End::Client);
        client.shutdown(std::net::Shutdown::Write).unwrap();
        assert_eq!(server.peek(&mut [0]).unwrap(), 0);
        assert!(pair.is_some());
        assert_eq!(of(&prover, &server, End::Server), pair);
    }
}
