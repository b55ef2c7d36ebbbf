//! The JSON Schema of a report's JSON form; `docs/report.schema.json` is its output.
//!
//! The schema is generated from the model itself (feature `schema`, which no app enables), so its
//! descriptions are the model's doc comments. Later versions may add fields and names. Consumers
//! should ignore what they don't know, so the schema forbids nothing.

use std::borrow::Cow;

use schemars::generate::SchemaSettings;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde_json::Value as Json;

use crate::Report;
use crate::model::{Address, Bytes, Id, Registers, RelativeAddress, Timestamp, Value};

/// The schema of [`Report::to_json`], in JSON Schema 2020-12.
pub fn json_schema_of_reports() -> Json {
    let generator = SchemaSettings::draft2020_12().for_serialize().into_generator();
    let mut schema = generator.into_root_schema_for::<Report>().to_value();
    tidy(&mut schema);
    if let Some(root) = schema.as_object_mut() {
        root.insert("title".to_owned(), "A report of Coroner".into());
    }
    schema
}

/// Removes defaults of fields that are always written, and the line breaks of comments.
fn tidy(schema: &mut Json) {
    match schema {
        Json::Object(map) => {
            // A field named `default` has a schema as its value; a default value has none.
            if !map.get("default").is_some_and(|default| default.get("type").is_some() || default.get("$ref").is_some())
            {
                map.remove("default");
            }
            if let Some(Json::String(text)) = map.get_mut("description") {
                *text = text.split('\n').map(str::trim).collect::<Vec<_>>().join(" ");
            }
            map.values_mut().for_each(tidy);
        }
        Json::Array(items) => items.iter_mut().for_each(tidy),
        _ => {}
    }
}

/// Schema of a name that this version knows, or the number of a later one.
pub(crate) fn open_number(names: &[&str]) -> Schema {
    json_schema!({ "anyOf": [{ "type": "string", "enum": names }, { "type": "integer", "minimum": 0 }] })
}

/// Implements `JsonSchema` for types whose JSON form is a string.
macro_rules! written_as {
    ($($name:ident: $schema:tt,)*) => {
        $(
            impl JsonSchema for $name {
                fn schema_name() -> Cow<'static, str> {
                    stringify!($name).into()
                }

                fn json_schema(_: &mut SchemaGenerator) -> Schema {
                    json_schema!($schema)
                }
            }
        )*
    };
}

written_as! {
    Address: { "description": "An absolute address in the process, hexadecimal.", "type": "string", "pattern": "^0x[0-9a-f]{1,16}$" },
    RelativeAddress: { "description": "An address less the load address of its image, hexadecimal.", "type": "string", "pattern": "^0x[0-9a-f]{1,16}$" },
    Id: { "description": "The identity of a run or an event; all zero if it is not known.", "type": "string", "pattern": "^[0-9a-f]{32}$" },
    Timestamp: { "description": "RFC 3339, UTC.", "type": "string", "format": "date-time" },
    Bytes: { "description": "Bytes as hexadecimal digits.", "type": "string", "pattern": "^([0-9a-f]{2})*$" },
    Value: { "description": "What the app set, or what a later version wrote: any JSON." },
    Registers: {
        "description": "The registers by their names; those that are not known are left out.",
        "type": "object",
        "additionalProperties": { "type": "string", "pattern": "^0x[0-9a-f]{1,16}$" },
    },
}
