//! Attributes: named values in the protocol's form.

use coroner_report::model::Value;
use opentelemetry_proto::tonic::common::v1::any_value::Value as Any;
use opentelemetry_proto::tonic::common::v1::{AnyValue, ArrayValue, KeyValue, KeyValueList};

/// A list of attributes under construction: only known values, and only the first of each name.
#[derive(Debug, Default)]
pub(crate) struct Attributes(Vec<KeyValue>);

impl Attributes {
    /// Adds a value, unless it is unknown or the name is already used.
    pub(crate) fn set<T: Into<Field>>(&mut self, key: &str, value: Option<T>) -> &mut Self {
        if let Some(Field(value)) = value.map(Into::into)
            && !key.is_empty()
            && self.0.iter().all(|known| known.key != key)
        {
            let value = Some(AnyValue { value: Some(value) });
            self.0.push(KeyValue { key: key.to_owned(), value, ..KeyValue::default() });
        }
        self
    }

    /// Adds a string, unless it is empty.
    pub(crate) fn text(&mut self, key: &str, value: Option<impl Into<String>>) -> &mut Self {
        self.set(key, value.map(Into::into).filter(|text| !text.is_empty()))
    }

    /// Adds a list, unless it is empty.
    pub(crate) fn list(&mut self, key: &str, values: impl IntoIterator<Item = Field>) -> &mut Self {
        let values: Vec<AnyValue> = values.into_iter().map(|Field(value)| AnyValue { value: Some(value) }).collect();
        self.set(key, (!values.is_empty()).then_some(Field(Any::ArrayValue(ArrayValue { values }))))
    }

    pub(crate) fn into_list(self) -> Vec<KeyValue> {
        self.0
    }
}

/// An attribute's value.
pub(crate) struct Field(Any);

impl From<String> for Field {
    fn from(value: String) -> Self {
        Self(Any::StringValue(value))
    }
}

impl From<&str> for Field {
    fn from(value: &str) -> Self {
        Self(Any::StringValue(value.to_owned()))
    }
}

impl From<bool> for Field {
    fn from(value: bool) -> Self {
        Self(Any::BoolValue(value))
    }
}

impl From<i64> for Field {
    fn from(value: i64) -> Self {
        Self(Any::IntValue(value))
    }
}

impl From<u64> for Field {
    fn from(value: u64) -> Self {
        // The protocol has no unsigned numbers.
        i64::try_from(value).map_or_else(|_| value.to_string().into(), Into::into)
    }
}

impl From<u32> for Field {
    fn from(value: u32) -> Self {
        i64::from(value).into()
    }
}

impl From<f64> for Field {
    fn from(value: f64) -> Self {
        Self(Any::DoubleValue(value))
    }
}

/// Converts attributes to a map.
impl From<Attributes> for Field {
    fn from(value: Attributes) -> Self {
        Self(Any::KvlistValue(KeyValueList { values: value.into_list() }))
    }
}

/// Converts a value set by the app.
impl From<&Value> for Field {
    fn from(value: &Value) -> Self {
        from_json(value.to_json())
    }
}

/// Converts a JSON value; all values that an app can set have a JSON form.
fn from_json(value: serde_json::Value) -> Field {
    use serde_json::Value as Json;
    match value {
        // The protocol does not allow an attribute without a value.
        Json::Null => "".into(),
        Json::Bool(value) => value.into(),
        Json::Number(number) => match (number.as_i64(), number.as_u64(), number.as_f64()) {
            (Some(number), ..) => number.into(),
            (_, Some(number), _) => number.into(),
            (.., number) => number.unwrap_or_default().into(),
        },
        Json::String(text) => text.into(),
        Json::Array(items) => {
            let values = items.into_iter().map(|item| AnyValue { value: Some(from_json(item).0) }).collect();
            Field(Any::ArrayValue(ArrayValue { values }))
        }
        Json::Object(map) => {
            let mut attributes = Attributes::default();
            for (key, value) in map {
                attributes.set(&key, Some(from_json(value)));
            }
            attributes.into()
        }
    }
}
