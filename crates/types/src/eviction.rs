//! The policies of eviction, by which a full server makes room for writes.

/// The rule by which records are evicted: `docs/design/eviction.md`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum EvictionPolicy {
    /// Nothing is evicted: a full server refuses writes.
    #[default]
    NoEviction,
    /// The record that was not accessed for longest.
    AllKeysLru,
    /// The record that is accessed least often.
    AllKeysLfu,
    /// Any record.
    AllKeysRandom,
    /// The record with an expiry that was not accessed for longest.
    VolatileLru,
    /// The record with an expiry that is accessed least often.
    VolatileLfu,
    /// Any record with an expiry.
    VolatileRandom,
    /// The record that expires first.
    VolatileTtl,
}

/// The order in which records are evicted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EvictionOrder {
    /// By the time of the last access.
    Recency,
    /// By the number of accesses.
    Frequency,
    /// None.
    Random,
    /// By the expiry.
    Expiry,
}

impl EvictionPolicy {
    /// Returns the order in which records are evicted; `None` if none are.
    pub fn order(self) -> Option<EvictionOrder> {
        match self {
            EvictionPolicy::NoEviction => None,
            EvictionPolicy::AllKeysLru | EvictionPolicy::VolatileLru => {
                Some(EvictionOrder::Recency)
            }
            EvictionPolicy::AllKeysLfu | EvictionPolicy::VolatileLfu => {
                Some(EvictionOrder::Frequency)
            }
            EvictionPolicy::AllKeysRandom | EvictionPolicy::VolatileRandom => {
                Some(EvictionOrder::Random)
            }
            EvictionPolicy::VolatileTtl => Some(EvictionOrder::Expiry),
        }
    }

    /// Returns whether only records with an expiry are evicted.
    pub fn is_volatile(self) -> bool {
        match self {
            EvictionPolicy::NoEviction
            | EvictionPolicy::AllKeysLru
            | EvictionPolicy::AllKeysLfu
            | EvictionPolicy::AllKeysRandom => false,
            EvictionPolicy::VolatileLru
            | EvictionPolicy::VolatileLfu
            | EvictionPolicy::VolatileRandom
            | EvictionPolicy::VolatileTtl => true,
        }
    }
}
