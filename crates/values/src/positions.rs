//! Positions on the earth, and their form as scores of sorted sets: as Redis computes them, since
//! the last digits of coordinates and distances are visible in replies.
//!
//! A score has 52 bits: 26 of the longitude, and between them 26 of the latitude. Neighboring
//! positions often have neighboring scores.

/// The earth's radius in meters, as Redis has it.
const EARTH_RADIUS: f64 = 6_372_797.560856;
/// Largest longitude and latitude, in degrees. The latitude is that of the web's square maps.
const LONGITUDE_MAX: f64 = 180.0;
const LATITUDE_MAX: f64 = 85.051_128_78;
/// Bits of a coordinate in a score.
const BITS: u32 = 26;
/// Letters of the text form of a position.
const LETTERS: &[u8; 32] = b"0123456789bcdefghjkmnpqrstuvwxyz";

/// A position on the earth, in degrees.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GeoPosition {
    /// From -180 in the west to 180 in the east.
    pub longitude: f64,
    /// From about -85 in the south to about 85 in the north.
    pub latitude: f64,
}

impl GeoPosition {
    /// Returns whether the position is one that a score can have.
    pub fn is_valid(self) -> bool {
        self.longitude.abs() <= LONGITUDE_MAX && self.latitude.abs() <= LATITUDE_MAX
    }

    /// Returns the score of the position.
    pub fn score(self) -> f64 {
        self.bits(LATITUDE_MAX) as f64
    }

    /// Returns the middle of the area that has this score.
    pub fn of_score(score: f64) -> GeoPosition {
        let bits = bits_of(score);
        let (longitude, latitude) = (even_bits(bits >> 1), even_bits(bits));
        GeoPosition {
            longitude: middle(longitude, LONGITUDE_MAX),
            latitude: middle(latitude, LATITUDE_MAX),
        }
    }

    /// Returns the bits of the position, on a map that ends at this latitude.
    fn bits(self, latitude_max: f64) -> u64 {
        let part = |degrees: f64, max: f64| {
            let part = (degrees + max) / (max + max);
            (part * f64::from(1u32 << BITS)) as u32
        };
        let longitude = part(self.longitude, LONGITUDE_MAX);
        spread(part(self.latitude, latitude_max)) | spread(longitude) << 1
    }

    /// Returns the standard text form of the position, of 11 characters.
    pub fn text(self) -> [u8; 11] {
        let bits = self.bits(90.0);
        // The last letter stands for bits that do not exist.
        std::array::from_fn(|at| match (2 * BITS as usize).checked_sub(5 * (at + 1)) {
            Some(shift) => LETTERS[(bits >> shift) as usize % LETTERS.len()],
            None => LETTERS[0],
        })
    }

    /// Returns the distance to another position in meters, by the haversine formula.
    pub fn distance(self, to: GeoPosition) -> f64 {
        let (from_longitude, to_longitude) = (radians(self.longitude), radians(to.longitude));
        let v = ((to_longitude - from_longitude) / 2.0).sin();
        if v == 0.0 {
            return self.distance_of_latitudes(to);
        }
        let (from_latitude, to_latitude) = (radians(self.latitude), radians(to.latitude));
        let u = ((to_latitude - from_latitude) / 2.0).sin();
        let a = u * u + from_latitude.cos() * to_latitude.cos() * v * v;
        // However sines are rounded, the root is not above 1, which has no arc sine: a stored distance
        // is a score, and must be a number.
        2.0 * EARTH_RADIUS * a.sqrt().min(1.0).asin()
    }

    /// Returns the distance between the latitudes of two positions in meters.
    fn distance_of_latitudes(self, to: GeoPosition) -> f64 {
        EARTH_RADIUS * (radians(to.latitude) - radians(self.latitude)).abs()
    }
}

/// Returns the integer of a score. Those outside of the range have the value that the processor gives
/// to Redis.
fn bits_of(score: f64) -> u64 {
    const TWO_63: f64 = (1u64 << 63) as f64;
    match score {
        score if score < TWO_63 => score as i64 as u64,
        score if score < 2.0 * TWO_63 => score as u64,
        _ => 0,
    }
}

fn radians(degrees: f64) -> f64 {
    degrees * (std::f64::consts::PI / 180.0)
}

