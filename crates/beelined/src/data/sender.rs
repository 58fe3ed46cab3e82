//! What a bridge has sent of one direction of a connection, and what of it the other bridge has.
//!
//! ```text
//!   0 ......... acked ......... pieces: under way on a link, lost with one, or to be sent again ......... sent
//! ```
//!
//! # Rules
//!
//! 1. Bytes are sent once. They are sent again only if the link on which they were under way is gone *and* the receiver
//!    has said, after closing its end of that link, that it does not have them ([`Sender::resync`]). So no byte ever
//!    comes twice, and none can land late in space that is used again.
//! 2. Nothing is sent at or beyond `limit`.
//! 3. What the receiver says is checked: it cannot have what was never sent, and `limit` cannot be more than one ring
//!    ahead of what was sent. What it has said before may come again, and changes nothing.
//! 4. At most [`PIECES_MAX`] pieces are begun, so that the receiver never has more gaps than it can note. What comes
//!    over one link in the order in which it was sent is one piece, as it leaves one gap; each offer is one of its own,
//!    since what is sent behind it may come before the receiver has read it.

use std::collections::VecDeque;

use beeline_topo::stripe::PIECES_MAX;

/// The receiver said something that cannot be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Breach(pub &'static str);

/// The connection of two bridges over one rail, in one of its lives. Never used twice.
pub type LinkId = u64;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Place {
    /// On its way.
    On(LinkId),
    /// The link is gone; the receiver has not yet said what it has.
    Lost(LinkId),
    /// To be sent again.
    Again,
}

/// How bytes are sent.
///
/// What is in messages or written before a message that says so comes in the order in which it was sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum How {
    /// In messages. No link's account has it: it is acknowledged when that suits, which tells nothing of the link.
    Inline,
    /// Written.
    Written,
    /// Offered, to be read when the receiver gets to it.
    Offered,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Piece {
    end: u64,
    place: Place,
    in_order: bool,
    /// Bytes of it that are in its link's account.
    counted: u64,
}

impl Piece {
    /// Bytes that are on no link.
    fn new(end: u64, place: Place) -> Piece {
        Piece { end, place, in_order: true, counted: 0 }
    }

    /// Bytes that are given to a link.
    fn on(link: LinkId, end: u64, bytes: u64, how: How) -> Piece {
        let counted = if how == How::Inline { 0 } else { bytes };
        Piece { end, place: Place::On(link), in_order: how != How::Offered, counted }
    }

    /// Takes in what follows, if that leaves no other gap than this piece.
    fn joins(&mut self, next: &Piece) -> bool {
        let joins = self.place == next.place && self.in_order && next.in_order;
        if joins {
            self.end = next.end;
            self.counted = self.counted.saturating_add(next.counted);
        }
        joins
    }
}

/// Appends a piece.
fn append(pieces: &mut VecDeque<Piece>, piece: Piece) {
    if !pieces.back_mut().is_some_and(|last| last.joins(&piece)) {
        pieces.push_back(piece);
    }
}

/// See the module.
#[derive(Debug)]
pub struct Sender {
    acked: u64,
    /// In order, without gaps, from `acked` to `sent`; each begins where the one before ends.
    pieces: VecDeque<Piece>,
    sent: u64,
    limit: u64,
    /// The most that `limit` may be ahead of `acked`: the receiver's ring.
    window: u64,
}

/// Bytes that leave a link's account. None of what was acknowledged may have been in it.
pub type Credit = (LinkId, u64);

impl Sender {
    /// Nothing is sent; the receiver holds `window` bytes.
    #[must_use]
    pub fn new(window: u64) -> Sender {
        Sender { acked: 0, pieces: VecDeque::new(), sent: 0, limit: window, window }
    }

    /// The receiver has all before this.
    #[must_use]
    pub fn acked(&self) -> u64 {
        self.acked
    }

    /// The first byte that was never sent.
    #[must_use]
    pub fn sent(&self) -> u64 {
        self.sent
    }

