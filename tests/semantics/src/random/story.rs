//! The story of one connection, out of a sequence that is about many.

use std::collections::BTreeSet;

/// The names of descriptors in a text: `c` or `s` and a number.
fn names(text: &str) -> BTreeSet<&str> {
    let is_name = |word: &&str| {
        let mut letters = word.chars();
        matches!(letters.next(), Some('c' | 's')) && word.len() > 1 && letters.all(|letter| letter.is_ascii_digit())
    };
    text.split(|letter: char| !letter.is_ascii_alphanumeric()).filter(is_name).collect()
}

/// What `poll` and `epoll_wait` said about each name: words such as `c4:IN|OUT`.
fn events(line: &str) -> BTreeSet<&str> {
    let answer = line.rsplit_once(" = ").map_or("", |(_, answer)| answer);
    answer.split([' ', '[', ']']).filter(|word| word.contains(':')).collect()
}

fn lists_many(line: &str) -> bool {
    line.contains("poll(") || line.contains("epoll_wait(")
}

/// The names that the first different lines are about: those of which they say different things.
fn concerned<'a>(one: &'a str, other: &'a str) -> BTreeSet<&'a str> {
    match lists_many(one) {
        true => events(one).symmetric_difference(&events(other)).flat_map(|word| names(word)).collect(),
        false => names(one.split(" = ").next().unwrap_or(one)),
    }
}

/// The lines before the difference that concern the same connections.
#[must_use]
pub fn of_difference(before: &[String], one: &str, other: &str) -> Vec<String> {
    let mut cast: BTreeSet<&str> = concerned(one, other);
    // Backwards: a duplicate leads to its original, and an `open` to the other end.
    for line in before.iter().rev() {
        let makes = line.contains("open ") || line.contains("dup");
        if makes && !names(line).is_disjoint(&cast) {
            cast.extend(names(line));
        }
    }
    // And forwards, for the other duplicates.
    for line in before.iter().filter(|line| line.contains("dup(")) {
        if !names(line).is_disjoint(&cast) {
            cast.extend(names(line));
        }
    }
    before.iter().filter_map(|line| shortened(line, &cast)).collect()
}

/// A line as far as it concerns the cast; nothing when it does not.
fn shortened(line: &str, cast: &BTreeSet<&str>) -> Option<String> {
    if !lists_many(line) {
        return (!names(line).is_disjoint(cast)).then(|| line.to_owned());
    }
    let said: Vec<&str> = events(line).into_iter().filter(|word| !names(word).is_disjoint(cast)).collect();
    let call = line.split('(').next().unwrap_or(line);
    let set = line.split_once("epoll_wait(").and_then(|(_, rest)| rest.split(',').next()).unwrap_or("");
    (!said.is_empty()).then(|| format!("{call}({set}) ... {}", said.join(" ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_connection_in_question_is_told() {
        let lines = ["open c0 s1", "open c2 s3", "dup(s3 -> s4) = fd", "send(c0, \"x\") = 1", "send(c2, \"y\") = 1"];
        let lines = lines.map(str::to_owned);
        let told = of_difference(&lines, "recv(s4, 1) = 1", "recv(s4, 1) = 0");
        assert_eq!(told, ["open c2 s3", "dup(s3 -> s4) = fd", "send(c2, \"y\") = 1"]);
    }

    #[test]
    fn lists_are_cut_to_what_differs() {
        let lines = ["open c0 s1".to_owned(), "poll(c0:IN s1:IN c9:IN, 0) = 2 [c0:IN c9:IN]".to_owned()];
        let told =
            of_difference(&lines, "poll(c0:IN c9:IN, 0) = 1 [c0:IN c9:IN]", "poll(c0:IN, 0) = 1 [c0:IN|OUT c9:IN]");
        assert_eq!(told, ["open c0 s1", "poll() ... c0:IN"]);
    }
}
