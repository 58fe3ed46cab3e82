//! Urgent bytes between two ends that behave, and what a lying peer can do with the words about them.
#![allow(clippy::unwrap_used, clippy::indexing_slicing)]

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::Ordering::Relaxed;

use beeline_lane::{BellFault, Bells, Cursor, End, LaneMemory, Reader, RxState, Sink, Source, TxState, Writer};

/// Bells that nobody needs.
struct Silent;

impl Bells for Silent {
    fn ring(&self) -> Result<(), BellFault> {
        Ok(())
    }
    fn queued(&self) -> Result<u32, BellFault> {
        Ok(0)
    }
    fn drain(&self, _: u32) -> Result<(), BellFault> {
        Ok(())
    }
    fn plug(&self) {}
    fn plugged(&self) -> bool {
        false
    }
    fn unplug(&self) {}
}

struct Ends {
    lane: LaneMemory,
    states: [(TxState, RxState); 2],
}

impl Ends {
    fn new() -> Self {
        let (lane, _) = LaneMemory::create(1 << 16).unwrap();
        Self { lane, states: Default::default() }
    }

    fn writer(&self) -> Writer<'_, LaneMemory> {
        Writer::new(self.lane, End::Client, &self.states[0].0, &self.states[0].1)
    }

    fn reader(&self) -> Reader<'_, LaneMemory> {
        Reader::new(self.lane, End::Server, &self.states[1].1, &self.states[1].0)
    }

    fn send(&self, data: &[u8]) {
        assert_eq!(self.writer().write(Source::from(data), &Silent), Ok(data.len()));
    }

    fn send_urgent(&self, data: &[u8]) {
        assert_eq!(self.writer().write_urgent(Source::from(data), &Silent, || {}), Ok(data.len()));
    }

    fn read(&self) -> Vec<u8> {
        let mut bytes = [0; 64];
        let got = self.reader().read(Sink::from(&mut bytes[..]), &Silent).unwrap();
        bytes[..got].to_vec()
    }

    fn take(&self) -> u8 {
        self.take_if_there().unwrap()
    }

    fn take_if_there(&self) -> Option<u8> {
        let mut byte = [0];
        self.reader().take_urgent(false, &mut byte).unwrap().map(|_| byte[0])
    }

    /// A holder dies between mark and byte.
    fn die_with_a_mark(&self, data: &[u8]) {
        let send = || self.writer().write_urgent(Source::from(data), &Silent, || resume_unwind(Box::new("killed")));
        assert!(catch_unwind(AssertUnwindSafe(send)).is_err());
    }

    /// The same, and the next one goes on.
    fn die_before_the_byte(&self, data: &[u8]) {
        self.die_with_a_mark(data);
        self.writer().recover().unwrap();
    }

    fn pass_all(&self) {
        while self.reader().pass(&Silent).unwrap() {}
    }
}

/// Who rings dies.
struct Deadly;

impl Bells for Deadly {
    fn ring(&self) -> Result<(), BellFault> {
        resume_unwind(Box::new("killed"))
    }
    fn queued(&self) -> Result<u32, BellFault> {
        Ok(0)
    }
    fn drain(&self, _: u32) -> Result<(), BellFault> {
        Ok(())
    }
    fn plug(&self) {}
    fn plugged(&self) -> bool {
        false
    }
    fn unplug(&self) {}
}

#[test]
fn a_read_ends_at_the_mark_and_goes_on_after_it() {
    let ends = Ends::new();
    ends.send(b"before");
    ends.send_urgent(b"x!");
    ends.send(b"after");
    assert_eq!(ends.read(), b"beforex");
    assert_eq!(ends.read(), b"");
    assert_eq!(ends.take(), b'!');
    assert_eq!(ends.reader().pass(&Silent), Ok(true));
    assert_eq!(ends.read(), b"after");
    assert_eq!(ends.reader().pass(&Silent), Ok(false));
}

#[test]
fn a_later_mark_makes_the_byte_at_the_old_one_pass() {
    let ends = Ends::new();
    for byte in [b"1", b"2", b"3"] {
        ends.send_urgent(byte);
    }
    let view = ends.reader().view();
    assert_eq!((view.unread, view.mark.unwrap().distance), (1, 0));
    assert_eq!(ends.take(), b'3');
    ends.send(b"rest");
    while ends.reader().pass(&Silent).unwrap() {}
    assert_eq!(ends.read(), b"rest");
}

#[test]
fn an_old_mark_that_the_reader_does_not_stand_at_is_an_ordinary_byte() {
    let ends = Ends::new();
    ends.send_urgent(b"a1");
    ends.send_urgent(b"b2");
    assert_eq!(ends.read(), b"a1b");
    assert_eq!(ends.take(), b'2');
}

