//! Numbers of Linux that the libc crate lacks, under the kernel's names and by the header that has them.
#![allow(missing_docs)]

// asm-generic/socket.h. Since Linux 6.16.
pub const SO_PASSRIGHTS: i32 = 83;

// linux/in.h
pub const IP_PROTOCOL: i32 = 52;

// linux/tcp.h
pub const TCP_TX_DELAY: i32 = 37;
/// For `TCP_REPAIR_QUEUE`.
pub const TCP_RECV_QUEUE: i32 = 1;
pub const TCP_SEND_QUEUE: i32 = 2;

// net/tcp.h: options of segments, for `TCP_REPAIR_OPTIONS`.
pub const TCPOPT_MSS: u32 = 2;
pub const TCPOPT_WINDOW: u32 = 3;
pub const TCPOPT_SACK_PERM: u32 = 4;

// net/tcp_states.h
pub const TCP_ESTABLISHED: u8 = 1;
/// The first packet has had no answer.
pub const TCP_SYN_SENT: u8 = 2;
pub const TCP_FIN_WAIT2: u8 = 5;
/// Not connected, nor about to be.
pub const TCP_CLOSE: u8 = 7;
pub const TCP_CLOSE_WAIT: u8 = 8;
pub const TCP_LAST_ACK: u8 = 9;

// asm-generic/fcntl.h
pub const F_SETSIG: i32 = 10;
pub const F_GETSIG: i32 = 11;
pub const F_SETOWN_EX: i32 = 15;
pub const F_GETOWN_EX: i32 = 16;

// asm-generic/sockios.h
pub const FIOSETOWN: u64 = 0x8901;
pub const SIOCSPGRP: u64 = 0x8902;
pub const FIOGETOWN: u64 = 0x8903;
pub const SIOCGPGRP: u64 = 0x8904;
pub const SIOCATMARK: u64 = 0x8905;

// linux/nsfs.h. The same since Linux 3.8.
pub const PID_NS_INIT_INO: u32 = 0xEFFF_FFFC;

// linux/errqueue.h
pub const SO_EE_ORIGIN_ZEROCOPY: u8 = 5;
pub const SO_EE_CODE_ZEROCOPY_COPIED: u8 = 1;
