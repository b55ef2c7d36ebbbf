//! Parses times as written by debuggerd, ART and logcat.

use coroner_report::model::Timestamp;

/// Parses `2025-08-30 19:53:13.601761139+0200`.
///
/// The fraction and the UTC offset are optional (missing in Android 10 and before).
pub(crate) fn parse(text: &str) -> Option<Timestamp> {
    let text = text.trim();
    let (date, rest) = (text.get(..10)?, text.get(11..)?);
    let split = rest.find(['+', '-', 'Z']).unwrap_or(rest.len());
    let (time, offset) = rest.split_at(split);
    let offset = if offset.is_empty() { "Z" } else { offset };
    format!("{date}T{}{offset}", time.trim()).parse().ok()
}

/// Parses a logcat time, `08-30 19:53:13.711`, which has no year and is in the device's time zone.
/// Year and UTC offset are taken from `near`, a time as accepted by [`parse`].
pub(crate) fn parse_log(text: &str, near: &str) -> Option<Timestamp> {
    let year = near.get(..4)?;
    let near = near.trim();
    let zone = near.get(11..)?.find(['+', '-', 'Z']).map_or("", |at| &near[11 + at..]);
    parse(&format!("{year}-{}{zone}", text.trim()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offsets_and_fractions_are_optional() {
        let full = parse("2025-08-30 19:53:13.601761139+0200").unwrap();
        assert_eq!(full.to_string(), "2025-08-30T17:53:13.601761139Z");
        assert_eq!(parse("2018-01-02 03:04:05").unwrap().to_string(), "2018-01-02T03:04:05Z");
        let log = parse_log("08-30 19:53:13.711", "2025-08-30 19:53:13.601761139+0200").unwrap();
        assert_eq!(log.0 - full.0, 109_238_861);
        assert_eq!(parse("yesterday"), None);
        assert_eq!(parse("ünglückszeit, die keine ist"), None);
    }
}
