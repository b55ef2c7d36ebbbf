//! Points in time, with their textual form.

use std::fmt;
use std::str::FromStr;

/// A point in time, in nanoseconds since the Unix epoch.
///
/// In JSON RFC 3339 in UTC: `"2026-11-21T01:02:03.123456789Z"`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(pub u64);

impl Timestamp {
    /// Seconds since the Unix epoch, as used by Sentry (exact to about 0.2 µs).
    pub fn seconds(self) -> f64 {
        let nanoseconds = u32::try_from(self.0 % 1_000_000_000).unwrap_or(0);
        #[allow(clippy::cast_precision_loss)] // Stated above.
        let seconds = (self.0 / 1_000_000_000) as f64;
        seconds + f64::from(nanoseconds) / 1e9
    }

    /// Returns the time as text; an empty text if it is unknown (0).
    pub fn known_text(self) -> String {
        if self.0 == 0 { String::new() } else { self.to_string() }
    }
}

impl From<Timestamp> for std::time::SystemTime {
    fn from(time: Timestamp) -> Self {
        let since_epoch = std::time::Duration::from_nanos(time.0);
        std::time::SystemTime::UNIX_EPOCH.checked_add(since_epoch).unwrap_or(std::time::SystemTime::UNIX_EPOCH)
    }
}

impl From<std::time::SystemTime> for Timestamp {
    /// Converts a time; times before 1970 become 1970.
    fn from(time: std::time::SystemTime) -> Self {
        let since = time.duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        Timestamp(u64::try_from(since.as_nanos()).unwrap_or(u64::MAX))
    }
}

/// The error for text that is not a [`Timestamp`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimestampError;

impl std::error::Error for TimestampError {}

impl fmt::Display for TimestampError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a time is written as 2026-11-21T01:02:03.4Z, before the year 2554")
    }
}

impl FromStr for Timestamp {
    type Err = TimestampError;

    /// Parses RFC 3339; times before 1970 become 1970.
    ///
    /// The seconds, and the colon and minutes of the offset, are optional.
    fn from_str(text: &str) -> Result<Self, TimestampError> {
        let nanoseconds = Cursor(text.as_bytes()).time().ok_or(TimestampError)?;
        u64::try_from(nanoseconds.max(0)).map(Timestamp).map_err(|_| TimestampError)
    }
}

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (seconds, nanoseconds) = (self.0 / 1_000_000_000, self.0 % 1_000_000_000);
        let (year, month, day) = date_of((seconds / 86_400) as i64);
        let (hour, minute, second) = (seconds / 3600 % 24, seconds / 60 % 60, seconds % 60);
        let mut text = format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}");
        if nanoseconds > 0 {
            text.push_str(format!(".{nanoseconds:09}").trim_end_matches('0'));
        }
        text.push('Z');
        f.pad(&text)
    }
}

/// The rest of a text that is being parsed.
struct Cursor<'a>(&'a [u8]);

impl Cursor<'_> {
    /// Nanoseconds since the epoch; `None` if the text is not a time, or continues after it.
    fn time(mut self) -> Option<i128> {
        let year = self.number(4)?;
        let month = self.take(b"-").and_then(|_| self.number(2))?;
        let day = self.take(b"-").and_then(|_| self.number(2))?;
        let hour = self.take(b"Tt ").and_then(|_| self.number(2))?;
        let minute = self.take(b":").and_then(|_| self.number(2))?;
        let second = if self.take(b":").is_some() { self.number(2)? } else { 0 };
        let days = days_of(year, month, day);
        if date_of(days) != (year, month, day) || hour > 23 || minute > 59 || second > 60 {
            return None;
        }
        let nanoseconds = if self.take(b".,").is_some() { self.fraction()? } else { 0 };
        let offset = self.offset()?;
        // A leap second has no number of its own, so it is treated as the second before it.
        let seconds = days * 86_400 + hour * 3600 + minute * 60 + second.min(59) - offset;
        self.0.is_empty().then_some(i128::from(seconds) * 1_000_000_000 + i128::from(nanoseconds))
    }

    /// Parses the offset: seconds east of UTC.
    fn offset(&mut self) -> Option<i64> {
        let sign = match self.take(b"Zz+-")? {
            b'+' => 1,
            b'-' => -1,
            _ => return Some(0),
        };
        let hours = self.number(2)?;
        let colon = self.take(b":");
        let minutes = if colon.is_some() || !self.0.is_empty() { self.number(2)? } else { 0 };
        (hours <= 23 && minutes <= 59).then_some(sign * (hours * 3600 + minutes * 60))
    }

    /// Parses the digits after the point as nanoseconds: at most nine digits.
    fn fraction(&mut self) -> Option<i64> {
        let digits = self.0.iter().take_while(|byte| byte.is_ascii_digit()).count();
        let number = Some(digits).filter(|digits| (1..=9).contains(digits)).and_then(|digits| self.number(digits))?;
        Some(number * 10_i64.pow(9 - digits as u32))
    }

    fn number(&mut self, digits: usize) -> Option<i64> {
        let (number, rest) = self.0.split_at_checked(digits)?;
        self.0 = rest;
        number.iter().try_fold(0, |sum, byte| byte.is_ascii_digit().then(|| sum * 10 + i64::from(byte - b'0')))
    }

    /// Takes the next byte if it is one of `of`.
    fn take(&mut self, of: &[u8]) -> Option<u8> {
        let (first, rest) = self.0.split_first().filter(|(first, _)| of.contains(first))?;
        self.0 = rest;
        Some(*first)
    }
}

