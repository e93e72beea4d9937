//! Tables for people. On a terminal a table is as wide as the terminal: each row of a list is one line, and
//! only prose is wrapped, between words. Where a program may read a list, nothing is left out and no cell is
//! broken, so that `grep` finds everything in a row.

use comfy_table::{ColumnConstraint, ContentArrangement, Table, presets::UTF8_FULL_CONDENSED};

/// The minimum and maximum width of a table on a terminal, in columns.
const WIDTHS: (u16, u16) = (60, 180);
/// The width of a terminal that does not report its width.
const DEFAULT_WIDTH: u16 = 160;
/// The width of a report that people read from a file, or in a build log.
pub(crate) const PIPED_WIDTH: u16 = 100;
/// The fewest letters that a cut column keeps.
const LEAST_CUT: usize = 12;

/// An empty table whose last column is prose, which is wrapped on a terminal; elsewhere it is wrapped at the
/// width `piped`, or not at all.
pub(crate) fn prose(columns: &[&str], piped: Option<u16>) -> Table {
    let mut table = empty(columns);
    let Some(width) = width().or(piped) else {
        table.set_content_arrangement(ContentArrangement::Disabled);
        return table;
    };
    table.set_content_arrangement(ContentArrangement::Dynamic);
    table.set_width(width);
    for index in 0..columns.len().saturating_sub(1) {
        if let Some(column) = table.column_mut(index) {
            column.set_constraint(ColumnConstraint::ContentWidth);
        }
    }
    table
}

/// A list. The first column identifies the row. If the terminal is too narrow, columns in `dispensable` are
/// dropped, the last of them first, and then the first and the last column are cut.
pub(crate) fn list(columns: &[&str], rows: Vec<Vec<String>>, dispensable: &[&str]) -> Table {
    of_width(columns, rows, dispensable, width())
}

fn of_width(
    columns: &[&str],
    mut rows: Vec<Vec<String>>,
    dispensable: &[&str],
    width: Option<u16>,
) -> Table {
    let mut columns = columns.to_vec();
    if let Some(width) = width.map(usize::from) {
        let mut dispensable = dispensable.to_vec();
        while widths(&columns, &rows, true).iter().sum::<usize>() > width
            && let Some(name) = dispensable.pop()
        {
            let Some(index) = columns.iter().position(|column| *column == name) else {
                continue;
            };
            columns.remove(index);
            for row in &mut rows {
                row.remove(index);
            }
        }
        cut(&columns, &mut rows, width);
    }
    let mut table = empty(&columns);
    table.set_content_arrangement(ContentArrangement::Disabled);
    table.add_rows(rows);
    table
}

/// The width of each column with its frame; the first and the last at their minimum if `is_cut`.
fn widths(columns: &[&str], rows: &[Vec<String>], is_cut: bool) -> Vec<usize> {
    let last = columns.len().saturating_sub(1);
    let width = |(index, name): (usize, &&str)| {
        let cells = rows.iter().filter_map(|row| row.get(index));
        let widest = cells.map(|cell| cell.chars().count()).max().unwrap_or(0);
        let content = match is_cut && (index == 0 || index == last) {
            true => widest.min(LEAST_CUT),
            false => widest,
        };
        content.max(name.len()) + 3
    };
    let mut widths: Vec<usize> = columns.iter().enumerate().map(width).collect();
    if let Some(first) = widths.first_mut() {
        *first += 1;
    }
    widths
}

/// Cuts cells of the last column and then of the first, until rows fit.
fn cut(columns: &[&str], rows: &mut [Vec<String>], width: usize) {
    let last = columns.len().saturating_sub(1);
    for index in [last, 0] {
        let all = widths(columns, rows, false);
        let over = all.iter().sum::<usize>().saturating_sub(width);
        if over == 0 {
            return;
        }
        let frame = 3 + usize::from(index == 0);
        let room = all[index].saturating_sub(over + frame).max(LEAST_CUT);
        for cell in rows.iter_mut().filter_map(|row| row.get_mut(index)) {
            *cell = shortened(cell, room);
        }
    }
}

/// `text` in at most `room` letters, cut at the end.
fn shortened(text: &str, room: usize) -> String {
    match text.char_indices().nth(room.saturating_sub(1)) {
        Some((at, _)) if text.chars().count() > room => format!("{}…", &text[..at]),
        _ => text.to_owned(),
    }
}

fn empty(columns: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_style(UTF8_FULL_CONDENSED).set_header(columns);
    table
}

/// The width of a table on the terminal, if standard output is one.
fn width() -> Option<u16> {
    terminal_width().map(|width| width.clamp(WIDTHS.0, WIDTHS.1))
}

/// The width of the terminal, if standard output is one.
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

    const COLUMNS: [&str; 5] = ["key", "state", "route", "created", "reason"];

    fn shown(width: Option<u16>) -> String {
        let long = vec![
            "k".repeat(70),
            "completed".to_owned(),
            "payments-of-the-shop".to_owned(),
            "2 minutes ago".to_owned(),
            "a reason of many words ".repeat(9),
        ];
        let short = ["order-1", "unknown", "r", "now", "none"].map(str::to_owned);
        let rows = vec![long, short.to_vec()];
        of_width(&COLUMNS, rows, &["created", "route"], width).to_string()
    }

    #[test]
    fn a_list_fits_the_terminal_with_one_line_a_row() {
        for width in [60, 80, 120, 180] {
            let shown = shown(Some(width));
            assert_eq!(shown.lines().count(), 6, "{shown}");
            for line in shown.lines() {
                assert!(line.chars().count() <= usize::from(width), "{shown}");
            }
            assert!(shown.contains("completed") && shown.contains("order-1"));
            assert!(shown.contains('…'), "{shown}");
        }
        assert!(
            !shown(Some(60)).contains("route"),
            "what is least needed goes"
        );
        assert!(shown(Some(120)).contains("payments-of-the-shop"));
    }

    #[test]
    fn a_program_gets_everything() {
        let shown = shown(None);
        assert!(shown.contains(&"k".repeat(70)), "{shown}");
        assert!(shown.contains("a reason of many words a reason"), "{shown}");
    }

    #[test]
    fn text_is_cut_between_letters() {
        assert_eq!(shortened("größe", 4), "grö…");
        assert_eq!(shortened("größe", 5), "größe");
        assert_eq!(shortened("", 3), "");
    }
}
