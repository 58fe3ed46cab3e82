use super::*;
use crate::paper::built_in::{BUILT_IN, text};

const HEAD: &str = "format = 1\nname = \"p\"\ntitle = \"P\"\ndocument = \"D\"\n";

fn parse(rest: &str) -> Result<PaperPlan> {
    let text = format!("{HEAD}{rest}");
    PaperPlan::parse(&Source { name: "p.toml".into(), text: &text })
}

fn table(rest: &str) -> String {
    format!("[[table]]\nid = \"t\"\ntitle = \"T\"\nsource = \"S\"\n{rest}")
}

#[test]
fn built_in_plans_are_plans_with_cells_of_their_own() {
    for (name, text) in BUILT_IN {
        let plan = PaperPlan::parse(&Source { name: name.into(), text }).unwrap();
        assert_eq!(plan.name.get_ref(), name);
        let cells = plan.cells(None);
        let names: BTreeSet<String> = cells.iter().map(Cell::name).collect();
        assert_eq!(names.len(), cells.len(), "{name}");
        let few = plan.cells(Some(3));
        assert!(!few.is_empty() && few.len() <= cells.len() && few.iter().all(|cell| names.contains(&cell.name())));
        let mut numbers = plan.tables.iter().flat_map(|table| &table.published).flat_map(Published::numbers);
        assert!(numbers.all(|(_, number)| number.is_finite()), "{name}");
    }
}

#[test]
fn axes_are_multiplied() {
    let text = "work = \"stream\"\nbytes = [64, \"64K\"]\nstreams = [1, 2, 4, 8]\nbuffer = [\"default\", \"2M\"]\n";
    let plan = parse(&table(text)).unwrap();
    let cells = plan.cells(None);
    assert_eq!(cells.len(), 16);
    assert_eq!((cells[0].bytes, cells[1].bytes, cells[2].streams), (64, 65_536, 2));
    assert_eq!(plan.tables[0].columns(), Work::Stream.figures());
}

#[test]
fn a_published_curve_is_told_by_size() {
    let text = "work = \"latency\"\n[[table.published]]\nwhat = \"them\"\nfigure = \"p50\"\nsource = \"figure 1\"\n";
    let of = |values: &str| parse(&table(&format!("{text}{values}"))).unwrap().tables.remove(0).published.remove(0);
    let curve = of("curve = { \"64K\" = \"9 us\", 8 = \"1 us\", 64 = \"2 us\" }\n");
    assert_eq!(curve.numbers(), [(Some(8), 1000.0), (Some(64), 2000.0), (Some(65_536), 9000.0)]);
    assert_eq!(curve.line(), "them: latency p50 1 us at 8 B, 2 us at 64 B, 9 us at 64 KiB (figure 1)");
    assert_eq!(curve.name(), "them");
    let all = of("value = \"3 us\"\n");
    assert_eq!((all.numbers(), all.line()), (vec![(None, 3000.0)], "them: latency p50 3 us (figure 1)".to_owned()));
    assert_eq!(
        (of("value = \"3 us\"\nbytes = 8\n").numbers(), all.name()),
        (vec![(Some(8), 3000.0)], "them: 3 us".to_owned())
    );
}

