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
