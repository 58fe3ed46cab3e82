//! Starting guests and talking to them.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, ChildStdout, Command, Stdio};
use std::sync::OnceLock;
use std::time::Duration;

use beeline_testkit::preload;
use beeline_testkit::statistics::Carried;
use beeline_testkit::watch::{Ending, Group};

/// After this long a guest hangs. Far beyond anything that is measured; no test waits for it when all is well.
pub const LIMIT: Duration = Duration::from_secs(60);

/// The release build of the library, which is what users load.
pub fn library() -> &'static Path {
    static LIBRARY: OnceLock<PathBuf> = OnceLock::new();
    LIBRARY.get_or_init(|| {
        if std::env::var_os(preload::LIBRARY_VARIABLE).is_some() {
            return preload::find_library().expect("the named library");
        }
        let program = std::env::current_exe().expect("own path");
        let target = program.ancestors().nth(3).expect("target/<profile>/deps/<program>");
        let status = Command::new(env!("CARGO"))
            .args(["build", "--quiet", "--release", "--package", "beeline-preload", "--target-dir"])
            .arg(target)
            .current_dir(env!("CARGO_MANIFEST_DIR"))
            .status()
            .expect("cargo runs");
        assert!(status.success());
        target.join("release/libbeeline.so")
    })
}

/// How a guest is started.
pub struct Role {
    command: Command,
}

/// A running guest.
pub struct Guest {
    group: Group,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl Role {
    /// A guest of this role, with the library in front of libc.
    pub fn new(role: &str) -> Role {
        let mut command = Command::new(std::env::current_exe().expect("own path"));
        command
            .args(["--exact", "guest_entry", "--ignored", "--nocapture", "--test-threads=1"])
            .env("GUEST", role)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        preload::apply(&mut command, Some(library()));
        Role { command }
    }

    /// The same without the library.
    pub fn plain(mut self) -> Role {
        preload::apply(&mut self.command, None);
        self
    }

    /// With options for the library.
    pub fn options(mut self, options: &str) -> Role {
        preload::options(&mut self.command, options);
        self
    }

    /// With a parameter of the role.
    pub fn set(mut self, name: &str, value: impl ToString) -> Role {
        self.command.env(name, value.to_string());
        self
    }

    /// The command, for what only this test needs.
    pub fn command(&mut self) -> &mut Command {
        &mut self.command
    }

    pub fn start(mut self) -> Guest {
        let mut group = Group::start(&mut self.command).expect("a guest starts");
        let (input, output, _) = group.pipes();
        Guest { group, input, output: BufReader::new(output.expect("a pipe")) }
    }
}

impl Guest {
    /// The next line that the guest says. A guest that ends without one fails the test.
    pub fn line(&mut self) -> String {
        loop {
            let mut line = String::new();
            assert_ne!(self.output.read_line(&mut line).expect("a pipe"), 0, "the guest has ended");
            if let Some((_, said)) = line.trim_end().split_once('@') {
                return said.to_owned();
            }
        }
    }

    /// The next line as a number.
    pub fn number(&mut self) -> u64 {
        let line = self.line();
        line.parse().unwrap_or_else(|_| panic!("not a number: {line}"))
    }

    /// Lets a guest that waits go on.
    pub fn go(&mut self) {
        self.input.as_mut().expect("not ended").write_all(b"\n").expect("the guest listens");
    }

    pub fn id(&self) -> u32 {
        self.group.id()
    }

    pub fn signal(&self, signal: i32) {
        self.group.signal(signal);
    }

    /// What the library counted about it so far.
    pub fn carried(&self) -> Carried {
        Carried::of(self.id()).expect("the guest runs the library")
    }

    /// Ends it.
    pub fn end(mut self) {
        drop(self.input.take());
        assert_eq!(self.group.finish(LIMIT).expect("waiting"), Ending::Exit(0));
    }
}

/// One guest's exchange with the server at `address`: `count` connections one after the other, `text` each way.
/// Returns what the last answer was.
pub fn visit(address: &str, count: usize, text: &str, library: bool) -> (String, Carried) {
    let mut role = Role::new("client").set("ADDRESS", address).set("COUNT", count).set("TEXT", text);
    if !library {
        role = role.plain();
    }
    let mut client = role.start();
    let answer = client.line();
    let carried = if library { client.carried() } else { Carried::default() };
    client.end();
    (answer, carried)
}
