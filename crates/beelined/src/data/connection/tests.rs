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
