//! The commands, as an administrator uses them.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

use beeline_topo::Report;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tempfile::TempDir;

fn beelined(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_beelined"));
    command.args(arguments).env_remove("NOTIFY_SOCKET");
    command
}

/// A host: a directory with a configuration that names everything in it.
struct Host {
    directory: TempDir,
}

impl Host {
    fn new(extra: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let host = Self { directory };
        let text = format!(
            "certificate = '{0}/beelined.crt'\nkey = '{0}/beelined.key'\ntrusted = '{0}/trusted'\n\
             admin_socket = '{0}/run/s'\n{extra}",
            host.path().display()
        );
        host.write(&text);
        host
    }

    fn path(&self) -> &Path {
        self.directory.path()
    }

    fn file(&self, name: &str) -> String {
        self.path().join(name).to_str().unwrap().to_owned()
    }

    fn write(&self, text: &str) {
        fs::write(self.file("b.toml"), text).unwrap();
        fs::set_permissions(self.file("b.toml"), fs::Permissions::from_mode(0o644)).unwrap();
    }

    fn keygen(&self, name: &str, more: &[&str]) -> Output {
        let out = self.path().to_str().unwrap();
        beelined(&["keygen", "--name", name, "--out", out, "--user", "no-such-user"]).args(more).output().unwrap()
    }

    /// A command that takes `--config`.
    fn run(&self, arguments: &[&str]) -> Output {
        beelined(arguments).arg("--config").arg(self.file("b.toml")).output().unwrap()
    }
}

fn text(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

#[track_caller]
fn good(output: &Output) -> String {
    assert!(output.status.success(), "{}", text(output));
    String::from_utf8(output.stdout.clone()).unwrap()
}

#[track_caller]
fn bad(output: &Output, reason: &str) {
    assert_eq!(output.status.code(), Some(1), "{}", text(output));
    assert!(text(output).contains(reason), "{}", text(output));
    assert!(output.stdout.is_empty());
}

#[test]
fn a_key_is_made_for_its_owner_only_and_not_replaced_by_accident() {
    let host = Host::new("");
    let said = good(&host.keygen("alpha", &["--address", "10.0.0.1", "--address", "10.1.0.0/16"]));
    for expected in ["name         alpha", "speaks for   10.0.0.1, 10.1.0.0/16", "fingerprint  SHA256:"] {
        assert!(said.contains(expected), "{said}");
    }
    let mode = |name: &str| fs::metadata(host.file(name)).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode("beelined.key"), mode("beelined.crt")), (0o600, 0o644));
    let key = fs::read(host.file("beelined.key")).unwrap();
    bad(&host.keygen("alpha", &["--address", "10.0.0.1"]), "is there already");
    assert_eq!(fs::read(host.file("beelined.key")).unwrap(), key);
    good(&host.keygen("alpha", &["--address", "10.0.0.1", "--force"]));
    assert_ne!(fs::read(host.file("beelined.key")).unwrap(), key);
}

#[test]
fn addresses_that_will_not_do_are_refused_at_once() {
    let host = Host::new("");
    for address in ["127.0.0.1", "0.0.0.0", "10.0.0.1/24", "fe80::1", "224.0.0.1", "x"] {
        let output = host.keygen("alpha", &["--address", address]);
        assert_eq!(output.status.code(), Some(2), "{address}");
    }
    assert_eq!(host.keygen("a/b", &["--address", "10.0.0.1"]).status.code(), Some(2));
    assert_eq!(host.keygen("alpha", &[]).status.code(), Some(2));
    assert_eq!(host.keygen("alpha", &["--address", "10.0.0.1", "--days", "0"]).status.code(), Some(2));
    bad(&host.keygen("alpha", &["--address", "0.0.0.0/0"]), "a great many addresses");
    assert!(!host.path().join("beelined.key").exists());
    good(&host.keygen("alpha", &["--address", "0.0.0.0/0", "--force"]));
}

