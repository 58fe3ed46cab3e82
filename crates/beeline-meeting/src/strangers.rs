//! Descriptors that a stranger may have put into an anchor.
//!
//! A socket's lock can be held for as long as its owner likes (he sends from a page that does not come), and so can its
//! close (`SO_LINGER`), uninterruptibly: whatever asks such a socket something, or drops it last, stands. So:
//!
//! 1. A look ([`peek`]) takes one descriptor at most, and takes it as a second one: the queue keeps its own, so to
//!    close ours is never the last close. Only a memory file is ever taken out of the queue. Of others it is asked what
//!    they are, in ways that take no lock ([`is_harmless`]). What root or our own user sends at a door is taken at once
//!    ([`take_ours`]), as those can stop us anyway, and disposed of in the same way where it is no lane.
//! 2. An anchor is closed by [`close`] unless a connection has been made of it. If anything but memory files lies in
//!    its queue, it is closed by an [`undertaker`](crate::undertaker), with all that lies there. Memory files are taken
//!    out, so a second number of an anchor whose hello is still to be taken is closed as any other descriptor. Nothing
//!    comes in any more meanwhile ([`seal`]).
//! 3. A connection is made of a stranger's anchor only if no descriptor lies there behind the hello
//!    ([`hides_rights`]), and none can come any more (`SO_PASSRIGHTS`). Without that option nobody but our own user and
//!    root gets so far.
//! 4. Of other files than sockets, pipes and those in memory each close may block (FUSE). They keep the number that
//!    they got here, hidden; in the child of a `vfork`, whose memory is its parent's, until that is a program.
//! 5. With each undertaker beyond [`BURIALS_MAX`], and each such file beyond [`PUT_ASIDE_MAX`], a process shuts its
//!    doors for longer ([`limits::note_hostile_client`]), so that no client can have as many as he likes.

use core::sync::atomic::{AtomicU32, Ordering::Relaxed};

use beeline_guest::aside;
use beeline_shm::sys;

use crate::control::{self, Control, ONE, RIGHTS_MAX, control_bytes};
use crate::disarm::each_right;
use crate::undertaker::{self, FDS_MAX};
use crate::{Errno, hidden, kernel, limits, process, trust};

/// So often a process has a stranger's anchor closed elsewhere before it shuts its doors.
const BURIALS_MAX: u32 = 8;
/// The same where it had no number to look at what came, which clients that mean well cannot help.
const UNSEEN_MAX: u32 = 64;
/// What a client that means well may leave in its anchor is less: a hello, and bells.
const LEFT_MAX: usize = 512;
/// Messages with a memory file that are taken out of an anchor to close it.
const MESSAGES_MAX: usize = 4;

/// So many descriptors are put aside before.
const PUT_ASIDE_MAX: u32 = 16;

static BURIALS: AtomicU32 = AtomicU32::new(0);
static UNSEEN: AtomicU32 = AtomicU32::new(0);
static PUT_ASIDE: AtomicU32 = AtomicU32::new(0);

/// What was found in the first bytes of an anchor.
pub(crate) struct Seen {
    /// How many.
    pub length: usize,
    /// The descriptor that came with them, or the first one.
    pub fd: Option<i32>,
    /// Whether there are more of them than that.
    pub more: bool,
}

/// Looks at the first bytes in an anchor, which stay there, and at one descriptor, which comes as another one: to be
/// closed by [`release`].
pub(crate) fn peek(anchor: i32, bytes: &mut [u8]) -> Result<Seen, Errno> {
    see_urgent(anchor);
    let mut part = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
    let mut control = Control::<ONE>::empty();
    let mut message = control::message(&mut part, &mut control);
    // What aligns the next control message is room for a second descriptor to the kernel.
    // SAFETY: computes a size from a small number.
    message.msg_controllen = unsafe { libc::CMSG_LEN(size_of::<i32>() as u32) } as _;
    let flags = libc::MSG_PEEK | libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC;
    // SAFETY: iovec, buffer and control space are live and of the lengths given.
    let length = unsafe { kernel::recvmsg(anchor, &mut message, flags) }?;
    // SAFETY: the kernel filled in the control data of this message.
    let fd = unsafe { control::sole_descriptor(&message) };
    Ok(Seen { length, fd, more: message.msg_flags & libc::MSG_CTRUNC != 0 })
}

