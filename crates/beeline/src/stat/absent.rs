//! Why there are no statistics of a process, as far as it can be seen from outside.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Where the library keeps statistics.
const SHARED_MEMORY: &str = "dev/shm";

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

/// What is known of a process that has no statistics.
pub fn sentence(pid: u32) -> String {
    let about = Path::new("/proc").join(pid.to_string());
    if !about.exists() {
        return format!("There is no process {pid}.\n");
    }
    let Ok(maps) = fs::read_to_string(about.join("maps")) else {
        return format!("Process {pid} is not yours to look at: whether it runs with Beeline is not known.\n");
    };
    if !maps.lines().any(|line| line.ends_with("/libbeeline.so")) {
        return format!("Process {pid} does not run with Beeline.\n");
    }
    let why = match unwritable(&about) {
        Some(why) => format!("it keeps no statistics: {why}"),
        None => "it has no statistics: it has not used TCP yet, or the option stats=off".to_owned(),
    };
    format!("Process {pid} runs with Beeline, but {why}.\n")
}

/// Whether a process cannot write where statistics are kept.
fn unwritable(about: &Path) -> Option<String> {
    let directory = about.join("root").join(SHARED_MEMORY);
    if let Err(error) = fs::metadata(&directory) {
        return (error.kind() == std::io::ErrorKind::NotFound).then(|| "it has no /dev/shm".to_owned());
    }
    let mounts = fs::read_to_string(about.join("mountinfo")).ok()?;
    let is_read_only = mounts.lines().any(|line| {
        let fields: Vec<&str> = line.split(' ').collect();
        fields.get(4) == Some(&"/dev/shm") && fields.get(5).is_some_and(|options| options.split(',').any(|o| o == "ro"))
    });
    is_read_only.then(|| "its /dev/shm is read-only".to_owned())
}
