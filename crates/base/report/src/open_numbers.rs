//! Enumerations that a later format version may extend: a reader keeps numbers it doesn't know.

/// Declares an integer newtype with named constants.
macro_rules! open_numbers {
    ($(#[$doc:meta])* $name:ident($repr:ty) { $($(#[$constant_doc:meta])* $constant:ident = $number:literal $text:literal,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(transparent)]
        pub struct $name(pub $repr);

        impl $name {
            $($(#[$constant_doc])* pub const $constant: $name = $name($number);)*

            /// Every number that this version knows, with its name.
            pub const ALL: &'static [($name, &'static str)] = &[$(($name($number), $text)),*];

            /// The name in JSON and text forms; `None` for a number of a later version.
            pub const fn name(self) -> Option<&'static str> {
                match self.0 {
                    $($number => Some($text),)*
                    _ => None,
                }
            }

            /// Returns the number with the given name.
            pub fn from_name(name: &str) -> Option<$name> {
                $name::ALL.iter().find(|known| known.1 == name).map(|known| known.0)
            }
        }

        #[cfg(feature = "std")]
        impl core::fmt::Display for $name {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                match self.name() {
                    Some(name) => f.pad(name),
                    None => f.pad(&self.0.to_string()),
                }
            }
        }

        /// Serializes the name, or the number if this version has no name for it.
        #[cfg(feature = "std")]
        impl serde::Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                match self.name() {
                    Some(name) => serializer.serialize_str(name),
                    None => serializer.serialize_u64(u64::from(self.0)),
                }
            }
        }

        #[cfg(feature = "schema")]
        impl schemars::JsonSchema for $name {
            fn schema_name() -> std::borrow::Cow<'static, str> {
                stringify!($name).into()
            }

            fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
                crate::json_schema::open_number(&[$($text),*])
            }
        }

        /// Deserializes a name or a number. Unknown names become 0, "unknown".
        #[cfg(feature = "std")]
        impl<'de> serde::Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                #[derive(serde::Deserialize)]
                #[serde(untagged)]
                enum Written {
                    Name(std::string::String),
                    Number($repr),
                }
                Ok(match <Written as serde::Deserialize>::deserialize(deserializer)? {
                    Written::Name(name) => $name::from_name(&name).unwrap_or_default(),
                    Written::Number(number) => $name(number),
                })
            }
        }
    };
}

pub(crate) use open_numbers;
