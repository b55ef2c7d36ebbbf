//! Codes with which Apple's systems terminate apps.
//!
//! Source: Apple, "Understanding the exception types in a crash report" and "Addressing watchdog
//! terminations".

/// Codes with their meaning.
const MEANINGS: [(u64, &str); 10] = [
    (0x8bad_f00d, "watchdog: the app took too long to launch, to respond, or to end"),
    (0xbaad_ca11, "the app didn't report a call to CallKit in response to a push notification"),
    (0xbad2_2222, "the app resumed too often for voice calls"),
    (0xbadd_d15c, "the system reclaimed the app's disk space"),
    (0xc000_10ff, "the device was too hot"),
    (0xc51b_ad01, "a background task used too much CPU time"),
    (0xc51b_ad02, "a background task didn't end in time"),
    (0xc51b_ad03, "a background task didn't end in time, while the system was busy"),
    (0xdead_10cc, "the app held a file lock or a database lock while it was suspended"),
    (0xdead_fa11, "the user quit the app by force"),
];

/// Decimal numbers from here on are codes that people know in hexadecimal.
const MIN_CODE: u64 = 0x1000_0000;

/// Returns the text of a termination reason with its codes in hexadecimal and their meanings.
///
/// Reports have them in decimal, `FRONTBOARD 2343432205`, or in hexadecimal, `Code 0x8badf00d`.
pub(crate) fn explain(reason: &str) -> String {
    let explained = |word: &str| {
        let digits = word.trim_end_matches([',', ';']);
        let code = match digits.strip_prefix("0x") {
            Some(hexadecimal) => u64::from_str_radix(hexadecimal, 16).ok(),
            None if digits.bytes().all(|byte| byte.is_ascii_digit()) => digits.parse().ok(),
            None => None,
        };
        match code.filter(|code| *code >= MIN_CODE) {
            Some(code) => {
                let meaning = MEANINGS.iter().find(|known| known.0 == code);
                let meaning = meaning.map_or_else(String::new, |(_, meaning)| format!(" ({meaning})"));
                format!("{code:#x}{meaning}{}", &word[digits.len()..])
            }
            None => word.to_owned(),
        }
    };
    reason.split(' ').map(explained).collect::<Vec<_>>().join(" ")
}
