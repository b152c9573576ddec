//! The zipmap, in which Redis up to version 2.4 stored small hashes: the number of fields, fields with
//! their values, and an end mark. Ballast reads zipmaps and never writes one. Format: "Redis RDB File
//! Format" (rdb.fnordig.de).

use crate::dump_parts::read_string;

/// The number of fields of a zipmap with more fields than its first byte can count.
const COUNT_UNKNOWN: u8 = 0xfe;
/// First byte of a length that takes 5 bytes; a smaller one takes this byte.
const LENGTH_LONG: u8 = 0xfe;
const END: u8 = 0xff;

/// Returns the fields and values, in turns, of the zipmap in this string of a dump. `None` if it is
/// damaged.
pub(super) fn read(body: &[u8]) -> Option<Vec<Vec<u8>>> {
    read_fields(&read_string(body)?.0)
}

/// Returns the fields and values of a zipmap, in turns. `None` if it is damaged.
fn read_fields(bytes: &[u8]) -> Option<Vec<Vec<u8>>> {
    let (&count, mut rest) = bytes.split_first()?;
    let mut parts = Vec::new();
    while *rest.first()? != END {
        let (length, behind) = read_length(rest)?;
        let (field, behind) = behind.split_at_checked(length)?;
        let (length, behind) = read_length(behind)?;
        // A value that became shorter left bytes behind it, which no longer mean anything.
        let (&unused, behind) = behind.split_first()?;
        let (value, behind) = behind.split_at_checked(length)?;
        let behind = behind.get(unused.into()..)?;
        parts.extend([field.to_vec(), value.to_vec()]);
        assert!(rest.len() - behind.len() >= 3, "a field of a zipmap has all its lengths");
        rest = behind;
    }
    let has_count = count == COUNT_UNKNOWN || usize::from(count) * 2 == parts.len();
    (rest.len() == 1 && has_count).then_some(parts)
}

/// Reads the length of a field or value. Returns it with the bytes behind it.
fn read_length(bytes: &[u8]) -> Option<(usize, &[u8])> {
    let (&first, rest) = bytes.split_first()?;
    match first {
        0..LENGTH_LONG => Some((first.into(), rest)),
        LENGTH_LONG => {
            let (length, rest) = rest.split_first_chunk()?;
            let length = usize::try_from(u32::from_le_bytes(*length)).ok()?;
            // Valkey also refuses a length that would have fitted into one byte.
            (length >= LENGTH_LONG.into()).then_some((length, rest))
        }
        END => None,
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Returns the zipmap of these fields and values, in turns, as Redis wrote it. Behind each value
    /// are so many unused bytes.
    pub(crate) fn zipmap(parts: &[&[u8]], unused: u8) -> Vec<u8> {
        let mut bytes = vec![u8::try_from(parts.len() / 2).unwrap_or(u8::MAX).min(COUNT_UNKNOWN)];
        for (at, part) in parts.iter().enumerate() {
            if part.len() < usize::from(LENGTH_LONG) {
                bytes.push(part.len() as u8);
            } else {
                bytes.push(LENGTH_LONG);
                bytes.extend_from_slice(&(part.len() as u32).to_le_bytes());
            }
            if at % 2 == 1 {
                bytes.push(unused);
            }
            bytes.extend_from_slice(part);
            if at % 2 == 1 {
                bytes.extend(vec![0xee; unused.into()]);
            }
        }
        bytes.push(END);
        bytes
    }

    #[test]
    fn fields_with_their_values_are_read() {
        let bytes = b"\x02\x01f\x03\x00one\x00\x03\x02two??\xff";
        let expected: [&[u8]; 4] = [b"f", b"one", b"", b"two"];
        assert!(read_fields(bytes).is_some_and(|read| read == expected));
        assert_eq!(read_fields(b"\x00\xff"), Some(Vec::new()));
        for length in [0, 1, 252, 253, 254, 255, 70_000] {
            for unused in [0, 1, 255] {
                let long = vec![b'l'; length];
                let parts: [&[u8]; 4] = [&long, b"v", b"f", &long];
                let read = read_fields(&zipmap(&parts, unused));
                assert!(read.is_some_and(|read| read == parts), "{length} and {unused} bytes");
            }
        }
    }

    #[test]
    fn more_fields_than_the_first_byte_can_count_are_read() {
        for count in [253, 254, 255, 1000] {
            let names: Vec<String> = (0..count).map(|number: usize| number.to_string()).collect();
            let parts: Vec<&[u8]> =
                names.iter().flat_map(|name| [name.as_bytes(), name.as_bytes()]).collect();
            let read = read_fields(&zipmap(&parts, 3));
            assert!(read.is_some_and(|read| read == parts), "{count} fields");
        }
        assert_eq!(read_fields(b"\xfe\x01f\x01\x00v\xff").map(|parts| parts.len()), Some(2));
    }

    #[test]
    fn lengths_that_disagree_are_refused() {
        let bytes = zipmap(&[b"one", b"two", b"three", b"four"], 2);
        assert!(read_fields(&bytes).is_some());
        // Number of fields, lengths of a field and a value, and unused bytes.
        for at in [0, 1, 5, 6, 12, 18, 19] {
            for change in [1, u8::MAX] {
                let mut damaged = bytes.clone();
                damaged[at] = damaged[at].wrapping_add(change);
                assert_eq!(read_fields(&damaged), None, "byte {at} plus {change}");
            }
        }
        assert_eq!(read_fields(b"\x01\xfe\xff\xff\xff\xfff\x01\x00v\xff"), None);
        assert_eq!(read_fields(b"\x01\xfe\x01\x00\x00\x00f\x01\x00v\xff"), None);
        assert_eq!(read_fields(b"\x01\x01f\xff\x00v\xff"), None);
    }

    #[test]
    fn a_truncated_or_extended_zipmap_is_refused() {
        let long = [b'l'; 300];
        let mut bytes = zipmap(&[b"one", &long, &long, b"two", b"", b""], 7);
        for end in 0..bytes.len() {
            assert_eq!(read_fields(&bytes[..end]), None, "{end} bytes");
        }
        assert!(read_fields(&bytes).is_some());
        bytes.push(END);
        assert_eq!(read_fields(&bytes), None);
    }

    #[test]
    fn random_bytes_give_fields_or_an_error() {
        let mut random = fastrand::Rng::with_seed(63);
        let mut accepted = 0;
        for _ in 0..200_000 {
            let parts: Vec<Vec<u8>> = (0..random.usize(0..3) * 2)
                .map(|_| vec![random.u8(..); random.usize(0..6)])
                .collect();
            let parts: Vec<&[u8]> = parts.iter().map(|part| &part[..]).collect();
            let mut bytes = zipmap(&parts, random.u8(0..3));
            for _ in 0..random.usize(0..3) {
                let at = random.usize(..bytes.len());
                bytes[at] = random.u8(..);
            }
            if let Some(read) = read_fields(&bytes) {
                accepted += 1;
                let read: Vec<&[u8]> = read.iter().map(|part| &part[..]).collect();
                let again = read_fields(&zipmap(&read, 0));
                assert!(again.is_some_and(|again| again == read));
            }
        }
        assert!((10_000..190_000).contains(&accepted), "{accepted} of the zipmaps are right");
    }
}
