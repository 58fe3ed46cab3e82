//! Type-stable memory: objects in mappings that are never unmapped.
//!
//! A thread may hold a pointer to an object that another thread is just giving back. Because the memory
//! stays an object of the same type for ever, such a thread can still lock it and then find that it is
//! no longer what it was looking for.

use core::marker::PhantomData;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use beeline_shm::sys;

use crate::lock::Lock;
use crate::static_ref::StaticRef;

/// Memory mapped at a time.
const MAPPED_BYTES: usize = 128 * 1024;
/// Objects begin at pairs of cache lines, which a CPU fetches together: of two, different threads write each.
const ALIGN: usize = 128;

/// An object that can live in a [`Slab`]: valid when zeroed, with a link for the list of free ones.
///
/// # Safety
/// All-zero bytes must be a valid value, and the type must be `Sync` through atomics.
pub unsafe trait Stable: Sync + Sized + 'static {
    /// The link to the next free object; not used while the object is in use.
    fn next_free(&self) -> &StaticRef<Self>;

    /// Frees the object's locks, if it has any, of threads of the parent: nobody uses the object, and this is the child
    /// of a fork.
    fn forget_other_threads(&self) {}
}

/// A growing pool of `T`.
#[repr(align(64))]
pub struct Slab<T: Stable> {
    lock: Lock,
    free: StaticRef<T>,
    /// The first on the free list of those that were there at the last fork, in the child of one; else none.
    inherited: StaticRef<T>,
    used: AtomicU32,
    marker: PhantomData<T>,
}

impl<T: Stable> Default for Slab<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T: Stable> Slab<T> {
    /// An empty pool.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            lock: Lock::new(),
            free: StaticRef::none(),
            inherited: StaticRef::none(),
            used: AtomicU32::new(0),
            marker: PhantomData,
        }
    }

    /// Takes an object: zeroed when its memory is new, as its last user left it otherwise. `None` when the
    /// kernel gives no more memory.
    pub fn take(&self) -> Option<&'static T> {
        let _guard = self.lock.lock();
        let object = match self.take_free() {
            Some(object) => object,
            None => FRESH.take::<T>()?,
        };
        self.used.fetch_add(1, Ordering::Relaxed);
        Some(object)
    }

    /// Takes the first of those that were given back. The lock is held.
    fn take_free(&self) -> Option<&'static T> {
        let object = self.free.load(Ordering::Relaxed)?;
        let next = object.next_free().load(Ordering::Relaxed);
        if self.inherited.leads_to(object, Ordering::Relaxed) {
            object.forget_other_threads();
            self.inherited.store(next, Ordering::Relaxed);
        }
        self.free.store(next, Ordering::Relaxed);
        Some(object)
    }

    /// Gives an object back.
    pub fn give(&self, object: &'static T) {
        let _guard = self.lock.lock();
        object.next_free().store(self.free.load(Ordering::Relaxed), Ordering::Relaxed);
        self.free.store(Some(object), Ordering::Relaxed);
        self.used.fetch_sub(1, Ordering::Relaxed);
    }

    /// For the child of a `fork`, where other threads do not exist. An object on its way to or from the list is lost.
    pub fn reset_after_fork(&self) {
        self.lock.reset();
        let free = self.free.load(Ordering::Relaxed);
        if self.inherited.load(Ordering::Relaxed).map(core::ptr::from_ref) != free.map(core::ptr::from_ref) {
            self.inherited.store(free, Ordering::Relaxed);
        }
    }
}

/// Memory that no object has had yet, for all slabs: what is made together lies together, and a child of a server that
/// forks gets copies of few pages. It is in no list: to link it would touch all of it.
struct Fresh {
    lock: Lock,
    next: AtomicUsize,
    left: AtomicUsize,
}

#[unsafe(link_section = ".fork.locked")]
static FRESH: Fresh = Fresh { lock: Lock::new(), next: AtomicUsize::new(0), left: AtomicUsize::new(0) };

/// In the child of a `fork`: nobody takes memory. If a thread was about to, its mapping is not used any further: the
/// two words may have been written in any order.
pub fn reset_after_fork() {
    if FRESH.lock.reset() {
        FRESH.left.store(0, Ordering::Relaxed);
    }
}

impl Fresh {
    fn take<T: Stable>(&self) -> Option<&'static T> {
        const { assert!(align_of::<T>() <= ALIGN && size_of::<T>() <= MAPPED_BYTES) };
        let bytes = size_of::<T>().next_multiple_of(ALIGN);
        let _guard = self.lock.lock();
        if self.left.load(Ordering::Relaxed) < bytes {
            let base = sys::map_private(MAPPED_BYTES).ok()?;
            self.next.store(base.expose_provenance(), Ordering::Relaxed);
            self.left.store(MAPPED_BYTES, Ordering::Relaxed);
        }
        let object = NonNull::new(core::ptr::with_exposed_provenance_mut::<T>(self.next.load(Ordering::Relaxed)))?;
        self.left.fetch_sub(bytes, Ordering::Relaxed);
        self.next.fetch_add(bytes, Ordering::Relaxed);
        // SAFETY: within a mapping that stays, of which nobody else gets this part. Zeroed memory is a valid `T` by the
        // trait's contract, and mappings are page-aligned.
        Some(unsafe { object.as_ref() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Default)]
    struct Object {
        lock: Lock,
        next_free: StaticRef<Object>,
    }

    // SAFETY: every field is an atomic for which zero is valid.
    unsafe impl Stable for Object {
        fn next_free(&self) -> &StaticRef<Self> {
            &self.next_free
        }

        fn forget_other_threads(&self) {
            self.lock.reset();
        }
    }

    #[test]
    fn a_free_object_that_another_thread_had_locked_is_free_in_the_child_of_a_fork() {
        static SLAB: Slab<Object> = Slab::new();
        let objects = [SLAB.take().unwrap(), SLAB.take().unwrap()];
        // As it stays when only the forking thread goes on.
        std::thread::spawn(move || objects.map(|object| core::mem::forget(object.lock.lock()))).join().unwrap();
        objects.iter().for_each(|object| SLAB.give(object));
        SLAB.reset_after_fork();
        let [first, second] = [SLAB.take().unwrap(), SLAB.take().unwrap()];
        assert!(core::ptr::eq(first, objects[1]) && core::ptr::eq(second, objects[0]));
        drop((first.lock.lock(), second.lock.lock()));
    }

    #[test]
    fn what_the_child_gives_back_itself_keeps_its_lock() {
        static SLAB: Slab<Object> = Slab::new();
        SLAB.reset_after_fork();
        let object = SLAB.take().unwrap();
        SLAB.reset_after_fork();
        let held = object.lock.lock();
        SLAB.give(object);
        let again = SLAB.take().unwrap();
        assert!(core::ptr::eq(object, again) && again.lock.try_lock().is_none());
        drop(held);
    }
}
