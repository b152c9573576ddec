//! Conversion of settings between values and text.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;
use std::time::Duration;
use types::{EvictionPolicy, PollPolicy};

/// The error of an invalid value, worded so that it can follow the setting's name.
pub type Wrong = String;

/// The form of a value in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SettingKind {
    Number,
    YesNo,
    Text,
}

/// A value that can be parsed from text and formatted as text.
pub(crate) trait Text: Sized {
    const KIND: SettingKind = SettingKind::Text;
    fn read(text: &str) -> Result<Self, Wrong>;
    fn show(&self) -> String;
}

/// Parses an integer, in a type that can hold the values of all settings.
fn whole_number(text: &str) -> Result<i128, Wrong> {
    text.parse().map_err(|_| "argument couldn't be parsed into an integer".to_string())
}

macro_rules! numbers {
    ($($number:ty),*) => {$(
        impl Text for $number {
            const KIND: SettingKind = SettingKind::Number;

            fn read(text: &str) -> Result<$number, Wrong> {
                let number = whole_number(text)?;
                number.try_into().map_err(|_| {
                    let (least, most) = (<$number>::MIN, <$number>::MAX);
                    format!("argument must be between {least} and {most} inclusive")
                })
            }

            fn show(&self) -> String {
                self.to_string()
            }
        }
    )*};
}

numbers!(u16, u32, u64, i64);

impl Text for bool {
    const KIND: SettingKind = SettingKind::YesNo;

    fn read(text: &str) -> Result<bool, Wrong> {
        match &text.to_ascii_lowercase()[..] {
            "yes" => Ok(true),
            "no" => Ok(false),
            _ => Err("argument must be 'yes' or 'no'".into()),
        }
    }

    fn show(&self) -> String {
        if *self { "yes" } else { "no" }.into()
    }
}

impl Text for String {
    fn read(text: &str) -> Result<String, Wrong> {
        Ok(text.into())
    }

    fn show(&self) -> String {
        self.clone()
    }
}

impl Text for Duration {
    const KIND: SettingKind = SettingKind::Number;

    fn read(text: &str) -> Result<Duration, Wrong> {
        let seconds = u64::try_from(whole_number(text)?).ok().filter(|s| *s <= i32::MAX as u64);
        let seconds = seconds.ok_or("argument must be between 0 and 2147483647 inclusive")?;
        Ok(Duration::from_secs(seconds))
    }

    fn show(&self) -> String {
        self.as_secs().to_string()
    }
}

/// A number of bytes. Its text form may have a unit, as in `64mb`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Bytes(pub usize);

impl Text for Bytes {
    fn read(text: &str) -> Result<Bytes, Wrong> {
        let wrong = || "argument must be a memory value".to_string();
        let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
        let (number, unit) = text.split_at(digits);
        let number: usize = number.parse().map_err(|_| wrong())?;
        let factor = match &unit.to_ascii_lowercase()[..] {
            "" | "b" => 1,
            "k" => 1_000,
            "kb" => 1 << 10,
            "m" => 1_000_000,
            "mb" => 1 << 20,
            "g" => 1_000_000_000,
            "gb" => 1 << 30,
            _ => return Err(wrong()),
        };
        number.checked_mul(factor).map(Bytes).ok_or_else(wrong)
    }

    fn show(&self) -> String {
        self.0.to_string()
    }
}

impl FromStr for Bytes {
    type Err = Wrong;

    fn from_str(text: &str) -> Result<Bytes, Wrong> {
        Bytes::read(text)
    }
}

impl Bytes {
    /// Formats the number with a unit, if that is exact.
    pub(crate) fn short(self) -> String {
        for (unit, bytes) in [("gb", 1 << 30), ("mb", 1 << 20), ("kb", 1 << 10)] {
            if self.0 >= bytes && self.0.is_multiple_of(bytes) {
                return format!("{}{unit}", self.0 / bytes);
            }
        }
        self.0.to_string()
    }
}

