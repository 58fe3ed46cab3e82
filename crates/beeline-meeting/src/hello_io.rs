//! The hello on a real anchor, and the lane that comes with it.
//!
//! What arrives is hostile input ([`crate::strangers`]). A look shows the hello and one descriptor, which is checked
//! (`F_GET_SEALS` first: it never blocks) before anything else is done with it. Only a hello with the memfd of a lane,
//! and nothing else, is taken out of the anchor.

use beeline_lane::{LaneMemory, offer};
use beeline_shm::memfd::{self, FileId, MemfdFault};
use beeline_shm::{Fd, MapError};
use beeline_stats::{Poison, Reason};
use beeline_wire::again::{AGAIN, AGAIN_BYTES, Again};
use beeline_wire::hello::{BELL, HELLO_BYTES, Unfit};
use beeline_wire::{Endpoint, Hello};

use crate::bells::AnchorBells;
use crate::control::{Control, message_with};
use crate::strangers::{Seen, dispose, peek, release, take_ours, take_seen};
use crate::{Errno, kernel, limits};

/// Sends a hello with the lane's memfd.
///
/// # Errors
/// Those of sendmsg(2).
pub(super) fn send(anchor: i32, hello: &Hello, memfd: i32) -> Result<(), Errno> {
    let mut bytes = hello.encode();
    let mut part = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
    let mut control = Control::empty();
    let message = message_with(&mut part, &mut control, memfd);
    // SAFETY: iovec, bytes and control data are live and of the lengths given.
    match unsafe { kernel::sendmsg(anchor, &message, libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL) } {
        Ok(HELLO_BYTES) => Ok(()),
        // A fresh anchor has room for the whole.
        Ok(_) => Err(Errno(libc::EPROTO)),
        Err(errno) => Err(errno),
    }
}

/// Says hello again, from this address, over an anchor that both ends have kept.
///
/// # Errors
/// Why the server will not hear it.
pub fn say_again(anchor: i32, client: Endpoint) -> Result<(), Errno> {
    // What the last connection has left. A bell too many wakes somebody for nothing, and enough of them fill the
    // socket.
    if !is_quiet(anchor) {
        return Err(Errno(libc::EPIPE));
    }
    match kernel::send(anchor, &Again { client }.encode(), libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL)? {
        AGAIN_BYTES => Ok(()),
        // The kernel takes so few bytes as a whole.
        _ => Err(Errno(libc::EPROTO)),
    }
}

/// Bells that a connection may leave in an anchor are fewer.
const BELLS_LEFT_MAX: usize = 64;

/// Looks whether a client says hello again over an anchor that was kept, taking bells of the last connection only.
pub fn look_again(anchor: i32) -> Waiting {
    let mut bytes = [0u8; BELLS_LEFT_MAX + AGAIN_BYTES];
    match kernel::recv(anchor, &mut bytes, libc::MSG_PEEK | libc::MSG_DONTWAIT) {
        Ok(0) => Waiting::Gone,
        Ok(length) => {
            let seen = bytes.get(..length).unwrap_or_default();
            let bells = seen.iter().take(BELLS_LEFT_MAX).take_while(|byte| **byte == BELL).count();
            let rest = seen.get(bells..).unwrap_or_default();
            let found = match rest.first() {
                Some(&AGAIN) if rest.len() >= AGAIN_BYTES => Waiting::Message,
                None | Some(&BELL) => Waiting::Silence,
                Some(_) => Waiting::Gone,
            };
            if AnchorBells(anchor).drain(bells as u32).is_ok() { found } else { Waiting::Gone }
        }
        Err(Errno(libc::EAGAIN | libc::EINTR)) => Waiting::Silence,
        Err(_) => Waiting::Gone,
    }
}

/// Takes the bells of a connection that has ended out of its anchor. False if something else lies there.
pub fn is_quiet(anchor: i32) -> bool {
    let bells = AnchorBells(anchor);
    // Mostly there is none, and to ask takes a quarter of what taking does.
    bells.count() == Ok(0) || bells.drain_all().is_ok()
}

/// Takes what [`look_again`] has seen, if it is there: the client's address.
pub fn take_again(anchor: i32) -> Option<Endpoint> {
    let (bells, mut message) = (AnchorBells(anchor), [0; AGAIN_BYTES]);
    if !bells.take(&mut message) {
        return None;
    }
    // Bells of the last connection that have come since then stand before it.
    let late = message.iter().take_while(|byte| **byte == BELL).count();
    message.rotate_left(late);
    let rest = message.get_mut(AGAIN_BYTES - late..)?;
    let is_whole = rest.is_empty() || bells.take(rest);
    is_whole.then(|| Again::decode(&message)).flatten().map(|again| again.client)
}

