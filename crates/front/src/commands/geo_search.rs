//! Searches for positions within an area: `GEOSEARCH` and the older `GEORADIUS` commands.
//!
//! All members of the sorted set are looked at. Without a sort option they come in the order of
//! their scores; Redis leaves the order open.

use super::command::flag::{DENYOOM, READONLY, WRITE};
use super::command::{Family, Keys, ONE, TWO, command, stored_position};
use super::geo::{parse_position, parse_unit, write_distance, write_position};
use super::packed::SizeChange;
use super::sorted_sets::{score, set_members};
use super::{Call, Done, Refusal, parse_integer, printable, uppercase_is};
use crate::core::data::TableKey;
use crate::core::elements::{NewExpiry, Touched, ValueChange};
use crate::operators::counts::Found;
use resp::ReplyWriter;
use types::ValueType;
use values::{Elements, GeoArea, GeoPosition, ScoredMember, parse_score};

pub(super) static FAMILY: Family = Family {
    group: "geo",
    category: Some("@geo"),
    commands: &[
        command("georadius", -6, WRITE | DENYOOM, Keys::OneAndStored { from: 6 }, |call| {
            radius(call, GeoForm::OfPosition, true)
        }),
        command("georadius_ro", -6, READONLY, ONE, |call| radius(call, GeoForm::OfPosition, false)),
        command("georadiusbymember", -5, WRITE | DENYOOM, Keys::OneAndStored { from: 5 }, |call| {
            radius(call, GeoForm::OfMember, true)
        }),
        command("georadiusbymember_ro", -5, READONLY, ONE, |call| {
            radius(call, GeoForm::OfMember, false)
        }),
        command("geosearch", -7, READONLY, ONE, geosearch),
        command("geosearchstore", -8, WRITE | DENYOOM, TWO, geosearchstore),
    ],
};

/// The forms of searches, by their fixed arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum GeoForm {
    /// `GEOSEARCH key` with options only.
    Search,
    /// `GEOSEARCHSTORE destination key` with options only.
    SearchStore,
    /// `GEORADIUS key longitude latitude radius unit`.
    OfPosition,
    /// `GEORADIUSBYMEMBER key member radius unit`.
    OfMember,
}

impl GeoForm {
    fn is_search(self) -> bool {
        matches!(self, GeoForm::Search | GeoForm::SearchStore)
    }
}

/// Order of the results by their distance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DistanceOrder {
    NearestFirst,
    FarthestFirst,
}

/// A shape, as far as the arguments tell it.
#[derive(Clone, Debug)]
enum SearchShape {
    Circle { radius: f64 },
    Rectangle { width: f64, height: f64 },
    Polygon { corners: Vec<GeoPosition> },
}

/// The center of a search.
#[derive(Clone, Copy, Debug)]
enum SearchCenter {
    Position(GeoPosition),
    /// The position of a member.
    Member(GeoPosition),
    /// The position of a member of a set that does not exist.
    Nowhere,
}

/// A search as a command asks for it.
#[derive(Clone, Debug)]
struct GeoQuery {
    center: Option<SearchCenter>,
    shape: Option<SearchShape>,
    /// Meters of the unit.
    unit: f64,
    order: Option<DistanceOrder>,
    /// Most results.
    count: Option<usize>,
    /// The first results are enough, even if others are nearer.
    any: bool,
    with_distance: bool,
    with_score: bool,
    with_position: bool,
    /// Stored scores are distances.
    stores_distances: bool,
}

/// A member within the area.
struct FoundPosition<'s> {
    one: ScoredMember<'s>,
    position: GeoPosition,
    /// In meters.
    distance: f64,
}

fn parse_float(text: &[u8], refusal: &'static str) -> Result<f64, Refusal> {
    parse_score(text).ok_or(Refusal::because(refusal))
}

