//! The library as other programs meet it: what it exports, and that they cannot tell.

#[macro_use]
mod common;

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use beeline_testkit::preload;
use beeline_testkit::watch::{Ending, Group};
use common::{LIMIT, compile, guest, library, output, run_program, static_guest};

#[path = "library/ahead.rs"]
mod ahead;
#[path = "library/asleep.rs"]
mod asleep;
#[path = "library/awaited.rs"]
mod awaited;
#[path = "library/calls.rs"]
mod calls;
#[path = "library/company.rs"]
mod company;
#[path = "library/counted.rs"]
mod counted;
#[path = "library/crowd.rs"]
mod crowd;
#[path = "library/datagrams.rs"]
mod datagrams;
#[path = "library/figures.rs"]
mod figures;
#[path = "library/finished.rs"]
mod finished;
#[path = "library/forks.rs"]
mod forks;
#[path = "library/handed.rs"]
mod handed;
#[path = "library/heirs.rs"]
mod heirs;
#[path = "library/helped.rs"]
mod helped;
#[path = "library/images.rs"]
mod images;
#[path = "library/loans.rs"]
mod loans;
#[path = "library/mixed.rs"]
mod mixed;
#[path = "library/near.rs"]
mod near;
#[path = "library/numbers.rs"]
mod numbers;
#[path = "library/portion.rs"]
mod portion;
#[path = "library/rawcalls.rs"]
mod rawcalls;
#[path = "library/searched.rs"]
mod searched;
#[path = "library/seats.rs"]
mod seats;
#[path = "library/shrunk.rs"]
mod shrunk;
#[path = "library/standing.rs"]
mod standing;
#[path = "library/tuned.rs"]
mod tuned;
#[path = "library/unchanged.rs"]
mod unchanged;
#[path = "library/unsaid.rs"]
mod unsaid;

/// Runs a server, which says its port first, and a client of that port to their ends.
fn converse(mut server: Command, client: impl FnOnce(&str) -> Command) {
    let mut server = Group::start(server.stdout(Stdio::piped())).expect("the server starts");
    let (_, stdout, _) = server.pipes();
    let mut port = String::new();
    BufReader::new(stdout.expect("piped")).read_line(&mut port).expect("the server speaks");
    let client = Group::start(&mut client(port.trim())).expect("the client starts");
    assert_eq!(client.finish(LIMIT).expect("the client ends"), Ending::Exit(0));
    assert_eq!(server.finish(LIMIT).expect("the server ends"), Ending::Exit(0));
}

/// Where a living process has its statistics file, if it has one.
fn statistics(pid: u32) -> PathBuf {
    // SAFETY: no arguments, no effect.
    statistics_of(pid, unsafe { libc::geteuid() })
}

/// The same for a process that was this user when it came to have one.
fn statistics_of(pid: u32, uid: u32) -> PathBuf {
    let stat = std::fs::read(format!("/proc/{pid}/stat")).expect("the process lives");
    let start_ticks = beeline_stats::layout::start_ticks_from_proc_stat(&stat).expect("the kernel's format");
    beeline_stats::layout::file_path(uid, beeline_stats::layout::FileName { pid, start_ticks }).as_str().into()
}

#[test]
fn the_library_exports_the_listed_calls_and_nothing_else() {
    let path = library().to_str().expect("a plain path");
    let table = output("nm", &["--dynamic", "--defined-only", path]);
    let exported: BTreeSet<_> = table.lines().filter_map(|line| line.split_whitespace().nth(2)).collect();
    let listed = include_str!("../src/exports.txt").lines();
    assert!(listed.clone().is_sorted(), "names are looked for by halves");
    assert_eq!(exported, listed.collect());
}

#[test]
fn the_table_of_calls_lists_what_is_exported() {
    let exported: BTreeSet<_> = include_str!("../src/exports.txt").lines().collect();
    let documented: BTreeSet<_> = beeline_stats::semantics::CALLS.iter().flat_map(|row| row.names).copied().collect();
    assert_eq!(exported, documented, "exports.txt against beeline_stats::semantics::CALLS");
}

#[test]
fn the_tables_name_cases_of_this_guest_that_exist() {
    let program = concat!(include_str!("library.rs"), include_str!("limits.rs"));
    for test in beeline_stats::semantics::CALLS.iter().flat_map(|row| row.tests) {
        if let Some(case) = test.strip_prefix("guest:") {
            assert!(program.lines().any(|line| line.trim().trim_end_matches(';') == case), "{test}");
        }
    }
}

