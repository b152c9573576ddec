//! Arguments of commands on streams.

use crate::numbers::parse_integer;
use crate::paged_stream::{StreamTrim, TrimPrecision};
use crate::stream_id::{NewStreamId, StreamId};
use std::borrow::Cow;

/// The reason why arguments are refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ArgumentError {
    /// They do not belong to the command.
    Syntax,
    /// One is not an integer.
    NotAnInteger,
    /// There are too few or too many.
    Arity,
    /// Another reason, as the text of the reply.
    Because(Cow<'static, str>),
}

const fn because(text: &'static str) -> ArgumentError {
    ArgumentError::Because(Cow::Borrowed(text))
}

const INVALID_ID: ArgumentError =
    because("ERR Invalid stream ID specified as stream command argument");

fn is(argument: &[u8], word: &str) -> bool {
    argument.eq_ignore_ascii_case(word.as_bytes())
}

fn integer(argument: &[u8]) -> Result<i64, ArgumentError> {
    parse_integer(argument).ok_or(ArgumentError::NotAnInteger)
}

/// Parses an integer that counts something: negative numbers stand for 0.
fn amount(argument: &[u8]) -> Result<u64, ArgumentError> {
    Ok(integer(argument)?.max(0) as u64)
}

impl StreamId {
    /// Parses an id, which gets number 0 if it has none.
    pub fn parse_argument(argument: &[u8]) -> Result<StreamId, ArgumentError> {
        StreamId::parse(argument, 0).ok_or(INVALID_ID)
    }

    /// Parses an id, or `-` or `+` for the lowest and the highest one.
    pub fn parse_or_end(argument: &[u8]) -> Result<StreamId, ArgumentError> {
        StreamId::parse_end(argument, 0).ok_or(INVALID_ID)
    }

    /// Parses the start of an interval, which `(` excludes.
    pub fn parse_start(argument: &[u8]) -> Result<StreamId, ArgumentError> {
        match argument {
            [b'(', id @ ..] if !id.is_empty() => {
                let id = StreamId::parse(id, 0).ok_or(INVALID_ID)?;
                id.next().ok_or(because("ERR invalid start ID for the interval"))
            }
            _ => StreamId::parse_end(argument, 0).ok_or(INVALID_ID),
        }
    }

    /// Parses the end of an interval, which `(` excludes.
    pub fn parse_stop(argument: &[u8]) -> Result<StreamId, ArgumentError> {
        match argument {
            [b'(', id @ ..] if !id.is_empty() => {
                let id = StreamId::parse(id, u64::MAX).ok_or(INVALID_ID)?;
                id.previous().ok_or(because("ERR invalid end ID for the interval"))
            }
            _ => StreamId::parse_end(argument, u64::MAX).ok_or(INVALID_ID),
        }
    }
}

/// The removal of the oldest entries, as options ask for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamTrimming {
    /// The entries that remain.
    pub trim: StreamTrim,
    /// How exactly.
    pub precision: TrimPrecision,
}

/// Entries that `~` removes at most without `LIMIT`, as in Redis: 100 nodes of 100 entries.
const LIMIT_BY_DEFAULT: u64 = 10_000;

/// Options of `XADD` and `XTRIM`, up to the id.
#[derive(Clone, Copy, Debug, Default)]
struct TrimWords {
    trim: Option<StreamTrim>,
    is_approximate: bool,
    limit: Option<u64>,
}

impl TrimWords {
    /// Parses the option at the beginning. Returns the number of its arguments; 0: it is another one.
    fn parse(&mut self, words: &[&[u8]]) -> Result<usize, ArgumentError> {
        const TWICE: ArgumentError = because(
            "ERR syntax error, MAXLEN and MINID options at the same time are not compatible",
        );
        let [word, rest @ ..] = words else { return Ok(0) };
        let is_length = is(word, "MAXLEN");
        if !rest.is_empty() && (is_length || is(word, "MINID")) {
            if self.trim.is_some() {
                return Err(TWICE);
            }
            let (precision, argument) = match rest {
                [precision @ (b"~" | b"="), argument, ..] => (Some(*precision), *argument),
                [argument, ..] => (None, *argument),
                [] => return Err(ArgumentError::Syntax),
            };
            self.is_approximate = precision == Some(b"~");
            self.trim = Some(match is_length {
                true => {
                    let length = u64::try_from(integer(argument)?);
                    let negative = because("ERR The MAXLEN argument must be >= 0.");
                    StreamTrim::Length(length.map_err(|_| negative)?)
                }
                false => StreamTrim::From(StreamId::parse_argument(argument)?),
            });
            return Ok(2 + usize::from(precision.is_some()));
        }
        match rest {
            [limit, ..] if is(word, "LIMIT") => {
                let limit = u64::try_from(integer(limit)?);
                let negative = because("ERR The LIMIT argument must be >= 0.");
                self.limit = Some(limit.map_err(|_| negative)?);
                Ok(2)
            }
            _ => Ok(0),
        }
    }

