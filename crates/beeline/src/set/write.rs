//! Writing what is set into a process's statistics file.

use std::fs::{File, OpenOptions};
use std::io;
use std::mem::offset_of;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};

use anyhow::{Context, bail};
use beeline_stats::Snapshot;
use beeline_stats::layout::{ConnectionSlot, FILE_BYTES_MAX, HEADER_BYTES, SLOT_BYTES, StatsHeader};
use beeline_stats::tunables::OptionSpec;

use crate::cli::Selection;
use crate::output::complain;
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

/// Of several processes with a name, those in containers are left out if others can be told, and that is said.
pub(super) fn leave_out(processes: &mut Vec<Process>, selection: &Selection) {
    if !matches!(selection, Selection::Program(_)) || processes.iter().all(is_out_of_reach) {
        return;
    }
    for process in processes.extract_if(.., |process| is_out_of_reach(process)) {
        complain(format_args!("{} ({}) is left out: {OUT_OF_REACH}", process.program, process.pid));
    }
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

    use beeline_stats::layout::FileName;

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

    #[test]
    fn processes_in_containers_are_left_out_beside_others_of_their_name() {
        let directory = tempfile::tempdir().unwrap();
        let by_name = Selection::Program("redis-server".into());
        let left = |make: &[fn(&Path, u32) -> Process], selection: &Selection| {
            let mut processes: Vec<Process> = (1..).zip(make).map(|(pid, make)| make(directory.path(), pid)).collect();
            leave_out(&mut processes, selection);
            processes.iter().map(|process| process.pid).collect::<Vec<_>>()
        };
        assert_eq!(left(&[in_container, process, in_container], &by_name), [2]);
        // Where nobody is left there is an error instead, as for one that was asked for by its number.
        assert_eq!(left(&[in_container, in_container], &by_name), [1, 2]);
        assert_eq!(left(&[in_container], &Selection::Pid(1)), [1]);
    }
}
