//! Which CPUs a cell's programs run on, and what this host cannot have.

use std::net::IpAddr;
use std::path::Path;

use anyhow::Result;
use beeline_topo::host::Cpu;

use super::axis::Turn;
use super::cell::{Cell, Move, Place, Work};
use super::loads::{Ground, Loader, loaders};
use super::programs::{self, apart};
use crate::hosts::place::Host;
use crate::hosts::{self, Layout, Layouts, Nodes};
use crate::machine::{allowed_cpus, choose_cpus};

/// The CPUs of this host that may be used, and the two of a run.
pub struct Places {
    cpus: Vec<Cpu>,
    chosen: Option<(usize, usize)>,
    between: Option<Between>,
}

/// Two hosts, whose CPUs are not known here, and how programs and rails stand to each other there, or why nobody knows.
pub struct Between {
    pub hosts: [Host; 2],
    pub nodes: [Nodes; 2],
    pub layouts: Result<Layouts, String>,
}

/// Where the two ends of a cell run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stand {
    /// CPUs of client and server; `None` leaves it to the scheduler.
    pub cpus: [Option<usize>; 2],
    /// Where the client connects, if it is not there that it stays: the bridge chooses a rail then.
    pub begin: Option<usize>,
    /// The rail that is to carry it, where the cell says how far it is.
    pub over: Option<Over>,
    /// Where a second pair of programs runs at the same time, in the layouts of two.
    pub second: Option<Box<Stand>>,
    /// What else is done meanwhile.
    pub loads: Vec<Loader>,
}

/// A rail between two hosts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Over {
    /// What it is called at the client's host, and at the server's.
    pub rails: [String; 2],
    /// What TCP is to connect to, so that it takes the same one.
    pub address: IpAddr,
}

impl Stand {
    fn at(pair: Option<(usize, usize)>) -> Stand {
        Stand { cpus: pair.map_or([None; 2], |(client, server)| [Some(client), Some(server)]), ..Stand::default() }
    }

    /// As many of a layout's programs as are measured together.
    fn of(layouts: &Layouts, layout: Layout, pairs: usize) -> Option<Stand> {
        let mut stands = layouts.stands(layout).into_iter().take(pairs).map(Stand::over);
        let first = stands.next()?;
        Some(Stand { second: stands.next().map(Box::new), ..first })
    }

    fn over(stand: hosts::Stand) -> Stand {
        Stand {
            cpus: [Some(stand.client), stand.server],
            begin: Some(stand.begin),
            over: Some(Over { rails: stand.rails, address: stand.address }),
            ..Stand::default()
        }
    }

    /// This one, and the second.
    pub fn all(&self) -> impl Iterator<Item = &Stand> {
        std::iter::once(self).chain(self.second.as_deref())
    }
}

