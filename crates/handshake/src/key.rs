//! Cluster keys: parsing, proofs, and the credentials of a running process.

use crate::random::random_bytes;
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use std::fmt;
use std::io;
use std::sync::{Arc, PoisonError, RwLock};
use types::Generation;
use wire::handshake::{HandshakeAnswer, HandshakeOpen, Proof, Side, transcript};

/// Fewest bytes of a key: the length of its hash.
const KEY_BYTES_MIN: usize = 32;
/// Most bytes of a key. More would not add security.
const KEY_BYTES_MAX: usize = 128;
/// Most keys at a time: the old one and the new one.
const KEYS_MAX: usize = 2;
/// Longest text of a key file, comments included.
const TEXT_BYTES_MAX: usize = 4096;

/// The reason why a text does not contain valid cluster keys. Line numbers begin at 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeyError {
    /// No line contains a key.
    #[error("it contains no key: create one with 'ballast key'")]
    None,
    /// The text is longer than any key file.
    #[error("it is longer than {TEXT_BYTES_MAX} bytes, so it is not a key file")]
    TooLong,
    /// There are more keys than a change of keys needs.
    #[error("it contains more than {KEYS_MAX} keys: keep only the old and the new one")]
    TooMany,
    /// A line is neither hexadecimal nor base64.
    #[error("line {line} is neither hexadecimal nor base64: create a key with 'ballast key'")]
    NotEncoded {
        /// Number of the line.
        line: usize,
    },
    /// A key is too short to be secure.
    #[error(
        "the key in line {line} has {bytes} bytes, at least {KEY_BYTES_MIN} are needed: create one \
         with 'ballast key'"
    )]
    TooShort {
        /// Number of the line.
        line: usize,
        /// Bytes of the key.
        bytes: usize,
    },
    /// A key is longer than useful.
    #[error("the key in line {line} has more than {KEY_BYTES_MAX} bytes, so it is not a key")]
    KeyTooLong {
        /// Number of the line.
        line: usize,
    },
}

/// One or two cluster keys. The first one is used for proofs, all are accepted.
#[derive(Clone, PartialEq, Eq)]
pub struct ClusterKeys(Vec<Vec<u8>>);

impl fmt::Debug for ClusterKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} cluster keys", self.0.len())
    }
}

impl ClusterKeys {
    /// Parses the text of a key file: one key per line, in hexadecimal digits or base64. Empty
    /// lines and lines that begin with `#` are ignored.
    pub fn parse(text: &str) -> Result<ClusterKeys, KeyError> {
        if text.len() > TEXT_BYTES_MAX {
            return Err(KeyError::TooLong);
        }
        let mut keys = Vec::new();
        for (line, text) in (1..).zip(text.lines()) {
            let text = text.trim();
            if text.is_empty() || text.starts_with('#') {
                continue;
            }
            let key = decode(text).ok_or(KeyError::NotEncoded { line })?;
            match key.len() {
                bytes @ ..KEY_BYTES_MIN => return Err(KeyError::TooShort { line, bytes }),
                KEY_BYTES_MIN..=KEY_BYTES_MAX => keys.push(key),
                _ => return Err(KeyError::KeyTooLong { line }),
            }
        }
        match keys.len() {
            0 => Err(KeyError::None),
            1..=KEYS_MAX => Ok(ClusterKeys(keys)),
            _ => Err(KeyError::TooMany),
        }
    }

    /// Draws a random key, which no other process has.
    pub fn draw() -> io::Result<ClusterKeys> {
        Ok(ClusterKeys(vec![random_bytes::<KEY_BYTES_MIN>()?.to_vec()]))
    }

    /// Returns the proof of one side.
    pub(crate) fn prove(
        &self,
        side: Side,
        open: &HandshakeOpen,
        answer: &HandshakeAnswer,
    ) -> Proof {
        let hash = keyed_hash(&self.0[0], &transcript(side, open, answer));
        Proof::new(hash.finalize().into_bytes().into())
    }

    /// Returns whether a proof of one side is valid, in constant time.
    pub(crate) fn check(
        &self,
        proof: &Proof,
        side: Side,
        open: &HandshakeOpen,
        answer: &HandshakeAnswer,
    ) -> bool {
        let transcript = transcript(side, open, answer);
        let is_made_with =
            |key: &Vec<u8>| keyed_hash(key, &transcript).verify_slice(proof.bytes()).is_ok();
        self.0.iter().any(is_made_with)
    }
}

fn keyed_hash(key: &[u8], bytes: &[u8]) -> Hmac<Sha256> {
    #[expect(clippy::expect_used, reason = "HMAC is defined for keys of any length")]
    let mut hash = Hmac::<Sha256>::new_from_slice(key).expect("a key may have any length");
    hash.update(bytes);
    hash
}

/// Draws a random key, as the text of a key file.
pub fn new_key() -> io::Result<String> {
    let bytes = random_bytes::<KEY_BYTES_MIN>()?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// Decodes a key. A text of hexadecimal digits only is hexadecimal, so a truncated key is not
/// mistaken for a short one in base64.
fn decode(text: &str) -> Option<Vec<u8>> {
    match text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        true => decode_hexadecimal(text),
        false => decode_base64(text),
    }
}

