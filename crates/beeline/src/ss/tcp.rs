//! Connections of kernel TCP, as /proc tells of them (proc_pid_net(5)).

use std::collections::HashMap;
use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::unix::fs::MetadataExt;

/// A connected TCP socket of a process.
pub struct Socket {
    pub fd: i32,
    pub local: SocketAddr,
    pub remote: SocketAddr,
}

/// The connections of each network namespace that was looked into, by inode.
#[derive(Default)]
pub struct Tables(HashMap<u64, HashMap<u64, (SocketAddr, SocketAddr)>>);

/// States in the kernel's tables: connected, and closed by the other end only, which is still the program's to close.
const OPEN: [&str; 2] = ["01", "08"];

impl Tables {
    /// Those of a process, in the order of their descriptors; none of one that may not be looked into.
    pub fn of(&mut self, pid: u32) -> Vec<Socket> {
        let Ok(namespace) = fs::metadata(format!("/proc/{pid}/ns/net")) else { return Vec::new() };
        let table = self.0.entry(namespace.ino()).or_insert_with(|| table(pid));
        let descriptors = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
        let mut sockets: Vec<Socket> = descriptors
            .filter_map(|entry| {
                let target = fs::read_link(entry.path()).ok()?;
                let inode = target.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.parse().ok()?;
                let (local, remote) = *table.get(&inode)?;
                Some(Socket { fd: entry.file_name().to_str()?.parse().ok()?, local, remote })
            })
            .collect();
        sockets.sort_by_key(|socket| socket.fd);
        sockets
    }
}

fn table(pid: u32) -> HashMap<u64, (SocketAddr, SocketAddr)> {
    let tables = ["tcp", "tcp6"].map(|name| fs::read_to_string(format!("/proc/{pid}/net/{name}")).unwrap_or_default());
    tables.iter().flat_map(|table| table.lines().skip(1)).filter_map(entry).collect()
}

/// An open connection of a line: its socket's inode, and both addresses.
fn entry(line: &str) -> Option<(u64, (SocketAddr, SocketAddr))> {
    let mut fields = line.split_ascii_whitespace().skip(1);
    let (local, remote, state) = (fields.next()?, fields.next()?, fields.next()?);
    let inode = fields.nth(5)?.parse().ok()?;
    OPEN.contains(&state).then_some(())?;
    Some((inode, (address(local)?, address(remote)?)))
}

/// `0100007F:1F90`: words of the machine's own order, and the port. An IPv4 address that a socket of IPv6 has is one of
/// IPv4, as lanes have it.
fn address(text: &str) -> Option<SocketAddr> {
    let (address, port) = text.split_once(':')?;
    let mut bytes = Vec::with_capacity(16);
    for start in (0..address.len()).step_by(8) {
        let word = u32::from_str_radix(address.get(start..start + 8)?, 16).ok()?;
        bytes.extend(word.to_ne_bytes());
    }
    let address = match bytes.len() {
        4 => IpAddr::from(Ipv4Addr::from(<[u8; 4]>::try_from(bytes).ok()?)),
        _ => IpAddr::from(Ipv6Addr::from(<[u8; 16]>::try_from(bytes).ok()?)),
    };
    Some(SocketAddr::new(address.to_canonical(), u16::from_str_radix(port, 16).ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsRawFd;

    #[test]
    fn both_ends_of_a_connection_are_found_by_their_descriptors() {
        for address in ["127.0.0.1:0", "[::1]:0"] {
            let listener = TcpListener::bind(address).unwrap();
            let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let server = listener.accept().unwrap().0;
            let found = Tables::default().of(std::process::id());
            for end in [&client, &server] {
                let own = found.iter().find(|socket| socket.fd == end.as_raw_fd()).unwrap();
                assert_eq!((own.local, own.remote), (end.local_addr().unwrap(), end.peer_addr().unwrap()));
            }
            assert!(found.iter().all(|socket| socket.fd != listener.as_raw_fd()));
        }
    }

    #[test]
    fn addresses_of_a_dual_stack_socket_are_those_of_its_lane() {
        let listener = TcpListener::bind("[::]:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let client = TcpStream::connect(("127.0.0.1", port)).unwrap();
        let server = listener.accept().unwrap().0;
        let found = Tables::default().of(std::process::id());
        let own = found.iter().find(|socket| socket.fd == server.as_raw_fd()).unwrap();
        assert_eq!((own.local, own.remote), (client.peer_addr().unwrap(), client.local_addr().unwrap()));
    }

    #[test]
    fn what_is_no_line_of_the_table_is_no_connection() {
        let line = "0: 0100007F:1F90 0100007F:C001 01 00000000:00000000 00:00000000 00000000 0 0 4711 1";
        assert_eq!(entry(line).unwrap().0, 4711);
        for wrong in ["", "0: 0100007F:1F90", &line.replace(" 01 ", " 0A "), &line.replace("7F:1F", "7:1F")] {
            assert!(entry(wrong).is_none(), "{wrong}");
        }
    }
}
