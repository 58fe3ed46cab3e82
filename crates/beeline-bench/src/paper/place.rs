//! Which CPUs a cell's programs run on, and what this host cannot have.

use std::path::Path;

use anyhow::Result;
use beeline_topo::host::Cpu;

use super::cell::{Cell, Load, Move, Place};
use super::programs;
use crate::hosts::place::Host;
use crate::machine::{allowed_cpus, choose_cpus};

/// The CPUs of this host that may be used, and the two of a run.
pub struct Places {
    cpus: Vec<Cpu>,
    chosen: Option<(usize, usize)>,
    /// Whether programs run on other hosts, whose CPUs are not known here.
    between: Option<[Host; 2]>,
}

/// CPUs of client and server; `None` leaves it to the scheduler.
pub type Pair = [Option<usize>; 2];

impl Places {
    pub fn new(wanted: Option<(usize, usize)>, between: Option<[Host; 2]>) -> Result<Self> {
        let allowed = allowed_cpus()?;
        let mut cpus = beeline_topo::sysfs::read(Path::new("/sys")).map(|host| host.cpus).unwrap_or_default();
        cpus.retain(|cpu| allowed.contains(&(cpu.id as usize)));
        let chosen = match wanted {
            Some(wanted) => Some(wanted),
            None if between.is_some() => None,
            None => choose_cpus()?,
        };
        Ok(Self { cpus, chosen, between })
    }

    /// Where the two ends of the cell run.
    ///
    /// # Errors
    /// Why this host cannot have the cell.
    pub fn of(&self, cell: &Cell) -> Result<Pair, String> {
        if let Some(reason) = self.absent(cell) {
            return Err(reason);
        }
        let both = |pair: Option<(usize, usize)>| pair.map_or([None; 2], |(a, b)| [Some(a), Some(b)]);
        let only = "this host has one CPU for the instrument";
        let not_two = |what: &str| format!("this host has no {what}");
        match cell.place {
            Place::Free => Ok([None; 2]),
            Place::Apart if self.between.is_some() => Ok(both(self.chosen)),
            Place::Apart => self.chosen.map(|pair| both(Some(pair))).ok_or_else(|| only.to_owned()),
            Place::Same => Ok([self.chosen.map(|pair| pair.0); 2]),
            Place::Siblings => {
                let pair = self.find(|a, b| (a.core, a.package) == (b.core, b.package));
                pair.map(|pair| both(Some(pair))).ok_or_else(|| not_two("core with two threads"))
            }
            Place::Far => {
                let pair = self.find(|a, b| a.node.is_some() && b.node.is_some() && a.node != b.node);
                pair.map(|pair| both(Some(pair))).ok_or_else(|| not_two("second NUMA node"))
            }
        }
    }

    /// What no host like this has, whatever its CPUs are.
    fn absent(&self, cell: &Cell) -> Option<String> {
        if let Some(program) = &cell.program {
            let is_between = self.between.is_some().then(|| "programs of others run on one host".to_owned());
            if let Some(reason) = is_between.or_else(|| programs::missing(program)) {
                return Some(reason);
            }
        }
        let Some(hosts) = &self.between else {
            return match (cell.moves, cell.mtu, &cell.rails) {
                (Move::Any, None, None) => None,
                (_, _, Some(_)) => Some("on one host nothing goes over a rail: it takes --hosts A,B".into()),
                (Move::Any, Some(_), _) => Some("on one host nothing goes over an interface whose MTU mattered".into()),
                _ => Some("on one host nothing is pushed or pulled: it takes --hosts A,B".into()),
            };
        };
        let is_placed = !matches!(cell.place, Place::Apart | Place::Free);
        if is_placed {
            return Some("the distance of CPUs is chosen on one host only".into());
        }
        let are_namespaces = hosts.iter().all(|host| matches!(host, Host::Namespace(_)));
        if cell.mtu.is_some() && !are_namespaces {
            return Some("the instrument sets the MTU of network namespaces only".into());
        }
        None
    }

