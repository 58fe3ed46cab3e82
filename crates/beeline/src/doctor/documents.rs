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

/// The text, with documents named by where they are: words that begin with `docs/`.
pub fn named(text: &str, directory: &Path) -> String {
    let words = text.split_inclusive(|c: char| c.is_whitespace() || "(`".contains(c));
    words
        .map(|word| match word.starts_with("docs/") {
            true => format!("{}/{word}", directory.display()),
            false => word.to_owned(),
        })
        .collect()
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
        let named = |text| named(text, Path::new("/x"));
        assert_eq!(named("see docs/limits.md (docs/bridge.md)"), "see /x/docs/limits.md (/x/docs/bridge.md)");
        assert_eq!(named("docs/limits.md"), "/x/docs/limits.md");
        for other in ["/tmp/docs/app", "see my-docs/app", "../docs/app"] {
            assert_eq!(named(other), other);
        }
    }
}
