//! Compiles the C side of the edge to libfabric against the headers that this machine has.
//!
//! libfabric's data path is inline functions over tables of function pointers, so something in C has to call them.
//! The published bindings (`ofi-libfabric-sys`) do not compile against libfabric 1.17, which Debian 12 has, and
//! need libclang. `shim.c` is all that the crate uses of libfabric, and a C compiler is always there.

fn main() {
    println!("cargo:rerun-if-changed=src/shim.c");
    println!("cargo:rerun-if-changed=src/shim.h");
    let libfabric = match pkg_config::Config::new().atleast_version("1.17").probe("libfabric") {
        Ok(library) => library,
        Err(error) => {
            eprintln!("beeline-fabric needs libfabric 1.17 or newer (Debian: libfabric-dev): {error}");
            std::process::exit(1);
        }
    };
    let mut build = cc::Build::new();
    build.file("src/shim.c").includes(&libfabric.include_paths).flag("-std=gnu11").flag("-Wall").flag("-Wextra");
    build.flag("-Wmissing-prototypes").flag("-Wno-unused-parameter").compile("beeline_fabric_shim");
    // After the shim, which needs it.
    println!("cargo:rustc-link-lib=fabric");
}