    fn find(&self, fits: impl Fn(&Cpu, &Cpu) -> bool) -> Option<(usize, usize)> {
        let mut pairs =
            self.cpus.iter().enumerate().flat_map(|(at, a)| self.cpus[at + 1..].iter().map(move |b| (a, b)));
        pairs.find(|(a, b)| fits(a, b)).map(|(a, b)| (a.id as usize, b.id as usize))
    }

    /// The CPU of the memory load: one that neither end uses, where there is one.
    pub fn load(&self, cell: &Cell, pair: Pair) -> Option<usize> {
        let is_free = |cpu: &&Cpu| !pair.contains(&Some(cpu.id as usize));
        let is_busy = cell.load == Load::Memory && self.between.is_none();
        self.cpus.iter().filter(|_| is_busy && pair[0].is_some()).find(is_free).map(|cpu| cpu.id as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::paper::cell::{Completion, Work};

    fn cpu(id: u32, core: u32, node: u32) -> Cpu {
        Cpu { id, core, package: node, node: Some(node) }
    }

    fn cell(place: Place, moves: Move, mtu: Option<u32>) -> Cell {
        Cell {
            table: "t".into(),
            work: Work::Stream,
            program: None,
            bytes: 8,
            streams: 1,
            completion: Completion::Lazy,
            pace: None,
            buffer: None,
            options: String::new(),
            place,
            load: Load::Memory,
            moves,
            mtu,
            rails: None,
        }
    }

    #[test]
    fn cpus_are_where_the_place_says_or_there_is_a_reason() {
        let big = Places {
            cpus: vec![cpu(0, 0, 0), cpu(1, 0, 0), cpu(2, 1, 0), cpu(3, 0, 1)],
            chosen: Some((0, 2)),
            between: None,
        };
        let at = |place| big.of(&cell(place, Move::Any, None));
        assert_eq!(at(Place::Apart), Ok([Some(0), Some(2)]));
        assert_eq!(at(Place::Siblings), Ok([Some(0), Some(1)]));
        assert_eq!(at(Place::Far), Ok([Some(0), Some(3)]));
        assert_eq!(at(Place::Same), Ok([Some(0), Some(0)]));
        assert_eq!(at(Place::Free), Ok([None, None]));
        assert_eq!(big.load(&cell(Place::Apart, Move::Any, None), [Some(0), Some(2)]), Some(1));
        let small = Places { cpus: vec![cpu(0, 0, 0), cpu(1, 1, 0)], chosen: Some((0, 1)), between: None };
        for place in [Place::Siblings, Place::Far] {
            assert!(small.of(&cell(place, Move::Any, None)).unwrap_err().contains("this host has no"));
        }
        assert_eq!(small.load(&cell(Place::Apart, Move::Any, None), [Some(0), Some(1)]), None);
    }

    #[test]
    fn what_takes_two_hosts_is_not_measured_on_one() {
        let one = Places { cpus: vec![cpu(0, 0, 0), cpu(1, 1, 0)], chosen: Some((0, 1)), between: None };
        assert!(one.of(&cell(Place::Apart, Move::Push, None)).unwrap_err().contains("--hosts"));
        assert!(one.of(&cell(Place::Apart, Move::Any, Some(9000))).is_err());
        let spaces = Host::parse_two("netns:a,netns:b").unwrap();
        let two = Places { cpus: Vec::new(), chosen: None, between: Some(spaces) };
        assert_eq!(two.of(&cell(Place::Apart, Move::Push, Some(9000))), Ok([None, None]));
        assert!(two.of(&cell(Place::Same, Move::Any, None)).is_err());
        let far = Places { cpus: Vec::new(), chosen: None, between: Some(Host::parse_two("netns:a,b").unwrap()) };
        assert!(far.of(&cell(Place::Apart, Move::Any, Some(1500))).unwrap_err().contains("namespaces"));
    }
}
