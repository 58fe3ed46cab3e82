//! What processes of this user have found before: a file beside their statistics, which spares a program that is
//! started often the search of the same libraries each time.
//!
//! 1. The file holds numbers of objects that carry nothing, eight bytes each, in no order, some of them twice. A number
//!    is [`super::number_of`]'s with that of the library that searched, so that what an older one has found means
//!    nothing to a newer one.
//! 2. Numbers are appended by one write(2), and the file is emptied by who finds it full. It is read once for a search
//!    and never mapped, so nobody can pull it away.
//! 3. The directory and the file are the user's own. Who can write there can do anything to the user's processes.
//! 4. Without the file, or with statistics off, everything is searched.

use beeline_shm::sys::{self, call};
use beeline_shm::{Fd, memfd};
use beeline_stats::{Text, layout};

use super::number_of;
use crate::life::objects::{self, Object};
use crate::{Errno, files};

const NAME: &str = "cleared";
const NUMBER_BYTES: usize = size_of::<u64>();
/// Numbers in the file, at most, but for those of processes that append at once.
const NUMBERS_MAX: usize = 512;
/// Numbers that a search adds, at most.
const ADDED_MAX: usize = 64;

/// What is known before a search, and what the search adds.
pub(in crate::life) struct Shared {
    /// The number of the library that searches; `None` if nothing is shared.
    own: Option<u64>,
    read: [u64; NUMBERS_MAX],
    read_count: usize,
    added: [u64; ADDED_MAX],
    added_count: usize,
}

impl Shared {
    /// Nothing is known, and nobody told.
    pub(in crate::life) const fn none() -> Self {
        Self { own: None, read: [0; NUMBERS_MAX], read_count: 0, added: [0; ADDED_MAX], added_count: 0 }
    }

    /// Reads what there is.
    pub(in crate::life) fn read() -> Self {
        let mut shared = Self::none();
        shared.own = if crate::config().stats { own_number() } else { None };
        if shared.own.is_some() {
            shared.read_count = open_to_read().and_then(|file| read_numbers(&file, &mut shared.read)).unwrap_or(0);
        }
        shared
    }

    /// Whether an object with this number was found to carry nothing.
    pub(in crate::life) fn has(&self, number: u64) -> bool {
        self.own.is_some_and(|own| self.read.iter().take(self.read_count).any(|&read| read == number ^ own))
    }

    /// An object with this number carries nothing.
    pub(in crate::life) fn add(&mut self, number: u64) {
        if let (Some(own), Some(place)) = (self.own, self.added.get_mut(self.added_count)) {
            *place = number ^ own;
            self.added_count = self.added_count.wrapping_add(1);
        }
    }

    /// Tells others.
    pub(in crate::life) fn write(&self) {
        let added = self.added.get(..self.added_count).unwrap_or_default();
        if !added.is_empty()
            && let Ok(file) = open_to_append()
        {
            append(&file, added, self.read_count == NUMBERS_MAX);
        }
    }
}

/// The number of this library itself.
fn own_number() -> Option<u64> {
    let is_own = |object: &Object| object.holds(libc::PT_LOAD, own_number as fn() -> Option<u64> as usize);
    let mut own = None;
    objects::each(|object| match is_own(object) {
        true => {
            own = number_of(object);
            core::ops::ControlFlow::Break(())
        }
        false => core::ops::ControlFlow::Continue(()),
    });
    own
}

/// Opens the file to read it, where there is one and it is the user's own.
fn open_to_read() -> Result<Fd, Errno> {
    let user = files::user()?;
    let path = Text::<64>::format(format_args!("{}/{NAME}", layout::directory_path(user).as_str()));
    let path = path.ok_or(Errno(libc::ENAMETOOLONG))?;
    // What is not a file of the user's own may be anything, even something that waits for a writer.
    let file = files::open(libc::AT_FDCWD, path.as_c_str(), libc::O_RDONLY | libc::O_NONBLOCK, 0)?;
    if memfd::owner(file.get())? == user { Ok(file) } else { Err(Errno(libc::EPERM)) }
}

/// Opens the file to append, made if need be.
fn open_to_append() -> Result<Fd, Errno> {
    let name = Text::<16>::format(format_args!("{NAME}")).ok_or(Errno(libc::ENAMETOOLONG))?;
    let directory = files::open_directory(files::user()?)?;
    files::open(directory.get(), name.as_c_str(), libc::O_WRONLY | libc::O_APPEND | libc::O_CREAT, 0o600)
}

/// Reads numbers from the beginning; how many.
fn read_numbers(file: &Fd, numbers: &mut [u64]) -> Result<usize, Errno> {
    // SAFETY: the same memory, for which any bytes are valid numbers.
    let bytes = unsafe { core::slice::from_raw_parts_mut(numbers.as_mut_ptr().cast::<u8>(), size_of_val(numbers)) };
    sys::read_at(file.get(), bytes, 0).map(|count| count / NUMBER_BYTES)
}

fn append(file: &Fd, numbers: &[u64], is_full: bool) {
    if !files::may_be_long(2 * NUMBERS_MAX * NUMBER_BYTES) {
        return;
    }
    if is_full {
        // SAFETY: plain numbers.
        let _ = unsafe { call(libc::SYS_ftruncate, [file.get() as usize, 0, 0, 0, 0, 0]) };
    }
    let args = [file.get() as usize, numbers.as_ptr() as usize, size_of_val(numbers), 0, 0, 0];
    // SAFETY: live numbers of the length given. What could not be written is searched again.
    let _ = unsafe { call(libc::SYS_write, args) };
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::IntoRawFd;

    #[test]
    fn what_one_appends_another_reads() {
        let path = std::env::temp_dir().join(format!("beeline-cleared-{}", std::process::id()));
        let options = |path| std::fs::OpenOptions::new().read(true).append(true).create_new(true).open(path);
        let file = Fd::own(options(&path).unwrap().into_raw_fd());
        std::fs::remove_file(&path).unwrap();
        append(&file, &[1, 2, 3], false);
        append(&file, &[4], false);
        let mut numbers = [0; NUMBERS_MAX];
        assert_eq!(read_numbers(&file, &mut numbers), Ok(4));
        assert_eq!(numbers[..5], [1, 2, 3, 4, 0]);
        append(&file, &[5], true);
        assert_eq!(read_numbers(&file, &mut numbers), Ok(1));
        assert_eq!(numbers[0], 5);
    }
}
