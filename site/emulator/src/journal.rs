//! Orders as browsers saw them, to be held against the database afterwards.

use anyhow::{Context, Result};
use serde::Serialize;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;
use std::sync::Mutex;

/// An order that was sent. The number of the card is drawn anew for each, so it is found again by it.
#[derive(Clone, Debug, Serialize)]
pub struct Attempt {
    pub card: String,
    pub cart: Option<u32>,
    /// The order's number, if the answer came; nothing is known of it otherwise.
    pub order: Option<u32>,
}

/// A line of JSON for each.
pub struct Journal(Option<Mutex<BufWriter<File>>>);

impl Journal {
    pub fn open(path: Option<&Path>) -> Result<Self> {
        let file = path.map(|path| File::create(path).with_context(|| path.display().to_string())).transpose()?;
        Ok(Journal(file.map(|file| Mutex::new(BufWriter::new(file)))))
    }

    pub fn note(&self, attempt: Attempt) {
        if let Some(file) = &self.0 {
            let mut line = serde_json::to_vec(&attempt).expect("an attempt is plain data");
            line.push(b'\n');
            file.lock().expect("nobody panics with it").write_all(&line).expect("the journal cannot be written");
        }
    }

    pub fn finish(&self) -> Result<()> {
        if let Some(file) = &self.0 {
            file.lock().expect("nobody panics with it").flush()?;
        }
        Ok(())
    }
}
