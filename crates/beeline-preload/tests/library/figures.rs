//! The statistics that a program under the library keeps: while it runs, over exec, and when it ends.

use super::*;

#[test]
fn figures_are_kept_while_a_program_runs_and_gone_afterwards() {
    let mut command = Command::new(guest("guest"));
    command.arg("pauses").stdin(Stdio::piped()).stdout(Stdio::piped());
    preload::apply(&mut command, Some(library()));
    let mut group = Group::start(&mut command).expect("the guest starts");
    let (stdin, stdout, _) = group.pipes();
    let mut line = String::new();
    BufReader::new(stdout.expect("piped")).read_line(&mut line).expect("the guest speaks");
    assert_eq!(line, "ready\n");
    let path = statistics(group.id());
    let bytes = std::fs::read(&path).expect("the file can be read");
    let snapshot = beeline_stats::Snapshot::parse(&bytes).expect("the file is well-formed");
    assert_eq!(snapshot.program(), b"guest");
    assert_eq!(snapshot.counter(beeline_stats::Counter::ConnectionsAcceleratedClient), 1);
    assert_eq!(snapshot.counter(beeline_stats::Counter::ConnectionsAcceleratedServer), 1);
    stdin.expect("piped").write_all(b"go\n").expect("the guest listens");
    assert_eq!(group.finish(LIMIT).expect("the guest ends"), Ending::Exit(0));
    assert!(!path.exists());
}

#[test]
fn figures_go_on_over_exec_and_end_with_the_library() {
    use beeline_stats::Counter;
    use std::os::unix::fs::PermissionsExt;
    // A program for a machine that there is not.
    let impossible = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("impossible");
    let mut bytes = std::fs::read(guest("handover")).expect("the guest can be read");
    bytes[18..20].fill(0xEE);
    std::fs::write(&impossible, bytes).expect("it can be written");
    std::fs::set_permissions(&impossible, std::fs::Permissions::from_mode(0o755)).expect("and executed");
    for (next, keeps) in [(guest("handover"), true), (static_guest(), false)] {
        let mut command = Command::new(guest("handover"));
        command.arg("becomes").arg(&impossible).arg(next).stdin(Stdio::piped()).stdout(Stdio::piped());
        preload::apply(&mut command, Some(library()));
        let mut group = Group::start(&mut command).expect("the guest starts");
        let (stdin, stdout, _) = group.pipes();
        let mut line = String::new();
        BufReader::new(stdout.expect("piped")).read_line(&mut line).expect("the guest speaks");
        assert_eq!(line, "ready\n");
        let path = statistics(group.id());
        assert_eq!(path.exists(), keeps);
        if keeps {
            let bytes = std::fs::read(&path).expect("the file can be read");
            let snapshot = beeline_stats::Snapshot::parse(&bytes).expect("the file is well-formed");
            let counted = [
                (Counter::ConnectionsAcceleratedClient, 1),
                (Counter::ConnectionsAcceleratedServer, 1),
                (Counter::ConnectionsClosed, 2),
                (Counter::ConnectionsTakenOver, 2),
                (Counter::BytesSent, 13),
                (Counter::BytesReceived, 13),
            ];
            for (counter, count) in counted {
                assert_eq!(snapshot.counter(counter), count, "{counter:?}");
            }
        }
        stdin.expect("piped").write_all(b"go\n").expect("the guest listens");
        assert_eq!(group.finish(LIMIT).expect("the guest ends"), Ending::Exit(0));
        assert!(!path.exists());
    }
}
