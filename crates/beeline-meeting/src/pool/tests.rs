use super::*;

/// The lists are the process's, and tests run in threads.
static ONE_AT_A_TIME: std::sync::Mutex<()> = std::sync::Mutex::new(());

#[test]
fn a_client_lane_comes_back_only_when_released_and_for_the_same_listener() {
    let _turn = ONE_AT_A_TIME.lock();
    purge();
    let lane = client_lane(7).unwrap().sent();
    retire(lane, End::Client, true);
    let other = client_lane(7).unwrap().sent();
    assert!(!core::ptr::eq(lane, other), "not released yet");
    lane.memory().set_flags(End::Server, flags::RELEASED);
    let stranger = client_lane(8).unwrap().sent();
    assert!(!core::ptr::eq(lane, stranger), "another listener");
    let again = client_lane(7).unwrap();
    assert!(core::ptr::eq(lane, again.lane));
    assert_eq!(again.lane.memory().flags(End::Server), 0);
    for lane in [again.sent(), other, stranger] {
        lane.spoil();
        retire(lane, End::Client, true);
    }
}

#[test]
fn an_idle_lane_without_its_memfd_is_not_offered() {
    let _turn = ONE_AT_A_TIME.lock();
    purge();
    let lane = client_lane(12).unwrap().sent();
    retire(lane, End::Client, true);
    lane.memory().set_flags(End::Server, flags::RELEASED);
    lane.close_memfd();
    let other = client_lane(12).unwrap();
    assert!(!core::ptr::eq(lane, other.lane) && other.memfd >= 0);
    let other = other.sent();
    other.spoil();
    retire(other, End::Client, true);
    purge();
}

#[test]
fn descriptors_are_given_back_when_short() {
    let _turn = ONE_AT_A_TIME.lock();
    purge();
    let lane = client_lane(9).unwrap().sent();
    assert!(lane.memfd().is_some());
    retire(lane, End::Client, true);
    assert!(release_descriptors());
    let lane = client_lane(9).unwrap().sent();
    assert!(lane.memfd().is_none(), "the program has its numbers for a while");
    retire(lane, End::Client, true);
    assert!(!release_descriptors(), "a lane without its memfd is not kept");
    std::thread::sleep(std::time::Duration::from_millis(1_100));
    side().unwrap().retire(true);
    assert!(release_descriptors(), "the memfd of an idle side is a descriptor, too");
    assert!(!release_descriptors());
    std::thread::sleep(std::time::Duration::from_millis(1_100));
}

#[test]
fn a_lane_whose_connections_spin_in_vain_begins_without_a_spin_until_one_has_paid() {
    let _turn = ONE_AT_A_TIME.lock();
    let lane = client_lane(10).unwrap().sent();
    let begun_with_one = |connections| {
        let spun = (0..connections).filter(|_| {
            let spins = lane.may_spin();
            lane.note_spins(false);
            spins
        });
        spun.count() as u32
    };
    assert_eq!(begun_with_one(IN_VAIN_MAX), IN_VAIN_MAX);
    assert_eq!(begun_with_one(10 * PROBE_EVERY), 10);
    lane.note_spins(true);
    assert_eq!(begun_with_one(IN_VAIN_MAX), IN_VAIN_MAX);
    lane.spoil();
    retire(lane, End::Client, true);
}

#[test]
fn a_side_that_was_made_before_a_fork_is_not_used_again() {
    let _turn = ONE_AT_A_TIME.lock();
    for forked in [false, true] {
        purge();
        let (born, side) = (crate::forks(), side().unwrap());
        if forked {
            beeline_guest::process::count_fork();
        }
        side.put_back(born);
        assert_eq!(sides::COUNT.load(Relaxed), u32::from(!forked));
    }
}

#[test]
fn a_lane_that_nobody_has_seen_keeps_no_descriptor_that_the_program_may_want() {
    let _turn = ONE_AT_A_TIME.lock();
    purge();
    for (short, kept) in [(true, 0), (false, 1)] {
        if short {
            hidden::note_short();
        } else {
            std::thread::sleep(std::time::Duration::from_millis(1_100));
        }
        client_lane(10).unwrap().step_aside().withdraw();
        assert_eq!(SPARE.count.load(Relaxed), kept);
    }
    purge();
}

#[test]
fn sides_are_zeroed_for_their_next_use() {
    let _turn = ONE_AT_A_TIME.lock();
    let first = side().unwrap();
    first.state.mark(1);
    first.retire(true);
    let second = side().unwrap();
    assert!(core::ptr::eq(first.state, second.state));
    assert_eq!(first.memfd, second.memfd);
    assert_eq!(second.state.state.load(Relaxed), 0);
    second.retire(false);
}
