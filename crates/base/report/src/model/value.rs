//! CBOR items of any shape: the app's contexts, and data from later format versions.

use super::address::Bytes;
use serde::ser::{SerializeMap, SerializeSeq};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::collections::BTreeMap;

/// Map keys that this version doesn't know, with their values.
pub type Extra = BTreeMap<u64, Value>;

/// A CBOR item (RFC 8949).
///
/// In JSON its natural counterpart: byte strings become hexadecimal digits, map keys become text,
/// tags are dropped, and items that JSON can't represent become null.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// Null, undefined, or a simple value without a meaning.
    Null,
    /// A boolean.
    Bool(bool),
    /// An integer that is not negative.
    Unsigned(u64),
    /// A negative integer with the value −1 − this.
    Negative(u64),
    /// A floating point number.
    Float(f64),
    /// A byte string.
    Bytes(Bytes),
    /// A text string.
    Text(String),
    /// An array.
    Array(Vec<Value>),
    /// A map, in its original order.
    Map(Vec<(Value, Value)>),
    /// A tagged item.
    Tag(u64, Box<Value>),
}

impl Value {
    /// Returns a non-negative integer.
    pub fn as_u64(&self) -> Option<u64> {
        if let Value::Unsigned(value) = self { Some(*value) } else { None }
    }

    /// Returns a signed integer, if it fits.
    pub fn as_i64(&self) -> Option<i64> {
        match self {
            Value::Unsigned(value) => i64::try_from(*value).ok(),
            Value::Negative(value) => i64::try_from(*value).ok().map(|value| !value),
            _ => None,
        }
    }

    /// Returns the text of a text string.
    pub fn as_str(&self) -> Option<&str> {
        if let Value::Text(text) = self { Some(text) } else { None }
    }

    /// Converts to a JSON value.
    pub fn to_json(&self) -> serde_json::Value {
        serde_json::to_value(self).unwrap_or_default()
    }
}

impl Value {
    /// Encodes the item, for [`RunState::set_cbor`](crate::run_state::RunState::set_cbor).
    pub fn to_cbor(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        // Writing to a vector can't fail. If it did, the malformed bytes would be rejected by the
        // reader.
        let _ = self.encode(&mut minicbor::Encoder::new(&mut bytes));
        bytes
    }

    fn encode(&self, encoder: &mut minicbor::Encoder<&mut Vec<u8>>) -> EncodeResult {
        match self {
            Value::Null => encoder.null()?,
            Value::Bool(value) => encoder.bool(*value)?,
            Value::Unsigned(value) => encoder.u64(*value)?,
            // The complement of a 64-bit number is always a CBOR integer.
            Value::Negative(value) => match minicbor::data::Int::try_from(!i128::from(*value)) {
                Ok(value) => encoder.int(value)?,
                Err(_) => encoder.null()?,
            },
            Value::Float(value) => encoder.f64(*value)?,
            Value::Bytes(bytes) => encoder.bytes(bytes)?,
            Value::Text(text) => encoder.str(text)?,
            Value::Array(items) => {
                encoder.array(items.len() as u64)?;
                return items.iter().try_for_each(|item| item.encode(encoder));
            }
            Value::Map(pairs) => {
                encoder.map(pairs.len() as u64)?;
                for (key, value) in pairs {
                    key.encode(encoder)?;
                    value.encode(encoder)?;
                }
                return Ok(());
            }
            Value::Tag(tag, value) => {
                encoder.tag(minicbor::data::Tag::new(*tag))?;
                return value.encode(encoder);
            }
        };
        Ok(())
    }
}

type EncodeResult = Result<(), minicbor::encode::Error<std::convert::Infallible>>;

impl From<&str> for Value {
    fn from(text: &str) -> Self {
        Value::Text(text.to_owned())
    }
}

fn key_text(key: &Value) -> String {
    match key {
        Value::Text(text) => text.clone(),
        other => other.to_json().to_string(),
    }
}

impl Serialize for Value {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Value::Null => serializer.serialize_unit(),
            Value::Bool(value) => serializer.serialize_bool(*value),
            Value::Unsigned(value) => serializer.serialize_u64(*value),
            #[allow(clippy::cast_precision_loss)] // Below -2⁶³, JSON readers have only floating point, too.
            Value::Negative(value) => match i64::try_from(*value) {
                Ok(value) => serializer.serialize_i64(!value),
                Err(_) => serializer.serialize_f64(-1.0 - *value as f64),
            },
            Value::Float(value) => serializer.serialize_f64(*value),
            Value::Bytes(bytes) => bytes.serialize(serializer),
            Value::Text(text) => serializer.serialize_str(text),
            Value::Array(items) => {
                let mut sequence = serializer.serialize_seq(Some(items.len()))?;
                for item in items {
                    sequence.serialize_element(item)?;
                }
                sequence.end()
            }
            Value::Map(pairs) => {
                let mut map = serializer.serialize_map(Some(pairs.len()))?;
                for (key, value) in pairs {
                    map.serialize_entry(&key_text(key), value)?;
                }
                map.end()
            }
            Value::Tag(_, value) => value.serialize(serializer),
        }
    }
}

/// Converts from a JSON value. What JSON can't represent was lost when it was written: bytes stay
/// text.
impl From<serde_json::Value> for Value {
    fn from(json: serde_json::Value) -> Self {
        match json {
            serde_json::Value::Null => Value::Null,
            serde_json::Value::Bool(value) => Value::Bool(value),
            serde_json::Value::Number(number) => match (number.as_u64(), number.as_i64()) {
                (Some(value), _) => Value::Unsigned(value),
                (None, Some(value)) => Value::Negative(!value as u64),
                (None, None) => Value::Float(number.as_f64().unwrap_or_default()),
            },
            serde_json::Value::String(text) => Value::Text(text),
            serde_json::Value::Array(items) => Value::Array(items.into_iter().map(Value::from).collect()),
            serde_json::Value::Object(pairs) => {
                Value::Map(pairs.into_iter().map(|(key, value)| (Value::Text(key), value.into())).collect())
            }
        }
    }
}

impl<'de> Deserialize<'de> for Value {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        serde_json::Value::deserialize(deserializer).map(Value::from)
    }
}
