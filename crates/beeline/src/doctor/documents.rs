//! Where the documents are that findings name: with the program, if it was installed or built with them.

use std::path::{Path, PathBuf};

/// A document that there is wherever the others are.
const ONE: &str = "docs/containers.md";

/// The directory in which `docs` is, of a program at this place.
pub fn directory(program: &Path) -> Option<PathBuf> {
    let prefix = program.parent()?.parent()?;
    let installed = prefix.join("share/doc/beeline");
    // In a source tree the program is in target/release.
    let built = prefix.parent().map(Path::to_owned);
    std::iter::once(installed).chain(built).find(|directory| directory.join(ONE).is_file())
}

/// The text, with documents named by where they are.
pub fn named(text: &str, directory: &Path) -> String {
    text.replace("docs/", &format!("{}/docs/", directory.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn documents_are_named_where_they_are() {
        let place = tempfile::tempdir().unwrap();
        let (prefix, program) = (place.path().join("usr"), place.path().join("usr/bin/beeline"));
        assert_eq!(directory(&program), None);
        let installed = prefix.join("share/doc/beeline");
        std::fs::create_dir_all(installed.join("docs")).unwrap();
        std::fs::write(installed.join(ONE), "").unwrap();
        assert_eq!(directory(&program), Some(installed));
        assert_eq!(named("see docs/limits.md", Path::new("/x")), "see /x/docs/limits.md");
    }
}
