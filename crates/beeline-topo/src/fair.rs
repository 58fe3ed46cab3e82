//! What flows get that share links: max-min fair rates.
//!
//! A flow's rate can grow only by taking from one that has no more than it. So all rates are raised alike; a link that
//! becomes full holds the flows that cross it where they are, and so does a flow's own limit; the others go on. See
//! Bertsekas and Gallager, *Data Networks*, section 6.5.2.

/// A flow: some streams alike, over the same links.
#[derive(Clone, Debug, PartialEq)]
pub struct Flow {
    /// The links it crosses, by their place in the list of capacities. One that is named twice is crossed twice.
    pub links: Vec<usize>,
    /// How many streams it is; each is treated alike.
    pub streams: u32,
    /// What one stream can do where nothing else limits it.
    pub most: Option<f64>,
}

/// What a flow gets, and what keeps it from more.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Share {
    /// Of all its streams together.
    pub rate: f64,
    /// The link that is full; `None` if the streams themselves can do no more.
    pub held_by: Option<usize>,
}

/// Why there are no shares.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FairError {
    /// A flow crosses a link that is not in the list.
    NoSuchLink(usize),
    /// A flow has no limit at all: no link, and none of its own.
    Unlimited(usize),
    /// A capacity or a limit is negative or no number.
    NoRate,
}

impl std::fmt::Display for FairError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::NoSuchLink(link) => write!(f, "there is no link {link}"),
            Self::Unlimited(flow) => write!(f, "nothing limits flow {flow}"),
            Self::NoRate => f.write_str("a rate is negative or no number"),
        }
    }
}

impl std::error::Error for FairError {}

/// The max-min fair share of each flow.
///
/// # Errors
/// When the flows and the links do not belong together.
pub fn shares(capacities: &[f64], flows: &[Flow]) -> Result<Vec<Share>, FairError> {
    check(capacities, flows)?;
    let mut left = capacities.to_vec();
    let mut held: Vec<Option<Share>> = vec![None; flows.len()];
    // Each turn holds a flow at least.
    while let Some((level, held_by)) = next_level(&left, flows, &held) {
        for (flow, held) in flows.iter().zip(&mut held).filter(|(_, held)| held.is_none()) {
            let is_own = held_by.is_none() && flow.most.is_some_and(|most| most <= level);
            let is_full = held_by.is_some_and(|link| flow.links.contains(&link));
            if !is_own && !is_full {
                continue;
            }
            let rate = level * f64::from(flow.streams);
            *held = Some(Share { rate, held_by });
            for &link in &flow.links {
                if let Some(left) = left.get_mut(link) {
                    *left = (*left - rate).max(0.0);
                }
            }
        }
    }
    Ok(held.into_iter().map(|share| share.unwrap_or(Share { rate: 0.0, held_by: None })).collect())
}

fn check(capacities: &[f64], flows: &[Flow]) -> Result<(), FairError> {
    let limits = flows.iter().filter_map(|flow| flow.most);
    if capacities.iter().copied().chain(limits).any(|rate| !rate.is_finite() || rate < 0.0) {
        return Err(FairError::NoRate);
    }
    for (index, flow) in flows.iter().enumerate() {
        if let Some(&link) = flow.links.iter().find(|link| **link >= capacities.len()) {
            return Err(FairError::NoSuchLink(link));
        }
        if flow.links.is_empty() && flow.most.is_none() {
            return Err(FairError::Unlimited(index));
        }
    }
    Ok(())
}

