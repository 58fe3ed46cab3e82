//! `beeline` in programs that run under Beeline themselves, with the real library.

#![allow(clippy::unwrap_used)]

mod common;

use std::process::{Command, Output};

use common::{beeline, library, stderr, stdout};

/// What the innermost program runs with: it sees that where the library follows nobody.
const SHOWS: &str =
    r#""$BEELINE" run --no-config --library "$LIBRARY" --option follow=off $INNER sh -c 'echo "$BEELINE_OPTIONS"'"#;
/// A run with no options of its own around it.
const BETWEEN: &str = r#""$BEELINE" run --no-config --library "$LIBRARY" sh -c "$SHOWS""#;

/// `beeline run` with these options around a shell with this script. `None` without a library.
fn under(outer: &[&str], script: &str) -> Option<Command> {
    let Some(library) = library() else {
        eprintln!("skipped: there is no libbeeline.so beside the command");
        return None;
    };
    let mut command = beeline();
    command.args(["run", "--no-config", "--library"]).arg(&library).args(outer).args(["sh", "-c", script]);
    command.env("BEELINE", env!("CARGO_BIN_EXE_beeline")).env("LIBRARY", &library).env("SHOWS", SHOWS);
    Some(command)
}

/// The options that a program has under a second run with `inner` options.
fn options(outer: &[&str], script: &str, inner: &str) -> Option<Vec<String>> {
    let output: Output = under(outer, script)?.env("INNER", inner).output().unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    Some(stdout(&output).trim().split(',').map(str::to_owned).collect())
}

#[test]
fn a_run_within_another_has_its_options_and_may_say_others() {
    let strict = ["--option", "policy=strict", "--option", "wait=wait", "--option", "rule=port=7;path=tcp"];
    for (script, inner, expected) in [
        (SHOWS, "", ["policy=strict", "wait=wait", "rule=port=7;path=tcp"]),
        (BETWEEN, "", ["policy=strict", "wait=wait", "rule=port=7;path=tcp"]),
        (SHOWS, "--option wait=lazy", ["policy=strict", "wait=lazy", "rule=port=7;path=tcp"]),
        (BETWEEN, "--profile latency", ["policy=strict", "wait=poll", "rule=port=7;path=tcp"]),
        (SHOWS, "--option policy=default", ["policy=default", "wait=wait", "rule=port=7;path=tcp"]),
    ] {
        let Some(options) = options(&strict, script, inner) else { return };
        for option in expected {
            let key = option.split('=').next().unwrap();
            let said: Vec<&String> = options.iter().filter(|option| option.split('=').next() == Some(key)).collect();
            assert_eq!(said, [option], "{inner}: {options:?}");
        }
        assert!(options.contains(&"follow=off".to_owned()), "{options:?}");
    }
}

/// Only the command sees them.
#[test]
fn the_shell_around_it_sees_no_options() {
    let Some(mut command) = under(&["--option", "wait=wait"], "echo ${BEELINE_OPTIONS-none} ${LD_PRELOAD-none}") else {
        return;
    };
    assert_eq!(stdout(&command.output().unwrap()), "none none\n");
}