impl Places {
    pub fn new(wanted: Option<(usize, usize)>, between: Option<Between>) -> Result<Self> {
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
    pub fn of(&self, cell: &Cell) -> Result<Stand, String> {
        if let Some(program) = &cell.program {
            let between = self.between.as_ref();
            let not_between = || between.and_then(|between| apart::objection(&between.hosts));
            let not_this = || between.and_then(|_| programs::not_between(program));
            if let Some(reason) = programs::missing(program).or_else(not_this).or_else(not_between) {
                return Err(reason);
            }
        }
        let stand = match &self.between {
            Some(between) => self.between_hosts(cell, between),
            None => self.on_one_host(cell),
        }?;
        let ground = match &self.between {
            Some(between) => Ground::TwoHosts { nodes: &between.nodes, is_by_nodes: cell.place.layout().is_some() },
            None => Ground::OneHost { cpus: &self.cpus, ends: stand.cpus },
        };
        Ok(Stand { loads: loaders(cell.load, &ground)?, ..stand })
    }

    fn on_one_host(&self, cell: &Cell) -> Result<Stand, String> {
        let is_of_bridges = turn(cell).is_some_and(|turn| turn.is_of_bridges);
        match (cell.moves, cell.mtu, &cell.rails) {
            _ if cell.place == Place::Hosts => {
                return Err("on one host both ends would be the same one's: it takes --hosts A,B".into());
            }
            _ if matches!(cell.place, Place::Near | Place::Local | Place::Remote | Place::Both) => {
                return Err(
                    "on one host nothing goes over a rail whose node could be near: it takes --hosts A,B".into()
                );
            }
            _ if cell.chunk.is_some() => {
                return Err("on one host no bridge cuts what it moves into chunks: it takes --hosts A,B".into());
            }
            _ if cell.coalescing.is_some() => {
                return Err("on one host nothing goes over an interface that interrupts: it takes --hosts A,B".into());
            }
            _ if is_of_bridges => return Err("on one host no bridge pushes or pulls: it takes --hosts A,B".into()),
            (Move::Any, None, None) => {}
            (_, _, Some(_)) => return Err("on one host nothing goes over a rail: it takes --hosts A,B".into()),
            (Move::Any, Some(_), _) => {
                return Err("on one host nothing goes over an interface whose MTU mattered".into());
            }
            _ => return Err("on one host nothing is pushed or pulled: it takes --hosts A,B".into()),
        }
        let only = "this host has one CPU for the instrument";
        let not_two = |what: &str| format!("this host has no {what}");
        match cell.place {
            Place::Free | Place::Near | Place::Local | Place::Remote | Place::Both | Place::Hosts => {
                Ok(Stand::default())
            }
            Place::Apart => self.chosen.map(|pair| Stand::at(Some(pair))).ok_or_else(|| only.to_owned()),
            Place::Same => Ok(Stand { cpus: [self.chosen.map(|pair| pair.0); 2], ..Stand::default() }),
            Place::Siblings => {
                let pair = self.find(|a, b| (a.core, a.package) == (b.core, b.package));
                pair.map(|pair| Stand::at(Some(pair))).ok_or_else(|| not_two("core with two threads"))
            }
            Place::Far => {
                let pair = self.find(|a, b| a.node.is_some() && b.node.is_some() && a.node != b.node);
                pair.map(|pair| Stand::at(Some(pair))).ok_or_else(|| not_two("second NUMA node"))
            }
        }
    }

    fn between_hosts(&self, cell: &Cell, between: &Between) -> Result<Stand, String> {
        let are_namespaces = between.hosts.iter().all(|host| matches!(host, Host::Namespace(_)));
        if cell.mtu.is_some() && !are_namespaces {
            return Err("the instrument sets the MTU of network namespaces only".into());
        }
        if turn(cell).is_some_and(|turn| !turn.is_of_bridges) {
            return Err("options of the library are turned at two processes of one host".into());
        }
        let layout = match (cell.place, cell.place.layout()) {
            (Place::Same | Place::Siblings, _) => return Err("the two ends are on two hosts".into()),
            (Place::Apart, _) => return Ok(Stand::at(self.chosen)),
            (_, Some(Layout::Remote)) if cell.work.is_program() => {
                return Err("a program of others connects where it stays, and the bridge chooses a rail there".into());
            }
            (_, None) => return Ok(Stand::default()),
            (_, Some(layout)) => layout,
        };
        if layout == Layout::Remote && matches!(cell.work, Work::ConnectRequest | Work::ConnectClose) {
            return Err("a connection that is made anew takes the rail of the CPU that makes it".into());
        }
        let layouts = between.layouts.as_ref().map_err(|why| format!("how far a rail is from a CPU: {why}"))?;
        if !layouts.has(layout) {
            return Err("the rails between the hosts are all at one NUMA node".into());
        }
        Stand::of(layouts, layout, cell.place.pairs()).ok_or_else(|| "there is no CPU for it".to_owned())
    }

    fn find(&self, fits: impl Fn(&Cpu, &Cpu) -> bool) -> Option<(usize, usize)> {
        let mut pairs =
            self.cpus.iter().enumerate().flat_map(|(at, a)| self.cpus[at + 1..].iter().map(move |b| (a, b)));
        pairs.find(|(a, b)| fits(a, b)).map(|(a, b)| (a.id as usize, b.id as usize))
    }
}

/// What the cell turns.
fn turn(cell: &Cell) -> Option<Turn> {
    Turn::parse(cell.turn.as_deref()?).ok()
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::hosts::{About, Common};
    use crate::paper::cell::{Completion, Load};

    pub fn cpu(id: u32, core: u32, node: u32) -> Cpu {
        Cpu { id, core, package: node, node: Some(node) }
    }

    fn at(place: Place, moves: Move, mtu: Option<u32>) -> Cell {
        Cell { place, moves, mtu, ..cell() }
    }

    pub fn cell() -> Cell {
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
            place: Place::Apart,
            load: Load::None,
            moves: Move::Any,
            chunk: None,
            mtu: None,
            coalescing: None,
            rails: None,
            turn: None,
        }
    }

