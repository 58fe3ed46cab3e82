//! What a report is made of: tables, and what is drawn of them.

use crate::paper::figure::Figure;
use crate::paper::grid::Grid;
use crate::paper::summary::Known;

/// One table of the report, with its figure if there is something to draw.
pub struct Part<'a> {
    pub grid: Grid<'a>,
    pub svg: Option<String>,
}

/// What is drawn of a table: the main figure.
pub struct Drawing {
    pub title: String,
    pub figure: Figure,
    pub kind: Kind,
    pub published: Vec<Reference>,
}

/// How.
pub enum Kind {
    /// Over the message size: a curve for each combination of the other axes, over TCP and over Beeline.
    Curves(Vec<Curve>),
    /// A line for each cell.
    Dots(Vec<Dot>),
}

pub struct Curve {
    pub name: String,
    pub is_beeline: bool,
    pub points: Vec<(f64, Known)>,
}

pub struct Dot {
    pub name: String,
    pub tcp: Known,
    pub beeline: Known,
}

/// A figure of the document, drawn beside.
pub struct Reference {
    pub name: String,
    /// Each with the size that it belongs to, in their order; none for all sizes.
    pub values: Vec<(Option<f64>, f64)>,
}
