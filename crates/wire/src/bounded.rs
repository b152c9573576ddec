//! Decoding of lists with a maximum length, which is enforced while decoding.

use serde::de::{Deserialize, Deserializer, Error, SeqAccess, Visitor};
use std::fmt;
use std::marker::PhantomData;
use types::Incarnation;
use types::limits::TABLES_MAX;

/// Maximum number of elements for which memory is allocated before the first one is decoded.
const AHEAD: usize = 64;

/// Decodes a list of at most `MAX` elements, as a `deserialize_with` function of serde.
pub(crate) fn at_most<'de, D, T, const MAX: usize>(decoder: D) -> Result<Vec<T>, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de>,
{
    decoder.deserialize_seq(AtMost::<T, MAX>(PhantomData))
}

/// Decodes the incarnations of a range by table, as a `deserialize_with` function of serde. A list
/// of a version with fewer tables gets their incarnations.
pub fn incarnations<'de, D: Deserializer<'de>>(decoder: D) -> Result<Vec<Incarnation>, D::Error> {
    let mut list = at_most::<_, _, TABLES_MAX>(decoder)?;
    Incarnation::complete(&mut list);
    Ok(list)
}

struct AtMost<T, const MAX: usize>(PhantomData<T>);

impl<'de, T: Deserialize<'de>, const MAX: usize> Visitor<'de> for AtMost<T, MAX> {
    type Value = Vec<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a list of at most {MAX} elements")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Vec<T>, A::Error> {
        let told = list.size_hint().unwrap_or(0);
        if told > MAX {
            return Err(A::Error::invalid_length(told, &self));
        }
        let mut elements = Vec::with_capacity(told.min(AHEAD));
        while let Some(element) = list.next_element()? {
            if elements.len() == MAX {
                return Err(A::Error::invalid_length(MAX + 1, &self));
            }
            elements.push(element);
        }
        Ok(elements)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde::Deserialize;

    #[derive(Deserialize, Debug, PartialEq)]
    struct Three(#[serde(deserialize_with = "at_most::<_, _, 3>")] Vec<u8>);

    #[test]
    fn a_list_of_more_elements_than_it_may_have_is_refused() {
        assert_eq!(postcard::from_bytes(&[3, 7, 8, 9]), Ok(Three(vec![7, 8, 9])));
        assert_eq!(postcard::from_bytes(&[0]), Ok(Three(vec![])));
        assert!(postcard::from_bytes::<Three>(&[4, 7, 8, 9, 10]).is_err());
        assert!(postcard::from_bytes::<Three>(&[0xff, 0xff, 0xff, 0x7f, 7]).is_err());
    }
}
