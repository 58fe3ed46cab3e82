//! dup, dup2, dup3, fcntl, ioctl: descriptions that are shared and numbers that change hands.

mod flags;

use crate::case::axes::{FAMILY, MODE, ONCE};
use crate::case::{Case, Group};
use crate::trace;
use crate::traced::*;
use crate::variant::Variant;
use beeline_testkit::sys;

pub const GROUP: Group = Group {
    name: "descriptors",
    cases: &[
        Case::new("dup_shares_the_stream", FAMILY | MODE, dup_shares_the_stream),
        Case::new("close_one_of_two", FAMILY | MODE, close_one_of_two),
        Case::new("close_both", FAMILY, close_both),
        Case::new("accept_into_a_full_table", FAMILY | MODE, |v| accept_into_a_full_table(v, || sys::dup(0))),
        Case::new("accept_into_a_table_filled_by_fcntl", FAMILY, |v| {
            accept_into_a_full_table(v, || sys::fcntl(0, libc::F_DUPFD_CLOEXEC, 0));
        }),
        Case::new("dup2_to_a_free_number", FAMILY, dup2_to_a_free_number),
        Case::new("dup2_over_a_connection", FAMILY, dup2_over_a_connection),
        Case::new("dup2_file_over_a_connection", FAMILY, dup2_file_over_a_connection),
        Case::new("dup2_connection_over_a_file", FAMILY, dup2_connection_over_a_file),
        Case::new("dup2_onto_itself", FAMILY, dup2_onto_itself),
        Case::new("dup3_flags", FAMILY, dup3_flags),
        Case::new("dup_errors", ONCE, dup_errors),
        Case::new("f_dupfd", FAMILY, f_dupfd),
        Case::new("nonblocking_is_shared", FAMILY, flags::nonblocking_is_shared),
        Case::new("fionbio", FAMILY, flags::fionbio),
        Case::new("cloexec_is_not_shared", FAMILY, flags::cloexec_is_not_shared),
        Case::new("status_flags", FAMILY | MODE, flags::status_flags),
        Case::new("odd_status_flags", ONCE, flags::odd_status_flags),
        Case::new("ioctls", FAMILY | MODE, flags::ioctls),
        Case::new("fionread_counts", FAMILY | MODE, flags::fionread_counts),
        Case::new("tiocoutq", FAMILY, flags::tiocoutq),
        Case::new("ioctl_errors", ONCE, flags::ioctl_errors),
        Case::new("owner", ONCE, flags::owner).on_any_path(),
        Case::new("dup_before_connect", FAMILY, dup_before_connect),
        Case::new("dup_of_a_listener", FAMILY, dup_of_a_listener),
        Case::new("close_twice", FAMILY, close_twice),
        Case::new("use_after_close", FAMILY, use_after_close),
        Case::new("number_reused_by_a_pipe", FAMILY, number_reused_by_a_pipe),
        Case::new("close_range_closes", FAMILY, close_range_closes),
        Case::new("standard_streams", FAMILY, standard_streams),
        Case::new("cloexec_by_fioclex", FAMILY, cloexec_by_fioclex),
        Case::new("shutdown_through_a_duplicate", FAMILY, shutdown_through_a_duplicate),
    ],
};

fn named(ret: sys::Ret, name: &'static str) -> Fd {
    Fd::new(ret.value as i32, name)
}

fn dup_shares_the_stream(v: Variant) {
    let (client, server) = v.pair();
    let twin = dup(server, "twin");
    send(client, b"0123456789", 0);
    await_queued(server, 10);
    recv(server, 3, 0);
    recv(twin, 3, 0);
    fionread(server);
    read(twin, 2);
    read(server, 8);
    send(twin, b"from twin ", 0);
    send(server, b"from server", 0);
    await_queued(client, 21);
    recv(client, 64, 0);
}

fn close_one_of_two(v: Variant) {
    let (client, server) = v.pair();
    let twin = dup(server, "twin");
    close(server);
    poll_now(client);
    send(client, b"hello", 0);
    await_queued(twin, 5);
    recv(twin, 8, 0);
    send(twin, b"back", 0);
    await_queued(client, 4);
    recv(client, 8, 0);
    recv(server, 8, 0);
    close(twin);
    await_hangup(client);
    recv(client, 8, 0);
}

fn close_both(v: Variant) {
    let (client, server) = v.pair();
    let twin = dup(server, "twin");
    send(twin, b"bye", 0);
    close(twin);
    close(server);
    await_hangup(client);
    recv(client, 8, 0);
    recv(client, 8, 0);
}

