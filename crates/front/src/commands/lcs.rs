//! `LCS`: the longest common subsequence of two values.
//!
//! Uses the textbook's dynamic programming table, filled from the front and traced from the back as
//! in Redis. Among several longest subsequences, it therefore returns the same one as Redis.

use super::command::flag::READONLY;
use super::command::{Family, TWO, command};
use super::pieces::string_or_empty;
use super::{Call, Done, Refusal, parse_integer, refused};
use std::ops::Range;
use types::limits::VALUE_BYTES_MAX;

pub(super) static FAMILY: Family = Family {
    group: "string",
    category: Some("@string"),
    commands: &[command("lcs", -3, READONLY, TWO, lcs)],
};

#[derive(Debug, Default)]
struct LcsOptions {
    length: bool,
    indexes: bool,
    with_lengths: bool,
    length_min: i64,
}

impl LcsOptions {
    fn parse(words: &[&[u8]]) -> Result<LcsOptions, Refusal> {
        let mut options = LcsOptions::default();
        let mut words = words.iter();
        while let Some(word) = words.next() {
            match &word.to_ascii_uppercase()[..] {
                b"IDX" => options.indexes = true,
                b"LEN" => options.length = true,
                b"WITHMATCHLEN" => options.with_lengths = true,
                b"MINMATCHLEN" => {
                    let number = words.next().ok_or(Refusal::Syntax)?;
                    options.length_min = parse_integer(number).ok_or(Refusal::NotAnInteger)?;
                }
                _ => return Err(Refusal::Syntax),
            }
        }
        if options.length && options.indexes {
            let text = "ERR If you want both the length and indexes, please just use IDX.";
            return Err(Refusal::Because(text.into()));
        }
        Ok(options)
    }
}

/// A run of bytes common to both values.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Match {
    first: Range<usize>,
    second: Range<usize>,
}

/// The longest common subsequence.
#[derive(Debug, Default, PartialEq, Eq)]
struct Common {
    bytes: Vec<u8>,
    /// Matches, from the last to the first.
    matches: Vec<Match>,
}

/// `LCS key1 key2 [LEN] [IDX] [MINMATCHLEN length] [WITHMATCHLEN]`.
fn lcs(call: &mut Call<'_>) -> Done {
    let words = &call.args[3..];
    let keys = [call.key(1), call.key(2)];
    let (common, options) = call.backend.read(call.session.status.table, &keys, |records| {
        let [first, second] = [records[0], records[1]].map(|record| {
            string_or_empty(record).map_or(Err(NOT_STRINGS), |(string, _)| Ok(string))
        });
        let (first, second) = (first?, second?);
        // Redis checks the types before the options.
        let options = LcsOptions::parse(words)?;
        Ok::<_, Refusal>((Common::of(first, second), options))
    })??;
    let common = common.ok_or_else(|| {
        refused("ERR Insufficient memory, transient memory for LCS exceeds proto-max-bulk-len")
    })?;
    let reply = &mut call.reply;
    if options.length {
        reply.integer(common.bytes.len() as i64);
    } else if options.indexes {
        let is_long = |found: &&Match| found.first.len() as i64 >= options.length_min;
        let matches: Vec<&Match> = common.matches.iter().filter(is_long).collect();
        reply.map(2);
        reply.bulk(b"matches");
        reply.array(matches.len());
        for found in matches {
            reply.array(2 + usize::from(options.with_lengths));
            for range in [&found.first, &found.second] {
                reply.array(2);
                reply.integer(range.start as i64);
                reply.integer(range.end as i64 - 1);
            }
            if options.with_lengths {
                reply.integer(found.first.len() as i64);
            }
        }
        reply.bulk(b"len");
        reply.integer(common.bytes.len() as i64);
    } else {
        reply.bulk(&common.bytes);
    }
    Ok(())
}

const NOT_STRINGS: Refusal = Refusal::because("ERR The specified keys must contain string values");

/// Lengths of the longest common subsequences of all prefixes of two texts.
struct PrefixLengths {
    width: usize,
    lengths: Vec<u32>,
}

impl PrefixLengths {
    /// Builds the table. Returns `None` if it would need more memory than a value may have.
    fn of(first: &[u8], second: &[u8]) -> Option<PrefixLengths> {
        let width = second.len() + 1;
        let cells = (first.len() + 1).checked_mul(width)?;
        if cells > VALUE_BYTES_MAX / size_of::<u32>() {
            return None;
        }
        let mut table = PrefixLengths { width, lengths: vec![0; cells] };
        for (row, byte) in first.iter().enumerate() {
            for (column, other) in second.iter().enumerate() {
                let length = match byte == other {
                    true => table.at(row, column) + 1,
                    false => table.at(row, column + 1).max(table.at(row + 1, column)),
                };
                table.lengths[(row + 1) * width + column + 1] = length;
            }
        }
        Some(table)
    }

    fn at(&self, row: usize, column: usize) -> u32 {
        self.lengths[row * self.width + column]
    }
}

impl Common {
    fn of(first: &[u8], second: &[u8]) -> Option<Common> {
        let table = PrefixLengths::of(first, second)?;
        let mut common = Common::default();
        let (mut row, mut column) = (first.len(), second.len());
        while row > 0 && column > 0 {
            if first[row - 1] == second[column - 1] {
                (row, column) = (row - 1, column - 1);
                common.bytes.push(first[row]);
                common.extend(row, column);
            } else if table.at(row - 1, column) > table.at(row, column - 1) {
                row -= 1;
            } else {
                column -= 1;
            }
        }
        common.bytes.reverse();
        Some(common)
    }

    /// Adds a matching pair of positions, which precedes all earlier matches.
    fn extend(&mut self, row: usize, column: usize) {
        match self.matches.last_mut() {
            Some(last) if last.first.start == row + 1 && last.second.start == column + 1 => {
                (last.first.start, last.second.start) = (row, column);
            }
            Some(_) | None => {
                let found = Match { first: row..row + 1, second: column..column + 1 };
                self.matches.push(found);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Tries all subsequences of `first`, and returns the longest length found in `second`.
    fn naive(first: &[u8], second: &[u8]) -> usize {
        let is_within = |mask: u32| {
            let mut rest = second.iter();
            let mut chosen = (0..first.len()).filter(|at| mask & 1 << at != 0);
            chosen.all(|at| rest.any(|byte| *byte == first[at]))
        };
        let masks = (0..1u32 << first.len()).filter(|mask| is_within(*mask));
        masks.map(|mask| mask.count_ones() as usize).max().unwrap_or(0)
    }

    #[test]
    fn the_longest_common_subsequence_is_as_long_as_any() {
        let mut random = fastrand::Rng::with_seed(7);
        for _ in 0..500 {
            let mut text = || -> Vec<u8> {
                let length = random.usize(0..9);
                (0..length).map(|_| random.u8(b'a'..=b'd')).collect()
            };
            let (first, second) = (text(), text());
            let common = Common::of(&first, &second).unwrap();
            assert_eq!(common.bytes.len(), naive(&first, &second), "{first:?} {second:?}");
            let matched = common.matches.iter().rev().flat_map(|found| &first[found.first.clone()]);
            assert!(matched.eq(&common.bytes));
            for found in &common.matches {
                assert_eq!(first[found.first.clone()], second[found.second.clone()]);
            }
        }
    }

    #[test]
    fn values_whose_table_would_be_too_large_are_refused() {
        let long = vec![b'a'; 2000];
        assert_eq!(Common::of(&long, &long), None);
        assert!(Common::of(&long, b"a").is_some());
    }
}
