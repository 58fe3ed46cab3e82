//! The instrument as a program of its own, for work on it. Users call `beeline bench`.

use std::io::Write;
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
            // Nobody may be there to read it.
            let _ = writeln!(std::io::stderr(), "beeline-bench: {error:#}");
            ExitCode::from(2)
        }
    }
}
