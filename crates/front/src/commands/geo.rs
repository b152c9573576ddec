//! Commands on positions: sorted sets whose scores are positions on the earth.

use super::command::flag::{DENYOOM, READONLY, WRITE};
use super::command::{Family, ONE, command};
use super::sorted_additions::{AddOptions, add_members};
use super::sorted_sets::reply_with_scores;
use super::{Call, Done, Refusal};
use resp::ReplyWriter;
use values::{Extended, GeoPosition, ScoredMember, parse_score};

pub(super) static FAMILY: Family = Family {
    group: "geo",
    category: Some("@geo"),
    commands: &[
        command("geoadd", -5, WRITE | DENYOOM, ONE, geoadd),
        command("geodist", -4, READONLY, ONE, geodist),
        command("geohash", -2, READONLY, ONE, geohash),
        command("geopos", -2, READONLY, ONE, geopos),
    ],
};

const NOT_A_FLOAT: Refusal = Refusal::because("ERR value is not a valid float");
const NO_UNIT: Refusal =
    Refusal::because("ERR unsupported unit provided. please use M, KM, FT, MI");

/// Parses a position.
pub(super) fn parse_position(longitude: &[u8], latitude: &[u8]) -> Result<GeoPosition, Refusal> {
    let longitude = parse_score(longitude).ok_or(NOT_A_FLOAT)?;
    let latitude = parse_score(latitude).ok_or(NOT_A_FLOAT)?;
    let position = GeoPosition { longitude, latitude };
    if position.is_valid() {
        return Ok(position);
    }
    let text = format!("ERR invalid longitude,latitude pair {longitude:.6},{latitude:.6}");
    Err(Refusal::Because(text.into()))
}

/// Returns the meters of a unit.
pub(super) fn parse_unit(word: &[u8]) -> Result<f64, Refusal> {
    match &word.to_ascii_lowercase()[..] {
        b"m" => Ok(1.0),
        b"km" => Ok(1000.0),
        b"ft" => Ok(0.3048),
        b"mi" => Ok(1609.34),
        _ => Err(NO_UNIT),
    }
}

/// Writes a distance with four decimals.
pub(super) fn write_distance(reply: &mut ReplyWriter<'_>, distance: f64) {
    const PARTS: u64 = 10_000;
    let parts = (distance * PARTS as f64).round_ties_even() as u64;
    reply.bulk(format!("{}.{:04}", parts / PARTS, parts % PARTS).as_bytes());
}

/// Writes longitude and latitude.
pub(super) fn write_position(reply: &mut ReplyWriter<'_>, position: GeoPosition) {
    reply.array(2);
    reply.decimal(&Extended::of(position.longitude).format());
    reply.decimal(&Extended::of(position.latitude).format());
}

/// `GEOADD key [NX | XX] [CH] longitude latitude member [longitude latitude member ...]`.
fn geoadd(call: &mut Call<'_>) -> Done {
    let mut options = AddOptions::default();
    let mut rest = &call.args[2..];
    while let [word, behind @ ..] = rest {
        match &word.to_ascii_uppercase()[..] {
            b"NX" => options.only_new = true,
            b"XX" => options.only_old = true,
            b"CH" => options.counts_changed = true,
            _ => break,
        }
        rest = behind;
    }
    let (places, odd) = rest.as_chunks::<3>();
    if places.is_empty() || !odd.is_empty() || options.only_new && options.only_old {
        return Err(Refusal::Syntax.into());
    }
    let mut members = Vec::with_capacity(places.len());
    for [longitude, latitude, member] in places {
        let position = parse_position(longitude, latitude)?;
        members.push(ScoredMember { score: position.score(), member });
    }
    add_members(call, options, &members)
}

/// `GEOPOS key [member ...]`.
fn geopos(call: &mut Call<'_>) -> Done {
    let members = &call.args[2..];
    reply_with_scores(call, members, |reply, scores| {
        reply.array(scores.len());
        for score in scores {
            match score {
                Some(score) => write_position(reply, GeoPosition::of_score(*score)),
                None => reply.null_array(),
            }
        }
    })
}

/// `GEOHASH key [member ...]`.
fn geohash(call: &mut Call<'_>) -> Done {
    let members = &call.args[2..];
    reply_with_scores(call, members, |reply, scores| {
        reply.array(scores.len());
        for score in scores {
            let text = score.map(|score| GeoPosition::of_score(score).text());
            reply.bulk_or_null(text.as_ref().map(|text| &text[..]));
        }
    })
}

/// `GEODIST key member member [M | KM | FT | MI]`.
fn geodist(call: &mut Call<'_>) -> Done {
    let unit = match &call.args[4..] {
        [] => 1.0,
        [unit] => parse_unit(unit)?,
        _ => return Err(Refusal::Syntax.into()),
    };
    let members = &call.args[2..4];
    reply_with_scores(call, members, |reply, scores| match scores {
        [Some(first), Some(second)] => {
            let [first, second] = [first, second].map(|score| GeoPosition::of_score(*score));
            write_distance(reply, first.distance(second) / unit);
        }
        _ => reply.null(),
    })
}
