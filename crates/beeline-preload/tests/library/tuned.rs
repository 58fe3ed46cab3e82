//! What rules, `beeline set` and `SO_BUSY_POLL` change: told by the reasons and counters of a guest that does one thing
//! at a time. A wait that polls looks at the kernel many times, which the counter of sleeps counts; one that sleeps
//! does so once.

use std::fs::{File, OpenOptions};
use std::io::Lines;
use std::mem::offset_of;
use std::os::unix::fs::FileExt;
use std::process::{ChildStdin, ChildStdout};
use std::time::Instant;

use super::*;
use beeline_stats::layout::{ConnectionSlot, HEADER_BYTES, SLOT_BYTES, StatsHeader};
use beeline_stats::tunables::{Value, Wait, option};
use beeline_stats::{Connection, Counter, Reason, Role, Snapshot};

/// More looks than a wait that sleeps ever takes, and fewer than one of 30 ms that polls.
const MANY: u64 = 12;

struct Guest {
    group: Group,
    stdin: ChildStdin,
    lines: Lines<BufReader<ChildStdout>>,
    /// The process that listens to us: the guest, or a child of it.
    pid: u32,
}

impl Guest {
    fn start(options: &str) -> Self {
        let mut command = Command::new(guest("tuned"));
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        preload::apply(&mut command, Some(library()));
        preload::options(&mut command, options);
        let mut group = Group::start(&mut command).expect("the guest starts");
        let pid = group.id();
        let (stdin, stdout, _) = group.pipes();
        let (stdin, lines) = (stdin.expect("piped"), BufReader::new(stdout.expect("piped")).lines());
        let mut guest = Self { group, stdin, lines, pid };
        guest.expect("ready");
        guest
    }

    fn hear(&mut self) -> String {
        self.lines.next().expect("the guest speaks").expect("in UTF-8")
    }

    fn expect(&mut self, line: &str) {
        assert_eq!(self.hear(), line);
    }

    fn tell(&mut self, line: &str) {
        self.stdin.write_all(format!("{line}\n").as_bytes()).expect("the guest listens");
    }

    fn make(&mut self, line: &str) {
        self.tell(line);
        self.expect("done");
    }

    fn file(&self) -> File {
        OpenOptions::new().read(true).write(true).open(statistics(self.pid)).expect("there are statistics")
    }

