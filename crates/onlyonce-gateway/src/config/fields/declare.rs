//! The macros that declare sections. One row is one field, and everything else follows from it:
//!
//! ```text
//! sweep_every: Duration = Duration(EVERY), "5s", "how often lapsed leases are looked for";
//! name         type       kind and range   default meaning
//! ```
//!
//! A default is one of
//! - `"5s"`: this value, read like one in a file; `"zstd" as "words"` documents it in other words;
//! - `("words")`: not said is `None`, and the reference says what that means;
//! - `["words"]`: not said is an empty list;
//! - `{ "words" }`: a section, which is read even where nothing is said of it;
//! - `required`.
//!
//! Whatever has a type here is shown by `GET /config`: what may hold a secret needs a type whose view
//! hides it. A row without a type is read and shown by the code of its section.
//! At the end of a row, `[restart]`, `[scope]` and `[callers]` say what a reload may do to the
//! field: see [`Reload`](super::Reload).

/// A section that its own code reads: the table alone.
macro_rules! schema {
    ($schema:ident = $title:literal {$(
        $name:ident = $kind:expr, $default:tt $(as $words:literal)?, $about:literal
        $([$($flag:ident),*])?;
    )*}) => {
        pub(in crate::config) static $schema: $crate::config::fields::Schema = $crate::config::fields::Schema {
            name: $title,
            fields: &[$($crate::config::fields::Field {
                name: stringify!($name),
                kind: $kind,
                default: default_words!($default $($words)?),
                value: default_value!($default),
                about: $about,
                reload: reload!($($($flag)*)?),
            }),*],
        };
    };
}

