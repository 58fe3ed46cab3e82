//! What the tests of this crate share: the library, guests, and how a guest's cases run on the kernel and with the
//! library.
#![allow(dead_code, reason = "no test uses all of it")]

use std::collections::BTreeSet;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, OnceLock};
use std::time::Duration;

use beeline_testkit::preload;
use beeline_testkit::watch::{Ending, Group};

/// After this long a program hangs.
pub const LIMIT: Duration = Duration::from_secs(60);

/// The release build, which is what users load: `cargo test` builds its own with unwinding, which the library
/// is not made for.
pub fn library() -> &'static Path {
    static LIBRARY: OnceLock<PathBuf> = OnceLock::new();
    LIBRARY.get_or_init(|| {
        if std::env::var_os(preload::LIBRARY_VARIABLE).is_some() {
            return preload::find_library().expect("the named library");
        }
        let status = Command::new(env!("CARGO"))
            .args(["build", "--quiet", "--release", "--package", "beeline-preload", "--target-dir"])
            .arg(target())
            .current_dir(env!("CARGO_MANIFEST_DIR"))
            .status()
            .expect("cargo runs");
        assert!(status.success());
        target().join("release/libbeeline.so")
    })
}

/// The target directory: this program lies two levels below it.
fn target() -> PathBuf {
    let program = std::env::current_exe().expect("own path");
    program.ancestors().nth(3).expect("target/<profile>/deps/<program>").to_path_buf()
}

/// The guest of this name, compiled.
pub fn guest(name: &'static str) -> PathBuf {
    if name == "submits" {
        libaio();
    }
    compile(name, name, &[])
}

/// To link something with it.
const LIBAIO: [&str; 2] = [concat!("-L", env!("CARGO_TARGET_TMPDIR")), "-l:libaio.so.1"];

/// What takes the place of libaio.
fn libaio() -> PathBuf {
    compile("ownaio", "libaio.so.1", &["-shared", "-fPIC", "-Wl,-soname,libaio.so.1"])
}

/// The handover guest as a program into which no library can be loaded.
pub fn static_guest() -> PathBuf {
    compile("handover", "handover-static", &["-static"])
}

/// Libraries that a guest loads, by the variables that name them: one that submits requests to the kernel, and one that
/// needs it; one that has something to say at the end; one that spawns slowly; one with a liburing of its own, one that
/// needs the system's; one to be bound past others, at once or by and by; and the same with one that needs another with
/// a `send` of its own.
fn loaded() -> [(&'static str, PathBuf); 10] {
    const NOW: &[&str] = &["-Wl,-z,relro,-z,now"];
    const LAZY: &[&str] = &["-Wl,-z,lazy"];
    let shared = |name, library, how: &[&str]| compile(name, library, &[&["-shared", "-fPIC"], how].concat());
    shared("ownsend", "libownsend.so", &["-Wl,-soname,libownsend.so"]);
    let needing = |library, how: &[&str]| {
        let directory = concat!("-L", env!("CARGO_TARGET_TMPDIR"));
        shared("ownsend", library, &[&["-DNEEDS_IT", directory, "-Wl,--no-as-needed", "-lownsend"], how].concat())
    };
    [
        ("GUEST_LIBAIO", libaio()),
        ("GUEST_NEEDS_LIBAIO", shared("ownaio", "needs-libaio.so", &["-DNEEDS_IT"])),
        ("GUEST_LAST_WORDS", shared("lastwords", "lastwords.so", &[])),
        ("GUEST_SLOW_SPAWN", shared("slowspawn", "slowspawn.so", &[])),
        ("GUEST_OWN_RINGS", shared("ownrings", "ownrings.so", &[])),
        ("GUEST_NEEDS_LIBURING", shared("rings", "rings.so", &[])),
        ("GUEST_DEEP_NOW", shared("deep", "deep-now.so", NOW)),
        ("GUEST_DEEP_LAZY", shared("deep", "deep-lazy.so", LAZY)),
        ("GUEST_OWN_SEND_NOW", needing("own-send-now.so", NOW)),
        ("GUEST_OWN_SEND_LAZY", needing("own-send-lazy.so", LAZY)),
    ]
}

pub fn compile(name: &str, program: &'static str, flags: &[&str]) -> PathBuf {
    static COMPILED: Mutex<BTreeSet<&str>> = Mutex::new(BTreeSet::new());
    let mut compiled = COMPILED.lock().expect("every guest compiles");
    let is_new = compiled.insert(program);
    let program = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(program);
    if is_new {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/guest").join(name).with_extension("c");
        // One of them is a program that no library can be loaded into.
        let linked = if name == "echo" { "-static" } else { "-pthread" };
        let libraries: &[&str] = match name {
            "rings" | "leavers" => &["-luring"],
            "ownrings" => &["-l:liburing.a"],
            "submits" => &LIBAIO,
            "ownaio" if program.ends_with("needs-libaio.so") => &LIBAIO,
            _ => &[],
        };
        let status = Command::new("cc")
            .args(["-Wall", "-Wextra", "-Wno-deprecated-declarations", "-O1", linked])
            .args(flags)
            .arg(concat!("-Wl,-rpath,", env!("CARGO_TARGET_TMPDIR")))
            .arg("-o")
            .arg(&program)
            .arg(source)
            .args(libraries)
            .status()
            .expect("a C compiler");
        assert!(status.success());
    }
    program
}

pub fn output(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output().expect(program);
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Runs a case of a guest; `None` for the kernel alone.
pub fn run(name: &'static str, case: &str, library: Option<&Path>) -> Result<(), String> {
    // Some cases start them from beside the other ones.
    static_guest();
    compile("environment", "environment-static", &["-static"]);
    compile("images", "images-static", &["-static"]);
    compile("passes", "passes-static", &["-static"]);
    compile("spawns", "spawns-static", &["-static"]);
    run_program(&guest(name), case, library)
}

/// The same for any program.
pub fn run_program(program: &Path, case: &str, library: Option<&Path>) -> Result<(), String> {
    let mut command = Command::new(program);
    command
        .arg(case)
        .env("GUEST_ECHO", guest("echo"))
        .envs(loaded())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped());
    preload::apply(&mut command, library);
    if library.is_some() {
        command.env("GUEST_EXPECTS_LANES", "1");
    }
    let mut group = Group::start(&mut command).map_err(|error| error.to_string())?;
    let (_, _, stderr) = group.pipes();
    let ending = group.finish(LIMIT).map_err(|error| error.to_string())?;
    if ending == Ending::Exit(0) {
        return Ok(());
    }
    let mut said = String::new();
    stderr.map(|mut stderr| stderr.read_to_string(&mut said));
    Err(format!("{case}: {ending:?}: {said}"))
}

/// Tests of all cases of a guest, but for those that other tests run.
#[allow(unused_macros, reason = "no test uses all of it")]
macro_rules! cases {
    ($guest:ident: $($case:ident)*; $($other:ident)*) => {
        mod $guest {
            use std::collections::BTreeSet;

            use $crate::common::{guest, library, output, run};

            const NAME: &str = stringify!($guest);

            $(
                #[test]
                fn $case() {
                    run(NAME, stringify!($case), None).expect("what the case expects is what the kernel does");
                    run(NAME, stringify!($case), Some(library())).expect("a program cannot tell");
                }
            )*

            #[test]
            fn every_case_is_run() {
                let listed: BTreeSet<_> = [$(stringify!($case),)* $(stringify!($other),)*].into();
                let cases = output(guest(NAME).to_str().expect("a plain path"), &[]);
                assert_eq!(listed, cases.lines().collect());
            }
        }
    };
}
