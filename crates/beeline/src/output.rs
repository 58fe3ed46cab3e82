//! Writing to standard output, and numbers for people.

use std::io::{self, Write};

/// Writes text to standard output. Whoever reads it may stop when they have seen enough (`| head`),
/// which is no error: the result is whether anybody still reads.
pub fn print(text: &str) -> anyhow::Result<bool> {
    let mut stdout = io::stdout().lock();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(anyhow::Error::new(error).context("cannot write to standard output")),
    }
}

/// Bytes with a binary unit: `0 B`, `1023 B`, `1.00 KiB`, `17.5 GiB`.
pub fn bytes(number: u64) -> String {
    const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    if number < 1024 {
        return format!("{number} B");
    }
    let mut scaled = number as f64 / 1024.0;
    let mut unit = 0;
    while scaled >= 1024.0 && unit + 1 < UNITS.len() {
        scaled /= 1024.0;
        unit += 1;
    }
    format!("{} {}", three_digits(scaled), UNITS[unit])
}

/// A count with a decimal unit once it is long: `9999`, `12.3 k`, `4.56 M`.
pub fn count(number: u64) -> String {
    if number < 10_000 {
        return number.to_string();
    }
    let mut scaled = number as f64 / 1000.0;
    let mut units = ["k", "M", "G", "T", "P", "E"].iter();
    let mut unit = units.next();
    while scaled >= 1000.0
        && let Some(next) = units.next()
    {
        scaled /= 1000.0;
        unit = Some(next);
    }
    format!("{} {}", three_digits(scaled), unit.unwrap_or(&""))
}

fn three_digits(number: f64) -> String {
    if number < 10.0 {
        format!("{number:.2}")
    } else if number < 100.0 {
        format!("{number:.1}")
    } else {
        format!("{number:.0}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_keep_three_digits() {
        assert_eq!(bytes(0), "0 B");
        assert_eq!(bytes(1023), "1023 B");
        assert_eq!(bytes(1024), "1.00 KiB");
        assert_eq!(bytes(100 * 1024), "100 KiB");
        assert_eq!(bytes(u64::MAX), "16.0 EiB");
        assert_eq!(count(9999), "9999");
        assert_eq!(count(12_345), "12.3 k");
        assert_eq!(count(4_560_000), "4.56 M");
        assert_eq!(count(u64::MAX), "18.4 E");
    }
}
