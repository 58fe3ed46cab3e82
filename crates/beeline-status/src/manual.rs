//! Manual pages: what a command line says of itself, and what else man(7) expects of a page.

use std::io;
use std::path::Path;

use clap_mangen::Man;
use clap_mangen::roff::{Roff, bold, italic, roman};

/// A file or an environment variable, and what it is for.
pub type Entry = (&'static str, &'static str);

/// What a page has beside what the command line says.
#[derive(Clone, Copy, Debug, Default)]
pub struct Beside {
    /// The section FILES.
    pub files: &'static [Entry],
    /// The section ENVIRONMENT.
    pub environment: &'static [Entry],
    /// The section SEE ALSO: pages, as `beeline(1)`.
    pub see_also: &'static [&'static str],
}

/// Writes a page for a command, and one for each of its subcommands that is not hidden. `beside` is asked for each by
/// the name of its page.
///
/// # Errors
/// When one cannot be written.
pub fn write(command: clap::Command, directory: &Path, beside: &dyn Fn(&str) -> Beside) -> io::Result<()> {
    std::fs::create_dir_all(directory)?;
    let mut command = command.disable_help_subcommand(true);
    command.build();
    write_tree(&command, directory, beside)
}

fn write_tree(command: &clap::Command, directory: &Path, beside: &dyn Fn(&str) -> Beside) -> io::Result<()> {
    for subcommand in command.get_subcommands().filter(|subcommand| !subcommand.is_hide_set()) {
        write_tree(subcommand, directory, beside)?;
    }
    let man = Man::new(command.clone());
    let file = man.get_filename();
    let name = file.trim_end_matches(".1");
    let Beside { files, environment, see_also } = beside(name);
    let mut page = Vec::new();
    man.title(name).render(&mut page)?;
    let mut page = as_it_stands(&String::from_utf8_lossy(&page)).into_bytes();
    let mut roff = Roff::new();
    list(&mut roff, "FILES", files);
    list(&mut roff, "ENVIRONMENT", environment);
    let others: Vec<&str> = see_also.iter().copied().filter(|page| *page != format!("{name}(1)")).collect();
    if !others.is_empty() {
        roff.control("SH", ["SEE ALSO"]).text([roman(others.join(", "))]);
    }
    roff.to_writer(&mut page)?;
    std::fs::write(directory.join(&file), page)
}

/// What follows the options on the command line, examples mostly, is shown line by line and under its own name.
fn as_it_stands(page: &str) -> String {
    const EXTRA: &str = "\n.SH EXTRA\n";
    let Some((before, extra)) = page.split_once(EXTRA) else { return page.to_owned() };
    let (extra, after) = match extra.find("\n.SH ") {
        Some(end) => extra.split_at(end),
        None => (extra.trim_end(), "\n"),
    };
    let (title, extra) = match extra.strip_prefix("Examples:\n") {
        Some(examples) => ("EXAMPLES", examples),
        None => ("NOTES", extra),
    };
    format!("{before}\n.SH {title}\n.nf\n{extra}\n.fi{after}")
}

fn list(roff: &mut Roff, title: &str, entries: &[Entry]) {
    if entries.is_empty() {
        return;
    }
    roff.control("SH", [title]);
    for (name, meaning) in entries {
        let name = if name.starts_with(['/', '~', '$']) { italic(*name) } else { bold(*name) };
        roff.control("TP", []).text([name]).text([roman(*meaning)]);
    }
}
