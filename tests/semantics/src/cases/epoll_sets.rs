//! Several epoll sets and several waiters: one descriptor in two sets, nested sets, EXCLUSIVE, threads, processes.

mod nested;
mod slept_upon;
mod waiters;

use crate::case::axes::{FAMILY, ONCE, TRIGGER};
use crate::case::{Case, Group};
use crate::traced::*;
use crate::variant::Variant;

pub const GROUP: Group = Group {
    name: "epoll_sets",
    cases: &[
        Case::new("one_descriptor_in_two_sets", FAMILY | TRIGGER, one_descriptor_in_two_sets),
        Case::new("level_in_one_edge_in_the_other", FAMILY, level_in_one_edge_in_the_other),
        Case::new("deleted_from_one_set", FAMILY | TRIGGER, deleted_from_one_set),
        Case::new("set_closed_other_stays", FAMILY | TRIGGER, set_closed_other_stays),
        Case::new("duplicate_of_the_set", FAMILY | TRIGGER, duplicate_of_the_set),
        Case::new("nested", FAMILY | TRIGGER, nested::nested),
        Case::new("nested_with_a_member_that_has_bytes", FAMILY, nested::nested_with_a_member_that_has_bytes),
        Case::new("nested_closed_after_its_end", FAMILY, nested::nested_closed_after_its_end),
        Case::new("nested_twice", FAMILY, nested::nested_twice),
        Case::new("nested_edge_outside", FAMILY, nested::nested_edge_outside),
        Case::new("nested_with_a_paused_member", FAMILY, nested::nested_with_a_paused_member),
        Case::new("nested_edge_outside_with_data_unread", FAMILY, nested::nested_edge_outside_with_data_unread),
        Case::new("nested_edge_outside_about_room", FAMILY, nested::nested_edge_outside_about_room),
        Case::new(
            "nested_edge_outside_about_room_beside_data",
            FAMILY,
            nested::nested_edge_outside_about_room_beside_data,
        ),
        Case::new("nested_edge_outside_about_one_byte", FAMILY, nested::nested_edge_outside_about_one_byte),
        Case::new("nested_client_that_nobody_takes", FAMILY, nested::nested_client_that_nobody_takes),
        Case::new("nested_with_direct_entry", FAMILY | TRIGGER, nested::nested_with_direct_entry),
        Case::new("set_in_poll_and_select", FAMILY | TRIGGER, nested::set_in_poll_and_select),
        Case::new("set_with_a_listener_whose_client_breaks", FAMILY, nested::set_with_a_listener_whose_client_breaks),
        Case::new("loops_are_refused", ONCE, nested::loops_are_refused),
        Case::new("depth_limit", ONCE, nested::depth_limit),
        Case::new("two_threads_wait_on_one_set", FAMILY | TRIGGER, waiters::two_threads_wait_on_one_set),
        Case::new("two_threads_two_sets_one_connection", FAMILY, waiters::two_threads_two_sets_one_connection),
        Case::new("ready_beside_other_threads", FAMILY, waiters::ready_beside_other_threads),
        Case::new("exclusive_waiters", FAMILY, waiters::exclusive_waiters),
        Case::new("add_while_another_thread_waits", FAMILY | TRIGGER, waiters::add_while_another_thread_waits),
        Case::new("mod_while_another_thread_waits", FAMILY, waiters::mod_while_another_thread_waits),
        Case::new("room_after_add_while_another_thread_waits", FAMILY | TRIGGER, waiters::room_after_add),
        Case::new("room_after_filling_while_another_thread_waits", FAMILY, waiters::room_after_filling),
        Case::new("data_after_mod_while_another_thread_waits", FAMILY | TRIGGER, waiters::data_after_mod),
        Case::new("close_while_another_thread_waits", FAMILY, waiters::close_while_another_thread_waits),
        Case::new("oneshot_shared_by_threads", FAMILY, waiters::oneshot_shared_by_threads),
        Case::new("waiter_behind_a_set_that_others_look_at", ONCE, waiters::waiter_behind_a_set_that_others_look_at),
        Case::new("set_inherited_by_fork", FAMILY | TRIGGER, waiters::set_inherited_by_fork),
        Case::new("set_shared_by_fork", FAMILY, waiters::set_shared_by_fork),
        Case::new("child_adds_its_own", FAMILY, waiters::child_adds_its_own),
        Case::new("both_ends_in_one_set", FAMILY | TRIGGER, both_ends_in_one_set),
        Case::new("connection_and_its_set_outlive_the_listener", FAMILY, connection_outlives_the_listener),
        Case::new("two_pollers_one_reader", FAMILY, waiters::two_pollers_one_reader),
        Case::new("slept_upon_told_again", FAMILY | TRIGGER, slept_upon::told_again),
        Case::new("slept_upon_reset_or_closed", FAMILY | TRIGGER, slept_upon::reset_or_closed),
        Case::new("slept_upon_by_two_threads", FAMILY, slept_upon::by_two_threads),
        Case::new(
            "slept_upon_by_a_thread_that_is_cancelled",
            FAMILY | TRIGGER,
            slept_upon::by_a_thread_that_is_cancelled,
        ),
        Case::new("slept_upon_by_a_child", FAMILY, slept_upon::by_a_child),
        Case::new("slept_upon_seen_from_outside", FAMILY | TRIGGER, slept_upon::seen_from_outside),
        Case::new("slept_upon_by_a_duplicate", FAMILY | TRIGGER, slept_upon::by_a_duplicate),
        Case::new("slept_upon_changed", FAMILY, slept_upon::changed),
        Case::new("slept_upon_beside_one_with_its_data", FAMILY | TRIGGER, slept_upon::beside_one_with_its_data),
        Case::new("slept_upon_beside_a_quiet_one", FAMILY | TRIGGER, slept_upon::beside_a_quiet_one_with_its_data),
        Case::new("slept_upon_added_for_each_message", FAMILY | TRIGGER, slept_upon::added_for_each_message),
        Case::new("slept_upon_for_room_by_turns", FAMILY | TRIGGER, slept_upon::for_room_by_turns),
        Case::new(
            "slept_upon_under_a_number_that_is_closed",
            FAMILY | TRIGGER,
            slept_upon::under_a_number_that_is_closed,
        ),
        Case::new("slept_upon_full_and_read", FAMILY | TRIGGER, slept_upon::full_and_read),
    ],
};

