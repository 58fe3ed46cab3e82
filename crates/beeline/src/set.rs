//! `beeline set`: changes options of running processes.
//!
//! 1. What is set is one word in a process's statistics file (rule 9 of `beeline_stats::layout`), which the process
//!    reads the next time that the option matters. So it can be set for processes that sleep, hang or are stopped.
//! 2. Everything is checked before the first word is written: that the option exists, takes the value and may be said
//!    while a program runs; that the process knows it, and can be told; that there is one connection of the
//!    description. So a command that fails has changed nothing, unless the process ends meanwhile.
//! 3. Of the processes of a program, those that cannot be told are left out with a line each: they end, run another
//!    version of the library, or are in a container. It fails if nobody is left.
//! 4. A file is found and opened as `beeline stat` does it, and must be that user's own and still that process's.

mod list;
mod write;

use std::process::ExitCode;

use anyhow::bail;
use beeline_stats::tunables::{OptionSpec, Reach};

use crate::cli::{Selection, SetArgs};
use crate::failure::Failure;
use crate::output;
use crate::profile::explain_option;
use crate::stat::absent;
use crate::stat::bridge::Bridge;
use crate::stat::collect::Collected;
use crate::stat::process::{OpenConnection, Process};
use write::Setting;

pub fn run(arguments: &SetArgs) -> anyhow::Result<ExitCode> {
    let (selection, pairs) = target(arguments)?;
    let settings =
        pairs.iter().map(|pair| setting(pair, arguments.connection.is_some())).collect::<Result<Vec<_>, _>>()?;
    if settings.is_empty() && !arguments.list {
        return Err(usage("there is nothing to set: say KEY=VALUE, or --list to see what there is"));
    }
    let mut processes = find(arguments, &selection)?;
    let mut text = String::new();
    if !settings.is_empty() {
        let can_be_told = |process: &Process| {
            settings.iter().try_for_each(|setting| check(process, setting)).and_then(|()| write::check(process))
        };
        let of_program = matches!(selection, Selection::Program(_));
        if of_program {
            processes = those(processes, can_be_told)?;
        }
        let targets = match &arguments.connection {
            Some(name) => {
                let (process, open) = connection(&processes, name)?;
                vec![(process, Some(open))]
            }
            None => processes.iter().map(|process| (process, None)).collect(),
        };
        if !of_program {
            targets.iter().try_for_each(|(process, _)| can_be_told(process))?;
        }
        for (process, open) in those(targets, |(process, open)| write::settings(process, *open, &settings))? {
            if !arguments.json {
                text.push_str(&done(process, open, &settings));
            }
        }
    }
    if arguments.list {
        // What holds now.
        text.push_str(&list::render(&find(arguments, &selection)?, arguments.json)?);
    }
    output::print(&text)?;
    Ok(ExitCode::SUCCESS)
}

/// Those of whom it holds; the others are left out with a line each. If it holds of none, that is the first error.
fn those<T>(mut all: Vec<T>, holds: impl Fn(&T) -> anyhow::Result<()>) -> anyhow::Result<Vec<T>> {
    let mut errors = Vec::new();
    all.retain(|one| holds(one).map_err(|error| errors.push(error)).is_ok());
    if all.is_empty() && !errors.is_empty() {
        return Err(errors.remove(0));
    }
    errors.iter().for_each(|error| output::complain(format_args!("{error:#}")));
    Ok(all)
}

fn usage(message: impl Into<String>) -> anyhow::Error {
    Failure::error(Failure::USAGE, message)
}

/// Whose options are meant, and what is to be set.
fn target(arguments: &SetArgs) -> anyhow::Result<(Selection, &[String])> {
    if let Some(name) = &arguments.name {
        return Ok((Selection::Program(name.clone()), &arguments.words));
    }
    match arguments.words.split_first() {
        Some((pid, pairs)) if !pid.contains('=') => match pid.parse() {
            Ok(0) | Err(_) => Err(usage(format!("`{pid}` is no process id; a program is named with --name"))),
            Ok(pid) => Ok((Selection::Pid(pid), pairs)),
        },
        _ => Err(usage("whose options? Name a process by its id, or a program with --name")),
    }
}

