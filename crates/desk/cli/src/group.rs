//! `coroner group` and `coroner top`: groups reports with the same cause.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io::Write;
use std::path::PathBuf;

use anstyle::{AnsiColor, Style};
use coroner_report::model::Timestamp;
use coroner_report::signature::{Rarity, Signature, similarity};
use serde::Serialize;

use crate::failure::Failure;
use crate::filter::Filter;
use crate::listing::{Listed, Listing};
use crate::store_location::StoreArgument;
use crate::summary::Summary;
use crate::symbol_search::ListSymbols;
use crate::terminal::{self, MAX_COLUMN, Output, truncate};
use crate::{Format, outboxes, report_reader, store_location};

/// The arguments of `coroner group` and `coroner top`.
#[derive(clap::Args)]
pub(crate) struct GroupArguments {
    /// Store or folder of reports
    folder: Option<PathBuf>,
    /// Output format
    #[arg(long, value_enum, default_value_t = Format::Text)]
    format: Format,
    /// Minimum similarity of the stacks in a group, from 0 to 1 (equal)
    #[arg(long, default_value_t = DEFAULT_SIMILARITY, value_name = "NUMBER", value_parser = parse_similarity)]
    like: f64,
    #[command(flatten)]
    symbols: ListSymbols,
    #[command(flatten)]
    filter: Filter,
    #[command(flatten)]
    store: StoreArgument,
}

/// Minimum similarity of stacks with the same cause.
///
/// It is an estimate, not measured on crashes of known causes.
const DEFAULT_SIMILARITY: f64 = 0.75;

fn parse_similarity(text: &str) -> Result<f64, String> {
    let number = text.parse().ok().filter(|number| (0.0..=1.0).contains(number));
    number.ok_or_else(|| "expected a number from 0 to 1".to_owned())
}

/// A group of reports with the same cause.
#[derive(Debug, Serialize)]
pub(crate) struct Group {
    /// The id of the signature that most of the reports have.
    pub(crate) id: String,
    pub(crate) title: String,
    pub(crate) signature: Signature,
    pub(crate) count: usize,
    pub(crate) first_seen: Timestamp,
    pub(crate) last_seen: Timestamp,
    pub(crate) releases: BTreeSet<String>,
    pub(crate) apps: BTreeSet<String>,
    /// The signatures in the group, which are the reason for the grouping.
    pub(crate) because: Vec<Reason>,
    /// Event ids, oldest first.
    pub(crate) reports: Vec<String>,
}

/// Reports with the same signature.
#[derive(Debug, Serialize)]
pub(crate) struct Reason {
    pub(crate) signature: Signature,
    pub(crate) count: usize,
    /// The similarity to the group's own signature, which itself has 1.
    pub(crate) similarity: f64,
}

pub(crate) fn run(arguments: GroupArguments, most: Option<usize>) -> Result<(), Failure> {
    let GroupArguments { folder, format, like, symbols, filter, store } = arguments;
    let path = store_location::folder_or(folder, store)?;
    let (mut names, is_named) = symbols.symbolizer()?;
    let mut listing = Listing::open(&path, report_reader::Texts::Scrubbed, Some(&mut names), is_named)?;
    let read = listing.len();
    filter.apply(&mut listing);
    let unread = listing.unread();
    let summaries: Vec<Summary> = listing.iter().map(Listed::to_summary).collect();
    let mut groups = groups(&summaries, like);
    let all = groups.len();
    if let Some(most) = most {
        groups.truncate(most);
    }
    if format == Format::Json {
        terminal::print_line(serde_json::to_string_pretty(&groups)?)?;
    } else if !groups.is_empty() {
        print(&groups, all, summaries.len())?;
    } else if unread == 0 {
        anstream::eprintln!("no reports in `{}`{}", path.display(), outboxes::summary(&path));
    }
    Listing::check_unread(unread, read)
}

/// Groups `summaries`; groups with the most reports come first.
pub(crate) fn groups(summaries: &[Summary], like: f64) -> Vec<Group> {
    // The common signature of crashes at the same places of the same builds: one with all names, if
    // there is one.
    let mut at_places: HashMap<&str, &Signature> = HashMap::new();
    let order = |signature: &Signature| (signature.has_places(), signature.id());
    for summary in summaries {
        let Some(places) = &summary.places else { continue };
        let best = at_places.entry(places).or_insert(&summary.signature);
        *best = std::cmp::min_by_key(*best, &summary.signature, |signature| order(signature));
    }
    let mut equal: HashMap<&Signature, Vec<&Summary>> = HashMap::new();
    for summary in summaries {
        let common = summary.places.as_deref().and_then(|places| at_places.get(places).copied());
        equal.entry(common.unwrap_or(&summary.signature)).or_default().push(summary);
    }
    let mut equal: Vec<(&Signature, Vec<&Summary>)> = equal.into_iter().collect();
    // Makes the result independent of the reports' order.
    equal.sort_by(|(a, of_a), (b, of_b)| of_b.len().cmp(&of_a.len()).then_with(|| a.id().cmp(&b.id())));
    let rarity = Rarity::from_signatures(equal.iter().map(|(signature, _)| *signature));
    // Only signatures with the same kind and a common function can be similar.
    let mut leaders: Vec<(usize, Vec<(usize, f64)>)> = Vec::new();
    let mut by_function: HashMap<(&str, &str), Vec<usize>> = HashMap::new();
    for (place, (signature, _)) in equal.iter().enumerate() {
        let mut candidates: BTreeSet<usize> = BTreeSet::new();
        for frame in &signature.frames {
            candidates.extend(by_function.get(&(signature.kind.as_str(), frame.as_str())).into_iter().flatten());
        }
        let scored = candidates.into_iter().map(|leader| {
            let (of_leader, _) = equal[leaders[leader].0];
            (leader, similarity(of_leader, signature, &rarity))
        });
        let best = scored.filter(|(_, score)| *score >= like).max_by(|(_, a), (_, b)| a.total_cmp(b));
        if let Some((leader, score)) = best {
            leaders[leader].1.push((place, score));
            continue;
        }
        for frame in signature.frames.iter().collect::<BTreeSet<_>>() {
            by_function.entry((signature.kind.as_str(), frame.as_str())).or_default().push(leaders.len());
        }
        leaders.push((place, vec![(place, 1.0)]));
    }
    let mut groups: Vec<Group> =
        leaders.iter().map(|(leader, members)| group(&equal, equal[*leader].0, members)).collect();
    groups.sort_by(|a, b| b.count.cmp(&a.count).then_with(|| b.last_seen.0.cmp(&a.last_seen.0)));
    groups
}