#[test]
fn the_library_has_no_text_relocations_and_needs_only_libc() {
    let path = library().to_str().expect("a plain path");
    let dynamic = output("readelf", &["--dynamic", "--wide", path]);
    assert!(!dynamic.contains("TEXTREL"), "{dynamic}");
    for needed in dynamic.lines().filter(|line| line.contains("(NEEDED)")) {
        assert!(["libc.so", "ld-linux"].iter().any(|known| needed.contains(known)), "{needed}");
    }
}

cases! { handover:
    exec_keeps_a_connection
    exec_keeps_the_state_of_a_connection
    exec_keeps_completions
    exec_closes_what_is_close_on_exec
    spawning_hands_over_a_connection
    several_programs_share_a_connection
    a_program_with_dropped_privileges_goes_on
    a_listener_is_inherited_by_the_next_program
    the_library_follows
    a_program_without_the_library_goes_on
    standard_descriptors_of_a_program_are_sockets
    executed_before_the_parent_lets_go;
}

cases! { spawns:
    a_list_of_actions_names_for_its_own_programs
    a_list_of_actions_is_made_before_the_connection
    programs_are_started_at_one_time;
}

cases! { environment:
    each_program_sees_what_it_was_given
    programs_without_the_library_see_what_they_were_given
    what_a_program_sets_itself_it_sees
    as_much_as_fits_can_be_given
    commands_run_as_ever
    a_command_begins_with_the_callers_mask
    a_command_that_begins_beside_another_has_no_pipe_of_that
    a_command_that_begins_while_another_ends_has_no_pipe_of_that
    threads_that_start_programs_take_no_more_and_more_memory
    a_command_ends_with_a_cancelled_thread;
    two_commands_begin
}

cases! { guest:
    options_behave
    listener_options_are_inherited
    ioctls_behave
    duplicates_share_the_connection
    closing_everything_leaves_the_library_alive
    closing_everything_in_a_table_of_its_own_ends_connections
    an_error_keeps_errno_and_success_does_not_touch_it
    fork_shares_a_connection
    fork_by_number_is_a_fork
    a_vfork_child_changes_nothing_here
    spawned_programs_run
    clone_on_another_stack_works
    a_blocked_thread_can_be_cancelled
    stdio_talks_over_a_connection
    calls_by_number_are_the_same_calls
    vectors_with_no_offset_are_reads
    formatted_output_arrives
    a_child_that_closes_leaves_the_parents_set_alone
    threads_go_on_while_the_process_forks;
    pauses
}

cases! { clones:
    a_vfork_by_number_changes_nothing_here
    a_clone_by_number_in_this_memory_changes_nothing_here
    a_clone3_by_number_in_this_memory_changes_nothing_here
    a_clone_by_number_onto_another_stack_changes_nothing_here
    a_clone3_by_number_onto_another_stack_changes_nothing_here;
}

cases! { handlers:
    handlers_read_back_as_installed
    handlers_run_with_what_was_sent
    a_wait_that_was_jumped_out_of_tells_again
    a_handler_may_jump_out_of_a_call
    a_handler_that_jumps_leaves_a_message_as_it_was
    a_splice_leaves_nothing_behind_when_jumped_out_of
    a_cancelled_thread_leaves_a_message_as_it_was
    who_is_told_to_abort_may_do_as_he_likes
    who_aborts_ends_so
    storm;
}

cases! { slept:
    a_receive_that_was_jumped_out_of_hears_of_the_end
    a_stop_ends_no_wait
    a_sleeper_hears_of_a_close_when_all_numbers_are_in_use
    what_sleepers_have_is_given_back;
}

cases! { streams:
    a_handler_loses_no_lines_of_a_stream
    a_handler_loses_no_bytes_of_a_large_write
    a_stream_that_may_not_wait_keeps_its_order
    the_stream_of_a_connection_is_opened_anew
    a_stream_that_cannot_be_opened_anew_is_closed
    wide_functions_fail_on_the_stream_of_a_connection;
}

cases! { stacks:
    a_small_thread_connects_and_talks
    a_small_thread_passes_a_connection
    a_small_thread_has_children
    a_handler_on_a_small_stack_moves_bytes;
}

cases! { adversity:
    epoll_works_where_its_newest_call_is_refused
    waits_leave_nothing_behind_when_jumped_out_of
    vectors_with_flags_stay_in_the_stream
    a_clone_with_a_copy_of_the_memory_shares_a_connection
    an_abort_is_one_whoever_was_killed_before
    lingering_for_no_time_is_heeded_when_a_process_ends
    a_fork_during_a_connect_shares_the_connection
    an_edge_of_a_set_that_is_changed_is_told_once
    a_fork_that_fails_changes_nothing;
    one_port_each_time_has_lanes
}

