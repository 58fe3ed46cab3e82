//! A connection, its app, and no bridge on the other side.

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
