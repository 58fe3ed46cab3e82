//! What the models run on: a lane's memory, the kernel under its anchor, and the holders of its ends.

use std::cell::Cell;
use std::panic::resume_unwind;

use beeline_lane::{BellFault, Bells, Cursor, End, RxState, Sink, Source, Storage, TxState, WAKE_ORDER, Wake, flags};
use loom::cell::UnsafeCell;
use loom::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use loom::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, fence};
use loom::sync::{Arc, Condvar, Mutex};

/// Fences go with each eighth of a ring: the smallest ring that has an unfenced read is 16 bytes.
pub const RING: usize = 16;
/// Bells that fit into a socket at all.
pub const BELLS_MAX: u32 = 14;

/// Flags are the lower bits of a front's status.
const FLAG_BITS: u32 = 16;

/// What the processor counts, the same for all threads. loom does not know of it: it orders nothing.
static TICKS: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);

/// A byte of a ring. loom reports accesses that the protocol fails to order.
pub struct Byte(UnsafeCell<u8>);

// SAFETY: loom checks at run time that no two accesses race.
unsafe impl Sync for Byte {}
// SAFETY: as above.
unsafe impl Send for Byte {}

#[derive(Default)]
pub struct Front {
    pub cursor: AtomicU64,
    pub head: AtomicU32,
    /// Echo and flags, as on real memory: who stores one of them without the lock takes the other back.
    pub status: AtomicU64,
    pub stamp: AtomicU64,
    pub read_wake: AtomicU32,
    pub write_wake: AtomicU32,
    pub turn: AtomicU32,
    pub sleep: AtomicU64,
}

#[derive(Default)]
pub struct KernelEnd {
    /// Bells queued for this end.
    pub queued: u32,
    /// This end's send buffer is the small one.
    pub small: bool,
    /// This end is closed.
    pub closed: bool,
    /// This end has shut down writing.
    pub half_closed: bool,
    /// This end has shut down reading: it takes no bells.
    pub reads_no_more: bool,
    /// An edge-triggered set that watches this end has an event to look at.
    pub edge: bool,
    /// Bells this end ever sent.
    pub sent: u32,
}

#[derive(Default)]
pub struct Kernel {
    pub ends: [KernelEnd; 2],
    /// All that others do is done ([`Holder::nap`]).
    settled: bool,
}

/// One side: the state shared by its holders. The lock tells whether the last holder died with it.
#[derive(Default)]
pub struct Side {
    pub tx: TxState,
    pub rx: RxState,
    pub tx_lock: Mutex<bool>,
    pub rx_lock: Mutex<bool>,
    pub arm_lock: Mutex<bool>,
}

pub struct Lane {
    pub fronts: [Front; 2],
    pub rings: [Vec<Byte>; 2],
    pub sides: [Side; 2],
    pub kernel: Mutex<Kernel>,
    pub changed: Condvar,
    /// Who hears of bells on several lanes.
    pub set: Option<Arc<Set>>,
    /// A call uses the server's end by itself.
    pub visited: AtomicBool,
}

/// Where a thread sleeps on several lanes.
pub struct Set {
    /// Whether it was woken by another thread.
    woken: Mutex<bool>,
    changed: Condvar,
}

impl Set {
    pub fn new() -> Arc<Set> {
        Arc::new(Set { woken: Mutex::new(false), changed: Condvar::new() })
    }

    pub fn wake(&self) {
        *self.woken.lock().unwrap() = true;
        self.changed.notify_all();
    }

    fn told(&self) {
        let _woken = self.woken.lock().unwrap();
        self.changed.notify_all();
    }

    /// `epoll_wait(2)`: sleeps until there is a bell for one of these, or somebody wakes it. Which of them it tells of.
    pub fn sleep_until_rung(&self, ends: &[Holder]) -> Vec<bool> {
        self.sleep_until(ends, Holder::has_bells)
    }

    /// The same by edges: of a bell it tells once.
    pub fn sleep_until_told(&self, ends: &[Holder]) -> Vec<bool> {
        self.sleep_until(ends, Holder::takes_edge)
    }

    fn sleep_until(&self, ends: &[Holder], tells: impl Fn(&Holder) -> bool) -> Vec<bool> {
        let mut woken = self.woken.lock().unwrap();
        loop {
            let told: Vec<bool> = ends.iter().map(&tells).collect();
            if std::mem::take(&mut *woken) || told.contains(&true) {
                return told;
            }
            woken = self.changed.wait(woken).unwrap();
        }
    }
}