/// The lowest rate of a stream at which one of the flows that still grow is held, and by which link.
fn next_level(left: &[f64], flows: &[Flow], held: &[Option<Share>]) -> Option<(f64, Option<usize>)> {
    let growing = || flows.iter().zip(held).filter(|(_, held)| held.is_none()).map(|(flow, _)| flow);
    let own = growing().filter_map(|flow| flow.most).map(|most| (most, None));
    let full = left.iter().enumerate().filter_map(|(link, left)| {
        let crossings = |flow: &Flow| flow.links.iter().filter(|own| **own == link).count() as f64;
        let streams: f64 = growing().map(|flow| crossings(flow) * f64::from(flow.streams)).sum();
        (streams > 0.0).then(|| (left / streams, Some(link)))
    });
    own.chain(full).min_by(|(a, _), (b, _)| a.total_cmp(b))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flow(links: &[usize], streams: u32, most: Option<f64>) -> Flow {
        Flow { links: links.to_vec(), streams, most }
    }

    fn rates(capacities: &[f64], flows: &[Flow]) -> Vec<f64> {
        shares(capacities, flows).unwrap().iter().map(|share| share.rate).collect()
    }

    #[test]
    fn the_text_book_s_example() {
        // Bertsekas and Gallager, figure 6.16: three share the first link, and what they leave of the next is for the
        // others.
        let flows = [flow(&[0], 1, None), flow(&[0, 1], 1, None), flow(&[1], 1, None)];
        assert_eq!(rates(&[1.0, 2.0], &flows), [0.5, 0.5, 1.5]);
        assert_eq!(shares(&[1.0, 2.0], &flows).unwrap()[2].held_by, Some(1));
    }

    #[test]
    fn what_one_does_not_take_is_the_others() {
        assert_eq!(rates(&[10.0], &[flow(&[0], 1, Some(2.0)), flow(&[0], 1, None)]), [2.0, 8.0]);
        assert_eq!(rates(&[10.0], &[flow(&[0], 3, None), flow(&[0], 1, None)]), [7.5, 2.5]);
        assert_eq!(rates(&[10.0], &[flow(&[0, 0], 1, None)]), [5.0]);
        assert_eq!(rates(&[0.0, 5.0], &[flow(&[0, 1], 1, None), flow(&[1], 1, None)]), [0.0, 5.0]);
    }

    #[test]
    fn nobody_can_get_more_without_taking_it_from_one_with_less() {
        // A small generator, so that each run tries the same.
        let mut state = 7u64;
        let mut draw = move |below: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % below
        };
        for _ in 0..2000 {
            let capacities: Vec<f64> = (0..1 + draw(5)).map(|_| draw(20) as f64).collect();
            let flows: Vec<Flow> = (0..1 + draw(6))
                .map(|_| {
                    let mut links: Vec<usize> =
                        (0..1 + draw(3)).map(|_| draw(capacities.len() as u64) as usize).collect();
                    links.dedup();
                    Flow { links, streams: 1 + draw(4) as u32, most: (draw(2) == 0).then(|| draw(10) as f64) }
                })
                .collect();
            let shares = shares(&capacities, &flows).unwrap();
            let used = |link: usize| -> f64 {
                let crossings = |flow: &Flow| flow.links.iter().filter(|own| **own == link).count() as f64;
                flows.iter().zip(&shares).map(|(flow, share)| crossings(flow) * share.rate).sum()
            };
            let each = |at: usize| shares[at].rate / f64::from(flows[at].streams);
            assert!(
                (0..capacities.len()).all(|link| used(link) <= capacities[link] + 1e-9),
                "{capacities:?} {flows:?}"
            );
            for at in 0..flows.len() {
                let is_own = flows[at].most.is_some_and(|most| each(at) >= most - 1e-9);
                let is_largest = |link: usize| {
                    (0..flows.len())
                        .filter(|other| flows[*other].links.contains(&link))
                        .all(|o| each(o) <= each(at) + 1e-9)
                };
                let is_held =
                    flows[at].links.iter().any(|&link| used(link) >= capacities[link] - 1e-9 && is_largest(link));
                assert!(is_own || is_held, "{at}: {capacities:?} {flows:?} {shares:?}");
            }
        }
    }

    #[test]
    fn what_does_not_belong_together_is_refused() {
        assert_eq!(shares(&[1.0], &[flow(&[1], 1, None)]), Err(FairError::NoSuchLink(1)));
        assert_eq!(shares(&[], &[flow(&[], 1, None)]), Err(FairError::Unlimited(0)));
        assert_eq!(shares(&[f64::NAN], &[]), Err(FairError::NoRate));
        assert_eq!(shares(&[-1.0], &[]), Err(FairError::NoRate));
        assert_eq!(rates(&[], &[flow(&[], 2, Some(3.0))]), [6.0]);
    }
}
