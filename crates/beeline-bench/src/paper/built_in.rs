//! The plans that come with the program, and those in files.

use std::path::Path;

use anyhow::{Context, Result, bail};

/// A plan of a paper, and what the paper publishes, which are one file in two: the plan first.
macro_rules! of_paper {
    ($name:literal) => {
        (
            $name,
            concat!(
                include_str!(concat!("plans/", $name, ".toml")),
                "\n",
                include_str!(concat!("../../../../docs/papers/", $name, ".toml"))
            ),
        )
    };
}

/// The plans that come with the program: a name, and the text.
pub const BUILT_IN: [(&str, &str); 7] = [
    of_paper!("socket-direct"),
    of_paper!("servernet"),
    of_paper!("vpi"),
    of_paper!("sockets-mx"),
    of_paper!("forty-gig"),
    ("modes", include_str!("plans/modes.toml")),
    ("mpi", include_str!("plans/mpi.toml")),
];

/// The text of a built-in plan or of a file, and what to call it.
pub fn text(name: &str) -> Result<(String, String)> {
    if let Some((_, text)) = BUILT_IN.iter().find(|(own, _)| *own == name) {
        return Ok(((*text).to_owned(), format!("{name}.toml (built in)")));
    }
    let path = Path::new(name);
    // A name without a dot or a slash was meant to be one of ours.
    if !name.contains(['.', '/']) && !path.exists() {
        let names: Vec<&str> = BUILT_IN.iter().map(|(name, _)| *name).collect();
        bail!("there is no plan {name}: expected a file, or one of {}", names.join(", "));
    }
    let bytes = std::fs::read(path).with_context(|| format!("cannot read the plan {name}"))?;
    let text = String::from_utf8(bytes).map_err(|error| {
        let before = &error.as_bytes()[..error.utf8_error().valid_up_to()];
        let line = before.iter().filter(|byte| **byte == b'\n').count() + 1;
        anyhow::anyhow!("{name}:{line}: the bytes here are no text: expected UTF-8")
    })?;
    Ok((text, name.to_owned()))
}