/// Limits on a client's unsent replies. A client that exceeds them is closed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OutputLimit {
    /// Bytes at which the client is closed at once. 0: no limit.
    pub hard: usize,
    /// Bytes at which the client is closed if it exceeds them for `soft_time`. 0: no limit.
    pub soft: usize,
    /// See `soft`.
    pub soft_time: Duration,
}

impl Text for OutputLimit {
    fn read(text: &str) -> Result<OutputLimit, Wrong> {
        let words: Vec<&str> = text.split_whitespace().collect();
        let [class, hard, soft, seconds] = words[..] else {
            return Err("argument must be 'normal <hard> <soft> <seconds>'".into());
        };
        match &class.to_ascii_lowercase()[..] {
            "normal" => Ok(OutputLimit {
                hard: Bytes::read(hard)?.0,
                soft: Bytes::read(soft)?.0,
                soft_time: Duration::read(seconds)?,
            }),
            "replica" | "slave" | "pubsub" => Err("the only client class is 'normal'".into()),
            _ => Err("Invalid client class specified in buffer limit configuration.".into()),
        }
    }

    fn show(&self) -> String {
        format!("normal {} {} {}", self.hard, self.soft, self.soft_time.as_secs())
    }
}

/// Fewest other servers that must be able to hold a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplicaMinimum {
    /// Derived from the numbers of replicas and members.
    Auto,
    /// A fixed number.
    Count(u16),
}

impl Text for ReplicaMinimum {
    fn read(text: &str) -> Result<ReplicaMinimum, Wrong> {
        if text.eq_ignore_ascii_case("auto") {
            return Ok(ReplicaMinimum::Auto);
        }
        let wrong = || "argument must be 'auto' or between 0 and 16 inclusive".to_string();
        let count = whole_number(text).ok().filter(|count| (0..=16).contains(count));
        Ok(ReplicaMinimum::Count(count.ok_or_else(wrong)? as u16))
    }

    fn show(&self) -> String {
        match self {
            ReplicaMinimum::Auto => "auto".into(),
            ReplicaMinimum::Count(count) => count.to_string(),
        }
    }
}

/// Addresses to listen on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bind {
    /// Addresses, each with whether the server may start if the machine lacks it.
    pub addresses: Vec<(IpAddr, bool)>,
}

impl Bind {
    /// Returns a list of one address.
    pub fn to(address: IpAddr) -> Bind {
        Bind { addresses: vec![(address, false)] }
    }
}

impl Text for Bind {
    fn read(text: &str) -> Result<Bind, Wrong> {
        let address = |word: &str| {
            let (word, may_fail) = word.strip_prefix('-').map_or((word, false), |w| (w, true));
            let address = match word {
                "*" => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
                "::*" => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
                _ => word.parse().map_err(|_| format!("'{word}' is not an IP address"))?,
            };
            Ok((address, may_fail))
        };
        let addresses: Vec<_> =
            text.split_whitespace().map(address).collect::<Result<_, Wrong>>()?;
        match addresses.is_empty() {
            true => Err("at least one address is required".into()),
            false => Ok(Bind { addresses }),
        }
    }

    fn show(&self) -> String {
        let show = |(address, may_fail): &(IpAddr, bool)| {
            format!("{}{address}", if *may_fail { "-" } else { "" })
        };
        self.addresses.iter().map(show).collect::<Vec<_>>().join(" ")
    }
}

/// Implements [`Text`] for a choice of words, each perhaps with other words of the same meaning.
macro_rules! words {
    ($type:ident { $($value:ident = $word:literal $(| $other:literal)*,)+ }) => {
        impl Text for $type {
            fn read(text: &str) -> Result<$type, Wrong> {
                match &text.to_ascii_lowercase()[..] {
                    $($word $(| $other)* => Ok($type::$value),)+
                    _ => Err(format!(
                        "argument(s) must be one of the following: {}",
                        [$($word),+].join(", ")
                    )),
                }
            }

            fn show(&self) -> String {
                match self { $($type::$value => $word),+ }.into()
            }
        }
    };
}

