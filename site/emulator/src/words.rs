//! What browsers type into forms, and the names that the store's data follow.

use rand::Rng;

pub const SUBJECTS: [&str; 24] = [
    "ARTS",
    "BIOGRAPHIES",
    "BUSINESS",
    "CHILDREN",
    "COMPUTERS",
    "COOKING",
    "HEALTH",
    "HISTORY",
    "HOME",
    "HUMOR",
    "LITERATURE",
    "MYSTERY",
    "NON-FICTION",
    "PARENTING",
    "POLITICS",
    "REFERENCE",
    "RELIGION",
    "ROMANCE",
    "SELF-HELP",
    "SCIENCE-NATURE",
    "SCIENCE-FICTION",
    "SPORTS",
    "YOUTH",
    "TRAVEL",
];
pub const CARDS: [&str; 5] = ["VISA", "MASTERCARD", "DISCOVER", "AMEX", "DINERS"];
pub const SHIPPING: [&str; 6] = ["AIR", "UPS", "FEDEX", "SHIP", "COURIER", "MAIL"];
pub const COUNTRIES: [&str; 6] = ["United States", "Germany", "Japan", "Iceland", "Brazil", "Zambia"];

const SYLLABLES: [&str; 10] = ["BA", "OG", "AL", "RI", "RE", "SE", "AT", "UL", "IN", "NG"];

/// DigSyl: a syllable for each digit, with zeros in front up to so many digits.
pub fn dig_syl(number: u32, digits: usize) -> String {
    format!("{number:0digits$}").bytes().map(|digit| SYLLABLES[usize::from(digit - b'0')]).collect()
}

pub fn one_of<'a>(words: &[&'a str], random: &mut impl Rng) -> &'a str {
    words[random.random_range(0..words.len())]
}

pub fn letters(least: usize, most: usize, random: &mut impl Rng) -> String {
    let length = random.random_range(least..=most);
    (0..length).map(|_| char::from(random.random_range(b'a'..=b'z'))).collect()
}

pub fn digits(count: usize, random: &mut impl Rng) -> String {
    (0..count).map(|_| char::from(random.random_range(b'0'..=b'9'))).collect()
}

/// A form as it is sent: names and values that need no escape but for blanks.
#[derive(Default)]
pub struct Form(String);

impl Form {
    pub fn with(mut self, name: &str, value: impl AsRef<str>) -> Self {
        if !self.0.is_empty() {
            self.0.push('&');
        }
        self.0.push_str(name);
        self.0.push('=');
        for byte in value.as_ref().bytes() {
            match byte {
                b' ' => self.0.push('+'),
                b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' => self.0.push(char::from(byte)),
                _ => self.0.push_str(&format!("%{byte:02X}")),
            }
        }
        self
    }

    pub fn with_number(self, name: &str, value: Option<u32>) -> Self {
        match value {
            Some(number) => self.with(name, number.to_string()),
            None => self,
        }
    }

    pub fn finish(self) -> String {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn syllables() {
        assert_eq!(dig_syl(1_234_567_890, 0), "OGALRIRESEATULINNGBA");
        assert_eq!(dig_syl(42, 7), "BABABABABAREAL");
    }

    #[test]
    fn forms_are_escaped() {
        let form = Form::default()
            .with("A", "United States")
            .with("B", "x@y/z")
            .with_number("C", Some(3))
            .with_number("D", None);
        assert_eq!(form.finish(), "A=United+States&B=x%40y%2Fz&C=3");
    }
}