/// Takes them out at once, and closes what else came with them: of a client of root's or our own user's, who can stop
/// us whenever they like. The descriptor is to be closed by [`dispose`].
pub(crate) fn take_ours(anchor: i32, bytes: &mut [u8]) -> Result<Seen, Errno> {
    let mut part = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
    let mut control = Control::<{ control_bytes(RIGHTS_MAX) }>::empty();
    let mut message = control::message(&mut part, &mut control);
    let flags = libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC;
    // SAFETY: iovec, buffer and control space are live and of the lengths given.
    let length = unsafe { kernel::recvmsg(anchor, &mut message, flags) }?;
    let (mut first, mut more) = (None, message.msg_flags & libc::MSG_CTRUNC != 0);
    each_right(&message, |fd| {
        if first.is_none() {
            first = Some(fd);
        } else {
            more = true;
            dispose(fd);
        }
    });
    Ok(Seen { length, fd: first, more })
}

/// Closes a descriptor that [`take_ours`] has brought, perhaps for the last time.
pub(crate) fn dispose(fd: i32) {
    if kernel::is_memory_file(fd) || kernel::is_pipe(fd) {
        let _ = sys::close(fd);
    } else {
        Closing::new().put(fd, true);
    }
}

/// Takes as many bytes out as a look has seen; a descriptor that lies with them is dropped, of which that look has
/// brought another.
pub(crate) fn take_seen(anchor: i32, bytes: &mut [u8]) -> bool {
    let length = bytes.len();
    kernel::recv(anchor, bytes, libc::MSG_DONTWAIT) == Ok(length)
}

/// Closes a descriptor that [`peek`] has brought. Whether it is a memory file's.
pub(crate) fn release(fd: i32) -> bool {
    let is_memory = kernel::is_memory_file(fd);
    if is_memory || is_harmless(fd) {
        let _ = sys::close(fd);
    } else if !process::is_guest_of_parent() {
        // Where it is: another number for it would mean to close this one.
        hidden::hidden_add(fd);
        aside::put(fd);
        if PUT_ASIDE.fetch_add(1, Relaxed) >= PUT_ASIDE_MAX {
            limits::note_hostile_client();
        }
    }
    is_memory
}

/// Whether a close that is not the last one does nothing.
fn is_harmless(fd: i32) -> bool {
    kernel::getsockopt::<i32>(fd, libc::SOL_SOCKET, libc::SO_TYPE).is_ok() || kernel::is_pipe(fd)
}

/// Whether descriptors lie in an anchor that accepts none any more.
pub fn hides_rights(anchor: i32) -> bool {
    // Mostly nothing lies there at all.
    let queued = count(anchor);
    if queued == 0 {
        return false;
    }
    see_urgent(anchor);
    let mut bytes = [0; LEFT_MAX];
    let mut part = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
    let mut message = control::message(&mut part, &mut Control::<0>::empty());
    message.msg_control = core::ptr::null_mut();
    // SAFETY: iovec and buffer are live and of the lengths given. Without room for control data no descriptor comes.
    let seen = unsafe { kernel::recvmsg(anchor, &mut message, libc::MSG_PEEK | libc::MSG_DONTWAIT) }.unwrap_or(0);
    seen < queued || message.msg_flags & libc::MSG_CTRUNC != 0
}

/// Has an urgent byte lie among the others. It can have descriptors, too; a look passes over it otherwise, and whoever
/// takes what lies behind it drops it with them. The kernel calls an anchor readable in which nothing else lies, so who
/// waits until there is something to look at says this before.
pub fn see_urgent(anchor: i32) {
    let _ = kernel::setsockopt(anchor, libc::SOL_SOCKET, libc::SO_OOBINLINE, &1i32);
}