    fn finish(self) -> Result<Option<StreamTrimming>, ArgumentError> {
        const WITHOUT_TRIM: ArgumentError = because(
            "ERR syntax error, LIMIT cannot be used without specifying a trimming strategy",
        );
        const WITHOUT_TILDE: ArgumentError =
            because("ERR syntax error, LIMIT cannot be used without the special ~ option");
        if self.trim.is_none() && self.limit.is_some_and(|limit| limit > 0) {
            return Err(WITHOUT_TRIM);
        }
        if self.limit.is_some() && !self.is_approximate {
            return Err(WITHOUT_TILDE);
        }
        let precision = match self.is_approximate {
            true => TrimPrecision::WholePages(self.limit.unwrap_or(LIMIT_BY_DEFAULT)),
            false => TrimPrecision::Exact,
        };
        Ok(self.trim.map(|trim| StreamTrimming { trim, precision }))
    }
}

impl StreamTrimming {
    /// Parses the options of `XTRIM`.
    pub fn parse(mut words: &[&[u8]]) -> Result<StreamTrimming, ArgumentError> {
        const NO_TRIM: ArgumentError =
            because("ERR syntax error, XTRIM must be called with a trimming strategy");
        let mut options = TrimWords::default();
        while !words.is_empty() {
            match options.parse(words)? {
                0 => return Err(ArgumentError::Syntax),
                taken => words = &words[taken..],
            }
        }
        // Redis looks for a misplaced LIMIT first.
        let limit = options.limit.filter(|limit| *limit > 0);
        if options.trim.is_none() && limit.is_none() {
            return Err(NO_TRIM);
        }
        options.finish()?.ok_or(NO_TRIM)
    }
}

/// The arguments of `XADD` behind the key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StreamAddition<'w, 'a> {
    /// Set if no stream is created.
    pub must_exist: bool,
    /// The removal of old entries.
    pub trimming: Option<StreamTrimming>,
    /// The id.
    pub id: NewStreamId,
    /// Names and values in turn, at least one pair.
    pub fields: &'w [&'a [u8]],
}

impl<'w, 'a> StreamAddition<'w, 'a> {
    /// Parses `[NOMKSTREAM] [MAXLEN | MINID ...] id field value [field value ...]`.
    pub fn parse(mut words: &'w [&'a [u8]]) -> Result<StreamAddition<'w, 'a>, ArgumentError> {
        const ZERO: ArgumentError =
            because("ERR The ID specified in XADD must be greater than 0-0");
        let (mut options, mut must_exist) = (TrimWords::default(), false);
        let id = loop {
            let [word, rest @ ..] = words else { break None };
            if *word == b"*" {
                break Some(NewStreamId::Generated);
            }
            match options.parse(words)? {
                0 if is(word, "NOMKSTREAM") => (must_exist, words) = (true, rest),
                0 => break Some(NewStreamId::parse(word, 0).ok_or(INVALID_ID)?),
                taken => words = &words[taken..],
            }
        };
        let trimming = options.finish()?;
        let id = id.ok_or(ArgumentError::Arity)?;
        let fields = &words[1..];
        if fields.is_empty() || !fields.len().is_multiple_of(2) {
            return Err(ArgumentError::Arity);
        }
        if id == NewStreamId::Given(StreamId::MIN) {
            return Err(ZERO);
        }
        Ok(StreamAddition { must_exist, trimming, id, fields })
    }

    /// Returns the names and values of the fields.
    pub fn pairs(&self) -> impl Iterator<Item = (&'a [u8], &'a [u8])> + Clone + use<'w, 'a> {
        self.fields.as_chunks().0.iter().map(|[name, value]| (*name, *value))
    }
}

