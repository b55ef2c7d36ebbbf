//! Objective-C objects that were deallocated before the crash ([`Report::zombies`]).
//!
//! Reports contain them if the app enabled zombie tracking.

use coroner_report::Report;
use coroner_report::model::{Explanation, Zombie};

/// Adds the facts about each object.
pub(crate) fn add_facts(report: &Report, explanation: &mut Explanation) {
    explanation.facts.extend(report.zombies.iter().map(describe));
}

fn describe(zombie: &Zombie) -> String {
    let class = &zombie.class;
    let Some(register) = &zombie.register else {
        let texts = [&zombie.name, &zombie.reason].into_iter().flatten().filter(|text| !text.is_empty());
        let texts: Vec<&str> = texts.map(String::as_str).collect();
        let class = if class.is_empty() { "NSException" } else { class };
        return format!("last deallocated {class}: {}", texts.join(": "));
    };
    match &zombie.class_now {
        None => format!("{register} is the address of a deallocated {class}"),
        Some(now) if !zombie.is_replaced() => {
            format!("{register} is the address of a deallocated {class}, or of a newer {now} in its place")
        }
        Some(now) if now.is_empty() => {
            format!("{register} is the address of an object, where a {class} was deallocated before")
        }
        Some(now) => format!("{register} is the address of a {now}, where a {class} was deallocated before"),
    }
}

/// Returns the thread's use of a deallocated object, for the headline. Memory that contains an
/// object again is not considered.
pub(crate) fn describe_use(report: &Report, explanation: &Explanation) -> Option<String> {
    /// The registers of the first argument.
    const FIRST: [&str; 2] = ["rdi", "x0"];
    let mut gone = report.zombies.iter().filter(|zombie| zombie.register.is_some() && zombie.class_now.is_none());
    if let Some(Zombie { class, selector: Some(selector), .. }) =
        report.zombies.first().filter(|zombie| zombie.class_now.is_none())
    {
        return Some(format!("`{selector}` was sent to a deallocated {class}"));
    }
    let bad = explanation.operand.as_ref().and_then(|operand| operand.register.as_deref());
    // `objc_retain`, `objc_release` and similar functions.
    let is_of_runtime = explanation.function.as_ref().is_some_and(|function| function.starts_with("objc_"));
    let used = gone.find(|zombie| {
        let register = zombie.register.as_deref();
        (bad.is_some() && bad == register) || (is_of_runtime && register.is_some_and(|name| FIRST.contains(&name)))
    })?;
    Some(format!("a deallocated {} was used", used.class))
}
