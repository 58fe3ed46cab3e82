//! `beeline run`: becomes the program, with the library in it.

use std::convert::Infallible;
use std::ffi::{CString, OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use beeline_stats::tunables::ENVIRONMENT;

use crate::cli::RunArgs;
use crate::failure::Failure;
use crate::library::Library;
use crate::profile::Chosen;
use crate::program::{self, Loading};
use crate::{filters, inherited, output};

const PRELOAD: &str = "LD_PRELOAD";

/// Replaces this process by the program. Returns only when that fails.
pub fn run(arguments: &RunArgs) -> anyhow::Result<Infallible> {
    let mut chosen = Chosen::usual(!arguments.no_config, arguments.profile.as_deref())?;
    if let Some(why) = chosen.warning().filter(|_| !arguments.quiet) {
        output::complain(format_args!("warning: {why}"));
    }
    chosen.add_arguments(&arguments.options)?;
    let Some(command) = arguments.command.first() else {
        return Err(Failure::error(Failure::OURS, "there is no program to run"));
    };
    let path = std::env::var_os("PATH");
    let file = program::find(command, path.as_deref())?;
    let library = Library::find(arguments.library.as_deref())?;
    let loading = program::inspect(&file, library.architecture, path.as_deref());
    if let Loading::Ignored(why) | Loading::Harmful(why) = &loading
        && !arguments.quiet
    {
        output::complain(format_args!("warning: {why}"));
    }

    let mut loads = !matches!(loading, Loading::Harmful(_));
    if loads {
        match filters::tried(chosen.filters_tried()) {
            Ok(filters) => chosen.add_filters_tried(filters),
            Err(error) => {
                loads = false;
                if !arguments.quiet {
                    output::complain(format_args!("warning: {error:#}: it runs without Beeline (docs/services.md)"));
                }
            }
        }
    }
    let list = chosen.list()?;

    let mut environment: Vec<(OsString, OsString)> =
        std::env::vars_os().filter(|(key, _)| key != ENVIRONMENT).collect();
    if loads {
        // The dynamic linker believes the last one, and the library takes it away: an earlier one stays as it is.
        let last = environment.iter().rev().find(|(key, _)| key == PRELOAD).map(|(_, value)| value.clone());
        environment.push((PRELOAD.into(), library.preload(last)));
    }
    if let Some(list) = list {
        environment.push((ENVIRONMENT.into(), list.into()));
    } else if loads {
        // The library takes two variables away, and fills the place of two.
        environment.push((ENVIRONMENT.into(), OsString::new()));
    }
    exec(&file, &arguments.command, &environment)
}

fn exec(file: &Path, arguments: &[OsString], environment: &[(OsString, OsString)]) -> anyhow::Result<Infallible> {
    let c_string = |text: &OsStr| {
        CString::new(text.as_bytes()).map_err(|_| Failure::error(Failure::OURS, "an argument holds a zero byte"))
    };
    let c_file = c_string(file.as_os_str())?;
    let c_arguments = arguments.iter().map(|argument| c_string(argument)).collect::<Result<Vec<_>, _>>()?;
    let c_environment = environment
        .iter()
        .map(|(key, value)| {
            let mut pair = key.clone();
            pair.push("=");
            pair.push(value);
            c_string(&pair)
        })
        .collect::<Result<Vec<_>, _>>()?;

    inherited::restore();
    let mut error = execve(&c_file, &c_arguments, &c_environment);
    if error.raw_os_error() == Some(libc::ENOEXEC) && !program::is_binary(file) {
        // A script without its first line: execvp(3) and every shell give it to sh.
        let mut shell_arguments = vec![c"/bin/sh".to_owned(), c_file.clone()];
        shell_arguments.extend_from_slice(c_arguments.get(1..).unwrap_or_default());
        error = execve(c"/bin/sh", &shell_arguments, &c_environment);
    }
    let (code, why) = match error.raw_os_error() {
        Some(libc::ENOENT) => match program::missing_interpreter(file) {
            Some(interpreter) => {
                (Failure::NOT_FOUND, format!("its interpreter {} does not exist", interpreter.display()))
            }
            None => (Failure::NOT_FOUND, "it, or the loader it needs, does not exist".to_owned()),
        },
        Some(libc::ENOEXEC) => (Failure::NOT_EXECUTABLE, "this system cannot run binaries of its kind".to_owned()),
        _ => (Failure::NOT_EXECUTABLE, error.to_string()),
    };
    Err(Failure::error(code, format!("cannot execute {}: {why}", file.display())))
}

fn execve(file: &std::ffi::CStr, arguments: &[CString], environment: &[CString]) -> std::io::Error {
    let pointers = |strings: &[CString]| {
        strings.iter().map(|string| string.as_ptr()).chain([std::ptr::null()]).collect::<Vec<_>>()
    };
    let (arguments, environment) = (pointers(arguments), pointers(environment));
    // SAFETY: the file is a C string, both lists are lists of C strings that end in a null
    // pointer, and all of them outlive the call.
    unsafe { libc::execve(file.as_ptr(), arguments.as_ptr(), environment.as_ptr()) };
    std::io::Error::last_os_error()
}