/// The arguments of `XRANGE` behind the key, or of `XREVRANGE` with its ends exchanged.
pub fn parse_interval(
    start: &[u8],
    end: &[u8],
    mut options: &[&[u8]],
) -> Result<StreamInterval, ArgumentError> {
    let (start, end) = (StreamId::parse_start(start)?, StreamId::parse_stop(end)?);
    let mut count = None;
    while let [word, rest @ ..] = options {
        match rest {
            [number, rest @ ..] if is(word, "COUNT") => {
                count = Some(amount(number)?);
                options = rest;
            }
            _ => return Err(ArgumentError::Syntax),
        }
    }
    Ok(StreamInterval { start, end, count })
}

/// Ids from one to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamInterval {
    /// The lowest id.
    pub start: StreamId,
    /// The highest id.
    pub end: StreamId,
    /// Most entries; `None`: any number.
    pub count: Option<u64>,
}

/// The arguments of `XREAD` and `XREADGROUP`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReadOptions<'a> {
    /// Most entries of each stream; 0: any number.
    pub count: u64,
    /// Milliseconds to wait for entries; 0: without a limit. `None`: the command does not wait.
    pub block: Option<u64>,
    /// The names of the group and of the consumer.
    pub group: Option<[&'a [u8]; 2]>,
    /// Set if delivered entries do not become pending.
    pub without_pending: bool,
    /// Position of the first key among the words. As many ids follow the keys.
    pub first_key: usize,
    /// Number of keys.
    pub keys: usize,
}

