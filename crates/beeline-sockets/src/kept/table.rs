//! What each option of a lane is.

use beeline_stats::Reason;

use crate::linux::TCP_TX_DELAY;

/// What an option of a lane is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Class {
    /// On or off; no other property of the socket depends on it.
    Switch,
    /// An integer within bounds.
    Range(i32, i32),
    /// Whatever the kernel makes of it; stored if it is an integer.
    Template,
    /// Bytes that may be on their way. So few that a ring would not limit them keep a socket on TCP.
    Buffer,
    /// `SO_BUSY_POLL`: how long a call looks again and again before it sleeps.
    BusyPoll,
    /// `SO_INCOMING_CPU`: who sets it steers a listener; a connection says where the peer sends.
    IncomingCpu,
    /// `SO_RCVTIMEO`: the reading direction's timeout.
    ReceiveTimeout,
    /// `SO_SNDTIMEO`.
    SendTimeout,
    /// `SO_LINGER`.
    Linger,
    /// `SO_RCVLOWAT`.
    ReceiveLowWater,
    /// A string of at most 16 bytes.
    Name,
    /// `SO_MAX_PACING_RATE`: eight bytes, or four for those who have room for no more.
    Rate,
    /// `TCP_MAXSEG`: a bound before there is a connection, a fact afterwards.
    SegmentSize,
    /// `IPV6_V6ONLY`: cannot be changed on a bound socket.
    V6Only,
    /// The pending error; read only.
    Error,
    /// A fact; read only.
    Fact(Fact),
    /// Cannot be had on a lane, and keeps a socket that has it on TCP.
    Blocking(Reason),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Fact {
    /// Always this number.
    Number(i32),
    /// The family the app sees.
    Family,
    /// `TCP_INFO`.
    Info,
    /// Whatever the kernel says about the anchor.
    Anchor,
    /// `SO_PEERNAME`.
    PeerName,
    /// `IPV6_PATHMTU`.
    PathMtu,
}

pub(crate) const OPTION: Reason = Reason::OptionUnsupported;

