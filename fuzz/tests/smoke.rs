//! Every decoder against random bytes, without a fuzzer, a nightly compiler or a corpus.
//!
//! Bytes that are entirely random hardly get past a magic number. So each round starts from a message
//! that is nearly right and damages it: that is where decoders have their mistakes. The seed is
//! printed; `BEELINE_SEED=<seed>` runs the same round again.

use std::time::{SystemTime, UNIX_EPOCH};

use beeline_fuzz::TARGETS;
use beeline_stats::layout::{HEADER_BYTES, MAGIC, SLOT_BYTES, VERSION};
use beeline_wire::{ConnName, DoorName, Endpoint, Hello};

const ROUNDS: u32 = 20_000;

#[test]
fn damaged_messages_never_panic() {
    let seed = match std::env::var("BEELINE_SEED") {
        Ok(seed) => seed.parse().expect("BEELINE_SEED is a number"),
        Err(_) => SystemTime::now().duration_since(UNIX_EPOCH).map_or(1, |since| since.as_nanos() as u64),
    };
    println!("seed {seed}");
    let mut random = Random(seed);
    let beginnings = beginnings();
    for _ in 0..ROUNDS {
        let mut bytes = beginnings[random.below(beginnings.len())].clone();
        for _ in 0..random.below(8) {
            damage(&mut bytes, &mut random);
        }
        for (_, target) in TARGETS {
            target(&bytes);
        }
    }
}

fn damage(bytes: &mut Vec<u8>, random: &mut Random) {
    let at = random.below(bytes.len() + 1);
    match random.below(5) {
        0 => bytes.truncate(at),
        1 => bytes.insert(at, random.next() as u8),
        2 => {
            // Numbers at the edges of their range.
            let edge = [0, 1, 0x7f, 0x80, 0xff][random.below(5)];
            for byte in bytes.iter_mut().skip(at & !3).take(4) {
                *byte = edge;
            }
        }
        3 => {
            if let Some(byte) = bytes.get_mut(at) {
                *byte ^= 1 << random.below(8);
            }
        }
        _ => {
            if let Some(byte) = bytes.get_mut(at) {
                *byte = random.next() as u8;
            }
        }
    }
}

/// One right message of each kind.
fn beginnings() -> Vec<Vec<u8>> {
    let hello = Hello { reuse: false, ring_bytes: 1 << 20, generation: 0, pid_hint: 1, lane_inode: 2, held: None };
    let conn = |client: &str, server: &str| {
        let end = |text: &str| Endpoint::new(text.parse().expect("an address"));
        let name = ConnName { client: end(client), server: end(server) };
        name.encode().as_bytes().to_vec()
    };
    #[allow(unused_mut)]
    let mut beginnings = vec![
        Vec::new(),
        hello.encode().to_vec(),
        DoorName::encode(3).as_bytes().to_vec(),
        conn("127.0.0.1:1", "127.0.0.1:2"),
        conn("[fe80::1%3]:1", "[::1]:2"),
        listener_answer(),
        route_answer(),
        statistics(),
        b"accelerate=on,wait=poll,spin_ns_max=5,ring_bytes=65536".to_vec(),
    ];
    #[cfg(feature = "bridge")]
    beginnings.extend(beeline_fuzz::bridge::beginnings());
    beginnings
}

fn message(kind: u16, payload: &[u8]) -> Vec<u8> {
    let mut bytes = (16 + payload.len() as u32).to_ne_bytes().to_vec();
    bytes.extend(kind.to_ne_bytes());
    bytes.extend([0; 2]);
    bytes.extend(1_u32.to_ne_bytes());
    bytes.extend(2_u32.to_ne_bytes());
    bytes.extend(payload);
    bytes
}

fn listener_answer() -> Vec<u8> {
    let mut payload = vec![0; 72];
    payload[..2].copy_from_slice(&[2, 10]);
    payload[4..6].copy_from_slice(&80_u16.to_be_bytes());
    payload[44] = 9;
    message(20, &payload)
}

fn route_answer() -> Vec<u8> {
    let mut payload = vec![0; 12];
    payload[0] = 2;
    payload[7] = 2;
    payload.extend([8, 0, 1, 0, 10, 0, 0, 1, 8, 0, 7, 0, 10, 0, 0, 1]);
    message(24, &payload)
}

fn statistics() -> Vec<u8> {
    let mut bytes = vec![0; HEADER_BYTES + 2 * SLOT_BYTES];
    bytes[..8].copy_from_slice(&MAGIC.to_ne_bytes());
    bytes[8..12].copy_from_slice(&VERSION.to_ne_bytes());
    bytes[12..16].copy_from_slice(&(HEADER_BYTES as u32).to_ne_bytes());
    bytes[40..44].copy_from_slice(&2_u32.to_ne_bytes());
    bytes[44..48].copy_from_slice(&(SLOT_BYTES as u32).to_ne_bytes());
    bytes[HEADER_BYTES] = 1;
    bytes[HEADER_BYTES + 112..HEADER_BYTES + 114].copy_from_slice(&[1, 4]);
    bytes
}

/// splitmix64 (Steele, Lea and Flood, 2014): enough for damage, and one number is all of its state.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit as u64) as usize
    }
}
