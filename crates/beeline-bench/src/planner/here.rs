//! A file of links from a host as it is: its ports, what PCI gives them, and the link between its NUMA nodes.

use std::fmt::Write;
use std::path::Path;

use beeline_topo::host::{Host, Port};

/// Where the kernel shows PCI devices.
const DEVICES: &str = "bus/pci/devices";
/// From this rate of a lane on, 128 bits are sent as 130, before that 8 as 10; PCI Express Base Specification, 3.0 and
/// later.
const LANE_OF_130: f64 = 8.0;

/// The text of a plan, which a reader can print and change.
///
/// # Errors
/// What is missing, and what was expected.
pub fn text(host: &Host, sysfs: Option<&Path>, between: Option<&str>) -> Result<String, String> {
    let known: Vec<(&Port, u32)> = host.ports.iter().filter_map(|port| Some((port, port.speed_mbps?))).collect();
    if known.is_empty() {
        let names: Vec<&str> = host.ports.iter().map(Port::name).collect();
        let ports =
            if names.is_empty() { "it has no ports".to_owned() } else { format!("it has {}", names.join(", ")) };
        return Err(format!("no port of {} tells its speed ({ports}): expected a port that does", host.source));
    }
    let mut text = format!(
        "# Links of a host, from {}. Rates are those of the wires, less nothing: set what was measured.\nformat = 1\ntitle = {}\n\
         document = \"none: {}\"\n",
        host.source,
        quoted(&format!("This host: {} ports, {} NUMA nodes", known.len(), host.nodes.len().max(1))),
        host.source.replace('"', "'")
    );
    let nodes = host.nodes.len();
    for (port, mbps) in &known {
        link(&mut text, port.name(), &format!("{mbps} Mbit/s"), "the port's own word");
        if let Some((rate, source)) = pci(port, sysfs) {
            link(&mut text, &pci_name(port), &format!("{rate:.0} Mbit/s"), &source);
        }
    }
    match between {
        Some(rate) if nodes > 1 => link(&mut text, BETWEEN, rate, "given on the command line"),
        _ => {}
    }
    let has_between = between.is_some() && nodes > 1;
    let over = |port: &Port, is_far: bool| {
        let mut links = vec![quoted(port.name())];
        links.extend(pci(port, sysfs).map(|_| quoted(&pci_name(port))));
        links.extend((is_far && has_between).then(|| quoted(BETWEEN)));
        format!("{{ name = {}, over = [{}] }}", quoted(port.name()), links.join(", "))
    };
    for (port, _) in &known {
        let near: Vec<String> = port.nodes.iter().map(u32::to_string).collect();
        let place = if nodes > 1 && !near.is_empty() {
            format!(", from NUMA node {}", near.join(" or "))
        } else {
            String::new()
        };
        case(&mut text, &format!("{} alone{place}", port.name()), None, &[over(port, false)]);
        if has_between && !near.is_empty() {
            let first = format!("{} alone{place}", port.name());
            case(&mut text, &format!("{} alone, from the far node", port.name()), Some(&first), &[over(port, true)]);
        }
    }
    if known.len() > 1 {
        let flows: Vec<String> = known.iter().map(|(port, _)| over(port, false)).collect();
        let (first, _) = known[0];
        let near: Vec<String> = first.nodes.iter().map(u32::to_string).collect();
        let place = if nodes > 1 && !near.is_empty() {
            format!(", from NUMA node {}", near.join(" or "))
        } else {
            String::new()
        };
        case(&mut text, "all at once", Some(&format!("{} alone{place}", first.name())), &flows);
    }
    Ok(text)
}

const BETWEEN: &str = "inter-processor link";

fn pci_name(port: &Port) -> String {
    format!("PCI of {}", port.pci.as_deref().unwrap_or_else(|| port.name()))
}

