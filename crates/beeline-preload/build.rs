//! Says to the linker what belongs together.

fn main() {
    println!("cargo::rerun-if-changed=fork.ld");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-T,{}/fork.ld", env!("CARGO_MANIFEST_DIR"));
}
