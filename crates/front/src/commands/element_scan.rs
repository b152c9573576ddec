//! `HSCAN` and `SSCAN`: the elements of a packed value. It is in one record, so one step returns all
//! of them, and the cursor is 0 after it, as Redis does with its compact encodings.

use super::glob::glob_matches;
use super::packed::packed;
use super::{Call, Done, Refusal, parse_integer, parse_unsigned, refused, uppercase_is};
use types::ValueType;
use values::Element;

struct ElementScanOptions<'a> {
    pattern: Option<&'a [u8]>,
    without_values: bool,
}

impl<'a> ElementScanOptions<'a> {
    fn parse(words: &[&'a [u8]], value_type: ValueType) -> Result<ElementScanOptions<'a>, Refusal> {
        const ONLY_FOR_HASHES: &str = "ERR NOVALUES option can only be used in HSCAN";
        let mut options = ElementScanOptions { pattern: None, without_values: false };
        let mut words = words.iter();
        while let Some(word) = words.next() {
            if uppercase_is(word, b"NOVALUES") {
                if value_type != ValueType::Hash {
                    return Err(Refusal::because(ONLY_FOR_HASHES));
                }
                options.without_values = true;
            } else if uppercase_is(word, b"MATCH") {
                let pattern = words.next().ok_or(Refusal::Syntax)?;
                options.pattern = (*pattern != b"*").then_some(pattern);
            } else if uppercase_is(word, b"COUNT") {
                let count = parse_integer(words.next().ok_or(Refusal::Syntax)?);
                if count.ok_or(Refusal::NotAnInteger)? < 1 {
                    return Err(Refusal::Syntax);
                }
            } else {
                return Err(Refusal::Syntax);
            }
        }
        Ok(options)
    }
}

/// Executes `HSCAN` or `SSCAN`: `key cursor [MATCH pattern] [COUNT count] [NOVALUES]`.
pub(super) fn scan_elements(call: &mut Call<'_>, value_type: ValueType) -> Done {
    parse_unsigned(call.args[2]).ok_or_else(|| refused("ERR invalid cursor"))?;
    let words = &call.args[3..];
    call.reply_with(1, |reply, record| {
        let packed = packed(record, value_type)?;
        let mut parts = Vec::new();
        if record.is_some() {
            let options = ElementScanOptions::parse(words, value_type)?;
            for element in packed.elements() {
                let Element { name, value } = element?;
                if options.pattern.is_some_and(|pattern| !glob_matches(pattern, name, false)) {
                    continue;
                }
                parts.push(name);
                if value_type == ValueType::Hash && !options.without_values {
                    parts.push(value);
                }
            }
        }
        reply.array(2);
        reply.bulk(b"0");
        reply.bulks(&parts);
        Ok(())
    })
}
