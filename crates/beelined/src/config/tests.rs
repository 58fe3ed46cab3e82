//! What a configuration may hold, and what is said of one that will not do.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use super::*;

const FULL: &str = r#"
name = "alpha"
listen = ["10.0.0.1", "[2001:db8::1]:9999"]
user = "beeline"
nice = -3
peer_timeout_s = 2.5
admin_socket = "/run/x.sock"
certificate = "/etc/x.crt"
key = "/etc/x.key"
trusted = "/etc/x"

[[peers]]
name = "beta"
control = "10.0.0.2"

[[peers]]
name = "gamma"
control = ["10.0.0.3:1", "10.0.1.3"]

[rails]
deny = [{ provider = "tcp" }]

[tunables]
inline_max = 1_000
"#;

fn error(text: &str) -> String {
    Config::parse("b.toml", text).unwrap_err().to_string()
}

#[test]
fn everything_that_can_be_written_is_understood() {
    let config = Config::parse("b.toml", FULL).unwrap();
    assert_eq!(config.name, Some("alpha".parse().unwrap()));
    assert_eq!(config.listen, ["10.0.0.1:4797".parse().unwrap(), "[2001:db8::1]:9999".parse().unwrap()]);
    assert_eq!(config.user.as_deref(), Some("beeline"));
    assert_eq!((config.nice, config.peer_timeout), (-3, Duration::from_millis(2500)));
    assert_eq!(config.peers[1].control, ["10.0.0.3:1".parse().unwrap(), "10.0.1.3:4797".parse().unwrap()]);
    assert_eq!(config.tunables.inline_max, 1000);
    assert_eq!(config.rails.admit("tcp", None, &[]), Admission::Denied);
    let paths = config.certificate_paths().unwrap();
    assert_eq!((paths.key.to_str(), paths.trusted.to_str()), (Some("/etc/x.key"), Some("/etc/x")));
}

#[test]
fn an_empty_file_will_do() {
    let config = Config::parse("b.toml", "").unwrap();
    assert_eq!(config.certificate_paths(), Some(&CertificatePaths::default()));
    assert_eq!(config.tunables, Tunables::DEFAULT);
    assert!(config.name.is_none() && config.listen.is_empty() && config.peers.is_empty());
    assert_eq!((config.nice, config.peer_timeout), (-10, Duration::from_secs(5)));
}

#[test]
fn insecure_takes_addresses_from_the_file() {
    let text = "name = 'a'\ninsecure = true\naddresses = ['10.0.0.1']\n\
                [[peers]]\nname = 'b'\ncontrol = '10.0.0.2'\naddresses = ['10.0.0.2', '10.1.0.0/16']\n";
    let config = Config::parse("b.toml", text).unwrap();
    assert!(matches!(&config.identity, Identity::Insecure { addresses } if addresses.len() == 1));
    assert_eq!(config.peers[0].addresses.len(), 2);
}