/// Returns the position of a member; nowhere if there is no set.
fn center_of(member: &[u8], set: Option<&Elements<'_>>) -> Result<SearchCenter, Refusal> {
    let Some(set) = set else { return Ok(SearchCenter::Nowhere) };
    match score(set, member)? {
        Some(score) => Ok(SearchCenter::Member(GeoPosition::of_score(score))),
        None => {
            let member = printable(member, usize::MAX);
            Err(Refusal::Because(format!("ERR member {member} does not exist").into()))
        }
    }
}

impl GeoQuery {
    /// Parses the arguments behind the key, or behind the last of two. `set` is the set under it.
    fn parse(
        args: &[&[u8]],
        form: GeoForm,
        may_store: bool,
        set: Option<&Elements<'_>>,
    ) -> Result<GeoQuery, Refusal> {
        let mut query = GeoQuery {
            center: None,
            shape: None,
            unit: 1.0,
            order: None,
            count: None,
            any: false,
            with_distance: false,
            with_score: false,
            with_position: false,
            stores_distances: false,
        };
        let mut rest = match (form, args) {
            (GeoForm::OfPosition, [longitude, latitude, radius, unit, rest @ ..]) => {
                query.center = Some(SearchCenter::Position(parse_position(longitude, latitude)?));
                query.take_circle(radius, unit)?;
                rest
            }
            (GeoForm::OfMember, [member, radius, unit, rest @ ..]) => {
                query.center = Some(center_of(member, set)?);
                if set.is_some() {
                    query.take_circle(radius, unit)?;
                }
                rest
            }
            (_, args) => args,
        };
        while let [word, behind @ ..] = rest {
            rest = match query.take_output_option(word, behind)? {
                Some(rest) => rest,
                None if form.is_search() => query.take_area_option(word, behind, form, set)?,
                None => match behind {
                    [_, behind @ ..] if may_store && uppercase_is(word, b"STORE") => {
                        query.stores_distances = false;
                        behind
                    }
                    [_, behind @ ..] if may_store && uppercase_is(word, b"STOREDIST") => {
                        query.stores_distances = true;
                        behind
                    }
                    _ => return Err(Refusal::Syntax),
                },
            };
        }
        Ok(query)
    }

    fn take_circle(&mut self, radius: &[u8], unit: &[u8]) -> Result<(), Refusal> {
        let radius = parse_float(radius, "ERR need numeric radius")?;
        if radius < 0.0 {
            return Err(Refusal::because("ERR radius cannot be negative"));
        }
        self.unit = parse_unit(unit)?;
        self.shape = Some(SearchShape::Circle { radius: radius * self.unit });
        Ok(())
    }

    fn take_rectangle(&mut self, width: &[u8], height: &[u8], unit: &[u8]) -> Result<(), Refusal> {
        let width = parse_float(width, "ERR need numeric width")?;
        let height = parse_float(height, "ERR need numeric height")?;
        if width < 0.0 || height < 0.0 {
            return Err(Refusal::because("ERR height or width cannot be negative"));
        }
        self.unit = parse_unit(unit)?;
        let (width, height) = (width * self.unit, height * self.unit);
        self.shape = Some(SearchShape::Rectangle { width, height });
        Ok(())
    }

