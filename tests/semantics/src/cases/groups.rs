//! Listeners that share a port, with a program that chooses among them.

use crate::case::axes::FAMILY;
use crate::case::{Case, Group};
use crate::trace;
use crate::traced::*;
use crate::variant::{Family, Variant, port_of};
use beeline_testkit::sys::{self, RawAddress};
use std::net::SocketAddr;

pub const GROUP: Group = Group {
    name: "groups",
    cases: &[
        Case::new("program_that_chooses", FAMILY, program_that_chooses).on_any_path(),
        Case::new("member_of_a_device", FAMILY, member_of_a_device).on_any_path(),
    ],
};

/// A listener on this port that others may share, or on any port.
fn member(v: Variant, port: u16, name: &'static str) -> Fd {
    member_of(v, port, name, None)
}

/// The same for clients that come by this device alone.
fn member_of(v: Variant, port: u16, name: &'static str, device: Option<&[u8]>) -> Fd {
    let member = socket(v.listener_domain(), libc::SOCK_STREAM, 0, name);
    if v.family == Family::Dual {
        sys::setsockopt(member.raw, libc::IPPROTO_IPV6, libc::IPV6_V6ONLY, &0_i32.to_ne_bytes());
    }
    set_option(member, libc::SOL_SOCKET, libc::SO_REUSEPORT, "SO_REUSEPORT", 1);
    if let Some(device) = device {
        trace!("a device: {}", sys::setsockopt(member.raw, libc::SOL_SOCKET, libc::SO_BINDTODEVICE, device));
    }
    let any = v.listener_address(port);
    bind(member, &RawAddress::new(SocketAddr::new(any.ip(), port)));
    listen(member, 64);
    poll_now(member);
    member
}

/// Attaches a program that always chooses the member of this number.
fn choose(fd: Fd, number: u32) {
    // `struct sock_filter`: BPF_RET | BPF_K; and `struct sock_fprog`: one instruction, and where it is.
    let mut instruction = [6, 0, 0, 0, 0, 0, 0, 0];
    instruction[4..].copy_from_slice(&number.to_ne_bytes());
    let mut program = [0; 16];
    program[..2].copy_from_slice(&1_u16.to_ne_bytes());
    program[8..].copy_from_slice(&instruction.as_ptr().addr().to_ne_bytes());
    let ret = sys::setsockopt(fd.raw, libc::SOL_SOCKET, libc::SO_ATTACH_REUSEPORT_CBPF, &program);
    trace!("a program at {} that chooses {number}: {ret}", fd.name);
}

/// Who gets the next clients.
fn who_serves(v: Variant, members: &[Fd]) {
    let mut served = vec![0; members.len()];
    for _ in 0..12 {
        let client = v.client();
        sys::connect(client.raw, &v.address_of(members[0]));
        let mut entries: Vec<libc::pollfd> =
            members.iter().map(|member| libc::pollfd { fd: member.raw, events: libc::POLLIN, revents: 0 }).collect();
        sys::poll(&mut entries, 10_000);
        for (entry, served) in entries.iter().zip(&mut served).filter(|(entry, _)| entry.revents != 0) {
            sys::close(crate::across::accept(entry.fd).value as i32);
            *served += 1;
        }
        sys::close(client.raw);
    }
    trace!("clients of each member: {served:?}");
}

fn program_that_chooses(v: Variant) {
    let one = member(v, 0, "one");
    let port = port_of(one);
    let two = member(v, port, "two");
    choose(one, 1);
    who_serves(v, &[one, two]);
    // One that comes later is chosen among as well, and by whatever program was attached last, by whomever.
    let three = member(v, port, "three");
    choose(two, 2);
    who_serves(v, &[one, two, three]);
    choose(three, 0);
    who_serves(v, &[one, two, three]);
    // Without one that had it, too.
    choose(one, 1);
    close(one);
    who_serves(v, &[two, three]);
    let four = member(v, port, "four");
    who_serves(v, &[two, three, four]);
}

fn member_of_a_device(v: Variant) {
    let one = member(v, 0, "one");
    let two = member_of(v, port_of(one), "two", Some(b"lo\0"));
    who_serves(v, &[one, two]);
    close(two);
    who_serves(v, &[one]);
}
