//! The library as other programs meet it: what it exports, and that they cannot tell.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, OnceLock};
use std::time::Duration;

use beeline_testkit::preload;
use beeline_testkit::watch::{Ending, Group};

/// After this long a program hangs.
const LIMIT: Duration = Duration::from_secs(60);

/// The release build, which is what users load: `cargo test` builds its own with unwinding, which the library
/// is not made for.
fn library() -> &'static Path {
    static LIBRARY: OnceLock<PathBuf> = OnceLock::new();
    LIBRARY.get_or_init(|| {
        if std::env::var_os(preload::LIBRARY_VARIABLE).is_some() {
            return preload::find_library().expect("the named library");
        }
        let status = Command::new(env!("CARGO"))
            .args(["build", "--quiet", "--release", "--package", "beeline-preload", "--target-dir"])
            .arg(target())
            .current_dir(env!("CARGO_MANIFEST_DIR"))
            .status()
            .expect("cargo runs");
        assert!(status.success());
        target().join("release/libbeeline.so")
    })
}

/// The target directory: this program lies two levels below it.
fn target() -> PathBuf {
    let program = std::env::current_exe().expect("own path");
    program.ancestors().nth(3).expect("target/<profile>/deps/<program>").to_path_buf()
}

/// The guest of this name, compiled.
fn guest(name: &'static str) -> PathBuf {
    compile(name, name, &[])
}

/// The handover guest as a program into which no library can be loaded.
fn static_guest() -> PathBuf {
    compile("handover", "handover-static", &["-static"])
}

