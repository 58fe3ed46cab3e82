//! Pre-forked workers that block in accept on one listener, visited over both paths at once.

use crate::stage::Role;

#[test]
fn a_crowd_serves_door_and_tcp_together() {
    let mut server = Role::new("crowd").set("ADDRESS", "127.0.0.1:0").set("WORKERS", 3).start();
    let address = server.line();
    let _cookie = server.line();
    for _ in 0..3 {
        server.number();
    }
    let client = |library: bool| {
        let role = Role::new("crowd_client").set("ADDRESS", &address).set("COUNT", 200);
        if library { role.start() } else { role.plain().start() }
    };
    // The door opens with a worker's first accept; a first visit sees to that.
    let mut first = Role::new("crowd_client").set("ADDRESS", &address).set("COUNT", 1).start();
    first.number();
    first.end();
    let mut over_lanes = [client(true), client(true)];
    let mut over_tcp = [client(false), client(false)];
    for client in &mut over_tcp {
        client.number();
    }
    for client in &mut over_lanes {
        client.number();
        let carried = client.carried();
        assert_eq!((carried.accelerated, carried.fallen_back.len()), (200, 0), "{carried}");
    }
    for client in over_lanes.into_iter().chain(over_tcp) {
        client.end();
    }
    server.end();
}

#[test]
fn a_crowd_goes_on_when_a_worker_dies() {
    let mut server = Role::new("crowd").set("ADDRESS", "127.0.0.1:0").set("WORKERS", 3).start();
    let address = server.line();
    let _cookie = server.line();
    let workers: Vec<i32> = (0..3).map(|_| server.number() as i32).collect();
    let visit = |count: usize| {
        let mut client = Role::new("crowd_client").set("ADDRESS", &address).set("COUNT", count).start();
        let served = client.number();
        client.end();
        served
    };
    visit(1);
    for worker in &workers[..2] {
        // SAFETY: a grandchild that its parent has not reaped, so the number is its own.
        unsafe { libc::kill(*worker, libc::SIGKILL) };
        assert!(visit(20) >= 1);
    }
    server.end();
}
