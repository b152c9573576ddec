use super::*;
use std::collections::BTreeMap;

fn scored(score: f64, member: &[u8]) -> ScoredMember<'_> {
    ScoredMember { score, member }
}

fn new_value(members: &[(f64, &[u8])]) -> Vec<u8> {
    let mut list: Vec<_> = members.iter().map(|(score, member)| scored(*score, member)).collect();
    let mut bytes = Vec::new();
    encode_members(&mut list, &mut bytes);
    bytes
}

fn parsed(bytes: &[u8]) -> SortedSet<'_> {
    SortedSet::parse(bytes).expect("there is a count")
}

type Twin = BTreeMap<Vec<u8>, f64>;

/// Returns the members of a twin in order.
fn in_order(twin: &Twin) -> Vec<ScoredMember<'_>> {
    let mut list: Vec<_> = twin.iter().map(|(member, score)| scored(*score, member)).collect();
    list.sort_by(ScoredMember::order);
    list
}

fn assert_same(bytes: &[u8], twin: &Twin) {
    let set = parsed(bytes);
    let list = in_order(twin);
    assert_eq!(set.count(), list.len());
    assert_eq!(set.list().unwrap(), list);
    for (rank, one) in list.iter().enumerate() {
        assert_eq!(set.rank(one.member), Ok(Some((rank, one.score))));
    }
}

const SCORES: [f64; 8] = [0.0, 1.0, -1.0, 1.5, 1e300, f64::INFINITY, f64::NEG_INFINITY, 5e-324];

fn random_member(random: &mut fastrand::Rng) -> Vec<u8> {
    let length = random.usize(..3) * random.usize(..100);
    std::iter::repeat_with(|| random.u8(b'a'..b'd')).take(length).collect()
}

#[test]
fn single_changes_are_those_of_a_map() {
    let mut random = fastrand::Rng::with_seed(21);
    for _ in 0..100 {
        let mut twin = Twin::new();
        let mut bytes = new_value(&[]);
        for _ in 0..200 {
            let member = random_member(&mut random);
            let set = parsed(&bytes);
            let mut out = Vec::new();
            if random.u8(..3) > 0 || twin.len() < 2 {
                let score = random.choice(SCORES).unwrap();
                let place = set.locate(scored(score, &member)).unwrap();
                assert_eq!(place.old_score, twin.get(&member).copied());
                set.write_with(&place, scored(score, &member), &mut out);
                twin.insert(member, score);
            } else if let Some((rank, _)) = set.rank(&member).unwrap() {
                set.write_without(&set.span_of_ranks(rank..rank + 1).unwrap(), &mut out);
                assert!(twin.remove(&member).is_some());
            } else {
                assert!(!twin.contains_key(&member));
                continue;
            }
            bytes = out;
            assert_same(&bytes, &twin);
        }
    }
}

#[test]
fn ranges_are_those_of_a_filter() {
    let mut random = fastrand::Rng::with_seed(23);
    for _ in 0..2_000 {
        let mut twin = Twin::new();
        let has_one_score = random.bool();
        for _ in 0..random.usize(..12) {
            let score = if has_one_score { 1.0 } else { random.choice(SCORES).unwrap() };
            twin.insert(random_member(&mut random), score);
        }
        let list = in_order(&twin);
        let bytes = new_value(&list.iter().map(|one| (one.score, one.member)).collect::<Vec<_>>());
        let set = parsed(&bytes);
        let (low, high) = (random_member(&mut random), random_member(&mut random));
        let range = if has_one_score {
            let mut bound = |member| match random.u8(..4) {
                0 => MemberBound::Lowest,
                1 => MemberBound::Highest,
                2 => MemberBound::Including(member),
                _ => MemberBound::Excluding(member),
            };
            MemberRange::Members { low: bound(&low), high: bound(&high) }
        } else {
            let mut bound =
                || ScoreBound { score: random.choice(SCORES).unwrap(), is_included: random.bool() };
            MemberRange::Scores { low: bound(), high: bound() }
        };
        let is_within =
            |one: &&ScoredMember<'_>| range.begins_before(**one) && range.ends_behind(**one);
        let within: Vec<_> = list.iter().filter(is_within).copied().collect();
        assert_span(set, &set.span_within(&range).unwrap(), &list, &within);
        let first = random.usize(..15);
        let ranks = first..first + random.usize(..5);
        let within: Vec<_> = list.iter().skip(first).take(ranks.len()).copied().collect();
        assert_span(set, &set.span_of_ranks(ranks).unwrap(), &list, &within);
    }
}

