//! `SIGURG`, and who gets it.

use super::{OOB, await_urgent, look, settle};
use crate::trace;
use crate::traced::*;
use crate::variant::Variant;
use beeline_testkit::sys;
use std::sync::atomic::{AtomicI32, Ordering};

static SIGNALS: AtomicI32 = AtomicI32::new(0);

extern "C" fn count(_: i32) {
    SIGNALS.fetch_add(1, Ordering::SeqCst);
}

fn await_signals(count: i32) {
    until("signals", || SIGNALS.load(Ordering::SeqCst) == count);
}

pub(super) fn sigurg(v: Variant) {
    let (client, server) = v.pair();
    sys::sigaction(libc::SIGURG, count, libc::SA_RESTART);
    send(client, b"1", OOB);
    await_urgent(server);
    trace!("F_SETOWN {}", sys::fcntl(server.raw, libc::F_SETOWN, sys::process_id()));
    trace!("signals {}", SIGNALS.load(Ordering::SeqCst));
    recv(server, 1, OOB);
    send(client, b"2", OOB);
    await_signals(1);
    await_urgent(server);
    recv(server, 1, OOB);
    send(client, b"ordinary", 0);
    send(client, b"more3", OOB);
    await_signals(2);
    settle(server);
    look(server);
    recv(server, 20, 0);
    recv(server, 20, OOB);
    look(server);
    poll(&[(server, libc::POLLIN)], 60);
}

pub(super) fn sigurg_owner_by_ioctl(v: Variant) {
    let (client, server) = v.pair();
    sys::sigaction(libc::SIGURG, count, libc::SA_RESTART);
    for request in [0x8901, 0x8902] {
        let mut owner = sys::process_id();
        trace!("ioctl {}", sys::ioctl(server.raw, request, &mut owner));
        let mut owner = -1;
        let ret = sys::ioctl(server.raw, request + 2, &mut owner);
        trace!("ioctl {ret} {}", owner == sys::process_id());
        send(client, b"!", OOB);
        await_signals(i32::from(request == 0x8902) + 1);
    }
}

pub(super) fn sigurg_owner_before_connect(v: Variant) {
    sys::sigaction(libc::SIGURG, count, libc::SA_RESTART);
    let listener = v.listener();
    let client = v.client();
    sys::fcntl(client.raw, libc::F_SETOWN, sys::process_id());
    connect(client, &v.address_of(listener));
    let server = accept(listener, "server");
    trace!("owner kept {}", sys::fcntl(client.raw, libc::F_GETOWN, 0).value as i32 == sys::process_id());
    trace!("owner of server {}", sys::fcntl(server.raw, libc::F_GETOWN, 0));
    send(server, b"!", OOB);
    await_signals(1);
    recv(client, 1, OOB);
}

pub(super) fn sigurg_interrupts(v: Variant) {
    let (client, server) = v.pair();
    sys::sigaction(libc::SIGURG, count, 0);
    sys::fcntl(server.raw, libc::F_SETOWN, sys::process_id());
    let main = sys::thread_id();
    let sender = std::thread::spawn(move || {
        trace::set_actor("sender");
        sys::block_signals(&[libc::SIGURG], true);
        await_asleep(main);
        send(client, b"!", OOB);
    });
    recv(server, 8, 0);
    recv(server, 1, OOB);
    let _ = sender.join();
}
