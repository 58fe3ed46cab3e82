//! Where a port is said to be, on the command line.

use beeline_topo::host::Override;

/// `PORT=NODE,NODE`.
pub fn parse_near(text: &str) -> Result<Override, String> {
    let wrong = || "it is not of the form PORT=NODE or PORT=NODE,NODE".to_owned();
    let (port, nodes) = text.split_once('=').ok_or_else(wrong)?;
    let nodes: Vec<u32> = nodes.split(',').map(str::parse).collect::<Result<_, _>>().map_err(|_| wrong())?;
    if port.is_empty() {
        return Err(wrong());
    }
    Ok(Override { port: port.into(), nodes, speed_mbps: None })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_s_place_is_given_as_a_list_of_nodes() {
        let near = parse_near("eth0=1,3").unwrap();
        assert_eq!((near.port.as_str(), near.nodes), ("eth0", vec![1, 3]));
        for wrong in ["eth0", "=1", "eth0=", "eth0=1,", "eth0=x"] {
            assert!(parse_near(wrong).is_err(), "{wrong}");
        }
    }
}