    fn look<R>(&self, look: impl FnOnce(&Snapshot<'_>) -> R) -> R {
        let bytes = std::fs::read(statistics(self.pid)).expect("the file can be read");
        look(&Snapshot::parse(&bytes).expect("the file is well-formed"))
    }

    fn counted(&self, counter: Counter) -> u64 {
        self.look(|snapshot| snapshot.counter(counter))
    }

    fn disabled(&self, role: Role) -> u64 {
        self.look(|snapshot| snapshot.reason(role, Reason::Disabled))
    }

    fn lanes(&self) -> u64 {
        self.counted(Counter::ConnectionsAcceleratedServer)
    }

    /// How often the guest slept, or looked at the kernel in place of a sleep, while it did this.
    fn sleeps(&mut self, line: &str) -> u64 {
        let before = self.counted(Counter::Sleeps);
        self.make(line);
        self.counted(Counter::Sleeps) - before
    }

    /// Sets an option as `beeline set` does.
    fn set(&self, index: usize, word: u64) {
        let offset = offset_of!(StatsHeader, settings) + index * 8;
        self.file().write_all_at(&word.to_ne_bytes(), offset as u64).expect("the file can be written");
    }

    fn connection(&self, role: Role) -> Connection {
        self.look(|snapshot| snapshot.connections().find(|open| open.role == role)).expect("a connection on a lane")
    }

    /// Sets how one connection waits, likewise.
    fn set_own_wait(&self, role: Role, word: u32) {
        let slot = HEADER_BYTES + self.connection(role).slot * SLOT_BYTES;
        let offset = slot + offset_of!(ConnectionSlot, own) + option::wait.place() * 4;
        self.file().write_all_at(&word.to_ne_bytes(), offset as u64).expect("the file can be written");
    }

    fn end(mut self) {
        self.tell("end");
        assert_eq!(self.group.finish(LIMIT).expect("the guest ends"), Ending::Exit(0));
    }
}

fn word(wait: Wait) -> u64 {
    option::wait.word(wait)
}

#[test]
fn a_rule_keeps_connections_on_tcp() {
    let mut guest =
        Guest::start("rule=role=client;address=127.0.0.2;path=tcp,rule=role=server;address=127.0.0.3;path=tcp");
    guest.make("connect 127.0.0.1");
    assert_eq!((guest.lanes(), guest.disabled(Role::Client), guest.disabled(Role::Server)), (1, 0, 0));
    guest.make("connect 127.0.0.2");
    assert_eq!((guest.lanes(), guest.disabled(Role::Client), guest.disabled(Role::Server)), (1, 1, 0));
    // The listener, on all addresses, has a door; whoever comes through it to this one is sent away, and goes on over
    // TCP.
    guest.make("connect 127.0.0.3");
    assert_eq!((guest.lanes(), guest.disabled(Role::Client), guest.disabled(Role::Server)), (1, 1, 1));
    guest.make("server waits");
    guest.make("connect 127.0.0.1");
    assert_eq!(guest.lanes(), 2);
    assert_eq!(guest.look(|snapshot| snapshot.rules()), 2);
    guest.end();
}

#[test]
fn a_listener_that_a_rule_keeps_on_tcp_has_no_door() {
    let mut guest = Guest::start("rule=role=server;path=tcp");
    guest.make("connect 127.0.0.1");
    assert_eq!((guest.lanes(), guest.disabled(Role::Server), guest.counted(Counter::DoorsOpened)), (0, 1, 0));
    guest.end();
}

#[test]
fn rules_for_other_programs_are_left_out_and_the_first_that_matches_counts() {
    let rules = "rule=program=other*;path=tcp,rule=program=/*/tuned;wait=wait,rule=program=tuned;path=tcp";
    let mut guest = Guest::start(rules);
    guest.make("connect 127.0.0.1");
    assert_eq!((guest.lanes(), guest.look(|snapshot| snapshot.rules())), (1, 2));
    assert_eq!(guest.connection(Role::Server).own(option::wait.place()), Some(Value::Choice("wait")));
    guest.end();
}

#[test]
fn a_rule_says_how_its_connections_wait() {
    let mut guest = Guest::start("wait=poll,rule=role=server;wait=wait");
    guest.make("connect 127.0.0.1");
    assert!(guest.sleeps("client waits") >= MANY, "the process polls");
    assert!(guest.sleeps("server waits") < MANY, "the rule's connection sleeps");
    guest.end();
    let mut guest = Guest::start("wait=wait,rule=role=server;wait=poll");
    guest.make("connect 127.0.0.1");
    assert!(guest.sleeps("client waits") < MANY);
    assert!(guest.sleeps("server waits") >= MANY);
    assert!(guest.sleeps("server waits by epoll") >= MANY, "a set waits as the connection that was told last");
    guest.end();
}

#[test]
fn what_is_set_while_a_program_runs_holds_from_the_next_wait_on() {
    let mut guest = Guest::start("wait=wait");
    guest.make("connect 127.0.0.1");
    assert!(guest.sleeps("server waits") < MANY);
    guest.set(option::wait.index(), word(Wait::Poll));
    assert!(guest.sleeps("server waits") >= MANY);
    assert!(guest.sleeps("server waits by epoll") >= MANY);
    guest.set(option::wait.index(), word(Wait::Lazy));
    guest.set(option::spin_ns_max.index(), option::spin_ns_max.word(10_000_000));
    let spins = |guest: &Guest| guest.counted(Counter::SpinsFailed) + guest.counted(Counter::SpinsPaid);
    let before = spins(&guest);
    // A peer on the same CPU is not spun for: some of them meet on two, unless another test has one of these for itself
    // just now.
    let until = Instant::now() + LIMIT;
    while spins(&guest) == before && Instant::now() < until {
        guest.make("server waits");
    }
    assert_ne!(spins(&guest), before, "the budget is the new one's, at once");
    guest.set(option::wait.index(), 0);
    let before = spins(&guest);
    assert!(guest.sleeps("server waits") < MANY, "what the process began with holds again");
    assert_eq!(spins(&guest), before);
    guest.end();
}

#[test]
fn what_cannot_be_is_taken_back_and_counted() {
    let mut guest = Guest::start("wait=wait");
    guest.make("connect 127.0.0.1");
    for (index, impossible) in [
        (option::wait.index(), 4),
        (option::wait.index(), u64::MAX),
        (option::spin_ns_max.index(), 10_000_002),
        (option::accelerate.index(), 7),
    ] {
        let before = guest.counted(Counter::SettingsRefused);
        guest.set(index, impossible);
        assert!(guest.sleeps("server waits") < MANY);
        guest.make("connect 127.0.0.1");
        assert_eq!(guest.counted(Counter::SettingsRefused), before + 1, "{index} {impossible}");
        assert_eq!(guest.lanes(), guest.counted(Counter::ConnectionsAcceleratedClient));
    }
    guest.set_own_wait(Role::Server, u32::MAX);
    assert!(guest.sleeps("server waits") < MANY);
    assert_eq!(guest.counted(Counter::SettingsRefused), 5);
    assert_eq!(guest.connection(Role::Server).own[option::wait.place()], 0);
    guest.end();
}

#[test]
fn one_connection_waits_as_was_set_for_it() {
    let mut guest = Guest::start("wait=wait");
    guest.make("connect 127.0.0.1");
    guest.set_own_wait(Role::Server, word(Wait::Poll) as u32);
    assert!(guest.sleeps("server waits") >= MANY);
    assert!(guest.sleeps("client waits") < MANY);
    assert!(guest.sleeps("server waits by epoll") >= MANY);
    // The next connection is another one, whatever slot it has.
    guest.make("connect 127.0.0.1");
    assert!(guest.sleeps("server waits") < MANY);
    guest.end();
}

#[test]
fn a_child_goes_on_with_what_was_set_and_so_does_the_next_program() {
    let mut guest = Guest::start("wait=wait");
    guest.make("connect 127.0.0.1");
    guest.set(option::wait.index(), word(Wait::Poll));
    assert!(guest.sleeps("server waits") >= MANY);
    guest.tell("exec");
    guest.expect("ready");
    guest.make("connect 127.0.0.1");
    assert!(guest.sleeps("server waits") >= MANY, "over exec");
    guest.set_own_wait(Role::Client, word(Wait::Sleep) as u32);
    assert!(guest.sleeps("client waits") < MANY);
    guest.tell("fork");
    let child = guest.hear();
    guest.pid = child.strip_prefix("child ").and_then(|pid| pid.parse().ok()).expect("a number");
    // Its first wait makes its file.
    guest.make("server waits");
    assert!(guest.sleeps("server waits") >= MANY, "in the child");
    assert!(guest.sleeps("client waits") < MANY, "which has the connection's own as well");
    guest.set(option::wait.index(), word(Wait::Sleep));
    assert!(guest.sleeps("server waits") < MANY);
    guest.end();
}

#[test]
fn lanes_are_switched_off_and_on_while_a_program_runs() {
    let mut guest = Guest::start("");
    guest.make("connect 127.0.0.1");
    assert_eq!(guest.lanes(), 1);
    guest.set(option::accelerate.index(), option::accelerate.word(false));
    guest.make("server waits");
    guest.make("connect 127.0.0.1");
    assert_eq!((guest.lanes(), guest.disabled(Role::Client)), (1, 1));
    guest.set(option::accelerate.index(), option::accelerate.word(true));
    guest.make("connect 127.0.0.1");
    assert_eq!((guest.lanes(), guest.disabled(Role::Client)), (2, 1));
    guest.end();
}

#[test]
fn busy_polling_is_how_a_socket_says_it() {
    let mut guest = Guest::start("wait=poll");
    guest.make("connect 127.0.0.1");
    assert!(guest.sleeps("server waits") >= MANY);
    guest.make("server busy 0");
    assert!(guest.sleeps("server waits") < MANY);
    assert!(guest.sleeps("client waits") >= MANY);
    // The listener's value goes to those whom it accepts.
    guest.make("listener busy 0");
    guest.make("connect 127.0.0.1");
    assert!(guest.sleeps("server waits") < MANY);
    let own = guest.connection(Role::Server);
    assert_eq!(own.own(option::wait.place()), Some(Value::Choice("wait")));
    guest.make("server busy 50");
    let own = guest.connection(Role::Server);
    assert_eq!(own.own(option::wait.place()), Some(Value::Choice("lazy")));
    assert_eq!(own.own(option::spin_ns_max.place()), Some(Value::Number(50_000)));
    guest.end();
}
