//! Pairs on the command line.

pub fn sockets(text: &str) -> Result<[String; 2], String> {
    let (a, b) = text.split_once(',').ok_or("expected two paths, as in a.sock,b.sock")?;
    Ok([a.to_owned(), b.to_owned()])
}

pub fn cpus(text: &str) -> Result<(usize, usize), String> {
    let (a, b) = text.split_once(',').ok_or("expected two CPU numbers, as in 0,1")?;
    let number = |s: &str| s.trim().parse::<usize>().map_err(|e| format!("{s}: {e}"));
    Ok((number(a)?, number(b)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpus_are_a_pair() {
        assert_eq!(cpus("0, 3"), Ok((0, 3)));
        assert!(cpus("0").is_err());
        assert!(cpus("a,b").is_err());
    }
}