/// What a client's anchor holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Waiting {
    /// A whole message.
    Message,
    /// Nothing yet.
    Silence,
    /// Nothing, and nothing will come.
    Gone,
}

/// Looks whether the client has spoken, taking nothing. An urgent byte is nothing unless it lies among the others
/// ([`strangers::see_urgent`](crate::strangers::see_urgent)).
pub fn look(anchor: i32) -> Waiting {
    let mut bytes = [0u8; HELLO_BYTES];
    // Without room for control data a look copies no descriptor.
    match kernel::recv(anchor, &mut bytes, libc::MSG_PEEK | libc::MSG_DONTWAIT) {
        Ok(HELLO_BYTES) => Waiting::Message,
        Ok(0) => Waiting::Gone,
        // A part of a hello is a fault, which taking it will tell.
        Ok(_) => Waiting::Message,
        Err(Errno(libc::EAGAIN | libc::EINTR)) => Waiting::Silence,
        Err(_) => Waiting::Gone,
    }
}

/// As [`look`], for somebody who must not be told of a client that has withdrawn its hello: one that is not at the
/// other end any more is looked at more closely.
pub fn look_closely(anchor: i32) -> Waiting {
    match look(anchor) {
        Waiting::Message if kernel::poll_now(anchor, 0) & libc::POLLHUP != 0 && is_withdrawn(anchor) => Waiting::Gone,
        seen => seen,
    }
}

/// Whether the lane of a hello is withdrawn. The hello stays where it is.
fn is_withdrawn(anchor: i32) -> bool {
    let Ok(Seen { fd: Some(memfd), more, .. }) = peek(anchor, &mut [0; HELLO_BYTES]) else { return false };
    let said = memfd::check_seals(memfd).is_ok() && LaneMemory::offer_in(memfd) == Ok(offer::WITHDRAWN);
    release(memfd) && said && !more
}

/// A hello with its lane's descriptor, checked.
pub(super) struct Received {
    pub hello: Hello,
    /// The lane's memfd.
    pub memfd: Fd,
    /// Its identity.
    pub id: FileId,
}

/// Why there is none.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refusal {
    /// The client has not spoken yet.
    Silence,
    /// The client is gone.
    Gone,
    /// The client broke the rules.
    Poison(Poison),
    /// We could not take it.
    Reason(Reason),
}

/// Takes a hello, if it is one; anything else stays where it is, for [`strangers::close`](crate::strangers::close),
/// unless the client is root's or our own user's.
///
/// # Errors
/// [`Refusal`].
pub(super) fn receive(anchor: i32, is_of_ours: bool) -> Result<Received, Refusal> {
    let mut bytes = [0u8; HELLO_BYTES];
    let look = if is_of_ours { take_ours } else { peek };
    let Seen { length, fd, more } = match look(anchor, &mut bytes) {
        Ok(Seen { length: 0, .. }) => return Err(Refusal::Gone),
        Ok(seen) => seen,
        Err(Errno(libc::EAGAIN | libc::EINTR)) => return Err(Refusal::Silence),
        Err(_) => return Err(Refusal::Gone),
    };
    let seen = bytes.get_mut(..length).unwrap_or_default();
    let refusal = match (Hello::decode(seen), fd) {
        (Ok(hello), Some(memfd)) if !hello.reuse && !more => match admit(&hello, memfd) {
            Ok(id) if is_of_ours || take_seen(anchor, seen) => {
                return Ok(Received { hello, memfd: Fd::own(memfd), id });
            }
            Ok(_) => Refusal::Gone,
            Err(poison) => Refusal::Poison(poison),
        },
        (Ok(hello), Some(_)) if hello.reuse => Refusal::Poison(Poison::HelloFlags),
        (Ok(_), Some(_)) => Refusal::Poison(Poison::HelloExtraFds),
        (Err(Unfit::Version), _) => Refusal::Reason(Reason::VersionMismatch),
        (Err(Unfit::Poison(poison)), _) => Refusal::Poison(poison),
        (Ok(_), None) if more => Refusal::Reason(Reason::DescriptorsShort),
        (Ok(_), None) => Refusal::Poison(Poison::HelloNoLane),
    };
    match fd {
        Some(fd) if is_of_ours => dispose(fd),
        fd => drop(fd.map(release)),
    }
    Err(refusal)
}

