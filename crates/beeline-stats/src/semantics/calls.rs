//! The functions that the library exports.

use super::Handling::{Accelerated, Passed};
use super::{Row, row};

/// Every exported function.
pub const CALLS: &[Row] = &[
    // Making and ending connections.
    row(
        &["socket"],
        Passed,
        "TCP sockets are remembered; all others are the kernel's alone.",
        &["connect/", "data/other_descriptors_are_left_alone"],
    ),
    row(&["bind"], Passed, "", &["connect/bound_client", "listeners/bind_in_use"]),
    row(&["listen"], Passed, "The listener gets a door beside its TCP queue.", &["listeners/"]),
    row(
        &["connect", "__connect"],
        Accelerated,
        "Falls back to kernel TCP for any of the reasons in the reference.",
        &["connect/", "forms/aliases"],
    ),
    row(
        &["accept", "accept4"],
        Accelerated,
        "Serves the TCP queue and the door as one listener.",
        &["accept/", "cancel/in_accept"],
    ),
    row(&["shutdown"], Accelerated, "", &["states/", "waking/", "threads/shutdown_ends_a_blocked_sender"]),
    row(&["getsockname", "getpeername"], Accelerated, "", &["names/"]),
    row(&["getsockopt", "setsockopt"], Accelerated, "Option by option: see below.", &["options/", "every_option/"]),
    row(&["sockatmark"], Accelerated, "", &["urgent/"]),
    // Data.
    row(&["read", "__read"], Accelerated, "", &["data/read_and_write", "forms/aliases", "cancel/by_read"]),
    row(&["write", "__write"], Accelerated, "", &["data/read_and_write", "forms/aliases"]),
    row(&["readv", "writev"], Accelerated, "", &["vectors/", "cancel/by_readv"]),
    row(
        &["preadv2", "preadv64v2", "pwritev2", "pwritev64v2"],
        Accelerated,
        "With an offset they fail with ESPIPE, as on any socket.",
        &["guest:vectors_with_no_offset_are_reads", "forms/sixty_four_bit_names"],
    ),
    row(&["recv", "recvfrom", "recvmsg", "recvmmsg"], Accelerated, "", &["data/", "flags/", "vectors/"]),
    row(
        &["send", "__send", "sendto", "sendmsg", "sendmmsg"],
        Accelerated,
        "",
        &["data/", "flags/", "vectors/", "forms/aliases"],
    ),
    row(
        &["__read_chk", "__recv_chk", "__recvfrom_chk"],
        Accelerated,
        "A length beyond the buffer ends the program, as in libc.",
        &["forms/checked", "forms/checked_and_too_long"],
    ),
    row(
        &["sendfile", "sendfile64"],
        Accelerated,
        "The file is read and sent in parts.",
        &["moving/", "forms/sixty_four_bit_names"],
    ),
    row(
        &["splice"],
        Accelerated,
        "Between a connection and a pipe, from Linux 6.4 on; before, EINVAL, and programs copy.",
        &["moving/", "urgent/spliced"],
    ),
    // Waiting.
    row(
        &["poll", "__poll", "ppoll", "__poll_chk", "__ppoll_chk"],
        Accelerated,
        "",
        &["ready/", "forms/checked", "forms/aliases", "cancel/by_poll"],
    ),
    row(&["select", "__select", "pselect"], Accelerated, "", &["ready/", "cancel/by_select"]),
    row(
        &["epoll_create", "epoll_create1"],
        Passed,
        "The set is the kernel's, with a list of busy connections beside it.",
        &["epoll/", "epoll_sets/"],
    ),
    row(&["epoll_ctl"], Accelerated, "", &["epoll_entries/", "epoll_sets/"]),
    row(
        &["epoll_wait", "epoll_pwait", "epoll_pwait2"],
        Accelerated,
        "",
        &["epoll/", "epoll_sets/", "cancel/by_epoll_level"],
    ),
    // Descriptors.
    row(&["close", "__close"], Accelerated, "", &["descriptors/", "closing/", "threads/close_by_another_thread"]),
    row(
        &["close_range", "closefrom"],
        Accelerated,
        "The library's own descriptors stay open.",
        &["descriptors/close_range_closes", "guest:closing_everything_leaves_the_library_alive"],
    ),
    row(&["dup", "dup2", "__dup2", "dup3"], Accelerated, "", &["descriptors/", "forms/aliases"]),
    row(
        &["fcntl", "__fcntl", "fcntl64"],
        Accelerated,
        "Flags and owner are kept by the kernel.",
        &["descriptors/", "forms/aliases", "urgent/sigurg"],
    ),
    row(&["ioctl"], Accelerated, "Request by request: see below.", &["descriptors/ioctls", "descriptors/ioctl_errors"]),
    // stdio.
    row(
        &["fdopen"],
        Accelerated,
        "Streams of sockets that are not connected yet keep them on kernel TCP.",
        &["stdio/"],
    ),
    row(
        &["dprintf", "vdprintf", "__dprintf_chk", "__vdprintf_chk"],
        Accelerated,
        "",
        &["stdio/descriptor_printing", "forms/checked", "guest:formatted_output_arrives"],
    ),
    // Processes and signals.
    row(
        &["vfork", "__vfork", "clone", "_Fork"],
        Passed,
        "fork(2) has handlers of its own (pthread_atfork(3)). A connection that the child of a vfork hands to a program \
         without the library, or as its standard input, gets no relay (`vfork_child`): its parent's descriptors are out \
         of its reach.",
        &["fork/", "guest:a_vfork_child_changes_nothing_here", "guest:clone_on_another_stack_works"],
    ),
    row(&["posix_spawn", "posix_spawnp", "system", "popen"], Passed, "", &["guest:spawned_programs_run", "spawned/"]),
    row(
        &["execve", "execv", "execvp", "execvpe", "execl", "execle", "execlp", "fexecve", "execveat"],
        Passed,
        "Connections go over to the next program; the library stays in its environment.",
        &["guest:exec_keeps_a_connection", "guest:exec_keeps_the_state_of_a_connection", "guest:the_library_follows"],
    ),
    row(
        &["posix_spawn_file_actions_adddup2"],
        Passed,
        "What the child will get under another number is remembered.",
        &["guest:spawning_hands_over_a_connection"],
    ),
    row(&["_exit", "_Exit"], Passed, "Removes the statistics file first.", &["fork/child_exits", "duo/server_exits"]),
    row(
        &[
            "sigaction",
            "__sigaction",
            "signal",
            "ssignal",
            "bsd_signal",
            "sysv_signal",
            "__sysv_signal",
            "sigset",
            "siginterrupt",
        ],
        Passed,
        "Handlers run behind a wrapper that keeps them out of critical sections.",
        &["signals/", "guest:handlers_read_back_as_installed"],
    ),
    row(
        &["prctl"],
        Passed,
        "Before a filter of system calls (seccomp) stands, also by seccomp(2), connections go over to relays.",
        &["guest:a_filter_finds_no_lanes", "guest:a_filter_by_number_finds_no_lanes"],
    ),
    row(
        &["setrlimit", "setrlimit64", "prlimit", "prlimit64"],
        Passed,
        "A limit that leaves no descriptor to be had announces a filter.",
        &["guest:limits_announce_a_filter", "guest:asking_for_filters_leaves_lanes_alone"],
    ),
    row(
        &["syscall"],
        Accelerated,
        "Calls by number are the calls by name. Before io_uring_setup(2) connections go over to relays; a ring of libuv's, which does without, is refused (ENOSYS).",
        &[
            "forms/numbers",
            "forms/numbers_that_wait",
            "forms/numbers_of_descriptors",
            "moving/by_number",
            "guest:calls_by_number_are_the_same_calls",
            "guest:a_ring_of_libuv_is_refused_and_lanes_stay",
            "guest:fork_by_number_is_a_fork",
        ],
    ),
    row(
        &[
            "io_uring_queue_init",
            "io_uring_queue_init_params",
            "io_uring_queue_init_mem",
            "io_uring_setup",
            "io_uring_submit",
            "io_uring_submit_and_wait",
            "io_uring_submit_and_get_events",
            "io_uring_submit_and_wait_timeout",
            "io_uring_wait_cqes",
            "io_uring_wait_cqe_timeout",
            "io_uring_enter",
            "io_uring_enter2",
            "io_uring_register_files",
            "io_uring_register_files_tags",
            "io_uring_register_files_update",
            "io_uring_register_files_update_tag",
            "io_uring_register",
        ],
        Passed,
        "liburing's own. Before something about a TCP socket or an epoll set is submitted to a ring or registered with it, connections go over to relays; the same before a ring is made that cannot be seen into (io_uring_setup, SQPOLL). Rings for files leave lanes alone. A program that brings a liburing of its own has no lanes.",
        &[
            "guest:liburing_takes_connections_off_lanes",
            "guest:liburing_with_parameters_takes_connections_off_lanes",
            "guest:a_ring_made_apart_takes_connections_off_lanes",
            "guest:a_ring_for_files_leaves_lanes_alone",
            "guest:a_connection_among_registered_files_comes_off_its_lane",
            "guest:a_polled_ring_takes_connections_off_lanes",
            "guest:a_ring_of_its_own_before_connections",
            "guest:a_ring_of_its_own_after_connections",
            "guest:a_program_with_rings_of_its_own_goes_on",
            "guest:liburing_opened_by_hand_means_no_lanes",
            "guest:code_that_is_loaded_later_ends_lanes",
        ],
    ),
];
