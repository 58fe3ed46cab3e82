//! What packages and the documentation are made from.

#![allow(clippy::unwrap_used)]

mod common;

use common::{beeline, stdout};

#[test]
fn manual_pages_are_written_for_each_command() {
    let directory = tempfile::tempdir().unwrap();
    let status = beeline().args(["generate", "man"]).arg(directory.path()).status().unwrap();
    assert!(status.success());
    let commands = [
        "run",
        "stat",
        "plan",
        "topo",
        "bridge",
        "bench",
        "bench-demo",
        "bench-paper",
        "bench-compare",
        "bench-report",
    ];
    let commands = commands.map(|command| format!("beeline-{command}.1"));
    for page in commands.into_iter().chain(["beeline.1".to_owned()]) {
        let text = std::fs::read_to_string(directory.path().join(&page)).unwrap();
        assert!(
            text.contains(".SH NAME") && (text.contains(".SH EXAMPLES\n.nf\n") || text.contains("Examples:")),
            "{page}"
        );
        assert!(text.contains(".SH FILES") && text.contains(".SH \"SEE ALSO\""), "{page}");
    }
    let run = std::fs::read_to_string(directory.path().join("beeline-run.1")).unwrap();
    assert!(run.contains("ring_bytes") && run.contains(".SH ENVIRONMENT"));
}

#[test]
fn completions_are_written_for_each_shell() {
    for shell in ["bash", "zsh", "fish"] {
        let output = beeline().args(["generate", "completions", shell]).output().unwrap();
        assert!(output.status.success());
        assert!(stdout(&output).contains("profile"), "{shell}");
    }
}

#[test]
fn the_reference_lists_every_table() {
    let output = beeline().args(["generate", "reference"]).output().unwrap();
    for entry in ["`spin_ns_max`", "`no_door`", "`bad_bell_byte`", "`bytes_sent`"] {
        assert!(stdout(&output).contains(entry), "{entry}");
    }
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/reference.md");
    let document = std::fs::read_to_string(path).unwrap();
    assert!(stdout(&output) == document, "docs/reference.md is old: write it with `beeline generate reference`");
}

#[test]
fn the_document_of_semantics_is_what_the_table_says() {
    let output = beeline().args(["generate", "semantics"]).output().unwrap();
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/semantics.md");
    let document = std::fs::read_to_string(path).unwrap();
    assert!(stdout(&output) == document, "docs/semantics.md is old: write it with `beeline generate semantics`");
}

#[test]
fn the_version_is_told() {
    let output = beeline().arg("--version").output().unwrap();
    assert_eq!(stdout(&output), format!("beeline {}\n", env!("CARGO_PKG_VERSION")));
}
