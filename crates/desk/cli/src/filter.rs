//! Filters for reports.

use std::time::{Duration, SystemTime};

use coroner_report::model::Timestamp;

use crate::listing::{Listed, Listing};
use crate::summary::Summary;

/// Command-line filters; a report must match all of them.
#[derive(clap::Args, Clone, Debug, Default)]
pub(crate) struct Filter {
    /// Only reports since TIME: a date, a time (RFC 3339) or an age (`90m`, `12h`, `7d`)
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    since: Option<Timestamp>,
    /// Only reports before TIME
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    until: Option<Timestamp>,
    /// Only reports of this release or version
    #[arg(long, value_name = "RELEASE")]
    release: Option<String>,
    /// Only crashes by this signal or Mach exception, such as SIGSEGV
    ///
    /// SIGABRT includes uncaught exceptions.
    #[arg(long, value_name = "NAME")]
    signal: Option<String>,
    /// Only reports with TEXT in the name of a function of their signature
    #[arg(long, value_name = "TEXT")]
    function: Option<String>,
    /// Only reports with this tag, or with this value of it; repeatable
    #[arg(long = "tag", value_name = "KEY[=VALUE]", value_parser = parse_tag)]
    tags: Vec<String>,
    /// Only the newest NUMBER reports
    #[arg(long, value_name = "NUMBER")]
    newest: Option<std::num::NonZeroUsize>,
}

impl Filter {
    pub(crate) fn apply(&self, listing: &mut Listing) {
        listing.keep(|listed| self.matches(listed), self.newest.map(std::num::NonZeroUsize::get));
    }

    /// Applies the filter to reports that arrived together, sorted oldest first.
    pub(crate) fn apply_to_new(&self, list: &mut Vec<Summary>) {
        list.retain(|summary| self.matches(&Listed::from(summary)));
        if let Some(newest) = self.newest {
            list.drain(..list.len().saturating_sub(newest.get()));
        }
    }

    fn matches(&self, listed: &Listed<'_>) -> bool {
        let Listed { time, version, release, what, signal, .. } = *listed;
        let is_signal = |wanted: &String| {
            let begins = |text: &str| {
                text.as_bytes().get(..wanted.len()).is_some_and(|text| text.eq_ignore_ascii_case(wanted.as_bytes()))
            };
            let is = |text: &str| text.eq_ignore_ascii_case(wanted);
            signal.is_some_and(|signal| is(signal) || signal.strip_prefix("SIG").is_some_and(is)) || begins(what)
        };
        let has_tag = |wanted: &String| match wanted.split_once('=') {
            Some((key, value)) => listed.tag(key) == Some(value),
            None => listed.tag(wanted).is_some(),
        };
        self.since.is_none_or(|since| time.0 >= since.0)
            && self.until.is_none_or(|until| time.0 < until.0)
            && self.release.as_ref().is_none_or(|wanted| release == Some(wanted) || version == wanted)
            && self.signal.as_ref().is_none_or(is_signal)
            && self.function.as_ref().is_none_or(|wanted| listed.has_function(wanted))
            && self.tags.iter().all(has_tag)
    }
}

/// Parses a tag filter.
fn parse_tag(text: &str) -> Result<String, String> {
    match text.split('=').next() {
        None | Some("") => Err("missing key; expected KEY or KEY=VALUE".to_owned()),
        Some(_) => Ok(text.to_owned()),
    }
}

/// Parses a time in the formats of the command line, UTC by default.
fn parse_time(text: &str) -> Result<Timestamp, String> {
    let ago = text.char_indices().last().and_then(|(at, unit)| {
        let seconds = match unit {
            's' => 1,
            'm' => 60,
            'h' => 3600,
            'd' => 86_400,
            'w' => 7 * 86_400,
            _ => return None,
        };
        let number: u64 = text[..at].parse().ok()?;
        SystemTime::now().checked_sub(Duration::from_secs(number.checked_mul(seconds)?))
    });
    if let Some(time) = ago {
        return Ok(Timestamp::from(time));
    }
    let zoned = |text: &str| text.parse::<Timestamp>().ok();
    zoned(text)
        .or_else(|| zoned(&format!("{}Z", text.replace(' ', "T"))))
        .or_else(|| zoned(&format!("{text}T00:00:00Z")))
        .ok_or_else(|| "expected a time such as 2026-11-21, 2026-11-21T10:00:00Z, 12h or 7d".to_owned())
}
