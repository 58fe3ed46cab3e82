//! References to what lives for ever, which change while threads read them.

use core::sync::atomic::{AtomicPtr, Ordering};

/// An `Option<&'static T>` in an atomic; none when zeroed.
///
/// The order is the caller's to choose, as with any atomic. `Relaxed` is enough where what it leads to is constant, or
/// consists of atomics, as all objects of a [`crate::slab`] do.
#[repr(transparent)]
pub struct StaticRef<T: Sync + 'static>(AtomicPtr<T>);

impl<T: Sync> Default for StaticRef<T> {
    fn default() -> Self {
        Self::none()
    }
}

impl<T: Sync> StaticRef<T> {
    /// Leads nowhere.
    #[must_use]
    pub const fn none() -> Self {
        Self(AtomicPtr::new(core::ptr::null_mut()))
    }

    /// What it leads to.
    #[must_use]
    #[inline(always)]
    pub fn load(&self, order: Ordering) -> Option<&'static T> {
        Self::reference(self.0.load(order))
    }

    /// Leads to `object`, or nowhere, from now on.
    #[inline(always)]
    pub fn store(&self, object: Option<&'static T>, order: Ordering) {
        self.0.store(Self::pointer(object), order);
    }

    /// The same. What it led to before.
    #[inline(always)]
    pub fn swap(&self, object: Option<&'static T>, order: Ordering) -> Option<&'static T> {
        Self::reference(self.0.swap(Self::pointer(object), order))
    }

    /// Whether it leads to `object`.
    #[must_use]
    #[inline(always)]
    pub fn leads_to(&self, object: &'static T, order: Ordering) -> bool {
        core::ptr::eq(self.0.load(order), object)
    }

    #[inline(always)]
    fn pointer(object: Option<&'static T>) -> *mut T {
        object.map_or(core::ptr::null_mut(), |object| core::ptr::from_ref(object).cast_mut())
    }

    #[inline(always)]
    fn reference(pointer: *mut T) -> Option<&'static T> {
        // SAFETY: null, or made of a `&'static T`, which any thread may have as `T` is `Sync`.
        unsafe { pointer.as_ref() }
    }
}