/// Checks as much as tells whether we know the lane; [`map`] checks the rest of one that we do not know.
fn admit(hello: &Hello, memfd: i32) -> Result<FileId, Poison> {
    memfd::check_seals(memfd).map_err(poison_of)?;
    match memfd::identify(memfd).map_err(|_| Poison::HelloSize)? {
        // Another kind of file tells more than its size.
        (_, size) if size != hello.lane_bytes() => {
            Err(memfd::check(memfd, hello.lane_bytes() as usize).map_or_else(poison_of, |_| Poison::HelloSize))
        }
        (id, _) if id.inode == hello.lane_inode => Ok(id),
        _ => Err(Poison::HelloLaneUnknown),
    }
}

fn poison_of(fault: MemfdFault) -> Poison {
    match fault {
        MemfdFault::Seals => Poison::HelloSeals,
        MemfdFault::FileSystem => Poison::HelloNotTmpfs,
        MemfdFault::Size => Poison::HelloSize,
    }
}

/// Maps the lane of a hello.
///
/// # Errors
/// [`Refusal`].
pub(super) fn map(received: &Received) -> Result<LaneMemory, Refusal> {
    let adopt = if limits::locks_memory() { LaneMemory::adopt_unlocked } else { LaneMemory::adopt };
    match adopt(received.memfd.get(), received.hello.ring_bytes) {
        Ok((memory, _)) => {
            limits::unlock(memory);
            Ok(memory)
        }
        Err(MapError::Fault(fault)) => Err(Refusal::Poison(poison_of(fault))),
        Err(MapError::Os(_)) => Err(Refusal::Reason(Reason::MapFailed)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd, OwnedFd};
    use std::os::unix::net::UnixStream;

    fn hello(memfd: i32) -> Hello {
        let (id, _) = memfd::identify(memfd).unwrap();
        Hello { reuse: false, ring_bytes: 1 << 16, generation: 0, pid_hint: 1, lane_inode: id.inode, held: None }
    }

    fn lane() -> (LaneMemory, OwnedFd) {
        let (memory, fd) = LaneMemory::create(1 << 16).unwrap();
        // SAFETY: a fresh descriptor that nobody else owns.
        (memory, unsafe { OwnedFd::from_raw_fd(fd.give_away()) })
    }

    #[test]
    fn a_hello_arrives_with_its_lane() {
        let (client, server) = UnixStream::pair().unwrap();
        let (_, memfd) = lane();
        assert_eq!(look(server.as_raw_fd()), Waiting::Silence);
        assert!(matches!(receive(server.as_raw_fd(), false), Err(Refusal::Silence)));
        send(client.as_raw_fd(), &hello(memfd.as_raw_fd()), memfd.as_raw_fd()).unwrap();
        assert_eq!(look(server.as_raw_fd()), Waiting::Message);
        let received = receive(server.as_raw_fd(), false).unwrap_or_else(|refusal| panic!("{refusal:?}"));
        assert!(map(&received).is_ok());
        drop((received, client));
        // A child that another test has just forked may have the socket, too, for a moment.
        let until = std::time::Instant::now() + std::time::Duration::from_secs(5);
        while look(server.as_raw_fd()) != Waiting::Gone {
            assert!(std::time::Instant::now() < until);
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
    }

    #[test]
    fn strange_descriptors_are_refused_and_do_not_block() {
        let tcp = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let (_, memfd) = lane();
        let strange: [(i32, Poison); 2] = [(tcp.as_raw_fd(), Poison::HelloSeals), (0, Poison::HelloSeals)];
        for (fd, poison) in strange {
            let (client, server) = UnixStream::pair().unwrap();
            send(client.as_raw_fd(), &hello(memfd.as_raw_fd()), fd).unwrap();
            assert_eq!(receive(server.as_raw_fd(), false).err(), Some(Refusal::Poison(poison)));
        }
    }

    #[test]
    fn an_urgent_byte_before_a_hello_is_seen_and_stays_with_its_descriptor() {
        use beeline_testkit::hostile::{Client, Lane, Lingering};
        let (client, server) = UnixStream::pair().unwrap();
        let client = Client::of(client.into());
        let lingering = Lingering::new(3).unwrap();
        client.send_urgent(0xbe, &[lingering.socket.as_raw_fd()]).unwrap();
        // The byte has the last one.
        let null = std::fs::File::open("/dev/null").unwrap();
        beeline_testkit::sys::dup2(null.as_raw_fd(), lingering.socket.as_raw_fd());
        client.say_hello(&Lane::correct(1 << 16).unwrap()).unwrap();
        let began = std::time::Instant::now();
        assert_eq!(receive(server.as_raw_fd(), false).err(), Some(Refusal::Poison(Poison::HelloShort)));
        crate::strangers::close(server.into_raw_fd());
        assert!(began.elapsed() < std::time::Duration::from_secs(2), "{:?}", began.elapsed());
        assert!(client.is_sent_away());
    }

    #[test]
    fn an_urgent_byte_is_heard_where_it_lies_among_the_others() {
        use beeline_testkit::hostile::Client;
        for waits in [look, look_again] {
            let (client, server) = UnixStream::pair().unwrap();
            let (client, anchor) = (Client::of(client.into()), server.as_raw_fd());
            assert_eq!(waits(anchor), Waiting::Silence);
            crate::strangers::see_urgent(anchor);
            assert_eq!(waits(anchor), Waiting::Silence);
            client.send_urgent(b'x', &[]).unwrap();
            // What the kernel calls readable is nobody silent.
            assert_ne!(kernel::poll_now(anchor, libc::POLLIN) & libc::POLLIN, 0);
            assert_ne!(waits(anchor), Waiting::Silence);
        }
    }

    #[test]
    fn a_hello_about_another_lane_is_refused() {
        let (client, server) = UnixStream::pair().unwrap();
        let (_, one) = lane();
        let (_, two) = lane();
        send(client.as_raw_fd(), &hello(one.as_raw_fd()), two.as_raw_fd()).unwrap();
        assert_eq!(receive(server.as_raw_fd(), false).err(), Some(Refusal::Poison(Poison::HelloLaneUnknown)));
    }

    #[test]
    fn a_hello_without_descriptor_or_cut_short_is_refused() {
        use std::io::Write;
        let (_, memfd) = lane();
        let bytes = hello(memfd.as_raw_fd()).encode();
        for (length, poison) in [(64, Poison::HelloNoLane), (63, Poison::HelloShort), (1, Poison::HelloShort)] {
            let (mut client, server) = UnixStream::pair().unwrap();
            client.write_all(&bytes[..length]).unwrap();
            assert_eq!(receive(server.as_raw_fd(), false).err(), Some(Refusal::Poison(poison)));
        }
        let _ = memfd.into_raw_fd();
    }

    #[test]
    fn a_hello_that_is_said_again_is_found_behind_the_bells_of_the_last_connection() {
        use std::io::{Read, Write};
        let (mut client_end, mut server) = UnixStream::pair().unwrap();
        let (ours, theirs) = (client_end.as_raw_fd(), server.as_raw_fd());
        assert_eq!(look_again(theirs), Waiting::Silence);
        client_end.write_all(&[BELL, BELL]).unwrap();
        assert_eq!(look_again(theirs), Waiting::Silence, "and they are taken");
        assert_eq!(look(theirs), Waiting::Silence);
        // The client's own are no news to it.
        server.write_all(&[BELL]).unwrap();
        client_end.write_all(&[BELL]).unwrap();
        let client = Endpoint::new("127.0.0.1:5000".parse().unwrap());
        say_again(ours, client).unwrap();
        client_end.write_all(&[BELL]).unwrap();
        assert_eq!(
            (look(ours), look_again(theirs), look_again(theirs)),
            (Waiting::Silence, Waiting::Message, Waiting::Message)
        );
        assert_eq!(take_again(theirs), Some(client));
        assert_eq!(take_again(theirs), None, "a bell");
        client_end.write_all(&[BELL; 3]).unwrap();
        say_again(ours, client).unwrap();
        client_end.write_all(&[BELL]).unwrap();
        assert_eq!(take_again(theirs), Some(client), "behind bells that came late");
        assert_eq!(AnchorBells(theirs).drain_all(), Ok(1), "what follows stays");
        // What the window of a look cuts in two is found once the bells before it are gone.
        client_end.write_all(&[BELL; BELLS_LEFT_MAX + 6]).unwrap();
        say_again(ours, client).unwrap();
        assert_eq!((look_again(theirs), look_again(theirs)), (Waiting::Silence, Waiting::Message));
        assert_eq!(take_again(theirs), Some(client));
        client_end.write_all(&[AGAIN, 4]).unwrap();
        assert_eq!(look_again(theirs), Waiting::Gone, "a part");
        assert_eq!(take_again(theirs), None);
        client_end.write_all(b"B").unwrap();
        assert_eq!(look_again(theirs), Waiting::Gone, "anything else");
        assert!(!is_quiet(theirs));
        server.write_all(b"x").unwrap();
        assert!(say_again(ours, client).is_err());
        let mut rest = Vec::new();
        drop(server);
        let _ = client_end.read_to_end(&mut rest);
        assert!(say_again(ours, client).is_err());
    }
}
