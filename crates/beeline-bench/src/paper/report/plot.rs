//! Figures. Scales are logarithmic: the two systems are often two orders of magnitude apart, and sizes seven.

use anyhow::{Result, anyhow};
use plotters::coord::Shift;
use plotters::coord::ranged1d::ValueFormatter;
use plotters::prelude::*;

use super::parts::{Curve, Dot, Drawing, Kind, Reference};
use crate::paper::axis::show_bytes;
use crate::paper::figure::Figure;
use crate::paper::summary::Known;

const SIZE: (u32, u32) = (900, 460);
/// A line of a figure with dots.
const DOT_LINE: u32 = 34;
/// Right of a figure: the last label of its scale stands in the middle of the edge.
const EDGE: u32 = 36;
const FONT: (&str, u32) = ("sans-serif", 14);
/// TCP's colours and Beeline's, for readers who see few colours too: vermilion and blue of Okabe and Ito, each lighter
/// for the next curve.
const TCP: RGBColor = RGBColor(213, 94, 0);
const BEELINE: RGBColor = RGBColor(0, 114, 178);
const REFERENCE: RGBColor = RGBColor(110, 110, 110);

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// The figure as SVG.
pub fn svg(drawing: &Drawing) -> Result<String> {
    let mut svg = String::new();
    let height = match &drawing.kind {
        Kind::Curves(_) => SIZE.1,
        Kind::Dots(dots) => 130 + DOT_LINE * (dots.len() + drawing.published.len()) as u32,
    };
    {
        let area = SVGBackend::with_string(&mut svg, (SIZE.0, height)).into_drawing_area();
        area.fill(&WHITE)?;
        let drawn = match &drawing.kind {
            Kind::Curves(curves) => draw_curves(&area, drawing, curves),
            Kind::Dots(dots) => draw_dots(&area, drawing, dots),
        };
        drawn.map_err(|error| anyhow!("a figure cannot be drawn: {error}"))?;
        area.present()?;
    }
    Ok(svg)
}

/// From below the least to above the largest, so that nothing lies on the edge.
fn range(values: impl Iterator<Item = f64>) -> std::ops::Range<f64> {
    let (low, high) = values
        .filter(|value| value.is_finite() && *value > 0.0)
        .fold((f64::MAX, 0.0), |(low, high), v| (f64::min(low, v), f64::max(high, v)));
    if high <= 0.0 { 0.1..10.0 } else { low / 1.5..high * 1.5 }
}

fn extent(known: &Known) -> [f64; 3] {
    [known.median, known.interval.low, known.interval.high]
}

/// What a logarithmic scale says at a point: its round numbers only, and fewer of them the more it spans, so that none
/// stands in another's place. Every scale has one at least, as it spans more than two.
fn label(value: f64, scale: &std::ops::Range<f64>, show: impl Fn(f64) -> String) -> String {
    let first = value / 10_f64.powf((value.log10() + 1e-9).floor());
    let spans = scale.end / scale.start;
    let told: &[f64] = if spans > 100.0 {
        &[1.0]
    } else if spans > 10.0 {
        &[1.0, 2.0, 5.0]
    } else {
        &[1.0, 2.0, 3.0, 5.0]
    };
    if told.iter().any(|told| (first - told).abs() < 1e-6) { show(value) } else { String::new() }
}

/// A lighter shade for each further curve of a column.
fn shade(colour: RGBColor, index: usize) -> RGBColor {
    let lighter = |part: u8| part.saturating_add(((255 - part) / 4) * index.min(3) as u8);
    RGBColor(lighter(colour.0), lighter(colour.1), lighter(colour.2))
}

