//! Why there are no statistics of a process, as far as it can be seen from outside.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use beeline_stats::tunables::ENVIRONMENT;
use beeline_stats::{Reason, Tunables, library};
use nix::sys::statvfs::statvfs;

use super::apart;

/// Where the library keeps statistics.
const SHARED_MEMORY: &str = "dev/shm";
/// What statistics of a process begin with: a header, and a page of connections.
const BYTES_MIN: u64 = 8 << 10;

/// What is known of a process that has no statistics.
pub enum Absence {
    /// There is no such process.
    Gone,
    /// It may not be looked at.
    NotYours,
    /// It does not answer.
    Unheard,
    /// It does not run with Beeline.
    NotLoaded,
    /// It runs with Beeline, and this is in the way of statistics, if anything is known to be.
    Silent(Option<Obstacle>),
}

/// What is in the way of statistics.
#[derive(Debug, PartialEq, Eq)]
pub enum Obstacle {
    /// The option accelerate=off: the library does nothing at all.
    Disabled,
    FileSizeLimited,
    NoSharedMemory,
    ReadOnly,
    /// The user's directory is somebody else's.
    NotOwned(String),
    /// Others can use the user's directory.
    Open(String),
    Full,
}

/// Where a process with a /dev/shm of its own keeps its statistics, and which number it has there.
pub fn private_root(pid: u32) -> Option<(PathBuf, u32)> {
    let root = PathBuf::from(format!("/proc/{pid}/root")).join(SHARED_MEMORY);
    let device = |path: &Path| fs::metadata(path).ok().map(|metadata| (metadata.dev(), metadata.ino()));
    let theirs = device(&root)?;
    let is_ours = device(&Path::new("/").join(SHARED_MEMORY)) == Some(theirs);
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let own_number =
        status.lines().find_map(|line| line.strip_prefix("NSpid:"))?.split_whitespace().last()?.parse().ok()?;
    (!is_ours || own_number != pid).then_some((root, own_number))
}

/// What is known of a process that has no statistics, as a line.
pub fn sentence(pid: u32) -> String {
    Absence::of(pid).sentence(pid) + "\n"
}

impl Absence {
    pub fn of(pid: u32) -> Self {
        let about = Path::new("/proc").join(pid.to_string());
        if !about.exists() {
            return Self::Gone;
        }
        let maps = match apart::read(&about.join("maps")) {
            Some(Ok(maps)) => maps,
            Some(Err(_)) => return Self::NotYours,
            None => return Self::Unheard,
        };
        if !library::is_mapped(&maps) {
            return Self::NotLoaded;
        }
        Self::Silent(Obstacle::of(&about))
    }

    pub fn sentence(&self, pid: u32) -> String {
        match self {
            Self::Gone => format!("There is no process {pid}."),
            Self::NotYours => {
                format!("Process {pid} is not yours to look at: whether it runs with Beeline is not known.")
            }
            Self::Unheard => {
                format!("Process {pid} could not be looked at in time: whether it runs with Beeline is not known.")
            }
            Self::NotLoaded => format!("Process {pid} does not run with Beeline."),
            Self::Silent(Some(obstacle)) => {
                format!("Process {pid} runs with Beeline, but it keeps no statistics: {}.", obstacle.says())
            }
            Self::Silent(None) => {
                format!(
                    "Process {pid} runs with Beeline, but it has no statistics: it has not used TCP yet, or the option stats=off."
                )
            }
        }
    }

    /// What to do, where there is something.
    pub fn remedy(&self) -> Option<&'static str> {
        match self {
            Self::Gone | Self::Unheard => None,
            Self::NotYours => Some("ask as root, or as the user who runs it"),
            Self::NotLoaded => Some("`beeline run PROGRAM` starts a program with it"),
            Self::Silent(obstacle) => obstacle.as_ref().map(Obstacle::remedy),
        }
    }
}

impl Obstacle {
    /// `about` is the process's directory in /proc.
    fn of(about: &Path) -> Option<Self> {
        let options = Self::of_options(&apart::read(&about.join("environ")).and_then(Result::ok).unwrap_or_default());
        options.or_else(|| is_file_size_short(about).then_some(Self::FileSizeLimited)).or_else(|| Self::of_place(about))
    }

    /// By what the process was started with, which the library takes away where it does anything.
    fn of_options(environment: &[u8]) -> Option<Self> {
        let is_named = |variable: &&[u8]| variable.starts_with(ENVIRONMENT.as_bytes());
        let list = environment.split(|&byte| byte == 0).find(is_named)?.get(ENVIRONMENT.len()..)?.strip_prefix(b"=")?;
        let mut options = Tunables::DEFAULT;
        for pair in list.split(|&byte| byte == b',') {
            let mut parts = pair.splitn(2, |&byte| byte == b'=');
            if let (Some(key), Some(value)) = (parts.next(), parts.next()) {
                // One that is not understood is not in force.
                let _ = options.set(key, value);
            }
        }
        (!options.accelerate).then_some(Self::Disabled)
    }

