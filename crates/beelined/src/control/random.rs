//! Numbers that nobody can guess.

pub fn random<const N: usize>() -> anyhow::Result<[u8; N]> {
    use ring::rand::{SecureRandom, SystemRandom};
    let mut bytes = [0; N];
    SystemRandom::new().fill(&mut bytes).map_err(|_| anyhow::anyhow!("the system has no random numbers"))?;
    Ok(bytes)
}
