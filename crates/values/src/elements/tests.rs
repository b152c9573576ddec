use super::*;
use crate::packed::encode_new;
use crate::sorted_set::{SortedSet, score_value};
use types::{TypedValue, Version};

type Twin = BTreeMap<Vec<u8>, Vec<u8>>;

/// Time in tests in which nothing expires.
const NOW: UnixMillis = UnixMillis(1);

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
            let mut elements = Elements::of(packed(value_type, &before), NOW, searches).unwrap();
            let was = twin.clone();
            change(&mut elements, &mut twin, searches, &mut random);
            assert_eq!(listed(&elements), twin);
            check_changes(&elements, &was, &twin);
            bytes.clear();
            elements.encode(&mut bytes);
            check_order(value_type, &bytes);
            let read = packed(value_type, &bytes);
            assert_eq!((read.count(), read.bytes().len() as u64), (twin.len(), elements.bytes));
            assert_eq!(listed(&Elements::of(read, NOW, 0).unwrap()), twin);
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
        let mut elements = Elements::of(packed(value_type, &bytes), NOW, 0).unwrap();
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
            let mut elements = Elements::of_pages(value_type, &root, found, NOW, searches).unwrap();
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
    let mut elements = Elements::of(packed(ValueType::Hash, &bytes), NOW, 1).unwrap();
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
        let Ok(mut elements) = Elements::of(packed, NOW, searches) else { continue };
        let name = [random.u8(..)];
        let done = elements.set(&name, &value).and_then(|_| elements.remove(&[random.u8(..)]));
        if done.is_ok() {
            elements.encode(&mut Vec::new());
        }
        let root = Root { id: Version(1), pages: 1, count: 1, bytes: 1 };
        let pages = std::iter::once((0, packed));
        let Ok(mut elements) = Elements::of_pages(value_type, &root, pages, NOW, searches) else {
            continue;
        };
        if elements.remove(&name).and_then(|_| elements.set(b"x", &value)).is_ok() {
            let _ = (elements.sorted_members(), elements.changes(|_, _| ()));
            let resize = Resize { before: 1, after: random.u32(1..4) };
            let _ = elements.changed_pages(resize, hash, |_, _| ());
        }
    }
}

/// Values and expiries of fields, expired ones included, in milliseconds.
type TimedTwin = BTreeMap<Vec<u8>, (Vec<u8>, Option<u64>)>;

/// A hash in pages, or packed, with its twin, while time passes.
struct TimedHash {
    now: u64,
    /// All fields that are stored.
    stored: TimedTwin,
    random: fastrand::Rng,
}

impl TimedHash {
    /// Drops the expired fields that are in opened pages.
    fn judge(&mut self, is_open: impl Fn(&[u8]) -> bool) {
        let now = self.now;
        self.stored.retain(|name, (_, expiry)| !is_open(name) || expiry.is_none_or(|it| it > now));
    }

    /// Makes random changes to fields in opened pages, and compares what both find.
    fn change(&mut self, hash: &mut Elements<'_>, changes: usize, is_open: impl Fn(&[u8]) -> bool) {
        let names: Vec<Vec<u8>> = names().into_iter().filter(|name| is_open(name)).collect();
        for _ in 0..changes {
            let Some(name) = self.random.choice(&names) else { return };
            let value = vec![b'v'; self.random.usize(..20)];
            let expiry = self.random.bool().then(|| self.now + self.random.u64(1..30));
            match self.random.u32(..4) {
                0 => {
                    let removed = self.stored.remove(name).is_some();
                    assert_eq!(hash.remove(name), Ok(removed));
                }
                1 => {
                    let is_new = self.stored.insert(name.clone(), (value.clone(), None)).is_none();
                    assert_eq!(hash.set(name, &value), Ok(is_new));
                }
                _ => {
                    let new = (value.clone(), expiry);
                    let is_new = self.stored.insert(name.clone(), new).is_none();
                    let expiry = expiry.map(UnixMillis);
                    assert_eq!(hash.set_until(name, &value, expiry), Ok(is_new));
                }
            }
            self.compare(hash, name);
        }
        assert_eq!(hash.count(), self.stored.len() as u64);
    }

