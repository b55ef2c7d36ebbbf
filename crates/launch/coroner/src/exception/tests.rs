use std::io;

use super::name_in_debug;

#[derive(Debug)]
#[allow(dead_code)] // Only their names are used.
enum PayError {
    Refused,
    Bank(u32),
    Io { source: io::Error },
}

#[test]
fn an_errors_type_is_the_beginning_of_its_debug_text() {
    let os = || io::Error::from_raw_os_error(2);
    let words = io::Error::other("an app's text");
    let long = "A".repeat(1 << 20);
    for (error, name) in [
        (&PayError::Refused as &dyn std::fmt::Debug, "Refused"),
        (&PayError::Bank(7), "Bank"),
        (&PayError::Io { source: os() }, "Io"),
        (&os(), "Os"),
        (&words, "Custom"),
        (&"no name".parse::<u8>(), "Err"),
        (&"a text", "Error"),
        (&format_args!("Timeout of the bank"), "Error"),
        (&format_args!("timeout"), "Error"),
        (&format_args!("{long}"), "Error"),
        (&format_args!(""), "Error"),
    ] {
        assert_eq!(name_in_debug(error), name, "{error:.40?}");
    }
}
