//! Questions and answers: what of them has to do with the kernel. What is decided, and who may, is the [`Desk`]'s.
//!
//! Any thread may take any event ([`super::threads`]). Each event comes once: a carrier is looked at again when what it
//! has said is dealt with, one message at a time, so that no stranger has more than the turn of one message.

mod who;

use std::cell::Cell;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsRawFd, BorrowedFd, IntoRawFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::Context;
use beeline_meeting::agent::host::{self as agent, End, Page, Pair, Prover};
use beeline_wire::agent::{Answer, Besides, QUESTION_BYTES, Question, place_of, plain};
use nix::errno::Errno;
use nix::sys::epoll::{Epoll, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::socket::{SockFlag, accept4};
use nix::sys::timerfd::{ClockId, Expiration, TimerFd, TimerFlags, TimerSetTimeFlags};

use super::care::{Care, Strange};
use super::desk::{Desk, Queried, Say};
use super::entrances::Entrances;
use super::namespaces::Namespaces;
use super::offers::Server;
use super::quotas::Holder;
use super::rules::{OnCut, Rules};
use super::waiting::{ASKED, Asked};
use crate::log::{self, Seldom};

/// How long no carrier is accepted when there is no room for one.
const PAUSE: Duration = Duration::from_millis(20);
/// How long the agent is as programs are when somebody has asked too much of it.
const RUSH_MS: u64 = 1000;

/// What an event is about: a number of epoll.
struct Token;

impl Token {
    /// [`Entrances`] have numbers of their own.
    const TIMER: u64 = 2;
    /// From here on carriers; below lanes, by their numbers.
    const CARRIERS: u64 = 1 << 40;
    const LANES: u64 = 1 << 33;
}

type Descriptor = Arc<Strange>;

/// See the module.
pub struct Serving {
    rules: Rules,
    epoll: Epoll,
    entrances: Entrances,
    page: Arc<OwnedFd>,
    timer: Mutex<(TimerFd, Option<Instant>)>,
    care: Arc<Care>,
    desk: Mutex<Desk<Descriptor, Descriptor>>,
    namespaces: Namespaces,
    /// None where the kernel does not let us.
    prover: Option<Prover>,
    next_carrier: AtomicU64,
    trouble: Seldom,
    /// Whoever had used up a share of the agent's time has it used up until then, in milliseconds since the beginning.
    rush: AtomicU64,
    began: Instant,
}

impl Serving {
    /// An agent that serves a listener. Without a prover it says so to all who ask.
    pub fn new(rules: Rules, epoll: Epoll, listener: OwnedFd, prover: Option<Prover>) -> anyhow::Result<Self> {
        let page = Page::create().context("cannot make the page of offers")?;
        let timer = TimerFd::new(ClockId::CLOCK_MONOTONIC, TimerFlags::TFD_CLOEXEC | TimerFlags::TFD_NONBLOCK)?;
        epoll.add(&timer, EpollEvent::new(EpollFlags::EPOLLIN | EpollFlags::EPOLLONESHOT, Token::TIMER))?;
        let entrances = Entrances::new(&epoll, listener)?;
        let page_file = page.file();
        if !page.is_shut() {
            log::line("programs can leave attributes at the agent's page: CAP_LINUX_IMMUTABLE is missing");
        }
        let desk = Desk::new(page, rules.on_cut == OnCut::Cut, Instant::now());
        Ok(Self {
            rules,
            epoll,
            entrances,
            page: page_file,
            timer: Mutex::new((timer, None)),
            care: Arc::default(),
            desk: Mutex::new(desk),
            namespaces: Namespaces::new().context("cannot open this network namespace")?,
            prover,
            next_carrier: AtomicU64::new(Token::CARRIERS),
            trouble: Seldom::new(),
            rush: AtomicU64::new(0),
            began: Instant::now(),
        })
    }

    fn desk(&self) -> MutexGuard<'_, Desk<Descriptor, Descriptor>> {
        self.desk.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Says to all who read the page that this agent runs, for as long as this thread does.
    pub fn begin_beating(&self) {
        self.desk().begin_beating();
    }

    /// Says it again.
    pub fn beat(&self) {
        self.desk().beat();
    }

    /// Nobody can connect any more.
    pub fn close(&self) {
        self.desk().end();
        self.entrances.close_all(&self.epoll);
    }

    /// Programs may come in at one more listener. What it is called from now on, if it can be served.
    pub fn open_entrance(&self, listener: OwnedFd) -> Option<u64> {
        self.entrances.open(&self.epoll, listener)
    }

    /// They may do so no more.
    pub fn close_entrance(&self, entrance: u64) {
        self.entrances.close(&self.epoll, entrance);
    }

    /// What is known of network namespaces.
    pub fn namespaces(&self) -> &Namespaces {
        &self.namespaces
    }

    /// Waits for an event, and tells which; none when the time is over.
    pub fn wait(&self, timeout: EpollTimeout) -> Option<u64> {
        let mut events = [EpollEvent::empty()];
        match self.epoll.wait(&mut events, timeout) {
            Ok(1) => Some(events[0].data()),
            _ => None,
        }
    }

    /// Somebody has used up a share of the agent's time. For a second the agent comes before nobody: what such a one
    /// costs is the agent's time, and would be taken from programs that have nothing to do with it.
    fn rushed(&self, now: Instant) {
        self.rush.store(self.since_the_beginning(now).saturating_add(RUSH_MS), Relaxed);
    }

    fn since_the_beginning(&self, now: Instant) -> u64 {
        u64::try_from(now.saturating_duration_since(self.began).as_millis()).unwrap_or(u64::MAX)
    }

    /// Sees to this thread's priority.
    fn keep_rank(&self, now: Instant) {
        thread_local!(static IS_ORDINARY: Cell<Option<bool>> = const { Cell::new(None) });
        let ordinary = self.since_the_beginning(now) < self.rush.load(Relaxed);
        if IS_ORDINARY.replace(Some(ordinary)) != Some(ordinary) {
            if ordinary { agent::give_precedence_up() } else { agent::take_precedence() }
        }
    }

    /// Deals with an event, and closes what need not be open any more.
    pub fn deal_with(&self, event: u64) {
        let now = Instant::now();
        self.keep_rank(now);
        match event {
            Token::TIMER => self.time(now),
            entrance if Entrances::are_meant(entrance) => self.accept(entrance, now),
            id if id >= Token::CARRIERS => self.hear_again(id, now),
            id => self.hung_up(u32::try_from(id - Token::LANES).unwrap_or(0), now),
        }
        self.set_timer(event == Token::TIMER);
        self.care.work();
    }

    fn time(&self, now: Instant) {
        {
            let mut timer = self.timer.lock().unwrap_or_else(PoisonError::into_inner);
            let _ = timer.0.wait();
            timer.1 = None;
        }
        let says = self.desk().expire(now);
        self.say_all(says);
    }

    /// The client's end of a lane may have been closed before its client was in place: that was told when nothing
    /// followed from it, and once. So it is told again. Whoever has handed the lane out has ended the watch.
    fn watch_lane(&self, offer: u32) {
        let Some(parcel) = self.desk().parcel_of(offer) else { return };
        let mut watched = EpollEvent::new(EpollFlags::EPOLLONESHOT, Token::LANES + u64::from(offer));
        let _ = agent::borrowed(parcel.fd(), |fd: BorrowedFd<'_>| self.epoll.modify(fd, &mut watched));
    }

    /// The client's end of a lane is closed.
    fn hung_up(&self, offer: u32, now: Instant) {
        let parcel = self.desk().parcel_of(offer);
        let Some(parcel) = parcel else { return };
        let says = self.desk().hung_up(offer, agent::has_taken_leave(parcel.fd()), now);
        self.say_all(says);
    }

    /// Sets the timer, if something is due before it. `rung`: it is to be watched again.
    fn set_timer(&self, rung: bool) {
        let Some(due) = self.desk().deadline() else {
            return if rung {
                self.watch_timer()
            };
        };
        {
            let mut timer = self.timer.lock().unwrap_or_else(PoisonError::into_inner);
            if timer.1.is_none_or(|set| due < set) {
                let left = due.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
                if timer.0.set(Expiration::OneShot(left.into()), TimerSetTimeFlags::empty()).is_ok() {
                    timer.1 = Some(due);
                }
            }
        }
        if rung {
            self.watch_timer();
        }
    }

    /// Has the timer watched again.
    fn watch_timer(&self) {
        let mut event = EpollEvent::new(EpollFlags::EPOLLIN | EpollFlags::EPOLLONESHOT, Token::TIMER);
        let timer = self.timer.lock().unwrap_or_else(PoisonError::into_inner);
        let _ = self.epoll.modify(&timer.0, &mut event);
    }

    /// Takes one carrier, and what it has said already: it mostly has, and who waits for the answer is not kept waiting
    /// for another event. The entrance is watched again before, so whatever hangs over the message holds up no other
    /// carrier.
    fn accept(&self, entrance: u64, now: Instant) {
        let Some(listener) = self.entrances.get(entrance) else { return };
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let came = accept4(listener.as_raw_fd(), flags);
        if matches!(came, Err(Errno::EMFILE | Errno::ENFILE | Errno::ENOMEM | Errno::ENOBUFS)) {
            // It would be told of the same carrier at once again, and again.
            std::thread::sleep(PAUSE);
        }
        self.entrances.watch(&self.epoll, entrance);
        // Whatever hangs below does not keep the entrance, and its namespace, open.
        drop(listener);
        let Ok(fd) = came else { return };
        let Some(holder) = agent::holder_of(fd) else {
            // Not a socket that anybody could have written to.
            return drop(self.care.of(fd, (0, 0)));
        };
        let socket = Arc::new(self.care.of(fd, holder));
        if agent::name_senders(fd).is_err() || agent::send_little(fd).is_err() {
            return;
        }
        let id = self.next_carrier.fetch_add(1, Relaxed);
        if !self.desk().come(id, Arc::clone(&socket), holder, now) {
            self.rushed(now);
            return say(&socket, Answer::Full, Besides::default(), None);
        }
        if self.hear(id, &socket, holder, now) && !self.watch(id, fd, true) {
            self.end(id);
        }
    }

    /// A carrier's next message is wanted. `new`: for the first time.
    fn watch(&self, id: u64, fd: i32, new: bool) -> bool {
        let mut event = EpollEvent::new(EpollFlags::EPOLLIN | EpollFlags::EPOLLONESHOT, id);
        let set = |fd: BorrowedFd<'_>| if new { self.epoll.add(fd, event) } else { self.epoll.modify(fd, &mut event) };
        agent::borrowed(fd, set).is_ok()
    }

    fn end(&self, id: u64) {
        let says = self.desk().gone(id, Instant::now());
        self.say_all(says);
    }

    fn say_all(&self, says: Vec<Say<Descriptor, Descriptor>>) {
        for Say { to, answer, besides, with } in says {
            if let Some(lane) = &with {
                // It goes on in the server's hands, where its end is none of ours.
                let _ = agent::borrowed(lane.fd(), |fd: BorrowedFd<'_>| self.epoll.delete(fd));
            }
            say(&to, answer, besides, with.as_ref().map(|lane| lane.fd()));
        }
    }

    /// Takes one message of a carrier, and watches it for the next.
    fn hear_again(&self, id: u64, now: Instant) {
        let known = self.desk().carrier(id);
        let Some((carrier, holder)) = known else { return };
        if self.hear(id, &carrier, holder, now) {
            self.watch(id, carrier.fd(), false);
        }
    }

    /// Takes one message of a carrier. Whether the next one is wanted.
    fn hear(&self, id: u64, carrier: &Strange, holder: Holder, now: Instant) -> bool {
        if self.care.is_clogged(holder) {
            // It is left as it is, and ends in its time.
            say(carrier, Answer::Full, Besides::default(), None);
            return false;
        }
        if agent::is_unread(carrier.fd()) {
            // What lies there is the agent's memory, for as long as nobody reads it: there is one answer of it.
            if !self.desk().seldom_leaves_unread(holder, now) {
                self.rushed(now);
            }
            self.end(id);
            return false;
        }
        let mut bytes = [0; QUESTION_BYTES + 1];
        let came = agent::receive(carrier.fd(), &mut bytes, |fd| drop(self.care.of(fd, holder)));
        match came {
            Ok(came) if came.length != 0 => {
                let sent = came.descriptor.map(|fd| self.care.of(fd, holder));
                let is_its_own = agent::is_its_own(carrier.fd(), came.sender);
                let question = match Question::decode(&bytes[..came.length.min(bytes.len())]) {
                    Ok(question) if !came.strange && sent.is_none() && is_its_own => question,
                    Ok(_) => return self.refuse(id, carrier, Answer::Refused),
                    Err(answer) => return self.refuse(id, carrier, answer),
                };
                let (goes_on, may_speak) = {
                    let mut desk = self.desk();
                    (desk.goes_on(id), desk.may_speak(holder, now))
                };
                if !may_speak {
                    self.rushed(now);
                }
                if !goes_on || !may_speak {
                    return self.refuse(id, carrier, Answer::Full);
                }
                match self.take(id, carrier, holder, question, now) {
                    Ok(()) => true,
                    Err(answer) => self.refuse(id, carrier, answer),
                }
            }
            Err(agent::Errno(libc::EAGAIN | libc::EINTR)) => true,
            _ => {
                self.end(id);
                false
            }
        }
    }

    /// Ends a carrier that breaks the rules, of which nothing more is wanted.
    fn refuse(&self, id: u64, carrier: &Strange, answer: Answer) -> bool {
        say(carrier, answer, Besides::default(), None);
        self.end(id);
        false
    }

    /// Deals with a question. If it is one that nobody asks who keeps the rules, the answer that ends the carrier.
    fn take(&self, id: u64, carrier: &Strange, holder: Holder, question: Question, now: Instant) -> Result<(), Answer> {
        match question {
            Question::Query { destination } => {
                let answer = self.query(id, carrier, holder, plain(destination), now);
                if let Err(answer) = answer {
                    say(carrier, answer, Besides::default(), None);
                }
            }
            Question::Confirm { socket, local, remote } => {
                let may = self.desk().may_confirm(id, plain(remote), now);
                if may == Err(Answer::Full) {
                    self.rushed(now);
                }
                let offer = may?;
                let (local, remote) = (plain(local), plain(remote));
                let pair = self.pair(carrier, holder, socket, End::Client, (local, remote))?;
                let groups = self.groups_at(carrier, holder, local.ip(), now).ok_or(Answer::Full)?;
                let says = self.desk().confirmed(id, pair, groups, now);
                self.say_all(says);
                self.watch_lane(offer);
            }
            Question::Ask { socket, local, remote } => {
                let (local, remote) = (plain(local), plain(remote));
                let place = place_of(holder.1, local.port());
                if !self.desk().may_ask(holder, place, now) {
                    self.rushed(now);
                    say(carrier, Answer::Full, Besides::default(), None);
                    return Ok(());
                }
                let Some(pair) = self.pair(carrier, holder, socket, End::Server, (local, remote))? else {
                    say(carrier, Answer::Unproved, Besides::default(), None);
                    return Ok(());
                };
                // Where that is not known its client had better go on at once.
                let groups = self.groups_at(carrier, holder, local.ip(), now).unwrap_or(0);
                let server = Server { holder, groups };
                let is_own = self.has(carrier, holder, local.ip(), now).unwrap_or(false);
                let asked =
                    Asked { carrier: id, server, at: local, is_own, place, since: now, patience: ASKED, newest: 0 };
                let says = self.desk().asked(pair, asked, now);
                self.say_all(says);
            }
            Question::Announce { local } => {
                if self.desk().may_announce(holder, now) {
                    self.announce(carrier, holder, plain(local), now);
                }
            }
            Question::Hail => say(carrier, Answer::Done, Besides::default(), None),
            Question::Page => self.send_page(carrier, holder, now),
        }
        Ok(())
    }

    /// Which connection a socket of the carrier's process is an end of, by the kernel's word. An error if it cannot be
    /// asked now.
    fn pair(
        &self,
        carrier: &Strange,
        holder: Holder,
        socket: u32,
        end: End,
        (local, remote): (SocketAddr, SocketAddr),
    ) -> Result<Option<Pair>, Answer> {
        let Some(prover) = &self.prover else { return Ok(None) };
        let section = self.care.enter(holder).ok_or(Answer::Full)?;
        let taken = match agent::taken_from(carrier.fd(), socket) {
            Ok(fd) => self.care.of(fd, holder),
            Err(errno) => {
                if matches!(errno.0, libc::EPERM | libc::ENOPROTOOPT | libc::ENOSYS | libc::EMFILE) {
                    let error = std::io::Error::from_raw_os_error(errno.0);
                    self.trouble.line(format_args!("cannot take a socket from its process: {error}"));
                }
                return Ok(None);
            }
        };
        let prove = || prover.pair(taken.fd(), end, local, remote);
        let pair = self.namespaces.within(carrier.fd(), prove).flatten();
        taken.close_now(&section);
        Ok(pair)
    }

    /// Only to those who may meet somebody: it tells when connections begin.
    fn send_page(&self, carrier: &Strange, holder: Holder, now: Instant) {
        let (answer, page) = match self.groups_anywhere(carrier, holder, now) {
            None => (Answer::Full, None),
            Some(0) => (Answer::Refused, None),
            Some(_) => (Answer::Page, Some(self.page.as_raw_fd())),
        };
        say(carrier, answer, Besides::default(), page);
    }

    // ---- clients

    fn query(
        &self,
        id: u64,
        carrier: &Strange,
        holder: Holder,
        destination: SocketAddr,
        now: Instant,
    ) -> Result<(), Answer> {
        if self.prover.is_none() {
            return Err(Answer::Unproved);
        }
        let groups = self.groups_anywhere(carrier, holder, now).ok_or(Answer::Full)?;
        let queried = self.desk().query(id, destination, groups, is_private(destination.ip()), now);
        let offer = match queried {
            Queried::No(answer) => return Err(answer),
            Queried::Probe => return Err(Answer::Probe),
            Queried::Likely(offer) => offer,
        };
        // Their names are predictable: where others are, they could be taken.
        let made = self.namespaces.apart(agent::pair).unwrap_or(Err(agent::Errno(libc::EPERM)));
        let Ok((theirs, parcel)) = made.inspect_err(|errno| {
            let error = std::io::Error::from_raw_os_error(errno.0);
            self.trouble.line(format_args!("cannot make the ends of a lane: {error}"));
        }) else {
            let says = self.desk().forget(offer, now);
            self.say_all(says);
            return Err(Answer::Full);
        };
        let parcel = Arc::new(self.care.of(parcel.into_raw_fd(), holder));
        let watched = EpollEvent::new(EpollFlags::EPOLLONESHOT, Token::LANES + u64::from(offer));
        let _ = agent::borrowed(parcel.fd(), |fd: BorrowedFd<'_>| self.epoll.add(fd, watched));
        if !self.desk().offered(id, offer, parcel, now) {
            return Err(Answer::Full);
        }
        say(carrier, Answer::Likely, self.besides(), Some(theirs.as_raw_fd()));
        Ok(())
    }

    fn besides(&self) -> Besides {
        Besides { cuts: self.rules.on_cut == OnCut::Cut, own_user: false }
    }
}

fn say(carrier: &Strange, answer: Answer, besides: Besides, with: Option<i32>) {
    let _ = agent::answer(carrier.fd(), &answer.encode(besides), with);
}

/// Whether an address is one that hosts give to their containers and services: only there a number is worth its while.
fn is_private(ip: IpAddr) -> bool {
    match ip {
        // With what RFC 6598 sets aside.
        IpAddr::V4(v4) => v4.is_private() || v4.octets()[0] == 100 && v4.octets()[1] & 0xc0 == 64,
        IpAddr::V6(v6) => v6.is_unique_local(),
    }
}
