//! A tree of lines in the terminal.

use std::io::IsTerminal;

use beeline_status::layout::harmless;

/// How a piece of a line is to look where there are colours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tone {
    Plain,
    /// What the line is about.
    Strong,
    /// What can be overlooked.
    Faint,
}

/// A line made of pieces, and the lines below it.
#[derive(Debug, Default)]
pub struct Tree {
    line: Vec<(Tone, String)>,
    below: Vec<Self>,
}

/// The means of the terminal.
#[derive(Clone, Copy, Debug)]
pub struct Style {
    pub ascii: bool,
    pub colour: bool,
}

impl Style {
    /// What standard output can show.
    pub fn of_terminal(ascii: bool) -> Self {
        let set = |name| std::env::var(name).ok().filter(|value| !value.is_empty());
        let colour = std::io::stdout().is_terminal()
            && set("NO_COLOR").is_none()
            && set("TERM").is_some_and(|terminal| terminal != "dumb");
        Self { ascii: ascii || !is_utf8(["LC_ALL", "LC_CTYPE", "LANG"].into_iter().find_map(set).as_deref()), colour }
    }
}

/// Whether a locale's encoding is UTF-8. The plain C locale is not.
fn is_utf8(locale: Option<&str>) -> bool {
    let encoding = locale.and_then(|locale| locale.split_once('.')).map(|(_, encoding)| encoding.to_ascii_lowercase());
    encoding.is_some_and(|encoding| encoding.starts_with("utf-8") || encoding.starts_with("utf8"))
}

impl Tree {
    /// A line that begins with this piece.
    pub fn new(tone: Tone, text: impl Into<String>) -> Self {
        Self::default().and(tone, text)
    }

    /// The line with a piece more, two spaces apart. An empty piece is left out.
    pub fn and(mut self, tone: Tone, text: impl Into<String>) -> Self {
        let text = text.into();
        if !text.is_empty() {
            self.line.push((tone, text));
        }
        self
    }

    /// Adds a line below.
    pub fn push(&mut self, below: Self) {
        self.below.push(below);
    }

    pub fn is_leaf(&self) -> bool {
        self.below.is_empty()
    }

    fn write(&self, style: &Style, own: &str, below: &str, text: &mut String) {
        let pieces: Vec<String> = self.line.iter().map(|(tone, piece)| style.piece(*tone, piece)).collect();
        text.push_str(own);
        text.push_str(&pieces.join("  "));
        text.push('\n');
        let (branch, last_branch, trunk) =
            if style.ascii { ("|- ", "`- ", "|  ") } else { ("├─ ", "└─ ", "│  ") };
        for (index, line) in self.below.iter().enumerate() {
            let is_last = index + 1 == self.below.len();
            let own = format!("{below}{}", if is_last { last_branch } else { branch });
            let further = format!("{below}{}", if is_last { "   " } else { trunk });
            line.write(style, &own, &further, text);
        }
    }
}

impl Style {
    /// Names come from files and other hosts: what would steer the terminal is not passed on.
    fn piece(self, tone: Tone, piece: &str) -> String {
        let safe = harmless(piece);
        let safe = if self.ascii { safe.replace('→', "->").replace('↔', "<->") } else { safe };
        match (self.colour, tone) {
            (true, Tone::Strong) => format!("\x1b[1m{safe}\x1b[0m"),
            (true, Tone::Faint) => format!("\x1b[2m{safe}\x1b[0m"),
            _ => safe,
        }
    }
}

/// Several trees below each other, with an empty line between them.
#[derive(Debug, Default)]
pub struct Forest(pub Vec<Tree>);

impl Forest {
    pub fn render(&self, style: &Style) -> String {
        let mut text = String::new();
        for tree in &self.0 {
            if !text.is_empty() {
                text.push('\n');
            }
            tree.write(style, "", "", &mut text);
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Forest {
        let mut node = Tree::new(Tone::Plain, "node 0");
        node.push(Tree::new(Tone::Strong, "eth\x1b[31m0").and(Tone::Plain, "").and(Tone::Faint, "a → b"));
        let mut host = Tree::new(Tone::Plain, "host");
        host.push(node);
        host.push(Tree::new(Tone::Plain, "node 1"));
        Forest(vec![host, Tree::new(Tone::Plain, "end")])
    }

    #[test]
    fn lines_are_drawn_as_the_terminal_can() {
        let plain = sample().render(&Style { ascii: false, colour: false });
        assert_eq!(plain, "host\n├─ node 0\n│  └─ eth?[31m0  a → b\n└─ node 1\n\nend\n");
        let ascii = sample().render(&Style { ascii: true, colour: false });
        assert_eq!(ascii, "host\n|- node 0\n|  `- eth?[31m0  a -> b\n`- node 1\n\nend\n");
        let colour = sample().render(&Style { ascii: true, colour: true });
        assert!(colour.contains("\x1b[1meth?[31m0\x1b[0m  \x1b[2ma -> b\x1b[0m"), "{colour}");
    }

    #[test]
    fn the_locale_says_what_letters_there_are() {
        for (locale, answer) in [
            (Some("de_DE.UTF-8"), true),
            (Some("C.utf8"), true),
            (Some("en_US.UTF-8@euro"), true),
            (Some("C"), false),
            (Some("de_DE.ISO-8859-1"), false),
            (None, false),
        ] {
            assert_eq!(is_utf8(locale), answer, "{locale:?}");
        }
    }
}
