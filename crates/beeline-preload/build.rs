//! Says to the linker what belongs together.

fn main() {
    println!("cargo::rerun-if-changed=layout.ld");
    // Without what a compiler's start files do at the end of a library: each child of a fork that calls exit(3) would
    // run it, on three pages that it does not have yet. It takes back what was registered by a library that is
    // unloaded, so this one never is. (They mark the end of `.eh_frame`, too, which unwinders find by its table.)
    println!("cargo::rustc-cdylib-link-arg=-nostartfiles");
    for argument in ["-z", "nodelete", "-T", concat!(env!("CARGO_MANIFEST_DIR"), "/layout.ld")] {
        println!("cargo::rustc-cdylib-link-arg=-Xlinker");
        println!("cargo::rustc-cdylib-link-arg={argument}");
    }
}
