//! The JSON of Coroner's own files in the store, by way of [`Value`].
//!
//! serde's readers and writers of the same types, and what of `serde_json` they need, are 80 KB, which an app that reports crashes has no
//! other use for. The text is that which serde makes of the types (a test compares them).

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use coroner_report::model::{Id, Termination, TerminationCertainty, TerminationReason, Value};

use crate::vec_map::VecMap;

/// What a file has as JSON. A number, a list and a map that are missing are 0 and empty.
pub(crate) trait Json: Sized {
    /// The JSON of it.
    fn to_value(&self) -> Value;

    /// What that JSON says; `None` if it is of another type.
    fn of_value(value: &Value) -> Option<Self>;

    /// As text.
    fn to_json(&self) -> Vec<u8> {
        text(&self.to_value()).into_bytes()
    }

    /// From text.
    fn of_json(text: &[u8]) -> Option<Self> {
        Self::of_value(&parse(text)?)
    }
}

/// A struct as a map of its fields; one with `omitted` behind it is left out if it is null or empty.
macro_rules! json_struct {
    ($type:ty { $($field:ident $name:literal $($omitted:ident)?),* $(,)? }) => {
        impl $crate::json::Json for $type {
            fn to_value(&self) -> coroner_report::model::Value {
                let fields = [$(($name, $crate::json::Json::to_value(&self.$field), <[&str]>::len(&[$(stringify!($omitted))?]) > 0)),*];
                $crate::json::object(&mut fields.into_iter())
            }

            fn of_value(value: &coroner_report::model::Value) -> Option<Self> {
                matches!(value, coroner_report::model::Value::Map(_)).then_some(())?;
                Some(Self {
                    $($field: $crate::json::Json::of_value($crate::json::field(value, $name))?,)*
                })
            }
        }
    };
}

/// An enum as the names of its variants.
macro_rules! json_names {
    ($type:ty { $($variant:ident $name:literal),* $(,)? }) => {
        impl $crate::json::Json for $type {
            fn to_value(&self) -> coroner_report::model::Value {
                #[allow(unreachable_patterns, reason = "one of another crate may have more")]
                match self {
                    $(Self::$variant => $name.into(),)*
                    _ => coroner_report::model::Value::Null,
                }
            }

            fn of_value(value: &coroner_report::model::Value) -> Option<Self> {
                match value.as_str()? {
                    $($name => Some(Self::$variant),)*
                    _ => None,
                }
            }
        }
    };
}

pub(crate) use {json_names, json_struct};

json_struct!(Termination { reason "reason", certainty "certainty", evidence "evidence" omitted });
json_names!(TerminationCertainty { Possible "possible", Likely "likely", Certain "certain" });
json_names!(TerminationReason {
    Unknown "unknown",
    OutOfMemory "out_of_memory",
    SystemRestart "system_restart",
    CpuLimit "cpu_limit",
    Debugger "debugger",
    AppUpdate "app_update",
    Signal "signal",
    StopTimeout "stop_timeout",
    Replaced "replaced",
});

/// A map of such fields: name, value, and whether it is left out if it is null or empty.
pub(crate) fn object(fields: &mut dyn Iterator<Item = (&str, Value, bool)>) -> Value {
    let is_nothing = |value: &Value| matches!(value, Value::Null) || *value == Value::Array(Vec::new());
    let fields = fields.filter(|(_, value, is_omitted)| !is_omitted || !is_nothing(value));
    Value::Map(fields.map(|(name, value, _)| (name.into(), value)).collect())
}

/// A field of a map; null if it has none.
pub(crate) fn field<'v>(value: &'v Value, name: &str) -> &'v Value {
    let Value::Map(pairs) = value else { return &Value::Null };
    pairs.iter().find(|(key, _)| key.as_str() == Some(name)).map_or(&Value::Null, |(_, value)| value)
}

impl Json for u64 {
    fn to_value(&self) -> Value {
        Value::Unsigned(*self)
    }

    fn of_value(value: &Value) -> Option<Self> {
        if matches!(value, Value::Null) { Some(0) } else { value.as_u64() }
    }
}

impl Json for u32 {
    fn to_value(&self) -> Value {
        Value::Unsigned((*self).into())
    }

    fn of_value(value: &Value) -> Option<Self> {
        u64::of_value(value)?.try_into().ok()
    }
}

impl Json for i32 {
    fn to_value(&self) -> Value {
        if *self < 0 { Value::Negative(!i64::from(*self) as u64) } else { Value::Unsigned(*self as u64) }
    }

    fn of_value(value: &Value) -> Option<Self> {
        value.as_i64()?.try_into().ok()
    }
}

impl Json for bool {
    fn to_value(&self) -> Value {
        Value::Bool(*self)
    }

    fn of_value(value: &Value) -> Option<Self> {
        match value {
            Value::Bool(value) => Some(*value),
            Value::Null => Some(false),
            _ => None,
        }
    }
}

