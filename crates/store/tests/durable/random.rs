//! Random worlds.

use crate::world::{Scale, World};

#[test]
fn nothing_is_lost_and_nothing_comes_back_whenever_the_store_crashes() {
    let seeds = std::env::var("SEEDS").map_or(40, |seeds| seeds.parse().expect("a number"));
    let first = std::env::var("SEED").map_or(0, |seed| seed.parse().expect("a number"));
    let (mut crashes, mut refused, mut written, mut evicted) = (0, 0, 0, 0);
    for seed in first..first + seeds {
        let mut world = World::new(seed, Scale::of(seed));
        for _ in 0..20_000 {
            world.step();
        }
        world.check_bytes();
        crashes += world.crashes;
        refused += world.refused;
        written += world.written;
        evicted += world.evicted;
    }
    eprintln!("{crashes} crashes, {written} writes, {refused} refused, {evicted} evicted");
    assert!(seeds == 0 || evicted > 0, "eviction is not tested");
}
