//! The fields of a map in a report.

use crate::model::{Address, Bytes, Extra, Id, Timestamp, Value};

/// A map with integer keys, from which known fields are taken.
///
/// Unknown fields and fields of an unexpected type are the [`rest`](Self::rest).
#[derive(Debug)]
pub(crate) struct Fields(Extra);

impl Fields {
    pub(crate) fn new(item: Value) -> Option<Fields> {
        let Value::Map(pairs) = item else { return None };
        let mut fields = Extra::new();
        for (key, value) in pairs {
            if let Value::Unsigned(key) = key {
                fields.entry(key).or_insert(value);
            }
        }
        Some(Fields(fields))
    }

    /// Takes a field if `convert` can use it.
    pub(super) fn take<T>(&mut self, key: u64, convert: impl FnOnce(&mut Value) -> Option<T>) -> Option<T> {
        let converted = convert(self.0.get_mut(&key)?)?;
        self.0.remove(&key);
        Some(converted)
    }

    pub(crate) fn u64(&mut self, key: u64) -> Option<u64> {
        self.take(key, |value| value.as_u64())
    }

    pub(crate) fn number<T: TryFrom<u64>>(&mut self, key: u64) -> Option<T> {
        self.take(key, |value| T::try_from(value.as_u64()?).ok())
    }

    pub(crate) fn i64(&mut self, key: u64) -> Option<i64> {
        self.take(key, |value| value.as_i64())
    }

    pub(super) fn i32(&mut self, key: u64) -> Option<i32> {
        self.take(key, |value| i32::try_from(value.as_i64()?).ok())
    }

    pub(crate) fn bool(&mut self, key: u64) -> Option<bool> {
        self.take(key, |value| if let Value::Bool(value) = value { Some(*value) } else { None })
    }

    pub(crate) fn time(&mut self, key: u64) -> Option<Timestamp> {
        self.u64(key).map(Timestamp)
    }

    pub(crate) fn text(&mut self, key: u64) -> Option<String> {
        self.take(key, |value| if let Value::Text(text) = value { Some(std::mem::take(text)) } else { None })
    }

    pub(crate) fn value(&mut self, key: u64) -> Option<Value> {
        self.0.remove(&key)
    }

    pub(super) fn bytes(&mut self, key: u64) -> Option<Bytes> {
        self.take(key, |value| if let Value::Bytes(bytes) = value { Some(std::mem::take(bytes)) } else { None })
    }

    pub(super) fn array(&mut self, key: u64) -> Option<Vec<Value>> {
        self.take(key, |value| if let Value::Array(items) = value { Some(std::mem::take(items)) } else { None })
    }

    pub(super) fn fields(&mut self, key: u64) -> Option<Fields> {
        self.take(key, |value| {
            if matches!(value, Value::Map(_)) { Fields::new(std::mem::replace(value, Value::Null)) } else { None }
        })
    }

    pub(super) fn address(&mut self, key: u64) -> Option<Address> {
        self.u64(key).map(Address)
    }

    pub(super) fn id(&mut self, key: u64) -> Option<Id> {
        self.take(
            key,
            |value| {
                if let Value::Bytes(bytes) = value { bytes.0.as_slice().try_into().ok().map(Id) } else { None }
            },
        )
    }

    pub(super) fn pair(&mut self, key: u64) -> Option<(u64, u64)> {
        self.take(key, |value| {
            if let Value::Array(items) = value
                && let [Value::Unsigned(first), Value::Unsigned(second)] = items.as_slice()
            {
                Some((*first, *second))
            } else {
                None
            }
        })
    }

    pub(crate) fn rest(&mut self) -> Extra {
        std::mem::take(&mut self.0)
    }
}