impl Json for String {
    fn to_value(&self) -> Value {
        self.as_str().into()
    }

    fn of_value(value: &Value) -> Option<Self> {
        value.as_str().map(ToOwned::to_owned)
    }
}

impl Json for Id {
    fn to_value(&self) -> Value {
        Value::Text(self.to_string())
    }

    fn of_value(value: &Value) -> Option<Self> {
        value.as_str()?.parse().ok()
    }
}

impl Json for (u64, Id) {
    fn to_value(&self) -> Value {
        Value::Array(vec![self.0.to_value(), self.1.to_value()])
    }

    fn of_value(value: &Value) -> Option<Self> {
        let Value::Array(pair) = value else { return None };
        let [number, id] = &pair[..] else { return None };
        Some((number.as_u64()?, Id::of_value(id)?))
    }
}

impl Json for Duration {
    fn to_value(&self) -> Value {
        time(["secs", "nanos"], *self)
    }

    fn of_value(value: &Value) -> Option<Self> {
        time_of(["secs", "nanos"], value)
    }
}

impl Json for SystemTime {
    fn to_value(&self) -> Value {
        time(["secs_since_epoch", "nanos_since_epoch"], self.duration_since(UNIX_EPOCH).unwrap_or_default())
    }

    fn of_value(value: &Value) -> Option<Self> {
        UNIX_EPOCH.checked_add(time_of(["secs_since_epoch", "nanos_since_epoch"], value)?)
    }
}

fn time([secs, nanos]: [&str; 2], time: Duration) -> Value {
    object(&mut [(secs, time.as_secs().to_value(), false), (nanos, time.subsec_nanos().to_value(), false)].into_iter())
}

fn time_of([secs, nanos]: [&str; 2], value: &Value) -> Option<Duration> {
    let nanos = field(value, nanos).as_u64().filter(|nanos| *nanos < 1_000_000_000)?;
    Some(Duration::new(field(value, secs).as_u64()?, nanos as u32))
}

impl<T: Json> Json for Option<T> {
    fn to_value(&self) -> Value {
        self.as_ref().map_or(Value::Null, Json::to_value)
    }

    fn of_value(value: &Value) -> Option<Self> {
        if matches!(value, Value::Null) { Some(None) } else { T::of_value(value).map(Some) }
    }
}

impl<T: Json> Json for Vec<T> {
    fn to_value(&self) -> Value {
        Value::Array(self.iter().map(Json::to_value).collect())
    }

    fn of_value(value: &Value) -> Option<Self> {
        match value {
            Value::Array(items) => items.iter().map(T::of_value).collect(),
            Value::Null => Some(Vec::new()),
            _ => None,
        }
    }
}

/// A key of a map.
pub(crate) trait Key: PartialEq + Sized {
    fn to_text(&self) -> String;
    fn of_text(text: &str) -> Option<Self>;
}

impl Key for String {
    fn to_text(&self) -> String {
        self.clone()
    }

    fn of_text(text: &str) -> Option<Self> {
        Some(text.to_owned())
    }
}

impl Key for u32 {
    fn to_text(&self) -> String {
        self.to_string()
    }

    fn of_text(text: &str) -> Option<Self> {
        text.parse().ok()
    }
}

/// Calls `each` with the pairs of a map; `None` if it is none, or `each` says so.
fn each_pair(value: &Value, each: &mut dyn FnMut(&str, &Value) -> Option<()>) -> Option<()> {
    match value {
        Value::Map(pairs) => pairs.iter().try_for_each(|(key, value)| each(key.as_str()?, value)),
        Value::Null => Some(()),
        _ => None,
    }
}

impl<K: Key, T: Json> Json for VecMap<K, T> {
    fn to_value(&self) -> Value {
        Value::Map(self.iter().map(|(key, value)| (Value::Text(key.to_text()), value.to_value())).collect())
    }

    fn of_value(value: &Value) -> Option<Self> {
        let mut map = Self::default();
        each_pair(value, &mut |key, value| {
            map.insert(K::of_text(key)?, T::of_value(value)?);
            Some(())
        })?;
        Some(map)
    }
}

impl<T: Json> Json for BTreeMap<String, T> {
    fn to_value(&self) -> Value {
        Value::Map(self.iter().map(|(key, value)| (key.as_str().into(), value.to_value())).collect())
    }

    fn of_value(value: &Value) -> Option<Self> {
        let mut map = Self::new();
        each_pair(value, &mut |key, value| {
            map.insert(key.to_owned(), T::of_value(value)?);
            Some(())
        })?;
        Some(map)
    }
}

/// A value as JSON, on one line. Bytes, floating point numbers and tags, which no file of ours has, are null.
pub(crate) fn text(value: &Value) -> String {
    let mut out = String::new();
    write(value, &mut out);
    out
}

