//! The everyday matrix: servers built in every style, on CPUs that are idle, shared or busy, under ordinary work, over
//! TCP and over Beeline.
//!
//! 1. A cell is a style of server, a placement and a work ([`cell`]). Client and server of a sample are fresh processes
//!    ([`worker`]); for Beeline the library is preloaded, nothing else.
//! 2. Rounds go over all cells. In each a cell is measured over TCP and over Beeline, one right after the other,
//!    beginning with another of the two each round; ratios are those of such pairs, so that what the machine does
//!    meanwhile hits both.
//! 3. Every operation is timed on its own (some 25 ns of clock are in each figure); an answer must be what was asked,
//!    and a stream's bytes must all arrive.
//! 4. CPU time is that of both ends, with the processes that a server has forked.

pub mod cell;
mod client;
mod run;
mod server;
mod show;
mod verdict;
pub mod worker;

use std::process::ExitCode;

use anyhow::{Context, Result};
use serde_json::{Value, json};

use crate::args::BenchOptions;
use crate::interrupt;
use crate::machine::Machine;
use crate::parse;
use crate::process::ensure_without_library;
use run::{EverydayPlan, Matrix};
use verdict::Ratios;

/// Runs the matrix, or those cells of it that were asked for.
pub fn measure(options: &BenchOptions, mount: &[&str]) -> Result<ExitCode> {
    let plan = EverydayPlan::new(options, mount)?;
    if options.list {
        plan.cells().iter().for_each(|cell| say!("{}", cell.name()));
        return Ok(ExitCode::SUCCESS);
    }
    ensure_without_library()?;
    options.save.as_deref().map_or(Ok(()), parse::place)?;
    interrupt::watch(interrupt::Second::Ends)?;
    let machine = Machine::describe()?;
    let matrix = plan.execute();
    let document = document(&machine, &plan, &matrix);
    if let Some(path) = &options.save {
        let text = serde_json::to_string_pretty(&document)?;
        std::fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))?;
    }
    if options.json {
        say!("{}", serde_json::to_string_pretty(&document)?);
    } else {
        show::print(&machine, &plan, &matrix);
    }
    let slower = matrix.cells.values().filter_map(Ratios::of).any(|ratios| !ratios.is_no_slower());
    let failed = matrix.cells.values().any(|measured| !measured.errors.is_empty());
    let bad = failed || matrix.ended_early.is_some() || options.check && slower;
    Ok(ExitCode::from(u8::from(bad)))
}

fn document(machine: &Machine, plan: &EverydayPlan, matrix: &Matrix) -> Value {
    let cells: Vec<Value> = matrix
        .cells
        .iter()
        .map(|(cell, measured)| {
            let ratios = Ratios::of(measured);
            json!({
                "name": cell.name(),
                "style": cell.style,
                "placement": cell.placement,
                "work": cell.work,
                "counts": cell.work.counts(),
                "ratios": ratios,
                "figures": verdict::summary(measured),
                "no_slower": ratios.map(|ratios| ratios.is_no_slower()),
                "samples": measured,
            })
        })
        .collect();
    json!({
        "schema": "beeline-everyday/1",
        "version": env!("CARGO_PKG_VERSION"),
        "machine": machine,
        "cpus": plan.cpus(),
        "rounds": plan.rounds(),
        "sample_ms": plan.duration().as_millis() as u64,
        "library": plan.library,
        "library_options": plan.options,
        "ended_early": matrix.ended_early,
        "cells": cells,
    })
}
