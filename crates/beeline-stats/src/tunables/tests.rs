use super::*;
use std::{format, string::ToString};

#[test]
fn nothing_said_means_the_defaults() {
    assert_eq!(Tunables::parse_env(b""), (Tunables::DEFAULT, None));
    assert_eq!(Tunables::parse_env(b",,"), (Tunables::DEFAULT, None));
}

#[test]
fn every_option_takes_its_own_default() {
    for spec in OptionSpec::all() {
        let text = format!("{}={}", spec.key, spec.default);
        assert_eq!(Tunables::parse_env(text.as_bytes()), (Tunables::DEFAULT, None), "{text}");
        assert_eq!(Tunables::DEFAULT.get(spec.key), Some(spec.default));
    }
    assert_eq!(Tunables::DEFAULT.get("nonsense"), None);
}

#[test]
fn every_value_a_kind_allows_comes_back_and_its_neighbours_are_refused() {
    for spec in OptionSpec::all() {
        let mut good = std::vec::Vec::new();
        let mut bad: std::vec::Vec<std::string::String> =
            std::vec!["".into(), "maybe".into(), "-1".into(), "+1".into(), " on".into(), "0x10".into()];
        match spec.kind {
            Kind::Switch => good.extend(["on".to_string(), "off".to_string()]),
            Kind::Choice(words) => good.extend(words.iter().map(ToString::to_string)),
            Kind::Number { min, max } | Kind::Bytes { min, max } => {
                good.extend([min.to_string(), max.to_string()]);
                bad.push((max + 1).to_string());
                bad.extend(min.checked_sub(1).map(|n| n.to_string()));
            }
            Kind::Threshold { min, max } => {
                good.extend(["auto".to_string(), "off".to_string(), min.to_string(), max.to_string()]);
                bad.extend(["on".to_string(), (min - 1).to_string(), (max + 1).to_string(), "auto ".to_string()]);
            }
            Kind::PowerOfTwo { min, max } => {
                good.extend([min.to_string(), max.to_string()]);
                bad.extend([(min / 2).to_string(), (max * 2).to_string(), (min + 1).to_string()]);
            }
        }
        for value in good {
            let mut tunables = Tunables::DEFAULT;
            assert_eq!(tunables.set(spec.key.as_bytes(), value.as_bytes()), Ok(()));
            assert_eq!(tunables.get(spec.key).unwrap().to_string(), value);
        }
        for value in bad {
            let mut tunables = Tunables::DEFAULT;
            assert_eq!(
                tunables.set(spec.key.as_bytes(), value.as_bytes()),
                Err(OptionError::BadValue(spec.key, spec.kind)),
                "{}={value}",
                spec.key
            );
            assert_eq!(tunables, Tunables::DEFAULT);
        }
    }
}

#[test]
fn numbers_of_bytes_may_have_a_unit() {
    let of = |list: &str| match Tunables::parse_env(list.as_bytes()) {
        (tunables, None) => Some((tunables.ring_bytes, tunables.stream_bytes_max)),
        _ => None,
    };
    assert_eq!(of("ring_bytes=1M,stream_bytes_max=3k"), Some((1 << 20, 3 << 10)));
    assert_eq!(of("ring_bytes=64K,stream_bytes_max=1G"), Some((1 << 16, 1 << 30)));
    for wrong in ["ring_bytes=3M", "ring_bytes=M", "ring_bytes=1MB", "ring_bytes=1 M", "spin_ns_max=1K"] {
        assert_eq!(of(wrong), None, "{wrong}");
    }
    assert_eq!(of("stream_bytes_max=17179869184G"), None, "beyond what fits");
    let kinds = OptionSpec::all().map(|spec| spec.kind.to_string());
    assert!(kinds.iter().any(|kind| kind == "a power of two from 64K to 16M"), "{kinds:?}");
}

#[test]
fn the_last_value_counts() {
    let (tunables, error) = Tunables::parse_env(b"wait=poll,spin_ns_max=7,wait=wait");
    assert_eq!(error, None);
    assert_eq!((tunables.wait, tunables.spin_ns_max), (Wait::Sleep, 7));
}

#[test]
fn the_first_error_is_told_and_the_rest_still_counts() {
    let (tunables, error) = Tunables::parse_env(b"accelerate=off,colour=red,wait,stats=off");
    assert_eq!(error, Some(ParseError { offset: 15, error: OptionError::UnknownKey }));
    assert!(!tunables.accelerate && !tunables.stats);
    assert_eq!(Tunables::parse_env(b"wait").1.unwrap().error, OptionError::NoEquals);
}

#[test]
fn keys_carry_their_unit_and_sentences_end() {
    for spec in OptionSpec::all() {
        assert!(spec.sentence.ends_with('.'), "{}", spec.key);
        assert!(spec.key.bytes().all(|b| b.is_ascii_lowercase() || b == b'_'));
    }
}

proptest::proptest! {
    #[test]
    fn any_bytes_are_survived(list: std::vec::Vec<u8>) {
        let _ = Tunables::parse_env(&list);
    }
}
