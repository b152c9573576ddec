//! Distribution of the records: YCSB's scrambled Zipf distribution, or uniform.

use fastrand::Rng;
use serde::Serialize;

/// Probability of each record.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Distribution {
    /// YCSB's `ScrambledZipfianGenerator`: Zipf with theta 0.99 over ten thousand million ranks,
    /// each rank hashed to a record. The hottest record gets 3.8 % of all operations, whatever
    /// the number of records.
    Zipf,
    /// The same probability for every record.
    Uniform,
}

/// YCSB's `ZIPFIAN_CONSTANT`.
const THETA: f64 = 0.99;
/// YCSB's `ITEM_COUNT`, plus one for the last rank, which its generator includes.
const RANKS: f64 = 1e10 + 1.0;
/// YCSB's `ZETAN`: the sum of 1 / rank^theta over its ten thousand million ranks.
const ZETA: f64 = 26.469_028_201_783_02;

/// Generator of positions below `count`.
#[derive(Clone, Debug)]
pub struct RecordSampler {
    distribution: Distribution,
    count: u32,
    /// Zipf's `eta` for these constants.
    eta: f64,
    /// 0.5^theta: weight of the second rank.
    second: f64,
}

impl RecordSampler {
    /// Creates a generator for `count` positions.
    pub fn new(distribution: Distribution, count: u32) -> RecordSampler {
        assert!(count > 0, "nothing to draw from");
        let second = 0.5f64.powf(THETA);
        let eta = (1.0 - (2.0 / RANKS).powf(1.0 - THETA)) / (1.0 - (1.0 + second) / ZETA);
        RecordSampler { distribution, count, eta, second }
    }

    /// Returns the next position.
    #[inline]
    pub fn next(&self, random: &mut Rng) -> u32 {
        match self.distribution {
            Distribution::Uniform => random.u32(..self.count),
            Distribution::Zipf => (fnv(self.rank(random.f64())) % u64::from(self.count)) as u32,
        }
    }

    /// Returns the rank for a uniform random number (Gray et al., "Quickly generating
    /// billion-record synthetic databases", in YCSB's version).
    #[inline]
    fn rank(&self, uniform: f64) -> u64 {
        let weight = uniform * ZETA;
        if weight < 1.0 {
            return 0;
        }
        if weight < 1.0 + self.second {
            return 1;
        }
        // 100 = 1 / (1 - theta).
        (RANKS * (self.eta * uniform - self.eta + 1.0).powi(100)) as u64
    }
}

/// YCSB's `fnvhash64`: FNV-1a over the eight bytes, lowest first, without its sign.
#[inline]
fn fnv(number: u64) -> u64 {
    let mut hash = 0xcbf2_9ce4_8422_2325u64;
    for byte in number.to_le_bytes() {
        hash = (hash ^ u64::from(byte)).wrapping_mul(1_099_511_628_211);
    }
    (hash as i64).unsigned_abs()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(distribution: Distribution, draws: usize) -> Vec<usize> {
        let draw = RecordSampler::new(distribution, 1_000);
        let mut random = Rng::with_seed(1);
        let mut counts = vec![0; 1_000];
        for _ in 0..draws {
            counts[draw.next(&mut random) as usize] += 1;
        }
        counts.sort_unstable_by(|a, b| b.cmp(a));
        counts
    }

    #[test]
    fn the_hottest_zipf_records_get_the_share_that_theta_says() {
        let counts = counts(Distribution::Zipf, 200_000);
        // Rank r gets 1 / (zeta * r^0.99); a record also gets its thousandth of the long tail.
        for (position, share) in [(0, 0.0378), (1, 0.0190)] {
            let seen = counts[position] as f64 / 200_000.0;
            assert!((seen - share).abs() < 0.0025, "rank {position}: {seen}");
        }
        assert!(counts.iter().all(|&count| count > 0));
    }

    #[test]
    fn uniform_draws_differ_by_chance_only() {
        let counts = counts(Distribution::Uniform, 200_000);
        assert!(counts[0] < 280 && counts[999] > 130, "{} {}", counts[0], counts[999]);
    }

    #[test]
    fn fnv_is_the_published_function() {
        // FNV-1a of eight zero bytes.
        assert_eq!(fnv(0), (0xa8c7_f832_281a_39c5u64 as i64).unsigned_abs());
    }

    #[test]
    fn ranks_follow_the_power_law_added_up_term_by_term() {
        let draw = RecordSampler::new(Distribution::Zipf, 1);
        let mut random = Rng::with_seed(9);
        const DRAWS: usize = 400_000;
        let mut seen = [0usize; 100];
        for _ in 0..DRAWS {
            if let Some(count) = seen.get_mut(draw.rank(random.f64()) as usize) {
                *count += 1;
            }
        }
        let (mut seen_below, mut naive_below) = (0.0, 0.0);
        for (rank, count) in seen.into_iter().enumerate() {
            seen_below += count as f64 / DRAWS as f64;
            naive_below += 1.0 / (((rank + 1) as f64).powf(THETA) * ZETA);
            // From the third rank on, YCSB's formula is an approximation that is slightly low.
            let off = seen_below / naive_below - 1.0;
            assert!(off.abs() < 0.08, "up to rank {rank}: {seen_below} for {naive_below}");
        }
    }
}
