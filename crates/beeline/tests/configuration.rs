//! Configurations and profiles of `beeline run`, and what becomes of a program where they cannot be read.

#![allow(clippy::unwrap_used)]

mod common;

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::process::Command;

use common::{beeline, harmless_library, stderr, stdout};

fn run() -> Command {
    let mut command = beeline();
    command.arg("run").arg("--library").arg(harmless_library());
    command
}

#[test]
fn rules_and_configurations_reach_the_program() {
    let home = tempfile::tempdir().unwrap();
    let text = "[options]\nstats = false\n[[rule]]\nport = 6379\nwait = 'poll'\n";
    fs::create_dir_all(home.path().join("beeline")).unwrap();
    fs::write(home.path().join("beeline/config.toml"), text).unwrap();
    let profile = home.path().join("p.toml");
    fs::write(&profile, "[[rule]]\nrole = 'client'\naddress = '::1'\npath = 'tcp'\n").unwrap();
    let of = |arguments: &[&str]| {
        let show = ["sh", "-c", "echo $BEELINE_OPTIONS"];
        let output = run().env("XDG_CONFIG_HOME", home.path()).args(arguments).args(show).output().unwrap();
        assert_eq!(stderr(&output), "");
        stdout(&output).trim_end().to_owned()
    };
    let profile = profile.to_str().unwrap();
    assert_eq!(of(&[]), "stats=off,rule=port=6379;wait=poll");
    assert_eq!(of(&["--no-config"]), "");
    assert_eq!(
        of(&["--profile", profile, "--option", "rule=port=1-9;path=tcp"]),
        "stats=off,rule=port=1-9;path=tcp,rule=address=::1;path=tcp;role=client,rule=port=6379;wait=poll"
    );
    fs::write(home.path().join("beeline/config.toml"), "[[rule]]\nport = 70000\npath = 'tcp'\n").unwrap();
    let output = run().env("XDG_CONFIG_HOME", home.path()).args(["sh", "-c", "echo ran"]).output().unwrap();
    let expected = "beeline/config.toml:2:8: port must be a number from 1 to 65535 or a range such as 8000-8099\n";
    assert!(stderr(&output).ends_with(expected), "{}", stderr(&output));
    assert_eq!((stdout(&output), output.status.code()), ("", Some(125)));
}

#[test]
fn profiles_of_ones_own_are_found_by_name() {
    let home = tempfile::tempdir().unwrap();
    let profiles = home.path().join("beeline/profiles");
    fs::create_dir_all(&profiles).unwrap();
    fs::write(profiles.join("mine.toml"), "[options]\nstats = false\n").unwrap();
    let output = run()
        .env("XDG_CONFIG_HOME", home.path())
        .args(["--profile", "mine", "sh", "-c", "echo $BEELINE_OPTIONS"])
        .output()
        .unwrap();
    assert_eq!(stdout(&output), "stats=off\n");
}

/// As after a change of user alone: setpriv(1), chpst, images with HOME=/root.
#[test]
fn a_home_that_may_not_be_entered_keeps_no_program_from_running() {
    let home = tempfile::tempdir().unwrap();
    let is_root = home.path().metadata().unwrap().uid() == 0;
    let configuration = home.path().join(".config/beeline/config.toml");
    fs::create_dir_all(configuration.parent().unwrap()).unwrap();
    fs::write(&configuration, "[options]\nstats = false\n").unwrap();
    let of = |arguments: &[&str]| {
        let mut command = run();
        command.env_remove("XDG_CONFIG_HOME").env("HOME", home.path()).args(arguments);
        if is_root {
            // Root enters whatever there is.
            command.uid(65_534).gid(65_534);
        }
        command.args(["sh", "-c", "echo ran $BEELINE_OPTIONS"]).output().unwrap()
    };
    let set = |path: &std::path::Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    set(home.path(), if is_root { 0o700 } else { 0 });
    let warning = format!(
        "beeline: warning: the configuration {} is left out, as its directory may not be entered (HOME)\n",
        configuration.display()
    );
    for (arguments, said) in [(&[][..], warning.as_str()), (&["--quiet"], ""), (&["--no-config"], "")] {
        let output = of(arguments);
        assert_eq!((stdout(&output), stderr(&output), output.status.code()), ("ran\n", said, Some(0)), "{arguments:?}");
    }
    // One that is there and may not be read is an error: somebody means it.
    set(home.path(), 0o755);
    set(&configuration, if is_root { 0o600 } else { 0 });
    let output = of(&[]);
    assert!(stderr(&output).contains("cannot read the configuration "), "{}", stderr(&output));
    assert_eq!((stdout(&output), output.status.code()), ("", Some(125)));
}
