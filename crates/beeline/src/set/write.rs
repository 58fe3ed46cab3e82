//! Writing what is set into a process's statistics file.

use std::fs::{File, OpenOptions};
use std::io;
use std::mem::offset_of;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};

use anyhow::{Context, bail};
use beeline_stats::Snapshot;
use beeline_stats::layout::{ConnectionSlot, FILE_BYTES_MAX, HEADER_BYTES, SLOT_BYTES, StatsHeader};
use beeline_stats::tunables::OptionSpec;

use crate::stat::process::{OpenConnection, Process, connection_options};

/// What is to be set: an option, by its place in the table, and its word; 0 takes back what was set.
pub(super) struct Setting {
    pub index: usize,
    pub spec: OptionSpec,
    pub word: u64,
    /// As it was given.
    pub text: String,
}

/// Tells a process, or one connection of it.
pub(super) fn settings(process: &Process, open: Option<&OpenConnection>, settings: &[Setting]) -> anyhow::Result<()> {
    let of = || format!("cannot tell {} ({})", process.program, process.pid);
    let file = open_file(process).with_context(of)?;
    for setting in settings {
        let written = match open {
            None => {
                let offset = offset_of!(StatsHeader, settings) + setting.index * size_of::<u64>();
                file.write_all_at(&setting.word.to_ne_bytes(), offset as u64)
            }
            Some(open) => write_own(&file, open, setting, setting.word),
        };
        written.with_context(of)?;
    }
    match open {
        Some(open) if !is_still_there(&file, open).with_context(of)? => {
            // Whoever has the slot by now is not who was meant.
            for setting in settings {
                write_own(&file, open, setting, 0).with_context(of)?;
            }
            bail!("the connection has ended meanwhile")
        }
        _ => Ok(()),
    }
}

fn write_own(file: &File, open: &OpenConnection, setting: &Setting, word: u64) -> io::Result<()> {
    let place = connection_options().find(|(_, key)| *key == setting.spec.key).map(|(place, _)| place);
    // Words of such options have 32 bits (`beeline_stats::layout` asserts it).
    let (Some(place), Ok(word)) = (place, u32::try_from(word)) else {
        return Err(io::Error::other("the option cannot be said for one connection"));
    };
    let slot = HEADER_BYTES + open.slot * SLOT_BYTES;
    let offset = slot + offset_of!(ConnectionSlot, own) + place * size_of::<u32>();
    file.write_all_at(&word.to_ne_bytes(), offset as u64)
}

/// The file, if it is that process's still.
fn open_file(process: &Process) -> io::Result<File> {
    if process.file.as_os_str().is_empty() {
        return Err(io::Error::other("it runs in a container; `beeline set` has to be said there"));
    }
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        // Non-blocking, because it may turn out to be a pipe.
        .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK)
        .open(&process.file)?;
    let metadata = file.metadata()?;
    if !metadata.is_file() || metadata.uid() != process.uid {
        return Err(io::Error::other("its statistics file is another one by now"));
    }
    let bytes = read(&file, HEADER_BYTES)?;
    let is_same = Snapshot::parse(&bytes)
        .is_ok_and(|snapshot| snapshot.pid() == process.pid && snapshot.start_ticks() == process.start_ticks);
    if is_same { Ok(file) } else { Err(io::Error::other("its statistics file is that of another process by now")) }
}

fn is_still_there(file: &File, open: &OpenConnection) -> io::Result<bool> {
    let bytes = read(file, FILE_BYTES_MAX)?;
    let same = |then: &beeline_stats::Connection| {
        then.slot == open.slot && then.fd == open.fd && then.opened_unix_ns == open.opened_unix_ns
    };
    Ok(Snapshot::parse(&bytes).is_ok_and(|snapshot| snapshot.connections().any(|then| same(&then))))
}

/// The file's first bytes, as many as there are of these.
fn read(file: &File, most: usize) -> io::Result<Vec<u8>> {
    let length = usize::try_from(file.metadata()?.len()).unwrap_or(usize::MAX).min(most);
    let mut bytes = vec![0; length];
    file.read_exact_at(&mut bytes, 0)?;
    Ok(bytes)
}