#[test]
fn trust_is_given_listed_and_taken_back() {
    let (alpha, beta) = (Host::new(""), Host::new(""));
    good(&alpha.keygen("alpha", &["--address", "10.0.0.1"]));
    good(&beta.keygen("beta", &["--address", "10.0.0.2"]));
    assert!(good(&alpha.run(&["trusted"])).contains("No certificate is trusted"));
    let said = good(&alpha.run(&["trust", &beta.file("beelined.crt")]));
    assert!(said.contains("name         beta") && said.contains("It is trusted now"), "{said}");
    good(&alpha.run(&["trust", &beta.file("beelined.crt")]));
    let mode = fs::metadata(alpha.file("trusted/beta.crt")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o644);
    let listed = good(&alpha.run(&["trusted"]));
    assert!(listed.contains("beta") && listed.contains("10.0.0.2"), "{listed}");
    let listed: serde_json::Value = serde_json::from_str(&good(&alpha.run(&["trusted", "--json"]))).unwrap();
    assert_eq!(listed[0]["addresses"][0], "10.0.0.2");
    assert_eq!(listed[0]["days_left"], 3649);

    good(&beta.keygen("beta", &["--address", "10.0.0.2", "--force"]));
    bad(&alpha.run(&["trust", &beta.file("beelined.crt")]), "another certificate of `beta` is trusted");
    good(&alpha.run(&["trust", "--force", &beta.file("beelined.crt")]));
    good(&alpha.run(&["distrust", "beta"]));
    bad(&alpha.run(&["distrust", "beta"]), "no certificate of `beta` is trusted");
    assert_eq!(alpha.run(&["distrust", "../beelined"]).status.code(), Some(2));
    assert!(alpha.path().join("beelined.crt").exists());
}

#[test]
fn a_configuration_that_was_asked_for_has_to_be_there() {
    let host = Host::new("");
    let nowhere = host.file("nowhere.toml");
    for command in [&["trusted"][..], &["distrust", "beta"], &["status"], &["drain"], &["rails"]] {
        let output = beelined(command).args(["--config", &nowhere]).output().unwrap();
        bad(&output, "nowhere.toml");
    }
}

#[test]
fn what_is_wrong_is_a_code_where_nobody_can_read_it() {
    let host = Host::new("");
    let full = fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let status = beelined(&["status"]).args(["--config", &host.file("nowhere.toml")]).stderr(full).status().unwrap();
    assert_eq!(status.code(), Some(1), "{status}");
}

/// systemd.exec(5): `Nice=` is there before the agent is, which would take it for its administrator's wish.
#[test]
fn the_agents_unit_lets_it_take_precedence_itself() {
    let unit = include_str!("../systemd/beeline-agent.service.in");
    assert!(unit.lines().any(|line| line == "LimitNICE=-10"));
    assert!(unit.lines().all(|line| !line.starts_with("Nice=")));
}

#[test]
fn certificates_that_should_not_be_trusted_are_not() {
    let alpha = Host::new("");
    good(&alpha.keygen("alpha", &["--address", "10.0.0.1"]));
    let file = alpha.file("peer.crt");
    let trust = || alpha.run(&["trust", &file]);
    let made = |name: &str, addresses: &[&str], days_ago: u64| {
        let day = std::time::Duration::from_secs(86_400);
        let addresses: Vec<_> = addresses.iter().map(|text| text.parse().unwrap()).collect();
        let since = std::time::SystemTime::now() - day * u32::try_from(days_ago).unwrap();
        let made = beelined::keys::generate(&name.parse().unwrap(), &addresses, since, day).unwrap();
        fs::write(&file, made.certificate).unwrap();
        made.key
    };
    bad(&trust(), "No such file");
    let key = made("beta", &["10.0.0.2"], 2);
    bad(&trust(), "has expired");
    made("beta", &[], 0);
    bad(&trust(), "names no address");
    made("alpha", &["10.0.0.2"], 0);
    bad(&trust(), "this bridge's own name");
    made("beta", &["10.0.0.0/8"], 0);
    bad(&trust(), "a great many addresses");
    made("beta", &["10.0.0.1"], 0);
    bad(&trust(), "`alpha` speaks for 10.0.0.1 already");
    fs::write(&file, key).unwrap();
    bad(&trust(), "it holds no certificate");
    fs::write(&file, "x").unwrap();
    bad(&trust(), "it holds no certificate");
    assert!(!alpha.path().join("trusted/beta.crt").exists());
    made("beta", &["10.0.0.2"], 0);
    good(&trust());
}

