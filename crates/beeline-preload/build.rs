//! Says to the linker what belongs together.

fn main() {
    println!("cargo::rerun-if-changed=layout.ld");
    for argument in ["-T", concat!(env!("CARGO_MANIFEST_DIR"), "/layout.ld")] {
        println!("cargo::rustc-cdylib-link-arg=-Xlinker");
        println!("cargo::rustc-cdylib-link-arg={argument}");
    }
}
