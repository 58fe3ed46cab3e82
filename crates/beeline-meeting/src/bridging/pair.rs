//! A lane of which this process has both ends: what a bridge measures itself with ([`crate::bridge::pair`]).
//!
//! It is made as any other, with a hello over a pair of anchors, so that the bridge's end of it is what a client's or a
//! server's is. Both ends are made and retired by the bridge's one thread; between that another thread may have one.

use core::sync::atomic::Ordering::Relaxed;

use beeline_lane::{End, offer};
use beeline_shm::socket_pair;
use beeline_stats::Reason;

use super::LaneEnd;
use crate::{calibrate, greeting, pool, taking};

/// In the pool of lanes these stand for one listener, with a cookie that the kernel gives to none.
const COOKIE: u64 = u64::MAX - 1;

/// Makes one: the client's end and the server's. The hello is not answered yet.
///
/// # Errors
/// What is short.
pub fn pair() -> Result<(LaneEnd, LaneEnd), Reason> {
    calibrate::small_send_buffer()?;
    let [near, far] = socket_pair().map_err(|_| Reason::DescriptorsShort)?;
    let offer = pool::client_lane(COOKIE)?;
    for end in [End::Client, End::Server] {
        offer.lane.memory().read_wake(end).store(beeline_lane::BEGIN_ARMED, Relaxed);
    }
    let client = greeting::say_hello(near.get(), offer, None)?;
    let Ok(taken) = taking::lane_of(far.get(), false) else {
        client.spoil();
        pool::retire(client, End::Client, false);
        return Err(Reason::MapFailed);
    };
    let server = LaneEnd::new(far.give_away(), taken.lane, End::Server);
    Ok((LaneEnd::new(near.give_away(), client, End::Client), server))
}

impl LaneEnd {
    /// Takes the lane, as a server does. False if the client has withdrawn it.
    #[must_use]
    pub fn take(&self) -> bool {
        let taken = offer::take(self.memory.offer());
        if taken {
            self.memory.set_flags(self.end, self.memory.flags(self.end) | super::flags::TAKEN);
        }
        taken
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Readable, flags};
    use super::*;

    #[test]
    fn bytes_and_the_end_go_from_one_end_to_the_other() {
        let (client, server) = pair().unwrap();
        assert!(server.take() && !server.take() && client.is_taken());
        assert_eq!(client.write(b"there").unwrap(), 5);
        let Readable::Bytes(5, position) = server.readable().unwrap() else { panic!("not what was written") };
        let mut bytes = [0; 5];
        server.copy_out(position, &mut bytes);
        server.consume(5).unwrap();
        assert_eq!(&bytes, b"there");
        assert_eq!(server.write(b"back").unwrap(), 4);
        client.say(flags::FIN | flags::CLOSED);
        client.retire();
        assert_ne!(server.peer_flags() & flags::CLOSED, 0);
        server.say(flags::FIN | flags::CLOSED);
        server.retire();
    }

    #[test]
    fn an_urgent_byte_is_handed_on_once_and_one_that_a_later_one_made_pass_not_at_all() {
        let (client, server) = pair().unwrap();
        assert!(server.take());
        assert!(client.write_urgent(b'1').unwrap() && client.write_urgent(b'2').unwrap());
        assert_eq!(client.write(b"rest").unwrap(), 4);
        let mut handed_on = Vec::new();
        while let Readable::Urgent = server.readable().unwrap() {
            handed_on.extend(server.take_urgent().unwrap());
        }
        assert_eq!(handed_on, b"2");
        assert!(matches!(server.readable(), Ok(Readable::Bytes(4, _))));
        client.retire();
        server.retire();
    }
}
