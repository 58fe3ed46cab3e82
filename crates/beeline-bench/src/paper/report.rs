//! The report of a run: one HTML file that needs no server and no network, Markdown, CSV, and each figure as SVG.

mod html;
mod parts;
mod plot;
mod text;

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::cell::{Cell, Told};
use super::grid::Grid;
use super::plan::Table;
use super::store::{Run, write_whole};
use super::summary::both;
use parts::{Curve, Dot, Drawing, Kind, Part, Reference};

/// From so many sizes on, a table is drawn as curves over them.
const CURVE_SIZES: usize = 4;

/// Writes all of it into a directory. Returns the HTML file.
///
/// # Errors
/// When something cannot be written.
pub fn write(run: &Run, into: &Path) -> Result<PathBuf> {
    let figures = into.join("figures");
    std::fs::create_dir_all(&figures).with_context(|| format!("cannot make {}", figures.display()))?;
    let mut parts = Vec::new();
    for table in &run.plan.tables {
        let grid = Grid::of(run, table);
        if grid.rows.is_empty() && grid.missing.is_empty() {
            // The run was for other tables only.
            continue;
        }
        let svg = draw(run, table).map(|drawing| plot::svg(&drawing)).transpose()?;
        if let Some(svg) = &svg {
            write_whole(&figures.join(format!("{}.svg", table.id.get_ref())), svg.as_bytes())?;
        }
        parts.push(Part { grid, svg });
    }
    write_whole(&into.join("report.csv"), &text::csv(run)?)?;
    write_whole(&into.join("report.md"), text::markdown(run, &parts).as_bytes())?;
    let html = into.join("report.html");
    write_whole(&html, html::page(run, &parts).as_bytes())?;
    Ok(html)
}

/// One page that leads to the reports of all runs in a directory, and says how far each has come.
///
/// # Errors
/// When a run cannot be read, or the page cannot be written.
pub fn write_index(above: &Path) -> Result<PathBuf> {
    let mut runs = Vec::new();
    for entry in std::fs::read_dir(above).with_context(|| format!("cannot read {}", above.display()))? {
        let directory = entry?.path();
        if directory.join("report.html").exists() {
            runs.push(Run::read(&directory)?);
        }
    }
    runs.sort_by(|a, b| a.plan.name.get_ref().cmp(b.plan.name.get_ref()));
    let index = above.join("index.html");
    write_whole(&index, html::index(&runs).as_bytes())?;
    Ok(index)
}

/// The figure of a table; `None` where nothing was measured.
fn draw(run: &Run, table: &Table) -> Option<Drawing> {
    // The first column is what the table is about.
    let figure = table.work.and(table.columns().first().copied())?;
    let known = |cell: &Cell| both(run.of(cell)?, figure, run.settings.confidence);
    let measured: Vec<_> = run
        .cells
        .iter()
        .filter(|cell| cell.table == *table.id.get_ref())
        .filter_map(|cell| Some((cell, known(cell)?)))
        .collect();
    let sizes: std::collections::BTreeSet<u64> = measured.iter().map(|(cell, _)| cell.bytes).collect();
    let kind = match sizes.len() {
        0 => return None,
        1..CURVE_SIZES => {
            let dot = |(cell, both): &(&Cell, super::summary::Both)| Dot {
                name: cell.label(&table.told()),
                tcp: both.tcp,
                beeline: both.beeline,
            };
            Kind::Dots(measured.iter().map(dot).collect())
        }
        _ => Kind::Curves(curves(&measured, &table.told())),
    };
    let references = table.published.iter().filter(|published| *published.figure.get_ref() == figure);
    let published = references.map(|published| Reference {
        name: published.name(),
        values: published.numbers().into_iter().map(|(bytes, value)| (bytes.map(|b| b as f64), value)).collect(),
    });
    Some(Drawing { title: table.title.clone(), figure, kind, published: published.collect() })
}