/// What has a class of its own. What is not in the table is [`Class::Template`].
pub(crate) const TABLE: &[(i32, i32, Class)] = &[
    (libc::SOL_SOCKET, libc::SO_KEEPALIVE, Class::Switch),
    (libc::SOL_SOCKET, libc::SO_OOBINLINE, Class::Switch),
    (libc::SOL_SOCKET, libc::SO_REUSEADDR, Class::Switch),
    (libc::SOL_SOCKET, libc::SO_ERROR, Class::Error),
    (libc::SOL_SOCKET, libc::SO_TYPE, Class::Fact(Fact::Number(libc::SOCK_STREAM))),
    (libc::SOL_SOCKET, libc::SO_PROTOCOL, Class::Fact(Fact::Number(libc::IPPROTO_TCP))),
    (libc::SOL_SOCKET, libc::SO_ACCEPTCONN, Class::Fact(Fact::Number(0))),
    (libc::SOL_SOCKET, libc::SO_DOMAIN, Class::Fact(Fact::Family)),
    (libc::SOL_SOCKET, libc::SO_COOKIE, Class::Fact(Fact::Anchor)),
    (libc::SOL_SOCKET, libc::SO_PEERNAME, Class::Fact(Fact::PeerName)),
    (libc::SOL_SOCKET, libc::SO_MAX_PACING_RATE, Class::Rate),
    (libc::SOL_SOCKET, libc::SO_RCVTIMEO, Class::ReceiveTimeout),
    (libc::SOL_SOCKET, libc::SO_SNDTIMEO, Class::SendTimeout),
    (libc::SOL_SOCKET, libc::SO_RCVTIMEO_NEW, Class::ReceiveTimeout),
    (libc::SOL_SOCKET, libc::SO_SNDTIMEO_NEW, Class::SendTimeout),
    (libc::SOL_SOCKET, libc::SO_LINGER, Class::Linger),
    (libc::SOL_SOCKET, libc::SO_SNDBUF, Class::Buffer),
    (libc::SOL_SOCKET, libc::SO_RCVBUF, Class::Buffer),
    (libc::SOL_SOCKET, libc::SO_BUSY_POLL, Class::BusyPoll),
    (libc::SOL_SOCKET, libc::SO_INCOMING_CPU, Class::IncomingCpu),
    (libc::SOL_SOCKET, libc::SO_RCVLOWAT, Class::ReceiveLowWater),
    (libc::SOL_SOCKET, libc::SO_BINDTODEVICE, Class::Blocking(OPTION)),
    (libc::SOL_SOCKET, libc::SO_BINDTOIFINDEX, Class::Blocking(OPTION)),
    (libc::SOL_SOCKET, libc::SO_MARK, Class::Blocking(OPTION)),
    (libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, Class::Blocking(OPTION)),
    (libc::SOL_SOCKET, libc::SO_ATTACH_BPF, Class::Blocking(OPTION)),
    (libc::SOL_SOCKET, libc::SO_ATTACH_REUSEPORT_CBPF, Class::Blocking(OPTION)),
    (libc::SOL_SOCKET, libc::SO_ATTACH_REUSEPORT_EBPF, Class::Blocking(OPTION)),
    (libc::SOL_SOCKET, libc::SO_ZEROCOPY, Class::Range(0, 1)),
    (libc::SOL_SOCKET, libc::SO_TIMESTAMP, Class::Blocking(OPTION)),
    (libc::SOL_SOCKET, libc::SO_TIMESTAMPNS, Class::Blocking(OPTION)),
    (libc::SOL_SOCKET, libc::SO_TIMESTAMPING, Class::Blocking(OPTION)),
    (libc::SOL_SOCKET, libc::SO_TIMESTAMP_NEW, Class::Blocking(OPTION)),
    (libc::SOL_SOCKET, libc::SO_TIMESTAMPNS_NEW, Class::Blocking(OPTION)),
    (libc::SOL_SOCKET, libc::SO_TIMESTAMPING_NEW, Class::Blocking(OPTION)),
    (libc::SOL_SOCKET, libc::SO_TXTIME, Class::Blocking(OPTION)),
    (libc::SOL_SOCKET, libc::SO_PEEK_OFF, Class::Blocking(OPTION)),
    (libc::IPPROTO_TCP, libc::TCP_NODELAY, Class::Switch),
    (libc::IPPROTO_TCP, libc::TCP_CORK, Class::Switch),
    (libc::IPPROTO_TCP, libc::TCP_KEEPIDLE, Class::Range(1, 32767)),
    (libc::IPPROTO_TCP, libc::TCP_KEEPINTVL, Class::Range(1, 32767)),
    (libc::IPPROTO_TCP, libc::TCP_KEEPCNT, Class::Range(1, 127)),
    (libc::IPPROTO_TCP, libc::TCP_USER_TIMEOUT, Class::Range(0, i32::MAX)),
    (libc::IPPROTO_TCP, libc::TCP_CONGESTION, Class::Name),
    (libc::IPPROTO_TCP, libc::TCP_MAXSEG, Class::SegmentSize),
    (libc::IPPROTO_TCP, libc::TCP_INFO, Class::Fact(Fact::Info)),
    (libc::IPPROTO_TCP, libc::TCP_MD5SIG, Class::Blocking(OPTION)),
    (libc::IPPROTO_TCP, libc::TCP_MD5SIG_EXT, Class::Blocking(OPTION)),
    (libc::IPPROTO_TCP, libc::TCP_REPAIR, Class::Blocking(OPTION)),
    (libc::IPPROTO_TCP, libc::TCP_ULP, Class::Blocking(OPTION)),
    (libc::IPPROTO_TCP, libc::TCP_INQ, Class::Range(0, 1)),
    (libc::IPPROTO_TCP, libc::TCP_SAVE_SYN, Class::Blocking(OPTION)),
    (libc::IPPROTO_TCP, TCP_TX_DELAY, Class::Blocking(OPTION)),
    (libc::IPPROTO_TCP, libc::TCP_FASTOPEN_CONNECT, Class::Blocking(Reason::FastOpen)),
    (libc::IPPROTO_TCP, libc::TCP_FASTOPEN_NO_COOKIE, Class::Blocking(Reason::FastOpen)),
    (libc::IPPROTO_IP, libc::IP_TRANSPARENT, Class::Blocking(OPTION)),
    (libc::IPPROTO_IP, libc::IP_OPTIONS, Class::Blocking(OPTION)),
    (libc::IPPROTO_IP, libc::IP_UNICAST_IF, Class::Blocking(OPTION)),
    (libc::IPPROTO_IP, libc::IP_IPSEC_POLICY, Class::Blocking(OPTION)),
    (libc::IPPROTO_IP, libc::IP_XFRM_POLICY, Class::Blocking(OPTION)),
    (libc::IPPROTO_IPV6, libc::IPV6_V6ONLY, Class::V6Only),
    (libc::IPPROTO_IPV6, libc::IPV6_PATHMTU, Class::Fact(Fact::PathMtu)),
    (libc::IPPROTO_IPV6, libc::IPV6_TRANSPARENT, Class::Blocking(OPTION)),
    (libc::IPPROTO_IPV6, libc::IPV6_UNICAST_IF, Class::Blocking(OPTION)),
    (libc::IPPROTO_IPV6, libc::IPV6_HOPOPTS, Class::Blocking(OPTION)),
    (libc::IPPROTO_IPV6, libc::IPV6_DSTOPTS, Class::Blocking(OPTION)),
    (libc::IPPROTO_IPV6, libc::IPV6_RTHDR, Class::Blocking(OPTION)),
    (libc::IPPROTO_IPV6, libc::IPV6_IPSEC_POLICY, Class::Blocking(OPTION)),
    (libc::IPPROTO_IPV6, libc::IPV6_XFRM_POLICY, Class::Blocking(OPTION)),
];