    #[test]
    fn cpus_are_where_the_place_says_or_there_is_a_reason() {
        let big = Places {
            cpus: vec![cpu(0, 0, 0), cpu(1, 0, 0), cpu(2, 1, 0), cpu(3, 0, 1)],
            chosen: Some((0, 2)),
            between: None,
        };
        let cpus = |place| big.of(&at(place, Move::Any, None)).map(|stand| stand.cpus);
        assert_eq!(cpus(Place::Apart), Ok([Some(0), Some(2)]));
        assert_eq!(cpus(Place::Siblings), Ok([Some(0), Some(1)]));
        assert_eq!(cpus(Place::Far), Ok([Some(0), Some(3)]));
        assert_eq!(cpus(Place::Same), Ok([Some(0), Some(0)]));
        assert_eq!(cpus(Place::Free), Ok([None, None]));
        let small = Places { cpus: vec![cpu(0, 0, 0), cpu(1, 1, 0)], chosen: Some((0, 1)), between: None };
        let loaded = Cell { load: Load::BetweenNodes, ..at(Place::Apart, Move::Any, None) };
        assert!(small.of(&loaded).unwrap_err().contains("no second NUMA node"));
        let loads = big.of(&Cell { place: Place::Far, ..loaded }).unwrap().loads;
        assert_eq!(
            loads.iter().map(|load| (load.cpu, load.memory_node)).collect::<Vec<_>>(),
            [(Some(1), Some(1)), (Some(3), Some(0))]
        );
        for place in [Place::Siblings, Place::Far] {
            assert!(small.of(&at(place, Move::Any, None)).unwrap_err().contains("this host has no"));
        }
    }

    #[test]
    fn what_takes_two_hosts_is_not_measured_on_one() {
        let one = Places { cpus: vec![cpu(0, 0, 0), cpu(1, 1, 0)], chosen: Some((0, 1)), between: None };
        assert!(one.of(&at(Place::Apart, Move::Push, None)).unwrap_err().contains("--hosts"));
        assert!(one.of(&at(Place::Apart, Move::Any, Some(9000))).is_err());
        let cut = Cell { chunk: Some(1 << 16), ..at(Place::Apart, Move::Any, None) };
        assert!(one.of(&cut).unwrap_err().contains("--hosts"));
        assert!(one.of(&at(Place::Near, Move::Any, None)).unwrap_err().contains("--hosts"));
        let between = |hosts| {
            let hosts = Host::parse_two(hosts).unwrap();
            let between = Between {
                hosts,
                nodes: Default::default(),
                layouts: Err("the client's host has one NUMA node".into()),
            };
            Places { cpus: Vec::new(), chosen: None, between: Some(between) }
        };
        let two = between("netns:a,netns:b");
        assert_eq!(two.of(&at(Place::Apart, Move::Push, Some(9000))), Ok(Stand::default()));
        assert_eq!(two.of(&cut), Ok(Stand::default()));
        assert!(two.of(&at(Place::Same, Move::Any, None)).unwrap_err().contains("two hosts"));
        for place in [Place::Near, Place::Far] {
            assert!(two.of(&at(place, Move::Any, None)).unwrap_err().contains("one NUMA node"));
        }
        assert!(between("netns:a,b").of(&at(Place::Apart, Move::Any, Some(1500))).unwrap_err().contains("namespaces"));
    }

