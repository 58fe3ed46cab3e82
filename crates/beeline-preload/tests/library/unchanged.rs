//! Programs that have nothing to do with lanes, or are to have none.

use super::*;

/// Programs that do nothing with TCP behave as ever and leave no statistics.
#[test]
fn common_programs_run_unchanged() {
    let scripts = [
        "ls / | wc -l",
        "echo a | cat | tr a b",
        "bash -c '(exit 3); echo $?; { sleep 0.01; echo late; } & wait; cat <(echo inner)'",
        "perl -e 'print join(\",\", map { $_ * 2 } 1..3), \"\\n\"'",
        "python3 -c 'import subprocess, threading; print(subprocess.run([\"echo\", \"x\"], capture_output=True).stdout)'",
        "git --version",
        "find /etc -maxdepth 1 -name passwd -exec basename {} ';'",
        "tar -cf - /etc/passwd 2>/dev/null | tar -tf -",
        "env -u LD_PRELOAD true && echo fine",
        "env | grep -v ^_= | sort; env -i env; env LD_PRELOAD=libm.so.6 sh -c 'env | grep PRELOAD'",
        "python3 -c 'import os; print(sorted(os.environ), os.popen(\"env | sort\").read())' | grep -v ^_=",
        "perl -e 'print map { \"$_=$ENV{$_}\\n\" } grep { !/^_$/ } sort keys %ENV'",
        "tr '\\0' '\\n' < /proc/self/environ | grep -v -e ^_= -e '^$'",
    ];
    for script in scripts {
        let run = |library| {
            let mut command = Command::new("bash");
            command.args(["-c", script]);
            preload::apply(&mut command, library);
            let output = command.output().expect("bash runs");
            (output.status.code(), output.stdout, output.stderr)
        };
        assert_eq!(run(Some(library())), run(None), "{script}");
    }
}

#[test]
fn switched_off_the_library_passes_everything_through() {
    let cases = [
        ("guest", "fork_shares_a_connection"),
        ("handlers", "handlers_read_back_as_installed"),
        ("guest", "options_behave"),
    ];
    for (program, case) in cases {
        let status = Command::new(guest(program))
            .arg(case)
            .env("LD_PRELOAD", library())
            .env("BEELINE_OPTIONS", "accelerate=off")
            .status()
            .expect("the guest runs");
        assert!(status.success(), "{case}");
    }
}
