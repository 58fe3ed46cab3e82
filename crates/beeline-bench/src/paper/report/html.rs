//! The page: readable on a phone (tables scroll in their boxes) and on paper (tables and figures stay whole).

use std::fmt::Write;

use super::parts::Part;
use crate::paper::gains::{self, Gains};
use crate::paper::grid::notes;
use crate::paper::store::{Measured, Run};

const STYLE: &str = "\
:root { color-scheme: light; font: 16px/1.45 system-ui, sans-serif; color: #1a1a1a; background: #fff }
body { max-width: 76rem; margin: 0 auto; padding: 1rem; overflow-wrap: anywhere }
h1 { font-size: 1.5rem } h2 { font-size: 1.15rem; margin: 2.2rem 0 0.2rem }
.source, .note, footer { color: #555; font-size: 0.9rem; margin: 0.2rem 0 }
.box { overflow-x: auto } .long { max-height: 36rem; overflow-y: auto } .long th { position: sticky; top: 0; background: #fff }
svg { max-width: 100%; height: auto; display: block; margin: 0.6rem 0 }
@media screen and (max-width: 44rem) { svg { max-width: none; width: 44rem } }
table { border-collapse: collapse; font-size: 0.9rem; font-variant-numeric: tabular-nums; margin: 0.6rem 0 }
th, td { padding: 0.25rem 0.6rem; border-bottom: 1px solid #ddd; text-align: right; white-space: nowrap;
  overflow-wrap: normal }
th { white-space: normal; vertical-align: bottom } th:first-child, td:first-child { text-align: left }
nav a { margin-right: 1rem; display: inline-block }
@media print { body { max-width: none; padding: 0 } nav { display: none } section, table, svg { break-inside: avoid }
  .box, .long { overflow: visible; max-height: none } table { font-size: 0.6rem } th, td { padding: 0.1rem 0.2rem } }
@page { size: A4 landscape; margin: 12mm }
";

/// A table of more rows than these is a long one.
const LONG_ROWS: usize = 30;

/// The whole page.
pub fn page(run: &Run, parts: &[Part]) -> String {
    let title = escape(&run.plan.title);
    let mut page = format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <title>{title}</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n<h1>{title}</h1>\n"
    );
    paragraph(&mut page, "source", &format!("Tables of: {}", run.plan.document));
    if let Some(machine) = run.machines.last() {
        paragraph(&mut page, "source", &format!("{}. Beeline {}.", machine.line(), run.settings.version));
    }
    page.push_str("<nav>");
    for part in parts {
        let id = part.grid.table.id.get_ref();
        let _ = write!(page, "<a href=\"#{id}\">{id}</a>");
    }
    page.push_str("</nav>\n");
    for part in parts {
        section(&mut page, part);
    }
    if let Some(Gains { header, rows }) = Gains::of(run) {
        let _ = writeln!(page, "<section id=\"gains\">\n<h2>{}</h2>", gains::TITLE);
        table(&mut page, &header, &rows);
        page.push_str("</section>\n");
    }
    page.push_str("<footer>\n");
    for note in notes(run) {
        paragraph(&mut page, "note", &note);
    }
    page.push_str("</footer>\n</body>\n</html>\n");
    page
}

/// A page that leads to those of several runs.
pub fn index(runs: &[Run]) -> String {
    let mut page = format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <title>The papers' tables</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n<h1>The papers' tables</h1>\n"
    );
    for run in runs {
        let count = |is: fn(&Measured) -> bool| run.cells.iter().filter(|cell| run.of(cell).is_some_and(is)).count();
        let measured = count(|known| !known.tcp.is_empty());
        let failed = count(|known| known.tcp.is_empty() && !known.errors.is_empty());
        let absent = count(|known| known.absent.is_some());
        let folder = run.directory.file_name().unwrap_or_default().to_string_lossy();
        let title = escape(&run.plan.title);
        let _ = writeln!(page, "<h2><a href=\"{}/report.html\">{title}</a></h2>", escape(&folder));
        paragraph(&mut page, "source", &format!("Tables of: {}", run.plan.document));
        let cells = run.cells.len();
        let mut line =
            format!("{measured} of {cells} cells measured, {failed} failed, {absent} that this host cannot have");
        if let Some(why) = &run.ended_early {
            let _ = write!(line, "; the run ended early: {why}");
        }
        paragraph(&mut page, "note", &line);
    }
    page.push_str("</body>\n</html>\n");
    page
}

fn section(page: &mut String, part: &Part) {
    let table = part.grid.table;
    let _ = writeln!(page, "<section id=\"{}\">\n<h2>{}</h2>", table.id.get_ref(), escape(&table.title));
    paragraph(page, "source", &table.source);
    // Plotters escapes what it draws.
    if let Some(svg) = &part.svg {
        // Smaller than this, its words cannot be read: on a phone it scrolls.
        let _ = writeln!(page, "<div class=\"box\">\n{svg}\n</div>");
    }
    self::table(page, &part.grid.header, &part.grid.rows);
    for (what, reason) in &part.grid.missing {
        paragraph(page, "note", &format!("Not measured, {what}: {reason}"));
    }
    for line in part.grid.published() {
        paragraph(page, "note", &format!("Published, {line}"));
    }
    if let Some(note) = &table.note {
        paragraph(page, "note", note);
    }
    page.push_str("</section>\n");
}

fn table(page: &mut String, header: &[String], rows: &[Vec<String>]) {
    if rows.is_empty() {
        return;
    }
    // What would push all that follows off the screen scrolls under its head.
    let class = if rows.len() > LONG_ROWS { "box long" } else { "box" };
    let _ = write!(page, "<div class=\"{class}\">\n<table>\n<thead>");
    row(page, "th", header);
    page.push_str("</thead>\n<tbody>\n");
    for cells in rows {
        row(page, "td", cells);
    }
    page.push_str("</tbody>\n</table>\n</div>\n");
}

fn row(page: &mut String, tag: &str, cells: &[String]) {
    page.push_str("<tr>");
    for cell in cells {
        let _ = write!(page, "<{tag}>{}</{tag}>", escape(cell));
    }
    page.push_str("</tr>\n");
}

fn paragraph(page: &mut String, class: &str, text: &str) {
    let _ = writeln!(page, "<p class=\"{class}\">{}</p>", escape(text));
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