fn draw_curves(area: &Area, drawing: &Drawing, curves: &[Curve]) -> Result<(), Box<dyn std::error::Error>> {
    let references = drawing.published.iter().flat_map(|reference| &reference.values).map(|(_, value)| *value);
    let values = curves.iter().flat_map(|curve| &curve.points).flat_map(|(_, known)| extent(known));
    let sizes = || curves.iter().flat_map(|curve| &curve.points).map(|(bytes, _)| *bytes);
    let first = sizes().fold(f64::MAX, f64::min);
    let last = sizes().fold(1.0, f64::max);
    let mut chart = ChartBuilder::on(area)
        .caption(&drawing.title, ("sans-serif", 17))
        .margin(10)
        .margin_right(EDGE)
        .x_label_area_size(42)
        .y_label_area_size(84)
        .build_cartesian_2d((first..last * 1.05).log_scale().base(2.0), range(values.chain(references)).log_scale())?;
    chart
        .configure_mesh()
        .light_line_style(TRANSPARENT)
        .label_style(FONT)
        .x_desc("message size")
        .y_desc(drawing.figure.title())
        .x_label_formatter(&|bytes| show_bytes(bytes.round() as u64))
        .y_label_formatter(&|value| drawing.figure.unit().show(*value))
        .draw()?;
    let mut drawn = [0; 2];
    for curve in curves {
        let base = if curve.is_beeline { BEELINE } else { TCP };
        let colour = shade(base, drawn[usize::from(curve.is_beeline)]);
        drawn[usize::from(curve.is_beeline)] += 1;
        let line = curve.points.iter().map(|(bytes, known)| (*bytes, known.median));
        let style = colour.stroke_width(2);
        chart
            .draw_series(LineSeries::new(line, style))?
            .label(&curve.name)
            .legend(move |(x, y)| PathElement::new(vec![(x, y), (x + 18, y)], style));
        let bars = curve.points.iter().map(|(bytes, known)| {
            PathElement::new(vec![(*bytes, known.interval.low), (*bytes, known.interval.high)], colour)
        });
        chart.draw_series(bars)?;
    }
    for reference in &drawing.published {
        // What belongs to one size is a cross there, what holds for all a dashed line, as is what was published as a
        // curve.
        let style = REFERENCE.stroke_width(2);
        let series = match reference.values[..] {
            [(Some(bytes), value)] => chart.draw_series([Cross::new((bytes, value), 5, REFERENCE.stroke_width(2))])?,
            _ => {
                let ends = |&(bytes, value): &(Option<f64>, f64)| match bytes {
                    Some(bytes) => vec![(bytes, value)],
                    None => vec![(first, value), (last, value)],
                };
                let is_within = |(bytes, _): &(f64, f64)| (first..=last).contains(bytes);
                let line: Vec<_> = reference.values.iter().flat_map(ends).filter(is_within).collect();
                chart.draw_series(DashedLineSeries::new(line, 6, 4, style))?
            }
        };
        series.label(&reference.name).legend(move |(x, y)| match_legend(x, y, style));
    }
    chart
        .configure_series_labels()
        .position(match drawing.figure {
            Figure::Throughput | Figure::Rate => SeriesLabelPosition::LowerRight,
            _ => SeriesLabelPosition::UpperLeft,
        })
        .background_style(WHITE.mix(0.8))
        .border_style(TRANSPARENT)
        .label_font(("sans-serif", 12))
        .draw()?;
    Ok(())
}

/// The dashed line of the legend.
fn match_legend(x: i32, y: i32, style: ShapeStyle) -> PathElement<(i32, i32)> {
    PathElement::new(vec![(x, y), (x + 7, y)], style)
}

fn draw_dots(area: &Area, drawing: &Drawing, dots: &[Dot]) -> Result<(), Box<dyn std::error::Error>> {
    let references = drawing.published.iter().flat_map(|reference| &reference.values).map(|(_, value)| *value);
    let values = dots.iter().flat_map(|dot| [extent(&dot.tcp), extent(&dot.beeline)].concat());
    let lines: Vec<&str> = dots
        .iter()
        .map(|dot| dot.name.as_str())
        .chain(drawing.published.iter().map(|reference| reference.name.as_str()))
        .collect();
    let count = lines.len() as f64;
    let scale = range(values.chain(references));
    let mut chart = ChartBuilder::on(area)
        .caption(&drawing.title, ("sans-serif", 17))
        .margin(10)
        .margin_right(EDGE)
        .x_label_area_size(42)
        .y_label_area_size(width_of(&lines))
        .build_cartesian_2d(scale.clone().log_scale(), Lines(count))?;
    chart
        .configure_mesh()
        .disable_y_mesh()
        .light_line_style(TRANSPARENT)
        .label_style(FONT)
        .y_labels(lines.len())
        .x_desc(format!("{} (vermilion: TCP, blue: Beeline, grey: published)", drawing.figure.title()))
        .x_label_formatter(&|value| label(*value, &scale, |value| drawing.figure.unit().show(value)))
        .y_label_formatter(&|line| name_of(&lines, *line))
        .draw()?;
    // The first line of the table is the uppermost.
    let height = |index: usize| count - 0.5 - index as f64;
    for (index, dot) in dots.iter().enumerate() {
        for (known, colour, shift) in [(&dot.tcp, TCP, 0.12), (&dot.beeline, BEELINE, -0.12)] {
            let y = height(index) + shift;
            let bar = vec![(known.interval.low, y), (known.interval.high, y)];
            chart.draw_series([PathElement::new(bar, colour.stroke_width(3))])?;
            chart.draw_series([Circle::new((known.median, y), 5, colour.filled())])?;
        }
    }
    for (index, Reference { values, .. }) in drawing.published.iter().enumerate() {
        let cross =
            |(_, value): &(_, f64)| Cross::new((*value, height(dots.len() + index)), 5, REFERENCE.stroke_width(2));
        chart.draw_series(values.iter().map(cross))?;
    }
    Ok(())
}

/// What the names of lines take left of a figure: a letter of this font is not wider than seven pixels on average.
fn width_of(lines: &[&str]) -> u32 {
    let longest = lines.iter().map(|line| line.chars().count()).max().unwrap_or(0) as u32;
    (7 * longest + 24).clamp(120, SIZE.0 / 2)
}

fn name_of(lines: &[&str], height: f64) -> String {
    let index = lines.len() as f64 - 0.5 - height;
    lines.get(index.round() as usize).map(|&line| line.to_owned()).unwrap_or_default()
}

