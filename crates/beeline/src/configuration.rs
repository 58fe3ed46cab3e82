//! What this command reads of the bridge's configuration: whose bridge this host's programs trust, and where it is
//! asked.
//!
//! Root's bridge is trusted anyway. A file that is not root's, or that others could have written, says nothing, and
//! neither does one that is not understood: the bridge itself complains about that, and `beeline doctor` says so.

use std::ffi::CString;
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use beeline_status::ask;
use toml::de::{DeTable, DeValue};

const CONFIGURATION: &str = "/etc/beeline/beelined.toml";
/// Group and others may not write.
const WRITABLE_BY_OTHERS: u32 = 0o022;

/// The number of the user whose bridge is trusted.
pub fn bridge_user() -> Option<u32> {
    user_of(Path::new(CONFIGURATION), 0)
}

/// The socket at which the bridge is asked.
pub fn admin_socket() -> PathBuf {
    text_of(Path::new(CONFIGURATION), 0, "admin_socket").map_or_else(|| ask::PATH.into(), PathBuf::from)
}

fn user_of(file: &Path, owner: u32) -> Option<u32> {
    number_of(&text_of(file, owner, "user")?)
}

/// That the file is left out although it is there, and why.
pub fn left_out() -> Option<String> {
    why_left_out(Path::new(CONFIGURATION), 0)
}

fn why_left_out(file: &Path, owner: u32) -> Option<String> {
    let why = match trusted_text(file, owner) {
        Ok(text) => DeTable::parse(&text).err().map(|error| format!("it is not understood: {}", error.message()))?,
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => return None,
        Err(error) => error.to_string(),
    };
    Some(format!("{} is left out: {why}", file.display()))
}

/// The text at a key.
fn text_of(file: &Path, owner: u32, key: &str) -> Option<String> {
    let text = trusted_text(file, owner).ok()?;
    let table = DeTable::parse(&text).ok()?;
    match table.get_ref().get(key)?.get_ref() {
        DeValue::String(text) => Some(text.to_string()),
        _ => None,
    }
}

fn trusted_text(file: &Path, owner: u32) -> std::io::Result<String> {
    let metadata = std::fs::metadata(file)?;
    if metadata.uid() != owner {
        return Err(std::io::Error::other("it is not root's"));
    }
    if metadata.mode() & WRITABLE_BY_OTHERS != 0 {
        return Err(std::io::Error::other("others than root may write to it"));
    }
    std::fs::read_to_string(file)
}

fn number_of(name: &str) -> Option<u32> {
    let name = CString::new(name).ok()?;
    // SAFETY: a C string. The result is read at once, and this program has one thread.
    let found = unsafe { libc::getpwnam(name.as_ptr()).as_ref() };
    found.map(|user| user.pw_uid)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn only_a_file_that_nobody_else_can_write_names_a_user() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("beelined.toml");
        std::fs::write(&file, "user = \"root\"\n").unwrap();
        let owner = std::fs::metadata(&file).unwrap().uid();
        let with_mode = |mode| {
            std::fs::set_permissions(&file, std::fs::Permissions::from_mode(mode)).unwrap();
            user_of(&file, owner)
        };
        assert_eq!(with_mode(0o644), Some(0));
        assert_eq!(with_mode(0o664), None);
        assert_eq!(with_mode(0o646), None);
        with_mode(0o600);
        assert_eq!(user_of(&file, owner.wrapping_add(1)), None);
        for text in ["user = 7", "user = \"no such user\"", "name = \"x\"", "user ="] {
            std::fs::write(&file, text).unwrap();
            assert_eq!(user_of(&file, owner), None, "{text}");
        }
        assert_eq!(user_of(&directory.path().join("none"), owner), None);
        std::fs::write(&file, "admin_socket = \"/run/x\"\n").unwrap();
        assert_eq!(text_of(&file, owner, "admin_socket").as_deref(), Some("/run/x"));
    }

    #[test]
    fn a_file_that_says_nothing_is_told_of_with_the_reason() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("beelined.toml");
        let owner = std::fs::metadata(directory.path()).unwrap().uid();
        assert_eq!(why_left_out(&file, owner), None, "there is none");
        std::fs::write(&file, "user = \"root\"\n").unwrap();
        let with_mode = |mode| {
            std::fs::set_permissions(&file, std::fs::Permissions::from_mode(mode)).unwrap();
            why_left_out(&file, owner).unwrap_or_default()
        };
        assert_eq!(with_mode(0o644), "");
        assert!(with_mode(0o664).ends_with("beelined.toml is left out: others than root may write to it"));
        with_mode(0o600);
        let of_another = why_left_out(&file, owner.wrapping_add(1)).unwrap();
        assert!(of_another.ends_with(" is left out: it is not root's"), "{of_another}");
        std::fs::write(&file, "user =").unwrap();
        let wrong = why_left_out(&file, owner).unwrap();
        assert!(wrong.contains(" is left out: it is not understood: "), "{wrong}");
    }
}