#[test]
fn becoming_inline_brings_no_byte_back_that_was_passed_over() {
    let ends = Ends::new();
    ends.send_urgent(b"1");
    ends.send_urgent(b"ab2");
    ends.reader().set_inline(true, &Silent).unwrap();
    assert_eq!(ends.read(), b"ab");
    assert_eq!(ends.reader().pass(&Silent), Ok(true));
    assert_eq!(ends.read(), b"2");
}

#[test]
fn ceasing_to_be_inline_takes_no_byte_away_that_was_kept() {
    let ends = Ends::new();
    ends.reader().set_inline(true, &Silent).unwrap();
    ends.send_urgent(b"1");
    ends.send_urgent(b"ab2");
    ends.reader().set_inline(false, &Silent).unwrap();
    ends.send_urgent(b"3");
    assert_eq!(ends.read(), b"1ab2");
    assert_eq!(ends.take(), b'3');
}

#[test]
fn marks_hold_where_counts_wrap() {
    let begin = (1u64 << 32) - 3;
    let mut ends = Ends::new();
    ends.states[0].0 = TxState::starting_at(begin);
    ends.states[1].1 = RxState::starting_at(begin);
    ends.lane.set_head(End::Server, begin as u32);
    ends.lane.set_cursor(End::Client, Cursor { tail: begin as u32, base: begin as u32 });
    for round in 0..8u8 {
        ends.send_urgent(&[b'a', b'b', round]);
        // The byte before, taken out of turn, at which the reader stands.
        assert_eq!(ends.reader().pass(&Silent), Ok(round != 0));
        assert_eq!(ends.read(), b"ab");
        assert_eq!(ends.take(), round);
    }
}

#[test]
fn no_mark_that_a_peer_invents_reaches_beyond_its_bytes() {
    let ends = Ends::new();
    ends.send_urgent(b"abc");
    for word in [u64::MAX, 1 << 32, 7 << 32 | 0xFFFF_FFFF, 9 << 32 | 1000, 0] {
        for passed in [0, u64::MAX, 3, 0xFFFF_FFFF, 4 << 32 | 0xFFFF] {
            ends.lane.set_urgent(End::Client, word);
            ends.lane.set_passed(End::Client, passed);
            let view = ends.reader().view();
            assert!(view.unread <= 3, "{view:?}");
            assert!(ends.reader().hole() <= 3);
            let mut bytes = [0; 64];
            assert!(ends.reader().peek(0, Sink::from(&mut bytes[..])).unwrap() <= 3);
            ends.reader().take_urgent(true, &mut [0]).unwrap();
        }
    }
    ends.lane.set_urgent(End::Client, 99 << 32);
    ends.lane.set_passed(End::Client, 2);
    while ends.reader().pass(&Silent).unwrap() {}
    assert!(ends.read().len() <= 3);
}

#[test]
fn a_mark_without_its_byte_goes_when_its_writer_died() {
    let ends = Ends::new();
    ends.send(b"ab");
    let at = u64::from(ends.states[0].0.tail());
    ends.lane.set_urgent(End::Client, 1 << 32 | at);
    ends.lane.set_flags(End::Client, beeline_lane::flags::URGENT);
    ends.writer().recover().unwrap();
    ends.send(b"cd");
    assert_eq!(ends.read(), b"abcd");
}

#[test]
fn what_is_sent_anew_elsewhere_is_urgent_where_it_was() {
    let ends = Ends::new();
    ends.send(b"abc");
    assert_eq!(ends.writer().before_urgent(0), Ok(None));
    ends.send_urgent(b"!");
    ends.send(b"def");
    assert_eq!(
        [0, 2, 3, 4, 7, 9].map(|from| ends.writer().before_urgent(from).unwrap()),
        [Some(3), Some(1), Some(0), None, None, None]
    );
    // The later mark counts.
    ends.send_urgent(b"?");
    assert_eq!([0, 3, 7, 8].map(|from| ends.writer().before_urgent(from).unwrap()), [Some(7), Some(4), Some(0), None]);
}

#[test]
fn urgent_bytes_that_would_be_passed_over_are_sent_anew_as_such() {
    let ends = Ends::new();
    ends.send_urgent(b"!");
    ends.send_urgent(b"?");
    ends.send_urgent(b"#");
    ends.send(b"abc");
    assert_eq!([0, 1, 2, 3].map(|from| ends.writer().before_urgent(from).unwrap()), [Some(0), Some(0), Some(0), None]);
}

#[test]
fn where_a_later_mark_has_no_byte_yet_none_is_taken() {
    let ends = Ends::new();
    ends.send_urgent(b"1");
    assert!(ends.reader().view().mark.unwrap().arrived);
    let between = || {
        assert_eq!(ends.take_if_there(), None);
        assert_eq!(ends.reader().urgent_next(), Ok(None));
    };
    assert_eq!(ends.writer().write_urgent(Source::from(&b"2"[..]), &Silent, between), Ok(1));
    assert_eq!(ends.take(), b'2');
}

