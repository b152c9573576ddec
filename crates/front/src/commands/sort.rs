//! `SORT` and `SORT_RO`: the elements of a list, set or sorted set in another order, with the values
//! of keys whose names contain them.
//!
//! A command that reads such keys, or that stores its result, runs on copies of its records like a
//! transaction, so that all of them are of one moment. The number of values that it reads, and their
//! bytes, are limited: it holds up its reactor for so long.

use super::command::flag::{DANGEROUS, DENYOOM, READONLY, WRITE};
use super::command::{Family, Keys, command};
use super::packed::again_if_replaced;
use super::transactions::run_alone;
use super::{Call, Done, NotExecuted, Refusal};
use crate::core::data::{Key, Need, Record, TableKey};
use crate::core::elements::{NewExpiry, Touched};
use crate::core::lists::ListChange;
use crate::core::orders::SortedSets;
use crate::operators::counts::Found;
use std::borrow::Cow;
use types::limits::KEY_BYTES_MAX;
use types::{TypedValue, ValueType};
use values::{
    KeyPattern, ListEnd, ListPart, MemberSelection, PackedList, SortElements, SortOutput,
    SortQuery, ValuePages, encode_list, is_pattern_within,
};

pub(super) static FAMILY: Family = Family {
    group: "generic",
    category: Some("@set"),
    commands: &[
        command(
            "sort",
            -2,
            WRITE | DENYOOM | DANGEROUS,
            Keys::Sorted { may_store: true },
            |call| sort(call, true),
        ),
        command("sort_ro", -2, READONLY | DANGEROUS, Keys::Sorted { may_store: false }, |call| {
            sort(call, false)
        }),
    ],
};

/// Most values of other keys that one command reads, repeated ones counted: about 60 ms.
const VALUES_MAX: usize = 1 << 16;

/// Most bytes of these values.
const VALUE_BYTES_IN_ALL: usize = 64 << 20;

/// Keys that are copied in one step.
const KEYS_PER_STEP: usize = 256;

const TOO_MANY_VALUES: Refusal = Refusal::because(
    "ERR SORT cannot read more than 65536 values of other keys at once: use LIMIT, or fewer elements",
);
const TOO_MANY_BYTES: Refusal =
    Refusal::because("ERR SORT cannot read more than 64 MiB of other values at once");

/// `SORT key [BY pattern] [LIMIT offset count] [GET pattern ...] [ASC | DESC] [ALPHA] [STORE key]`, and
/// `SORT_RO` without `STORE`.
fn sort(call: &mut Call<'_>, may_store: bool) -> Done {
    let slot = call.backend.node().is_cluster().then(|| types::slot_of(call.args[1]));
    let is_near = |pattern: &[u8]| slot.is_none_or(|slot| is_pattern_within(pattern, slot));
    let mut query = SortQuery::parse(&call.args[2..], may_store, is_near)?;
    if call.backend.staged.is_none() && (query.stored.is_some() || query.reads_values()) {
        return run_alone(call);
    }
    let mut found = FoundElements::default();
    found.read(call, &mut query)?;
    let elements = found.elements.list();
    let mut values = ValueReader { call, bytes_left: VALUE_BYTES_IN_ALL };
    let positions = match found.is_selected {
        true if query.is_descending() => (0..elements.len()).rev().collect(),
        true => (0..elements.len()).collect(),
        false => {
            let weights = query.weights().map(|keys| values.of_keys(&keys, &elements));
            query.order(&elements, weights.transpose()?.as_deref())?
        }
    };
    let chosen: Vec<&[u8]> = positions.iter().map(|at| elements[*at]).collect();
    let results = values.outputs(&query, &chosen)?;
    match query.stored {
        Some(stored) => {
            let key = call.key(2 + stored);
            store(call, key, &results)
        }
        None => {
            call.reply.array(results.len());
            results.iter().for_each(|result| call.reply.bulk_or_null(result.as_deref()));
            Ok(())
        }
    }
}

/// The elements of the value that is sorted.
#[derive(Default)]
struct FoundElements {
    elements: SortElements,
    /// Set if these are only the elements of the result, in the order of the value.
    is_selected: bool,
}

