//! Whose bridge this host's programs trust: the user named in the bridge's configuration, if that is root's file.
//!
//! Root's bridge is trusted anyway. A file that others could have written says nothing, and neither does one that is not
//! understood: the bridge itself complains about that.

use std::ffi::CString;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use toml::de::{DeTable, DeValue};

const CONFIGURATION: &str = "/etc/beeline/beelined.toml";
/// Group and others may not write.
const WRITABLE_BY_OTHERS: u32 = 0o022;

/// The user's number.
pub fn bridge_user() -> Option<u32> {
    user_of(Path::new(CONFIGURATION), 0)
}

fn user_of(file: &Path, owner: u32) -> Option<u32> {
    let metadata = std::fs::metadata(file).ok()?;
    if metadata.uid() != owner || metadata.mode() & WRITABLE_BY_OTHERS != 0 {
        return None;
    }
    let text = std::fs::read_to_string(file).ok()?;
    let table = DeTable::parse(&text).ok()?;
    match table.get_ref().get("user")?.get_ref() {
        DeValue::String(name) => number_of(name),
        _ => None,
    }
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
    }
}
