//! Control messages that a receive gives, as `put_cmsg` (Linux net/core/scm.c) puts them into the app's room.

use crate::app_memory::bogus;

const HEADER_BYTES: usize = size_of::<libc::cmsghdr>();

/// The room that an app has for control messages, and what is in it by now.
pub(super) struct Control {
    room: *mut u8,
    length: usize,
    filled: usize,
    flags: i32,
}

impl Control {
    /// # Safety
    /// The message's control buffer must be writable for its length, or be what the kernel would refuse.
    pub(super) unsafe fn of(message: &libc::msghdr) -> Self {
        Self { room: message.msg_control.cast(), length: message.msg_controllen, filled: 0, flags: 0 }
    }

    /// Bytes that are in it.
    pub(super) fn filled(&self) -> usize {
        self.filled
    }

    /// `MSG_CTRUNC` if something had no room.
    pub(super) fn flags(&self) -> i32 {
        self.flags
    }

    /// Puts one message, cut to the room that is left.
    #[cold]
    pub(super) fn put(&mut self, level: i32, kind: i32, data: &[u8]) {
        let left = self.length.saturating_sub(self.filled);
        if self.room.is_null() || left < HEADER_BYTES {
            self.flags |= libc::MSG_CTRUNC;
            return;
        }
        let whole = HEADER_BYTES.saturating_add(data.len());
        if left < whole {
            self.flags |= libc::MSG_CTRUNC;
        }
        let length = whole.min(left);
        if bogus(self.room as usize, self.length) {
            return;
        }
        let header = libc::cmsghdr { cmsg_len: length, cmsg_level: level, cmsg_type: kind };
        // SAFETY: the app's room is writable up to its length, beyond which neither copy goes; the sources are live.
        unsafe {
            let place = self.room.add(self.filled);
            core::ptr::copy_nonoverlapping((&raw const header).cast(), place, HEADER_BYTES);
            core::ptr::copy_nonoverlapping(data.as_ptr(), place.add(HEADER_BYTES), length - HEADER_BYTES);
        }
        let space = whole.next_multiple_of(align_of::<libc::cmsghdr>());
        self.filled = self.filled.saturating_add(space.min(left));
    }
}
