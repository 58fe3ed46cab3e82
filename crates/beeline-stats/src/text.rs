//! Short strings without an allocator: paths and file names for calls that want a NUL at the end.

use core::fmt;

/// A string of at most `N - 1` bytes with a NUL after it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Text<const N: usize> {
    bytes: [u8; N],
    len: usize,
}

impl<const N: usize> Text<N> {
    /// The empty string.
    pub const EMPTY: Self = Self { bytes: [0; N], len: 0 };

    /// Formats into a new string; `None` when it does not fit.
    #[must_use]
    pub fn format(arguments: fmt::Arguments<'_>) -> Option<Self> {
        let mut text = Self::EMPTY;
        fmt::write(&mut text, arguments).ok()?;
        Some(text)
    }

    /// The string without its NUL.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        self.bytes.get(..self.len).unwrap_or_default()
    }

    /// The string as text. Only whole `str` pieces are ever written, so this is all of it.
    #[must_use]
    pub fn as_str(&self) -> &str {
        core::str::from_utf8(self.as_bytes()).unwrap_or_default()
    }

    /// The string for a call that wants a C string. Empty when the text itself holds a NUL.
    #[must_use]
    pub fn as_c_str(&self) -> &core::ffi::CStr {
        // At most N - 1 bytes are written, so the byte after the text is always the NUL it began as.
        self.bytes
            .get(..=self.len)
            .and_then(|bytes| core::ffi::CStr::from_bytes_with_nul(bytes).ok())
            .unwrap_or_default()
    }
}

impl<const N: usize> fmt::Write for Text<N> {
    fn write_str(&mut self, piece: &str) -> fmt::Result {
        let end = self.len.checked_add(piece.len()).ok_or(fmt::Error)?;
        if end >= N {
            return Err(fmt::Error);
        }
        let target = self.bytes.get_mut(self.len..end).ok_or(fmt::Error)?;
        target.copy_from_slice(piece.as_bytes());
        self.len = end;
        Ok(())
    }
}

impl<const N: usize> fmt::Debug for Text<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_str(), f)
    }
}

impl<const N: usize> fmt::Display for Text<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::Text;

    #[test]
    fn a_text_that_just_fits_keeps_its_nul() {
        let text = Text::<4>::format(format_args!("abc")).unwrap();
        assert_eq!(text.as_str(), "abc");
        assert_eq!(text.as_c_str().to_bytes(), b"abc");
    }

    #[test]
    fn a_text_that_does_not_fit_is_refused() {
        assert!(Text::<4>::format(format_args!("abcd")).is_none());
        assert!(Text::<0>::format(format_args!("a")).is_none());
    }
}
