//! Parts of the text form of messages, for golden scripts, the simulator's trace and logs.

use std::fmt;

/// Formats items with commas between them, or `nothing`.
pub fn list<T: fmt::Display>(items: &[T]) -> impl fmt::Display {
    fmt::from_fn(move |f| {
        if items.is_empty() {
            return f.write_str("nothing");
        }
        for (place, item) in items.iter().enumerate() {
            write!(f, "{}{item}", if place == 0 { "" } else { ", " })?;
        }
        Ok(())
    })
}

/// Formats the decision of a target about a flip.
pub fn verdict(accepted: bool) -> &'static str {
    if accepted { "accepted" } else { "never" }
}
