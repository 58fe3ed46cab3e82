//! A connection, its app, and no bridge on the other side.

use super::super::sender::How;
use super::*;

#[test]
fn room_that_is_not_told_at_once_keeps_nobody_awake() {
    let (app, lane) = beeline_meeting::bridge::pair().unwrap();
    let ring_bytes = lane.ring_bytes();
    let mut connection = Connection::new(1, Stage::Open, lane, ring_bytes.into());
    let tenth = vec![7; ring_bytes as usize / 10];
    for index in 0..6 {
        connection.data(index * tenth.len() as u64, &tenth, false).unwrap();
    }
    let (_, placed, limit) = connection.ack_due().unwrap();
    connection.acknowledged(placed, limit);

    // Half of the ring is free, four tenths are granted: a tenth is told in a while.
    app.consume(tenth.len() as u32).unwrap();
    let (urgent, ..) = connection.ack_due().unwrap();
    assert!(!urgent && connection.owes_room());
    assert_eq!(connection.arm(), Ok(true));

    // Three tenths more than was granted are told before any sleep.
    app.consume(2 * tenth.len() as u32).unwrap();
    let (urgent, placed, limit) = connection.ack_due().unwrap();
    assert!(urgent);
    assert_eq!(connection.arm(), Ok(false));
    connection.acknowledged(placed, limit);
    assert_eq!(connection.arm(), Ok(true));
}

#[test]
fn what_stands_before_an_urgent_byte_is_acknowledged_at_once() {
    let [(app, near), (_reader, far)] = [(); 2].map(|()| beeline_meeting::bridge::pair().unwrap());
    let ring_bytes = near.ring_bytes().into();
    let mut sender = Connection::new(1, Stage::Open, near, ring_bytes);
    let mut receiver = Connection::new(2, Stage::Open, far, ring_bytes);
    app.write(b"before").unwrap();
    assert!(matches!(sender.outward(), Ok(Outward::Bytes { offset: 0, bytes: 6, .. })));
    sender.sending(0, 6, 1, How::Inline);
    receiver.data(0, b"bef", false).unwrap();
    assert_eq!(sender.outward(), Ok(Outward::Nothing));
    assert!(receiver.ack_due().is_some_and(|(urgent, ..)| !urgent));

    assert_eq!(app.write_urgent(b'!'), Ok(true));
    app.write(b"behind").unwrap();
    assert_eq!(sender.outward(), Ok(Outward::Urge { offset: 6 }));
    sender.urged(6);
    assert_eq!(sender.outward(), Ok(Outward::Nothing));
    // It may have been lost with a link.
    sender.resynced(1, 0, ring_bytes, std::iter::once((0, 6)), |_| {}).unwrap();
    assert_eq!(sender.outward(), Ok(Outward::Urge { offset: 6 }));
    sender.urged(6);

    // What it urges for may come later than it.
    receiver.urge(6);
    assert!(receiver.ack_due().is_some_and(|(urgent, ..)| !urgent));
    receiver.data(3, b"ore", false).unwrap();
    let (urgent, placed, limit) = receiver.ack_due().unwrap();
    assert!(urgent && placed == 6);
    receiver.acknowledged(placed, limit);
    sender.acked(placed, limit, |_| {}).unwrap();
    assert_eq!(sender.outward(), Ok(Outward::Urgent { offset: 6, byte: b'!' }));
    sender.sending(6, 1, 1, How::Inline);
    assert!(matches!(sender.outward(), Ok(Outward::Bytes { offset: 7, bytes: 6, .. })));
}

#[test]
fn an_app_that_writes_behind_its_own_end_is_reset_by_its_own_bridge() {
    let urgent = |app: &LaneEnd| app.write_urgent(b'c').unwrap();
    let plain = |app: &LaneEnd| app.write(b"c").unwrap() == 1;
    for write in [&urgent as &dyn Fn(&LaneEnd) -> bool, &plain] {
        let (app, lane) = beeline_meeting::bridge::pair().unwrap();
        let ring_bytes = lane.ring_bytes();
        let mut connection = Connection::new(1, Stage::Open, lane, ring_bytes.into());
        app.write(b"ab").unwrap();
        app.say(flags::FIN);
        assert!(matches!(connection.outward(), Ok(Outward::Bytes { offset: 0, bytes: 2, .. })));
        connection.sending(0, 2, 1, How::Inline);
        assert_eq!(connection.outward(), Ok(Outward::End { offset: 2, flags: flags::FIN }));
        connection.ended(2, flags::FIN);
        assert_eq!(connection.outward(), Ok(Outward::Nothing));
        assert!(write(&app));
        assert_eq!(connection.outward(), Err(Broken::App));
        // What is told to be closed is not looked at any more, once the other bridge has all.
        connection.ended(2, flags::CLOSED);
        assert_eq!(connection.outward(), Err(Broken::App));
        connection.acked(2, ring_bytes.into(), |_| {}).unwrap();
        assert_eq!(connection.outward(), Ok(Outward::Nothing));
    }
}
