//! Frames: 4 bytes of length, little-endian, and so many bytes.

/// The longest body.
pub const BODY_BYTES_MAX: usize = 64 * 1024;

const LENGTH_BYTES: usize = 4;

/// Puts a frame behind what is in `out`. Nothing is written, and false returned, if the body is too long.
pub fn write(out: &mut Vec<u8>, body: &[u8]) -> bool {
    let Some(length) = u32::try_from(body.len()).ok().filter(|_| body.len() <= BODY_BYTES_MAX) else {
        return false;
    };
    out.extend(length.to_le_bytes());
    out.extend(body);
    true
}

/// Cuts what arrives into bodies. It holds no more than one frame and what was given last.
#[derive(Debug, Default)]
pub struct Reader {
    bytes: Vec<u8>,
    read: usize,
}

/// A frame that says it is longer than any may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooLong(pub u32);

impl Reader {
    /// Adds what has arrived.
    pub fn push(&mut self, bytes: &[u8]) {
        self.bytes.drain(..self.read);
        self.read = 0;
        self.bytes.extend_from_slice(bytes);
    }

    /// The next body, if all of it is there.
    pub fn next_body(&mut self) -> Result<Option<&[u8]>, TooLong> {
        let rest = &self.bytes[self.read..];
        let Some((length, body)) = rest.split_first_chunk::<LENGTH_BYTES>() else { return Ok(None) };
        let length = u32::from_le_bytes(*length);
        // Refused by the length alone, before a byte of it is stored.
        if length as usize > BODY_BYTES_MAX {
            return Err(TooLong(length));
        }
        let Some(body) = body.get(..length as usize) else { return Ok(None) };
        self.read += LENGTH_BYTES + body.len();
        Ok(Some(body))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_come_out_as_they_went_in_however_they_are_cut() {
        let bodies: [&[u8]; 4] = [b"", b"x", &[7; 300], b"last"];
        let mut stream = Vec::new();
        assert!(bodies.iter().all(|body| write(&mut stream, body)));
        for size in [1, 2, 3, 5, 100, stream.len()] {
            let (mut reader, mut seen) = (Reader::default(), Vec::new());
            for piece in stream.chunks(size) {
                reader.push(piece);
                while let Some(body) = reader.next_body().unwrap() {
                    seen.push(body.to_vec());
                }
            }
            assert_eq!(seen, bodies);
        }
    }

    #[test]
    fn long_frames_are_refused_by_their_length() {
        let mut out = Vec::new();
        assert!(!write(&mut out, &vec![0; BODY_BYTES_MAX + 1]) && out.is_empty());
        assert!(write(&mut out, &vec![0; BODY_BYTES_MAX]));
        let mut reader = Reader::default();
        reader.push(&out);
        assert_eq!(reader.next_body().unwrap().unwrap().len(), BODY_BYTES_MAX);
        reader.push(&(BODY_BYTES_MAX as u32 + 1).to_le_bytes());
        assert_eq!(reader.next_body(), Err(TooLong(BODY_BYTES_MAX as u32 + 1)));
    }
}
