//! Something happens while another thread or process waits: every event against every call that can wait.

use super::waiters::*;
use crate::case::axes::ONCE;
use crate::case::{Case, Group};
use crate::trace;
use crate::traced::*;
use crate::variant::Variant;
use crate::with_all_waiters;
use beeline_testkit::sys;

macro_rules! every_event {
    ($($event:ident)*; $waiters:tt) => { &[$(every_event!(@ $event $waiters)),*] };
    (@ $event:ident [$($waiter:ident)*]) => {
        [$(Case::new(
            concat!(stringify!($event), "_wakes_", stringify!($waiter)),
            ONCE,
            |v| woken(v, $waiter, $event),
        )),*]
    };
}

const WAITERS: usize = 16;

const ROWS: &[[Case; WAITERS]] =
    with_all_waiters!(every_event data half_close peer_close peer_reset own_shutdown data_from_a_process;);

const COUNT: usize = ROWS.len() * WAITERS;

const CASES: [Case; COUNT] = {
    let mut cases = [ROWS[0][0]; COUNT];
    let mut at = 0;
    while at < COUNT {
        cases[at] = ROWS[at / WAITERS][at % WAITERS];
        at += 1;
    }
    cases
};

pub const GROUP: Group = Group { name: "waking", cases: &CASES };

/// Lets main wait on the client's end and makes the event happen once it sleeps.
fn woken(v: Variant, wait: Waiter, event: fn(Fd, Fd)) {
    let (client, server) = v.pair();
    let thread = once_asleep("thread", move || {
        event(client, server);
    });
    wait(client);
    let _ = thread.join();
    // The event is complete now; what it left behind must be the same as well.
    poll_now(client);
    recv(client, 64, libc::MSG_DONTWAIT);
    recv(client, 64, libc::MSG_DONTWAIT);
}

fn data(_: Fd, server: Fd) {
    send(server, b"wake", 0);
}

fn half_close(_: Fd, server: Fd) {
    shutdown(server, libc::SHUT_WR);
}

fn peer_close(_: Fd, server: Fd) {
    close(server);
}

fn peer_reset(_: Fd, server: Fd) {
    set_linger(server, 1, 0);
    close(server);
}

fn own_shutdown(client: Fd, _: Fd) {
    shutdown(client, libc::SHUT_RDWR);
}

fn data_from_a_process(_: Fd, server: Fd) {
    let child = sys::fork(|| {
        trace::set_actor("process");
        send(server, b"wake", 0);
        0
    });
    trace!("child: {}", sys::wait_for(child));
}
