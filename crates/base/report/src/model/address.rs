//! Addresses, identities and bytes, with their textual forms.

use std::fmt;
use std::marker::PhantomData;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use super::timestamp::Timestamp;

/// An absolute address in the crashed process, in JSON `"0x1f"`.
///
/// Also called an "actual virtual memory address" (avma).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Address(pub u64);

/// An address relative to its image's load address (avma − load address), in JSON `"0x1f"`.
///
/// For an address in the image's file (a "stated virtual memory address", svma) use
/// [`Image::to_svma`](super::Image::to_svma).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RelativeAddress(pub u64);

macro_rules! hexadecimal {
    ($name:ident) => {
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(&format!("{:#x}", self.0))
            }
        }

        impl FromStr for $name {
            type Err = std::num::ParseIntError;

            /// Parses hexadecimal digits, with or without `0x`.
            fn from_str(text: &str) -> Result<Self, Self::Err> {
                u64::from_str_radix(text.strip_prefix("0x").unwrap_or(text), 16).map($name)
            }
        }

        impl fmt::LowerHex for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::LowerHex::fmt(&self.0, f)
            }
        }

        impl From<u64> for $name {
            fn from(address: u64) -> Self {
                $name(address)
            }
        }

        impl From<$name> for u64 {
            fn from(address: $name) -> Self {
                address.0
            }
        }
    };
}

hexadecimal!(Address);
hexadecimal!(RelativeAddress);

/// The identity of a run or an event: 16 bytes.
///
/// Written as 32 lower-case hexadecimal digits: a UUID without hyphens, the form that Sentry
/// requires for event ids.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Id(pub [u8; 16]);

impl Id {
    /// Whether the id is all zero, which means "unknown".
    pub fn is_nil(self) -> bool {
        self.0 == [0; 16]
    }
}

impl Id {
    /// Returns the id in UUID form, with hyphens.
    pub fn hyphenated(self) -> String {
        let digits = self.to_string();
        format!("{}-{}-{}-{}-{}", &digits[..8], &digits[8..12], &digits[12..16], &digits[16..20], &digits[20..])
    }
}

impl fmt::Display for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The error for text that is not an [`Id`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IdError;

impl std::error::Error for IdError {}

impl fmt::Display for IdError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an id is 32 hexadecimal digits, with or without the hyphens of a UUID")
    }
}

impl FromStr for Id {
    type Err = IdError;

    fn from_str(text: &str) -> Result<Self, IdError> {
        let mut digits = text.bytes().filter(|byte| *byte != b'-');
        let mut digit = || digits.next().and_then(|byte| char::from(byte).to_digit(16)).ok_or(IdError);
        let mut id = [0; 16];
        for byte in &mut id {
            *byte = (digit()? << 4 | digit()?) as u8;
        }
        if digits.next().is_some() { Err(IdError) } else { Ok(Id(id)) }
    }
}

/// Bytes, in JSON lower-case hexadecimal digits.
#[derive(Clone, Default, PartialEq, Eq, Hash)]
pub struct Bytes(pub Vec<u8>);

/// The error for text that is not valid [`Bytes`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BytesError;

impl std::error::Error for BytesError {}

impl fmt::Display for BytesError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("bytes are pairs of hexadecimal digits")
    }
}

impl FromStr for Bytes {
    type Err = BytesError;

    fn from_str(text: &str) -> Result<Self, BytesError> {
        let digit = |byte: &u8| char::from(*byte).to_digit(16).map(|digit| digit as u8).ok_or(BytesError);
        let (pairs, rest) = text.as_bytes().as_chunks::<2>();
        if !rest.is_empty() {
            return Err(BytesError);
        }
        pairs.iter().map(|[high, low]| Ok(digit(high)? << 4 | digit(low)?)).collect::<Result<_, _>>().map(Bytes)
    }
}

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl std::ops::Deref for Bytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0
    }
}

impl From<Vec<u8>> for Bytes {
    fn from(bytes: Vec<u8>) -> Self {
        Bytes(bytes)
    }
}

/// Deserializes a value from its textual form.
struct OfText<T>(PhantomData<T>);

impl<T: FromStr<Err: fmt::Display>> de::Visitor<'_> for OfText<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a string")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<T, E> {
        text.parse().map_err(E::custom)
    }
}

/// Implements `Serialize` and `Deserialize` through the textual form.
macro_rules! as_text {
    ($($name:ident)*) => {
        $(
            impl Serialize for $name {
                fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                    serializer.collect_str(self)
                }
            }

            impl<'de> Deserialize<'de> for $name {
                fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                    deserializer.deserialize_str(OfText(PhantomData))
                }
            }
        )*
    };
}

as_text!(Address RelativeAddress Id Timestamp Bytes);
