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

/// Why a process that is [out of reach](is_out_of_reach) cannot be told.
const OUT_OF_REACH: &str = "it runs in a container; `beeline set` has to be said there";

/// Whether a process's statistics are where only it has them.
fn is_out_of_reach(process: &Process) -> bool {
    process.file.as_os_str().is_empty()
}

/// Whether the process can be told at all.
pub(super) fn check(process: &Process) -> anyhow::Result<()> {
    open_file(process).map(drop).with_context(|| cannot_tell(process))
}

fn cannot_tell(process: &Process) -> String {
    format!("cannot tell {} ({})", process.program, process.pid)
}

/// Tells a process, or one connection of it.
pub(super) fn settings(process: &Process, open: Option<&OpenConnection>, settings: &[Setting]) -> anyhow::Result<()> {
    let of = || cannot_tell(process);
    let file = open_file(process).with_context(of)?;
    match open {
        None => settings.iter().try_for_each(|setting| {
            let offset = offset_of!(StatsHeader, settings) + setting.index * size_of::<u64>();
            file.write_all_at(&setting.word.to_ne_bytes(), offset as u64).with_context(of)
        }),
        Some(open) => connection(&file, open, settings).with_context(of),
    }
}

/// Tells one connection. Whoever has its slot by now is not who was meant.
fn connection(file: &File, open: &OpenConnection, settings: &[Setting]) -> anyhow::Result<()> {
    if is_still_there(file, open)? {
        let told = write_own(file, open, settings)?;
        if is_still_there(file, open)? {
            return Ok(());
        }
        take_back(file, &told)?;
    }
    bail!("the connection has ended meanwhile")
}

/// A word of a slot that was changed.
struct Told {
    offset: u64,
    word: u32,
    before: u32,
}

fn write_own(file: &File, open: &OpenConnection, settings: &[Setting]) -> io::Result<Vec<Told>> {
    let tell = |setting: &Setting| {
        let place = connection_options().find(|(_, key)| *key == setting.spec.key).map(|(place, _)| place);
        // Words of such options have 32 bits (`beeline_stats::layout` asserts it).
        let (Some(place), Ok(word)) = (place, u32::try_from(setting.word)) else {
            return Err(io::Error::other("the option cannot be said for one connection"));
        };
        let slot = HEADER_BYTES + open.slot * SLOT_BYTES;
        let offset = (slot + offset_of!(ConnectionSlot, own) + place * size_of::<u32>()) as u64;
        let before = word_at(file, offset)?;
        file.write_all_at(&word.to_ne_bytes(), offset)?;
        Ok(Told { offset, word, before })
    };
    settings.iter().map(tell).collect()
}

/// What the slot's next connection was told by a rule is what stood there before it was written over, or what stands
/// there instead since. One that opens the slot between the look and the write loses it.
fn take_back(file: &File, told: &[Told]) -> io::Result<()> {
    // An option may have been told twice.
    for Told { offset, word, before } in told.iter().rev() {
        if word_at(file, *offset)? == *word {
            file.write_all_at(&before.to_ne_bytes(), *offset)?;
        }
    }
    Ok(())
}

fn word_at(file: &File, offset: u64) -> io::Result<u32> {
    let mut word = [0; size_of::<u32>()];
    file.read_exact_at(&mut word, offset)?;
    Ok(u32::from_ne_bytes(word))
}