#[test]
fn bad_configurations_are_refused_with_their_place() {
    let host = Host::new("");
    host.write("name = 'alpha'\nlisten = 5\n");
    bad(&host.run(&["run"]), "b.toml:2:10: ");
    host.write("name = 'alpha'\ncolour = 'red'\n");
    bad(&host.run(&["run"]), "b.toml:2:1: unknown field `colour`");
    fs::set_permissions(host.file("b.toml"), fs::Permissions::from_mode(0o666)).unwrap();
    bad(&host.run(&["run"]), "others can write it");
    bad(&host.run(&["status"]), "others can write it");
    fs::remove_file(host.file("b.toml")).unwrap();
    bad(&host.run(&["run"]), "cannot use the configuration");
}

#[test]
fn without_a_bridge_there_is_nobody_to_ask() {
    let host = Host::new("");
    bad(&host.run(&["status"]), "no bridge is running");
    bad(&host.run(&["set", "spin_us", "1"]), "no bridge is running");
}

#[test]
fn manual_pages_and_completions_are_written() {
    let directory = tempfile::tempdir().unwrap();
    assert!(beelined(&["generate", "man"]).arg(directory.path()).status().unwrap().success());
    for page in ["beelined.1", "beelined-run.1", "beelined-keygen.1", "beelined-trust.1", "beelined-status.1"] {
        assert!(fs::read_to_string(directory.path().join(page)).unwrap().contains(".SH NAME"), "{page}");
    }
    assert!(fs::read_to_string(directory.path().join("beelined-set.1")).unwrap().contains("inline_max"));
    assert!(good(&beelined(&["generate", "completions", "bash"]).output().unwrap()).contains("keygen"));
}

/// A bridge that runs, until it is dropped.
struct Running {
    child: Child,
    log: BufReader<std::process::ChildStderr>,
}

impl Running {
    fn start(host: &Host) -> Self {
        let mut child = beelined(&["run", "--config", &host.file("b.toml")]).stderr(Stdio::piped()).spawn().unwrap();
        let log = BufReader::new(child.stderr.take().unwrap());
        let mut running = Self { child, log };
        running.until("ready");
        running
    }

    /// Reads the log up to a line that holds this.
    fn until(&mut self, what: &str) -> String {
        let mut all = String::new();
        loop {
            let mut line = String::new();
            assert!(self.log.read_line(&mut line).unwrap() > 0, "it ends without saying `{what}`:\n{all}");
            all += &line;
            if line.contains(what) {
                return line;
            }
        }
    }

    fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(i32::try_from(self.child.id()).unwrap()), signal).unwrap();
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Puts this thread, and what it starts, into a network namespace of its own, where no other bridge has the door. Only
/// root may; others share the host's.
fn be_alone() {
    if nix::unistd::geteuid().is_root() {
        nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET).unwrap();
        // With a device besides loopback, or libfabric finds no port at all.
        for command in [
            "link set lo up",
            "link add v0 type veth peer name v1",
            "addr add 198.51.100.1/24 dev v0",
            "link set v0 up",
            "link set v1 up",
        ] {
            assert!(Command::new("ip").args(command.split(' ')).status().unwrap().success(), "ip {command}");
        }
    }
}