    /// Takes an option that all forms have. Returns the arguments behind it, or `None` if it is not
    /// one.
    fn take_output_option<'w, 'a>(
        &mut self,
        word: &[u8],
        behind: &'w [&'a [u8]],
    ) -> Result<Option<&'w [&'a [u8]]>, Refusal> {
        match (&word.to_ascii_uppercase()[..], behind) {
            (b"WITHDIST", _) => self.with_distance = true,
            (b"WITHHASH", _) => self.with_score = true,
            (b"WITHCOORD", _) => self.with_position = true,
            (b"ANY", _) => self.any = true,
            (b"ASC", _) => self.order = Some(DistanceOrder::NearestFirst),
            (b"DESC", _) => self.order = Some(DistanceOrder::FarthestFirst),
            (b"COUNT", [count, behind @ ..]) => {
                let count = parse_integer(count).ok_or(Refusal::NotAnInteger)?;
                let count = usize::try_from(count).ok().filter(|count| *count > 0);
                self.count = Some(count.ok_or(Refusal::because("ERR COUNT must be > 0"))?);
                return Ok(Some(behind));
            }
            _ => return Ok(None),
        }
        Ok(Some(behind))
    }

    /// Takes an option of `GEOSEARCH` and `GEOSEARCHSTORE`. Returns the arguments behind it.
    fn take_area_option<'w, 'a>(
        &mut self,
        word: &[u8],
        behind: &'w [&'a [u8]],
        form: GeoForm,
        set: Option<&Elements<'_>>,
    ) -> Result<&'w [&'a [u8]], Refusal> {
        // An option may replace an earlier one of the same kind.
        let is_polygon = matches!(self.shape, Some(SearchShape::Polygon { .. }));
        let may_be_member = !matches!(self.center, Some(SearchCenter::Position(_))) && !is_polygon;
        let may_be_position =
            matches!(self.center, None | Some(SearchCenter::Position(_))) && !is_polygon;
        let may_be_circle = matches!(self.shape, None | Some(SearchShape::Circle { .. }));
        let may_be_rectangle = matches!(self.shape, None | Some(SearchShape::Rectangle { .. }));
        let may_be_polygon = self.center.is_none() && (self.shape.is_none() || is_polygon);
        match (&word.to_ascii_uppercase()[..], behind) {
            (b"FROMMEMBER", [member, behind @ ..]) if may_be_member => {
                self.center = Some(center_of(member, set)?);
                Ok(behind)
            }
            (b"FROMLONLAT", [longitude, latitude, behind @ ..]) if may_be_position => {
                self.center = Some(SearchCenter::Position(parse_position(longitude, latitude)?));
                Ok(behind)
            }
            (b"BYRADIUS", [radius, unit, behind @ ..]) if may_be_circle => {
                self.take_circle(radius, unit)?;
                Ok(behind)
            }
            (b"BYBOX", [width, height, unit, behind @ ..]) if may_be_rectangle => {
                self.take_rectangle(width, height, unit)?;
                Ok(behind)
            }
            (b"BYPOLYGON", [count, behind @ ..]) if may_be_polygon => {
                self.take_polygon(count, behind)
            }
            (b"STOREDIST", _) if form == GeoForm::SearchStore => {
                self.stores_distances = true;
                Ok(behind)
            }
            _ => Err(Refusal::Syntax),
        }
    }

    /// Takes the corners of a polygon. Returns the arguments behind them.
    fn take_polygon<'w, 'a>(
        &mut self,
        count: &[u8],
        behind: &'w [&'a [u8]],
    ) -> Result<&'w [&'a [u8]], Refusal> {
        const TOO_FEW: Refusal =
            Refusal::because("ERR GEOSEARCH BYPOLYGON must have at least 3 vertices");
        let count = parse_integer(count).and_then(|count| i32::try_from(count).ok());
        let count = count.ok_or(Refusal::because("ERR invalid number of vertices"))?;
        let count = usize::try_from(count).ok().filter(|count| *count >= 3).ok_or(TOO_FEW)?;
        let numbers = behind.split_at_checked(count.saturating_mul(2));
        let (numbers, behind) = numbers.ok_or(TOO_FEW)?;
        let corners = numbers.as_chunks::<2>().0.iter();
        let corners = corners.map(|[longitude, latitude]| parse_position(longitude, latitude));
        let corners = corners.collect::<Result<Vec<_>, Refusal>>()?;
        self.shape = Some(SearchShape::Polygon { corners });
        Ok(behind)
    }

    /// Returns the area; `None` if its center is nowhere. Checks that the options fit together.
    fn area(&self, search: &SearchCommand<'_>) -> Result<Option<GeoArea>, Refusal> {
        let refusal = |text: String| Err(Refusal::Because(text.into()));
        let shows = self.with_distance || self.with_score || self.with_position;
        if let Some(option) = search.stores.filter(|_| shows) {
            return refusal(format!(
                "ERR {option} is not compatible with WITHDIST, WITHHASH and WITHCOORD options"
            ));
        }
        let name = search.name;
        let is_polygon = matches!(self.shape, Some(SearchShape::Polygon { .. }));
        if self.center.is_none() && !is_polygon {
            return refusal(format!(
                "ERR exactly one of FROMMEMBER or FROMLONLAT can be specified for {name}"
            ));
        }
        if self.shape.is_none() && search.form.is_search() {
            return refusal(format!(
                "ERR exactly one of BYRADIUS, BYBOX and BYPOLYGON can be specified for {name}"
            ));
        }
        if self.any && self.count.is_none() {
            return Err(Refusal::because("ERR the ANY argument requires COUNT argument"));
        }
        if let Some(SearchShape::Polygon { corners }) = &self.shape {
            return Ok(Some(GeoArea::Polygon { corners: corners.clone() }));
        }
        let center = match self.center {
            Some(SearchCenter::Position(center) | SearchCenter::Member(center)) => center,
            Some(SearchCenter::Nowhere) | None => return Ok(None),
        };
        Ok(match self.shape {
            Some(SearchShape::Circle { radius }) => Some(GeoArea::Circle { center, radius }),
            Some(SearchShape::Rectangle { width, height }) => {
                Some(GeoArea::Rectangle { center, width, height })
            }
            Some(SearchShape::Polygon { .. }) | None => None,
        })
    }

    /// Returns the members within an area, in the order of the reply.
    fn results<'s>(
        &self,
        area: &GeoArea,
        set: &'s Elements<'_>,
    ) -> Result<Vec<FoundPosition<'s>>, Refusal> {
        let count_max = self.count.unwrap_or(usize::MAX);
        let mut results = Vec::new();
        for one in set.sorted_members()? {
            if self.any && results.len() == count_max {
                break;
            }
            let position = GeoPosition::of_score(one.score);
            if let Some(distance) = area.distance_within(position) {
                results.push(FoundPosition { one, position, distance });
            }
        }
        let nearest = self.count.filter(|_| !self.any).map(|_| DistanceOrder::NearestFirst);
        match self.order.or(nearest) {
            Some(DistanceOrder::NearestFirst) => {
                results.sort_by(|a, b| a.distance.total_cmp(&b.distance));
            }
            Some(DistanceOrder::FarthestFirst) => {
                results.sort_by(|a, b| b.distance.total_cmp(&a.distance));
            }
            None => {}
        }
        results.truncate(count_max);
        Ok(results)
    }

    fn write(&self, reply: &mut ReplyWriter<'_>, results: &[FoundPosition<'_>]) {
        let shown = [self.with_distance, self.with_score, self.with_position];
        let shown = shown.into_iter().filter(|is_shown| *is_shown).count();
        reply.array(results.len());
        for FoundPosition { one, position, distance } in results {
            if shown > 0 {
                reply.array(1 + shown);
            }
            reply.bulk(one.member);
            if self.with_distance {
                write_distance(reply, distance / self.unit);
            }
            if self.with_score {
                reply.integer(one.score as i64);
            }
            if self.with_position {
                write_position(reply, *position);
            }
        }
    }

    /// Returns the results as members of the sorted set in which they are stored.
    fn stored<'s>(&self, results: &[FoundPosition<'s>]) -> Vec<ScoredMember<'s>> {
        let stored = results.iter().map(|found| match self.stores_distances {
            true => ScoredMember { score: found.distance / self.unit, ..found.one },
            false => found.one,
        });
        stored.collect()
    }
}