fn accept_into_a_full_table(v: Variant, fill_one: impl Fn() -> sys::Ret) {
    let listener = v.listener();
    let (client, server) = v.pair_on(listener);
    let (waiting, address) = (v.named_client("waiting"), v.address_of(listener));
    let thread = std::thread::spawn(move || {
        trace::set_actor("thread");
        connect(waiting, &address);
        send(waiting, b"I wait", 0);
        recv(waiting, 16, 0);
    });
    await_readable(listener);
    let mut fill = Vec::new();
    loop {
        let ret = fill_one();
        if !ret.is_ok() {
            trace!("dup {ret}");
            break;
        }
        fill.push(ret.value as i32);
    }
    accept(listener, "none");
    accept(listener, "none");
    trace!("room for one {}", fill.pop().is_some_and(|fd| sys::close(fd).is_ok()));
    let accepted = accept(listener, "accepted");
    await_queued(accepted, 6);
    recv(accepted, 16, 0);
    send(accepted, b"at last", 0);
    let _ = thread.join();
    send(client, b"goes on", 0);
    await_queued(server, 7);
    recv(server, 16, 0);
    for fd in fill {
        sys::close(fd);
    }
}

fn dup2_to_a_free_number(v: Variant) {
    let (client, server) = v.pair();
    let ret = sys::dup2(server.raw, 150);
    trace!("dup2 {ret}");
    let far = Fd::new(150, "far");
    close(server);
    send(client, b"hello", 0);
    await_queued(far, 5);
    recv(far, 8, 0);
    poll_now(far);
    close(far);
    await_hangup(client);
    recv(client, 8, 0);
}

fn dup2_over_a_connection(v: Variant) {
    let listener = v.listener();
    let (client, server) = v.pair_on(listener);
    let (other_client, other) = v.blocking_pair_on(listener, "client2", "other");
    trace!("dup2 {}", sys::dup2(other.raw, server.raw).is_ok());
    // The first connection has lost its last descriptor.
    await_hangup(client);
    recv(client, 8, 0);
    send(other_client, b"now two", 0);
    await_queued(server, 7);
    recv(server.named("server is other"), 3, 0);
    recv(other, 8, 0);
    close(other);
    send(server, b"alive", 0);
    await_queued(other_client, 5);
    recv(other_client, 8, 0);
}

fn dup2_file_over_a_connection(v: Variant) {
    let (client, server) = v.pair();
    send(server, b"before", 0);
    let (_, ends) = sys::pipe2(0);
    trace!("dup2 {}", sys::dup2(ends[0], server.raw).is_ok());
    await_hangup(client);
    recv(client, 8, 0);
    recv(client, 8, 0);
    sys::write(ends[1], b"pipe");
    read(server.named("pipe now"), 8);
    recv(server.named("pipe now"), 8, 0);
    fcntl(server.named("pipe now"), libc::F_GETFL, "F_GETFL", 0);
}

fn dup2_connection_over_a_file(v: Variant) {
    let (client, server) = v.pair();
    let (_, ends) = sys::pipe2(0);
    trace!("dup2 {}", sys::dup2(server.raw, ends[0]).is_ok());
    let moved = Fd::new(ends[0], "moved");
    close(server);
    send(client, b"through", 0);
    await_queued(moved, 7);
    read(moved, 8);
    write(moved, b"back");
    await_queued(client, 4);
    recv(client, 8, 0);
}

fn dup2_onto_itself(v: Variant) {
    let (client, server) = v.pair();
    trace!("same number: {}", sys::dup2(server.raw, server.raw).value == i64::from(server.raw));
    trace!("dup3: {}", sys::dup3(server.raw, server.raw, 0));
    send(client, b"x", 0);
    await_queued(server, 1);
    recv(server, 8, 0);
}

fn dup3_flags(v: Variant) {
    let (client, server) = v.pair();
    trace!("dup3 {}", sys::dup3(server.raw, 151, libc::O_CLOEXEC));
    let far = Fd::new(151, "far");
    fcntl(far, libc::F_GETFD, "F_GETFD", 0);
    trace!("odd flags {}", sys::dup3(server.raw, 152, libc::O_NONBLOCK));
    trace!("dup3 {}", sys::dup3(server.raw, 151, 0));
    fcntl(far, libc::F_GETFD, "F_GETFD", 0);
    send(client, b"x", 0);
    await_queued(far, 1);
    recv(far, 8, 0);
}

fn dup_errors(v: Variant) {
    let (client, _server) = v.pair();
    trace!("{}", sys::dup(-1));
    trace!("{}", sys::dup(199));
    trace!("{}", sys::dup2(199, client.raw));
    trace!("{}", sys::dup2(client.raw, -1));
    trace!("{}", sys::dup2(client.raw, i32::MAX));
    trace!("{}", sys::fcntl(client.raw, libc::F_DUPFD, -1));
    trace!("{}", sys::fcntl(client.raw, libc::F_DUPFD, i32::MAX));
    trace!("{}", sys::fcntl(client.raw, 12345, 0));
    poll_now(client);
}

