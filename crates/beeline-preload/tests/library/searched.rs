//! A program's text is searched for system calls of its own once, and not each time that it is started.

use super::*;

/// Text of the program, which it never runs.
const TEXT_KIB: u64 = 16 * 1024;

/// The program with a number of its own, as a linker gives it to each that differs.
fn newly_linked(number: u64) -> PathBuf {
    let number = format!("-Wl,--build-id=0x{number:016x}{number:016x}");
    compile("searched", "searched", &[&number])
}

/// KiB of its text that somebody has looked at when it has made its first connection.
fn looked_at(program: &Path, options: &str) -> u64 {
    let mut command = Command::new(program);
    preload::apply(&mut command, Some(library()));
    preload::options(&mut command, options);
    let output = command.env("GUEST_EXPECTS_LANES", "1").output().expect("the guest runs");
    assert!(output.status.success(), "{output:?}");
    String::from_utf8_lossy(&output.stdout).trim().parse().expect("a number")
}

#[test]
fn what_one_process_has_searched_others_do_not_search() {
    let since_1970 = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("after 1970");
    let program = newly_linked(since_1970.as_nanos() as u64);
    let without = looked_at(&program, "stats=off");
    assert!(without >= TEXT_KIB, "{without} KiB without statistics");
    let first = looked_at(&program, "");
    assert!(first >= TEXT_KIB, "{first} KiB of a program that nobody knows");
    let second = looked_at(&program, "");
    assert!(second < TEXT_KIB / 2, "{second} KiB where it was searched before, {first} then");
}
