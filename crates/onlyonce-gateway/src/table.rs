//! Tables for people. On a terminal they are as wide as it is; where a program may read them, no cell is
//! broken, so that `grep` finds what stands in a row.

use comfy_table::{ColumnConstraint, ContentArrangement, Table, presets::UTF8_FULL_CONDENSED};

/// The narrowest and widest table on a terminal, in columns.
const WIDTHS: (u16, u16) = (80, 180);
/// The width of a terminal that does not say how wide it is.
const DEFAULT_WIDTH: u16 = 160;

/// An empty table with these columns. The first one names what a row is about, and is never broken.
pub(crate) fn table(columns: &[&str]) -> Table {
    of_width(
        columns,
        terminal_width().map(|width| width.clamp(WIDTHS.0, WIDTHS.1)),
    )
}

fn of_width(columns: &[&str], width: Option<u16>) -> Table {
    let mut table = Table::new();
    table.load_style(UTF8_FULL_CONDENSED).set_header(columns);
    match width {
        Some(width) => {
            table.set_content_arrangement(ContentArrangement::Dynamic);
            table.set_width(width);
            if let Some(first) = table.column_mut(0) {
                first.set_constraint(ColumnConstraint::ContentWidth);
            }
        }
        None => {
            table.set_content_arrangement(ContentArrangement::Disabled);
        }
    }
    table
}

/// How wide the terminal is, where standard output is one.
pub(crate) fn terminal_width() -> Option<u16> {
    let size = rustix::termios::tcgetwinsize(std::io::stdout()).ok()?;
    Some(match size.ws_col {
        0 => DEFAULT_WIDTH,
        width => width,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_never_broken() {
        let id = "f59bd234caa8b3ad29479fa0826a2a04";
        let (key, words) = ("k".repeat(70), "a reason of many words ".repeat(9));
        for width in [Some(80), None] {
            let mut table = of_width(&["id", "key", "state", "reason"], width);
            table.add_row([id, &key, "completed", &words]);
            let shown = table.to_string();
            assert!(shown.contains(id), "{shown}");
            let whole = shown.contains(&key) && shown.contains(words.trim());
            assert_eq!(whole, width.is_none(), "{shown}");
        }
    }
}