/// The cells of each combination of the other axes, in the order of the plan.
fn curves(measured: &[(&Cell, super::summary::Both)], told: &Told) -> Vec<Curve> {
    let mut curves: Vec<Curve> = Vec::new();
    for (cell, both) in measured {
        for (is_beeline, column, known) in [(false, "TCP", both.tcp), (true, "Beeline", both.beeline)] {
            let series = cell.series(told);
            let name = if series.is_empty() { column.to_owned() } else { format!("{column}, {series}") };
            let point = (cell.bytes as f64, known);
            match curves.iter_mut().find(|curve| curve.name == name) {
                Some(curve) => curve.points.push(point),
                None => curves.push(Curve { name, is_beeline, points: vec![point] }),
            }
        }
    }
    curves
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::paper::store::tests::{pair, settings};
    use crate::paper::store::{Record, Writer};

    const PLAN: &str = "format = 1\nname = \"p\"\ntitle = \"P\"\ndocument = \"D\"\n\
        [[table]]\nid = \"few\"\ntitle = \"T & <U>\"\nsource = \"S\"\nwork = \"latency\"\nbytes = [8, 64]\n\
        [[table.published]]\nwhat = \"them <2>\"\nfigure = \"p50\"\nvalue = \"12 us\"\n\
        [[table]]\nid = \"many\"\ntitle = \"M\"\nsource = \"S\"\nwork = \"latency\"\nbytes = \"1..16 doubling\"\n\
        [[table.published]]\nwhat = \"those\"\nfigure = \"p50\"\nvalue = \"1 us\"\nbytes = 4\n\
        [[table]]\nid = \"none\"\ntitle = \"N\"\nsource = \"S\"\nnot_measured = \"it cannot be\"\n";

    #[test]
    fn a_report_has_every_table_and_every_reason_and_nothing_of_the_outside() {
        let directory = tempfile::tempdir().unwrap();
        let mut writer = Writer::create(directory.path(), PLAN, &settings()).unwrap();
        for round in 0..3 {
            for cell in ["few/bytes=8", "many/bytes=1", "many/bytes=2", "many/bytes=4", "many/bytes=8"] {
                writer.add(&pair(cell, round, 50_000.0 + f64::from(round), 100.0 + f64::from(round))).unwrap();
            }
        }
        writer.add(&Record::Absent { cell: "few/bytes=64".into(), reason: "no <such> thing".into() }).unwrap();
        let error = "beeline: no | luck".to_owned();
        writer.add(&Record::Failed { cell: "many/bytes=16".into(), round: 0, error }).unwrap();
        writer.add(&Record::End { early: Some("it was interrupted".into()) }).unwrap();
        let run = Run::read(directory.path()).unwrap();
        let html = std::fs::read_to_string(write(&run, directory.path()).unwrap()).unwrap();
        for word in ["T &amp; &lt;U&gt;", "no &lt;such&gt; thing", "it cannot be", "no | luck", "them &lt;2&gt;", "500"]
        {
            assert!(html.contains(word), "{word}: {html}");
        }
        assert!(html.contains("it was interrupted") && html.matches("<svg").count() == 2);
        for outside in ["src=\"http", "href=\"http", "<link", "<script", "@import", "url("] {
            assert!(!html.contains(outside), "{outside}");
        }
        let markdown = std::fs::read_to_string(directory.path().join("report.md")).unwrap();
        let rows: Vec<&str> = markdown.lines().filter(|line| line.starts_with("| 8 B ")).collect();
        assert_eq!(rows.len(), 2);
        assert!(markdown.contains("figures/many.svg") && markdown.contains("no \\| luck"), "{markdown}");
        let csv = std::fs::read_to_string(directory.path().join("report.csv")).unwrap();
        let mut reader = csv::Reader::from_reader(csv.as_bytes());
        let records: Vec<csv::StringRecord> = reader.records().map(Result::unwrap).collect();
        assert!(records.iter().any(|record| record.get(1) == Some("few/bytes=64") && csv.contains("no <such> thing")));
        assert_eq!(records.iter().filter(|record| record.get(1) == Some("many/bytes=4")).count(), 2);
        assert!(directory.path().join("figures/few.svg").exists());
        assert!(!directory.path().join("figures/none.svg").exists());
    }

    #[test]
    fn a_run_that_measured_nothing_has_a_report_that_says_so() {
        let directory = tempfile::tempdir().unwrap();
        drop(Writer::create(directory.path(), PLAN, &settings()).unwrap());
        let run = Run::read(directory.path()).unwrap();
        let html = std::fs::read_to_string(write(&run, directory.path()).unwrap()).unwrap();
        assert!(html.contains("the run did not come to it") && html.contains("nothing was measured"));
        let above = tempfile::tempdir().unwrap();
        let copy = above.path().join("p");
        std::fs::create_dir(&copy).unwrap();
        for file in ["plan.toml", "settings.json", "samples.jsonl", "report.html"] {
            std::fs::copy(directory.path().join(file), copy.join(file)).unwrap();
        }
        let index = std::fs::read_to_string(write_index(above.path()).unwrap()).unwrap();
        assert!(index.contains("p/report.html") && index.contains("0 of 7 cells measured"), "{index}");
    }
}
