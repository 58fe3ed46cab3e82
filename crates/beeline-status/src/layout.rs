//! Tables in the terminal: a heading, words to the left, numbers to the right, two spaces between.

use std::fmt::{Display, Write};

use comfy_table::{Cell, CellAlignment, ContentArrangement, Table as Cells, presets};

/// What stands where nothing is known.
pub const NOTHING: &str = "-";

/// A table that is being filled.
pub struct Table {
    cells: Cells,
}

impl Table {
    /// A table with this heading, whose columns `left` are words. All others are numbers.
    pub fn new(heading: &[&str], left: &[usize]) -> Self {
        let mut cells = Cells::new();
        cells.load_style(presets::NOTHING).set_content_arrangement(ContentArrangement::Disabled).set_header(heading);
        for (index, column) in cells.column_iter_mut().enumerate() {
            column.set_padding((0, 2));
            if !left.contains(&index) {
                column.set_cell_alignment(CellAlignment::Right);
            }
        }
        Self { cells }
    }

    /// Adds a row. A cell that is empty stays so; see [`or_nothing`] for what is not known.
    pub fn row<const N: usize>(&mut self, cells: [&dyn Display; N]) {
        self.cells.add_row(cells.map(|cell| Cell::new(harmless(&cell.to_string()))));
    }

    /// The same, for tables whose columns are not known beforehand.
    pub fn row_of(&mut self, cells: &[String]) {
        self.cells.add_row(cells.iter().map(|cell| Cell::new(harmless(cell))));
    }

    /// Writes the table to the end of `text`, without spaces at the ends of lines.
    pub fn write_to(&self, text: &mut String) {
        for line in self.cells.lines() {
            let _ = writeln!(text, "{}", line.trim_end());
        }
    }
}

/// A value, or the sign for none.
pub fn or_nothing(value: Option<impl Display>) -> String {
    value.map_or_else(|| NOTHING.to_owned(), |value| value.to_string())
}

/// A text that steers no terminal. Names come from files and other hosts.
pub fn harmless(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '?' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_stand_left_and_numbers_right() {
        let mut table = Table::new(&["NAME", "COUNT", "REMARK"], &[0, 2]);
        table.row([&"a", &5, &""]);
        table.row_of(&["long\x1b[2J".into(), "12345".into(), or_nothing(None::<u32>)]);
        let mut text = String::new();
        table.write_to(&mut text);
        assert_eq!(text, "NAME      COUNT  REMARK\na             5\nlong?[2J  12345  -\n");
    }
}