/// Returns the middle of the interval of this number, in degrees.
fn middle(number: u32, max: f64) -> f64 {
    let at = |number: f64| -max + (number / f64::from(1u32 << BITS)) * (max + max);
    let number = f64::from(number);
    ((at(number) + at(number + 1.0)) / 2.0).clamp(-max, max)
}

/// Puts a zero bit in front of every bit.
fn spread(number: u32) -> u64 {
    let step = |bits: u64, shift: u32, mask: u64| (bits | bits << shift) & mask;
    let bits = step(number.into(), 16, 0x0000_ffff_0000_ffff);
    let bits = step(bits, 8, 0x00ff_00ff_00ff_00ff);
    let bits = step(bits, 4, 0x0f0f_0f0f_0f0f_0f0f);
    let bits = step(bits, 2, 0x3333_3333_3333_3333);
    step(bits, 1, 0x5555_5555_5555_5555)
}

/// Returns every second bit, from the lowest on: the reverse of [`spread`].
fn even_bits(bits: u64) -> u32 {
    let step = |bits: u64, shift: u32, mask: u64| (bits | bits >> shift) & mask;
    let bits = step(bits & 0x5555_5555_5555_5555, 1, 0x3333_3333_3333_3333);
    let bits = step(bits, 2, 0x0f0f_0f0f_0f0f_0f0f);
    let bits = step(bits, 4, 0x00ff_00ff_00ff_00ff);
    let bits = step(bits, 8, 0x0000_ffff_0000_ffff);
    step(bits, 16, 0x0000_0000_ffff_ffff) as u32
}

/// An area around a center. Lengths are in meters.
#[derive(Clone, Debug, PartialEq)]
pub enum GeoArea {
    /// All positions within a distance.
    Circle {
        /// Its center.
        center: GeoPosition,
        /// The distance.
        radius: f64,
    },
    /// A rectangle whose sides are parallels and meridians.
    Rectangle {
        /// Its center.
        center: GeoPosition,
        /// Length from west to east, at the latitude of each position.
        width: f64,
        /// Length from south to north.
        height: f64,
    },
    /// A polygon on the map.
    Polygon {
        /// Its corners, at least three.
        corners: Vec<GeoPosition>,
    },
}

impl GeoArea {
    /// Returns the distance of a position from the center; `None` if it is outside of the area.
    pub fn distance_within(&self, position: GeoPosition) -> Option<f64> {
        match self {
            GeoArea::Circle { center, radius } => {
                Some(center.distance(position)).filter(|distance| distance <= radius)
            }
            GeoArea::Rectangle { center, width, height } => {
                let beside = GeoPosition { longitude: center.longitude, ..position };
                let is_within = position.distance_of_latitudes(*center) <= height / 2.0
                    && position.distance(beside) <= width / 2.0;
                is_within.then(|| center.distance(position))
            }
            GeoArea::Polygon { corners } => {
                is_surrounded(position, corners).then(|| centroid(corners).distance(position))
            }
        }
    }
}

/// Returns whether a line from the position to the east crosses the sides an odd number of times.
fn is_surrounded(position: GeoPosition, corners: &[GeoPosition]) -> bool {
    let before = corners.iter().cycle().skip(corners.len().saturating_sub(1));
    let crosses = |(a, b): (&GeoPosition, &GeoPosition)| {
        let spans = (a.latitude > position.latitude) != (b.latitude > position.latitude);
        let slope = (b.longitude - a.longitude) / (b.latitude - a.latitude);
        spans && position.longitude < slope * (position.latitude - a.latitude) + a.longitude
    };
    corners.iter().zip(before).filter(|side| crosses(*side)).count() % 2 == 1
}

