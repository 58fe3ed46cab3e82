use super::*;
use crate::tunables::{OptionSpec, Tunables, option};
use std::{format, string::ToString, vec, vec::Vec};

fn rules(list: &[&str]) -> Rules {
    let text = list.iter().map(|rule| format!("rule={rule}")).collect::<Vec<_>>().join(",");
    assert_eq!(Tunables::parse_env(text.as_bytes()), (Tunables::DEFAULT, None), "{text}");
    let mut rules = Rules::NONE;
    rules.read(text.as_bytes(), |_| true);
    assert_eq!(rules.len(), list.len());
    rules
}

fn path(rules: &Rules, role: Role, server: &str) -> Path {
    rules.path(role, server.parse().unwrap())
}

#[test]
fn the_first_rule_that_matches_counts_as_a_whole() {
    let rules = rules(&["port=80-89;role=client;wait=poll", "port=85;path=tcp", "address=10.0.0.0/8;spin_ns_max=7"]);
    let of = |role, server: &str| {
        let body = rules.of(role, server.parse().unwrap())?;
        Some((
            body.path(),
            option::wait.read_word(body.word(option::wait.index())),
            body.word(option::spin_ns_max.index()),
        ))
    };
    let poll = Some(crate::tunables::Wait::Poll);
    assert_eq!(of(Role::Client, "10.1.1.1:85"), Some((Path::Lane, poll, 0)), "not the third one's spin_ns_max");
    assert_eq!(of(Role::Server, "10.1.1.1:85"), Some((Path::Tcp, None, 0)));
    assert_eq!(of(Role::Client, "10.1.1.1:90"), Some((Path::Lane, None, 8)));
    assert_eq!(of(Role::Client, "11.1.1.1:90"), None);
    assert_eq!(Rules::NONE.path(Role::Client, "1.1.1.1:1".parse().unwrap()), Path::Lane);
}

#[test]
fn prefixes_count_the_bits_they_say() {
    let has = |prefix: &str, address: &str| Prefix::parse(prefix).unwrap().has(address.parse().unwrap());
    assert!(has("127.0.0.1", "127.0.0.1") && !has("127.0.0.1", "127.0.0.2"));
    assert!(has("127.0.0.0/8", "127.255.0.1") && !has("127.0.0.0/8", "128.0.0.1"));
    assert!(has("10.1.2.128/25", "10.1.2.200") && !has("10.1.2.128/25", "10.1.2.127"));
    assert!(has("0.0.0.0/0", "9.9.9.9") && !has("0.0.0.0/0", "::1"));
    assert!(has("::/0", "::1") && !has("::/0", "1.1.1.1"));
    assert!(has("fd00::/8", "fd12::1") && !has("fd00::/8", "fe80::1"));
    assert!(has("::1", "::1") && !has("::1", "::2"));
    assert!(has("10.0.0.0/8", "::ffff:10.1.1.1"), "the same address");
    assert!(!has("::/0", "::ffff:10.1.1.1"));
    for wrong in
        ["", "10", "10.0.0.0/33", "::/129", "10.0.0.0/", "10.0.0.0/+8", "10.0.0.1/8", "fd00::1/8", "x/8", "1.2.3.4/8/8"]
    {
        assert_eq!(Prefix::parse(wrong), None, "{wrong}");
    }
}

#[test]
fn what_is_wrong_with_a_rule_is_told() {
    let error = |text: &str| Rule::parse(text.as_bytes()).err();
    for (text, expected) in [
        ("", RuleError::NoEquals),
        ("path", RuleError::NoEquals),
        ("path=tcp;", RuleError::NoEquals),
        ("colour=red", RuleError::UnknownKey),
        ("accelerate=off", RuleError::NotByRule("accelerate")),
        ("path=tcp;path=tcp", RuleError::Twice),
        ("wait=poll;wait=poll", RuleError::Twice),
        ("program=;path=tcp", RuleError::Program),
        ("program=a b;path=tcp", RuleError::Program),
        ("role=both;path=tcp", RuleError::Role),
        ("address=localhost;path=tcp", RuleError::Address),
        ("port=0;path=tcp", RuleError::Port),
        ("port=90-80;path=tcp", RuleError::Port),
        ("port=65536;path=tcp", RuleError::Port),
        ("port=+8;path=tcp", RuleError::Port),
        ("path=rdma", RuleError::Path),
        ("port=80", RuleError::Nothing),
        ("path=tcp;wait=poll", RuleError::Idle),
    ] {
        assert_eq!(error(text), Some(expected), "{text}");
    }
    let long = format!("program={};path=tcp", "x".repeat(256));
    assert_eq!(error(&long), Some(RuleError::Program));
    let error = error("wait=fast").unwrap();
    assert_eq!(error.to_string(), "wait must be one of lazy, poll, wait");
    let unknown = RuleError::UnknownKey.to_string();
    assert!(unknown.starts_with("a rule has program, role, address, port, path, and options that"), "{unknown}");
    let options: Vec<&str> = options().collect();
    assert_eq!(options, ["wait", "spin_ns_max", "zcopy_threshold_bytes", "short_lived_lanes"]);
}

