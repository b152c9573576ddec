//! The registers that clients work on, and the valid replies: texts, counters, and pairs of keys
//! that are only written together. The simulator's checker judges the history of each register.

use resp::Value;
use sim::history::{self, HistoryVerdict, OperationOutcome, RegisterAction, RegisterOperation};
use std::collections::BTreeMap;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Register {
    Text(u32),
    Counter(u32),
    Pair(u32),
}

/// Number of registers of each kind, and number of hot ones at a time.
const TEXTS: u32 = 20_000;
const COUNTERS: u32 = 2_000;
const PAIRS: u32 = 2_000;
const HOT_TEXTS: u32 = 6;
const HOT_COUNTERS: u32 = 4;
const HOT_PAIRS: u32 = 2;

/// Operations on registers, by all clients.
pub(crate) type History = Vec<(Register, RegisterOperation)>;

/// Checks the history of every register. Returns the number of operations.
pub(crate) fn judge<'h>(
    history: impl IntoIterator<Item = &'h (Register, RegisterOperation)>,
) -> usize {
    let mut histories: BTreeMap<Register, Vec<RegisterOperation>> = BTreeMap::new();
    for (register, operation) in history {
        histories.entry(*register).or_default().push(*operation);
    }
    for (register, history) in &histories {
        match history::check(history, &[], &history::Lives::default()) {
            HistoryVerdict::Linearizable => {}
            HistoryVerdict::Violated(text) => {
                let kept = keep(*register, history);
                panic!("{register:?} cannot have behaved so ({kept}): {text}")
            }
            HistoryVerdict::GaveUp => panic!("{register:?} has too many possible histories"),
        }
    }
    histories.values().map(Vec::len).sum()
}

/// Writes the history of a register to a file that remains, and returns a text that names it.
fn keep(register: Register, history: &[RegisterOperation]) -> String {
    let path = std::path::Path::new(env!("CARGO_TARGET_TMPDIR"));
    let path = path.join(format!("history-of-{}-{register:?}", std::process::id()));
    let lines: Vec<String> = history.iter().map(|operation| format!("{operation:?}\n")).collect();
    match std::fs::write(&path, lines.concat()) {
        Ok(()) => format!("its history is in {}", path.display()),
        Err(error) => format!("its history cannot be kept: {error}"),
    }
}

impl Register {
    /// Returns a random register, in half of the cases a hot one of this era.
    pub(crate) fn random(random: &mut fastrand::Rng, era: u32) -> Register {
        let is_hot = random.bool();
        let (texts, counters, pairs) = match is_hot {
            true => (HOT_TEXTS, HOT_COUNTERS, HOT_PAIRS),
            false => (TEXTS, COUNTERS, PAIRS),
        };
        let era = if is_hot { era } else { 0 };
        let number = random.u32(..texts + counters + pairs);
        if let Some(number) = number.checked_sub(texts + counters) {
            Register::Pair((number + era * pairs) % PAIRS)
        } else if let Some(number) = number.checked_sub(texts) {
            Register::Counter((number + era * counters) % COUNTERS)
        } else {
            Register::Text((number + era * texts) % TEXTS)
        }
    }

    pub(crate) fn all() -> impl Iterator<Item = Register> {
        let texts = (0..TEXTS).map(Register::Text);
        let counters = (0..COUNTERS).map(Register::Counter);
        texts.chain(counters).chain((0..PAIRS).map(Register::Pair))
    }

    pub(crate) fn keys(self) -> Vec<String> {
        match self {
            Register::Text(number) => vec![format!("text:{number}")],
            Register::Counter(number) => vec![format!("counter:{number}")],
            Register::Pair(number) => {
                vec![format!("{{pair:{number}}}:left"), format!("{{pair:{number}}}:right")]
            }
        }
    }

    /// Returns an action after which the register exists. `new` is a value that was never used.
    pub(crate) fn writing(self, new: u64) -> RegisterAction {
        match self {
            Register::Counter(_) => RegisterAction::Increment,
            Register::Text(_) | Register::Pair(_) => RegisterAction::Write(new),
        }
    }

    /// Returns a random action. `new` is an unused value, `known` a possible current one.
    pub(crate) fn action(self, random: &mut fastrand::Rng, new: u64, known: u64) -> RegisterAction {
        match (self, random.u8(..100)) {
            (_, 0..45) => RegisterAction::Read,
            (_, 45..55) => RegisterAction::Delete,
            (Register::Text(_), 55..62) => RegisterAction::WriteIfAbsent(new),
            (Register::Text(_), 62..70) => RegisterAction::Swap(known, new),
            _ => self.writing(new),
        }
    }

