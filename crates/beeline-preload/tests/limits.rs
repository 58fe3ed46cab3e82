//! Programs that have little of something: they get as much of it as over TCP.

#[macro_use]
mod common;

cases! { limits:
    a_program_with_many_mappings_gets_those_it_needs
    a_program_that_maps_much_later_gets_it
    what_a_program_locks_is_its_own
    what_a_program_locks_by_number_is_its_own
    what_a_program_locks_as_it_is_touched_is_its_own
    connections_of_before_are_not_locked
    a_limit_of_file_sizes_raises_nothing
    a_limit_of_addresses_is_left_to_the_program
    accept_takes_the_last_descriptor
    a_polled_accept_takes_the_last_descriptor
    a_limit_of_descriptors_may_be_lowered
    a_full_table_is_told_before_an_empty_queue
    a_shut_door_gives_its_number_back
    options_need_no_descriptor
    all_numbers_of_a_socket_are_connected
    a_cgroup_s_memory_is_left_to_the_program
    where_all_ports_are_handed_out_one_is_held
    where_no_more_ports_are_held_few_lanes_are_made_in_vain;
}
