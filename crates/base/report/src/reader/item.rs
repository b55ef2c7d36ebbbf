//! Decodes a CBOR item of any shape within limits.

use crate::model::{Bytes, Value};
use minicbor::data::Type;
use minicbor::decode::{Decoder, Error};

/// Maximum nesting of arrays, maps and tags.
pub(crate) const MAX_DEPTH: usize = 64;

#[derive(Debug)]
pub(crate) struct Limit(pub(crate) usize);

/// Decodes the next item.
///
/// # Errors
/// If the item is malformed, truncated, nested deeper than [`MAX_DEPTH`] or has more items than the
/// limit.
pub(crate) fn decode_item(decoder: &mut Decoder<'_>, limit: &mut Limit) -> Result<Value, Error> {
    nested(decoder, limit, 0)
}

fn nested(decoder: &mut Decoder<'_>, limit: &mut Limit, depth: usize) -> Result<Value, Error> {
    let at = decoder.position();
    if depth > MAX_DEPTH {
        return Err(Error::message(format!("nested deeper than {MAX_DEPTH}")).at(at));
    }
    limit.0 = limit.0.checked_sub(1).ok_or_else(|| Error::message("too many items for a report").at(at))?;
    Ok(match decoder.datatype()? {
        Type::Bool => Value::Bool(decoder.bool()?),
        Type::Null => {
            decoder.null()?;
            Value::Null
        }
        Type::Undefined => {
            decoder.undefined()?;
            Value::Null
        }
        Type::U8 | Type::U16 | Type::U32 | Type::U64 => Value::Unsigned(decoder.u64()?),
        Type::I8 | Type::I16 | Type::I32 | Type::I64 | Type::Int => {
            let value = i128::from(decoder.int()?);
            match u64::try_from(value) {
                Ok(value) => Value::Unsigned(value),
                Err(_) => Value::Negative(!value as u64),
            }
        }
        Type::F16 => Value::Float(half(decoder)?),
        Type::F32 => Value::Float(decoder.f32()?.into()),
        Type::F64 => Value::Float(decoder.f64()?),
        Type::Simple => {
            decoder.simple()?;
            Value::Null
        }
        Type::Bytes => Value::Bytes(Bytes(decoder.bytes()?.to_vec())),
        Type::BytesIndef => {
            let mut bytes = Vec::new();
            for part in decoder.bytes_iter()? {
                bytes.extend_from_slice(part?);
            }
            Value::Bytes(Bytes(bytes))
        }
        Type::String => Value::Text(decoder.str()?.to_owned()),
        Type::StringIndef => {
            let mut text = String::new();
            for part in decoder.str_iter()? {
                text.push_str(part?);
            }
            Value::Text(text)
        }
        Type::Array | Type::ArrayIndef => {
            let len = decoder.array()?;
            let mut items = Vec::new();
            while more(decoder, len, items.len())? {
                items.push(nested(decoder, limit, depth + 1)?);
            }
            Value::Array(items)
        }
        Type::Map | Type::MapIndef => {
            let len = decoder.map()?;
            let mut pairs = Vec::new();
            while more(decoder, len, pairs.len())? {
                let key = nested(decoder, limit, depth + 1)?;
                pairs.push((key, nested(decoder, limit, depth + 1)?));
            }
            Value::Map(pairs)
        }
        Type::Tag => {
            let tag = decoder.tag()?.as_u64();
            Value::Tag(tag, Box::new(nested(decoder, limit, depth + 1)?))
        }
        Type::Break => return Err(Error::message("unexpected end of an array or map").at(at)),
        Type::Unknown(byte) => return Err(Error::message(format!("invalid initial byte {byte:#04x}")).at(at)),
    })
}

/// Decodes a half-precision number (IEEE 754 binary16; RFC 8949, appendix D).
fn half(decoder: &mut Decoder<'_>) -> Result<f64, Error> {
    let at = decoder.position();
    let [high, low] = match decoder.input().get(at + 1..at + 3) {
        Some(&[high, low]) => [high, low],
        _ => return Err(Error::end_of_input()),
    };
    decoder.set_position(at + 3);
    let bits = u16::from_be_bytes([high, low]);
    let (exponent, fraction) = (i32::from(bits >> 10 & 0x1F), f64::from(bits & 0x3FF));
    let magnitude = match exponent {
        0 => fraction * 2_f64.powi(-24),
        31 if fraction == 0.0 => f64::INFINITY,
        31 => f64::NAN,
        _ => (fraction + 1024.0) * 2_f64.powi(exponent - 25),
    };
    Ok(if bits >> 15 == 1 { -magnitude } else { magnitude })
}

/// Whether an array or map with `len` in its head has more after `count` elements.
///
/// `None` means until a break, which is consumed.
pub(crate) fn more(decoder: &mut Decoder<'_>, len: Option<u64>, count: usize) -> Result<bool, Error> {
    match len {
        Some(len) => Ok((count as u64) < len),
        None if decoder.datatype()? == Type::Break => {
            decoder.set_position(decoder.position() + 1);
            Ok(false)
        }
        None => Ok(true),
    }
}
