//! The macro behind the closed lists: one line an entry, everything else is derived from it.

/// Defines a closed list: `Variant = "name": "Sentence."`.
///
/// Entries are numbered from 0 in the order they are written. The number is the index into the
/// arrays of the statistics file, so entries are only ever added at the end; an entry that is moved
/// needs a new [`crate::layout::VERSION`].
macro_rules! closed_list {
    (
        $(#[$meta:meta])*
        pub enum $list:ident {
            $( $variant:ident = $name:literal : $sentence:literal, )+
        }
    ) => {
        $(#[$meta])*
        #[repr(u16)]
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum $list {
            $( #[doc = $sentence] $variant, )+
        }

        impl $list {
            /// Every entry, in the order of its number.
            pub const ALL: &'static [$list] = &[ $( $list::$variant, )+ ];

            /// How many entries there are.
            pub const COUNT: usize = Self::ALL.len();

            /// The name in `snake_case`, as it appears in JSON.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $( $list::$variant => $name, )+ }
            }

            /// What it means, as one sentence for people.
            #[must_use]
            pub const fn sentence(self) -> &'static str {
                match self { $( $list::$variant => $sentence, )+ }
            }

            /// The index into the arrays of the statistics file.
            #[must_use]
            pub const fn index(self) -> usize {
                self as usize
            }

            /// The entry with this number, as read from a word that may hold anything.
            #[must_use]
            pub fn from_number(number: u16) -> Option<$list> {
                Self::ALL.get(usize::from(number)).copied()
            }
        }

        impl core::fmt::Display for $list {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                f.write_str(self.name())
            }
        }

        #[cfg(test)]
        mod list_tests {
            use super::$list;
            use std::{format, string::String, collections::BTreeSet};

            #[test]
            fn names_are_the_variants_in_snake_case_and_unique() {
                let mut seen = BTreeSet::new();
                for entry in $list::ALL {
                    let mut snake = String::new();
                    for c in format!("{entry:?}").chars() {
                        if c.is_uppercase() && !snake.is_empty() {
                            snake.push('_');
                        }
                        snake.extend(c.to_lowercase());
                    }
                    assert_eq!(entry.name(), snake);
                    assert!(seen.insert(entry.name()), "{} appears twice", entry.name());
                }
            }

            #[test]
            fn sentences_are_sentences() {
                for entry in $list::ALL {
                    let sentence = entry.sentence();
                    assert!(sentence.ends_with('.'), "{sentence}");
                    assert!(sentence.chars().next().unwrap().is_uppercase(), "{sentence}");
                    assert!(!sentence.contains('\n'), "{sentence}");
                    assert!(sentence.len() <= 160, "{} is too long for a line", entry.name());
                }
            }

            #[test]
            fn numbers_lead_back_to_their_entries() {
                for (index, entry) in $list::ALL.iter().enumerate() {
                    assert_eq!(entry.index(), index);
                    assert_eq!($list::from_number(index as u16), Some(*entry));
                }
                assert_eq!($list::from_number($list::COUNT as u16), None);
                assert_eq!($list::from_number(u16::MAX), None);
            }
        }
    };
}