    /// By where the process would keep them.
    fn of_place(about: &Path) -> Option<Self> {
        let shared = about.join("root").join(SHARED_MEMORY);
        if let Err(error) = fs::metadata(&shared) {
            return (error.kind() == std::io::ErrorKind::NotFound).then_some(Self::NoSharedMemory);
        }
        let mounts = fs::read(about.join("mountinfo")).unwrap_or_default();
        let is_read_only = String::from_utf8_lossy(&mounts).lines().any(|line| {
            let fields: Vec<&str> = line.split(' ').collect();
            fields.get(4) == Some(&"/dev/shm")
                && fields.get(5).is_some_and(|options| options.split(',').any(|o| o == "ro"))
        });
        if is_read_only {
            return Some(Self::ReadOnly);
        }
        let user = effective_user(about)?;
        let name = format!("beeline-{user}");
        Self::of_directory(&shared.join(&name), &format!("/{SHARED_MEMORY}/{name}"), user).or_else(|| {
            let mount = statvfs(&shared).ok()?;
            let free = mount.blocks_available().saturating_mul(mount.fragment_size());
            // A file system of no size has no bound.
            (mount.blocks() > 0 && free < BYTES_MIN).then_some(Self::Full)
        })
    }

    /// By the directory that the user's processes have in common, if it is there. `name` is what it is called.
    pub fn of_directory(directory: &Path, name: &str, user: u32) -> Option<Self> {
        let metadata = fs::symlink_metadata(directory).ok()?;
        if !metadata.is_dir() || metadata.uid() != user {
            return Some(Self::NotOwned(name.to_owned()));
        }
        (metadata.mode() & 0o077 != 0).then(|| Self::Open(name.to_owned()))
    }

    /// Why there are no lanes either, where it stands in their way as well.
    pub fn reason(&self) -> Option<Reason> {
        match self {
            Self::Disabled => Some(Reason::Disabled),
            Self::FileSizeLimited => Some(Reason::FileSizeLimited),
            _ => None,
        }
    }

    pub fn says(&self) -> String {
        match self {
            Self::Disabled => "it was started with accelerate=off".into(),
            Self::FileSizeLimited => "its files may not be so long (RLIMIT_FSIZE)".into(),
            Self::NoSharedMemory => "it has no /dev/shm".into(),
            Self::ReadOnly => "its /dev/shm is read-only".into(),
            Self::NotOwned(name) => format!("{name} is not a directory of its user's"),
            Self::Open(name) => format!("{name} is open to other users"),
            Self::Full => "its /dev/shm is full".into(),
        }
    }

    pub fn remedy(&self) -> &'static str {
        match self {
            Self::Disabled => "start it without `accelerate=off`",
            Self::FileSizeLimited => "raise RLIMIT_FSIZE (ulimit -f)",
            Self::NoSharedMemory => "mount a tmpfs at /dev/shm",
            Self::ReadOnly => "mount /dev/shm so that it can be written",
            Self::NotOwned(_) => "remove it, as root: the next program makes it anew, as its user's own",
            Self::Open(_) => "`chmod 700` it",
            Self::Full => "make room in /dev/shm: statistics need 100 KiB a process",
        }
    }
}

fn is_file_size_short(about: &Path) -> bool {
    let limits = fs::read_to_string(about.join("limits")).unwrap_or_default();
    let soft = limits.lines().find_map(|line| line.strip_prefix("Max file size"));
    let soft = soft.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
    soft.is_some_and(|bytes| bytes < BYTES_MIN)
}

fn effective_user(about: &Path) -> Option<u32> {
    let status = fs::read_to_string(about.join("status")).ok()?;
    status.lines().find_map(|line| line.strip_prefix("Uid:"))?.split_whitespace().nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn the_options_that_a_process_was_started_with_say_why_it_keeps_none() {
        let of = |text: &str| Obstacle::of_options(text.as_bytes());
        assert_eq!(of("A=b\0BEELINE_OPTIONS=wait=poll,accelerate=off\0C=d\0"), Some(Obstacle::Disabled));
        assert_eq!(of("BEELINE_OPTIONS=accelerate=off,accelerate=on,nonsense\0"), None);
        assert_eq!(of("BEELINE_OPTIONS_OLD=accelerate=off\0"), None);
        assert_eq!(of(""), None);
    }

    #[test]
    fn a_directory_has_to_be_the_users_and_nobody_elses() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path();
        let user = fs::metadata(path).unwrap().uid();
        let of = |user| Obstacle::of_directory(path, "x", user);
        fs::set_permissions(path, fs::Permissions::from_mode(0o700)).unwrap();
        assert_eq!(of(user), None);
        assert_eq!(of(user + 1), Some(Obstacle::NotOwned("x".into())));
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
        assert_eq!(of(user), Some(Obstacle::Open("x".into())));
        assert_eq!(Obstacle::of_directory(&path.join("none"), "x", user), None);
        let file = path.join("file");
        fs::write(&file, "").unwrap();
        assert_eq!(Obstacle::of_directory(&file, "x", user), Some(Obstacle::NotOwned("x".into())));
    }

    #[test]
    fn a_process_that_is_not_there_or_without_the_library_is_told_apart() {
        assert!(matches!(Absence::of(4_194_304), Absence::Gone));
        let own = Absence::of(std::process::id());
        assert!(matches!(own, Absence::NotLoaded));
        assert!(own.remedy().unwrap().contains("beeline run"));
        assert!(Absence::NotYours.remedy().unwrap().contains("as root"));
        assert!(Absence::Silent(Some(Obstacle::ReadOnly)).remedy().unwrap().contains("/dev/shm"));
    }
}
