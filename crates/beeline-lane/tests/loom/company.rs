//! Who sleeps on two lanes at once is rung on one of them (rule 8 of waking a reader).

use beeline_lane::{Armed, End, Since, Sink, Sleeping, Storage};
use loom::sync::Arc;
use loom::sync::atomic::AtomicU64;
use loom::sync::atomic::Ordering::SeqCst;
use loom::thread;

use super::check;
use super::model::{Holder, Lane, Set};

/// A thread that sleeps on the server's ends of two lanes.
struct Sleeper {
    ends: [Holder; 2],
    set: Arc<Set>,
    /// Lanes that were armed and have had no news since.
    cold: [bool; 2],
    number: u64,
    /// Told of each bell once, it leaves them where they lie.
    by_edges: bool,
}

impl Sleeper {
    fn new(lanes: &[Arc<Lane>; 2], set: &Arc<Set>) -> Sleeper {
        let ends = [0, 1].map(|index| Holder::new(&lanes[index], End::Server));
        Sleeper { ends, set: set.clone(), cold: [false; 2], number: 0, by_edges: false }
    }

    fn by_edges(lanes: &[Arc<Lane>; 2], set: &Arc<Set>) -> Sleeper {
        Sleeper { by_edges: true, ..Sleeper::new(lanes, set) }
    }

    /// Reads until so many bytes have come on each lane.
    fn receive(mut self, wanted: [usize; 2]) {
        let mut got = [0; 2];
        loop {
            for (index, got) in got.iter_mut().enumerate() {
                *got += self.read(index);
            }
            if got.iter().zip(wanted).all(|(got, wanted)| *got >= wanted) {
                return;
            }
            if self.arm_all() {
                continue;
            }
            let told = match self.by_edges {
                true => self.set.sleep_until_told(&self.ends),
                false => self.set.sleep_until_rung(&self.ends),
            };
            for ((end, cold), told) in self.ends.iter().zip(&mut self.cold).zip(told) {
                if told {
                    end.side().rx.note_bell();
                    *cold = false;
                }
            }
        }
    }

    fn read(&mut self, index: usize) -> usize {
        let mut byte = [0];
        let end = &self.ends[index];
        let count = end.reading(|reader| reader.read(Sink::from(&mut byte[..]), end).unwrap());
        if count != 0 {
            self.cold[index] = false;
        }
        count
    }

    /// Names a new sleep in both. Whether there is news.
    fn arm_all(&mut self) -> bool {
        self.number += 1;
        let by_edges = self.by_edges;
        let number = |end: &Holder| if end.lane.visited.load(SeqCst) { 0 } else { self.number };
        for (end, _) in self.ends.iter().zip(self.cold).filter(|(_, cold)| *cold) {
            end.reading(|reader| {
                if end.side().rx.sleep() != 0 {
                    reader.name_sleep(number(end));
                }
            });
        }
        (&self.ends[0]).full_fence();
        let mut news = false;
        for (end, cold) in self.ends.iter().zip(&mut self.cold) {
            *cold = if *cold {
                end.reading(|reader| !reader.has_news())
            } else {
                end.reading(|reader| reader.arm_for(Since::Read, Sleeping { number: number(end), by_edges }, end))
                    == Ok(Armed::Sleep)
            };
            news |= !*cold;
        }
        news
    }
}

fn lanes() -> ([Arc<Lane>; 2], Arc<Set>) {
    let set = Set::new();
    ([0, 1].map(|_| Lane::in_set(&set)), set)
}

/// The client's ends of both lanes, as one process has them.
fn writers(lanes: &[Arc<Lane>; 2]) -> [Holder; 2] {
    let rung = Arc::new(AtomicU64::new(0));
    [0, 1].map(|index| Holder::of_process(&lanes[index], End::Client, &rung))
}

#[test]
fn a_bell_on_one_lane_tells_of_both() {
    check(3, || {
        let (lanes, set) = lanes();
        let [first, second] = writers(&lanes);
        let sleeper = Sleeper::new(&lanes, &set);
        let thread = thread::spawn(move || {
            assert!(first.send(&[1]));
            assert!(second.send(&[2]));
        });
        sleeper.receive([1, 1]);
        thread.join().unwrap();
    });
}

/// The second time, too, when bells of the first lie in both.
#[test]
fn a_bell_on_one_lane_tells_of_both_by_edges() {
    check(2, || {
        let (lanes, set) = lanes();
        let [first, second] = writers(&lanes);
        let sleeper = Sleeper::by_edges(&lanes, &set);
        let thread = thread::spawn(move || {
            for _ in 0..2 {
                assert!(first.send(&[1]));
                assert!(second.send(&[2]));
            }
        });
        sleeper.receive([2, 2]);
        thread.join().unwrap();
    });
}

#[test]
fn threads_of_one_process_ring_for_each_other() {
    check(2, || {
        let (lanes, set) = lanes();
        let sleeper = Sleeper::new(&lanes, &set);
        let threads = writers(&lanes).map(|writer| thread::spawn(move || assert!(writer.send(&[1]))));
        sleeper.receive([1, 1]);
        for thread in threads {
            thread.join().unwrap();
        }
    });
}

/// It reads what is there, and takes the bell that was to tell of the other lane, too.
#[test]
fn who_arms_one_of_the_lanes_by_itself_wakes_the_sleeper() {
    check(2, || {
        let (lanes, set) = lanes();
        let [first, second] = writers(&lanes);
        let sleeper = Sleeper::new(&lanes, &set);
        let visitor = Holder::new(&lanes[0], End::Server);
        let writing = thread::spawn(move || {
            assert!(first.send(&[1]));
            assert!(second.send(&[2]));
        });
        let visiting = thread::spawn(move || {
            visitor.lane.visited.store(true, SeqCst);
            if visitor.reading(|_| visitor.side().rx.sleep() != 0) {
                set.wake();
            }
            let mut byte = [0];
            visitor.reading(|reader| reader.read(Sink::from(&mut byte[..]), &visitor)).unwrap();
            visitor.side().rx.note_bell();
            let (Armed::Ready | Armed::Sleep) = visitor.reading(|reader| reader.arm(Since::Read, &visitor)).unwrap();
        });
        sleeper.receive([0, 1]);
        writing.join().unwrap();
        visiting.join().unwrap();
    });
}
