use super::*;

fn profile(text: &str) -> Result<Option<String>, String> {
    let mut chosen = Chosen::new();
    match chosen.add_text("profile", "p.toml", text) {
        Ok(()) => chosen.list().map_err(|error| error.to_string()),
        Err(error) => Err(error.to_string()),
    }
}

#[test]
fn built_in_profiles_are_valid_and_say_what_they_are_for() {
    for (name, text) in BUILT_IN {
        let mut chosen = Chosen::new();
        chosen.add_text("profile", name, text).unwrap();
        assert!(chosen.list().unwrap().is_some(), "{name}");
        assert!(text.contains("\ndescription = "), "{name}");
    }
}

#[test]
fn each_kind_of_value_is_taken() {
    let text = "[options]\nstats = false\nwait = 'poll'\nspin_ns_max = 1_000\nring_bytes = 0x10000\n";
    assert_eq!(profile(text), Ok(Some("wait=poll,spin_ns_max=1000,ring_bytes=65536,stats=off".into())));
    assert_eq!(profile(""), Ok(None));
    assert_eq!(profile("description = 'x'\n[options]\n"), Ok(None));
}

#[test]
fn errors_have_their_line_and_column() {
    for (text, message) in [
        ("[options]\nspin_ns = 5\n", "p.toml:2:1: there is no option `spin_ns`; did you mean `spin_ns_max`?"),
        ("[options]\nqqq = 5\n", "p.toml:2:1: there is no option `qqq`; `beeline run --help` lists them"),
        ("[options]\n\nwait = 'fast'\n", "p.toml:3:8: wait must be one of lazy, poll, wait"),
        ("[options]\nring_bytes = 65537\n", "p.toml:2:14: ring_bytes must be a power of two from 64K to 16M"),
        ("[options]\nspin_ns_max = -1\n", "p.toml:2:15: spin_ns_max must be a number from 0 to 10000000"),
        ("[options]\nspin_ns_max = 1.5\n", "p.toml:2:15: the value must be a string, a whole number, true or false"),
        ("options = 3\n", "p.toml:1:11: options must be a table: [options]"),
        ("description = 3\n", "p.toml:1:15: description must be a string"),
        ("wait = 'poll'\n", "p.toml:1:1: `wait` is an option: write it under [options]"),
        ("weight = 1\n", "p.toml:1:1: a profile has no `weight`, only `description`, `[options]` and `[[rule]]`"),
        ("[options]\nwait = 'lazy'\nwait = 'poll'\n", "p.toml:3:1: duplicate key `wait`"),
        ("[[rule]]\nprogam = 'x'\n", "p.toml:2:1: a rule has no `progam`; did you mean `program`?"),
        ("[[rule]]\nqqq = 'x'\n", "p.toml:2:1: a rule has no `qqq`; `beeline run --help` lists what it has"),
    ] {
        assert_eq!(profile(text), Err(message.into()), "{text}");
    }
}

#[test]
fn a_configuration_is_not_called_a_profile_and_a_rule_of_an_option_names_its_wrong_word() {
    let error = Chosen::new().add_text("configuration", "c.toml", "weight = 1").unwrap_err().to_string();
    assert!(error.starts_with("c.toml:1:1: a configuration has no `weight`"), "{error}");
    let error = Chosen::new().add_arguments(&["rule=role=client;prot=7;path=tcp".into()]).unwrap_err().to_string();
    assert!(error.ends_with("a rule has no `prot`; did you mean `port`?"), "{error}");
}

#[test]
fn syntax_errors_have_their_line_too() {
    let error = profile("[options]\nwait = \n").unwrap_err();
    assert!(error.starts_with("p.toml:2:"), "{error}");
    let error = profile("# ä\n[options]\nwait = 'lazy'\nwait = 'poll'\n").unwrap_err();
    assert!(error.starts_with("p.toml:4:1:"), "{error}");
}

#[test]
fn the_later_source_wins() {
    let mut chosen = Chosen::new();
    chosen.add_text("profile", "p", "[options]\nwait = 'poll'\nspin_ns_max = 1\n").unwrap();
    chosen.add_environment(OsStr::new("spin_ns_max=2,,stats=off")).unwrap();
    chosen.add_arguments(&["stats=on".into()]).unwrap();
    assert_eq!(chosen.list().unwrap().unwrap(), "wait=poll,spin_ns_max=2,stats=on");
    assert!(chosen.add_arguments(&["stats".into()]).is_err());
    assert!(chosen.add_environment(OsStr::new("stats=maybe")).is_err());
}

#[test]
fn rules_are_written_as_the_library_reads_them() {
    let text = "
[options]
wait = 'wait'
[[rule]]
program = 'redis-*'
role = 'client'
port = 6379
wait = 'poll'
[[rule]]
address = '10.0.0.0/8'
port = '8000-8099'
path = 'tcp'
[[rule]]
short_lived_lanes = true
";
    let list = profile(text).unwrap().unwrap();
    assert_eq!(
        list,
        "wait=wait,rule=port=6379;program=redis-*;role=client;wait=poll,\
         rule=address=10.0.0.0/8;path=tcp;port=8000-8099,rule=short_lived_lanes=on"
    );
    let (_, error) = Tunables::parse_env(list.as_bytes());
    assert_eq!(error, None);
}

