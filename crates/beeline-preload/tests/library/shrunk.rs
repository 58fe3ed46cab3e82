//! CPUs that are taken away from a conversation while it goes on: two programs that had two are left with one, by
//! somebody else. Soon neither spins for the other any more, which would only keep it from running. Told by counts,
//! however busy the machine is.

use std::process::ChildStdin;
use std::time::{Duration, Instant};

use super::*;
use beeline_stats::{Counter, Snapshot};

/// Bytes of a message of the guest.
const MESSAGE_BYTES: u64 = 64;
/// Messages there and back that a look takes in.
const TRIPS: u64 = 3000;
/// After so long a change of the CPUs has been heard of, however slowly the clock of these waits ticks.
const HEARD: Duration = Duration::from_secs(1);
/// How long two CPUs may take to be free for both, before the test goes on without having seen that.
const PATIENCE: Duration = Duration::from_secs(3);

/// The first two CPUs that this program may use, or why there are none to take away.
fn two_cpus() -> Result<[usize; 2], String> {
    // SAFETY: zeroes are a set.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: a live set of that size.
    assert_eq!(unsafe { libc::sched_getaffinity(0, size_of_val(&set), &raw mut set) }, 0);
    let is_ours = |cpu: &usize| {
        // SAFETY: a live set, and a CPU within it.
        unsafe { libc::CPU_ISSET(*cpu, &set) }
    };
    let two: Vec<usize> = (0..8 * size_of_val(&set)).filter(is_ours).take(2).collect();
    two.try_into().map_err(|_| "there is one CPU only, and none to take away".into())
}

/// From now on a program of one thread has these CPUs.
fn set_mask(pid: u32, cpus: &[usize]) {
    // SAFETY: zeroes are a set.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    for &cpu in cpus {
        // SAFETY: a live set, and a CPU that the kernel has told.
        unsafe { libc::CPU_SET(cpu, &mut set) };
    }
    // SAFETY: a live set of that size.
    let result = unsafe { libc::sched_setaffinity(pid.cast_signed(), size_of_val(&set), &raw const set) };
    assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
}

/// A group of processes with CPUs of its own, for as long as the test lasts.
struct Cpuset(PathBuf);

impl Cpuset {
    /// One that can be made without a change of what others have; why there is none otherwise.
    fn new(cpus: &[usize]) -> Result<Self, String> {
        let (own, unified) = (Path::new("/sys/fs/cgroup/cpuset"), Path::new("/sys/fs/cgroup"));
        let handed_on = std::fs::read_to_string(unified.join("cgroup.subtree_control")).unwrap_or_default();
        let above = if own.join("cpuset.cpus").exists() {
            own
        } else if handed_on.split_whitespace().any(|controller| controller == "cpuset") {
            unified
        } else {
            return Err("no group of processes can have CPUs of its own here".into());
        };
        let group = Self(above.join(format!("beeline-test-{}", std::process::id())));
        std::fs::create_dir(&group.0).map_err(|error| format!("{}: {error}", group.0.display()))?;
        // The older kind of group has nothing at first, the newer all that the one above has.
        if let Ok(memory) = std::fs::read_to_string(own.join("cpuset.mems"))
            && above == own
        {
            group.write("cpuset.mems", memory.trim());
        }
        group.is_for_us(cpus)?;
        Ok(group)
    }

    /// A program of ours is moved into it. Why it cannot be, if that is not allowed here.
    fn is_for_us(&self, cpus: &[usize]) -> Result<(), String> {
        let mut program = Command::new("sleep").arg("60").spawn().map_err(|error| format!("sleep: {error}"))?;
        let moved = std::fs::write(self.0.join("cpuset.cpus"), list(cpus))
            .and_then(|()| std::fs::write(self.0.join("cgroup.procs"), program.id().to_string()));
        let _ = program.kill();
        let _ = program.wait();
        moved.map_err(|error| format!("{}: {error}", self.0.display()))
    }

    /// From now on these programs are in it, and have these CPUs.
    fn hold(&self, pids: [u32; 2], cpus: &[usize]) {
        self.write("cpuset.cpus", &list(cpus));
        pids.iter().for_each(|pid| self.write("cgroup.procs", &pid.to_string()));
    }

    fn write(&self, name: &str, text: &str) {
        let path = self.0.join(name);
        std::fs::write(&path, text).unwrap_or_else(|error| panic!("{} {text}: {error}", path.display()));
    }
}

impl Drop for Cpuset {
    fn drop(&mut self) {
        // Nobody is in it any more.
        let _ = std::fs::remove_dir(&self.0);
    }
}

/// CPUs as the kernel reads them.
fn list(cpus: &[usize]) -> String {
    cpus.iter().map(ToString::to_string).collect::<Vec<_>>().join(",")
}

/// What both ends have counted.
#[derive(Clone, Copy, Default)]
struct Counts {
    trips: u64,
    spins: u64,
    sleeps: u64,
}

