//! Words of the command line that several commands have.

use std::time::Duration;

/// Which processes to show.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Selection {
    All,
    Pid(u32),
    /// Those of a program, by its name as `ps` shows it.
    Program(String),
}

pub fn parse_selection(text: &str) -> Result<Selection, String> {
    if text == "all" {
        return Ok(Selection::All);
    }
    match text.parse() {
        Ok(0) => Err("no process has this number".into()),
        Ok(pid) => Ok(Selection::Pid(pid)),
        Err(_) if text.is_empty() || text.starts_with('-') || text.bytes().all(|byte| byte.is_ascii_digit()) => {
            Err("it is neither a process id, nor the name of a program, nor `all`".into())
        }
        Err(_) => Ok(Selection::Program(text.to_owned())),
    }
}

pub fn parse_count(text: &str) -> Result<u32, String> {
    match text.parse() {
        Ok(count @ 1..) => Ok(count),
        _ => Err(format!("it is not a number from 1 to {}", u32::MAX)),
    }
}

pub fn parse_interval(text: &str) -> Result<Duration, String> {
    match text.parse() {
        Ok(seconds) if (0.1..=86_400.0).contains(&seconds) => Ok(Duration::from_secs_f64(seconds)),
        _ => Err("it is not a number of seconds from 0.1 to 86400".into()),
    }
}
