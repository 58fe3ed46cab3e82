//! What a fork costs, in page faults: a count that a busy machine does not change, and most of what there is to pay.

use std::io::Read;
use std::net::TcpStream;

use super::*;

/// Forks of the guest, and those that it makes before it counts.
const FORKS: u64 = 100;
const WARM: u64 = 20;

/// Runs of the guest, of which the least counts: where the kernel puts stack and libraries (at any page, while it maps
/// pages of files by sixteens that begin at a multiple of as many) decides on a page or two more.
const RUNS: usize = 15;

/// Page faults of all forks, in parent and child.
type Faults = (u64, u64);

fn least(run: impl Fn() -> Faults) -> Faults {
    let runs: Vec<Faults> = (0..RUNS).map(|_| run()).collect();
    let least = |of: fn(&Faults) -> u64| runs.iter().map(of).min().expect("runs");
    (least(|run| run.0), least(|run| run.1))
}

fn in_words(text: &str) -> Faults {
    let numbers: Vec<u64> = text.split_whitespace().filter_map(|number| number.parse().ok()).collect();
    let [parent, child] = numbers[..] else { panic!("{text}") };
    (parent, child)
}

/// Bound at load: else each child looks up what it calls, in pages that are the linker's and not ours.
fn forks(library: Option<&Path>) -> Command {
    let mut command = Command::new(compile("forks", "forks", &["-Wl,-z,now"]));
    preload::apply(&mut command, library);
    command.args([WARM.to_string(), FORKS.to_string()]);
    command
}

/// Of children that end at once.
fn of_forks(library: Option<&Path>) -> Faults {
    let mut command = forks(library);
    let output = command.output().expect("the guest runs");
    assert!(output.status.success(), "{output:?}");
    in_words(&String::from_utf8_lossy(&output.stdout))
}

/// Of a server that forks for each connection, whose clients come over TCP.
fn of_served(library: Option<&Path>) -> Faults {
    let mut server = Group::start(forks(library).arg("serves").stdout(Stdio::piped())).expect("the guest runs");
    let mut said = BufReader::new(server.pipes().1.expect("piped"));
    let mut port = String::new();
    said.read_line(&mut port).expect("the guest says its port");
    let port: u16 = port.trim().parse().expect("a port");
    for _ in 0..WARM + FORKS {
        let mut connection = TcpStream::connect(("127.0.0.1", port)).expect("the guest listens");
        connection.write_all(b"x").expect("it is served");
        connection.read_exact(&mut [0]).expect("it is answered");
    }
    let mut counted = String::new();
    said.read_line(&mut counted).expect("the guest says what it has counted");
    assert_eq!(server.finish(LIMIT).expect("the guest ends"), Ending::Exit(0));
    in_words(&counted)
}

/// How many more for each fork. Of so many one may have a page fault more by chance.
fn more(ours: u64, without: u64) -> u64 {
    (ours.saturating_sub(without) + FORKS / 2) / FORKS
}

/// Whoever makes a fork write to more pages shall notice.
#[test]
fn a_fork_costs_few_page_faults() {
    for (what, of, parent_most, child_most) in
        [("forks", of_forks as fn(Option<&Path>) -> Faults, 2, 2), ("connections", of_served, 3, 2)]
    {
        let (parent, child) = least(|| of(None));
        let (ours_parent, ours_child) = least(|| of(Some(library())));
        let compared = format!(
            "{FORKS} {what}: parent {ours_parent}, without the library {parent}; child {ours_child}, without {child}"
        );
        println!("{compared}");
        assert!(more(ours_parent, parent) <= parent_most, "{compared}");
        assert!(more(ours_child, child) <= child_most, "{compared}");
    }
}