impl Lane {
    pub fn new() -> Arc<Lane> {
        Self::in_some_set(None)
    }

    pub fn in_set(set: &Arc<Set>) -> Arc<Lane> {
        Self::in_some_set(Some(set.clone()))
    }

    fn in_some_set(set: Option<Arc<Set>>) -> Arc<Lane> {
        let ring = || (0..RING).map(|_| Byte(UnsafeCell::new(0xEE))).collect();
        Arc::new(Lane {
            fronts: Default::default(),
            rings: [ring(), ring()],
            sides: Default::default(),
            kernel: Mutex::new(Kernel::default()),
            changed: Condvar::new(),
            set,
            visited: AtomicBool::new(false),
        })
    }
}

/// Unwinds its thread after a number of steps. `None` never does.
#[derive(Default)]
pub struct Fuse(pub Cell<Option<u32>>);

pub struct Died;

impl Fuse {
    fn burn(&self) {
        match self.0.get() {
            Some(0) => resume_unwind(Box::new(Died)),
            Some(steps) => self.0.set(Some(steps - 1)),
            None => {}
        }
    }
}

/// One holder of one end.
pub struct Holder {
    pub lane: Arc<Lane>,
    pub end: End,
    pub fuse: Fuse,
    /// Nobody else sleeps on this end: it takes its bells out before it arms.
    pub alone: bool,
    /// The last sleep that its process has rung for.
    pub rung: Option<Arc<AtomicU64>>,
    /// Looks at a cursor.
    pub looks: Cell<u32>,
}

impl Storage for &Holder {
    fn is_closed(&self, end: End) -> bool {
        self.flags(end) & flags::CLOSED != 0
    }
    fn is_over(&self, end: End) -> bool {
        self.flags(end) & (flags::CLOSED | flags::FIN) != 0
    }
    fn reads_no_more(&self, end: End) -> bool {
        self.flags(end) & flags::SHUT_RD != 0
    }
    fn is_shut(&self, end: End) -> bool {
        self.flags(end) & flags::SHUT_BOTH == flags::SHUT_BOTH
    }
    fn ring_bytes(&self) -> u32 {
        RING as u32
    }
    fn cursor(&self, end: End) -> Cursor {
        self.fuse.burn();
        self.looks.set(self.looks.get() + 1);
        let word = self.lane.fronts[end as usize].cursor.load(Acquire);
        Cursor { tail: (word >> 32) as u32, base: word as u32 }
    }
    fn set_cursor(&self, end: End, cursor: Cursor) {
        self.fuse.burn();
        let word = u64::from(cursor.tail) << 32 | u64::from(cursor.base);
        self.lane.fronts[end as usize].cursor.store(word, Release);
        // A holder may die between publishing and noting it.
        self.fuse.burn();
    }
    fn head(&self, end: End) -> u32 {
        self.lane.fronts[end as usize].head.load(Acquire)
    }
    fn set_head(&self, end: End, head: u32) {
        self.fuse.burn();
        self.lane.fronts[end as usize].head.store(head, Release);
    }
    fn echo(&self, end: End) -> (u64, bool) {
        (self.lane.fronts[end as usize].status.load(Acquire) >> FLAG_BITS, false)
    }
    fn set_echo(&self, end: End, read: u64) {
        self.set_status(end, |status| read << FLAG_BITS | status & ((1 << FLAG_BITS) - 1));
    }
    // Urgent bytes are not modelled: their words are published before the cursor that covers them, as bytes are.
    fn urgent(&self, _: End) -> u64 {
        0
    }
    fn set_urgent(&self, _: End, _: u64) {}
    fn passed(&self, _: End) -> u64 {
        0
    }
    fn set_passed(&self, _: End, _: u64) {}
    fn wake(&self, end: End, wake: Wake) -> u32 {
        self.fuse.burn();
        self.word(end, wake).load(Relaxed)
    }
    fn set_wake(&self, end: End, wake: Wake, value: u32) {
        self.fuse.burn();
        // A store, on real memory. loom does not know that a compare-and-swap is followed by nothing else
        // than what it was tried before (it lets the peer's clearing of the old value come after the new
        // one), so the model swaps, which gives it the order that C11 guarantees.
        let _ = self.word(end, wake).swap(value, Relaxed);
    }
    fn clear_wake(&self, end: End, wake: Wake, seen: u32) {
        self.fuse.burn();
        let _ = self.word(end, wake).compare_exchange(seen, seen & !1, Relaxed, Relaxed);
    }
    fn copy_in(&self, end: End, position: u32, mut source: Source<'_>) {
        self.fuse.burn();
        let mut position = position as usize;
        while !source.is_empty() {
            let mut byte = [0];
            source.drain_into(&mut byte);
            // SAFETY: the pointer is valid for the closure, and loom checks for races.
            self.lane.rings[end as usize][position % RING].0.with_mut(|cell| unsafe { *cell = byte[0] });
            position += 1;
        }
    }
    fn copy_in_around(&self, end: End, position: u32, source: Source<'_>) {
        self.copy_in(end, position, source);
    }
    fn copy_out(&self, end: End, position: u32, mut sink: Sink<'_>) {
        self.fuse.burn();
        let mut position = position as usize;
        while !sink.is_empty() {
            // SAFETY: the pointer is valid for the closure, and loom checks for races.
            sink.fill_from(&[self.lane.rings[end as usize][position % RING].0.with(|cell| unsafe { *cell })]);
            position += 1;
        }
    }
    fn discard_ring(&self, _end: End) {
        unreachable!("no model gives memory back");
    }
    fn set_stamp(&self, end: End) {
        self.lane.fronts[end as usize].stamp.store(TICKS.fetch_add(1, SeqCst) + 1, Relaxed);
    }
    fn ask_order(&self, end: End) {
        self.word(end, Wake::Read).fetch_or(WAKE_ORDER, Relaxed);
    }
    fn awaits_turn(&self, end: End) -> bool {
        self.lane.fronts[end as usize].turn.load(Relaxed) != 0
    }
    fn set_awaits_turn(&self, end: End, awaits: bool) {
        self.lane.fronts[end as usize].turn.store(u32::from(awaits), Relaxed);
    }
    fn end_turn(&self, end: End) {
        self.lane.fronts[end as usize].turn.store(0, Relaxed);
        self.change(|_, _| {});
    }
    fn sleep(&self, end: End) -> u64 {
        self.lane.fronts[end as usize].sleep.load(Relaxed)
    }
    fn set_sleep(&self, end: End, sleep: u64) {
        self.lane.fronts[end as usize].sleep.store(sleep, Relaxed);
    }
    fn full_fence(&self) {
        fence(SeqCst);
    }
}

