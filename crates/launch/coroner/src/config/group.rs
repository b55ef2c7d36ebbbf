//! The macro that declares a group of options.

/// Declares a group of options.
///
/// Each simple option is listed once, with its documentation, type and default, and gets a setter.
/// Fields have handwritten methods.
macro_rules! group {
    (
        $(#[$doc:meta])*
        $group:ident
        fields { $($field:ident: $field_type:ty = $initial:expr,)* }
        options { $($(#[$option_doc:meta])* $option:ident: $type:ty = $default:expr,)* }
    ) => {
        $(#[$doc])*
        #[must_use = "options do nothing until they are passed to `Config`"]
        #[derive(Debug, Clone)]
        pub struct $group {
            $(pub(crate) $field: $field_type,)*
            $(pub(crate) $option: $type,)*
        }

        impl Default for $group {
            fn default() -> Self {
                Self { $($field: $initial,)* $($option: $default,)* }
            }
        }

        impl $group {
            /// Returns the defaults.
            pub fn new() -> Self {
                Self::default()
            }

            $($(#[$option_doc])* pub fn $option(mut self, $option: $type) -> Self {
                self.$option = $option;
                self
            })*
        }
    };
}

pub(super) use group;