pub(crate) fn class(level: i32, name: i32) -> Class {
    TABLE.iter().find(|row| row.0 == level && row.1 == name).map_or(Class::Template, |row| row.2)
}

/// The name by which an option is kept and told that has another one for privileged programs, whose values the kernel
/// does not bound.
pub(crate) fn kept_as(level: i32, name: i32) -> i32 {
    match (level, name) {
        (libc::SOL_SOCKET, libc::SO_SNDBUFFORCE) => libc::SO_SNDBUF,
        (libc::SOL_SOCKET, libc::SO_RCVBUFFORCE) => libc::SO_RCVBUF,
        _ => name,
    }
}

/// Of what has no class of its own, what an accepted connection has from its listener. What it does not have:
/// `SO_PRIORITY`, `TCP_DEFER_ACCEPT`, `TCP_FASTOPEN`.
pub(crate) const INHERITED: &[(i32, i32)] = &[
    (libc::SOL_SOCKET, libc::SO_DONTROUTE),
    (libc::SOL_SOCKET, libc::SO_BROADCAST),
    (libc::SOL_SOCKET, libc::SO_NO_CHECK),
    (libc::SOL_SOCKET, libc::SO_REUSEPORT),
    (libc::SOL_SOCKET, libc::SO_RXQ_OVFL),
    (libc::SOL_SOCKET, libc::SO_NOFCS),
    (libc::SOL_SOCKET, libc::SO_LOCK_FILTER),
    (libc::SOL_SOCKET, libc::SO_SELECT_ERR_QUEUE),
    (libc::SOL_SOCKET, libc::SO_PREFER_BUSY_POLL),
    (libc::SOL_SOCKET, libc::SO_TXREHASH),
    (libc::SOL_SOCKET, libc::SO_RCVMARK),
    (libc::IPPROTO_TCP, libc::TCP_SYNCNT),
    (libc::IPPROTO_TCP, libc::TCP_LINGER2),
    (libc::IPPROTO_TCP, libc::TCP_WINDOW_CLAMP),
    (libc::IPPROTO_TCP, libc::TCP_THIN_LINEAR_TIMEOUTS),
    (libc::IPPROTO_TCP, libc::TCP_NOTSENT_LOWAT),
    (libc::IPPROTO_IP, libc::IP_TOS),
    (libc::IPPROTO_IP, libc::IP_TTL),
    (libc::IPPROTO_IP, libc::IP_RECVOPTS),
    (libc::IPPROTO_IP, libc::IP_RETOPTS),
    (libc::IPPROTO_IP, libc::IP_PKTINFO),
    (libc::IPPROTO_IP, libc::IP_MTU_DISCOVER),
    (libc::IPPROTO_IP, libc::IP_RECVERR),
    (libc::IPPROTO_IP, libc::IP_RECVTTL),
    (libc::IPPROTO_IP, libc::IP_RECVTOS),
    (libc::IPPROTO_IP, libc::IP_FREEBIND),
    (libc::IPPROTO_IP, libc::IP_PASSSEC),
    (libc::IPPROTO_IP, libc::IP_MINTTL),
    (libc::IPPROTO_IP, libc::IP_BIND_ADDRESS_NO_PORT),
    (libc::IPPROTO_IP, libc::IP_MULTICAST_LOOP),
    (libc::IPPROTO_IP, libc::IP_MULTICAST_ALL),
    (libc::IPPROTO_IPV6, libc::IPV6_UNICAST_HOPS),
    (libc::IPPROTO_IPV6, libc::IPV6_MULTICAST_LOOP),
    (libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER),
    (libc::IPPROTO_IPV6, libc::IPV6_RECVERR),
    (libc::IPPROTO_IPV6, libc::IPV6_RECVPKTINFO),
    (libc::IPPROTO_IPV6, libc::IPV6_RECVHOPLIMIT),
    (libc::IPPROTO_IPV6, libc::IPV6_RECVTCLASS),
    (libc::IPPROTO_IPV6, libc::IPV6_TCLASS),
    (libc::IPPROTO_IPV6, libc::IPV6_DONTFRAG),
    (libc::IPPROTO_IPV6, libc::IPV6_AUTOFLOWLABEL),
    (libc::IPPROTO_IPV6, libc::IPV6_FREEBIND),
    (libc::IPPROTO_IPV6, libc::IPV6_MINHOPCOUNT),
];