    #[test]
    fn what_is_turned_is_turned_where_it_is() {
        let turned = |turn: &str| Cell { turn: Some(turn.into()), ..at(Place::Apart, Move::Any, None) };
        let one = Places { cpus: vec![cpu(0, 0, 0), cpu(1, 1, 0)], chosen: Some((0, 1)), between: None };
        assert!(one.of(&turned("turn_bytes=off..256K")).is_ok());
        assert!(one.of(&turned("pull_min=64M..4K")).unwrap_err().contains("--hosts"));
        let hosts = Host::parse_two("netns:a,netns:b").unwrap();
        let between = Between { hosts, nodes: Default::default(), layouts: Err("nobody knows".into()) };
        let two = Places { cpus: Vec::new(), chosen: None, between: Some(between) };
        assert!(two.of(&turned("pull_min=64M..4K")).is_ok());
        assert!(two.of(&turned("turn_bytes=off..256K")).unwrap_err().contains("one host"));
    }

    #[test]
    fn programs_of_others_run_between_hosts_that_they_can_reach() {
        let two = |hosts| {
            let hosts = Host::parse_two(hosts).unwrap();
            let between = Between { hosts, nodes: Default::default(), layouts: Err("nobody knows".into()) };
            Places { cpus: Vec::new(), chosen: None, between: Some(between) }
        };
        let directory = tempfile::tempdir().unwrap();
        let own = directory.path().join("own.sh").display().to_string();
        std::fs::write(&own, "").unwrap();
        let of = |program: &str, place| Cell {
            work: Work::ProgramLatency,
            program: Some(program.to_owned()),
            ..at(place, Move::Any, None)
        };
        assert_eq!(two("netns:a,netns:b").of(&of(&own, Place::Hosts)), Ok(Stand::default()));
        assert_eq!(two("local,beta").of(&of(&own, Place::Hosts)), Ok(Stand::default()));
        assert!(two("alpha,beta").of(&of(&own, Place::Hosts)).unwrap_err().contains("ssh"));
        assert!(two("netns:a,netns:b").of(&of(&own, Place::Far)).unwrap_err().contains("where it stays"));
        assert!(programs::not_between("lam").unwrap().contains("root"));
        assert_eq!((programs::not_between("mpich"), programs::not_between(&own)), (None, None));
        let one = Places { cpus: Vec::new(), chosen: None, between: None };
        assert!(one.of(&of(&own, Place::Hosts)).unwrap_err().contains("--hosts"));
        let coalescing = Cell { coalescing: Some("rx-usecs=0".into()), ..at(Place::Free, Move::Any, None) };
        assert!(one.of(&coalescing).unwrap_err().contains("interrupts"));
    }

    #[test]
    fn programs_stand_at_the_node_of_a_rail_or_away_from_it() {
        let nodes = std::collections::BTreeMap::from([(0, vec![0, 1, 2]), (1, vec![3, 4, 5])]);
        let about = About { nodes, ..About::here(None).unwrap() };
        let names = ["a".to_owned(), "b".to_owned()];
        let address: IpAddr = [10, 9, 0, 2].into();
        let rail = Common { names: names.clone(), server_address: address, nodes: [Some(1), Some(0)] };
        let layouts = Layouts::find([&about, &about], &[rail]).map_err(|why| why.to_string());
        let nodes = [&about, &about].map(|about| about.nodes.clone());
        let between = Between { hosts: Host::parse_two("a,b").unwrap(), nodes, layouts };
        let two = Places { cpus: Vec::new(), chosen: None, between: Some(between) };
        let over = Some(Over { rails: names, address });
        let stand = |begin, cpus: [usize; 2]| Stand {
            cpus: cpus.map(Some),
            begin: Some(begin),
            over: over.clone(),
            ..Stand::default()
        };
        assert_eq!(two.of(&at(Place::Near, Move::Any, None)), Ok(stand(3, [3, 0])));
        // It connects where the bridge takes this rail, and then moves.
        assert_eq!(two.of(&at(Place::Far, Move::Any, None)), Ok(stand(3, [0, 3])));
        let anew = Cell { work: Work::ConnectClose, ..at(Place::Far, Move::Any, None) };
        assert!(two.of(&anew).unwrap_err().contains("made anew"));
        // The layouts have two pairs.
        let local = Stand { second: Some(Box::new(stand(4, [4, 1]))), ..stand(3, [3, 0]) };
        assert_eq!(two.of(&at(Place::Local, Move::Any, None)), Ok(local));
        assert!(two.of(&at(Place::Both, Move::Any, None)).unwrap_err().contains("at one NUMA node"));
    }
}