fn decode_hexadecimal(text: &str) -> Option<Vec<u8>> {
    let digits: Vec<u8> =
        text.chars().map(|c| c.to_digit(16).map(|digit| digit as u8)).collect::<Option<_>>()?;
    let (pairs, rest) = digits.as_chunks::<2>();
    rest.is_empty().then(|| pairs.iter().map(|[high, low]| high << 4 | low).collect())
}

/// Decodes base64 of either alphabet, with or without padding.
fn decode_base64(text: &str) -> Option<Vec<u8>> {
    let digit = |byte: u8| match byte {
        b'A'..=b'Z' => Some(byte - b'A'),
        b'a'..=b'z' => Some(byte - b'a' + 26),
        b'0'..=b'9' => Some(byte - b'0' + 52),
        b'+' | b'-' => Some(62),
        b'/' | b'_' => Some(63),
        _ => None,
    };
    let bare = text.trim_end_matches('=');
    if text.len() - bare.len() > 2 || bare.len() % 4 == 1 {
        return None;
    }
    let mut bytes = Vec::with_capacity(bare.len() * 3 / 4);
    let (mut held, mut bits) = (0u32, 0);
    for byte in bare.bytes() {
        held = held << 6 | u32::from(digit(byte)?);
        bits += 6;
        if bits >= 8 {
            bits -= 8;
            bytes.push((held >> bits) as u8);
            held &= (1 << bits) - 1;
        }
    }
    Some(bytes)
}

/// The keys and the generation of a process, shared by all code that opens or accepts
/// connections. Keys can be changed at run time; existing connections are not affected.
#[derive(Clone, Debug)]
pub struct Credentials {
    generation: Generation,
    keys: Arc<RwLock<Arc<Option<ClusterKeys>>>>,
}

impl Credentials {
    /// Creates the credentials of a process. Without keys it accepts only peers without keys.
    pub fn new(generation: Generation, keys: Option<ClusterKeys>) -> Credentials {
        Credentials { generation, keys: Arc::new(RwLock::new(Arc::new(keys))) }
    }

    /// Returns the generation: the id of this run of the process.
    pub fn generation(&self) -> Generation {
        self.generation
    }

    /// Replaces the keys. Only handshakes that begin later use the new ones.
    pub fn change_keys(&self, keys: ClusterKeys) {
        *self.keys.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(Some(keys));
    }

    pub(crate) fn keys(&self) -> Arc<Option<ClusterKeys>> {
        self.keys.read().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEX: &str = "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f";
    const BASE64: &str = "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=";

    #[test]
    fn a_key_is_the_same_in_hexadecimal_and_in_base64() {
        let bytes: Vec<u8> = (0..32).collect();
        let unpadded = BASE64.trim_end_matches('=');
        for text in [HEX, &HEX.to_uppercase(), BASE64, unpadded, &format!(" {HEX} \r\n")] {
            assert_eq!(ClusterKeys::parse(text), Ok(ClusterKeys(vec![bytes.clone()])), "{text}");
        }
    }

    #[test]
    fn a_file_holds_one_or_two_keys_and_remarks() {
        let two = format!("# of the year 2026\n\n{BASE64}\n{}\n", HEX.replace('0', "f"));
        assert_eq!(ClusterKeys::parse(&two).map(|keys| keys.0.len()), Ok(2));
        assert_eq!(ClusterKeys::parse(&format!("{two}{HEX}")), Err(KeyError::TooMany));
        assert_eq!(ClusterKeys::parse("# nothing\n"), Err(KeyError::None));
        assert_eq!(ClusterKeys::parse(&"\n".repeat(5_000)), Err(KeyError::TooLong));
    }

    #[test]
    fn a_text_that_is_no_key_is_refused_with_its_line() {
        for (text, error) in [
            (HEX[..62].to_owned(), KeyError::TooShort { line: 1, bytes: 31 }),
            (format!("\n{}", &BASE64[..40]), KeyError::TooShort { line: 2, bytes: 30 }),
            (HEX[..63].to_owned(), KeyError::NotEncoded { line: 1 }),
            (format!("{BASE64}=="), KeyError::NotEncoded { line: 1 }),
            ("hunter2!".into(), KeyError::NotEncoded { line: 1 }),
            (HEX.repeat(5), KeyError::KeyTooLong { line: 1 }),
        ] {
            assert_eq!(ClusterKeys::parse(&text), Err(error), "{text}");
        }
    }

    #[test]
    fn keys_that_are_drawn_differ_and_can_be_read() {
        let [a, b] = [new_key(), new_key()].map(|key| key.expect("the system has random bytes"));
        assert_ne!(a, b);
        assert!(ClusterKeys::parse(&a).is_ok());
        assert_ne!(ClusterKeys::draw().ok(), ClusterKeys::draw().ok());
    }

    #[test]
    fn keys_do_not_show_themselves() {
        let keys = ClusterKeys::parse(HEX).expect("it is a key");
        let shown = format!("{:?}", Credentials::new(Generation(1), Some(keys)));
        assert!(shown.contains("1 cluster keys") && !shown.contains("31"), "{shown}");
    }
}