/// Checks that a span consists of these members, and is removed as they are.
fn assert_span(
    set: SortedSet<'_>,
    span: &MemberSpan,
    list: &[ScoredMember<'_>],
    within: &[ScoredMember<'_>],
) {
    assert_eq!(span.count, within.len());
    assert_eq!(set.part(span).list().unwrap(), within);
    if span.count < set.count() {
        let mut rest = Vec::new();
        set.write_without(span, &mut rest);
        let expected: Vec<_> = list.iter().filter(|one| !within.contains(one)).copied().collect();
        assert_eq!(parsed(&rest).list().unwrap(), expected);
    }
}

#[test]
fn the_bytes_are_as_documented() {
    let bytes = new_value(&[(2.5, b"b"), (-0.0, b"a")]);
    assert_eq!(bytes, b"\x02\0\0\0\0\0\0\0\0\x01a\0\0\0\0\0\0\x04\x40\x01b");
    assert!(parsed(&bytes).score(b"a").unwrap().unwrap().is_sign_positive());
}

/// Reads bytes in every way.
fn read_all(bytes: &[u8]) -> Result<(), Damaged> {
    let set = SortedSet::parse(bytes)?;
    let all = MemberRange::Members { low: MemberBound::Lowest, high: MemberBound::Highest };
    let results = [
        set.score(b"x").map(drop),
        set.span_of_ranks(1..3).map(drop),
        set.span_within(&all).map(drop),
        set.locate(scored(0.5, b"x")).map(|place| {
            set.write_with(&place, scored(0.5, b"x"), &mut Vec::new());
        }),
    ];
    let list = set.list();
    assert!(list.is_err() || results.iter().all(Result::is_ok));
    list.map(drop)
}

#[test]
fn bytes_that_are_no_sorted_set_are_an_error_and_nothing_else() {
    let whole = new_value(&[(1.0, b"one"), (2.0, b"two")]);
    for length in 0..whole.len() {
        assert_eq!(read_all(&whole[..length]), Err(Damaged), "{length}");
    }
    let mut longer = whole.clone();
    longer.push(0);
    assert_eq!(read_all(&longer), Err(Damaged));
    let mut nan = whole.clone();
    nan[1..9].copy_from_slice(&f64::NAN.to_le_bytes());
    assert_eq!(read_all(&nan), Err(Damaged));
    let mut descending = whole.clone();
    descending[1..9].copy_from_slice(&3.0f64.to_le_bytes());
    assert_eq!(read_all(&descending), Err(Damaged));
    let mut random = fastrand::Rng::with_seed(24);
    for _ in 0..50_000 {
        let mut bytes: Vec<u8> = (0..random.usize(1..40)).map(|_| random.u8(..)).collect();
        if random.bool() {
            bytes[0] %= 4;
        }
        let _ = read_all(&bytes);
        let mut changed = whole.clone();
        changed[random.usize(..whole.len())] ^= 1 << random.u8(..8);
        let _ = read_all(&changed);
    }
}

#[test]
#[should_panic(expected = "NaN is no score")]
fn a_score_that_is_not_a_number_is_a_bug() {
    let set = SortedSet::EMPTY;
    let place = set.locate(scored(1.0, b"a")).unwrap();
    set.write_with(&place, scored(f64::NAN, b"a"), &mut Vec::new());
}
