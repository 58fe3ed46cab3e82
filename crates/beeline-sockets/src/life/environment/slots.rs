//! Memory in which environments are put together, used again and again.
//!
//! 1. A slot is a thread's from [`take`] to [`give_back`]: until a program is spawned, or could not be executed. Its
//!    memory stays with it.
//! 2. The child of a `vfork`, which has its parent's memory and number here, never comes back from executing a program.
//!    So a slot that such a child has taken is marked ([`GUESTS`]), and the next one is had in its place by the same
//!    thread: that it runs again tells that the child is gone. What a thread takes for itself is never used again
//!    before it is given back: a handler of the program's may have interrupted it, and start a program, too. Where the
//!    parent's thread has no number yet, the child goes by where that thread's state lies.
//! 3. A slot whose thread has ended is free. So is one of the time before this process was forked: its thread is not
//!    here. One that goes by a place (rule 2) is the next thread's that has its state there.
//! 4. There are as many slots as are taken at one time: where there is none left, more are mapped, for good.

use core::sync::atomic::{
    AtomicPtr, AtomicU64, AtomicUsize,
    Ordering::{AcqRel, Acquire, Relaxed, Release},
};

use beeline_shm::sys;

use super::List;
use crate::lock::exists;
use crate::process::{self, generation, is_sealed};
use crate::thread;

struct Slot {
    /// Whose it is, as [`owner`] says it; 0 for nobody's.
    owner: AtomicU64,
    memory: AtomicPtr<u8>,
    length: AtomicUsize,
}

/// Slots of a block, which takes less than a page.
const SLOTS: usize = 16;

/// Valid when zeroed.
struct Block {
    slots: [Slot; SLOTS],
    next: AtomicPtr<Block>,
}

static FIRST: Block = Block {
    slots: [const {
        Slot { owner: AtomicU64::new(0), memory: AtomicPtr::new(core::ptr::null_mut()), length: AtomicUsize::new(0) }
    }; SLOTS],
    next: AtomicPtr::new(core::ptr::null_mut()),
};

/// In an owner: the child of a `vfork` has taken it.
const GUESTS: u64 = 1 << 32;
/// The bits of an owner above that one, which tell a process from the one that it was forked from.
const GENERATION: u32 = 33;

/// The calling thread of this process.
#[derive(Clone, Copy)]
struct Caller {
    me: u64,
    /// The same where nobody has asked for its number: for its guests.
    place: u64,
}

impl Caller {
    fn new(is_guest: bool) -> Self {
        let of = |number: u32| u64::from(generation()) << GENERATION | u64::from(number);
        let place = of(thread::place());
        let me = match thread::known_identity() {
            Some(known) => of(known),
            None if is_guest => place,
            None => of(thread::identity()),
        };
        Self { me, place }
    }

    /// Whether nobody uses a slot of this owner any more.
    fn finds_free(self, owner: u64) -> bool {
        owner == 0
            || owner == self.me | GUESTS
            || owner == self.place | GUESTS
            || owner >> GENERATION != self.me >> GENERATION
            || !exists(owner as u32)
    }
}

/// The block behind one. Made if there is none; none if that cannot be.
fn after(block: &Block) -> Option<&'static Block> {
    let mut next = block.next.load(Acquire);
    if next.is_null() {
        let made = sys::map_private(size_of::<Block>()).ok()?;
        match block.next.compare_exchange(next, made.cast(), AcqRel, Acquire) {
            Ok(_) => next = made.cast(),
            Err(others) => {
                next = others;
                // SAFETY: just mapped, and nobody else has seen it.
                unsafe { sys::unmap(made, size_of::<Block>()) };
            }
        }
    }
    // SAFETY: a mapping of that size that stays, and was zeroed.
    unsafe { next.as_ref() }
}