/// Days in 400 years, after which the Gregorian calendar repeats.
const ERA: i64 = 146_097;
/// Days from 1 March of the year 0 to 1 January 1970.
///
/// Years are counted from 1 March here, so that the leap day is their last day.
const TO_EPOCH: i64 = 719_468;

/// Days since 1970 of a date in the Gregorian calendar.
fn days_of(year: i64, month: i64, day: i64) -> i64 {
    let year = if month < 3 { year - 1 } else { year };
    // Months are counted from March: any five of them have 153 days.
    let months = (month + 9) % 12;
    let (era, year) = (year.div_euclid(400), year.rem_euclid(400));
    era * ERA + year * 365 + year / 4 - year / 100 + (153 * months + 2) / 5 + day - 1 - TO_EPOCH
}

/// Year, month and day of a number of days since 1970, the inverse of [`days_of`].
fn date_of(days: i64) -> (i64, i64, i64) {
    let days = days + TO_EPOCH;
    let (era, days) = (days.div_euclid(ERA), days.rem_euclid(ERA));
    let year = (days - days / 1460 + days / 36_524 - days / 146_096) / 365;
    let days = days - (365 * year + year / 4 - year / 100);
    let months = (5 * days + 2) / 153;
    let (day, month) = (days - (153 * months + 2) / 5 + 1, (months + 2) % 12 + 1);
    (era * 400 + year + i64::from(month < 3), month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Times of all kinds: every day, each at a different time of day, and the limits.
    fn times() -> impl Iterator<Item = u64> {
        let days = (0..u64::MAX / 86_400_000_000_000)
            .map(|day| day * 86_400_000_000_000 + day * 1_234_567_891 % 86_400_000_000_000);
        let fractions = (0..10).map(|digits| 1_767_225_599_000_000_000 + 10_u64.pow(digits));
        days.chain(fractions).chain([0, 1, u64::MAX])
    }

    #[test]
    fn times_are_formatted_like_jiff_and_read_back() {
        for time in times() {
            let text = Timestamp(time).to_string();
            let jiff = jiff::Timestamp::from_nanosecond(i128::from(time)).unwrap();
            assert_eq!(text, jiff.to_string(), "{time}");
            assert_eq!(text.parse(), Ok(Timestamp(time)), "{text}");
        }
    }

    #[test]
    fn times_are_parsed_like_jiff_and_invalid_ones_rejected() {
        for text in [
            "2025-08-30T19:53:13.601761139+0200",
            "2025-08-30 19:53:13.6+02:00",
            "2025-08-30T19:53:13,123-11",
            "2024-02-29t23:59:60z",
            "2024-12-31T23:59:59.999999999-23:59",
            "2000-02-29T00:00Z",
            "2026-11-21T10:00-0730",
            "1970-01-01T01:00:00+01",
            "1969-12-31T23:59:59Z",
            "0000-01-01T00:00:00Z",
        ] {
            let jiff = text.parse::<jiff::Timestamp>().unwrap().as_nanosecond();
            assert_eq!(text.parse(), Ok(Timestamp(u64::try_from(jiff).unwrap_or(0))), "{text}");
        }
        for text in [
            "",
            "2026-11-21",
            "2026-11-21T10:00:00",
            "2026-11-31T10:00:00Z",
            "2025-02-29T10:00:00Z",
            "1900-02-29T10:00:00Z",
            "2026-13-01T10:00:00Z",
            "2026-00-01T10:00:00Z",
            "2026-11-00T10:00:00Z",
            "2026-11-21T24:00:00Z",
            "2026-11-21T10:60:00Z",
            "2026-11-21T10:00:61Z",
            "2026-11-21T10:00:00.Z",
            "2026-11-21T10:00:00.1234567891Z",
            "2026-11-21T10:00:00+02:",
            "2026-11-21T10:00:00+02:0",
            "2026-11-21T10:00:00Z ",
            " 2026-11-21T10:00:00Z",
            "2026-11-21T+1:00:00Z",
            "2026-11-21T1\u{661}:00:00Z",
        ] {
            assert!(text.parse::<jiff::Timestamp>().is_err() && text.parse::<Timestamp>().is_err(), "{text}");
        }
        // Offsets end at 23:59 in RFC 3339.
        assert!("2026-11-21T10:00:00+2400".parse::<Timestamp>().is_err());
        assert_eq!("2554-07-21T23:34:33.709551615Z".parse(), Ok(Timestamp(u64::MAX)));
        assert!("2554-07-21T23:34:33.709551616Z".parse::<Timestamp>().is_err());
    }
}