#[test]
fn what_is_wrong_is_told_with_its_line() {
    let cases = [
        ("work = \"latency\"\nbites = [1]\n", 10, "bites"),
        ("work = \"latency\"\nbytes = [0]\n", 10, "not possible"),
        ("work = \"latency\"\nbytes = [-1]\n", 10, "-1"),
        ("work = \"latency\"\nbytes = [1.5]\n", 10, "whole"),
        ("work = \"latency\"\nbytes = [99999999999999999999]\n", 10, "larger than any"),
        ("work = \"latency\"\nbytes = [true]\n", 10, "a number or a word"),
        ("work = \"latency\"\nbytes = [\"1T\"]\n", 10, "1T"),
        ("work = \"latency\"\nbytes = \"1..4M tripling\"\n", 10, "doubling"),
        ("work = \"latency\"\nbytes = []\n", 6, "no sizes"),
        ("work = \"latency\"\nstreams = [2]\n", 6, "several streams"),
        ("work = \"latency\"\nbytes = [8, 9, 8]\n", 6, "twice"),
        ("work = \"stream\"\nstreams = [0]\n", 10, "1 to 64"),
        ("work = \"latency\"\npace = [0]\n", 10, "messages a second"),
        ("work = \"stream\"\npace = [1000]\n", 6, "has a pace"),
        ("work = \"stream\"\nmtu = [10]\n", 10, "MTU of 576"),
        ("work = \"latency\"\ncoalescing = [\"on\"]\n", 10, "rx-usecs=0"),
        ("work = \"latency\"\ncoalescing = [\"rx-usecs=-1\"]\n", 10, "no coalescing"),
        ("work = \"stream\"\npeak = \"fast\"\n", 10, "40 Gbit/s"),
        ("work = \"stream\"\npeak = \"0 GB/s\"\n", 10, "is no peak"),
        ("work = \"latency\"\nfigures = [\"peak-share\"]\n", 10, "peak-share"),
        ("work = \"stream\"\nrails = [\"800\"]\n", 10, "800mbit"),
        ("work = \"stream\"\nrails = [3]\n", 10, "800mbit"),
        ("work = \"stream\"\nbuffer = [\"1\"]\n", 10, "4 KiB"),
        ("work = \"stream\"\noptions = [\"colour=red\"]\n", 10, "colour"),
        ("work = \"stream\"\nfigures = [\"p50\"]\n", 10, "p50"),
        ("work = \"stream\"\nfigures = [\"nonsense\"]\n", 10, "nonsense"),
        ("work = \"walk\"\n", 9, "walk"),
        ("work = \"turned\"\n", 6, "expected `turn`"),
        ("work = \"stream\"\nturn = [\"turn_bytes=off\"]\n", 6, "expected `turn`"),
        ("work = \"turned\"\nturn = [\"turn_bytes=red\"]\n", 10, "turn_bytes is"),
        ("work = \"turned\"\nturn = [\"pull_min=4K\"]\n", 10, "FROM..TO"),
        ("work = \"turned\"\nturn = [\"pull_min=64M..4K\"]\nmove = [\"push\"]\n", 6, "pushed or pulled"),
        ("work = \"latency\"\nmove = [\"mixed\"]\n", 6, "one way"),
        ("work = \"stream\"\nchunk = [64]\n", 10, "4 KiB to 16 MiB"),
        ("work = \"stream\"\nload = [\"between\"]\n", 10, "between-nodes"),
        ("work = \"stream\"\nplace = [\"around\"]\n", 10, "remote"),
        ("work = \"connect-close\"\nplace = [\"both\"]\n", 6, "two pairs of programs"),
        ("work = \"stream\"\nplace = [\"near\", \"far\"]\ngain_over = \"remote\"\n", 11, "several values"),
        ("work = \"stream\"\nplace = [\"far\"]\ngain_over = \"far\"\n", 11, "several values"),
        ("", 6, "neither"),
        ("work = \"latency\"\nnot_measured = \"because\"\n", 6, "expected one"),
        ("not_measured = \"b\"\n[[table.published]]\nwhat=\"w\"\nfigure=\"p50\"\nvalue=\"9 MB/s\"\n", 13, "12 us"),
        ("not_measured = \"b\"\n[[table.published]]\nwhat=\"w\"\nfigure=\"p50\"\n", 12, "either `value` or `curve`"),
        ("not_measured = \"b\"\n[[table.published]]\nwhat=\"w\"\nfigure=\"p50\"\ncurve = { 1 = \"9\" }\n", 13, "12 us"),
        (
            "not_measured = \"b\"\n[[table.published]]\nwhat=\"w\"\nfigure=\"p50\"\ncurve = { x = \"9 us\" }\n",
            13,
            "64K",
        ),
    ];
    for (text, line, word) in cases {
        let error = format!("{:#}", parse(&table(text)).unwrap_err());
        assert!(error.starts_with(&format!("p.toml:{line}:")), "{text}: {error}");
        assert!(error.contains(word), "{text}: {error}");
    }
}

#[test]
fn what_is_wrong_with_the_plan_itself_is_told_too() {
    let good = table("work = \"latency\"\n");
    assert!(parse(&good).is_ok());
    for (text, word) in [
        ("sample_ms = 1\n", "5 to 600000"),
        ("hosts = [\"alpha\"]\n", "two hosts"),
        ("hosts = [\"-x\", \"beta\"]\n", "names no host"),
        ("bridge_sockets = [\"a\"]\n", "two sockets"),
        ("minutes_max = 0\n", "1 or more minutes"),
        ("rounds = 0\n", "1 or more"),
        ("confidence = 100\n", "percentage"),
        ("within = \"many\"\n", "percentage"),
    ] {
        let error = parse(&format!("{text}{good}")).unwrap_err().to_string();
        assert!(error.starts_with("p.toml:5:") && error.contains(word), "{text}: {error}");
    }
    let error = parse(&format!("{good}{good}")).unwrap_err().to_string();
    assert!(error.starts_with("p.toml:11:6: there are two tables"), "{error}");
    let other = HEAD.replace("format = 1", "format = 2") + &good;
    let error = PaperPlan::parse(&Source { name: "p.toml".into(), text: &other }).unwrap_err().to_string();
    assert!(error.starts_with("p.toml:1:10: format 2"), "{error}");
    let other = HEAD.replace("\"p\"", "\"p/../x\"") + &good;
    assert!(PaperPlan::parse(&Source { name: "p.toml".into(), text: &other }).is_err());
    assert!(text("no-such-plan").unwrap_err().to_string().contains("servernet"));
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("p.toml");
    std::fs::write(&path, b"format = 1\nname = \"\xff\"\n").unwrap();
    let error = text(path.to_str().unwrap()).unwrap_err().to_string();
    assert!(error.ends_with("p.toml:2: the bytes here are no text: expected UTF-8"), "{error}");
}