/// Takes a free slot of a block.
fn claim(block: &'static Block, caller: Caller, mark: u64) -> Option<&'static Slot> {
    block.slots.iter().find(|slot| {
        let owner = slot.owner.load(Relaxed);
        caller.finds_free(owner) && slot.owner.compare_exchange(owner, caller.me | mark, AcqRel, Relaxed).is_ok()
    })
}

/// Memory of at least `length` bytes for the calling thread.
pub(super) fn take(length: usize) -> Option<*mut u8> {
    // Asked of the kernel: a child in this memory may have been made past every stub of ours.
    let is_guest = !is_sealed() && sys::getpid() != process::owner();
    let (caller, mark) = (Caller::new(is_guest), if is_guest { GUESTS } else { 0 });
    let mut block = &FIRST;
    let slot = loop {
        match claim(block, caller, mark) {
            Some(slot) => break slot,
            None => block = after(block)?,
        }
    };
    let length = length.next_multiple_of(4096);
    if slot.length.load(Relaxed) < length {
        let Ok(memory) = sys::map_private(length) else {
            slot.owner.store(0, Release);
            return None;
        };
        let old = slot.memory.swap(memory, Relaxed);
        let old_length = slot.length.swap(length, Relaxed);
        if !old.is_null() {
            // SAFETY: nobody else uses it.
            unsafe { sys::unmap(old, old_length) };
        }
    }
    Some(slot.memory.load(Relaxed))
}

/// An environment that this thread has put together is not needed any more.
pub fn give_back(list: List) {
    let memory = list.cast_mut().cast::<u8>();
    let Caller { me, place } = Caller::new(false);
    let is_ours = |owner: u64| owner & !GUESTS == me || owner == place | GUESTS;
    let mut block = Some(&FIRST);
    while let Some(slots) = block {
        let is_it = |slot: &&Slot| is_ours(slot.owner.load(Relaxed)) && slot.memory.load(Relaxed) == memory;
        if let Some(slot) = slots.slots.iter().find(is_it) {
            slot.owner.store(0, Release);
            return;
        }
        // SAFETY: null, or a mapping that stays.
        block = unsafe { slots.next.load(Acquire).as_ref() };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Barrier;

    fn take_and_give_back(length: usize) -> *mut u8 {
        let memory = take(length).unwrap();
        give_back(memory.cast());
        memory
    }

    #[test]
    fn threads_have_memory_of_their_own_and_use_it_again() {
        const THREADS: usize = 3 * SLOTS;
        let turn = &Barrier::new(THREADS);
        let round = move || {
            let memory = take(5000).unwrap();
            turn.wait();
            // SAFETY: as many bytes were asked for.
            unsafe { memory.write_bytes(1, 5000) };
            turn.wait();
            give_back(memory.cast());
            turn.wait();
            memory as usize
        };
        let rounds = |count: usize| {
            let mut all: Vec<usize> = std::thread::scope(|scope| {
                let thread = |_| scope.spawn(move || (0..count).map(|_| round()).collect::<Vec<_>>());
                let threads: Vec<_> = (0..THREADS).map(thread).collect();
                threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
            });
            all.sort_unstable();
            all.dedup();
            all.len()
        };
        assert_eq!(rounds(1), THREADS, "each has its own");
        assert!(rounds(20) < 2 * THREADS, "and no other than before, but for other tests");
    }

    #[test]
    fn what_is_in_use_is_not_given_to_its_own_thread_again() {
        process::become_owner();
        let outer = take(100).unwrap();
        let inner = take_and_give_back(100);
        assert_ne!(outer, inner);
        give_back(outer.cast());
    }

    fn slot_of(memory: *mut u8) -> &'static Slot {
        let mut block = &FIRST;
        loop {
            match block.slots.iter().find(|slot| slot.memory.load(Relaxed) == memory) {
                Some(slot) => return slot,
                None => block = after(block).unwrap(),
            }
        }
    }

    #[test]
    fn what_the_child_of_a_vfork_has_left_is_had_again() {
        std::thread::spawn(|| {
            let memory = take(100).unwrap();
            let slot = slot_of(memory);
            let caller = Caller::new(false);
            let me = caller.me;
            slot.owner.store(me | GUESTS, Relaxed);
            assert!(caller.finds_free(me | GUESTS) && !caller.finds_free(me));
            let other = Caller { me: me - 1, place: caller.place - 1 };
            assert!(!other.finds_free(me | GUESTS));
            let grandchild = Caller { me: me + (1 << GENERATION), place: 0 };
            assert!(grandchild.finds_free(me | GUESTS), "in the child of a fork");
            give_back(memory.cast());
            assert_eq!(slot.owner.load(Relaxed), 0);
        })
        .join()
        .unwrap();
    }

    #[test]
    fn what_the_child_of_a_thread_without_a_number_has_left_is_that_threads() {
        std::thread::spawn(|| {
            assert_eq!(thread::known_identity(), None);
            let guest = Caller::new(true);
            assert_eq!((guest.me, thread::known_identity()), (guest.place, None), "the child tells nobody its number");
            let memory = take(100).unwrap();
            let slot = slot_of(memory);
            slot.owner.store(guest.me | GUESTS, Relaxed);
            let caller = Caller::new(false);
            assert!(caller.me != guest.me && caller.finds_free(guest.me | GUESTS));
            assert!(std::thread::spawn(move || !Caller::new(true).finds_free(guest.me | GUESTS)).join().unwrap());
            give_back(memory.cast());
            assert_eq!(slot.owner.load(Relaxed), 0);
        })
        .join()
        .unwrap();
    }
}
