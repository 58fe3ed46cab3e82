//! Compiles the one thing that Rust cannot express: leaving a signal handler by `siglongjmp`.

fn main() {
    println!("cargo:rerun-if-changed=src/jump.c");
    cc::Build::new().file("src/jump.c").warnings(true).compile("semantics_jump");
}