cases! { held:
    a_number_that_is_taken_away_is_left_alone
    a_sender_waits_for_the_kernel_s_memory
    two_give_one_connection_to_streams_at_once
    who_stands_in_a_send_holds_up_no_change;
}

cases! { exact:
    a_splice_waits_for_an_empty_pipe
    a_message_sent_in_part_is_the_last
    a_call_that_blocks_goes_on_blocking
    lengths_that_nobody_can_have_meant
    what_is_only_counted_is_not_written
    parts_that_are_not_reached_may_be_nowhere
    a_page_that_cannot_be_written_is_refused
    an_urgent_byte_is_the_last_message
    a_file_past_the_cache_is_sent
    all_that_is_unread_is_peeked
    nobody_is_told_of_impossible_bytes;
}

cases! { peeks:
    peeked_bytes_are_read
    a_part_is_peeked
    much_is_peeked
    a_child_reads_what_its_parent_peeked
    peeked_bytes_are_spliced
    a_peeked_urgent_byte_is_taken;
}

cases! { relays:
    io_uring_takes_connections_off_lanes
    a_static_program_serves_behind_a_relay
    streams_that_are_there_already_use_a_connection
    streams_that_are_there_already_use_an_accepted_connection
    who_could_not_leave_a_lane_follows_who_could
    a_program_of_a_vfork_has_a_connection_as_its_streams
    several_programs_of_vforks_have_one_connection
    a_spawned_program_gets_few_numbers
    who_closes_all_for_a_spawned_program_keeps_lanes
    relays_that_have_ended_are_reaped
    who_waits_for_a_relay_that_dies_goes_on
    who_stops_a_service_stops_its_relays
    a_relay_lasts_as_long_as_the_kernels_end;
}

cases! { sharers:
    helpers_keep_no_connection
    who_cannot_become_a_program_keeps_the_connection
    many_who_were_killed_are_in_nobodys_way
    a_program_that_cannot_have_a_connection_resets_it
    who_shares_from_another_namespace_loses_nothing_unseen;
}

cases! { rings:
    liburing_takes_connections_off_lanes
    liburing_with_parameters_takes_connections_off_lanes
    a_ring_made_apart_takes_connections_off_lanes
    a_ring_for_files_leaves_lanes_alone
    a_connection_among_registered_files_comes_off_its_lane
    a_polled_ring_takes_connections_off_lanes
    a_ring_of_libuv_is_refused_and_lanes_stay
    what_is_submitted_by_number_is_looked_at
    what_is_registered_by_number_is_looked_at
    a_ring_by_number_carries_what_came_before_and_after
    a_refused_submission_is_made_later
    a_connection_sent_by_a_ring_goes_on
    a_connection_received_by_a_ring_goes_on
    liburing_leaves_errno_alone;
    makes_connections_after_a_ring
}

cases! { submits:
    what_is_submitted_by_number_reaches_a_connection
    what_libaio_submits_reaches_a_connection
    a_client_is_seen_by_a_request
    requests_for_files_leave_lanes_alone
    wild_requests_are_the_kernels_to_refuse;
}

cases! { past:
    requests_of_posix_reach_a_connection
    a_list_of_requests_reaches_connections
    a_backtrace_arrives
    a_stream_with_any_number_uses_a_connection
    other_numbers_keep_lanes
    who_is_cancelled_anywhere_leaves_a_connection_whole
    who_calculates_is_cancelled;
}

cases! { leavers:
    connections_with_a_peer_on_lanes_are_the_kernels
    clients_that_wait_are_served
    a_connection_that_comes_to_a_ring_is_no_lane
    a_connection_that_comes_after_a_ring_comes_off_its_lane
    a_connection_that_a_ring_receives_is_no_lane
    another_program_reads_through_its_ring
    a_sharer_with_a_ring_takes_others_along
    a_destructor_has_the_last_word;
    is_counted
}

cases! { ownrings:
    a_ring_of_its_own_before_connections
    a_ring_of_its_own_after_connections
    a_program_with_rings_of_its_own_goes_on;
    serves_what_it_was_given
    has_its_own_rings_and_pauses
}

cases! { loads:
    code_bound_at_once_to_libc_shares_connections
    code_bound_later_to_libc_shares_connections
    code_bound_to_libc_is_found_by_its_name
    code_bound_to_libc_with_rings_ends_lanes
    code_that_brings_its_own_calls_keeps_them
    threads_that_load_together_all_succeed
    what_cannot_be_loaded_is_told
    libc_by_its_handle_shares_connections
    code_with_rings_that_comes_late_ends_lanes
    liburing_opened_by_hand_means_no_lanes
    libaio_opened_by_hand_means_no_lanes
    libaio_of_a_plugin_is_looked_for_once
    other_code_that_is_loaded_ends_none
    liburing_in_a_plugin_leaves_errno_alone;
}

