//! Numbers with the unit that suits them.

/// Bytes with a binary unit: `0 B`, `1023 B`, `1.00 KiB`, `17.5 GiB`.
pub fn bytes(number: u64) -> String {
    const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    if number < 1024 { format!("{number} B") } else { scaled(number as f64 / 1024.0, 1024.0, &UNITS) }
}

/// A count with a decimal unit once it is long: `9999`, `12.3 k`, `4.56 M`.
pub fn count(number: u64) -> String {
    const UNITS: [&str; 6] = ["k", "M", "G", "T", "P", "E"];
    if number < 10_000 { number.to_string() } else { scaled(number as f64 / 1000.0, 1000.0, &UNITS) }
}

/// Seconds: `119 s`, `2 min`, `5 h`, `3 d`.
pub fn time(seconds: u64) -> String {
    match seconds {
        0..120 => format!("{seconds} s"),
        120..7200 => format!("{} min", seconds / 60),
        7200..172_800 => format!("{} h", seconds / 3600),
        _ => format!("{} d", seconds / 86_400),
    }
}

/// Megabits a second: `100 Mb/s`, `1 Gb/s`, `2.5 Gb/s`.
pub fn speed(mbps: u64) -> String {
    if mbps < 1_000 {
        return format!("{mbps} Mb/s");
    }
    let (whole, tenths) = (mbps / 1_000, mbps % 1_000 / 100);
    if tenths == 0 { format!("{whole} Gb/s") } else { format!("{whole}.{tenths} Gb/s") }
}

/// A number of things: `1 core`, `12.3 k connections`.
pub fn plural(number: u64, word: &str) -> String {
    format!("{} {word}{}", count(number), if number == 1 { "" } else { "s" })
}

/// A number that was divided by `step` once, as often again as there are units, with three digits.
fn scaled(mut number: f64, step: f64, units: &[&str]) -> String {
    let mut units = units.iter();
    let mut unit = units.next();
    while number >= step
        && let Some(next) = units.next()
    {
        number /= step;
        unit = Some(next);
    }
    format!("{} {}", three_digits(number), unit.unwrap_or(&""))
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
        assert_eq!([0, 1023, 1024, 100 * 1024].map(bytes), ["0 B", "1023 B", "1.00 KiB", "100 KiB"]);
        assert_eq!(bytes(u64::MAX), "16.0 EiB");
        assert_eq!([9999, 12_345, 4_560_000].map(count), ["9999", "12.3 k", "4.56 M"]);
        assert_eq!(count(u64::MAX), "18.4 E");
    }

    #[test]
    fn units_suit_the_number() {
        assert_eq!([0, 119, 120, 7200, 172_800].map(time), ["0 s", "119 s", "2 min", "2 h", "2 d"]);
        assert_eq!([100, 1_000, 2_500, 100_000].map(speed), ["100 Mb/s", "1 Gb/s", "2.5 Gb/s", "100 Gb/s"]);
        assert_eq!([0, 1, 20_000].map(|n| plural(n, "core")), ["0 cores", "1 core", "20.0 k cores"]);
    }
}
