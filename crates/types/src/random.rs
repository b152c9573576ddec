//! A sequence of random numbers that follows from its seed.

/// The generator `SplitMix64` (Steele, Lea and Flood, *Fast splittable pseudorandom number
/// generators*, OOPSLA 2014). Its numbers may be predictable.
#[derive(Clone, Copy, Debug)]
pub struct SplitMix64(u64);

impl SplitMix64 {
    /// Creates the sequence of a seed.
    pub fn new(seed: u64) -> SplitMix64 {
        SplitMix64(seed)
    }

    /// Returns the next number.
    #[inline]
    pub fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mixed(self.0)
    }
}

/// Hashes `seed` so that every output bit depends on every input bit: the last step of
/// [`SplitMix64`].
#[inline]
pub fn mixed(seed: u64) -> u64 {
    let a = (seed ^ seed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let b = (a ^ a >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    b ^ b >> 31
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sequence_is_that_of_the_paper() {
        // The first numbers of seed 1234567, from the reference implementation.
        let mut random = SplitMix64::new(1_234_567);
        let drawn = [random.draw(), random.draw(), random.draw()];
        let expected =
            [6_457_827_717_110_365_317, 3_203_168_211_198_807_973, 9_817_491_932_198_370_423];
        assert_eq!(drawn, expected);
    }
}
