//! What must hold of each connection when a round is over.

use super::board::{Board, End, Ending, Record};
use super::plan::{Gone, Kind, Plan, Role, Round};
use std::sync::atomic::Ordering::Relaxed;

/// The longest wait, in microseconds, that a connection may have had.
pub const WAIT_US_MAX: u64 = 2_000_000;

/// How the connections of one kind ended.
#[derive(Debug, Clone, Copy, Default)]
pub struct Tally {
    pub connections: u64,
    pub complete: u64,
    pub early: u64,
    pub reset: u64,
    pub refused: u64,
    pub wait_us_max: u64,
    pub bytes: u64,
    pub problems: u64,
}

impl Tally {
    pub fn add(&mut self, other: &Self) {
        self.connections += other.connections;
        self.complete += other.complete;
        self.early += other.early;
        self.reset += other.reset;
        self.refused += other.refused;
        self.wait_us_max = self.wait_us_max.max(other.wait_us_max);
        self.bytes += other.bytes;
        self.problems += other.problems;
    }
}

/// Whether both ends have said how they ended, as far as they can.
#[must_use]
pub fn is_settled(record: &Record) -> bool {
    let pid = record.server.pid.load(Relaxed);
    record.server.ending() != Ending::None || pid == 0 || !std::path::Path::new(&format!("/proc/{pid}")).exists()
}

/// Counts a connection, and says what is wrong with it.
pub fn judge(board: &Board, round: &Round, plan: &Plan, tally: &mut Tally) -> Option<String> {
    let record = board.record(plan.id);
    let (client, server) = (&record.client, &record.server);
    tally.connections += 1;
    tally.bytes += client.received.load(Relaxed) + server.received.load(Relaxed);
    for end in [client, server].into_iter().filter(|_| record.excused.load(Relaxed) == 0) {
        tally.wait_us_max = tally.wait_us_max.max(end.wait_us_max.load(Relaxed));
    }
    let endings = [client.ending(), server.ending()];
    let any = |ending: Ending| endings.contains(&ending);
    match () {
        () if endings == [Ending::Done; 2] => tally.complete += 1,
        () if any(Ending::Reset) => tally.reset += 1,
        () if any(Ending::Refused) => tally.refused += 1,
        () => tally.early += 1,
    }
    let problem = find(record, round, plan)?;
    tally.problems += 1;
    let told = |name: &str, end: &End, total: u64| {
        let (sent, received) = (end.sent.load(Relaxed), end.received.load(Relaxed));
        let (ending, errno) = (end.ending(), end.errno.load(Relaxed));
        let wait = end.wait_us_max.load(Relaxed) / 1000;
        format!("{name} sent {sent} of {total}, received {received}, {ending:?} (errno {errno}), waited {wait} ms")
    };
    Some(format!(
        "connection {}: {problem}\n    {:?} at the {:?}, variant {}, {:?} server, modes {:?} and {:?}, {:?} closes\n    {}\n    {}",
        plan.id,
        plan.kind,
        plan.side,
        plan.variant,
        round.style,
        plan.mode(Role::Client),
        plan.mode(Role::Server),
        plan.closer,
        told("client", client, plan.total(Role::Client)),
        told("server", server, plan.total(Role::Server)),
    ))
}

fn find(record: &Record, round: &Round, plan: &Plan) -> Option<String> {
    let (client, server) = (&record.client, &record.server);
    let killed_listener = round.kind == Some(Kind::Gone) && round.gone == Gone::Killed;
    let early = plan.ends_early() || killed_listener;
    for (name, end) in [("client", client), ("server", server)] {
        match end.ending() {
            Ending::Wrong => return Some(format!("a wrong byte for the {name}")),
            Ending::Surplus => return Some(format!("bytes after the end for the {name}")),
            Ending::Failed => return Some(format!("a call of the {name} failed")),
            Ending::Early | Ending::Reset if !early => return Some(format!("the {name} lost its connection")),
            Ending::Refused if !killed_listener => return Some(format!("the {name} could not connect")),
            _ => {}
        }
        let wait = end.wait_us_max.load(Relaxed);
        if wait > WAIT_US_MAX && record.excused.load(Relaxed) == 0 {
            return Some(format!("the {name} waited for {} ms", wait / 1000));
        }
    }
    if record.hung.load(Relaxed) != 0 {
        return Some("it hung".to_owned());
    }
    if !early && (client.ending(), server.ending()) != (Ending::Done, Ending::Done) {
        return Some("it is not complete".to_owned());
    }
    let lost =
        |from: &End, to: &End| to.ending() == Ending::Early && to.received.load(Relaxed) < from.sent.load(Relaxed);
    if lost(client, server) || lost(server, client) {
        return Some("bytes that had been sent were lost".to_owned());
    }
    let unseen = server.pid.load(Relaxed) != 0 && server.ending() == Ending::None;
    if unseen && plan.side == Role::Client && !killed_listener {
        return Some("the server never saw the end".to_owned());
    }
    None
}