impl Bells for Holder {
    fn ring(&self) -> Result<(), BellFault> {
        self.fuse.burn();
        self.change(|me, peer| match peer.closed {
            true => Err(BellFault::Gone),
            false => {
                send_bell(me, peer);
                Ok(())
            }
        })
    }
    fn ring_for(&self, sleep: u64) -> Result<bool, BellFault> {
        let Some(rung) = &self.rung else { return self.ring().map(|()| true) };
        if rung.load(Acquire) == sleep {
            return Ok(false);
        }
        self.ring()?;
        rung.store(sleep, Release);
        Ok(true)
    }
    fn queued(&self) -> Result<u32, BellFault> {
        self.fuse.burn();
        self.change(|me, peer| if peer.closed { Err(BellFault::Gone) } else { Ok(me.queued) })
    }
    fn drain(&self, count: u32) -> Result<(), BellFault> {
        self.fuse.burn();
        self.change(|me, _| me.queued -= count.min(me.queued));
        Ok(())
    }
    fn drain_all(&self) -> Result<u32, BellFault> {
        self.fuse.burn();
        Ok(self.change(|me, _| std::mem::take(&mut me.queued)))
    }
    fn plug(&self) {
        self.fuse.burn();
        self.change(|me, _| me.small = true);
    }
    fn plugged(&self) -> bool {
        self.fuse.burn();
        self.change(|me, peer| me.small && peer.queued > 3)
    }
    fn unplug(&self) {
        self.fuse.burn();
        self.change(|me, _| me.small = false);
    }
}

pub fn send_bell(me: &mut KernelEnd, peer: &mut KernelEnd) {
    me.sent += 1;
    if !peer.reads_no_more {
        peer.queued = (peer.queued + 1).min(BELLS_MAX);
        peer.edge = true;
    }
}

impl Holder {
    pub fn new(lane: &Arc<Lane>, end: End) -> Holder {
        let (fuse, looks) = Default::default();
        Holder { lane: lane.clone(), end, fuse, alone: false, rung: None, looks }
    }

    pub fn mortal(lane: &Arc<Lane>, end: End, steps: u32) -> Holder {
        Holder { fuse: Fuse(Cell::new(Some(steps))), ..Holder::new(lane, end) }
    }

    pub fn alone(lane: &Arc<Lane>, end: End) -> Holder {
        Holder { alone: true, ..Holder::new(lane, end) }
    }

