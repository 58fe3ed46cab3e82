//! What is read on the command line: refused there, before anything is measured.

use std::fs::OpenOptions;
use std::path::Path;

use anyhow::{Context, Result as Outcome};
use beeline_stats::Tunables;

pub fn sockets(text: &str) -> Result<[String; 2], String> {
    let (a, b) = text.split_once(',').ok_or("expected two paths, as in a.sock,b.sock")?;
    Ok([a.to_owned(), b.to_owned()])
}

pub fn cpus(text: &str) -> Result<(usize, usize), String> {
    let (a, b) = text.split_once(',').ok_or("expected two CPU numbers, as in 0,1")?;
    let number = |text: &str| text.trim().parse().map_err(|_| format!("`{text}` is no number of a CPU, as in 0,1"));
    Ok((number(a)?, number(b)?))
}

/// Options of the library. It would pass over what it does not understand, and the run would measure something else.
pub fn library_options(text: &str) -> Result<String, String> {
    match Tunables::parse_env(text.as_bytes()) {
        (_, None) => Ok(text.to_owned()),
        (_, Some(wrong)) => {
            Err(format!("`{}`: {}; `beeline run --help` lists them", option_at(text, wrong.offset), wrong.error))
        }
    }
}

/// The option of a list that begins there.
fn option_at(list: &str, offset: usize) -> &str {
    list.get(offset..).and_then(|rest| rest.split(',').next()).unwrap_or(list)
}

/// Whether the results can be stored there, which is asked before they are measured.
pub fn place(path: &Path) -> Outcome<()> {
    let is_new = !path.exists();
    OpenOptions::new()
        .append(true)
        .create(true)
        .open(path)
        .with_context(|| format!("cannot write {}", path.display()))?;
    if is_new {
        std::fs::remove_file(path)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpus_are_a_pair() {
        assert_eq!(cpus("0, 3"), Ok((0, 3)));
        assert!(cpus("0").is_err());
        assert!(cpus("a,b").is_err());
    }

    #[test]
    fn options_of_the_library_must_be_options() {
        assert_eq!(library_options("wait=poll,ring_bytes=1M"), Ok("wait=poll,ring_bytes=1M".into()));
        for (wrong, which) in [
            ("bogus=1", "`bogus=1`: "),
            ("wait=poll,ring_bytes", "`ring_bytes`: "),
            ("ring_bytes=5", "`ring_bytes=5`: "),
        ] {
            let said = library_options(wrong).unwrap_err();
            assert!(said.starts_with(which), "{said}");
        }
    }
}