/// Returns the middle of positions on the sphere: the direction of the mean of their unit vectors.
fn centroid(positions: &[GeoPosition]) -> GeoPosition {
    let (mut x, mut y, mut z) = (0.0, 0.0, 0.0);
    for position in positions {
        let (longitude, latitude) = (radians(position.longitude), radians(position.latitude));
        x += latitude.cos() * longitude.cos();
        y += latitude.cos() * longitude.sin();
        z += latitude.sin();
    }
    let count = positions.len().max(1) as f64;
    let (x, y, z) = (x / count, y / count, z / count);
    let degrees = |radians: f64| radians / (std::f64::consts::PI / 180.0);
    GeoPosition {
        longitude: degrees(y.atan2(x)),
        latitude: degrees(z.atan2((x * x + y * y).sqrt())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(longitude: f64, latitude: f64) -> GeoPosition {
        GeoPosition { longitude, latitude }
    }

    const PALERMO: GeoPosition = GeoPosition { longitude: 13.361389, latitude: 38.115556 };
    const CATANIA: GeoPosition = GeoPosition { longitude: 15.087269, latitude: 37.502669 };

    #[test]
    fn scores_and_texts_are_those_of_valkey() {
        for (position, score, text) in [
            (PALERMO, 3_479_099_956_230_698.0, b"sqc8b49rny0"),
            (at(180.0, 85.051_128_78), 13_510_798_882_111_488.0, b"bp05b5048p0"),
            (at(-180.0, -85.051_128_78), 0.0, b"00bh0hbj200"),
            (at(3.0, 3.0), 3_379_368_329_318_596.0, b"s0d1h60s300"),
        ] {
            assert_eq!(position.score(), score);
            let text = String::from_utf8_lossy(text);
            assert_eq!(String::from_utf8_lossy(&GeoPosition::of_score(score).text()), text);
        }
        for (score, text) in
            [(1.5, b"00bh0hbj210"), (-5.0, b"bp05b5048p0"), (1e300, b"00bh0hbj200")]
        {
            assert_eq!(&GeoPosition::of_score(score).text(), text, "{score}");
        }
        let decoded = GeoPosition::of_score(PALERMO.score());
        assert_eq!(decoded, at(13.361_389_338_970_184, 38.115_556_395_496_3));
    }

    #[test]
    fn scores_come_back_and_any_number_is_a_position() {
        let mut random = fastrand::Rng::with_seed(31);
        for _ in 0..10_000 {
            let longitude = (random.f64() - 0.5) * 2.0 * LONGITUDE_MAX;
            let position = at(longitude, (random.f64() - 0.5) * 2.0 * LATITUDE_MAX);
            let decoded = GeoPosition::of_score(position.score());
            assert_eq!(decoded.score(), position.score());
            assert!(decoded.distance(position) < 0.6, "{position:?} became {decoded:?}");
            let any = GeoPosition::of_score(f64::from_bits(random.u64(..)));
            assert!(any.is_valid(), "{any:?}");
        }
    }

    #[test]
    fn distances_are_numbers_at_the_other_end_of_the_earth_too() {
        let mut random = fastrand::Rng::with_seed(32);
        for _ in 0..100_000 {
            let from = at(random.f64() * LONGITUDE_MAX, (random.f64() - 0.5) * LATITUDE_MAX);
            let to = at(from.longitude - LONGITUDE_MAX, -from.latitude);
            let distance = from.distance(to);
            assert!(distance > 20_000_000.0, "{distance} m from {from:?} to {to:?}");
        }
    }

    #[test]
    fn distances_are_those_of_valkey() {
        let stored = |position: GeoPosition| GeoPosition::of_score(position.score());
        let (palermo, catania) = (stored(PALERMO), stored(CATANIA));
        assert_eq!(format!("{:.4}", palermo.distance(catania)), "166274.1516");
        let center = at(15.0, 37.0);
        let circle = GeoArea::Circle { center, radius: 100_000.0 };
        assert_eq!(circle.distance_within(palermo), None);
        assert_eq!(circle.distance_within(catania), Some(center.distance(catania)));
        let rectangle = GeoArea::Rectangle { center, width: 300_000.0, height: 300_000.0 };
        assert_eq!(rectangle.distance_within(palermo), Some(center.distance(palermo)));
        let flat = GeoArea::Rectangle { center, width: 300_000.0, height: 100_000.0 };
        assert_eq!(flat.distance_within(palermo), None);
        let polygon =
            GeoArea::Polygon { corners: vec![at(10.0, 30.0), at(20.0, 30.0), at(15.0, 45.0)] };
        let distance = polygon.distance_within(catania).unwrap();
        assert_eq!(format!("{distance:.4}"), "271790.7291");
        assert_eq!(polygon.distance_within(at(11.0, 44.0)), None);
    }
}