    fn compare(&self, hash: &Elements<'_>, name: &[u8]) {
        let found = hash.get_timed(name).unwrap();
        let found = found.map(|it| (it.element.value.to_vec(), it.expiry.map(|at| at.0)));
        assert_eq!(found.as_ref(), self.stored.get(name));
        let value = hash.get(name).unwrap().map(<[u8]>::to_vec);
        assert_eq!(value, found.map(|(value, _)| value));
    }

    /// Compares all elements of opened pages.
    fn compare_all(&self, hash: &Elements<'_>, is_open: impl Fn(&[u8]) -> bool) {
        let all = hash.iter_timed().map(|timed| {
            let TimedElement { element, expiry } = timed.unwrap();
            (element.name.to_vec(), (element.value.to_vec(), expiry.map(|at| at.0)))
        });
        let opened = self.stored.iter().filter(|(name, _)| is_open(name));
        let opened: TimedTwin = opened.map(|(name, it)| (name.clone(), it.clone())).collect();
        assert_eq!(all.collect::<TimedTwin>(), opened);
        let plain: Twin = opened.into_iter().map(|(name, (value, _))| (name, value)).collect();
        assert_eq!(listed(hash), plain);
    }

    /// Checks that a record has expiries only if a field has one, and the earliest in front.
    fn check_record(&self, bytes: &[u8], is_in_it: impl Fn(&[u8]) -> bool) {
        let fields = self.stored.iter().filter(|(name, _)| is_in_it(name));
        let earliest = fields.filter_map(|(_, (_, expiry))| *expiry).min();
        assert_eq!(crate::earliest_field_expiry(bytes).map(|at| at.0), earliest);
    }
}

#[test]
fn packed_fields_expire_as_those_of_a_twin_do() {
    for seed in 0..60 {
        let random = fastrand::Rng::with_seed(seed);
        let mut twin = TimedHash { now: 1_000, stored: TimedTwin::new(), random };
        let mut bytes = Vec::new();
        encode_new(ValueType::Hash, [].into_iter(), &mut bytes);
        for _ in 0..40 {
            twin.now += twin.random.u64(..12);
            let before = bytes.clone();
            let searches = twin.random.usize(..20);
            let found = packed(ValueType::Hash, &before);
            let mut hash = Elements::of(found, UnixMillis(twin.now), searches).unwrap();
            let stored = twin.stored.len();
            twin.judge(|_| true);
            assert_eq!(hash.is_changed(), stored != twin.stored.len());
            let by_page: Vec<_> = hash.by_page().flat_map(Result::unwrap).collect();
            assert_eq!(by_page.len(), twin.stored.len());
            twin.change(&mut hash, searches, |_| true);
            twin.compare_all(&hash, |_| true);
            bytes.clear();
            hash.encode(&mut bytes);
            twin.check_record(&bytes, |_| true);
            assert_eq!(packed(ValueType::Hash, &bytes).bytes().len() as u64, hash.bytes);
        }
    }
}