/// A section, and the struct that it is read into. The fields under `and` stand in no file.
macro_rules! section {
    (
        $(#[$meta:meta])*
        $vis:vis struct $type:ident: $schema:ident = $title:literal {$(
            $field_vis:vis $name:ident $(: $type_of:ty)? = $kind:expr,
            $default:tt $(as $words:literal)?, $about:literal $([$($flag:ident),*])?;
        )*}
        $(and {$(
            $(#[$extra_meta:meta])*
            $extra_vis:vis $extra:ident: $extra_type:ty = $init:expr;
        )*})?
    ) => {
        schema! { $schema = $title {$(
            $name = $kind, $default $(as $words)?, $about $([$($flag),*])?;
        )*} }

        $(#[$meta])*
        #[derive(Clone, Debug, PartialEq)]
        $vis struct $type {
            $($(
                #[doc = concat!("`", stringify!($name), "`: ", $about)]
                $field_vis $name: $type_of,
            )?)*
            $($($(#[$extra_meta])* $extra_vis $extra: $extra_type,)*)?
        }

        const _: () = {
            use $crate::config::fields::generated::*;

            impl Group for $type {
                const SCHEMA: &'static Schema = &$schema;

                fn read(section: &Section<'_>, report: &mut Report<'_>) -> Option<Self> {
                    $($(let $name = said!($default, $type_of, section, stringify!($name), report);)?)*
                    Some(Self {
                        $($($name: built!($default, $type_of, $name),)?)*
                        $($($extra: $init,)*)?
                    })
                }

                fn changed(&self, new: &Self) -> Vec<&'static str> {
                    changed_names(&[
                        $($((stringify!($name), <$type_of>::ne(&self.$name, &new.$name)),)?)*
                    ])
                }
            }

            impl View for $type {
                fn view(&self) -> Value {
                    let mut members = Map::new();
                    $($(members.insert(
                        stringify!($name).to_owned(),
                        <$type_of as View>::view(&self.$name),
                    );)?)*
                    Value::Object(members)
                }
            }
        };
    };
}

/// Options of a policy, read one by one into a struct that is declared elsewhere. Unless `=>` says
/// otherwise, an option is shown as the route's policy has it. `[apart]` leaves reading to other
/// code.
macro_rules! options {
    (
        $(#[$meta:meta])*
        $table:ident: $schema:ident = $title:literal of $options:ty, shown by $route:ident {$(
            $name:ident = $kind:expr, $default:tt $(as $words:literal)?, $about:literal
            $([$($how:ident),*])? $(=> $shown:expr)?;
        )*}
    ) => {
        schema! { $schema = $title {$(
            $name = $kind, $default $(as $words)?, $about $([$($how),*])?;
        )*} }

        $(#[$meta])*
        pub(in crate::config) struct $table;

        const _: () = {
            use $crate::config::fields::generated::*;

            impl Table for $table {
                type Options = $options;
                const SCHEMA: &'static Schema = &$schema;

                fn read(
                    section: &Section<'_>,
                    field: &str,
                    options: &mut $options,
                    report: &mut Report<'_>,
                ) {
                    match field {
                        $(stringify!($name) => option!([$($($how)*)?] options, $name, section, report),)*
                        _ => {}
                    }
                }

                fn said(options: &$options) -> Vec<(&'static str, Option<Value>)> {
                    vec![$((stringify!($name), stated!([$($($how)*)?] options, $name)),)*]
                }

                fn view($route: &Route) -> Value {
                    let mut members = Map::new();
                    $(shown!([$($($how)*)?] [$($shown)?] members, $name, $route);)*
                    Value::Object(members)
                }
            }
        };
    };
}

/// A default as the reference shows it.
macro_rules! default_words {
    (required) => {
        "required"
    };
    (($words:literal)) => {
        $words
    };
    ([$words:literal]) => {
        $words
    };
    ({ $words:literal }) => {
        $words
    };
    ($value:literal) => {
        concat!("`", $value, "`")
    };
    ($value:literal $words:literal) => {
        $words
    };
}

/// A default as a file would say it.
macro_rules! default_value {
    ($value:literal) => {
        Some($value)
    };
    ($other:tt) => {
        None
    };
}

/// What a reload may do to a field.
macro_rules! reload {
    () => {
        $crate::config::fields::Reload::Free
    };
    (apart $($flag:ident)?) => {
        reload!($($flag)?)
    };
    (restart) => {
        $crate::config::fields::Reload::Restart
    };
    (scope) => {
        $crate::config::fields::Reload::Scope
    };
    (callers) => {
        $crate::config::fields::Reload::Callers
    };
}

/// What a file says of a field, its default filled in where that is a value.
macro_rules! said {
    ($value:literal, $type:ty, $section:ident, $name:expr, $report:ident) => {
        $section.get_or_default::<$type>($name, $report)
    };
    ([$words:literal], $type:ty, $section:ident, $name:expr, $report:ident) => {
        $section.get::<$type>($name, $report).unwrap_or_default()
    };
    ({ $words:literal }, $type:ty, $section:ident, $name:expr, $report:ident) => {
        <$type as Group>::of($section, $name, $report)
    };
    ($other:tt, $type:ty, $section:ident, $name:expr, $report:ident) => {
        $section.get($name, $report)
    };
}

/// The value that goes into the struct; without a required one there is none.
macro_rules! built {
    (required, $type:ty, $value:ident) => {
        $value?
    };
    ({ $words:literal }, $type:ty, $value:ident) => {
        $value?
    };
    ($other:tt, $type:ty, $value:ident) => {
        $value
    };
}

macro_rules! option {
    ([apart $($flag:ident)?] $($rest:tt)*) => {{}};
    ([$($flag:ident)?] $options:ident, $name:ident, $section:ident, $report:ident) => {
        $options.$name = $options
            .$name
            .take()
            .or($section.get(stringify!($name), $report))
    };
}

macro_rules! stated {
    ([apart $($flag:ident)?] $($rest:tt)*) => {
        None
    };
    ([$($flag:ident)?] $options:ident, $name:ident) => {
        $options.$name.as_ref().map(View::view)
    };
}

macro_rules! shown {
    ([apart] [] $($rest:tt)*) => {};
    ([$($flag:ident)?] [] $members:ident, $name:ident, $from:ident) => {
        shown!([] [$from.policy.$name] $members, $name, $from)
    };
    ([$($how:ident)*] [$shown:expr] $members:ident, $name:ident, $from:ident) => {
        $members.insert(stringify!($name).to_owned(), $shown.view())
    };
}