/// Libraries that a guest loads, by the variables that name them: one with a liburing of its own, one that needs the system's;
/// one to be bound past others, at once or by and by; and the same with one that needs another with a `send` of its own.
fn loaded() -> [(&'static str, PathBuf); 6] {
    const NOW: &[&str] = &["-Wl,-z,relro,-z,now"];
    const LAZY: &[&str] = &["-Wl,-z,lazy"];
    let shared = |name, library, how: &[&str]| compile(name, library, &[&["-shared", "-fPIC"], how].concat());
    shared("ownsend", "libownsend.so", &["-Wl,-soname,libownsend.so"]);
    let needing = |library, how: &[&str]| {
        let directory = concat!("-L", env!("CARGO_TARGET_TMPDIR"));
        shared("ownsend", library, &[&["-DNEEDS_IT", directory, "-Wl,--no-as-needed", "-lownsend"], how].concat())
    };
    [
        ("GUEST_OWN_RINGS", shared("ownrings", "ownrings.so", &[])),
        ("GUEST_NEEDS_LIBURING", shared("rings", "rings.so", &[])),
        ("GUEST_DEEP_NOW", shared("deep", "deep-now.so", NOW)),
        ("GUEST_DEEP_LAZY", shared("deep", "deep-lazy.so", LAZY)),
        ("GUEST_OWN_SEND_NOW", needing("own-send-now.so", NOW)),
        ("GUEST_OWN_SEND_LAZY", needing("own-send-lazy.so", LAZY)),
    ]
}

fn compile(name: &str, program: &'static str, flags: &[&str]) -> PathBuf {
    static COMPILED: Mutex<BTreeSet<&str>> = Mutex::new(BTreeSet::new());
    let mut compiled = COMPILED.lock().expect("every guest compiles");
    let is_new = compiled.insert(program);
    let program = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(program);
    if is_new {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/guest").join(name).with_extension("c");
        // One of them is a program that no library can be loaded into.
        let linked = if name == "echo" { "-static" } else { "-pthread" };
        let libraries: &[&str] = match name {
            "rings" | "leavers" => &["-luring"],
            "ownrings" => &["-l:liburing.a"],
            _ => &[],
        };
        let status = Command::new("cc")
            .args(["-Wall", "-Wextra", "-Wno-deprecated-declarations", "-O1", linked])
            .args(flags)
            .arg(concat!("-Wl,-rpath,", env!("CARGO_TARGET_TMPDIR")))
            .arg("-o")
            .arg(&program)
            .arg(source)
            .args(libraries)
            .status()
            .expect("a C compiler");
        assert!(status.success());
    }
    program
}

fn output(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output().expect(program);
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn the_library_exports_the_listed_calls_and_nothing_else() {
    let path = library().to_str().expect("a plain path");
    let table = output("nm", &["--dynamic", "--defined-only", path]);
    let exported: BTreeSet<_> = table.lines().filter_map(|line| line.split_whitespace().nth(2)).collect();
    let listed = include_str!("../src/exports.txt").lines();
    assert!(listed.clone().is_sorted(), "names are looked for by halves");
    assert_eq!(exported, listed.collect());
}

#[test]
fn the_table_of_calls_lists_what_is_exported() {
    let exported: BTreeSet<_> = include_str!("../src/exports.txt").lines().collect();
    let documented: BTreeSet<_> = beeline_stats::semantics::CALLS.iter().flat_map(|row| row.names).copied().collect();
    assert_eq!(exported, documented, "exports.txt against beeline_stats::semantics::CALLS");
}

#[test]
fn the_tables_name_cases_of_this_guest_that_exist() {
    let program = include_str!("library.rs");
    for test in beeline_stats::semantics::CALLS.iter().flat_map(|row| row.tests) {
        if let Some(case) = test.strip_prefix("guest:") {
            assert!(program.lines().any(|line| line.trim().trim_end_matches(';') == case), "{test}");
        }
    }
}

#[test]
fn the_library_has_no_text_relocations_and_needs_only_libc() {
    let path = library().to_str().expect("a plain path");
    let dynamic = output("readelf", &["--dynamic", "--wide", path]);
    assert!(!dynamic.contains("TEXTREL"), "{dynamic}");
    for needed in dynamic.lines().filter(|line| line.contains("(NEEDED)")) {
        assert!(["libc.so", "ld-linux", "libgcc_s"].iter().any(|known| needed.contains(known)), "{needed}");
    }
}

/// Runs a case of a guest; `None` for the kernel alone.
fn run(name: &'static str, case: &str, library: Option<&Path>) -> Result<(), String> {
    // Some cases start it from beside the other one.
    static_guest();
    let mut command = Command::new(guest(name));
    command
        .arg(case)
        .env("GUEST_ECHO", guest("echo"))
        .envs(loaded())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped());
    preload::apply(&mut command, library);
    if library.is_some() {
        command.env("GUEST_EXPECTS_LANES", "1");
    }
    let mut group = Group::start(&mut command).map_err(|error| error.to_string())?;
    let (_, _, stderr) = group.pipes();
    let ending = group.finish(LIMIT).map_err(|error| error.to_string())?;
    if ending == Ending::Exit(0) {
        return Ok(());
    }
    let mut said = String::new();
    stderr.map(|mut stderr| stderr.read_to_string(&mut said));
    Err(format!("{case}: {ending:?}: {said}"))
}

/// Tests of all cases of a guest, but for those that other tests run.
macro_rules! cases {
    ($guest:ident: $($case:ident)*; $($other:ident)*) => {
        mod $guest {
            use super::*;

            const NAME: &str = stringify!($guest);

            $(
                #[test]
                fn $case() {
                    run(NAME, stringify!($case), None).expect("what the case expects is what the kernel does");
                    run(NAME, stringify!($case), Some(library())).expect("a program cannot tell");
                }
            )*

            #[test]
            fn every_case_is_run() {
                let listed: BTreeSet<_> = [$(stringify!($case),)* $(stringify!($other),)*].into();
                let cases = output(guest(NAME).to_str().expect("a plain path"), &[]);
                assert_eq!(listed, cases.lines().collect());
            }
        }
    };
}

cases! { handover:
    exec_keeps_a_connection
    exec_keeps_the_state_of_a_connection
    exec_closes_what_is_close_on_exec
    spawning_hands_over_a_connection
    several_programs_share_a_connection
    a_program_with_dropped_privileges_goes_on
    a_listener_is_inherited_by_the_next_program
    the_library_follows
    a_passed_end_goes_on
    a_passed_end_is_shared
    strangers_pass_ends_and_listeners
    a_program_without_the_library_goes_on
    standard_descriptors_of_a_program_are_sockets
    a_receiver_without_the_library_goes_on;
}

cases! { guest:
    options_behave
    listener_options_are_inherited
    ioctls_behave
    duplicates_share_the_connection
    closing_everything_leaves_the_library_alive
    an_error_keeps_errno_and_success_does_not_touch_it
    fork_shares_a_connection
    fork_by_number_is_a_fork
    a_vfork_child_changes_nothing_here
    spawned_programs_run
    clone_on_another_stack_works
    handlers_read_back_as_installed
    handlers_run_with_what_was_sent
    a_handler_may_jump_out_of_a_call
    storm
    a_blocked_thread_can_be_cancelled
    stdio_talks_over_a_connection
    calls_by_number_are_the_same_calls
    vectors_with_no_offset_are_reads
    formatted_output_arrives
    a_child_that_closes_leaves_the_parents_set_alone
    threads_go_on_while_the_process_forks;
    pauses
}

cases! { adversity:
    epoll_works_where_its_newest_call_is_refused
    waits_leave_nothing_behind_when_jumped_out_of
    vectors_with_flags_stay_in_the_stream
    a_clone_with_a_copy_of_the_memory_shares_a_connection
    an_abort_is_one_whoever_was_killed_before
    lingering_for_no_time_is_heeded_when_a_process_ends
    a_fork_during_a_connect_shares_the_connection;
}

cases! { relays:
    io_uring_takes_connections_off_lanes
    a_static_program_serves_behind_a_relay
    streams_that_are_there_already_use_a_connection
    streams_that_are_there_already_use_an_accepted_connection;
}

cases! { rings:
    liburing_takes_connections_off_lanes
    liburing_with_parameters_takes_connections_off_lanes
    a_ring_made_apart_takes_connections_off_lanes
    a_ring_for_files_leaves_lanes_alone
    a_connection_among_registered_files_comes_off_its_lane
    a_polled_ring_takes_connections_off_lanes
    a_ring_of_libuv_is_refused_and_lanes_stay
    what_is_submitted_by_number_is_looked_at
    what_is_registered_by_number_is_looked_at
    a_ring_by_number_carries_what_came_before_and_after
    a_refused_submission_is_made_later
    a_connection_sent_by_a_ring_goes_on
    a_connection_received_by_a_ring_goes_on
    liburing_leaves_errno_alone;
    makes_connections_after_a_ring
}

cases! { leavers:
    connections_with_a_peer_on_lanes_are_the_kernels
    clients_that_wait_are_served
    a_connection_that_comes_to_a_ring_is_no_lane
    a_connection_that_comes_after_a_ring_comes_off_its_lane
    a_connection_that_a_ring_receives_is_no_lane
    another_program_reads_through_its_ring
    a_sharer_with_a_ring_takes_others_along;
    is_counted
}

cases! { ownrings:
    a_ring_of_its_own_before_connections
    a_ring_of_its_own_after_connections
    a_program_with_rings_of_its_own_goes_on;
    serves_what_it_was_given
    has_its_own_rings_and_pauses
}

cases! { loads:
    code_bound_at_once_to_libc_shares_connections
    code_bound_later_to_libc_shares_connections
    code_bound_to_libc_is_found_by_its_name
    code_bound_to_libc_with_rings_ends_lanes
    code_that_brings_its_own_calls_keeps_them
    threads_that_load_together_all_succeed
    what_cannot_be_loaded_is_told
    libc_by_its_handle_shares_connections
    code_with_rings_that_comes_late_ends_lanes
    liburing_opened_by_hand_means_no_lanes
    other_code_that_is_loaded_ends_none
    liburing_in_a_plugin_leaves_errno_alone;
}

cases! { sandbox:
    a_filter_finds_no_lanes
    a_filter_by_number_finds_no_lanes
    limits_announce_a_filter
    a_program_without_room_for_descriptors_waits
    asking_for_filters_leaves_lanes_alone
    a_program_that_begins_behind_a_filter_has_no_lanes;
    is_told_nothing
}

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

/// Runs a guest until it pauses; by then it has made so many connections on TCP as client and so many as server, with their
/// reason on record.
fn counts_each_connection_once(
    name: &'static str,
    case: &str,
    reason: beeline_stats::Reason,
    [client, server]: [u64; 2],
) {
    use beeline_stats::{Counter, Role};
    let mut command = Command::new(guest(name));
    command.arg(case).stdin(Stdio::piped()).stdout(Stdio::piped());
    preload::apply(&mut command, Some(library()));
    let mut group = Group::start(&mut command).expect("the guest starts");
    let (stdin, stdout, _) = group.pipes();
    let mut line = String::new();
    BufReader::new(stdout.expect("piped")).read_line(&mut line).expect("the guest speaks");
    if line == "ready\n" {
        let bytes = std::fs::read(statistics(group.id())).expect("the file can be read");
        let snapshot = beeline_stats::Snapshot::parse(&bytes).expect("the file is well-formed");
        assert_eq!(snapshot.reason(Role::Client, reason), client);
        assert_eq!(snapshot.reason(Role::Server, reason), server);
        assert_eq!(snapshot.counter(Counter::ConnectionsFallenBackClient), client);
        assert_eq!(snapshot.counter(Counter::ConnectionsFallenBackServer), server);
    }
    stdin.expect("piped").write_all(b"go\n").expect("the guest listens");
    assert_eq!(group.finish(LIMIT).expect("the guest ends"), Ending::Exit(0));
}

#[test]
fn connections_made_after_a_ring_are_counted() {
    // The one that was read through the ring, and two that came later.
    let reason = beeline_stats::Reason::IoUringDenied;
    counts_each_connection_once("rings", "makes_connections_after_a_ring", reason, [3, 3]);
}

#[test]
fn connections_of_a_program_with_rings_of_its_own_are_counted() {
    let reason = beeline_stats::Reason::IoUringCarried;
    counts_each_connection_once("ownrings", "has_its_own_rings_and_pauses", reason, [1, 1]);
}

#[test]
fn connections_that_come_after_a_ring_are_counted() {
    // One that was made, one that was accepted, and the accepted end of one that another process has passed on.
    counts_each_connection_once("leavers", "is_counted", beeline_stats::Reason::IoUringDenied, [1, 2]);
}

/// Where a living process has its statistics file, if it has one.
fn statistics(pid: u32) -> PathBuf {
    // SAFETY: no arguments, no effect.
    let uid = unsafe { libc::geteuid() };
    let stat = std::fs::read(format!("/proc/{pid}/stat")).expect("the process lives");
    let start_ticks = beeline_stats::layout::start_ticks_from_proc_stat(&stat).expect("the kernel's format");
    beeline_stats::layout::file_path(uid, beeline_stats::layout::FileName { pid, start_ticks }).as_str().into()
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
    for case in ["fork_shares_a_connection", "handlers_read_back_as_installed", "options_behave"] {
        let status = Command::new(guest("guest"))
            .arg(case)
            .env("LD_PRELOAD", library())
            .env("BEELINE_OPTIONS", "accelerate=off")
            .status()
            .expect("the guest runs");
        assert!(status.success(), "{case}");
    }
}

/// Instructions that `steps` takes for `count` messages, as callgrind counts them.
fn instructions(count: u64, flags: &[&str]) -> u64 {
    let mut command = Command::new("valgrind");
    command.args(["--tool=callgrind", "--callgrind-out-file=/dev/null"]);
    command.arg(guest("steps")).arg(count.to_string()).args(flags);
    preload::apply(&mut command, Some(library()));
    let output = command.output().expect("valgrind runs");
    let report = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{report}");
    let total = report.split("Collected :").nth(1).and_then(|rest| rest.split_whitespace().next());
    total.and_then(|total| total.parse().ok()).unwrap_or_else(|| panic!("{report}"))
}

/// Whoever makes the path longer shall notice. 490 and 836 were counted with the release profile, 494 and 874 without
/// link-time optimisation.
#[test]
fn a_short_message_takes_few_instructions() {
    const FEW: u64 = 2_000;
    const MANY: u64 = 22_000;
    for (flags, most) in [(&[][..], 560), (&["epoll"][..], 960)] {
        let each = (instructions(MANY, flags) - instructions(FEW, flags)) / (MANY - FEW);
        assert!(each <= most, "{each} instructions for a send and a recv {flags:?}, {most} at most");
    }
}
