use super::*;
use crate::packed::encode_new;
use crate::sorted_set::{SortedSet, score_value};
use types::{TypedValue, Version};

type Twin = BTreeMap<Vec<u8>, Vec<u8>>;

fn packed(value_type: ValueType, bytes: &[u8]) -> Packed<'_> {
    Packed::parse(TypedValue { value_type, bytes }).expect("there is a count")
}

fn hash(name: &[u8]) -> u64 {
    let mixed = name.iter().fold(17_u64, |sum, byte| (sum ^ u64::from(*byte)).wrapping_mul(PRIME));
    mixed ^ mixed >> 31
}

const PRIME: u64 = 0x9e37_79b9_7f4a_7c15;

fn names() -> Vec<Vec<u8>> {
    (0..40).map(|n| vec![b'n'; n]).collect()
}

/// Makes random changes to the elements and the twin, and compares what both find.
fn change(
    elements: &mut Elements<'_>,
    twin: &mut Twin,
    changes: usize,
    random: &mut fastrand::Rng,
) {
    let names = names();
    for _ in 0..changes {
        let name = &names[random.usize(..names.len())];
        let value = match elements.value_type() {
            ValueType::Hash => names[random.usize(..names.len())].clone(),
            ValueType::SortedSet => score_value(f64::from(random.u8(..9))).to_vec(),
            ValueType::Set | ValueType::List | ValueType::Stream | ValueType::String => Vec::new(),
        };
        if random.bool() {
            let is_new = twin.insert(name.clone(), value.clone()).is_none();
            assert_eq!(elements.set(name, &value), Ok(is_new));
        } else {
            assert_eq!(elements.remove(name), Ok(twin.remove(name).is_some()));
        }
        let found = elements.get(name).unwrap().map(<[u8]>::to_vec);
        assert_eq!(found, twin.get(name).cloned());
        assert_eq!(elements.count(), twin.len() as u64);
    }
}

const TYPES: [ValueType; 3] = [ValueType::Hash, ValueType::Set, ValueType::SortedSet];

/// Compares the changes of the elements with those from one twin to another.
fn check_changes(elements: &Elements<'_>, before: &Twin, after: &Twin) {
    let (mut old, mut new) = (before.clone(), Twin::new());
    let changes = elements.changes(|was, is| {
        if let Some(was) = was {
            assert_eq!(old.remove(was.name).as_deref(), Some(was.value));
        }
        if let Some(is) = is {
            assert!(was.is_none_or(|was| was.name == is.name));
            assert_eq!(new.insert(is.name.to_vec(), is.value.to_vec()), None);
        }
    });
    assert_eq!(changes, Ok(()));
    old.append(&mut new);
    assert_eq!(&old, after);
}

/// Checks that the members of a packed sorted set are in order.
fn check_order(value_type: ValueType, bytes: &[u8]) {
    if value_type == ValueType::SortedSet {
        let members = SortedSet::parse(bytes).and_then(SortedSet::list).unwrap();
        assert!(members.is_sorted_by(|one, other| one.order(other).is_lt()));
    }
}

fn listed(elements: &Elements<'_>) -> Twin {
    let pair = |element: Element<'_>| (element.name.to_vec(), element.value.to_vec());
    elements.iter().map(|element| pair(element.unwrap())).collect()
}

#[test]
fn packed_elements_behave_like_those_of_a_map() {
    let mut random = fastrand::Rng::with_seed(11);
    for round in 0..2_000 {
        let value_type = TYPES[round % 3];
        let mut twin = Twin::new();
        let mut bytes = Vec::new();
        encode_new(value_type, [].into_iter(), &mut bytes);
        for _ in 0..4 {
            let before = bytes.clone();
            let searches = random.usize(..20);
            let mut elements = Elements::of(packed(value_type, &before), searches).unwrap();
            let was = twin.clone();
            change(&mut elements, &mut twin, searches, &mut random);
            assert_eq!(listed(&elements), twin);
            check_changes(&elements, &was, &twin);
            bytes.clear();
            elements.encode(&mut bytes);
            check_order(value_type, &bytes);
            let read = packed(value_type, &bytes);
            assert_eq!((read.count(), read.bytes().len() as u64), (twin.len(), elements.bytes));
            assert_eq!(listed(&Elements::of(read, 0).unwrap()), twin);
            assert_eq!(read.elements().count(), twin.len());
        }
    }
}

