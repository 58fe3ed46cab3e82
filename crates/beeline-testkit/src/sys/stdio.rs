//! libc's buffered streams.

use super::{Ret, call};
use std::ffi::CStr;

unsafe extern "C" {
    fn dprintf(fd: i32, format: *const libc::c_char, ...) -> i32;
}

/// A stream, closed by [`Stream::close`] alone.
#[derive(Debug, Clone, Copy)]
pub struct Stream(*mut libc::FILE);

// SAFETY: libc's streams have locks of their own.
unsafe impl Send for Stream {}

impl Stream {
    /// `fdopen`; the second value is its failure.
    #[must_use]
    pub fn open(fd: i32, mode: &CStr) -> (Option<Self>, Ret) {
        let mut stream = std::ptr::null_mut();
        let ret = call(|| {
            // SAFETY: the mode is a string.
            stream = unsafe { libc::fdopen(fd, mode.as_ptr()) };
            if stream.is_null() { -1 } else { 0 }
        });
        ((!stream.is_null()).then_some(Self(stream)), ret)
    }

    #[must_use]
    pub fn fileno(self) -> i32 {
        // SAFETY: an open stream, here and below.
        unsafe { libc::fileno(self.0) }
    }

    pub fn read(self, buffer: &mut [u8]) -> Ret {
        // SAFETY: the buffer is valid for its length.
        call(|| unsafe { libc::fread(buffer.as_mut_ptr().cast(), 1, buffer.len(), self.0) as i64 })
    }

    pub fn write(self, data: &[u8]) -> Ret {
        // SAFETY: the data is valid for its length.
        call(|| unsafe { libc::fwrite(data.as_ptr().cast(), 1, data.len(), self.0) as i64 })
    }

    /// `fgets`: the line with its end; nothing at the end of the stream.
    #[must_use]
    pub fn line(self, room: usize) -> Option<String> {
        let mut buffer = vec![0_u8; room];
        // SAFETY: the buffer is valid for its length.
        let got = unsafe { libc::fgets(buffer.as_mut_ptr().cast(), room as i32, self.0) };
        if got.is_null() {
            return None;
        }
        CStr::from_bytes_until_nul(&buffer).ok().map(|text| text.to_string_lossy().into_owned())
    }

    /// `getline`.
    #[must_use]
    pub fn whole_line(self) -> Option<String> {
        let (mut text, mut room) = (std::ptr::null_mut(), 0);
        // SAFETY: getline allocates what it stores; it is freed once.
        unsafe {
            let got = libc::getline(&raw mut text, &raw mut room, self.0);
            let line = (got >= 0).then(|| CStr::from_ptr(text).to_string_lossy().into_owned());
            libc::free(text.cast());
            line
        }
    }

    /// `fprintf` of a number and a word.
    pub fn print(self, number: i32, word: &CStr) -> Ret {
        // SAFETY: the format takes an int and a string.
        call(|| i64::from(unsafe { libc::fprintf(self.0, c"%05d %s\n".as_ptr(), number, word.as_ptr()) }))
    }

    pub fn unread(self, byte: u8) -> Ret {
        // SAFETY: an open stream.
        call(|| i64::from(unsafe { libc::ungetc(i32::from(byte), self.0) }))
    }

    pub fn flush(self) -> Ret {
        // SAFETY: an open stream.
        call(|| i64::from(unsafe { libc::fflush(self.0) }))
    }

    pub fn close(self) -> Ret {
        // SAFETY: an open stream, which the caller uses no more.
        call(|| i64::from(unsafe { libc::fclose(self.0) }))
    }

    pub fn seek(self, to: i64) -> Ret {
        // SAFETY: an open stream.
        call(|| i64::from(unsafe { libc::fseek(self.0, to, libc::SEEK_SET) }))
    }

    /// End of file, error.
    #[must_use]
    pub fn marks(self) -> (bool, bool) {
        // SAFETY: an open stream.
        unsafe { (libc::feof(self.0) != 0, libc::ferror(self.0) != 0) }
    }

    pub fn clear(self) {
        // SAFETY: an open stream.
        unsafe { libc::clearerr(self.0) };
    }

    /// `setvbuf` without a buffer of ours.
    pub fn buffer(self, mode: i32) -> Ret {
        // SAFETY: an open stream that was not used yet.
        call(|| i64::from(unsafe { libc::setvbuf(self.0, std::ptr::null_mut(), mode, 0) }))
    }
}

/// `dprintf` of a number and a word.
pub fn print_to(fd: i32, number: i32, word: &CStr) -> Ret {
    // SAFETY: the format takes an int and a string.
    call(|| i64::from(unsafe { dprintf(fd, c"%05d %s\n".as_ptr(), number, word.as_ptr()) }))
}