    pub fn of_process(lane: &Arc<Lane>, end: End, rung: &Arc<AtomicU64>) -> Holder {
        Holder { rung: Some(rung.clone()), ..Holder::new(lane, end) }
    }

    pub fn has_bells(&self) -> bool {
        self.lane.kernel.lock().unwrap().ends[self.end as usize].queued != 0
    }

    /// What a set that watches this end by edges is told.
    pub fn takes_edge(&self) -> bool {
        let me = &mut self.lane.kernel.lock().unwrap().ends[self.end as usize];
        std::mem::take(&mut me.edge) && me.queued != 0
    }

    pub fn word(&self, end: End, wake: Wake) -> &AtomicU32 {
        let front = &self.lane.fronts[end as usize];
        match wake {
            Wake::Read => &front.read_wake,
            Wake::Write => &front.write_wake,
        }
    }

    /// What `end` says about itself.
    pub fn flags(&self, end: End) -> u32 {
        (self.lane.fronts[end as usize].status.load(Acquire) & ((1 << FLAG_BITS) - 1)) as u32
    }

    /// Says something about its own end. The tx lock is held.
    pub fn say(&self, what: u32) {
        self.set_status(self.end, |status| status | u64::from(what));
    }

    /// Takes back what it has said.
    pub fn unsay(&self, what: u32) {
        self.set_status(self.end, |status| status & !u64::from(what));
    }

    fn set_status(&self, end: End, change: impl FnOnce(u64) -> u64) {
        let status = &self.lane.fronts[end as usize].status;
        status.store(change(status.load(Relaxed)), Release);
    }

    /// What the peer's last stamp says.
    pub fn peer_stamp(&self) -> u64 {
        self.lane.fronts[self.end.peer() as usize].stamp.load(Relaxed)
    }

    pub fn side(&self) -> &Side {
        &self.lane.sides[self.end as usize]
    }

    /// One system call that changes the kernel's state.
    pub fn change<T>(&self, act: impl FnOnce(&mut KernelEnd, &mut KernelEnd) -> T) -> T {
        let mut kernel = self.lane.kernel.lock().unwrap();
        let [client, server] = &mut kernel.ends;
        let (me, peer) = if self.end == End::Client { (client, server) } else { (server, client) };
        let result = act(me, peer);
        self.lane.changed.notify_all();
        drop(kernel);
        self.lane.set.iter().for_each(|set| set.told());
        result
    }

    /// `poll(2)`: sleeps until `level` holds of us and the peer.
    pub fn sleep_until(&self, mut level: impl FnMut(&mut KernelEnd, &KernelEnd) -> bool) {
        let mut kernel = self.lane.kernel.lock().unwrap();
        loop {
            let [client, server] = &mut kernel.ends;
            let (me, peer) = if self.end == End::Client { (client, server) } else { (server, client) };
            if level(me, peer) {
                return;
            }
            kernel = self.lane.changed.wait(kernel).unwrap();
        }
    }

    pub fn sleep_readable(&self) {
        self.sleep_until(|me, peer| me.queued > 0 || peer.closed || peer.half_closed);
    }

    pub fn sleep_edge(&self) {
        self.sleep_until(|me, peer| std::mem::take(&mut me.edge) && (me.queued > 0 || peer.closed || peer.half_closed));
    }

    pub fn sleep_writable(&self) {
        self.sleep_until(|me, peer| !me.small || peer.queued <= 3 || peer.closed);
    }

    /// A sleep for a moment, as whoever looks again every millisecond makes it. It ends when the others have done all
    /// that they do ([`Holder::settle`]): what a shorter one would find was to be found by the look before it, too, and
    /// two who only look in turn are a model without an end.
    pub fn nap(&self) {
        let mut kernel = self.lane.kernel.lock().unwrap();
        while !kernel.settled {
            kernel = self.lane.changed.wait(kernel).unwrap();
        }
    }

    /// The others are done: naps end.
    pub fn settle(&self) {
        self.lane.kernel.lock().unwrap().settled = true;
        self.lane.changed.notify_all();
    }

    /// `futex(2)`: sleeps until the reader's turn is over, for ever if need be.
    pub fn sleep_for_turn(&self) {
        let turn = &self.lane.fronts[self.end as usize].turn;
        self.sleep_until(|_, _| turn.load(Relaxed) == 0);
    }

    pub fn peer_is_gone(&self) -> bool {
        self.lane.kernel.lock().unwrap().ends[self.end.peer() as usize].closed
    }
}