impl FoundElements {
    /// Reads the elements of the value under argument 1.
    fn read(&mut self, call: &mut Call<'_>, query: &mut SortQuery<'_>) -> Done {
        let (key, table) = (call.key(1), call.session.status.table);
        let value_type = |record: Record<'_>| record.value.value_type;
        let found = call.backend.peek_one(table, key, |record| record.map(value_type))?;
        let read = match found {
            None => {
                call.backend.count(Found::key(false));
                return Ok(());
            }
            Some(ValueType::String | ValueType::Hash | ValueType::Stream) => {
                return Err(Refusal::WrongType.into());
            }
            Some(ValueType::List) => self.read_list(call, query),
            Some(ValueType::SortedSet) if query.is_unsorted() => self.read_in_order(call, query),
            Some(value_type @ (ValueType::Set | ValueType::SortedSet)) => {
                if value_type == ValueType::Set {
                    query.order_set();
                }
                call.backend.read_elements(table, key, value_type, Touched::All, |elements| {
                    for element in elements.iter() {
                        self.elements.push(element?.name);
                    }
                    Ok(())
                })
            }
        };
        again_if_replaced(read)
    }

    fn read_list(&mut self, call: &mut Call<'_>, query: &SortQuery<'_>) -> Done {
        let (key, table) = (call.key(1), call.session.status.table);
        self.is_selected = query.is_unsorted();
        call.backend.read_list(table, key, |list| {
            let count = list.count();
            let all = 0..usize::try_from(count).unwrap_or(usize::MAX);
            let window = if query.is_unsorted() { query.window(all.end) } else { all };
            let (start, end) = (window.start as u64, window.end as u64);
            let range = match query.is_unsorted() && query.is_descending() {
                true => count - end..count - start,
                false => start..end,
            };
            self.elements.clear();
            for item in list.slice(range)?.items() {
                self.elements.push(item?);
            }
            Ok(())
        })
    }

    /// Reads the members of the result from a sorted set, in ascending order.
    fn read_in_order(&mut self, call: &mut Call<'_>, query: &SortQuery<'_>) -> Done {
        let (key, table) = (call.key(1), call.session.status.table);
        self.is_selected = true;
        SortedSets::of(call.backend).read(table, key, None, |set, _| {
            self.elements.clear();
            let window = query.window(set.count());
            if window.is_empty() {
                return Ok(());
            }
            let (first, last) = (window.start as i64, window.end as i64 - 1);
            let from_highest = query.is_descending();
            let selection = MemberSelection::Ranks { first, last, from_highest };
            for one in set.selected(&selection)? {
                self.elements.push(one.member);
            }
            Ok(())
        })
    }
}

/// The values of other keys.
struct ValueReader<'c, 'a> {
    call: &'c mut Call<'a>,
    /// Bytes that may still be read.
    bytes_left: usize,
}

impl ValueReader<'_, '_> {
    fn take_bytes(&mut self, bytes: usize) -> Result<(), Refusal> {
        self.bytes_left = self.bytes_left.checked_sub(bytes).ok_or(TOO_MANY_BYTES)?;
        Ok(())
    }

    /// Returns the values of the keys of these elements.
    fn of_keys(
        &mut self,
        pattern: &KeyPattern<'_>,
        elements: &[&[u8]],
    ) -> Result<Vec<Option<Vec<u8>>>, NotExecuted> {
        if elements.len() > VALUES_MAX {
            return Err(TOO_MANY_VALUES.into());
        }
        let table = self.call.session.status.table;
        let mut values = Vec::with_capacity(elements.len());
        for part in elements.chunks(KEYS_PER_STEP) {
            let names: Vec<Vec<u8>> = part.iter().map(|element| pattern.key(element)).collect();
            // No key is longer.
            let keys = names.iter().filter(|name| name.len() <= KEY_BYTES_MAX);
            let keys: Vec<Key<'_>> = keys.map(|name| self.call.backend.key(name)).collect();
            self.call.backend.copy_unnamed(table, &keys)?;
            for name in &names {
                let value = match name.len() <= KEY_BYTES_MAX {
                    true => self.value(self.call.backend.key(name), pattern.field)?,
                    false => None,
                };
                self.take_bytes(value.as_ref().map_or(0, Vec::len))?;
                values.push(value);
            }
        }
        Ok(values)
    }