fn group(equal: &[(&Signature, Vec<&Summary>)], leader: &Signature, members: &[(usize, f64)]) -> Group {
    let mut reports: Vec<&Summary> = members.iter().flat_map(|(place, _)| equal[*place].1.iter().copied()).collect();
    reports.sort_by_key(|summary| summary.time.0);
    let releases = reports.iter().filter_map(|summary| match (&summary.release, summary.version.as_str()) {
        (Some(release), _) => Some(release.clone()),
        (None, "") => None,
        (None, version) => Some(version.to_owned()),
    });
    let mut titles: BTreeMap<String, usize> = BTreeMap::new();
    for summary in &reports {
        *titles.entry(summary.title()).or_default() += 1;
    }
    let because = members.iter().map(|(place, score)| {
        let (signature, of_it) = &equal[*place];
        Reason { signature: (*signature).clone(), count: of_it.len(), similarity: (score * 1000.0).round() / 1000.0 }
    });
    Group {
        id: leader.id(),
        title: titles.into_iter().max_by_key(|(_, count)| *count).map(|(title, _)| title).unwrap_or_default(),
        signature: leader.clone(),
        count: reports.len(),
        first_seen: reports.first().map(|summary| summary.time).unwrap_or_default(),
        last_seen: reports.last().map(|summary| summary.time).unwrap_or_default(),
        releases: releases.collect(),
        apps: reports.iter().map(|summary| summary.app.clone()).collect(),
        because: because.collect(),
        reports: reports.iter().map(|summary| summary.event_id.clone()).collect(),
    }
}

fn print(groups: &[Group], all: usize, reports: usize) -> Result<(), Failure> {
    let mut out = std::io::BufWriter::new(Output::paged());
    let width = terminal::width().filter(|_| terminal::is_terminal());
    let (bold, dim) = (Style::new().bold(), Style::new().dimmed());
    let cyan = Style::new().fg_color(Some(AnsiColor::Cyan.into()));
    let digits = groups.iter().map(|group| group.count.to_string().len()).max().unwrap_or(1);
    for group in groups {
        let room = |used: usize| Some(width.map_or(MAX_COLUMN, |width| width.saturating_sub(used).max(16)));
        writeln!(out, "{bold}{:>digits$}{bold:#}  {}", group.count, truncate(&group.title, room(digits + 2)))?;
        let day = |time: Timestamp| time.to_string().chars().take(16).collect::<String>().replace('T', " ");
        let newest = group.reports.last().map_or("", |id| id.get(..8).unwrap_or(id));
        // The id comes first, because it is copied, and lines are truncated at the end.
        let seen = format!("{} to {}", day(group.first_seen), day(group.last_seen));
        let mut line = format!("{}  newest {newest}, {seen}", group.id);
        if !group.releases.is_empty() {
            let releases: Vec<&str> = group.releases.iter().map(String::as_str).collect();
            line = format!("{line}, {}", releases.join(", "));
        }
        writeln!(out, "{:digits$}  {dim}{}{dim:#}", "", truncate(&line, room(digits + 2)))?;
        writeln!(out, "{:digits$}  {cyan}{}{cyan:#}", "", truncate(&group.signature.to_string(), room(digits + 2)))?;
        let near = group.because.iter().filter(|reason| reason.similarity < 1.0).count();
        if near > 0 {
            let least = group.because.iter().map(|reason| reason.similarity).fold(1.0, f64::min);
            let are = if near == 1 { "similar stack" } else { "similar stacks" };
            writeln!(out, "{:digits$}  {dim}and {near} {are} (similarity at least {least:.2}){dim:#}", "")?;
        }
    }
    let counted = |count: usize, what: &str| format!("{count} {what}{}", if count == 1 { "" } else { "s" });
    let mut dim_line = format!("{} in {}", counted(reports, "report"), counted(all, "group"));
    if all > groups.len() {
        dim_line = format!("{dim_line}, {} shown", groups.len());
    }
    writeln!(out, "{dim}{dim_line}{dim:#}")?;
    Ok(out.flush()?)
}