#[test]
fn every_option_that_a_rule_may_say_is_taken() {
    for spec in OptionSpec::all() {
        let text = format!("{}={}", spec.key, spec.default);
        assert_eq!(Rule::parse(text.as_bytes()).is_ok(), spec.reach.has_rules(), "{text}");
    }
}

#[test]
fn programs_are_matched_by_name_or_path() {
    let is_for = |pattern: &str, path: &str, name: &str| {
        let text = format!("program={pattern};path=tcp");
        Rule::parse(text.as_bytes()).unwrap().is_for_program(path.as_bytes(), name.as_bytes())
    };
    assert!(is_for("redis-*", "/usr/bin/redis-server", "redis-server"));
    assert!(!is_for("redis", "/usr/bin/redis-server", "redis-server"));
    assert!(is_for("*.py", "/usr/bin/python3.12", "serve.py"), "a script by its own name");
    assert!(is_for("python3*", "/usr/bin/python3.12", "serve.py"));
    assert!(is_for("/usr/*/redis-server", "/usr/local/bin/redis-server", ""));
    assert!(!is_for("/usr/*/redis-server", "/opt/redis-server", "redis-server"));
    assert!(is_for("a-name-that-is-longer", "", "a-name-that-is-"), "the kernel cuts names");
    assert!(!is_for("x*", "", ""), "not known");
    assert!(Rule::parse(b"path=tcp").unwrap().is_for_program(b"", b""));
}

#[test]
fn patterns() {
    for (pattern, text, fits) in [
        ("", "", true),
        ("", "a", false),
        ("*", "", true),
        ("a*c", "abbc", true),
        ("a*c", "abcb", false),
        ("*a*b", "xaab", true),
        ("a?c", "abc", true),
        ("a?c", "ac", false),
        ("**", "x", true),
        ("a*b*c", "a1b2b3c", true),
        ("?", "", false),
    ] {
        assert_eq!(glob(pattern.as_bytes(), text.as_bytes()), fits, "{pattern} {text}");
    }
    // As slow as it gets.
    assert!(!glob(&[b'*', b'a'].repeat(127), &[b'a'; 4096].iter().chain(b"b").copied().collect::<Vec<_>>()));
}

#[test]
fn a_listener_on_all_addresses_has_lanes_if_any_of_them_may() {
    let all = |list: &[&str], bound: &str| rules(list).path_of_listener(bound.parse().unwrap());
    assert_eq!(all(&["path=tcp"], "0.0.0.0:80"), Path::Tcp);
    assert_eq!(all(&["path=tcp;role=client"], "0.0.0.0:80"), Path::Lane);
    assert_eq!(all(&["path=tcp;port=81"], "0.0.0.0:80"), Path::Lane);
    assert_eq!(all(&["address=10.0.0.0/8;path=tcp"], "0.0.0.0:80"), Path::Lane);
    assert_eq!(all(&["address=10.0.0.0/8;path=lane", "path=tcp"], "[::]:80"), Path::Lane);
    assert_eq!(all(&["address=10.0.0.0/8;path=tcp", "path=tcp"], "[::]:80"), Path::Tcp);
    assert_eq!(all(&["address=10.0.0.0/8;path=tcp"], "10.0.0.1:80"), Path::Tcp);
    let some = rules(&["address=10.0.0.0/8;path=tcp"]);
    assert_eq!(path(&some, Role::Server, "10.0.0.1:80"), Path::Tcp);
    assert_eq!(path(&some, Role::Server, "127.0.0.1:80"), Path::Lane);
}

#[test]
fn what_there_is_no_room_for_and_what_is_wrong_is_left_out() {
    let text = format!("rule=port=x;path=tcp,{}", vec!["rule=path=tcp"; RULES_MAX + 3].join(","));
    let mut rules = Rules::NONE;
    rules.read(text.as_bytes(), |_| true);
    assert_eq!(rules.len(), RULES_MAX);
    let mut none = Rules::NONE;
    none.read(text.as_bytes(), |_| false);
    assert!(none.is_empty());
}

proptest::proptest! {
    #[test]
    fn any_bytes_are_survived(text: Vec<u8>) {
        let _ = Rule::parse(&text);
        let mut rules = Rules::NONE;
        rules.read(&[PREFIX, &text].concat(), |_| true);
    }

    #[test]
    fn a_pattern_fits_what_a_regular_expression_would(pattern in "[ab*?]{0,8}", text in "[ab]{0,8}") {
        fn slow(pattern: &[u8], text: &[u8]) -> bool {
            match (pattern, text) {
                ([], []) => true,
                ([b'*', rest @ ..], _) => {
                    slow(rest, text) || !text.is_empty() && slow(pattern, text.get(1..).unwrap_or_default())
                }
                ([b'?', rest @ ..], [_, more @ ..]) => slow(rest, more),
                ([wanted, rest @ ..], [byte, more @ ..]) => wanted == byte && slow(rest, more),
                _ => false,
            }
        }
        proptest::prop_assert_eq!(glob(pattern.as_bytes(), text.as_bytes()), slow(pattern.as_bytes(), text.as_bytes()));
    }
}