fn write(value: &Value, out: &mut String) {
    // Writing to a string can't fail.
    match value {
        Value::Bool(value) => out.push_str(if *value { "true" } else { "false" }),
        Value::Unsigned(value) => _ = write!(out, "{value}"),
        Value::Negative(value) => _ = write!(out, "{}", !i128::from(*value)),
        Value::Text(text) => quote(text, out),
        Value::Array(items) => {
            out.push('[');
            for (index, item) in items.iter().enumerate() {
                out.push_str(if index > 0 { "," } else { "" });
                write(item, out);
            }
            out.push(']');
        }
        Value::Map(pairs) => {
            out.push('{');
            for (index, (key, value)) in pairs.iter().enumerate() {
                out.push_str(if index > 0 { "," } else { "" });
                write(key, out);
                out.push(':');
                write(value, out);
            }
            out.push('}');
        }
        _ => out.push_str("null"),
    }
}

fn quote(text: &str, out: &mut String) {
    out.push('"');
    for character in text.chars() {
        match character {
            '"' | '\\' => out.extend(['\\', character]),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            '\0'..' ' => _ = write!(out, "\\u{:04x}", character as u32),
            _ => out.push(character),
        }
    }
    out.push('"');
}

/// Reads JSON (RFC 8259) that is nested 32 times at most; of numbers, integers of 64 bits alone.
pub(crate) fn parse(text: &[u8]) -> Option<Value> {
    let mut reader = Reader { rest: std::str::from_utf8(text).ok()? };
    let value = reader.value(32)?;
    reader.rest.trim_ascii_start().is_empty().then_some(value)
}

struct Reader<'t> {
    rest: &'t str,
}

impl Reader<'_> {
    /// Takes this text, behind blanks, if it is next.
    fn take(&mut self, text: &str) -> bool {
        self.rest = self.rest.trim_ascii_start();
        let rest = self.rest.strip_prefix(text);
        self.rest = rest.unwrap_or(self.rest);
        rest.is_some()
    }

    fn value(&mut self, depth: u32) -> Option<Value> {
        let depth = depth.checked_sub(1)?;
        if self.take("{") {
            let mut pairs = Vec::new();
            while !self.take("}") {
                (pairs.is_empty() || self.take(",")).then_some(())?;
                let key = self.take("\"").then(|| self.string())??;
                self.take(":").then_some(())?;
                pairs.push((Value::Text(key), self.value(depth)?));
            }
            return Some(Value::Map(pairs));
        }
        if self.take("[") {
            let mut items = Vec::new();
            while !self.take("]") {
                (items.is_empty() || self.take(",")).then_some(())?;
                items.push(self.value(depth)?);
            }
            return Some(Value::Array(items));
        }
        if self.take("\"") {
            return self.string().map(Value::Text);
        }
        for (word, value) in [("null", Value::Null), ("true", Value::Bool(true)), ("false", Value::Bool(false))] {
            if self.take(word) {
                return Some(value);
            }
        }
        let is_negative = self.take("-");
        let end = self.rest.find(|next: char| !next.is_ascii_digit()).unwrap_or(self.rest.len());
        let (digits, rest) = self.rest.split_at(end);
        self.rest = rest;
        match (is_negative, digits.parse().ok()?) {
            (true, 1_u64..) => Some(Value::Negative(digits.parse::<u64>().ok()? - 1)),
            (_, number) => Some(Value::Unsigned(number)),
        }
    }

    /// What is left of a string whose first quotation mark was taken.
    fn string(&mut self) -> Option<String> {
        let mut text = String::new();
        loop {
            let end = self.rest.find(['"', '\\'])?;
            let (plain, rest) = self.rest.split_at(end);
            text.push_str(plain);
            let mut after = rest.chars();
            if after.next()? == '"' {
                self.rest = after.as_str();
                return Some(text);
            }
            let escape = after.next()?;
            self.rest = after.as_str();
            text.push(match escape {
                'n' => '\n',
                'r' => '\r',
                't' => '\t',
                'b' => '\u{8}',
                'f' => '\u{c}',
                'u' => {
                    let first = self.unit()?;
                    // Beyond the first 65,536 characters there are two of them.
                    let is_pair = (0xd800..0xdc00).contains(&first) && self.rest.starts_with("\\u");
                    let units = if is_pair {
                        self.rest = &self.rest[2..];
                        [first, self.unit()?]
                    } else {
                        [first, 0]
                    };
                    char::decode_utf16(units).next()?.ok()?
                }
                other => other,
            });
        }
    }

    /// Four hexadecimal digits.
    fn unit(&mut self) -> Option<u16> {
        let (digits, rest) = self.rest.split_at_checked(4)?;
        self.rest = rest;
        // `from_str_radix` takes a sign.
        digits.bytes().all(|digit| digit.is_ascii_hexdigit()).then(|| u16::from_str_radix(digits, 16).ok())?
    }
}

#[cfg(test)]
mod tests;