impl<'a> ReadOptions<'a> {
    /// Parses the arguments behind the name of the command.
    pub fn parse(words: &[&'a [u8]], of_group: bool) -> Result<ReadOptions<'a>, ArgumentError> {
        const NO_GROUP: ArgumentError = because("ERR Missing GROUP option for XREADGROUP");
        const GROUP_IN_XREAD: ArgumentError = because(
            "ERR The GROUP option is only supported by XREADGROUP. You called XREAD instead.",
        );
        const NOACK_IN_XREAD: ArgumentError = because(
            "ERR The NOACK option is only supported by XREADGROUP. You called XREAD instead.",
        );
        let mut options = ReadOptions {
            count: 0,
            block: None,
            group: None,
            without_pending: false,
            first_key: 0,
            keys: 0,
        };
        let mut at = 0;
        while let Some(word) = words.get(at) {
            let rest = &words[at + 1..];
            match rest {
                [millis, ..] if is(word, "BLOCK") => {
                    options.block = Some(parse_block(millis)?);
                    at += 2;
                }
                [count, ..] if is(word, "COUNT") => {
                    options.count = amount(count)?;
                    at += 2;
                }
                [_, ..] if is(word, "STREAMS") => {
                    if !rest.len().is_multiple_of(2) {
                        return Err(unbalanced(of_group));
                    }
                    (options.first_key, options.keys) = (at + 1, rest.len() / 2);
                    break;
                }
                [group, consumer, ..] if is(word, "GROUP") => {
                    if !of_group {
                        return Err(GROUP_IN_XREAD);
                    }
                    options.group = Some([group, consumer]);
                    at += 3;
                }
                _ if is(word, "NOACK") => {
                    if !of_group {
                        return Err(NOACK_IN_XREAD);
                    }
                    options.without_pending = true;
                    at += 1;
                }
                _ => return Err(ArgumentError::Syntax),
            }
        }
        match options {
            ReadOptions { keys: 0, .. } => Err(ArgumentError::Syntax),
            ReadOptions { group: None, .. } if of_group => Err(NO_GROUP),
            options => Ok(options),
        }
    }
}

fn parse_block(argument: &[u8]) -> Result<u64, ArgumentError> {
    let millis =
        parse_integer(argument).ok_or(because("ERR timeout is not an integer or out of range"))?;
    u64::try_from(millis).map_err(|_| because("ERR timeout is negative"))
}

fn unbalanced(of_group: bool) -> ArgumentError {
    match of_group {
        true => because(
            "ERR Unbalanced 'xreadgroup' list of streams: for each stream key an ID or '>' must be specified.",
        ),
        false => because(
            "ERR Unbalanced 'xread' list of streams: for each stream key an ID or '$' must be specified.",
        ),
    }
}

/// The arguments of `XPENDING` behind the group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PendingOptions<'a> {
    /// Least time since the last delivery, in milliseconds.
    pub idle: i64,
    /// The ids.
    pub interval: StreamInterval,
    /// Most entries.
    pub count: u64,
    /// The consumer; `None`: all.
    pub consumer: Option<&'a [u8]>,
}

impl<'a> PendingOptions<'a> {
    /// Parses `[[IDLE milliseconds] start end count [consumer]]`. `None`: there are no arguments.
    pub fn parse(mut words: &[&'a [u8]]) -> Result<Option<PendingOptions<'a>>, ArgumentError> {
        if words.is_empty() {
            return Ok(None);
        }
        if !(3..=6).contains(&words.len()) {
            return Err(ArgumentError::Syntax);
        }
        let mut idle = 0;
        if let [word, millis, rest @ ..] = words
            && is(word, "IDLE")
        {
            idle = integer(millis)?;
            words = rest;
        }
        let [start, end, count, rest @ ..] = words else { return Err(ArgumentError::Syntax) };
        let count = amount(count)?;
        let (start, end) = (StreamId::parse_start(start)?, StreamId::parse_stop(end)?);
        let interval = StreamInterval { start, end, count: None };
        Ok(Some(PendingOptions { idle, interval, count, consumer: rest.first().copied() }))
    }
}

/// The arguments of `XCLAIM` behind the least idle time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClaimOptions {
    /// The ids.
    pub ids: Vec<StreamId>,
    /// Set if entries become pending that are not.
    pub forces: bool,
    /// Set if the reply contains ids only, and deliveries are not counted.
    pub ids_only: bool,
    /// The new time of delivery.
    pub time: Option<ClaimTime>,
    /// The new number of deliveries.
    pub deliveries: Option<u64>,
    /// The least id up to which the group has delivered.
    pub last_id: StreamId,
}

/// The time of delivery that a claim gives to an entry, in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClaimTime {
    /// This long ago.
    Ago(i64),
    /// Since 1970.
    At(i64),
}

impl ClaimTime {
    /// Returns the time since 1970. One in the future counts as now.
    pub fn at(self, now: u64) -> u64 {
        let time = match self {
            ClaimTime::Ago(millis) => (now as i64).checked_sub(millis),
            ClaimTime::At(time) => Some(time),
        };
        time.and_then(|time| u64::try_from(time).ok()).filter(|time| *time <= now).unwrap_or(now)
    }
}

impl ClaimOptions {
    /// Parses `id [id ...] [IDLE ms] [TIME time] [RETRYCOUNT count] [FORCE] [JUSTID] [LASTID id]`.
    pub fn parse(words: &[&[u8]]) -> Result<ClaimOptions, ArgumentError> {
        let ids: Vec<StreamId> = words.iter().map_while(|word| StreamId::parse(word, 0)).collect();
        let mut words = &words[ids.len()..];
        let mut options = ClaimOptions {
            ids,
            forces: false,
            ids_only: false,
            time: None,
            deliveries: None,
            last_id: StreamId::MIN,
        };
        let number = |argument: &[u8], refusal: &'static str| {
            parse_integer(argument).ok_or(because(refusal))
        };
        while let [word, rest @ ..] = words {
            let taken = match rest {
                _ if is(word, "FORCE") => {
                    options.forces = true;
                    1
                }
                _ if is(word, "JUSTID") => {
                    options.ids_only = true;
                    1
                }
                [idle, ..] if is(word, "IDLE") => {
                    let idle = number(idle, "ERR Invalid IDLE option argument for XCLAIM")?;
                    options.time = Some(ClaimTime::Ago(idle));
                    2
                }
                [time, ..] if is(word, "TIME") => {
                    let time = number(time, "ERR Invalid TIME option argument for XCLAIM")?;
                    options.time = Some(ClaimTime::At(time));
                    2
                }
                [count, ..] if is(word, "RETRYCOUNT") => {
                    let count = number(count, "ERR Invalid RETRYCOUNT option argument for XCLAIM")?;
                    options.deliveries = u64::try_from(count).ok();
                    2
                }
                [id, ..] if is(word, "LASTID") => {
                    options.last_id = StreamId::parse_argument(id)?;
                    2
                }
                _ => {
                    let word = String::from_utf8_lossy(word);
                    let text = format!("ERR Unrecognized XCLAIM option '{word}'");
                    return Err(ArgumentError::Because(text.into()));
                }
            };
            words = &words[taken..];
        }
        Ok(options)
    }
}