fn f_dupfd(v: Variant) {
    let (client, server) = v.pair();
    let ret = sys::fcntl(server.raw, libc::F_DUPFD, 120);
    trace!("at least 120: {ret}");
    let far = named(ret, "far");
    fcntl(far, libc::F_GETFD, "F_GETFD", 0);
    let ret = sys::fcntl(server.raw, libc::F_DUPFD_CLOEXEC, 120);
    trace!("next: {ret}");
    let further = named(ret, "further");
    fcntl(further, libc::F_GETFD, "F_GETFD", 0);
    send(client, b"abcdef", 0);
    await_queued(server, 6);
    recv(far, 2, 0);
    recv(further, 2, 0);
    recv(server, 2, 0);
}

fn dup_before_connect(v: Variant) {
    let listener = v.listener();
    let client = v.client();
    let twin = dup(client, "twin");
    connect(client, &v.address_of(listener));
    let server = accept(listener, "server");
    trace::write_note(format_args!("pair"));
    send(twin, b"by twin", 0);
    await_queued(server, 7);
    recv(server, 8, 0);
    send(server, b"back", 0);
    await_queued(client, 4);
    recv(client, 2, 0);
    recv(twin, 2, 0);
    connect(twin, &v.address_of(listener));
    close(client);
    poll_now(twin);
    close(twin);
    await_hangup(server);
    recv(server, 8, 0);
}

fn dup_of_a_listener(v: Variant) {
    let listener = v.listener();
    let twin = dup(listener, "twin");
    let address = v.address_of(listener);
    for (from, name) in [(listener, "one"), (twin, "two")] {
        let client = v.client();
        connect(client, &address);
        let server = accept(from, name);
        trace::write_note(format_args!("pair"));
        send(server, b"x", 0);
        await_queued(client, 1);
        recv(client, 8, 0);
    }
    close(listener);
    let client = v.client();
    connect(client, &address);
    await_readable(twin);
    accept(twin, "three");
    close(twin);
    connect(v.named_client("late"), &address);
}

fn close_twice(v: Variant) {
    let (client, server) = v.pair();
    close(client);
    close(client);
    await_hangup(server);
    close(server);
    close(server);
}

fn use_after_close(v: Variant) {
    let (client, server) = v.pair();
    close(client);
    send(client, b"x", 0);
    recv(client, 8, 0);
    poll_now(client);
    so_error(client);
    fcntl(client, libc::F_GETFL, "F_GETFL", 0);
    trace!("getpeername {}", sys::getpeername(client.raw, 128).0);
    shutdown(client, libc::SHUT_WR);
    trace!("dup {}", sys::dup(client.raw));
    await_hangup(server);
}

fn number_reused_by_a_pipe(v: Variant) {
    let (client, server) = v.pair();
    close(client);
    let (_, ends) = sys::pipe2(0);
    trace!("reused: {}", ends.contains(&client.raw));
    let (reader, writer) = (Fd::new(ends[0], "reader"), Fd::new(ends[1], "writer"));
    write(writer, b"pipe data");
    poll_now(reader);
    read(reader, 16);
    recv(reader, 16, 0);
    await_hangup(server);
    recv(server, 8, 0);
}

fn close_range_closes(v: Variant) {
    let (client, server) = v.pair();
    let far = named(sys::fcntl(server.raw, libc::F_DUPFD, 160), "far");
    close(server);
    trace!("close_range {}", sys::close_range(160, 170));
    recv(far, 8, 0);
    await_hangup(client);
    recv(client, 8, 0);
    // The whole range above, as daemons do before they start.
    trace!("close_range {}", sys::close_range(100, 198));
    send(client, b"x", libc::MSG_NOSIGNAL);
}

fn standard_streams(v: Variant) {
    // A connection as standard input and output, as inetd hands it over.
    let (client, server) = v.pair();
    sys::dup2(server.raw, 0);
    sys::dup2(server.raw, 1);
    sys::close(server.raw);
    let (input, output) = (Fd::new(0, "stdin"), Fd::new(1, "stdout"));
    send(client, b"line\n", 0);
    await_queued(input, 5);
    read(input, 64);
    write(output, b"answer\n");
    await_queued(client, 7);
    recv(client, 64, 0);
    close(output);
    poll_now(client);
    close(input);
    await_hangup(client);
    recv(client, 64, 0);
}

fn cloexec_by_fioclex(v: Variant) {
    let (client, _server) = v.pair();
    // SAFETY: FIOCLEX and FIONCLEX take no argument.
    trace!("FIOCLEX {}", unsafe { libc::ioctl(client.raw, libc::FIOCLEX) });
    fcntl(client, libc::F_GETFD, "F_GETFD", 0);
    // SAFETY: as above.
    trace!("FIONCLEX {}", unsafe { libc::ioctl(client.raw, libc::FIONCLEX) });
    fcntl(client, libc::F_GETFD, "F_GETFD", 0);
}

fn shutdown_through_a_duplicate(v: Variant) {
    let (client, server) = v.pair();
    let twin = dup(server, "twin");
    shutdown(twin, libc::SHUT_WR);
    close(twin);
    await_hangup(client);
    send(server, b"x", libc::MSG_NOSIGNAL);
    send(client, b"still", 0);
    await_queued(server, 5);
    recv(server, 8, 0);
}
