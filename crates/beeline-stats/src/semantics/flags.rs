//! Flags of sending and receiving, and requests of fcntl(2) and ioctl(2).

use super::Handling::{Accelerated, FallsBack, Passed};
use super::{Row, row};
use crate::Reason;

/// Flags of `send` and `recv` and their kin.
pub const FLAGS: &[Row] = &[
    row(&["MSG_PEEK"], Accelerated, "", &["flags/peek", "flags/peek_across_sends", "timeouts/peek_timeout"]),
    row(&["MSG_WAITALL"], Accelerated, "", &["flags/waitall_waits", "flags/waitall_cut_by_end"]),
    row(&["MSG_TRUNC"], Accelerated, "", &["flags/trunc_throws_away", "flags/trunc_and_peek"]),
    row(&["MSG_DONTWAIT"], Accelerated, "", &["flags/dontwait"]),
    row(&["MSG_NOSIGNAL"], Accelerated, "", &["signals/sigpipe_counts", "flags/each_alone"]),
    row(
        &["MSG_MORE"],
        Accelerated,
        "Nothing is held back: data goes into shared memory at once.",
        &["flags/more_then_rest"],
    ),
    row(&["MSG_OOB"], Accelerated, "", &["urgent/"]),
    row(&["MSG_ERRQUEUE"], Accelerated, "", &["flags/errqueue", "zerocopy/"]),
    row(&["MSG_ZEROCOPY"], Accelerated, "Copied, and said to be.", &["flags/each_alone", "zerocopy/"]),
    row(
        &["MSG_CMSG_CLOEXEC"],
        Accelerated,
        "A TCP socket receives no descriptors.",
        &["flags/each_alone", "flags/control_messages"],
    ),
    row(&["MSG_WAITFORONE"], Accelerated, "", &["vectors/recvmmsg_takes_what_is_there"]),
    row(
        &["MSG_FASTOPEN"],
        FallsBack(Reason::FastOpen),
        "On a socket that is not connected. Once connected it is an error, as in TCP.",
        &["flags/each_alone", "flags/fast_open"],
    ),
];

/// Requests of `fcntl` and `ioctl` that are about sockets.
pub const REQUESTS: &[Row] = &[
    row(&["F_DUPFD", "F_DUPFD_CLOEXEC"], Accelerated, "", &["descriptors/f_dupfd"]),
    row(
        &["F_GETFD", "F_SETFD", "FIOCLEX", "FIONCLEX"],
        Passed,
        "",
        &["descriptors/cloexec_is_not_shared", "descriptors/cloexec_by_fioclex"],
    ),
    row(&["F_GETFL", "F_SETFL", "FIONBIO"], Accelerated, "", &["descriptors/status_flags", "descriptors/fionbio"]),
    row(
        &["O_ASYNC", "FIOASYNC"],
        FallsBack(Reason::AsyncIo),
        "Set on a connection in shared memory, it signals what comes after the program has read all there was.",
        &["flags/async_before_connect", "flags/async_on_a_connection"],
    ),
    row(
        &["F_SETOWN", "F_GETOWN", "F_SETOWN_EX", "FIOSETOWN", "SIOCSPGRP", "FIOGETOWN", "SIOCGPGRP"],
        Passed,
        "SIGURG comes from the kernel.",
        &["urgent/sigurg", "urgent/sigurg_owner_by_ioctl", "urgent/sigurg_owner_before_connect"],
    ),
    row(&["FIONREAD", "SIOCINQ"], Accelerated, "", &["descriptors/fionread_counts", "urgent/in_the_middle"]),
    row(
        &["TIOCOUTQ", "SIOCOUTQ", "SIOCOUTQNSD"],
        Accelerated,
        "0, as all that was sent has come; on a connection between hosts bytes that its bridge has not taken.",
        &["descriptors/tiocoutq"],
    ),
    row(&["SIOCATMARK"], Accelerated, "", &["urgent/"]),
];