cases! { left:
    a_set_is_told_nothing_when_numbers_ran_short
    a_set_from_before_is_told_nothing_when_numbers_ran_short
    a_set_is_told_nothing_of_a_door_that_was_left
    a_set_is_told_nothing_of_a_closed_listener
    a_set_from_before_is_told_nothing_of_a_closed_listener
    one_of_a_crowd_that_leaves_keeps_nobody_waiting
    who_sleeps_hears_of_a_door_that_was_made_anew
    a_door_is_left_by_the_last_after_one_was_killed
    a_door_is_left_by_the_last_after_one_has_ended
    a_door_is_left_by_the_last_after_one_became_a_program;
}

cases! { owed:
    a_handler_interrupts_it
    a_timeout_ends_it
    who_does_not_block_does_not_wait
    many_handlers_change_nothing
    a_thread_is_cancelled_in_it
    who_never_comes_is_shown_as_gone
    nobody_is_owed_twice;
}

cases! { late:
    who_owns_a_connection_is_told_of_urgent_bytes
    who_asks_for_signals_is_told_of_bytes
    an_urgent_byte_stays_urgent
    the_first_of_two_urgent_bytes_is_passed_over
    the_first_of_two_urgent_bytes_is_one_like_others
    what_is_sent_to_a_busy_server_arrives
    who_does_not_block_is_not_held_up_by_a_busy_server
    who_waits_for_room_is_told_of_it_when_the_server_reads
    a_handler_closes_what_goes_over_to_tcp
    a_handler_that_waits_for_what_goes_over_to_tcp_comes_back
    another_users_listener_is_told_nothing
    names_and_rates_are_carried_over
    who_disconnects_keeps_the_bound_address;
}

cases! { offers:
    who_receives_is_served
    who_polls_is_served
    who_selects_is_served
    who_asks_again_and_again_is_served
    who_polls_again_and_again_is_served
    who_asks_for_errors_is_served
    who_waits_in_sets_is_served
    who_waits_for_edges_is_served
    who_waits_for_others_is_served
    numbers_of_sends_go_on
    who_only_sends_is_served
    who_closes_has_been_there
    who_is_replaced_has_been_there
    who_spawns_a_program_is_served
    who_ends_has_been_there
    who_forks_is_served
    who_executes_a_program_is_served
    who_passes_it_on_is_served
    who_sends_much_is_served
    who_sends_much_at_once_is_served
    a_stopped_server_has_one_client
    a_server_that_comes_in_the_last_moment_has_one_client
    more_clients_than_fit_a_queue_are_served;
}

cases! { activates:
    a_program_that_is_forked_serves
    a_program_of_a_vfork_serves
    a_spawned_program_serves
    a_child_serves
    who_watches_is_told_the_truth
    a_door_that_nobody_serves_is_left_by_all
    one_that_was_left_is_empty_at_the_first_look
    a_vfork_takes_no_numbers_of_the_parents
    a_loop_that_is_busy_keeps_the_door
    who_has_no_door_takes_turns;
}

cases! { told:
    bytes_before_their_bell_are_told_of
    what_comes_to_a_set_is_an_edge
    edges_come_through_two_sets
    threads_hear_through_a_set_of_edges
    threads_with_sets_of_their_own_hear_exclusively
    threads_with_sets_of_their_own_hear_edges_exclusively
    processes_with_sets_of_their_own_hear_exclusively
    a_look_lets_no_signal_in;
}

cases! { waits:
    a_look_finds_that_the_peer_has_ended
    who_waits_for_more_than_there_is_sleeps
    who_watches_a_set_that_was_slept_upon_sleeps
    a_set_that_was_ready_in_vain_tells_once
    a_client_is_there_for_who_was_told_of_it;
}

cases! { sandbox:
    a_filter_finds_no_lanes
    a_filter_by_number_finds_no_lanes
    limits_announce_a_filter
    a_program_without_room_for_descriptors_waits
    asking_for_filters_leaves_lanes_alone
    who_receives_behind_a_filter_gets_what_can_be_used
    who_is_shut_in_goes_on_making_processes
    a_program_that_begins_behind_a_filter_has_no_lanes
    a_program_that_begins_behind_filters_that_were_tried_has_lanes
    who_may_not_ask_the_kernel_serves;
    is_told_nothing has_lanes
}
