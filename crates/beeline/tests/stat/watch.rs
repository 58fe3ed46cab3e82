//! `beeline stat --watch`, read by a program and on a terminal.

use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixListener;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Stdio};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use beeline_stats::layout::FileName;
use beeline_stats::{Reason, Role};
use nix::pty::{Winsize, openpty};
use nix::sys::termios::LocalFlags;

use crate::common::beeline;
use crate::root::{Root, alive, busy, content};

#[test]
fn watching_ends_when_nobody_reads() {
    let root = Root::new();
    root.put(alive(), content(alive(), busy));
    let mut child = beeline()
        .args(["stat", "--watch=0.1", "--json", "--root"])
        .arg(root.root.path())
        .arg("--socket")
        .arg(root.socket())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = std::io::BufRead::lines(std::io::BufReader::new(child.stdout.take().unwrap()));
    for _ in 0..2 {
        let json: serde_json::Value = serde_json::from_str(&lines.next().unwrap().unwrap()).unwrap();
        assert_eq!(json["processes"][0]["pid"], alive().pid);
    }
    drop(lines);
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

/// How each screen begins.
const CLEAR: &str = "\x1b[H\x1b[2J";

/// What ends a program that does not ask for it.
const SIGNALS: [i32; 5] = [libc::SIGTERM, libc::SIGHUP, libc::SIGINT, libc::SIGQUIT, libc::SIGABRT];

/// A terminal with `beeline stat` on it.
struct Terminal {
    child: Child,
    keyboard: std::fs::File,
    seen: String,
}

impl Terminal {
    fn start(root: &Root, columns: u16, arguments: &[&str]) -> Self {
        Self::begin(root, columns, arguments, false)
    }

    /// Whose terminal it is gets the signals of its keys; the kernel takes the settings back when it ends.
    fn begin(root: &Root, columns: u16, arguments: &[&str], is_its: bool) -> Self {
        let size = Winsize { ws_row: 50, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
        let pair = openpty(&size, None).unwrap();
        let end = |fd: &OwnedFd| Stdio::from(fd.try_clone().unwrap());
        let mut command = beeline();
        command
            .args(["stat", "--root"])
            .arg(root.root.path())
            .arg("--socket")
            .arg(root.socket())
            .args(arguments)
            .stdin(end(&pair.slave))
            .stdout(end(&pair.slave));
        // SAFETY: the child makes calls that may be made after a fork.
        unsafe {
            // What these tests were started to ignore (nohup, `&` in a script) is not what they are about.
            command.pre_exec(move || {
                for signal in SIGNALS {
                    libc::signal(signal, libc::SIG_DFL);
                }
                if is_its {
                    libc::setsid();
                    libc::ioctl(libc::STDIN_FILENO, libc::TIOCSCTTY, 0);
                }
                Ok(())
            });
        }
        let child = command.spawn().unwrap();
        Self { child, keyboard: pair.master.into(), seen: String::new() }
    }

    /// Reads until a screen shows what is looked for, or until the program has ended.
    fn read_until(&mut self, shows: impl Fn(&str) -> bool) {
        let since = Instant::now();
        let mut bytes = [0; 4096];
        while !self.seen.split(CLEAR).any(&shows) {
            assert!(since.elapsed() < Duration::from_secs(20), "it does not come: {}", self.seen);
            match self.keyboard.read(&mut bytes) {
                Ok(count) if count > 0 => self.seen.push_str(&String::from_utf8_lossy(&bytes[..count])),
                // Nobody has the other end any more.
                _ => return,
            }
        }
    }

    fn press(&mut self, key: &str) -> Option<i32> {
        self.keyboard.write_all(key.as_bytes()).unwrap();
        self.child.wait().unwrap().code()
    }
}

#[test]
fn a_key_ends_the_watch_and_the_terminal_is_as_before() {
    for key in ["q", "Q", "\x04"] {
        let root = Root::new();
        root.put(alive(), content(alive(), busy));
        let mut terminal = Terminal::start(&root, 200, &["--watch=3600"]);
        terminal.read_until(|screen| screen.contains("q ends this"));
        let during = nix::sys::termios::tcgetattr(&terminal.keyboard).unwrap().local_flags;
        let since = Instant::now();
        assert_eq!(terminal.press(key), Some(0), "{key:?}");
        assert!(since.elapsed() < Duration::from_secs(20));
        let after = nix::sys::termios::tcgetattr(&terminal.keyboard).unwrap().local_flags;
        let line_by_line = LocalFlags::ICANON | LocalFlags::ECHO;
        assert!(!during.intersects(line_by_line) && after.contains(line_by_line));
    }
}

/// Keys are not read while the bridge is asked, which may take ten seconds. Ctrl-C ends that, too.
#[test]
fn control_c_ends_a_look_at_a_silent_bridge_and_control_z_nothing() {
    let root = Root::new();
    root.put(alive(), content(alive(), busy));
    let _silent = UnixListener::bind(root.socket()).unwrap();
    let mut terminal = Terminal::begin(&root, 200, &["--watch=3600"], true);
    let flags = |terminal: &Terminal| nix::sys::termios::tcgetattr(&terminal.keyboard).unwrap().local_flags;
    let since = Instant::now();
    while flags(&terminal).intersects(LocalFlags::ICANON | LocalFlags::ECHO) {
        assert!(since.elapsed() < Duration::from_secs(20));
        std::thread::yield_now();
    }
    let since = Instant::now();
    terminal.keyboard.write_all(b"\x1a\x03").unwrap();
    assert_eq!(terminal.child.wait().unwrap().signal(), Some(libc::SIGINT));
    assert!(since.elapsed() < Duration::from_secs(8), "it has waited for the bridge");
}

/// `timeout` and a session that ends send signals, as does Ctrl-C, and a panic is one.
#[test]
fn a_signal_ends_the_watch_and_the_terminal_is_as_before() {
    for signal in SIGNALS {
        let root = Root::new();
        root.put(alive(), content(alive(), busy));
        let mut terminal = Terminal::start(&root, 200, &["--watch=3600"]);
        terminal.read_until(|screen| screen.contains("q ends this"));
        let flags = |terminal: &Terminal| nix::sys::termios::tcgetattr(&terminal.keyboard).unwrap().local_flags;
        let during = flags(&terminal);
        // SAFETY: our own child, which is not waited for yet.
        assert_eq!(unsafe { libc::kill(i32::try_from(terminal.child.id()).unwrap(), signal) }, 0);
        assert_eq!(terminal.child.wait().unwrap().signal(), Some(signal));
        let line_by_line = LocalFlags::ICANON | LocalFlags::ECHO;
        assert!(!during.intersects(line_by_line) && flags(&terminal).contains(line_by_line), "{signal}");
    }
}

#[test]
fn connections_have_rates_of_their_own() {
    let root = Root::new();
    root.put(alive(), content(alive(), busy));
    let mut terminal = Terminal::start(&root, 200, &["--watch=0.2", &alive().pid.to_string()]);
    terminal.read_until(|screen| screen.contains("Rates follow"));
    assert!(!connections(&terminal.seen).contains("SENT/s"));
    // Meanwhile the connection sends a gigabyte.
    let grown = content(alive(), |content| {
        busy(content);
        content.slots[1].tx_bytes.store(1 << 30, Ordering::Relaxed);
    });
    let (beside, file) = (root.root.path().join("grown"), root.user.join(alive().text().as_str()));
    std::fs::write(&beside, grown).unwrap();
    std::fs::rename(beside, file).unwrap();
    // In all, and in a second.
    terminal.read_until(|screen| connections(screen).matches(" GiB").count() == 2);
    assert_eq!(terminal.press("q"), Some(0));
}

/// The screen begins with the heading, whatever is wider and longer than it.
#[test]
fn a_watch_fits_the_screen() {
    let root = Root::new();
    for pid in 1..=60 {
        let name = FileName { pid, start_ticks: 1 };
        root.put(
            name,
            content(name, |content| {
                busy(content);
                content.header.pid_namespace.store(1, Ordering::Relaxed);
            }),
        );
    }
    let mut terminal = Terminal::start(&root, 80, &["--watch=3600"]);
    terminal.read_until(|screen| screen.contains("q ends this"));
    assert_eq!(terminal.press("q"), Some(0));
    let screen = terminal.seen.split(CLEAR).nth(1).unwrap();
    // One of the fifty is the cursor's.
    assert_eq!(screen.lines().count(), 49, "{screen}");
    assert!(screen.trim_start().starts_with("PID "), "{screen}");
    assert!(screen.lines().all(|line| line.trim_end().chars().count() <= 80), "{screen}");
}

/// The table of connections on a screen.
fn connections(screen: &str) -> &str {
    screen.split_once("Open connections:").map_or("", |(_, table)| table)
}

#[test]
fn sentences_are_not_broken_within_words() {
    let root = Root::new();
    let all = content(alive(), |content| {
        for &reason in Reason::ALL {
            content.header.fell_back(Role::Client, reason);
        }
    });
    root.put(alive(), all);
    let mut terminal = Terminal::start(&root, 24, &[]);
    terminal.read_until(|_| false);
    assert_eq!(terminal.child.wait().unwrap().code(), Some(0));
    assert!(
        terminal.seen.lines().any(|line| line.starts_with("           ")),
        "nothing was too long: {}",
        terminal.seen
    );
    let said: Vec<&str> = terminal.seen.split_whitespace().collect();
    let said = said.join(" ");
    for reason in Reason::ALL {
        let whole = format!("{} as client: {}", reason.name(), reason.sentence());
        assert!(said.contains(&whole), "{whole}\n---\n{}", terminal.seen);
    }
}
