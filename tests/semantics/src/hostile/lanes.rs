//! Clients that were let in and misbehave afterwards: in the shared memory and on the anchor.

use super::{Case, Target};
use anyhow::{Result, ensure};
use beeline_testkit::hostile::{Client, Lane, Lingering};
use beeline_testkit::rng::Rng;
use beeline_wire::BELL;
use std::os::fd::AsRawFd;

const RING: u32 = 1 << 16;

pub const CASES: &[Case] = &[
    Case { name: "lane_full_of_noise", body: lane_full_of_noise },
    Case { name: "lane_of_all_ones", body: |target| scribbled(target, &[0xff; 4096]) },
    Case { name: "noise_while_served", body: noise_while_served },
    Case { name: "holes_punched", body: holes_punched },
    Case { name: "bells_by_the_thousand", body: bells_by_the_thousand },
    Case { name: "bytes_that_are_no_bells", body: bytes_that_are_no_bells },
    Case { name: "descriptors_on_a_bell", body: descriptors_on_a_bell },
    Case { name: "lingering_sockets_on_a_bell", body: lingering_sockets_on_a_bell },
    Case { name: "client_leaves_after_hello", body: client_leaves_after_hello },
    Case { name: "client_shuts_its_anchor", body: client_shuts_its_anchor },
];

/// A client that has been let in.
fn admitted(target: &mut Target) -> Result<(Client, Lane)> {
    let lane = Lane::correct(RING)?;
    let client = target.client()?;
    let before = target.carried()?.accelerated;
    client.say_hello(&lane)?;
    target.expect_within("the hello is taken", |target| Ok(target.carried()?.accelerated > before))?;
    Ok((client, lane))
}

fn scribbled(target: &mut Target, page: &[u8]) -> Result<()> {
    let (client, lane) = admitted(target)?;
    for at in 0..beeline_wire::hello::lane_bytes(RING) / page.len() as u64 {
        lane.scribble(at * page.len() as u64, page);
    }
    let _ = client.send(&[BELL], &[]);
    target.visit()?;
    ensure!(client.is_sent_away(), "a lane of impossible values is still served");
    Ok(())
}

fn lane_full_of_noise(target: &mut Target) -> Result<()> {
    let mut rng = Rng::new(99);
    for _ in 0..20 {
        let (client, lane) = admitted(target)?;
        let noise: Vec<u8> = (0..8192).map(|_| rng.next_u64() as u8).collect();
        lane.scribble(0, &noise);
        lane.scribble(u64::from(RING) + 4096, &noise);
        let _ = client.send(&[BELL], &[]);
        target.visit()?;
    }
    Ok(())
}

fn noise_while_served(target: &mut Target) -> Result<()> {
    // Small changes anywhere in the control words, with bells in between, for as long as the server bears with it.
    let mut rng = Rng::new(7);
    for _ in 0..10 {
        let (client, lane) = admitted(target)?;
        for _ in 0..2000 {
            let offset = match rng.below(3) {
                0 => rng.below(0x240) as u64,
                1 => u64::from(RING) + 4096 + rng.below(64) as u64,
                _ => rng.below(beeline_wire::hello::lane_bytes(RING) as usize) as u64,
            };
            let word = rng.next_u64().to_le_bytes();
            let length = rng.between(1, 8);
            lane.scribble(offset, &word[..length]);
            if rng.chance(4) && client.send(&[BELL], &[]).is_err() {
                break;
            }
        }
        target.visit()?;
    }
    Ok(())
}

fn holes_punched(target: &mut Target) -> Result<()> {
    let (client, lane) = admitted(target)?;
    for _ in 0..200 {
        lane.punch(0, beeline_wire::hello::lane_bytes(RING));
        let _ = client.send(&[BELL], &[]);
    }
    target.visit()
}

fn bells_by_the_thousand(target: &mut Target) -> Result<()> {
    let (client, _lane) = admitted(target)?;
    for _ in 0..20_000 {
        let _ = client.send(&[BELL], &[]);
    }
    target.expect_honest_service("beside a flood of bells")
}

fn bytes_that_are_no_bells(target: &mut Target) -> Result<()> {
    let (client, _lane) = admitted(target)?;
    let _ = client.send(&[0x00, 0x41, 0xff], &[]);
    target.visit()?;
    target.expect_poison("bad_bell_byte", 1)?;
    ensure!(client.is_sent_away(), "it is still connected");
    Ok(())
}

fn descriptors_on_a_bell(target: &mut Target) -> Result<()> {
    // Where the kernel can, the server has forbidden it (SO_PASSRIGHTS); else it must notice.
    let baseline = beeline_testkit::hostile::open_descriptors(target.process.id());
    let (client, lane) = admitted(target)?;
    match client.send(&[BELL], &[lane.fd.as_raw_fd()]) {
        Err(error) if error.raw_os_error() == Some(libc::EPERM) => Ok(()),
        Err(error) => Err(error.into()),
        Ok(_) => {
            target.visit()?;
            drop(client);
            target.expect_descriptors(baseline + 20)
        }
    }
}

fn lingering_sockets_on_a_bell(target: &mut Target) -> Result<()> {
    let (client, _lane) = admitted(target)?;
    let lingering = [Lingering::new(60)?, Lingering::new(60)?];
    let fds = [lingering[0].socket.as_raw_fd(), lingering[1].socket.as_raw_fd()];
    // Refused by the kernel or received: either way nobody may wait for them.
    if client.send(&[BELL], &fds).is_ok() {
        // The copies in flight are the last ones.
        let null = std::fs::File::open("/dev/null")?;
        for socket in &lingering {
            beeline_testkit::sys::dup2(null.as_raw_fd(), socket.socket.as_raw_fd());
        }
    }
    target.expect_honest_service("after lingering sockets came on a bell")?;
    drop(client);
    target.visit()
}

fn client_leaves_after_hello(target: &mut Target) -> Result<()> {
    let baseline = beeline_testkit::hostile::open_descriptors(target.process.id());
    for _ in 0..50 {
        let lane = Lane::correct(RING)?;
        let client = target.client()?;
        client.say_hello(&lane)?;
    }
    target.expect_descriptors(baseline + 20)
}

fn client_shuts_its_anchor(target: &mut Target) -> Result<()> {
    for how in [libc::SHUT_RD, libc::SHUT_WR, libc::SHUT_RDWR] {
        let (client, _lane) = admitted(target)?;
        beeline_testkit::sys::shutdown(client.as_raw_fd(), how);
        target.visit()?;
    }
    Ok(())
}