const IN: i32 = libc::EPOLLIN;
const OUT: i32 = libc::EPOLLOUT;
const ET: i32 = libc::EPOLLET;

fn trigger(v: Variant) -> i32 {
    if v.edge { ET } else { 0 }
}

fn say(client: Fd, server: Fd, text: &str) {
    let before = queued(server);
    send(client, text.as_bytes(), 0);
    await_queued(server, before + text.len() as i32);
}

fn one_descriptor_in_two_sets(v: Variant) {
    let (client, server) = v.pair();
    let (one, two) = (epoll_create("one"), epoll_create("two"));
    epoll_add(one, server, IN | trigger(v));
    epoll_add(two, server, IN | OUT | trigger(v));
    epoll_wait(one, 4, 0);
    epoll_wait(two, 4, 0);
    for _ in 0..2 {
        say(client, server, "x");
        epoll_wait(one, 4, -1);
        epoll_wait(two, 4, -1);
        epoll_wait(one, 4, 0);
        epoll_wait(two, 4, 0);
    }
    recv(server, 8, 0);
    epoll_wait(one, 4, 0);
    epoll_wait(two, 4, 0);
    close(client);
    await_hangup(server);
    epoll_wait(one, 4, -1);
    epoll_wait(two, 4, -1);
}

fn level_in_one_edge_in_the_other(v: Variant) {
    let (client, server) = v.pair();
    let (level, edge) = (epoll_create("level"), epoll_create("edge"));
    epoll_add(level, server, IN);
    epoll_add(edge, server, IN | ET);
    say(client, server, "a");
    for _ in 0..2 {
        epoll_wait(level, 4, 0);
        epoll_wait(edge, 4, 0);
    }
    say(client, server, "b");
    epoll_wait(edge, 4, 0);
    epoll_wait(edge, 4, 0);
    epoll_wait(level, 4, 0);
    recv(server, 8, 0);
    epoll_wait(level, 4, 0);
    epoll_wait(edge, 4, 0);
}

fn deleted_from_one_set(v: Variant) {
    let (client, server) = v.pair();
    let (one, two) = (epoll_create("one"), epoll_create("two"));
    epoll_add(one, server, IN | trigger(v));
    epoll_add(two, server, IN | trigger(v));
    say(client, server, "x");
    epoll_del(one, server);
    epoll_wait(one, 4, 0);
    epoll_wait(two, 4, -1);
    recv(server, 8, 0);
    say(client, server, "y");
    epoll_wait(two, 4, -1);
    epoll_mod(one, server, IN);
}

fn set_closed_other_stays(v: Variant) {
    let (client, server) = v.pair();
    let (one, two) = (epoll_create("one"), epoll_create("two"));
    epoll_add(one, server, IN | trigger(v));
    epoll_add(two, server, IN | trigger(v));
    close(one);
    say(client, server, "x");
    epoll_wait(two, 4, -1);
    epoll_wait(one, 4, 0);
    let again = epoll_create("again");
    epoll_add(again, server, IN | trigger(v));
    epoll_wait(again, 4, -1);
}

fn duplicate_of_the_set(v: Variant) {
    let (client, server) = v.pair();
    let set = epoll_create("set");
    let twin = dup(set, "twin");
    epoll_add(set, server, IN | trigger(v));
    say(client, server, "x");
    epoll_wait(twin, 4, -1);
    epoll_wait(set, 4, 0);
    close(set);
    epoll_mod(twin, server, IN | OUT | trigger(v));
    epoll_wait(twin, 4, -1);
    epoll_del(twin, server);
    epoll_wait(twin, 4, 0);
}

fn both_ends_in_one_set(v: Variant) {
    let (client, server) = v.pair();
    let set = epoll_create("set");
    epoll_add(set, client, IN | trigger(v));
    epoll_add(set, server, IN | trigger(v));
    for _ in 0..3 {
        say(client, server, "x");
        epoll_wait(set, 4, -1);
        say(server, client, "y");
        epoll_wait(set, 4, -1);
        recv(client, 8, 0);
        recv(server, 8, 0);
        epoll_wait(set, 4, 0);
    }
    close(client);
    await_hangup(server);
    epoll_wait(set, 4, -1);
}

fn connection_outlives_the_listener(v: Variant) {
    let listener = v.listener();
    let (client, server) = v.pair_on(listener);
    let set = epoll_create("set");
    epoll_add(set, server, IN);
    epoll_add(set, listener, IN);
    close(listener);
    epoll_wait(set, 4, 0);
    say(client, server, "x");
    epoll_wait(set, 4, -1);
    recv(server, 8, 0);
}
