//! The instrument as a program of its own, for work on it. Users call `beeline bench`.

use std::process::ExitCode;

use beeline_bench::BenchArgs;
use clap::Parser;

#[derive(Parser)]
#[command(version, about)]
struct Cli {
    #[command(flatten)]
    bench: BenchArgs,
}

fn main() -> ExitCode {
    match beeline_bench::run(Cli::parse().bench, &[]) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("beeline-bench: {error:#}");
            ExitCode::from(2)
        }
    }
}