/// The file, if it is that process's still.
fn open_file(process: &Process) -> io::Result<File> {
    if is_out_of_reach(process) {
        return Err(io::Error::other(OUT_OF_REACH));
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
    // As it calls itself, in a pid namespace of its own.
    let pid = process.pid_inside.unwrap_or(process.pid);
    let is_same = Snapshot::parse(&bytes)
        .is_ok_and(|snapshot| snapshot.pid() == pid && snapshot.start_ticks() == process.start_ticks);
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

#[cfg(test)]
mod tests {
    use std::path::{Path, PathBuf};

    use beeline_stats::Role;
    use beeline_stats::layout::{FileName, OWN_MAX, Opening};

    use super::*;

    /// A process with a statistics file in a directory.
    fn process(directory: &Path, pid: u32) -> Process {
        // SAFETY: all fields are integer atomics, for which all-zero bytes are valid.
        let header: StatsHeader = unsafe { std::mem::zeroed() };
        let (name, uid) = (FileName { pid, start_ticks: 345 }, directory.metadata().unwrap().uid());
        header.publish(name, uid, 1, b"redis-server");
        // SAFETY: the structure has no padding, and nobody changes it while it is copied.
        let bytes = unsafe { std::slice::from_raw_parts((&raw const header).cast::<u8>(), HEADER_BYTES) };
        let file = directory.join(name.text().as_str());
        std::fs::write(&file, bytes).unwrap();
        Process { file, ..Process::of(&Snapshot::parse(bytes).unwrap(), uid, false) }
    }

    fn in_container(directory: &Path, pid: u32) -> Process {
        Process { file: PathBuf::new(), ..process(directory, pid) }
    }

    #[test]
    fn a_process_of_another_pid_namespace_is_known_by_its_number_there() {
        let directory = tempfile::tempdir().unwrap();
        let mut process = process(directory.path(), 12);
        check(&process).unwrap();
        process.is_called(4711);
        check(&process).unwrap();
        let another = Process { pid_inside: Some(13), ..process };
        let why = format!("{:#}", check(&another).unwrap_err());
        assert!(why.ends_with("its statistics file is that of another process by now"), "{why}");
    }

    #[test]
    fn a_process_in_a_container_is_refused_before_anything_is_written() {
        let directory = tempfile::tempdir().unwrap();
        let why = format!("{:#}", check(&in_container(directory.path(), 12)).unwrap_err());
        assert_eq!(why, format!("cannot tell redis-server (12): {OUT_OF_REACH}"));
    }

    /// The file of a process with one connection, which a rule has told `wait=wait`.
    fn with_connection(directory: &Path) -> (Process, File) {
        let process = process(directory, 12);
        // SAFETY: all fields are integer atomics, for which all-zero bytes are valid.
        let slot: ConnectionSlot = unsafe { std::mem::zeroed() };
        slot.open(&Opening {
            fd: 9,
            role: Role::Server,
            local: "127.0.0.1:6379".parse().unwrap(),
            remote: "127.0.0.1:24000".parse().unwrap(),
            peer_pid: 4711,
            opened_unix_ns: 1,
            lane_inode: 77,
            own: [3; OWN_MAX],
        });
        // SAFETY: the structure has no padding, and nobody changes it while it is copied.
        let bytes = unsafe { std::slice::from_raw_parts((&raw const slot).cast::<u8>(), SLOT_BYTES) };
        let file = File::options().read(true).write(true).open(&process.file).unwrap();
        file.write_all_at(bytes, HEADER_BYTES as u64).unwrap();
        file.write_all_at(&1_u32.to_ne_bytes(), offset_of!(StatsHeader, slots_high_water) as u64).unwrap();
        let bytes = std::fs::read(&process.file).unwrap();
        (Process { file: process.file, ..Process::of(&Snapshot::parse(&bytes).unwrap(), process.uid, false) }, file)
    }

    #[test]
    fn who_has_the_slot_of_a_connection_that_ended_keeps_what_it_was_told() {
        let directory = tempfile::tempdir().unwrap();
        let (process, file) = with_connection(directory.path());
        let open = &process.connections[0];
        let wait = OptionSpec::all().into_iter().enumerate().find(|(_, spec)| spec.key == "wait").unwrap();
        let setting = |word| Setting { index: wait.0, spec: wait.1, word, text: String::new() };
        let all = || std::fs::read(&process.file).unwrap();
        let own = (HEADER_BYTES + offset_of!(ConnectionSlot, own)) as u64;
        let before = all();
        // It had ended before anything was written.
        let opened = (HEADER_BYTES + offset_of!(ConnectionSlot, opened_unix_ns)) as u64;
        file.write_all_at(&2_u64.to_ne_bytes(), opened).unwrap();
        let reused = all();
        let why = format!("{:#}", settings(&process, Some(open), &[setting(2)]).unwrap_err());
        assert!(why.ends_with("the connection has ended meanwhile"), "{why}");
        assert_eq!(all(), reused);
        // It ended after that, and the next one was told so before, or since.
        file.write_all_at(&1_u64.to_ne_bytes(), opened).unwrap();
        let told = write_own(&file, open, &[setting(1), setting(2)]).unwrap();
        assert_ne!(all(), before);
        take_back(&file, &told).unwrap();
        assert_eq!(all(), before);
        let told = write_own(&file, open, &[setting(2)]).unwrap();
        file.write_all_at(&1_u32.to_ne_bytes(), own).unwrap();
        take_back(&file, &told).unwrap();
        assert_eq!(word_at(&file, own).unwrap(), 1);
        file.write_all_at(&3_u32.to_ne_bytes(), own).unwrap();
        settings(&process, Some(open), &[setting(2)]).unwrap();
        assert_eq!(word_at(&file, own).unwrap(), 2);
    }
}