/// Bytes that lie in an anchor, urgent ones among them.
fn count(anchor: i32) -> usize {
    let mut bytes = 0;
    match kernel::ioctl_int(anchor, libc::FIONREAD, &mut bytes) {
        Ok(_) => usize::try_from(bytes).unwrap_or(usize::MAX),
        Err(_) => usize::MAX,
    }
}

/// What lies in an anchor that is to be closed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Rest {
    /// Nothing that could hold up whoever closes it.
    Clean,
    /// Something that could.
    Strange,
    /// A descriptor that nobody has seen, as no number is left to look at it: most likely a hello's.
    Unseen,
}

/// What lies in an anchor that accepts none any more. Memory files are taken out.
fn rest(anchor: i32) -> Rest {
    for _ in 0..MESSAGES_MAX {
        if !hides_rights(anchor) {
            return Rest::Clean;
        }
        let mut bytes = [0; LEFT_MAX];
        let Ok(Seen { length, fd, more }) = peek(anchor, &mut bytes) else { return Rest::Strange };
        if more && fd.is_none() {
            return if is_of_ours(anchor) { Rest::Clean } else { Rest::Unseen };
        }
        let is_memory = fd.is_some_and(release);
        let Some(seen) = bytes.get_mut(..length).filter(|_| is_memory && !more) else { return Rest::Strange };
        if !take_seen(anchor, seen) {
            return Rest::Strange;
        }
    }
    Rest::Strange
}

/// Keeps more from coming into an anchor that is to be closed. Where the kernel does not refuse descriptors alone, it
/// refuses everything. Nobody reads from an anchor of which no connection was made.
fn seal(anchor: i32, refuses: impl FnOnce(i32) -> bool) {
    if !refuses(anchor) {
        let _ = kernel::shutdown(anchor, libc::SHUT_RDWR);
    }
}

/// Whether a client is of our own user, or root.
fn is_of_ours(anchor: i32) -> bool {
    trust::peer_uid(anchor).is_some_and(|uid| trust::OwnUser::default().believes(uid))
}

/// Closes an anchor of which no connection has been made.
pub fn close(anchor: i32) {
    let mut closing = Closing::new();
    closing.add(anchor);
}

/// Many of them, for which there are fewer undertakers.
pub fn close_all(anchors: impl IntoIterator<Item = i32>) {
    let mut closing = Closing::new();
    anchors.into_iter().for_each(|anchor| closing.add(anchor));
}

/// The same for one with a hidden number, which stays hidden for as long as it is looked at: nobody else may get it.
pub fn close_hidden(anchor: i32) {
    let mut closing = Closing::new();
    closing.add_with(anchor, hidden::hidden_remove);
}

/// Many such anchors, whose undertakers are fewer.
pub struct Closing {
    fds: [i32; FDS_MAX],
    count: usize,
    /// Whether any of them is an offence.
    offends: bool,
}

impl Closing {
    /// None yet.
    #[must_use]
    pub const fn new() -> Self {
        Self { fds: [-1; FDS_MAX], count: 0, offends: false }
    }

    /// Closes one, or has it closed when this is dropped.
    pub fn add(&mut self, anchor: i32) {
        self.add_with(anchor, |_| {});
    }

    /// The same; `before_close` is called before it is closed here.
    fn add_with(&mut self, anchor: i32, before_close: impl FnOnce(i32)) {
        seal(anchor, trust::refuse_rights);
        match rest(anchor) {
            Rest::Clean => {
                before_close(anchor);
                let _ = sys::close(anchor);
            }
            found => self.put(anchor, found == Rest::Strange),
        }
    }

    /// Has it closed when this is dropped.
    fn put(&mut self, fd: i32, offends: bool) {
        if self.count == FDS_MAX {
            self.bury();
        }
        self.offends |= offends;
        if let Some(place) = self.fds.get_mut(self.count) {
            *place = fd;
            self.count += 1;
        }
    }

