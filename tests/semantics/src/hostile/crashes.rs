//! Processes that are killed at any step of a connection.

use super::{Case, PATIENCE, Target};
use anyhow::{Result, bail};
use beeline_testkit::hostile::open_descriptors;
use beeline_testkit::rng::Rng;
use beeline_testkit::watch::Ending;
use std::time::Duration;

pub const CASES: &[Case] = &[
    Case { name: "clients_killed_at_any_moment", body: clients_killed },
    Case { name: "server_killed_at_any_moment", body: server_killed },
    Case { name: "client_stopped_and_continued", body: client_stopped },
];

/// A moment between two steps of a client, by chance. This is not synchronisation: any moment is a good one.
fn some_moment(rng: &mut Rng) {
    std::thread::sleep(Duration::from_micros(rng.below(30_000) as u64));
}

fn clients_killed(target: &mut Target) -> Result<()> {
    let baseline = open_descriptors(target.process.id());
    let mut rng = Rng::new(31);
    for _ in 0..60 {
        let client = target.client_program("restless")?;
        some_moment(&mut rng);
        client.signal(libc::SIGKILL);
        match client.finish(PATIENCE)? {
            Ending::Signal(libc::SIGKILL) => {}
            other => bail!("the client found something wrong: {other:?}"),
        }
    }
    target.expect_descriptors(baseline + 20)
}

fn server_killed(target: &mut Target) -> Result<()> {
    let mut rng = Rng::new(32);
    let kinds = super::SERVERS;
    for round in 0..40 {
        let victim = Target::start(kinds[round % kinds.len()], &target.library)?;
        let clients = [victim.client_program("restless")?, victim.client_program("restless")?];
        some_moment(&mut rng);
        some_moment(&mut rng);
        victim.process.signal(libc::SIGKILL);
        for client in clients {
            match client.finish(PATIENCE)? {
                Ending::Exit(0) => {}
                other => bail!("round {round}: a client of the dead server ended with {other:?}"),
            }
        }
    }
    Ok(())
}

fn client_stopped(target: &mut Target) -> Result<()> {
    let mut rng = Rng::new(33);
    let client = target.client_program("restless")?;
    for _ in 0..20 {
        some_moment(&mut rng);
        client.signal(libc::SIGSTOP);
        target.expect_honest_service("while a client is stopped")?;
        client.signal(libc::SIGCONT);
    }
    client.signal(libc::SIGKILL);
    match client.finish(PATIENCE)? {
        Ending::Signal(libc::SIGKILL) => Ok(()),
        other => bail!("the client found something wrong: {other:?}"),
    }
}
