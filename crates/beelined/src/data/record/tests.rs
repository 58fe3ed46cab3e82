//! What is written is read again, and nothing else is.

use super::*;
use proptest::prelude::*;

fn addresses() -> impl Strategy<Value = SocketAddr> {
    prop_oneof![
        (any::<[u8; 4]>(), any::<u16>()).prop_map(|(ip, port)| SocketAddr::new(ip.into(), port)),
        (any::<[u8; 16]>(), any::<u16>(), any::<u32>()).prop_map(|(ip, port, scope)| SocketAddrV6::new(
            ip.into(),
            port,
            0,
            scope
        )
        .into()),
    ]
}

/// All kinds, from seven numbers, two addresses and some bytes.
fn all<'a>(n: [u64; 5], a: [SocketAddr; 2], bytes: &'a [u8], ranges: &'a [u8]) -> Vec<Record<'a>> {
    let [to, from, offset, address, key] = n;
    let length = key as u32;
    vec![
        Record::Open { from, window: offset, rail: length, client: a[0], server: a[1] },
        Record::Opened { to, from, window: key, rail: length },
        Record::Refused { to, why: Refusal::Full },
        Record::Data { to, offset, urgent: bytes.len() == 1, more: length & 1 != 0, bytes },
        Record::Placed { to, offset, length },
        Record::Offer { to, offset, length, address, key },
        Record::Grant { to, address, key, base: offset, ring: length },
        Record::Ack { to, placed: offset, limit: key },
        Record::End { to, from, offset, flags: length },
        Record::Resync { to, from, link: key, placed: offset, limit: address, ranges: Ranges(ranges) },
        Record::Unknown { to: key },
        Record::Return { to: from },
        Record::Urge { to, offset: address },
        Record::Ping { number: key },
        Record::Pong { number: to },
    ]
}

proptest! {
    #[test]
    fn records_lead_back_to_themselves(
        n: [u64; 5], a in (addresses(), addresses()), bytes in prop::collection::vec(any::<u8>(), 1..200),
        pairs in prop::collection::vec(any::<(u64, u64)>(), 0..RANGES_MAX), credits: u16
    ) {
        let encoded = encode_ranges(&pairs);
        let records = all(n, [a.0, a.1], &bytes, &encoded);
        let mut draft = Draft::new();
        for record in &records {
            prop_assert!(draft.push(record));
        }
        let mut message = Message::decode(draft.finish(credits)).unwrap();
        prop_assert_eq!(message.credits, credits);
        for record in &records {
            let back = message.next_record().unwrap().unwrap();
            prop_assert_eq!(&back, record);
            if let Record::Resync { ranges, .. } = back {
                prop_assert_eq!(ranges.iter().collect::<Vec<_>>(), pairs.clone());
            }
        }
        prop_assert_eq!(message.next_record(), Ok(None));
    }

    #[test]
    fn a_message_cut_short_is_none(cut: prop::sample::Index) {
        let mut draft = Draft::new();
        for record in all([1, 2, 3, 4, 5], ["1.2.3.4:5".parse().unwrap(), "[::1]:6".parse().unwrap()], b"x", &[]) {
            draft.push(&record);
        }
        let whole = draft.finish(0);
        prop_assert!(Message::decode(&whole[..cut.index(whole.len())]).is_err());
    }

    #[test]
    fn any_bytes_are_survived_and_what_decodes_is_what_would_be_sent(mut bytes: Vec<u8>) {
        let length = bytes.len() as u32;
        let mut whole = MAGIC.to_le_bytes().to_vec();
        whole.extend_from_slice(&[0; 2]);
        whole.extend_from_slice(&length.to_le_bytes());
        whole.append(&mut bytes);
        let mut message = Message::decode(&whole).unwrap();
        let mut draft = Draft::new();
        while let Ok(Some(record)) = message.next_record() {
            prop_assert!(draft.push(&record));
        }
        let again = draft.finish(0).to_vec();
        prop_assert_eq!(&again[HEADER_BYTES..], &whole[HEADER_BYTES..again.len()]);
    }
}

#[test]
fn a_draft_takes_no_more_than_a_message() {
    let mut draft = Draft::new();
    let bytes = [7; 5000];
    let data = Record::Data { to: 1, offset: 0, urgent: false, more: true, bytes: &bytes };
    assert!(draft.push(&data) && draft.push(&data) && draft.push(&data));
    let before = draft.room();
    assert!(!draft.push(&data));
    assert_eq!(draft.room(), before);
    draft.push_data(9, 8, false, before - DATA_OVERHEAD_BYTES, |place| place.fill(1));
    assert_eq!(draft.room(), 0);
    let mut message = Message::decode(draft.finish(3)).unwrap();
    let mut count = 0;
    while message.next_record().unwrap().is_some() {
        count += 1;
    }
    assert_eq!(count, 4);
}
