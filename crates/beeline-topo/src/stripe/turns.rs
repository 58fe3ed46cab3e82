//! Whose turn it is: deficit round robin (Shreedhar and Varghese, 1995).
//!
//! 1. Connections that have something to send stand in a ring. The one in front may send as long as its deficit covers
//!    the next chunk; then it gets a quantum of bytes and goes to the back. So all get the same bytes, whatever the sizes
//!    of their chunks, and a connection that has just begun waits for one quantum of each other one at most.
//! 2. One that cannot send now (its rails have no room, its peer granted no space) goes to the back and keeps its
//!    deficit, at most one quantum or one chunk: time in which it could not send is not saved up.
//! 3. One that has nothing to send leaves the ring and its deficit.

use std::collections::{BTreeMap, VecDeque};

/// What a connection has in front.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Head {
    /// A chunk of this length, which can be sent now.
    Ready(u64),
    /// Something that cannot be sent now.
    Blocked,
    /// Nothing.
    Empty,
}

/// The ring.
#[derive(Clone, Debug)]
pub struct Turns<K> {
    quantum_bytes: u64,
    ring: VecDeque<K>,
    deficits: BTreeMap<K, u64>,
}

impl<K: Copy + Ord> Turns<K> {
    /// An empty ring. A quantum of at least the largest chunk makes each step take constant time.
    pub fn new(quantum_bytes: u64) -> Self {
        Self { quantum_bytes: quantum_bytes.max(1), ring: VecDeque::new(), deficits: BTreeMap::new() }
    }

    /// The connection has something to send. Saying so again changes nothing.
    pub fn wants(&mut self, connection: K) {
        if let std::collections::btree_map::Entry::Vacant(entry) = self.deficits.entry(connection) {
            entry.insert(0);
            self.ring.push_back(connection);
        }
    }

    /// The connection is gone.
    pub fn remove(&mut self, connection: K) {
        if self.deficits.remove(&connection).is_some() {
            self.ring.retain(|&other| other != connection);
        }
    }

    /// How many stand in the ring.
    pub fn len(&self) -> usize {
        self.ring.len()
    }

    /// Whether nobody wants to send.
    pub fn is_empty(&self) -> bool {
        self.ring.is_empty()
    }

    /// Who sends next, and how much: the length that `head` gave for it. The caller sends just that chunk before it asks
    /// again. `None` if none of them can send.
    pub fn next(&mut self, mut head: impl FnMut(K) -> Head) -> Option<(K, u64)> {
        let mut blocked_in_a_row = 0_usize;
        while blocked_in_a_row < self.ring.len() {
            let connection = *self.ring.front()?;
            let deficit = self.deficits.entry(connection).or_insert(0);
            match head(connection) {
                Head::Ready(bytes) if bytes <= *deficit => {
                    *deficit = deficit.saturating_sub(bytes);
                    return Some((connection, bytes));
                }
                Head::Ready(_) => {
                    *deficit = deficit.saturating_add(self.quantum_bytes);
                    self.ring.rotate_left(1);
                    blocked_in_a_row = 0;
                }
                Head::Blocked => {
                    *deficit = (*deficit).min(self.quantum_bytes);
                    self.ring.rotate_left(1);
                    blocked_in_a_row = blocked_in_a_row.saturating_add(1);
                }
                Head::Empty => {
                    self.deficits.remove(&connection);
                    self.ring.pop_front();
                }
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lets connections with endless chunks of these lengths send, and returns how many bytes each one sent.
    fn run(quantum: u64, chunks: &[u64], steps: usize) -> Vec<u64> {
        let mut turns = Turns::new(quantum);
        (0..chunks.len()).for_each(|connection| turns.wants(connection));
        let mut sent = vec![0; chunks.len()];
        for _ in 0..steps {
            let (connection, bytes) = turns.next(|connection| Head::Ready(chunks[connection])).unwrap();
            sent[connection] += bytes;
        }
        sent
    }

    #[test]
    fn small_chunks_get_as_many_bytes_as_large_ones() {
        let sent = run(65_536, &[1_500, 65_536, 9_000], 10_000);
        let (least, most) = (sent.iter().min().unwrap(), sent.iter().max().unwrap());
        // They differ by a quantum and a chunk at most.
        assert!(most - least <= 2 * 65_536, "{sent:?}");
    }

    #[test]
    fn chunks_larger_than_the_quantum_are_sent_in_the_end() {
        let sent = run(1_000, &[64_000, 500], 1_000);
        assert!(sent[0].abs_diff(sent[1]) <= 2 * 64_000, "{sent:?}");
    }

    #[test]
    fn a_blocked_connection_holds_up_nobody_and_saves_up_nothing() {
        let mut turns = Turns::new(1_000);
        turns.wants('a');
        turns.wants('b');
        for _ in 0..100 {
            let head = |connection| if connection == 'a' { Head::Blocked } else { Head::Ready(1_000) };
            assert_eq!(turns.next(head), Some(('b', 1_000)));
        }
        let mut order = String::new();
        for _ in 0..20 {
            order.push(turns.next(|_| Head::Ready(1_000)).unwrap().0);
        }
        assert!(!order.contains("aaa") && !order.contains("bbb"), "{order}");
        assert_eq!(turns.next(|_| Head::Blocked), None);
        assert_eq!(turns.len(), 2);
    }

    #[test]
    fn one_with_nothing_to_send_leaves() {
        let mut turns = Turns::new(10);
        turns.wants(1);
        turns.wants(1);
        assert_eq!(turns.len(), 1);
        assert_eq!(turns.next(|_| Head::Empty), None);
        assert!(turns.is_empty());
        turns.wants(2);
        turns.wants(3);
        turns.remove(2);
        assert_eq!(turns.next(|_| Head::Ready(1)), Some((3, 1)));
    }
}