#[test]
fn pages_behave_like_a_map_while_their_number_changes() {
    let mut random = fastrand::Rng::with_seed(12);
    for round in 0..400 {
        let value_type = TYPES[round % 3];
        let mut twin = Twin::new();
        let (mut pages, mut bytes): (BTreeMap<u32, Vec<u8>>, Vec<u8>) = Default::default();
        encode_new(value_type, [].into_iter(), &mut bytes);
        let mut elements = Elements::of(packed(value_type, &bytes), 0).unwrap();
        change(&mut elements, &mut twin, 10, &mut random);
        if twin.is_empty() {
            continue;
        }
        let mut root = elements.root(Version(1), random.u32(1..5));
        let write = |page, bytes: &[u8]| drop(pages.insert(page, bytes.to_vec()));
        elements.first_pages(root.pages, hash, write).unwrap();
        for _ in 0..10 {
            let before = pages.clone();
            let resize = Resize { before: root.pages, after: random.u32(1..12) };
            let found = (0..root.pages).map(|page| match before.get(&page) {
                Some(bytes) => (page, packed(value_type, bytes)),
                None => (page, Packed::empty(value_type)),
            });
            let searches = random.usize(..20);
            let mut elements = Elements::of_pages(value_type, &root, found, searches).unwrap();
            assert_eq!(listed(&elements), twin);
            let was = twin.clone();
            change(&mut elements, &mut twin, searches, &mut random);
            assert_eq!(listed(&elements), twin);
            check_changes(&elements, &was, &twin);
            if elements.count() == 0 {
                break;
            }
            let write = |page, bytes: Option<&[u8]>| match bytes {
                Some(bytes) => drop(pages.insert(page, bytes.to_vec())),
                None => drop(pages.remove(&page)),
            };
            elements.changed_pages(resize, hash, write).unwrap();
            root = elements.root(root.id, resize.after);
            assert!(pages.keys().all(|page| *page < root.pages), "{pages:?} {root:?}");
            let held: usize =
                pages.values().map(|bytes| packed(value_type, bytes).bytes().len()).sum();
            assert_eq!((root.bytes, root.count), (held as u64, twin.len() as u64));
            for (page, bytes) in &pages {
                for element in packed(value_type, bytes).elements() {
                    assert_eq!(page_of(hash(element.unwrap().name), root.pages), *page);
                }
            }
        }
    }
}

#[test]
fn new_elements_follow_and_old_ones_stay_in_their_places() {
    let mut bytes = Vec::new();
    let old = [(&b"a"[..], &b"1"[..]), (b"b", b"2")];
    let old = old.map(|(name, value)| Element { name, value });
    encode_new(ValueType::Hash, old.into_iter(), &mut bytes);
    let mut elements = Elements::of(packed(ValueType::Hash, &bytes), 1).unwrap();
    assert_eq!(elements.set(b"c", b"3"), Ok(true));
    assert_eq!(elements.set(b"a", b"4"), Ok(false));
    let mut bytes = Vec::new();
    elements.encode(&mut bytes);
    let read = packed(ValueType::Hash, &bytes).elements().map(|one| one.unwrap());
    let read: Vec<_> = read.map(|one| (one.name, one.value)).collect();
    assert_eq!(read, [(&b"a"[..], &b"4"[..]), (b"b", b"2"), (b"c", b"3")]);
}

#[test]
fn changes_of_bytes_that_are_no_value_are_errors_and_nothing_else() {
    let mut random = fastrand::Rng::with_seed(13);
    for _ in 0..50_000 {
        let bytes: Vec<u8> = (0..random.usize(1..40)).map(|_| random.u8(..)).collect();
        let value_type = TYPES[random.usize(..TYPES.len())];
        let is_scored = value_type == ValueType::SortedSet;
        let value = if is_scored { score_value(1.5).to_vec() } else { vec![b'v'] };
        let Ok(packed) = Packed::parse(TypedValue { value_type, bytes: &bytes }) else {
            continue;
        };
        let searches = random.usize(..10);
        let Ok(mut elements) = Elements::of(packed, searches) else { continue };
        let name = [random.u8(..)];
        let done = elements.set(&name, &value).and_then(|_| elements.remove(&[random.u8(..)]));
        if done.is_ok() {
            elements.encode(&mut Vec::new());
        }
        let root = Root { id: Version(1), pages: 1, count: 1, bytes: 1 };
        let pages = std::iter::once((0, packed));
        let Ok(mut elements) = Elements::of_pages(value_type, &root, pages, searches) else {
            continue;
        };
        if elements.remove(&name).and_then(|_| elements.set(b"x", &value)).is_ok() {
            let _ = (elements.sorted_members(), elements.changes(|_, _| ()));
            let resize = Resize { before: 1, after: random.u32(1..4) };
            let _ = elements.changed_pages(resize, hash, |_, _| ());
        }
    }
}
