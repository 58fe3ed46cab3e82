//! App buffers: where bytes come from and go to.
//!
//! An app's other threads may write its buffer while we copy, so a `&[u8]` of it would be a lie. `Source`
//! and `Sink` carry a pointer and a length and can only be copied from or to.

use core::marker::PhantomData;

/// Bytes to be sent, somewhere in the app's memory.
#[derive(Clone, Copy)]
pub struct Source<'a> {
    pointer: *const u8,
    length: usize,
    lifetime: PhantomData<&'a u8>,
}

/// Room for bytes to be received, somewhere in the app's memory.
pub struct Sink<'a> {
    pointer: *mut u8,
    length: usize,
    lifetime: PhantomData<&'a mut u8>,
}

impl<'a> Source<'a> {
    /// A source over an app's buffer.
    ///
    /// # Safety
    /// `pointer` must be readable for `length` bytes for `'a`, as the app promised with its call.
    #[must_use]
    #[inline]
    pub unsafe fn from_raw(pointer: *const u8, length: usize) -> Self {
        Self { pointer, length, lifetime: PhantomData }
    }

    /// Bytes left.
    #[inline]
    #[must_use]
    pub fn len(&self) -> usize {
        self.length
    }

    /// Whether nothing is left.
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Takes the first `count` bytes off the front.
    #[inline]
    #[must_use]
    pub fn split_front(&mut self, count: usize) -> Source<'a> {
        let count = count.min(self.length);
        let front = Source { length: count, ..*self };
        // SAFETY: count <= length, so the pointer stays within (or one past) the buffer.
        self.pointer = unsafe { self.pointer.add(count) };
        self.length -= count;
        front
    }

    /// Where they are.
    #[inline]
    #[must_use]
    pub fn pointer(&self) -> *const u8 {
        self.pointer
    }

    /// Looks at each page of them, so that all of them are there.
    pub fn touch(&self) {
        const PAGE_BYTES: usize = 4096;
        // They need not begin with a page.
        for offset in (0..self.length).step_by(PAGE_BYTES).chain(self.length.checked_sub(1)) {
            // SAFETY: within the bytes, which are readable; what they are does not matter.
            let _ = unsafe { self.pointer.add(offset).read_volatile() };
        }
    }
}

impl<'a> From<&'a [u8]> for Source<'a> {
    #[inline]
    fn from(bytes: &'a [u8]) -> Self {
        Self { pointer: bytes.as_ptr(), length: bytes.len(), lifetime: PhantomData }
    }
}

impl<'a> Sink<'a> {
    /// A sink over an app's buffer.
    ///
    /// # Safety
    /// `pointer` must be writable for `length` bytes for `'a`, as the app promised with its call.
    #[must_use]
    #[inline]
    pub unsafe fn from_raw(pointer: *mut u8, length: usize) -> Self {
        Self { pointer, length, lifetime: PhantomData }
    }

    /// Room left, in bytes.
    #[inline]
    #[must_use]
    pub fn len(&self) -> usize {
        self.length
    }

    /// Whether no room is left.
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Takes the first `count` bytes of room off the front.
    #[inline]
    #[must_use]
    pub fn split_front(&mut self, count: usize) -> Sink<'a> {
        let count = count.min(self.length);
        let front = Sink { pointer: self.pointer, length: count, lifetime: PhantomData };
        // SAFETY: count <= length, so the pointer stays within (or one past) the buffer.
        self.pointer = unsafe { self.pointer.add(count) };
        self.length -= count;
        front
    }

    /// The same room for a shorter time.
    #[inline]
    #[must_use]
    pub fn again(&mut self) -> Sink<'_> {
        Sink { pointer: self.pointer, length: self.length, lifetime: PhantomData }
    }

    #[inline]
    pub(crate) fn pointer(&self) -> *mut u8 {
        self.pointer
    }

    /// Fills from a slice (for storages that are not memory, such as models).
    pub fn fill_from(&mut self, bytes: &[u8]) {
        let front = self.split_front(bytes.len());
        // SAFETY: `front` is writable for its length, which is at most bytes.len(); a borrowed slice and
        // an exclusively borrowed or app-promised buffer do not overlap.
        unsafe { crate::copy::copy(bytes.as_ptr(), front.pointer, front.length) };
    }
}

impl Source<'_> {
    /// Takes bytes off the front into a slice (for storages that are not memory, such as models).
    pub fn drain_into(&mut self, bytes: &mut [u8]) {
        let front = self.split_front(bytes.len());
        // SAFETY: `front` is readable for its length, which is at most bytes.len(); an exclusively
        // borrowed slice does not overlap it.
        unsafe { crate::copy::copy(front.pointer, bytes.as_mut_ptr(), front.length) };
    }
}

impl<'a> From<&'a mut [u8]> for Sink<'a> {
    #[inline]
    fn from(bytes: &'a mut [u8]) -> Self {
        Self { pointer: bytes.as_mut_ptr(), length: bytes.len(), lifetime: PhantomData }
    }
}
