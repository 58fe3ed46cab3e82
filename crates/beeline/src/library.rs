//! Finding the library, and making sure that the loader will take it.

use std::ffi::OsString;
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use anyhow::Context;
use beeline_stats::library::COMMAND_NOTE;

use crate::elf::{Architecture, Elf};
use crate::failure::Failure;

const NAME: &str = "libbeeline.so";

/// A note of an ELF file that has only a name (elf(5)).
#[repr(C)]
struct Note {
    name_bytes: u32,
    content_bytes: u32,
    kind: u32,
    name: [u8; COMMAND_NOTE.len()],
}

/// Lets the library know this program, so that it leaves the options that it runs with in the environment.
#[used]
#[unsafe(link_section = ".note.beeline")]
static NOTE: Note = Note { name_bytes: COMMAND_NOTE.len() as u32, content_bytes: 0, kind: 0, name: COMMAND_NOTE };

/// The library as an absolute path, and what it is built for.
pub struct Library {
    pub path: PathBuf,
    pub architecture: Architecture,
}

impl Library {
    /// Finds the library: `explicit`, or the one that belongs to this executable.
    pub fn find(explicit: Option<&Path>) -> anyhow::Result<Self> {
        let path = match explicit {
            Some(path) => path.to_owned(),
            None => installed()?,
        };
        Self::open(&path).with_context(|| format!("cannot use the library {}", path.display()))
    }

    fn open(path: &Path) -> anyhow::Result<Self> {
        let file = File::open(path)?;
        let path = path.canonicalize()?;
        // LD_PRELOAD is a list separated by spaces and colons, without any escape (ld.so(8)).
        if path.as_os_str().as_bytes().iter().any(|byte| b" :".contains(byte)) {
            anyhow::bail!("its path holds a space or a colon, which the system's loader cannot take");
        }
        let elf = Elf::read(&file)?.context("it is not an ELF file")?;
        Ok(Self { path, architecture: elf.architecture })
    }

    /// The value of LD_PRELOAD: the library first, then what was there.
    pub fn preload(&self, existing: Option<OsString>) -> OsString {
        let mut list = self.path.clone().into_os_string();
        for other in existing.as_deref().unwrap_or_default().as_bytes().split(|byte| b" :".contains(byte)) {
            // `beeline run beeline run …` loads it once.
            if !other.is_empty() && other != self.path.as_os_str().as_bytes() {
                list.push(":");
                list.push(std::ffi::OsStr::from_bytes(other));
            }
        }
        list
    }
}

/// Whether the library is in this process.
pub fn is_here() -> bool {
    std::fs::read("/proc/self/maps").is_ok_and(|maps| beeline_stats::library::is_mapped(&maps))
}

/// Beside the executable (as a build leaves it), or where an installation puts it.
fn installed() -> anyhow::Result<PathBuf> {
    let executable = std::env::current_exe().context("cannot find this executable")?;
    let directory = executable.parent().unwrap_or(Path::new("/"));
    let candidates =
        [directory.join(NAME), directory.join("../lib/beeline").join(NAME), directory.join("../lib").join(NAME)];
    candidates.iter().find(|path| path.exists()).cloned().ok_or_else(|| {
        let places: Vec<String> = candidates.iter().map(|path| format!("\n  {}", path.display())).collect();
        Failure::error(
            Failure::OURS,
            format!(
                "cannot find {NAME}; build it with `cargo build --release`, or name it with \
                 --library. It was looked for at{}",
                places.concat()
            ),
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::OsStr;

    #[test]
    fn what_was_preloaded_stays_and_nothing_is_loaded_twice() {
        let file = File::open("/proc/self/exe").unwrap();
        let library =
            Library { path: "/x/libbeeline.so".into(), architecture: Elf::read(&file).unwrap().unwrap().architecture };
        let preload = |existing: &str| library.preload(Some(OsStr::new(existing).to_owned()));
        assert_eq!(library.preload(None), "/x/libbeeline.so");
        assert_eq!(preload(""), "/x/libbeeline.so");
        assert_eq!(preload("a.so b.so"), "/x/libbeeline.so:a.so:b.so");
        assert_eq!(preload("a.so:/x/libbeeline.so"), "/x/libbeeline.so:a.so");
    }
}