fn setting(pair: &str, of_connection: bool) -> anyhow::Result<Setting> {
    let Some((key, value)) = pair.split_once('=') else {
        return Err(usage(format!("{pair}: an option is written key=value")));
    };
    let found = OptionSpec::all().into_iter().enumerate().find(|(_, spec)| spec.key == key);
    let Some((index, spec)) = found else {
        return Err(usage(explain_option(key.as_bytes(), "beeline set PID --list")));
    };
    match spec.reach {
        Reach::Start => {
            return Err(usage(format!(
                "{key} is read when a program starts and cannot be changed while it runs: give it to `beeline run`"
            )));
        }
        Reach::Connection => {}
        _ if of_connection => return Err(usage(format!("{key} holds for a whole process, not for one connection"))),
        _ => {}
    }
    let word = match value {
        "default" => 0,
        value => match spec.kind.word_of_text(value.as_bytes()) {
            Some(word) => word,
            None => return Err(usage(format!("{key} must be {}, or default", spec.kind))),
        },
    };
    Ok(Setting { index, spec, word, text: pair.to_owned() })
}

/// The processes that are meant: one at least.
fn find(arguments: &SetArgs, selection: &Selection) -> anyhow::Result<Vec<Process>> {
    let collected = Collected::of(&arguments.root, Bridge::left_out(), selection, false)?;
    if !collected.processes.is_empty() {
        return Ok(collected.processes);
    }
    if let Selection::Pid(pid) = selection
        && let Some((root, own_number)) = absent::private_root(*pid)
        && let Ok(private) = Collected::of(&root, Bridge::left_out(), &Selection::Pid(own_number), false)
        && !private.processes.is_empty()
    {
        return Ok(private.processes);
    }
    match (selection, collected.unreadable.iter().find(|unreadable| !unreadable.is_of_processes())) {
        (_, Some(unreadable)) => bail!("{} is left out: {}", unreadable.path, unreadable.why),
        (Selection::Pid(pid), None) => bail!("{}", absent::sentence(*pid).trim_end().trim_end_matches('.')),
        (Selection::Program(name), None) => {
            let whose = if collected.all_users { "no process" } else { "no process of yours" };
            bail!("{whose} with the name {name} uses TCP with Beeline")
        }
        (Selection::All, None) => bail!("no process uses TCP with Beeline"),
    }
}

/// Whether the process can be told so.
fn check(process: &Process, setting: &Setting) -> anyhow::Result<()> {
    let key = setting.spec.key;
    let of = format!("{} ({})", process.program, process.pid);
    let began = process.options.get(setting.index).and_then(|option| option.began);
    match (key, began.map(|began| began.to_string()).as_deref()) {
        (_, None) => bail!("{of} runs with another version of the library, which cannot be told {key}"),
        ("accelerate", Some("off")) => {
            bail!("{of} was started with accelerate=off, and is not prepared for lanes: start it anew")
        }
        _ => Ok(()),
    }
}

/// The one connection of this name.
fn connection<'a>(processes: &'a [Process], name: &str) -> anyhow::Result<(&'a Process, &'a OpenConnection)> {
    let is_named = |open: &OpenConnection| match name.parse::<i32>() {
        Ok(fd) => open.fd == fd,
        Err(_) => open.local == name || open.remote == name,
    };
    let all = processes.iter().flat_map(|process| process.connections.iter().map(move |open| (process, open)));
    let found: Vec<_> = all.filter(|(_, open)| is_named(open)).collect();
    match found.as_slice() {
        [one] => Ok(*one),
        [] => bail!("no open connection on a lane is {name}; `beeline stat` shows them"),
        more => {
            bail!("{} connections are {name}: name one by its process and the FD that `beeline stat` shows", more.len())
        }
    }
}

fn done(process: &Process, open: Option<&OpenConnection>, settings: &[Setting]) -> String {
    let texts: Vec<&str> = settings.iter().map(|setting| setting.text.as_str()).collect();
    let of = match open {
        Some(open) => format!(", connection {} to {}", open.fd, open.remote),
        None => String::new(),
    };
    format!("{} ({}){of}: {}\n", process.program, process.pid, texts.join(" "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_cannot_be_told_is_left_out_beside_others() {
        let holds = |one: &i32| if *one < 0 { Err(anyhow::anyhow!("{one} is too small")) } else { Ok(()) };
        assert_eq!(those(vec![-1, 2, -3, 4], holds).unwrap(), [2, 4]);
        // Where nobody is left there is an error instead.
        assert_eq!(those(vec![-1, -3], holds).unwrap_err().to_string(), "-1 is too small");
        assert!(those(Vec::new(), holds).unwrap().is_empty());
    }
}