impl Counts {
    fn since(self, before: Self) -> Self {
        let Self { trips, spins, sleeps } = before;
        Self {
            trips: self.trips.saturating_sub(trips),
            spins: self.spins.saturating_sub(spins),
            sleeps: self.sleeps.saturating_sub(sleeps),
        }
    }
}

/// Two programs that talk until the standard input of one of them ends.
struct Talk {
    server: Group,
    client: Group,
    input: ChildStdin,
}

impl Talk {
    fn begin(style: &str) -> Self {
        let start = |words: &[&str]| {
            let mut command = Command::new(guest("asleep"));
            command.args(words).stdin(Stdio::piped()).stdout(Stdio::piped());
            preload::apply(&mut command, Some(library()));
            let mut group = Group::start(&mut command).expect("the guest starts");
            let (input, output, _) = group.pipes();
            (group, input.expect("piped"), BufReader::new(output.expect("piped")))
        };
        let (server, _, mut said) = start(&["serve", style, "0"]);
        let mut port = String::new();
        said.read_line(&mut port).expect("the server speaks");
        let (client, input, _) = start(&["ask", style, port.trim(), "0"]);
        Self { server, client, input }
    }

    fn pids(&self) -> [u32; 2] {
        [self.client.id(), self.server.id()]
    }

    fn counts(&self) -> Counts {
        self.pids().into_iter().fold(Counts::default(), |sum, pid| {
            let Ok(bytes) = std::fs::read(statistics(pid)) else { return sum };
            // It may not be ready yet.
            let Ok(snapshot) = Snapshot::parse(&bytes) else { return sum };
            // Of each trip one end sends one message, the other one the other.
            let sent: u64 = snapshot.connections().map(|connection| connection.tx_bytes).sum();
            let is_client = pid == self.client.id();
            Counts {
                trips: sum.trips + if is_client { sent / MESSAGE_BYTES } else { 0 },
                spins: sum.spins + snapshot.counter(Counter::SpinsPaid) + snapshot.counter(Counter::SpinsFailed),
                sleeps: sum.sleeps + snapshot.counter(Counter::Sleeps),
            }
        })
    }

    /// What is counted during many trips.
    fn look(&self) -> Counts {
        let (before, deadline) = (self.counts(), Instant::now() + LIMIT);
        loop {
            let seen = self.counts().since(before);
            if seen.trips >= TRIPS {
                return seen;
            }
            assert!(Instant::now() < deadline, "{} trips only", seen.trips);
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Waits until both ends hardly sleep: where there are CPUs enough, they spin.
    fn wakes(&self) -> bool {
        let deadline = Instant::now() + PATIENCE;
        while Instant::now() < deadline {
            let seen = self.look();
            if seen.sleeps * 4 < seen.trips {
                return true;
            }
        }
        false
    }

    /// Every byte was what it was to be.
    fn end(self) {
        drop(self.input);
        for group in [self.client, self.server] {
            assert_eq!(group.finish(LIMIT).expect("the guest ends"), Ending::Exit(0));
        }
    }
}

/// Both programs of a conversation have some CPUs by what `keep` does, and one of these a while later.
fn nobody_spins_where_one_cpu_is_left(style: &str, cpus: [usize; 2], keep: impl Fn([u32; 2], &[usize])) {
    let talk = Talk::begin(style);
    keep(talk.pids(), &cpus);
    if !talk.wakes() {
        println!("{style}: the machine is too busy for two programs that spin");
    }
    keep(talk.pids(), &cpus[..1]);
    std::thread::sleep(HEARD);
    let Counts { trips, spins, sleeps } = talk.look();
    println!("{style}: {spins} spins and {sleeps} sleeps in {trips} trips");
    assert!(spins * 20 < trips, "{style}: {spins} spins in {trips} trips");
    // There was something to wait for at all.
    assert!(sleeps * 2 > trips, "{style}: {sleeps} sleeps in {trips} trips");
    talk.end();
}

#[test]
fn nobody_spins_whose_mask_has_shrunk_to_that_of_the_peer() {
    let cpus = match two_cpus() {
        Ok(cpus) => cpus,
        Err(why) => return println!("skipped: {why}"),
    };
    for style in ["recv", "poll", "level", "edge"] {
        nobody_spins_where_one_cpu_is_left(style, cpus, |pids, cpus| {
            pids.iter().for_each(|&pid| set_mask(pid, cpus));
        });
    }
}

#[test]
fn nobody_spins_whose_group_has_lost_a_cpu() {
    let (cpus, group) = match two_cpus().and_then(|cpus| Ok((cpus, Cpuset::new(&cpus)?))) {
        Ok(both) => both,
        Err(why) => return println!("skipped: {why}"),
    };
    for style in ["recv", "level"] {
        nobody_spins_where_one_cpu_is_left(style, cpus, |pids, cpus| group.hold(pids, cpus));
    }
}
