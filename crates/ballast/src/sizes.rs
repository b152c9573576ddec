//! Sizes as people write them: `4gb`, `512mb`, `1000`.

/// Reads a number of bytes. Units as in redis.conf: `k` is 1000 and `kb` is 1024, and so on.
pub(crate) fn parse_bytes(text: &str) -> Result<usize, String> {
    let lower = text.trim().to_ascii_lowercase();
    let digits = lower.find(|c: char| !c.is_ascii_digit()).unwrap_or(lower.len());
    let (number, unit) = lower.split_at(digits);
    let factor = match unit.trim() {
        "" | "b" => 1,
        "k" => 1_000,
        "kb" => 1 << 10,
        "m" => 1_000_000,
        "mb" => 1 << 20,
        "g" => 1_000_000_000,
        "gb" => 1 << 30,
        other => return Err(format!("'{other}' is no unit: use kb, mb or gb, as in 4gb")),
    };
    let number: usize =
        number.parse().map_err(|_| format!("'{text}' is no size: write it like 4gb"))?;
    number.checked_mul(factor).ok_or_else(|| format!("'{text}' is too much"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_as_in_redis_conf() {
        for (text, bytes) in [
            ("0", Some(0)),
            ("1000", Some(1000)),
            ("1k", Some(1000)),
            ("1kb", Some(1024)),
            ("4GB", Some(4 << 30)),
            (" 2 mb ", Some(2 << 20)),
            ("mb", None),
            ("1tb", None),
            ("-1", None),
            ("1.5gb", None),
            ("99999999999gb", None),
        ] {
            assert_eq!(parse_bytes(text).ok(), bytes, "{text:?}");
        }
    }
}