/// The vertical axis of a figure with dots: a line for each, labelled in its middle.
struct Lines(f64);

impl Ranged for Lines {
    type FormatOption = plotters::coord::ranged1d::NoDefaultFormatting;
    type ValueType = f64;

    fn map(&self, value: &f64, limit: (i32, i32)) -> i32 {
        limit.0 + ((value / self.0) * f64::from(limit.1 - limit.0)).round() as i32
    }

    fn key_points<Hint: plotters::coord::ranged1d::KeyPointHint>(&self, _: Hint) -> Vec<f64> {
        (0..self.0 as usize).map(|line| line as f64 + 0.5).collect()
    }

    fn range(&self) -> std::ops::Range<f64> {
        0.0..self.0
    }
}

impl ValueFormatter<f64> for Lines {
    fn format(value: &f64) -> String {
        value.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stats::Interval;

    #[test]
    fn a_range_holds_its_values_whatever_they_are() {
        assert!(range([3.0, 5.0].into_iter()).contains(&3.0));
        for strange in [vec![], vec![0.0], vec![f64::NAN], vec![f64::INFINITY]] {
            let range = range(strange.into_iter());
            assert!(range.start > 0.0 && range.end > range.start && range.end.is_finite());
        }
    }

    #[test]
    fn labels_of_the_scale_end_within_a_figure_of_dots() {
        let known = |median| Known { median, interval: Interval { low: median, high: median, confidence: 0.9 } };
        // The scale ends a little above 9 GB/s, where its last label is.
        let dot = Dot { name: "a dot".into(), tcp: known(1e9), beeline: known(6.01e9) };
        let kind = Kind::Dots(vec![dot]);
        let svg = svg(&Drawing { title: "t".into(), figure: Figure::Throughput, kind, published: Vec::new() }).unwrap();
        let centred =
            svg.split("<text ").filter(|text| text.contains("text-anchor=\"middle\"") && text.contains("GB/s"));
        let at = |text: &str| text.split("x=\"").nth(1).and_then(|x| x.split('"').next()?.parse().ok());
        let places: Vec<u32> = centred.filter_map(at).collect();
        assert!(!places.is_empty(), "{svg}");
        assert!(places.iter().all(|x| x + EDGE <= SIZE.0), "{places:?}");
    }

    #[test]
    fn what_was_published_as_a_curve_is_a_dashed_line_within_what_was_measured() {
        let known = |median| Known { median, interval: Interval { low: median, high: median, confidence: 0.9 } };
        let points = [1.0, 1024.0].map(|bytes| (bytes, known(1e4))).to_vec();
        let curve = || Curve { name: "ours".into(), is_beeline: true, points: points.clone() };
        let draw = |values: Vec<(Option<f64>, f64)>| {
            let published = vec![Reference { name: "theirs".into(), values }];
            let kind = Kind::Curves(vec![curve()]);
            svg(&Drawing { title: "t".into(), figure: Figure::P50, kind, published }).unwrap()
        };
        let dashes = |svg: &str| svg.matches("stroke=\"#6E6E6E\"").count();
        let [level, rising] = [vec![(None, 1e5)], vec![(Some(1.0), 1e5), (Some(1024.0), 1e6)]].map(draw);
        assert!(dashes(&level) > 20 && dashes(&rising) > 20 && rising.matches("theirs").count() == 1, "{rising}");
        let beyond = draw(vec![(Some(1.0), 1e5), (Some(2.0), 1e5), (Some(1e9), 1e5)]);
        assert!(dashes(&beyond) < 20, "{beyond}");
    }

    #[test]
    fn a_scale_has_some_round_numbers_and_not_too_many() {
        let told = |start: f64, times: f64| {
            let points =
                (-12..60).flat_map(|tenth| (1..10).map(move |digit| f64::from(digit) * 10_f64.powi(tenth / 4)));
            let scale = start..start * times;
            let mut said: Vec<String> =
                points.filter(|at| scale.contains(at)).map(|at| label(at, &scale, |at| at.to_string())).collect();
            said.retain(|said| !said.is_empty());
            said.dedup();
            said.into_iter().collect::<std::collections::BTreeSet<_>>().len()
        };
        for start in 10..100 {
            for times in [2.25, 5.0, 20.0, 1000.0] {
                assert!((1..=6).contains(&told(f64::from(start) / 10.0, times)), "{start} {times}");
            }
        }
        assert_eq!(label(1000.0, &(900.0..2100.0), |value| value.to_string()), "1000");
    }

    #[test]
    fn the_longest_name_has_room() {
        assert_eq!(width_of(&["short"]), 120);
        assert_eq!(width_of(&["short", "40 Gb Ethernet, RoCE (92.2 % of peak): 4613.88 MB/s"]), 381);
        assert_eq!(width_of(&[&"long ".repeat(100)]), 450);
    }

    #[test]
    fn lines_are_named_from_above() {
        assert_eq!((name_of(&["a", "b"], 1.5), name_of(&["a", "b"], 0.5)), ("a".into(), "b".into()));
    }
}