#[test]
fn a_byte_is_taken_with_its_count() {
    let ends = Ends::new();
    ends.send_urgent(b"ab1");
    let mut byte = [0];
    assert_eq!((ends.reader().take_urgent(true, &mut byte), byte), (Ok(Some(2)), *b"1"));
    assert_eq!(ends.read(), b"ab");
    // The reader stands at the first one, which is passed over.
    ends.send_urgent(b"2");
    assert_eq!((ends.reader().take_urgent(true, &mut byte), byte), (Ok(Some(3)), *b"2"));
}

#[test]
fn urgent_bytes_are_handed_on_once() {
    let ends = Ends::new();
    ends.send_urgent(b"1");
    ends.send_urgent(b"2");
    assert_eq!(ends.reader().urgent_next(), Ok(None));
    assert_eq!(ends.reader().pass(&Silent), Ok(true));
    assert_eq!(ends.reader().urgent_next(), Ok(Some(b'2')));
    ends.reader().pass_urgent(&Silent).unwrap();
    assert_eq!((ends.reader().urgent_next(), ends.reader().pass(&Silent)), (Ok(None), Ok(false)));
    ends.send(b"ab");
    ends.send_urgent(b"3");
    assert_eq!((ends.reader().urgent_next(), ends.read()), (Ok(None), b"ab".to_vec()));
    assert_eq!(ends.reader().urgent_next(), Ok(Some(b'3')));
    // A later mark, whose writer had looked before the reader came here: the byte does not go on once more.
    let at = u64::from(ends.states[0].0.tail()) + 1;
    ends.lane.set_urgent(End::Client, 4 << 32 | at);
    ends.reader().pass_urgent(&Silent).unwrap();
    ends.send(b"c4");
    assert_eq!(ends.read(), b"c");
}

#[test]
fn a_mark_without_its_byte_takes_none_away_later() {
    for before in [&b""[..], b"ab"] {
        let ends = Ends::new();
        if !before.is_empty() {
            ends.send(before);
            assert_eq!(ends.read(), before);
        }
        ends.die_before_the_byte(b"!");
        ends.send(b"xyz");
        ends.send_urgent(b"?");
        assert_eq!(ends.read(), b"xyz");
        assert_eq!(ends.take(), b'?');
    }
}

#[test]
fn the_mark_before_one_without_its_byte_stays() {
    for before in [&b"1"[..], b"ab1"] {
        let ends = Ends::new();
        ends.send_urgent(before);
        ends.die_before_the_byte(b"cd2");
        assert_eq!(ends.reader().view().mark.unwrap().distance as usize, before.len() - 1);
        assert_eq!(ends.take(), b'1');
        assert!(ends.reader().view().mark.unwrap().taken);
        let mut expected = before[..before.len() - 1].to_vec();
        ends.send(b"rest");
        expected.extend_from_slice(b"rest");
        let mut got = ends.read();
        ends.pass_all();
        got.extend(ends.read());
        assert_eq!(got, expected);
        // The number of the one that never came is given again.
        ends.send_urgent(b"2");
        assert_eq!(ends.take(), b'2');
    }
}

#[test]
fn who_goes_on_may_die_before_the_number_is_back() {
    let ends = Ends::new();
    ends.send_urgent(b"1");
    let mark = ends.lane.urgent(End::Client);
    ends.die_with_a_mark(b"2");
    ends.lane.set_urgent(End::Client, mark);
    ends.writer().recover().unwrap();
    assert_eq!(ends.take(), b'1');
    ends.send_urgent(b"3");
    assert_eq!(ends.take(), b'3');
}

#[test]
fn where_a_byte_stands_is_known_when_its_writer_died_before_it_noted_that() {
    let ends = Ends::new();
    ends.send(b"ab");
    assert_eq!(ends.read(), b"ab");
    let (_, position) = ends.writer().room_in_place().unwrap();
    ends.lane.copy_in(End::Client, position, Source::from(&b"1"[..]));
    ends.lane.read_wake(End::Server).store(1, Relaxed);
    let publish = || ends.writer().publish_urgent(&Deadly, || {});
    assert!(catch_unwind(AssertUnwindSafe(publish)).is_err());
    ends.lane.read_wake(End::Server).store(0, Relaxed);
    ends.writer().recover().unwrap();
    // The reader stands at it, so it is passed over.
    ends.send_urgent(b"2");
    ends.send(b"rest");
    assert_eq!(ends.take(), b'2');
    ends.pass_all();
    assert_eq!(ends.read(), b"rest");
}