/// The arguments of `XAUTOCLAIM` behind the consumer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AutoClaimOptions {
    /// Least time since the last delivery, in milliseconds.
    pub idle: u64,
    /// The lowest id.
    pub start: StreamId,
    /// Most entries in the reply.
    pub count: u64,
    /// Set if the reply contains ids only, and deliveries are not counted.
    pub ids_only: bool,
}

impl AutoClaimOptions {
    /// Parses `min-idle-time start [COUNT count] [JUSTID]`.
    pub fn parse(words: &[&[u8]]) -> Result<AutoClaimOptions, ArgumentError> {
        const COUNT: ArgumentError = because("ERR COUNT must be > 0");
        let [idle, start, words @ ..] = words else { return Err(ArgumentError::Arity) };
        let invalid = because("ERR Invalid min-idle-time argument for XAUTOCLAIM");
        let idle = parse_integer(idle).ok_or(invalid)?.max(0) as u64;
        let start = StreamId::parse_start(start)?;
        let mut options = AutoClaimOptions { idle, start, count: 100, ids_only: false };
        let mut words = words.iter();
        while let Some(word) = words.next() {
            if is(word, "JUSTID") {
                options.ids_only = true;
            } else if is(word, "COUNT") {
                let count = parse_integer(words.next().ok_or(ArgumentError::Syntax)?);
                let count = count.filter(|count| (1..=AUTO_COUNT_MAX).contains(count));
                options.count = count.ok_or(COUNT)? as u64;
            } else {
                return Err(ArgumentError::Syntax);
            }
        }
        Ok(options)
    }
}

/// Most entries of `XAUTOCLAIM`, as in Redis.
const AUTO_COUNT_MAX: i64 = i64::MAX / 16;

/// The arguments of `XSETID` behind the key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SetIdOptions {
    /// The new highest id.
    pub id: StreamId,
    /// The new number of entries that were ever added.
    pub added: Option<u64>,
    /// The new highest id that was deleted.
    pub max_deleted: Option<StreamId>,
}

