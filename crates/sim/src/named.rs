//! Enumerations whose values have a name and a sentence each, for the command line and reports.

/// Defines such an enumeration.
macro_rules! named {
    ($(#[$doc:meta])* $type:ident: $($value:ident, $name:literal, $sentence:literal;)*) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub enum $type {
            $(#[doc = $sentence] $value,)*
        }

        impl $type {
            /// All values.
            pub const ALL: &[$type] = &[$($type::$value),*];

            /// Returns the sentence that describes the value.
            pub fn sentence(self) -> &'static str {
                match self { $($type::$value => $sentence,)* }
            }

            /// Returns the value with this name, in the form of `Display`.
            pub fn named(name: &str) -> Option<$type> {
                match name { $($name => Some($type::$value),)* _ => None }
            }
        }

        impl std::fmt::Display for $type {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(match self { $($type::$value => $name,)* })
            }
        }
    };
}

pub(crate) use named;