#[test]
fn fields_in_pages_expire_as_those_of_a_twin_do_when_their_pages_are_read() {
    for seed in 0..60 {
        let random = fastrand::Rng::with_seed(seed);
        let mut twin = TimedHash { now: 1_000, stored: TimedTwin::new(), random };
        let mut pages: BTreeMap<u32, Vec<u8>> = BTreeMap::new();
        let empty = Packed::empty(ValueType::Hash);
        let mut hash = Elements::of(empty, UnixMillis(twin.now), 0).unwrap();
        twin.change(&mut hash, 30, |_| true);
        if twin.stored.is_empty() {
            continue;
        }
        let mut root = hash.root(Version(1), twin.random.u32(1..6));
        let write = |page, bytes: &[u8]| drop(pages.insert(page, bytes.to_vec()));
        hash.first_pages(root.pages, self::hash, write).unwrap();
        for _ in 0..30 {
            twin.now += twin.random.u64(..12);
            let after = if twin.random.bool() { root.pages } else { twin.random.u32(1..10) };
            let resize = Resize { before: root.pages, after };
            let mut opened: Vec<u32> = (0..root.pages).filter(|_| twin.random.bool()).collect();
            opened.extend(resize.redistributed());
            opened.sort_unstable();
            opened.dedup();
            let old = root;
            let is_open = |name: &[u8]| opened.contains(&page_of(self::hash(name), old.pages));
            let before = pages.clone();
            let found = opened.iter().map(|page| match before.get(page) {
                Some(bytes) => (*page, packed(ValueType::Hash, bytes)),
                None => (*page, Packed::empty(ValueType::Hash)),
            });
            let (now, searches) = (UnixMillis(twin.now), twin.random.usize(..20));
            let hash = Elements::of_pages(ValueType::Hash, &root, found, now, searches);
            let mut hash = hash.unwrap();
            twin.judge(is_open);
            twin.compare_all(&hash, is_open);
            twin.change(&mut hash, searches, is_open);
            twin.compare_all(&hash, is_open);
            if hash.count() == 0 {
                break;
            }
            let write = |page, bytes: Option<&[u8]>| match bytes {
                Some(bytes) => drop(pages.insert(page, bytes.to_vec())),
                None => drop(pages.remove(&page)),
            };
            hash.changed_pages(resize, self::hash, write).unwrap();
            root = hash.root(root.id, after);
            let read = pages.values().map(|bytes| packed(ValueType::Hash, bytes));
            let (count, bytes) = read.fold((0, 0), |(count, bytes), page| {
                (count + page.count() as u64, bytes + page.bytes().len() as u64)
            });
            assert_eq!((root.count, root.bytes), (count, bytes));
            for (page, bytes) in &pages {
                twin.check_record(bytes, |name| page_of(self::hash(name), after) == *page);
            }
        }
    }
}

#[test]
fn expiries_of_bytes_that_are_no_value_are_errors_and_nothing_else() {
    let mut random = fastrand::Rng::with_seed(17);
    let mut whole = Vec::new();
    let field = |name, expiry| TimedElement { element: Element { name, value: b"v" }, expiry };
    let fields = [field(b"a", Some(UnixMillis(7))), field(b"b", None), field(b"c", None)];
    encode_timed(ValueType::Hash, &fields, &mut whole);
    for _ in 0..50_000 {
        let mut bytes = whole.clone();
        for _ in 0..random.usize(1..4) {
            let at = random.usize(..bytes.len());
            bytes[at] = random.u8(..);
        }
        bytes.truncate(random.usize(1..=bytes.len()));
        let value = TypedValue { value_type: ValueType::Hash, bytes: &bytes };
        let Ok(packed) = Packed::parse(value) else { continue };
        let now = UnixMillis(random.u64(..10));
        let Ok(mut hash) = Elements::of(packed, now, random.usize(..10)) else { continue };
        let name = [random.u8(b'a'..b'e')];
        let expiry = random.bool().then_some(UnixMillis(20));
        if hash.set_until(&name, b"x", expiry).is_ok() && hash.get_timed(&name).is_ok() {
            hash.encode(&mut Vec::new());
        }
        let root = Root { id: Version(1), pages: 1, count: 1, bytes: 1 };
        let pages = std::iter::once((0, packed));
        let Ok(mut hash) = Elements::of_pages(ValueType::Hash, &root, pages, now, 1) else {
            continue;
        };
        if hash.set_until(&name, b"x", expiry).is_ok() {
            let resize = Resize { before: 1, after: random.u32(1..4) };
            let _ = hash.changed_pages(resize, self::hash, |_, _| ());
        }
    }
}