    /// Whether the receiver has everything that was sent.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.acked == self.sent
    }

    /// What to send next, at most: `(offset, bytes)`. `available` is where the bytes end that there are.
    #[must_use]
    pub fn next(&self, available: u64) -> Option<(u64, u64)> {
        let mut offset = self.acked;
        for piece in &self.pieces {
            // In parts it leaves gaps of its own, but the first of all leaves none.
            if piece.place == Place::Again && (offset == self.acked || self.pieces.len() < PIECES_MAX) {
                return Some((offset, piece.end.saturating_sub(offset)));
            }
            offset = piece.end;
        }
        let end = available.min(self.limit);
        (end > self.sent && self.pieces.len() < PIECES_MAX).then(|| (self.sent, end.saturating_sub(self.sent)))
    }

    /// Notes that `bytes` from the offset that [`Sender::next`] told were sent.
    pub fn sending(&mut self, offset: u64, bytes: u64, link: LinkId, how: How) {
        let end = offset.saturating_add(bytes);
        if offset == self.sent {
            self.sent = end;
            return append(&mut self.pieces, Piece::on(link, end, bytes, how));
        }
        let mut begin = self.acked;
        for index in 0..self.pieces.len() {
            let Some(piece) = self.pieces.get(index).copied() else { return };
            if begin == offset && piece.place == Place::Again {
                let end = end.min(piece.end);
                self.pieces.insert(index, Piece::on(link, end, end.saturating_sub(offset), how));
                if end >= piece.end {
                    self.pieces.remove(index.saturating_add(1));
                }
                return self.merge();
            }
            begin = piece.end;
        }
    }

    /// The receiver has all before `placed` and takes all before `limit`. Tells which links carried what is new, and
    /// what leaves their accounts with it.
    ///
    /// # Errors
    /// [`Breach`].
    pub fn ack(&mut self, placed: u64, limit: u64, mut carried: impl FnMut(Credit)) -> Result<(), Breach> {
        if placed > self.sent {
            return Err(Breach("bytes were acknowledged that were never sent"));
        }
        if limit > self.sent.saturating_add(self.window) {
            return Err(Breach("more room was granted than the ring has"));
        }
        self.limit = self.limit.max(limit);
        while self.acked < placed {
            let Some(first) = self.pieces.front_mut() else { break };
            let end = first.end.min(placed);
            let counted = first.counted.min(end.saturating_sub(self.acked));
            first.counted = first.counted.saturating_sub(counted);
            let first = *first;
            match first.place {
                Place::On(link) => carried((link, counted)),
                // It came before the link was lost, or was said by another way.
                Place::Lost(_) | Place::Again => {}
            }
            self.acked = end;
            if end == first.end {
                self.pieces.pop_front();
            }
        }
        Ok(())
    }

    /// What is in the accounts of links and not acknowledged.
    pub fn on_links(&self) -> impl Iterator<Item = Credit> {
        self.pieces.iter().filter_map(|piece| match piece.place {
            Place::On(link) => Some((link, piece.counted)),
            Place::Lost(_) | Place::Again => None,
        })
    }

    /// The link is gone.
    pub fn link_lost(&mut self, link: LinkId) {
        for piece in &mut self.pieces {
            if piece.place == Place::On(link) {
                piece.place = Place::Lost(link);
            }
        }
    }

    /// The receiver has closed its end of `link`, and of the bytes that were on it has those in `ranges`, ascending.
    /// What it has not is sent again. To be followed by [`Sender::ack`] with what the same message says.
    pub fn resync(&mut self, link: LinkId, ranges: impl Iterator<Item = (u64, u64)> + Clone) {
        let mut pieces = VecDeque::with_capacity(self.pieces.len());
        let mut begin = self.acked;
        for piece in &self.pieces {
            if piece.place != Place::Lost(link) && piece.place != Place::On(link) {
                pieces.push_back(*piece);
                begin = piece.end;
                continue;
            }
            // What it has stays "lost" with the link, which is as good as under way: the prefix will come to it.
            for (from, to) in ranges.clone() {
                let (from, to) = (from.clamp(begin, piece.end), to.clamp(begin, piece.end));
                if from < to {
                    if begin < from {
                        pieces.push_back(Piece::new(from, Place::Again));
                    }
                    pieces.push_back(Piece::new(to, Place::Lost(link)));
                    begin = to;
                }
            }
            if begin < piece.end {
                pieces.push_back(Piece::new(piece.end, Place::Again));
            }
            begin = piece.end;
        }
        self.pieces = pieces;
        self.merge();
    }

    fn merge(&mut self) {
        let mut merged: VecDeque<Piece> = VecDeque::with_capacity(self.pieces.len());
        self.pieces.drain(..).for_each(|piece| append(&mut merged, piece));
        self.pieces = merged;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use beeline_topo::stripe::Reorder;
    use proptest::prelude::*;

    fn ignore(_: Credit) {}

    #[test]
    fn bytes_go_out_once_and_no_further_than_the_limit() {
        let mut sender = Sender::new(100);
        assert_eq!(sender.next(0), None);
        assert_eq!(sender.next(250), Some((0, 100)));
        sender.sending(0, 60, 1, How::Written);
        sender.sending(60, 40, 2, How::Written);
        assert_eq!(sender.next(250), None);
        let mut carried = Vec::new();
        sender.ack(70, 150, |credit| carried.push(credit)).unwrap();
        assert_eq!(carried, [(1, 60), (2, 10)]);
        assert_eq!(sender.next(250), Some((100, 50)));
        // Said before: nothing changes.
        sender.ack(30, 120, ignore).unwrap();
        assert_eq!((sender.acked(), sender.next(250)), (70, Some((100, 50))));
        assert!(sender.ack(101, 150, ignore).is_err());
        assert!(sender.ack(70, 201, ignore).is_err());
    }

    #[test]
    fn only_what_the_receiver_lacks_is_sent_again() {
        let mut sender = Sender::new(1000);
        sender.sending(0, 100, 1, How::Written);
        sender.sending(100, 100, 2, How::Written);
        sender.sending(200, 100, 1, How::Written);
        sender.link_lost(1);
        assert_eq!(sender.next(300), None);
        sender.resync(1, [(0, 40), (250, 300)].into_iter());
        sender.ack(40, 1000, ignore).unwrap();
        assert_eq!(sender.next(300), Some((40, 60)));
        sender.sending(40, 20, 3, How::Written);
        assert_eq!(sender.next(300), Some((60, 40)));
        sender.sending(60, 40, 3, How::Written);
        assert_eq!(sender.next(300), Some((200, 50)));
        sender.sending(200, 50, 3, How::Written);
        assert_eq!(sender.next(300), None);
        assert_eq!(sender.next(301), Some((300, 1)));
        sender.ack(300, 1000, ignore).unwrap();
        assert!(sender.is_idle());
    }

    #[test]
    fn what_links_carry_leaves_their_accounts_once() {
        let mut sender = Sender::new(1000);
        let mut account = 0;
        let mut send = |sender: &mut Sender, offset, bytes, how| {
            sender.sending(offset, bytes, 1, how);
            account += if how == How::Inline { 0 } else { bytes };
        };
        send(&mut sender, 0, 100, How::Inline);
        send(&mut sender, 100, 300, How::Written);
        send(&mut sender, 400, 50, How::Inline);
        send(&mut sender, 450, 200, How::Offered);
        send(&mut sender, 650, 50, How::Inline);
        assert_eq!((account, sender.on_links().map(|(_, bytes)| bytes).sum()), (500, 500));
        for (placed, left) in [(50, 450), (100, 400), (200, 300), (450, 200), (500, 150), (650, 0), (700, 0)] {
            sender.ack(placed, 1000, |(link, bytes)| account -= bytes * link).unwrap();
            assert_eq!((account, sender.on_links().map(|(_, bytes)| bytes).sum()), (left, left), "{placed}");
        }
    }

    /// What happens to a message on its way.
    #[derive(Clone, Debug)]
    enum Step {
        Send { link: usize, bytes: u64 },
        Deliver { link: usize },
        Ack,
        Cut { link: usize },
        Consume { bytes: u64 },
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let step = prop_oneof![
            4 => (0..3_usize, 1..200_u64).prop_map(|(link, bytes)| Step::Send { link, bytes }),
            4 => (0..3_usize).prop_map(|link| Step::Deliver { link }),
            1 => Just(Step::Ack),
            1 => (0..3_usize).prop_map(|link| Step::Cut { link }),
            2 => (1..300_u64).prop_map(|bytes| Step::Consume { bytes }),
        ];
        prop::collection::vec(step, 0..400)
    }

    proptest! {
        /// Three links that deliver in order, each at its own pace, and are cut with what is on them; the receiver of
        /// the bridge beside it. No byte comes twice (`Reorder` refuses it), and at the end all have come.
        #[test]
        fn every_byte_arrives_exactly_once(steps in steps()) {
            const WINDOW: u64 = 512;
            const ALL: u64 = 20_000;
            let mut sender = Sender::new(WINDOW);
            let mut receiver = Reorder::new(WINDOW, PIECES_MAX);
            let mut links: Vec<(LinkId, VecDeque<(u64, u64)>)> = (0..3).map(|id| (id, VecDeque::new())).collect();
            let mut next_id = 3;
            let mut consumed = 0;
            let rest = (0..1_000_000).map(|index: usize| match index % 5 {
                0 | 1 => Step::Send { link: index % 3, bytes: 150 },
                2 => Step::Deliver { link: (index / 5) % 3 },
                3 => Step::Consume { bytes: 200 },
                _ => Step::Ack,
            });
            for step in steps.into_iter().chain(rest) {
                match step {
                    Step::Send { link, bytes } => {
                        if let Some((offset, most)) = sender.next(ALL) {
                            let (id, queue) = &mut links[link];
                            let bytes = bytes.min(most);
                            sender.sending(offset, bytes, *id, How::Written);
                            queue.push_back((offset, bytes));
                        }
                    }
                    Step::Deliver { link } => {
                        if let Some((offset, bytes)) = links[link].1.pop_front() {
                            prop_assert!(offset + bytes <= consumed + WINDOW);
                            receiver.insert(offset, bytes).unwrap();
                        }
                    }
                    Step::Ack => sender.ack(receiver.prefix(), consumed + WINDOW, ignore).unwrap(),
                    Step::Consume { bytes } => consumed = receiver.prefix().min(consumed + bytes),
                    Step::Cut { link } => {
                        let (id, queue) = &mut links[link];
                        queue.clear();
                        sender.link_lost(*id);
                        let ranges: Vec<_> =
                            [(0, receiver.prefix())].into_iter().chain(receiver.above().iter().copied()).collect();
                        sender.resync(*id, ranges.into_iter());
                        sender.ack(receiver.prefix(), consumed + WINDOW, ignore).unwrap();
                        *id = next_id;
                        next_id += 1;
                    }
                }
                if receiver.prefix() == ALL {
                    break;
                }
            }
            prop_assert_eq!(receiver.prefix(), ALL);
        }
    }
}