#[test]
fn errors_of_rules_have_their_line_and_column() {
    for (text, message) in [
        ("[[rule]]\npath = 'rdma'\n", "p.toml:2:8: path must be lane or tcp"),
        ("[[rule]]\nport = 1.5\n", "p.toml:2:8: the value must be a string, a whole number, true or false"),
        ("[[rule]]\naddress = '10.0.0.1/8'\npath = 'tcp'", "p.toml:2:11: address must be an IPv4 or IPv6 address or"),
        (
            "[[rule]]\npath = 'tcp'\n\n[[rule]]\ncolour = 1\n",
            "p.toml:5:1: a rule has no `colour`; `beeline run --help`",
        ),
        ("[[rule]]\nring_bytes = 65536\n", "p.toml:2:1: ring_bytes holds for a whole process and cannot be"),
        ("[[rule]]\nwait = 'fast'\n", "p.toml:2:8: wait must be one of lazy, poll, wait"),
        ("[[rule]]\nprogram = 'a,b'\npath = 'tcp'", "p.toml:2:11: program must be a name or a path"),
        ("[options]\n[[rule]]\nport = 80\n", "p.toml:2:1: a rule must say what holds: path, or an option"),
        ("[[rule]]\npath = 'tcp'\nwait = 'poll'\n", "p.toml:1:1: connections of path tcp have no use for"),
        ("rule = 3\n", "p.toml:1:8: rules must be tables, each of them [[rule]]"),
        ("rule = [3]\n", "p.toml:1:9: rules must be tables, each of them [[rule]]"),
    ] {
        let error = profile(text).unwrap_err();
        assert!(error.starts_with(message), "{text}: {error}");
    }
}

#[test]
fn rules_of_a_source_that_wins_come_first_and_in_their_order() {
    let mut chosen = Chosen::new();
    chosen.add_text("profile", "p", "[[rule]]\nport = 1\npath = 'tcp'\n[[rule]]\nport = 2\npath = 'tcp'\n").unwrap();
    chosen.add_environment(OsStr::new("rule=port=3;path=tcp,wait=poll")).unwrap();
    chosen.add_arguments(&["rule=port=4;path=tcp".into(), "rule=port=5;path=tcp".into()]).unwrap();
    let list = chosen.list().unwrap().unwrap();
    let rules: Vec<&str> = list.split(',').filter_map(|part| part.strip_prefix("rule=")).collect();
    let expected = ["port=4;path=tcp", "port=5;path=tcp", "port=3;path=tcp", "path=tcp;port=1", "path=tcp;port=2"];
    assert_eq!(rules, expected);
    let error = chosen.add_arguments(&["rule=port=x;path=tcp".into()]).unwrap_err();
    assert!(error.to_string().starts_with("--option rule=port=x;path=tcp: port must be"), "{error}");
}

#[test]
fn more_rules_than_there_is_room_for_are_refused() {
    let rules = |count: usize, program: &str| {
        let mut chosen = Chosen::new();
        chosen
            .add_text("profile", "p", &format!("[[rule]]\nprogram = '{program}'\npath = 'tcp'\n").repeat(count))
            .unwrap();
        chosen.list().map_err(|error| error.to_string())
    };
    let most = rules(RULES_MAX, &"x".repeat(90)).unwrap().unwrap();
    assert!(most.len() <= LIST_BYTES_MAX);
    assert_eq!(rules(RULES_MAX + 1, "x").unwrap_err(), "there are 33 rules, and the library has room for 32");
    assert!(rules(RULES_MAX, &"x".repeat(200)).unwrap_err().contains("and the library has room for 4000"));
}

#[test]
fn configurations_are_read_where_they_are_and_the_users_wins() {
    let directory = tempfile::tempdir().unwrap();
    let bases = ["etc", "home"].map(|name| directory.path().join(name));
    let read = || {
        let mut chosen = Chosen::new();
        chosen.add_configuration_of(bases.iter().cloned())?;
        chosen.list()
    };
    assert_eq!(read().unwrap(), None);
    for (base, text) in bases.iter().zip(["[options]\nwait = 'poll'\nstats = false\n", "[options]\nwait = 'lazy'\n"]) {
        std::fs::create_dir_all(base.join("beeline")).unwrap();
        std::fs::write(base.join("beeline/config.toml"), text).unwrap();
    }
    assert_eq!(read().unwrap().unwrap(), "wait=lazy,stats=off");
    std::fs::write(bases[0].join("beeline/config.toml"), "[options]\nwait = 'fast'\n").unwrap();
    let error = read().unwrap_err().to_string();
    assert!(error.ends_with("etc/beeline/config.toml:2:8: wait must be one of lazy, poll, wait"), "{error}");
    let anybodys = std::os::unix::fs::PermissionsExt::from_mode(0o666);
    std::fs::set_permissions(bases[0].join("beeline/config.toml"), anybodys).unwrap();
    assert!(format!("{:#}", read().unwrap_err()).ends_with("leaves out: anybody may write to it"));
    std::fs::remove_file(bases[0].join("beeline/config.toml")).unwrap();
    std::fs::create_dir(bases[0].join("beeline/config.toml")).unwrap();
    assert!(read().unwrap_err().to_string().starts_with("cannot read the configuration "));
}
