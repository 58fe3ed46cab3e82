//! Files that decide who is who must not be in others' hands.

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use anyhow::{Context, bail};

/// Far more than any of our files has.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// Whether others may read the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Private {
    /// A key: only its owner may.
    Yes,
    /// Configuration, a certificate: anybody may.
    No,
}

/// Reads a file that belongs to root, to us or to `heir`, the user who we are about to become, and that nobody else may
/// write (or, if private, read). The open file is asked, so it is the one that is read.
pub fn read_guarded(path: &Path, private: Private, heir: Option<u32>) -> anyhow::Result<String> {
    let file = File::open(path)?;
    check(&file, private, heir)?;
    let mut text = String::new();
    file.take(FILE_BYTES_MAX + 1).read_to_string(&mut text)?;
    if text.len() as u64 > FILE_BYTES_MAX {
        bail!("it is longer than {FILE_BYTES_MAX} bytes");
    }
    Ok(text)
}

/// The same check for a directory, whose entries are then files that only the trusted could put there.
pub fn check_directory(path: &Path) -> anyhow::Result<()> {
    let directory = File::open(path).with_context(|| format!("cannot open {}", path.display()))?;
    if !directory.metadata()?.is_dir() {
        bail!("{} is no directory", path.display());
    }
    check(&directory, Private::No, None).with_context(|| format!("cannot use {}", path.display()))
}

fn check(file: &File, private: Private, heir: Option<u32>) -> anyhow::Result<()> {
    let metadata = file.metadata()?;
    let user = nix::unistd::geteuid().as_raw();
    if metadata.uid() != 0 && metadata.uid() != user && Some(metadata.uid()) != heir {
        bail!("it belongs to user {}, not to root or to the user {user} who runs the bridge", metadata.uid());
    }
    let mode = metadata.mode() & 0o7777;
    match private {
        Private::Yes if mode & 0o077 != 0 => {
            bail!("others have access to it (its mode is {mode:04o}); `chmod 600` it, and if they had, make a new key")
        }
        Private::No if mode & 0o022 != 0 => {
            bail!("others can write it (its mode is {mode:04o}); `chmod go-w` it")
        }
        _ => Ok(()),
    }
}
