//! `beeline bridge` becomes the bridge's own program, or says what is missing.

#![allow(clippy::unwrap_used)]

mod common;

use std::fs;
use std::path::Path;
use std::process::Command;

use common::{beeline, stderr, stdout};

/// Another process makes the file, so that no thread of this one has it open for writing when it is executed.
fn install(source: &Path, target: &Path) {
    assert!(Command::new("install").args(["-m", "755"]).args([source, target]).status().unwrap().success());
}

#[test]
fn it_is_the_program_in_path_with_all_its_arguments() {
    let directory = tempfile::tempdir().unwrap();
    let script = directory.path().join("script");
    fs::write(&script, "#!/bin/sh\necho \"$#:$*\"\nexit 7\n").unwrap();
    let copy = directory.path().join("bin/beeline");
    fs::create_dir_all(directory.path().join("bin")).unwrap();
    fs::create_dir_all(directory.path().join("path")).unwrap();
    install(Path::new(beeline().get_program()), &copy);
    install(&script, &directory.path().join("path/beelined"));
    let run = |arguments: &[&str]| {
        let path = format!("{}:/usr/bin:/bin", directory.path().join("path").display());
        Command::new(&copy).arg("bridge").args(arguments).env("PATH", path).output().unwrap()
    };
    let output = run(&["status", "--json", "--", "-x"]);
    assert_eq!((stdout(&output), output.status.code()), ("4:status --json -- -x\n", Some(7)), "{}", stderr(&output));
    assert_eq!(stdout(&run(&["--help"])), "1:--help\n");
    assert_eq!(stdout(&run(&[])), "0:\n");
    install(&script, &directory.path().join("bin/beelined"));
    fs::remove_file(directory.path().join("path/beelined")).unwrap();
    assert_eq!(stdout(&run(&["keygen"])), "1:keygen\n", "the one beside it will do");
}

#[test]
fn without_the_bridge_it_says_what_to_install() {
    let directory = tempfile::tempdir().unwrap();
    let copy = directory.path().join("beeline");
    install(Path::new(beeline().get_program()), &copy);
    let output = Command::new(&copy).args(["bridge", "status"]).env("PATH", "/nonexistent").output().unwrap();
    assert_eq!(output.status.code(), Some(127));
    assert!(stderr(&output).contains("libfabric-dev"), "{}", stderr(&output));
    assert_eq!(stdout(&output), "");
    // Who asks for help still gets some.
    let output = beeline().args(["help", "bridge"]).output().unwrap();
    assert!(stdout(&output).contains("the commands of `beelined`"), "{}", stdout(&output));
}
