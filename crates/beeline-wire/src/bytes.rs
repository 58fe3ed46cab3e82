//! Reading and writing fixed fields of byte strings, where "outside" is `None` and never a panic.

/// The `N` bytes at `offset`.
pub(crate) fn array_at<const N: usize>(bytes: &[u8], offset: usize) -> Option<[u8; N]> {
    bytes.get(offset..)?.first_chunk::<N>().copied()
}

/// The number at `offset` in native order, which is what netlink speaks.
pub(crate) fn u16_at(bytes: &[u8], offset: usize) -> Option<u16> {
    array_at(bytes, offset).map(u16::from_ne_bytes)
}

/// The number at `offset` in native order.
pub(crate) fn u32_at(bytes: &[u8], offset: usize) -> Option<u32> {
    array_at(bytes, offset).map(u32::from_ne_bytes)
}

/// The byte at `offset`.
pub(crate) fn u8_at(bytes: &[u8], offset: usize) -> Option<u8> {
    bytes.get(offset).copied()
}

/// Writes a message of fixed size from front to back. What would not fit is left out; every
/// encoder has a test that its message is filled exactly.
pub(crate) struct Writer<const N: usize> {
    bytes: [u8; N],
    len: usize,
}

impl<const N: usize> Writer<N> {
    pub(crate) const fn new() -> Self {
        Self { bytes: [0; N], len: 0 }
    }

    #[must_use]
    pub(crate) fn put(mut self, source: &[u8]) -> Self {
        let end = self.len.saturating_add(source.len());
        if let Some(target) = self.bytes.get_mut(self.len..end) {
            target.copy_from_slice(source);
            self.len = end;
        }
        self
    }

    #[must_use]
    pub(crate) fn u8(self, number: u8) -> Self {
        self.put(&[number])
    }

    #[must_use]
    pub(crate) fn u16(self, number: u16) -> Self {
        self.put(&number.to_ne_bytes())
    }

    #[must_use]
    pub(crate) fn u32(self, number: u32) -> Self {
        self.put(&number.to_ne_bytes())
    }

    pub(crate) const fn len(&self) -> usize {
        self.len
    }

    pub(crate) const fn finish(self) -> [u8; N] {
        self.bytes
    }
}