/// Defines enumerations with their words.
macro_rules! choices {
    ($($(#[$doc:meta])* $type:ident {
        $($(#[$meaning:meta])* $value:ident = $word:literal $(| $other:literal)*,)+
    })+) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum $type { $($(#[$meaning])* $value,)+ }

        words! { $type { $($value = $word $(| $other)*,)+ } }
    )+};
}

words! { EvictionPolicy {
    VolatileLru = "volatile-lru",
    VolatileLfu = "volatile-lfu",
    VolatileRandom = "volatile-random",
    VolatileTtl = "volatile-ttl",
    AllKeysLru = "allkeys-lru",
    AllKeysLfu = "allkeys-lfu",
    AllKeysRandom = "allkeys-random",
    NoEviction = "noeviction",
} }

words! { PollPolicy { Adaptive = "adaptive", Busy = "busy", Sleep = "sleep", } }

choices! {
    /// Clients that may use `DEBUG`.
    DebugCommand {
        /// No client.
        No = "no",
        /// Clients on this machine.
        Local = "local",
        /// All clients.
        Yes = "yes",
    }
    /// The I/O driver for the network.
    IoDriver {
        /// io_uring if it is available, otherwise epoll.
        Auto = "auto",
        /// Always io_uring.
        Uring = "uring",
        /// Always epoll.
        Epoll = "epoll",
    }
    /// The point from which a write counts as durable.
    Durability {
        /// [`Durability::Interval`] for a server alone, [`Durability::None`] in a cluster.
        Auto = "auto",
        /// After execution: no log is kept on disk.
        None = "none",
        /// When the operating system has the write. It survives the end of the process.
        Memory = "memory",
        /// As with `Memory`, plus a sync to disk once per second.
        Interval = "interval",
        /// When the write is synced to disk.
        Disk = "disk",
    }
    /// The log level of a server.
    #[expect(missing_docs, reason = "their names say it")]
    LogLevel {
        Nothing = "nothing",
        Error = "error",
        Warn = "warning" | "warn",
        Info = "notice" | "info",
        Debug = "debug" | "verbose",
        Trace = "trace",
    }
    /// The format of log messages.
    LogFormat {
        /// Plain text lines.
        Text = "text",
        /// One JSON object per line.
        Json = "json",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_as_redis_reads_them() {
        for (text, bytes) in [("0", 0), ("10", 10), ("1k", 1_000), ("2KB", 2_048), ("1gb", 1 << 30)]
        {
            assert_eq!(Bytes::read(text), Ok(Bytes(bytes)), "{text}");
        }
        for wrong in ["", "mb", "-1", "1tb", "1.5gb", "99999999999999999999", "99999999999gb"] {
            assert!(Bytes::read(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn the_minimum_of_replicas_is_a_number_or_auto() {
        assert_eq!(ReplicaMinimum::read("16"), Ok(ReplicaMinimum::Count(16)));
        assert_eq!(ReplicaMinimum::read("AUTO").unwrap().show(), "auto");
        for wrong in ["-1", "17", "", "many"] {
            assert!(ReplicaMinimum::read(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn addresses_and_limits_are_read() {
        assert_eq!(Bind::read("127.0.0.1 -::1").unwrap().show(), "127.0.0.1 -::1");
        assert_eq!(Bind::read("* -::*").unwrap().show(), "0.0.0.0 -::");
        assert!(Bind::read("").is_err() && Bind::read("localhost x").is_err());
        let limit = OutputLimit::read("normal 2mb 1mb 10").unwrap();
        assert_eq!(limit.show(), "normal 2097152 1048576 10");
        for wrong in ["", "normal 1 2", "replica 1 1 1", "what 0 0 0", "normal a 0 0"] {
            assert!(OutputLimit::read(wrong).is_err(), "{wrong}");
        }
    }
}
