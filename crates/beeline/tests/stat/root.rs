//! A directory of statistics files of the test's own, and what stands in them.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::process::Output;
use std::sync::atomic::Ordering;

use beeline_stats::layout::{ConnectionSlot, FileName, OWN_MAX, Opening, StatsHeader, start_ticks_from_proc_stat};
use beeline_stats::{Counter, Poison, Reason, Role};
use tempfile::TempDir;

use crate::common::beeline;

/// Stands for `/dev/shm`, with the directory of the user who runs the test.
pub struct Root {
    pub root: TempDir,
    pub user: PathBuf,
}

impl Root {
    pub fn new() -> Self {
        let root = tempfile::tempdir().unwrap();
        let user = root.path().join(format!("beeline-{}", own_uid()));
        fs::create_dir(&user).unwrap();
        fs::set_permissions(&user, fs::Permissions::from_mode(0o700)).unwrap();
        Self { root, user }
    }

    pub fn put(&self, name: FileName, content: impl AsRef<[u8]>) -> PathBuf {
        let path = self.user.join(name.text().as_str());
        fs::write(&path, content).unwrap();
        path
    }

    pub fn stat(&self, arguments: &[&str]) -> Output {
        let mut command = beeline();
        command.args(["stat", "--root"]).arg(self.root.path()).arg("--socket").arg(self.socket()).args(arguments);
        command.output().unwrap()
    }

    /// Where a bridge would be.
    pub fn socket(&self) -> PathBuf {
        self.root.path().join("bridge.sock")
    }

    /// The same with a bridge that gives this answer.
    pub fn with_bridge(&self, answer: &str, arguments: &[&str]) -> Output {
        let listener = UnixListener::bind(self.socket()).unwrap();
        let output = std::thread::scope(|scope| {
            scope.spawn(|| {
                let (mut stream, _) = listener.accept().unwrap();
                let mut line = String::new();
                BufReader::new(&stream).read_line(&mut line).unwrap();
                assert_eq!(line, "{\"request\":\"status\"}\n");
                stream.write_all(answer.as_bytes()).unwrap();
            });
            self.stat(arguments)
        });
        fs::remove_file(self.socket()).unwrap();
        output
    }

    pub fn json(&self, arguments: &[&str]) -> serde_json::Value {
        let output = self.stat(&[&["--json"], arguments].concat());
        serde_json::from_slice(&output.stdout).unwrap()
    }
}

pub fn own_uid() -> u32 {
    fs::metadata("/proc/self").unwrap().uid()
}

/// The running test itself: a process that is alive for certain.
pub fn alive() -> FileName {
    FileName {
        pid: std::process::id(),
        start_ticks: start_ticks_from_proc_stat(&fs::read("/proc/self/stat").unwrap()).unwrap(),
    }
}

/// The same process id at another time: gone for certain.
pub fn gone() -> FileName {
    FileName { start_ticks: alive().start_ticks + 1, ..alive() }
}

#[repr(C)]
pub struct Content {
    pub header: StatsHeader,
    pub slots: [ConnectionSlot; 2],
}

pub fn content(name: FileName, fill: impl FnOnce(&Content)) -> Vec<u8> {
    // SAFETY: all fields are integer atomics, for which all-zero bytes are valid.
    let content: Content = unsafe { std::mem::zeroed() };
    fill(&content);
    content.header.publish(name, own_uid(), 1, b"redis-server");
    // SAFETY: the structure has no padding, and nobody changes it while it is copied.
    unsafe { std::slice::from_raw_parts((&raw const content).cast::<u8>(), size_of::<Content>()) }.to_vec()
}

pub fn busy(content: &Content) {
    content.header.add(Counter::ConnectionsAcceleratedServer, 12);
    content.header.add(Counter::BytesSent, 1000);
    content.header.add(Counter::DoorbellsSent, 5);
    content.header.add(Counter::Sleeps, 3);
    content.header.fell_back(Role::Client, Reason::NoDoor);
    content.header.fell_back(Role::Client, Reason::NoDoor);
    content.header.fell_back(Role::Server, Reason::CameOverTcp);
    content.header.poisoned(Poison::BadBellByte);
    assert!(content.slots[1].try_take());
    content.slots[1].open(&Opening {
        fd: 9,
        role: Role::Server,
        local: "127.0.0.1:6379".parse().unwrap(),
        remote: "127.0.0.1:24000".parse().unwrap(),
        peer_pid: 4711,
        opened_unix_ns: 1,
        lane_inode: 77,
        own: [0; OWN_MAX],
    });
    content.slots[1].tx_bytes.store(24, Ordering::Relaxed);
    content.header.raise_high_water(2);
}