#[test]
fn errors_have_their_line_and_column() {
    let mut wrong = Vec::new();
    for (text, message) in [
        ("nam = 'x'", "b.toml:1:1: unknown field `nam`"),
        ("\nname = 'a b'", "b.toml:2:8: `a b` is no name of a bridge"),
        ("listen = ['10.0.0.1:x']", "b.toml:1:10: `10.0.0.1:x` is neither an IP address nor one with a port"),
        ("nice = -21", "b.toml:1:8: nice must be a number from -20 to 0"),
        ("peer_timeout_s = 0", "b.toml:1:18: peer_timeout_s must be a number from 1 to 3600"),
        ("[tunables]\nspin = 1", "b.toml:2:1: there is no setting `spin`; did you mean `spin_us`?"),
        ("[tunables]\nspin_us = -1", "b.toml:2:11: spin_us must be a number from 0 to 1000000"),
        ("[tunables]\nspin_us = 'x'", "b.toml:2:11: invalid type: string \"x\", expected a number from 0 to 1000000"),
        ("nice = 'x'", "b.toml:1:8: nice must be a number from -20 to 0"),
        ("nice = 0.5", "b.toml:1:8: nice must be a number from -20 to 0"),
        ("peer_timeout_s = true", "b.toml:1:18: peer_timeout_s must be a number from 1 to 3600"),
        ("[rails]\nallow = [{}]", "b.toml:2:9: a rule for rails names"),
        (
            "name = 'a'\n[[peers]]\nname = 'a'\ncontrol = '10.0.0.1'",
            "b.toml:2:1: the peer `a` has this bridge's own name",
        ),
        ("[[peers]]\nname = 'b-2'\ncontrol = []", "b.toml:1:1: the peer `b-2` needs a control address"),
        ("[[peers]]\nname = 'b-2'", "b.toml:1:1: missing field `control`"),
        ("[[peers]]\nname = 'b-2'\ncontrol = 'host'", "b.toml:3:11: expected an address"),
        (
            "[[peers]]\nname = 'b-2'\ncontrol = '10.0.0.1'\n[[peers]]\nname = 'b-2'\ncontrol = '10.0.0.1'",
            "b.toml:4:1: there is another",
        ),
        ("addresses = ['10.0.0.1']", "b.toml:1:13: this bridge's addresses are in its certificate"),
        (
            "[[peers]]\nname = 'b-2'\ncontrol = '10.0.0.1'\naddresses = ['10.0.0.1']",
            "b.toml:4:13: a peer's addresses are in its certificate",
        ),
        ("insecure = true", "b.toml: with `insecure = true` this bridge's own `addresses` must be given"),
        ("insecure = true\nkey = 'x'", "b.toml:2:7: `key` means nothing"),
        ("insecure = true\naddresses = ['127.0.0.1']", "b.toml:2:13: `127.0.0.1` is a loopback address"),
        ("name = \n", "b.toml:1:8: "),
    ] {
        let error = error(text);
        if !error.starts_with(message) {
            wrong.push(format!("{text}\n got {error}\nwant {message}\n"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.concat());
}

#[test]
fn the_examples_of_the_documentation_are_understood() {
    let text = include_str!("../../../../docs/bridge.md");
    let blocks: Vec<&str> = text.split("```toml\n").skip(1).filter_map(|rest| rest.split("```").next()).collect();
    let here: Vec<&str> = text.split("<<END\n").skip(1).filter_map(|rest| rest.split("END\n").next()).collect();
    assert!(!blocks.is_empty() && !here.is_empty(), "docs/bridge.md has no examples of both kinds any more");
    for example in blocks.into_iter().chain(here) {
        Config::parse("docs/bridge.md", example).unwrap();
    }
}

#[test]
fn files_that_others_could_write_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("b.toml");
    fs::write(&path, "name = 'x'").unwrap();
    for (mode, readable, private) in
        [(0o644, true, false), (0o600, true, true), (0o664, false, false), (0o646, false, false), (0o640, true, false)]
    {
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        assert_eq!(Config::read(&path).is_ok(), readable, "{mode:o}");
        assert_eq!(read_guarded(&path, Private::Yes, None).is_ok(), private, "{mode:o}");
    }
}

#[test]
fn where_there_is_no_file_the_manual_page_is_named() {
    let directory = tempfile::tempdir().unwrap();
    let error = format!("{:#}", Config::read(&directory.path().join("b.toml")).unwrap_err());
    assert!(error.contains("b.toml: No such file") && error.contains("beelined.toml(5)"), "{error}");
}

#[test]
fn a_file_that_never_ends_is_not_read_to_its_end() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("b.toml");
    let file = fs::File::create(&path).unwrap();
    file.set_len(1 << 30).unwrap();
    assert!(format!("{:#}", Config::read(&path).unwrap_err()).contains("longer than"));
}

/// The manual page of the configuration.
const PAGE: &str = include_str!("../../man/beelined.toml.5");

#[test]
fn the_manual_page_has_every_key() {
    // An unknown key is answered with those that there are.
    for (text, keys_min) in [("x = 1", 13), ("[[peers]]\nx = 1", 3), ("[rails]\nx = 1", 3)] {
        let error = error(text);
        let expected = error.split_once("expected").map(|(_, expected)| expected.to_owned()).unwrap_or_default();
        let keys: Vec<&str> = expected.split('`').skip(1).step_by(2).collect();
        assert!(keys.len() >= keys_min, "{error}");
        for key in keys {
            let heads = [format!("\n.B {key}\n"), format!("\n.SS [{key}]\n"), format!("\n.SS [[{key}]]\n")];
            assert!(heads.iter().any(|head| PAGE.contains(head.as_str())), "{key} is not in beelined.toml(5)");
        }
    }
}

#[test]
fn the_example_of_the_manual_page_is_a_configuration() {
    let (_, example) = PAGE.split_once(".EX\n").unwrap();
    let (example, _) = example.split_once(".EE\n").unwrap();
    let config = Config::parse("b.toml", example).unwrap();
    assert_eq!(config.peers.len(), 1);
}