    #[cold]
    fn bury(&mut self) {
        let fds = self.fds.get(..self.count).unwrap_or_default();
        let (burials, most) = if self.offends { (&BURIALS, BURIALS_MAX) } else { (&UNSEEN, UNSEEN_MAX) };
        if burials.fetch_add(1, Relaxed) >= most {
            limits::note_hostile_client();
        }
        if !undertaker::bury(fds) && !process::is_guest_of_parent() {
            limits::note_hostile_client();
            // They stay until the process ends.
            fds.iter().for_each(|fd| hidden::hidden_add(*fd));
        }
        (self.count, self.offends) = (0, false);
    }
}

impl Default for Closing {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for Closing {
    fn drop(&mut self) {
        if self.count != 0 {
            self.bury();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use beeline_testkit::hostile::{Client, Fuse, Lingering};
    use std::io::Write;
    use std::os::fd::{AsRawFd, IntoRawFd, OwnedFd};
    use std::os::unix::net::UnixStream;
    use std::time::{Duration, Instant};

    fn pair() -> (Client, OwnedFd) {
        let (client, server) = UnixStream::pair().unwrap();
        (Client::of(client.into()), server.into())
    }

    #[test]
    fn descriptors_are_found_behind_bells_and_with_urgent_bytes() {
        let (client, server) = pair();
        let server = server.as_raw_fd();
        assert!(!hides_rights(server));
        client.send(&[0xbe; 3], &[]).unwrap();
        assert!(!hides_rights(server), "bells alone");
        client.send(&[0xbe], &[0]).unwrap();
        assert!(hides_rights(server));
        let (client, server) = pair();
        client.send_urgent(0xbe, &[0]).unwrap();
        assert!(hides_rights(server.as_raw_fd()), "an urgent byte");
        let (client, server) = pair();
        client.send(&[0xbe; LEFT_MAX], &[]).unwrap();
        client.send(&[0xbe], &[0]).unwrap();
        assert!(hides_rights(server.as_raw_fd()), "behind more than a look sees");
    }

    #[test]
    fn a_look_takes_nothing_and_one_descriptor_at_most() {
        let (client, server) = pair();
        client.send(b"abc", &[0, 1, 2]).unwrap();
        for _ in 0..2 {
            let seen = peek(server.as_raw_fd(), &mut [0; 8]).unwrap();
            assert!(seen.length == 3 && seen.more);
            let _ = sys::close(seen.fd.unwrap());
        }
    }

    #[test]
    fn an_anchor_with_a_lingering_socket_is_closed_by_another_process() {
        let (client, server) = pair();
        let lingering = Lingering::new(3).unwrap();
        client.send(&[0xbe], &[lingering.socket.as_raw_fd()]).unwrap();
        let null = std::fs::File::open("/dev/null").unwrap();
        beeline_testkit::sys::dup2(null.as_raw_fd(), lingering.socket.as_raw_fd());
        let began = Instant::now();
        close(server.into_raw_fd());
        assert!(began.elapsed() < Duration::from_secs(2), "{:?}", began.elapsed());
        assert!(client.is_sent_away());
    }

    /// A thread that closes all numbers leaves those alone that are hidden; any other it closes, and the app gets it.
    #[test]
    fn an_anchor_is_hidden_for_as_long_as_it_is_looked_at() {
        let is_hidden_mostly = || {
            let (client, server) = pair();
            let lingering = Lingering::new(3).unwrap();
            client.send(&[0xbe], &[lingering.socket.as_raw_fd()]).unwrap();
            let null = std::fs::File::open("/dev/null").unwrap();
            beeline_testkit::sys::dup2(null.as_raw_fd(), lingering.socket.as_raw_fd());
            let anchor = hidden::hide(server.into_raw_fd());
            let looks = [const { AtomicU32::new(0) }; 2];
            let is_over = AtomicU32::new(0);
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    while is_over.load(Relaxed) == 0 {
                        let is_bare = !hidden::is_hidden(anchor);
                        if kernel::status_flags(anchor).is_ok() {
                            looks[usize::from(is_bare)].fetch_add(1, Relaxed);
                        }
                    }
                });
                while looks[0].load(Relaxed) == 0 {
                    std::thread::yield_now();
                }
                close_hidden(anchor);
                is_over.store(1, Relaxed);
            });
            let [guarded, bare] = looks.map(AtomicU32::into_inner);
            if bare <= guarded / 4 { Ok(()) } else { Err((guarded, bare)) }
        };
        // Whoever closes it may be held up in between.
        let tries: Vec<_> = (0..3).map(|_| is_hidden_mostly()).collect();
        assert!(tries.iter().any(Result::is_ok), "{tries:?}");
    }

    #[test]
    fn an_anchor_with_a_file_whose_every_close_takes_long_holds_up_nobody() {
        let Some(mut fuse) = Fuse::new(Duration::from_secs(5)) else { return };
        let (client, server) = pair();
        client.send(&[0xbe], &[fuse.file().unwrap().as_raw_fd()]).unwrap();
        fuse.is_slow_from_now_on();
        let began = Instant::now();
        close(server.into_raw_fd());
        assert!(client.is_sent_away());
        // So is what else comes: the file is still here, under a number that nobody closes.
        let (client, server) = pair();
        let socket = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        client.send(&[0xbe], &[socket.as_raw_fd()]).unwrap();
        close(server.into_raw_fd());
        assert!(client.is_sent_away());
        assert!(began.elapsed() < Duration::from_secs(3), "{:?}", began.elapsed());
    }

    #[test]
    fn what_there_is_no_number_to_look_at_is_no_offence() {
        if trust::euid() != 0 {
            return;
        }
        let as_stranger = || {
            // SAFETY: plain numbers; the raw call changes this thread alone, which ends soon.
            assert_eq!(unsafe { libc::syscall(libc::SYS_setresuid, 54_321, 54_321, 54_321) }, 0);
            pair()
        };
        let (client, server) = std::thread::spawn(as_stranger).join().unwrap();
        let memory = beeline_shm::memfd::create(c"test", 4096).unwrap();
        client.send(&[7; 64], &[memory.get()]).unwrap();
        let server = server.into_raw_fd();
        // SAFETY: the child makes plain calls only, and ends without running anything of this process's.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let before = BURIALS.load(Relaxed);
            let none = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
            // SAFETY: a live limit.
            unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const none) };
            let found = rest(server);
            close(server);
            let holds = found == Rest::Unseen && BURIALS.load(Relaxed) == before && UNSEEN.load(Relaxed) == 1;
            // SAFETY: ends this process.
            unsafe { libc::_exit(i32::from(!holds)) };
        }
        let mut status = 0;
        // SAFETY: room for the status.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert_eq!(status, 0);
        let _ = sys::close(server);
    }

    #[test]
    fn where_descriptors_cannot_be_refused_nothing_comes_into_an_anchor_that_is_closed() {
        let (client, server) = pair();
        client.send(&[0xbe], &[0]).unwrap();
        seal(server.as_raw_fd(), |_| true);
        assert!(client.send(&[0xbe], &[0]).is_ok());
        seal(server.as_raw_fd(), |_| false);
        assert!(client.send(&[0xbe], &[0]).is_err());
        assert!(hides_rights(server.as_raw_fd()), "what lies there is seen as ever");
    }

    #[test]
    fn a_hello_that_is_not_taken_is_no_offence() {
        let (mut client, server) = UnixStream::pair().unwrap();
        let memory = beeline_shm::memfd::create(c"test", 4096).unwrap();
        client.write_all(&[0xbe]).unwrap();
        Client::of(client.try_clone().unwrap().into()).send(&[7; 64], &[memory.get()]).unwrap();
        assert_eq!(rest(server.as_raw_fd()), Rest::Clean);
        assert_eq!(count(server.as_raw_fd()), 0);
    }
}