/// A command that searches.
struct SearchCommand<'a> {
    /// Its name in error texts.
    name: &'static str,
    form: GeoForm,
    may_store: bool,
    /// The arguments behind its keys.
    args: &'a [&'a [u8]],
    /// The name of the option or command that stores the results, if they are stored.
    stores: Option<&'static str>,
}

impl SearchCommand<'_> {
    /// Returns the query, and its results in this set.
    fn run<'s>(
        &self,
        set: &'s Elements<'_>,
    ) -> Result<(GeoQuery, Vec<FoundPosition<'s>>), Refusal> {
        let existing = (set.count() > 0).then_some(set);
        let query = GeoQuery::parse(self.args, self.form, self.may_store, existing)?;
        let results = match query.area(self)? {
            Some(area) => query.results(&area, set)?,
            None => Vec::new(),
        };
        Ok((query, results))
    }

    /// Replies with the results in the set under the key at this position.
    fn reply(&self, call: &mut Call<'_>, source: usize) -> Done {
        let (key, table) = (call.key(source), call.session.status.table);
        let (sorted_set, touched) = (ValueType::SortedSet, Touched::All);
        let reply = &mut call.reply;
        call.backend.read_elements(table, key, sorted_set, touched, |set| {
            let (query, results) = self.run(set)?;
            query.write(reply, &results);
            Ok(())
        })
    }

    /// Stores the results in the set under the key at one position under the key at another one.
    fn store(&self, call: &mut Call<'_>, source: usize, destination: usize) -> Done {
        let table = call.session.status.table;
        let [new, source] = [destination, source].map(|at| TableKey { table, key: call.key(at) });
        let expiry = NewExpiry::Is(None);
        let values = [
            ValueChange { expiry, ..SizeChange::Adds(0).of(new, Touched::Replaced) },
            SizeChange::Adds(0).of(source, Touched::All),
        ];
        let mut found = Found::default();
        let count =
            call.backend.update_values(ValueType::SortedSet, &values, |sets, records| {
                found = Found::keys(&records[1..]);
                let [new, source] = sets else { unreachable!("there are two sets") };
                let (query, results) = self.run(source)?;
                set_members(new, &query.stored(&results))?;
                Ok(results.len())
            })?;
        call.backend.count(found);
        call.integer(count as i64)
    }
}