    pub(crate) fn request(self, action: RegisterAction) -> Vec<Vec<u8>> {
        let keys: Vec<Vec<u8>> = self.keys().into_iter().map(String::into_bytes).collect();
        let words = |words: &[&[u8]]| words.iter().map(|word| word.to_vec()).collect();
        let key = &keys[0];
        match (self, action) {
            (Register::Text(_) | Register::Counter(_), RegisterAction::Read) => {
                words(&[b"GET", key])
            }
            (Register::Pair(_), RegisterAction::Read) => words(&[b"MGET", key, &keys[1]]),
            (Register::Text(_) | Register::Counter(_), RegisterAction::Delete) => {
                words(&[b"DEL", key])
            }
            (Register::Pair(_), RegisterAction::Delete) => words(&[b"DEL", key, &keys[1]]),
            (_, RegisterAction::Increment) => words(&[b"INCR", key]),
            (_, RegisterAction::WriteIfAbsent(new)) => words(&[b"SET", key, &value(new), b"NX"]),
            (_, RegisterAction::Swap(old, new)) => {
                words(&[b"SET", key, &value(new), b"IFEQ", &value(old)])
            }
            (Register::Pair(_), RegisterAction::Write(new)) => {
                words(&[b"MSET", key, &value(new), &keys[1], &value(new)])
            }
            (_, RegisterAction::Write(new)) if new % 4 == 0 => {
                words(&[b"SET", key, &value(new), b"EX", b"10000"])
            }
            (_, RegisterAction::Write(new)) => words(&[b"SET", key, &value(new)]),
            (
                _,
                RegisterAction::Probe
                | RegisterAction::Exchange(_)
                | RegisterAction::Take
                | RegisterAction::Flush
                | RegisterAction::WriteExpiring(..)
                | RegisterAction::WriteKeeping(_)
                | RegisterAction::Expire(_)
                | RegisterAction::Persist
                | RegisterAction::ReadExpiring(_)
                | RegisterAction::ReadPersisting
                | RegisterAction::ReadRemaining
                | RegisterAction::Part(_),
            ) => {
                unreachable!("the simulator's alone")
            }
        }
    }

    /// Returns the outcome of an action by its reply, or the text of an error reply.
    pub(crate) fn outcome(
        self,
        action: RegisterAction,
        reply: &Value,
    ) -> Result<OperationOutcome, String> {
        let pair = matches!(self, Register::Pair(_));
        match (action, reply) {
            (RegisterAction::Read, Value::Array(both)) if both[0] == both[1] => {
                self.outcome(action, &both[0])
            }
            (RegisterAction::Read, Value::Null) => Ok(OperationOutcome::Value(None)),
            (RegisterAction::Read, Value::Bulk(text)) => {
                Ok(OperationOutcome::Value(Some(number_of(text)?)))
            }
            (RegisterAction::Write(_), Value::Simple(_)) => Ok(OperationOutcome::Done),
            (RegisterAction::WriteIfAbsent(_) | RegisterAction::Swap(..), Value::Simple(_)) => {
                Ok(OperationOutcome::Applied(true))
            }
            (RegisterAction::WriteIfAbsent(_) | RegisterAction::Swap(..), Value::Null) => {
                Ok(OperationOutcome::Applied(false))
            }
            (RegisterAction::Increment, Value::Integer(number)) => {
                Ok(OperationOutcome::Number(*number as u64))
            }
            (RegisterAction::Delete, Value::Integer(0)) => Ok(OperationOutcome::Applied(false)),
            (RegisterAction::Delete, Value::Integer(1)) if !pair => {
                Ok(OperationOutcome::Applied(true))
            }
            (RegisterAction::Delete, Value::Integer(2)) if pair => {
                Ok(OperationOutcome::Applied(true))
            }
            (_, Value::Error(text)) => Err(String::from_utf8_lossy(text).into_owned()),
            (_, other) => Err(format!("{self:?} {action:?} was answered {other:?}")),
        }
    }
}

/// Returns a value, which is sometimes long enough to fill segments, and seldom a tenth of one.
fn value(number: u64) -> Vec<u8> {
    let length = match number {
        _ if number.is_multiple_of(1_009) => 400_000,
        _ if number.is_multiple_of(5) => 3_000,
        _ => 60,
    };
    let mut value = format!("{number}:").into_bytes();
    value.resize(value.len() + length, b'x');
    value
}

/// Parses the number in a value or counter.
fn number_of(text: &[u8]) -> Result<u64, String> {
    let digits = text.split(|&byte| byte == b':').next().unwrap_or_default();
    let number = std::str::from_utf8(digits).ok().and_then(|digits| digits.parse().ok());
    let is_whole = number.is_some_and(|number| text == digits || text == value(number));
    number.filter(|_| is_whole).ok_or_else(|| format!("nobody wrote {text:?}"))
}