fn link(text: &mut String, name: &str, rate: &str, source: &str) {
    // Ports of one device share its slot.
    let head = format!("\n[[link]]\nname = {}\n", quoted(name));
    if !text.contains(&head) {
        let _ = write!(text, "{head}rate = {}\nsource = {}\n", quoted(rate), quoted(source));
    }
}

fn case(text: &mut String, name: &str, against: Option<&str>, flows: &[String]) {
    let _ = write!(text, "\n[[case]]\nname = {}\n", quoted(name));
    if let Some(against) = against {
        let _ = writeln!(text, "against = {}", quoted(against));
    }
    let _ = writeln!(text, "flow = [{}]", flows.join(", "));
}

fn quoted(words: &str) -> String {
    toml::Value::from(words).to_string()
}

/// What the slot of a port gives, in Mbit/s, and how that is known.
fn pci(port: &Port, sysfs: Option<&Path>) -> Option<(f64, String)> {
    let device = sysfs?.join(DEVICES).join(port.pci.as_ref()?);
    let word = |name: &str| std::fs::read_to_string(device.join(name)).ok();
    let speed = word("current_link_speed")?;
    let lane: f64 = speed.split_whitespace().next()?.parse().ok()?;
    let width: f64 = word("current_link_width")?.trim().parse().ok()?;
    let encoding = if lane >= LANE_OF_130 { 128.0 / 130.0 } else { 0.8 };
    let rate = lane * 1000.0 * width * encoding;
    (rate > 0.0).then(|| (rate, format!("{width} lanes of {lane} GT/s, less their encoding")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::paper::Source;
    use beeline_topo::host::Node;

    fn port(name: &str, pci: &str, node: u32, mbps: Option<u32>) -> Port {
        Port {
            netdev: Some(name.into()),
            rdma: None,
            pci: Some(pci.into()),
            model: None,
            nodes: vec![node],
            speed_mbps: mbps,
        }
    }

    fn host(ports: Vec<Port>) -> Host {
        let node = |id| Node { id, memory_bytes: None };
        Host { source: "a \"test\"".into(), nodes: vec![node(0), node(1)], ports, ..Host::default() }
    }

    #[test]
    fn a_host_is_planned_with_its_slots_and_the_link_between_its_nodes() {
        let sysfs = tempfile::tempdir().unwrap();
        let device = sysfs.path().join(DEVICES).join("0000:01:00.0");
        std::fs::create_dir_all(&device).unwrap();
        std::fs::write(device.join("current_link_speed"), "8.0 GT/s PCIe\n").unwrap();
        std::fs::write(device.join("current_link_width"), "8\n").unwrap();
        let host = host(vec![
            port("eth0", "0000:01:00.0", 0, Some(40_000)),
            port("eth1", "0000:01:00.0", 0, Some(40_000)),
            port("eth2", "0000:02:00.0", 1, None),
        ]);
        let text = text(&host, Some(sysfs.path()), Some("20 Gbit/s")).unwrap();
        let model = crate::planner::file::read(&Source { name: "here".into(), text: &text }).unwrap();
        let planned = model.plan();
        let names: Vec<&str> = model.links.iter().map(|link| link.name.as_str()).collect();
        assert_eq!(names, ["eth0", "PCI of 0000:01:00.0", "eth1", BETWEEN]);
        // 8 lanes of 8 GT/s are 63 Gbit/s, so two ports of 40 Gbit/s get 63 instead of 80.
        let ratio = |name: &str| planned.iter().find(|case| case.name == name).unwrap().ratio.unwrap();
        assert!((ratio("all at once") - 63.015 / 40.0).abs() < 0.001, "{}", ratio("all at once"));
        assert_eq!(ratio("eth0 alone, from the far node"), 0.5);
    }

    #[test]
    fn a_host_without_speeds_is_told_what_was_expected() {
        let error = text(&host(vec![port("eth0", "0000:01:00.0", 0, None)]), None, None).unwrap_err();
        assert!(error.contains("it has eth0") && error.contains("expected"), "{error}");
    }
}