/// `GEOSEARCH key FROMMEMBER member | FROMLONLAT longitude latitude, BYRADIUS radius unit | BYBOX
/// width height unit | BYPOLYGON corners longitude latitude [...], [ASC | DESC] [COUNT count [ANY]]
/// [WITHCOORD] [WITHDIST] [WITHHASH]`.
fn geosearch(call: &mut Call<'_>) -> Done {
    let (args, form) = (&call.args[2..], GeoForm::Search);
    let search = SearchCommand { name: "GEOSEARCH", form, may_store: false, args, stores: None };
    search.reply(call, 1)
}

/// `GEOSEARCHSTORE destination source` with the options of `GEOSEARCH`, and `STOREDIST`.
fn geosearchstore(call: &mut Call<'_>) -> Done {
    let name = "GEOSEARCHSTORE";
    let (args, form) = (&call.args[3..], GeoForm::SearchStore);
    let search = SearchCommand { name, form, may_store: false, args, stores: Some(name) };
    search.store(call, 2, 1)
}

/// `GEORADIUS key longitude latitude radius unit` and `GEORADIUSBYMEMBER key member radius unit`, with
/// options of `GEOSEARCH`, and `STORE key` or `STOREDIST key`.
fn radius(call: &mut Call<'_>, form: GeoForm, may_store: bool) -> Done {
    let fixed = if form == GeoForm::OfPosition { 6 } else { 5 };
    let destination = stored_position(fixed, call.args.len(), |at| call.args.get(at).copied());
    let destination = destination.filter(|_| may_store);
    let stores = destination.map(|_| "STORE option in GEORADIUS");
    let args = &call.args[2..];
    let search = SearchCommand { name: "GEORADIUS", form, may_store, args, stores };
    match destination {
        Some(destination) => search.store(call, 1, destination),
        None => search.reply(call, 1),
    }
}