    /// Returns a string, or a field of a hash.
    fn value(
        &mut self,
        key: Key<'_>,
        field: Option<&[u8]>,
    ) -> Result<Option<Vec<u8>>, NotExecuted> {
        let table = self.call.session.status.table;
        let Some(field) = field else {
            return self.call.backend.read_one(table, key, |record| {
                let value = record.map(|record| record.value);
                let string = value.filter(|value| value.value_type == ValueType::String);
                string.map(|string| string.bytes.to_vec())
            });
        };
        let names = [field];
        let touched = Touched::Names(&names);
        let read = self.call.backend.read_elements(table, key, ValueType::Hash, touched, |hash| {
            Ok(hash.get(field)?.map(<[u8]>::to_vec))
        });
        match read {
            Err(NotExecuted::Reject(Refusal::WrongType)) => Ok(None),
            read => read,
        }
    }

    /// Returns what the options ask for, of all elements of the result.
    fn outputs<'e>(
        &mut self,
        query: &SortQuery<'_>,
        elements: &[&'e [u8]],
    ) -> Result<Vec<Option<Cow<'e, [u8]>>>, NotExecuted> {
        let borrowed = |element: &&'e [u8]| Some(Cow::Borrowed(*element));
        let outputs = match &query.outputs[..] {
            [] | [SortOutput::Element] => return Ok(elements.iter().map(borrowed).collect()),
            outputs => outputs,
        };
        if elements.len().saturating_mul(outputs.len()) > VALUES_MAX {
            return Err(TOO_MANY_VALUES.into());
        }
        let mut columns = Vec::with_capacity(outputs.len());
        for output in outputs {
            columns.push(match output {
                SortOutput::Element => {
                    self.take_bytes(elements.iter().map(|element| element.len()).sum())?;
                    elements.iter().map(borrowed).collect::<Vec<_>>().into_iter()
                }
                SortOutput::Value(pattern) => {
                    let values = self.of_keys(pattern, elements)?.into_iter();
                    values.map(|value| value.map(Cow::Owned)).collect::<Vec<_>>().into_iter()
                }
                SortOutput::Nothing => vec![None; elements.len()].into_iter(),
            });
        }
        let rows = elements.iter().flat_map(|_| {
            columns.iter_mut().map(|column| column.next().flatten()).collect::<Vec<_>>()
        });
        Ok(rows.collect())
    }
}

/// Stores the results as a list, values that do not exist as empty items. Without results the key is
/// removed.
fn store(call: &mut Call<'_>, key: Key<'_>, results: &[Option<Cow<'_, [u8]>>]) -> Done {
    if results.is_empty() {
        let mut leaves_orphans = false;
        call.update_keys(&[key], Need::Records, |records, changes| {
            if let Some(record) = records[0] {
                leaves_orphans = ValuePages::of(record.value).is_some();
                changes.delete(0);
            }
        })?;
        if leaves_orphans {
            call.backend.note_orphans();
        }
        return call.integer(0);
    }
    let mut bytes = Vec::new();
    let items = results.iter().map(|result| result.as_deref().unwrap_or_default());
    encode_list(items.map(ListPart::Item), &mut bytes);
    let value = TypedValue { value_type: ValueType::List, bytes: &bytes };
    let new = PackedList::parse(value).map_err(Refusal::from)?;
    let change = ListChange::of(TableKey { table: call.session.status.table, key });
    let change = ListChange { expiry: NewExpiry::Is(None), is_replaced: true, ..change };
    call.backend.update_lists(&[change], new, |lists, _| {
        let new = lists.new;
        lists.get(0)?.push(ListEnd::Right, new);
        Ok(())
    })?;
    call.integer(results.len() as i64)
}
