use super::*;

#[test]
fn addresses_come_back_as_stored() {
    for text in ["127.0.0.1:80", "[::1]:65535", "[fe80::1%7]:9", "0.0.0.0:0", "[::ffff:1.2.3.4]:5"] {
        let address: SocketAddr = text.parse().unwrap();
        let stored = Address::default();
        stored.set(address);
        assert_eq!(stored.get(), address);
    }
}

#[test]
fn options_stored_at_one_time_are_all_kept() {
    for round in 0..2_000 {
        let options: [OptionValue; 4] = core::array::from_fn(|_| OptionValue::default());
        let start = std::sync::Barrier::new(4);
        std::thread::scope(|scope| {
            for name in 1..=4 {
                let (options, start) = (&options, &start);
                scope.spawn(move || {
                    start.wait();
                    assert!(store_option(options, libc::IPPROTO_TCP, name, name + round));
                });
            }
        });
        for name in 1..=4 {
            let key = option_key(libc::IPPROTO_TCP, name);
            let kept = options.iter().find(|slot| slot.key.load(Acquire) == key).map(|slot| slot.value.load(Relaxed));
            assert_eq!(kept, Some(name + round));
            assert_eq!(option_of(key), (libc::IPPROTO_TCP, name));
        }
    }
}

fn fresh_side() -> &'static SideState {
    let (memory, _) = beeline_shm::SideMemory::create().unwrap();
    // SAFETY: a side consists of atomics only and is valid when zeroed; it stays mapped.
    unsafe { memory.as_ref() }
}

/// A process of this namespace that has ended.
fn dead() -> u32 {
    let mut child = std::process::Command::new("/bin/true").spawn().unwrap();
    let identity = crate::process::identity() & !0x3f_ffff | child.id();
    child.wait().unwrap();
    identity
}

#[test]
fn those_that_were_killed_make_room_for_others() {
    crate::process::become_owner();
    let side = fresh_side();
    let (me, dead) = (crate::process::identity(), dead());
    side.join(me);
    for place in side.sharers.iter().filter(|place| place.load(Relaxed) == 0) {
        place.store(dead, Relaxed);
    }
    side.join(EXPECTED);
    assert!(!side.is(state::CROWDED) && side.lists(me) && side.lists(EXPECTED) && !side.lists(dead));
    assert!(side.knows_all_sharers());
}

#[test]
fn those_that_live_do_not() {
    crate::process::become_owner();
    let side = fresh_side();
    side.sharers.iter().for_each(|place| place.store(crate::process::identity(), Relaxed));
    side.join(EXPECTED);
    assert!(side.is(state::CROWDED) && !side.knows_all_sharers());
}

#[test]
fn those_of_another_namespace_are_not_known_and_not_taken_for_dead() {
    crate::process::become_owner();
    let side = fresh_side();
    let stranger = dead() ^ 1 << 22;
    side.sharers.iter().for_each(|place| place.store(stranger, Relaxed));
    assert!(!side.knows_all_sharers());
    side.join(crate::process::identity());
    assert!(side.lists(stranger) && side.is(state::CROWDED));
}