impl SetIdOptions {
    /// Parses `id [ENTRIESADDED count] [MAXDELETEDID id]`.
    pub fn parse(words: &[&[u8]]) -> Result<SetIdOptions, ArgumentError> {
        let [id, words @ ..] = words else { return Err(ArgumentError::Arity) };
        let id = StreamId::parse_argument(id)?;
        let mut options = SetIdOptions { id, added: None, max_deleted: None };
        let mut words = words.iter();
        while let Some(word) = words.next() {
            let argument = words.next().ok_or(ArgumentError::Syntax)?;
            if is(word, "ENTRIESADDED") {
                let added = u64::try_from(integer(argument)?);
                let negative = because("ERR entries_added must be positive");
                options.added = Some(added.map_err(|_| negative)?);
            } else if is(word, "MAXDELETEDID") {
                let deleted = StreamId::parse_argument(argument)?;
                if id < deleted {
                    return Err(because(
                        "ERR The ID specified in XSETID is smaller than the provided max_deleted_entry_id",
                    ));
                }
                options.max_deleted = Some(deleted).filter(|id| *id != StreamId::MIN);
            } else {
                return Err(ArgumentError::Syntax);
            }
        }
        Ok(options)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &'static str) -> Vec<&'static [u8]> {
        text.split_whitespace().map(str::as_bytes).collect()
    }

    fn id(ms: u64, seq: u64) -> StreamId {
        StreamId { ms, seq }
    }

    fn refusal<T: std::fmt::Debug>(parsed: Result<T, ArgumentError>) -> String {
        let error = parsed.unwrap_err();
        match error {
            ArgumentError::Because(text) => text.into_owned(),
            ArgumentError::Syntax | ArgumentError::NotAnInteger | ArgumentError::Arity => {
                format!("{error:?}")
            }
        }
    }

    #[test]
    fn additions_are_read() {
        let given = words("nomkstream maxlen ~ 7 limit 9 5-* a b");
        let addition = StreamAddition::parse(&given).unwrap();
        let precision = TrimPrecision::WholePages(9);
        let trimming = StreamTrimming { trim: StreamTrim::Length(7), precision };
        assert_eq!((addition.must_exist, addition.trimming), (true, Some(trimming)));
        assert_eq!(addition.id, NewStreamId::OfTime(5));
        assert!(addition.pairs().eq([(&b"a"[..], &b"b"[..])]));
        for (text, expected) in [
            ("0-0 a b", "ERR The ID specified in XADD must be greater than 0-0"),
            ("* a", "Arity"),
            ("5-5", "Arity"),
            ("maxlen 5", "Arity"),
            ("maxlen -5 * a b", "ERR The MAXLEN argument must be >= 0."),
            ("maxlen x * a b", "NotAnInteger"),
            (
                "limit 5 * a b",
                "ERR syntax error, LIMIT cannot be used without specifying a trimming strategy",
            ),
            (
                "minid 5 limit 5 * a b",
                "ERR syntax error, LIMIT cannot be used without the special ~ option",
            ),
            (
                "minid 5 maxlen 5 * a b",
                "ERR syntax error, MAXLEN and MINID options at the same time are not compatible",
            ),
            ("x * a b", "ERR Invalid stream ID specified as stream command argument"),
        ] {
            assert_eq!(refusal(StreamAddition::parse(&words(text))), expected, "{text}");
        }
    }

    #[test]
    fn intervals_exclude_and_extend_their_ends() {
        let interval = |start: &str, end: &str| {
            parse_interval(start.as_bytes(), end.as_bytes(), &[]).map(|it| (it.start, it.end))
        };
        assert_eq!(interval("-", "+"), Ok((StreamId::MIN, StreamId::MAX)));
        assert_eq!(interval("5", "5"), Ok((id(5, 0), id(5, u64::MAX))));
        assert_eq!(interval("(5", "(5-1"), Ok((id(5, 1), id(5, 0))));
        assert_eq!(
            refusal(interval("(18446744073709551615-18446744073709551615", "+")),
            "ERR invalid start ID for the interval"
        );
        assert_eq!(refusal(interval("-", "(0-0")), "ERR invalid end ID for the interval");
        assert!(interval("(-", "+").is_err() && interval("(", "+").is_err());
    }

    #[test]
    fn reads_are_read() {
        let given = words("count 5 block 0 group g c noack streams a b 1 >");
        let options = ReadOptions::parse(&given, true).unwrap();
        assert_eq!(
            (options.count, options.block, options.first_key, options.keys),
            (5, Some(0), 9, 2)
        );
        assert_eq!(options.group, Some([&b"g"[..], b"c"]));
        assert!(options.without_pending);
        for (text, of_group, expected) in [
            (
                "streams a",
                false,
                "ERR Unbalanced 'xread' list of streams: for each stream key an ID or '$' must be specified.",
            ),
            ("count 5", false, "Syntax"),
            ("count 5 streams", false, "Syntax"),
            ("streams a 1", true, "ERR Missing GROUP option for XREADGROUP"),
            (
                "noack streams a 1",
                false,
                "ERR The NOACK option is only supported by XREADGROUP. You called XREAD instead.",
            ),
            ("block -1 streams a 1", false, "ERR timeout is negative"),
            ("block x streams a 1", false, "ERR timeout is not an integer or out of range"),
        ] {
            assert_eq!(refusal(ReadOptions::parse(&words(text), of_group)), expected, "{text}");
        }
    }

    #[test]
    fn claims_are_read() {
        let given = words("1 2-3 idle 5 retrycount 7 force justid lastid 9");
        let options = ClaimOptions::parse(&given).unwrap();
        assert_eq!(options.ids, [id(1, 0), id(2, 3)]);
        assert_eq!(options.time.map(|time| time.at(100)), Some(95));
        assert_eq!((options.deliveries, options.last_id), (Some(7), id(9, 0)));
        assert_eq!(ClaimTime::At(500).at(100), 100);
        assert_eq!(ClaimTime::Ago(500).at(100), 100);
        assert_eq!(
            refusal(ClaimOptions::parse(&words("1 x"))),
            "ERR Unrecognized XCLAIM option 'x'"
        );
        let auto = AutoClaimOptions::parse(&words("5 (3 count 2 justid")).unwrap();
        assert_eq!((auto.idle, auto.start, auto.count), (5, id(3, 1), 2));
        assert_eq!(
            refusal(AutoClaimOptions::parse(&words("5 3 count 0"))),
            "ERR COUNT must be > 0"
        );
        let pending = PendingOptions::parse(&words("idle 5 - + 3 c")).unwrap().unwrap();
        assert_eq!((pending.idle, pending.count, pending.consumer), (5, 3, Some(&b"c"[..])));
        assert_eq!(PendingOptions::parse(&[]), Ok(None));
        assert_eq!(refusal(PendingOptions::parse(&words("- +"))), "Syntax");
    }
}