#[test]
fn two_bridges_meet_tell_and_stop() {
    be_alone();
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let rails = "[rails]\nallow = [{ netdev = 'no-such-device' }]\n";
    let alpha = Host::new(&format!("listen = ['127.0.0.1:{port}']\n{rails}"));
    let peers = format!("[[peers]]\nname = 'alpha'\ncontrol = '127.0.0.1:{port}'\n");
    let beta = Host::new(&format!("listen = ['127.0.0.1:0']\n{peers}{rails}"));
    good(&alpha.keygen("alpha", &["--address", "192.0.2.1"]));
    good(&beta.keygen("beta", &["--address", "192.0.2.2"]));
    fs::create_dir(alpha.file("trusted")).unwrap();
    good(&beta.run(&["trust", &alpha.file("beelined.crt")]));

    // A network namespace has one door, so only one bridge runs; the other's control plane is in this test.
    let mut running = Running::start(&alpha);
    let status = good(&alpha.run(&["status"]));
    assert!(status.starts_with("alpha (beelined") && status.contains("speaks for 192.0.2.1"), "{status}");
    assert!(status.contains("No peer is configured"), "{status}");
    let said = good(&alpha.run(&["trust", &beta.file("beelined.crt")]));
    assert!(said.contains("The running bridge knows."), "{said}");

    good(&alpha.run(&["set", "spin_us", "3"]));
    bad(&alpha.run(&["set", "spin_us", "x"]), "must be a number from 0");
    bad(&alpha.run(&["set", "spin", "3"]), "did you mean `spin_us`");
    let status: serde_json::Value = serde_json::from_str(&good(&alpha.run(&["status", "--json"]))).unwrap();
    assert_eq!(status["tunables"]["spin_us"], 3);
    bad(&alpha.run(&["run"]), "cannot listen on");

    let config = beelined::config::Config::read(Path::new(&beta.file("b.toml"))).unwrap();
    let now = std::time::Instant::now;
    let mut control = beelined::control::Control::new(&config, now()).unwrap();
    let mut is_up = false;
    while !is_up {
        let fd = nix::poll::PollFd::new(control.as_fd(), nix::poll::PollFlags::POLLIN);
        let wait = control.deadline(now()).saturating_duration_since(now());
        nix::poll::poll(&mut [fd], nix::poll::PollTimeout::try_from(wait).unwrap()).unwrap();
        is_up = control.turn(now()).iter().any(|event| matches!(event, beelined::control::Event::PeerUp(_)));
    }
    running.until("beta is up");
    let status = good(&alpha.run(&["status"]));
    assert!(status.contains("beta  up"), "{status}");
    let report = report(&alpha);
    let peers: Vec<&str> = report.peers.iter().map(|peer| peer.name.as_str()).collect();
    assert_eq!((peers, report.rails.len()), (vec!["beta"], 0));

    fs::remove_file(alpha.file("trusted/beta.crt")).unwrap();
    running.signal(Signal::SIGHUP);
    running.until("beta is gone: its certificate is no longer trusted");
    running.signal(Signal::SIGTERM);
    running.until("stopped");
    assert!(running.child.wait().unwrap().success());
    assert!(!Path::new(&alpha.file("run/s")).exists());
}

fn report(host: &Host) -> Report {
    Report::read(&good(&host.run(&["rails", "--json"]))).unwrap()
}

/// What ports there are depends on the machine; what becomes of them does not.
#[test]
fn every_port_is_a_rail_or_is_named_with_the_reason() {
    let everything = "[rails]\nallow = [{ provider = 'tcp' }, { provider = 'verbs' }]\n";
    let all = report(&Host::new(everything));
    assert!(all.unused.is_empty() && all.peers.is_empty());
    assert!(!all.host.unwrap().cpus.is_empty());
    for rail in &all.rails {
        assert!(rail.name.starts_with(&rail.provider) && !rail.address.addr().is_loopback(), "{rail:?}");
    }
    let denied = report(&Host::new("[rails]\ndeny = [{ provider = 'tcp' }, { provider = 'verbs' }]\n"));
    let names = |rails: &[beeline_topo::Rail]| -> Vec<String> { rails.iter().map(|rail| rail.name.clone()).collect() };
    let unused: Vec<String> = denied.unused.iter().map(|unused| unused.name.clone()).collect();
    assert_eq!((names(&all.rails), denied.rails.len()), (unused, 0));
    // TCP underneath is not used unless it is asked for by name.
    let unasked = report(&Host::new(""));
    assert!(unasked.rails.iter().all(|rail| rail.provider != "tcp"));
    assert_eq!(unasked.rails.len() + unasked.unused.len(), all.rails.len());
    let table = good(&Host::new("[rails]\ndeny = [{ provider = 'tcp' }]\n").run(&["rails"]));
    let has_tcp = all.rails.iter().any(|rail| rail.provider == "tcp");
    assert_eq!(table.contains("denied by a rule of the configuration"), has_tcp, "{table}");
    let mistyped = good(&Host::new("[rails]\nallow = [{ provider = 'verbz' }]\n").run(&["rails"]));
    assert_eq!(mistyped.contains("no allow rule holds for it"), !all.rails.is_empty(), "{mistyped}");
}

#[test]
fn help_that_cannot_be_written_is_a_failure() {
    let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let output =
        std::process::Command::new(env!("CARGO_BIN_EXE_beelined")).arg("--help").stdout(full).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("cannot write to standard output"));
}
