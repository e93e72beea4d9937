//! A race as a chart: one line for each request, from its first byte to its answer.

use std::time::Duration;

use crate::verify::exchange::Exchange;

/// More lines than this are drawn as groups.
const MOST_LINES: usize = 12;
/// Columns outside the bar.
const MARGIN: usize = 34;

/// One bar: its begin and end as fractions of the whole, and its label.
pub(super) struct Bar {
    /// 0 to 1.
    pub(super) begins: f64,
    /// 0 to 1.
    pub(super) ends: f64,
    pub(super) says: String,
    /// How many requests look like this one.
    pub(super) many: usize,
}

/// The bars of a race and its length in milliseconds.
pub(super) fn bars(race: &[Exchange]) -> (Vec<Bar>, f64) {
    let begin = race.iter().map(|one| one.sent).min().unwrap_or_default();
    let end = race.iter().map(|one| one.ended).max().unwrap_or_default();
    let whole = end.saturating_sub(begin).max(Duration::from_micros(1));
    let part = |at: Duration| at.saturating_sub(begin).as_secs_f64() / whole.as_secs_f64();
    let mut faces: Vec<&Exchange> = Vec::new();
    let mut bars: Vec<(Bar, usize)> = Vec::new();
    for one in race {
        let known = faces.iter().position(|face| looks_like(face, one));
        let face = known.unwrap_or_else(|| {
            faces.push(one);
            faces.len() - 1
        });
        // Equal answers have the same letter.
        let before = faces.iter().take(face).filter(|face| face.ok().is_some());
        let says = match one.ok() {
            Some(_) => format!("{} {}", one.outcome(), letter(before.count())),
            None => one.outcome(),
        };
        let bar = Bar {
            begins: part(one.sent),
            ends: part(one.ended),
            says,
            many: 1,
        };
        bars.push((bar, face));
    }
    if bars.len() > MOST_LINES {
        bars = grouped(bars);
    }
    let bars = bars.into_iter().map(|(bar, _)| bar).collect();
    (bars, whole.as_secs_f64() * 1e3)
}

/// The first and the last of each kind, and one line between them for the rest.
fn grouped(bars: Vec<(Bar, usize)>) -> Vec<(Bar, usize)> {
    let mut groups: Vec<(Bar, usize)> = Vec::new();
    for (bar, face) in bars {
        let same = groups.iter_mut().rev().filter(|(_, other)| *other == face);
        let mut same: Vec<_> = same.collect();
        match same.as_mut_slice() {
            // The last line of a kind absorbs the others.
            [(last, _), _, ..] => {
                last.ends = last.ends.max(bar.ends);
                last.begins = last.begins.min(bar.begins);
                last.many += 1;
            }
            _ => groups.push((bar, face)),
        }
    }
    let kinds = groups.len();
    groups.truncate(MOST_LINES);
    if let Some((last, _)) = groups.last_mut().filter(|_| kinds > MOST_LINES) {
        last.says = format!("and {} other answers", kinds - MOST_LINES + 1);
    }
    groups
}

fn looks_like(left: &Exchange, right: &Exchange) -> bool {
    left.same_as(right) || (left.ok().is_none() && left.outcome() == right.outcome())
}

fn letter(face: usize) -> char {
    u8::try_from(face % 26).map_or('?', |index| char::from(b'A' + index))
}

/// The chart in `width` columns.
pub(super) fn draw(race: &[Exchange], width: usize) -> String {
    let (bars, milliseconds) = bars(race);
    let room = width.saturating_sub(MARGIN).max(20);
    let ends = format!("{milliseconds:.0} ms");
    let mut picture = format!("{:>7} 0{ends:>room$}\n", "");
    for bar in bars {
        let column = |part: f64| ((part * room as f64) as usize).min(room);
        let (from, to) = (column(bar.begins), column(bar.ends));
        let line = "─".repeat(to.saturating_sub(from));
        let count = match bar.many {
            1 => String::new(),
            many => format!("{many} x"),
        };
        let pad = " ".repeat(from);
        picture.push_str(&format!("{count:>7} {pad}├{line}┤ {}\n", bar.says));
    }
    picture.push_str("        The same letter is the same answer.\n");
    picture
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use http::{HeaderMap, HeaderName, Method, StatusCode};

    use super::*;
    use onlyonce_gateway::http_client::{Answer, Endpoint, Outgoing};

    fn exchange(sent: u64, ended: u64, answer: Result<(u16, &'static str), &str>) -> Exchange {
        let request = Outgoing {
            method: Method::POST,
            endpoint: Endpoint::parse("http://a/").unwrap(),
            headers: Vec::new(),
            key_header: HeaderName::from_static("idempotency-key"),
            keys: Vec::new(),
            body: Bytes::new(),
        };
        let answer = answer.map(|(status, body)| Answer {
            status: StatusCode::from_u16(status).unwrap(),
            headers: HeaderMap::new(),
            body: body.into(),
            chunked: false,
            ended_by_close: false,
        });
        Exchange {
            label: "",
            request,
            sent: Duration::from_millis(sent),
            ended: Duration::from_millis(ended),
            answer: answer.map_err(str::to_owned),
        }
    }

    #[test]
    fn a_race_is_drawn_to_scale() {
        let race = [
            exchange(100, 200, Err("we hung up")),
            exchange(100, 300, Ok((201, "a"))),
            exchange(200, 300, Ok((409, ""))),
        ];
        let picture = draw(&race, MARGIN + 20);
        let lines: Vec<&str> = picture.lines().collect();
        assert!(lines[0].ends_with("200 ms"), "{picture}");
        assert_eq!(
            lines[1].trim(),
            format!("├{}┤ nothing (we hung up)", "─".repeat(10))
        );
        assert_eq!(lines[2].trim(), format!("├{}┤ 201 A", "─".repeat(20)));
        assert_eq!(
            lines[3],
            format!("{}├{}┤ 409 B", " ".repeat(18), "─".repeat(10))
        );
    }

    #[test]
    fn many_of_a_kind_share_a_line_and_many_kinds_end() {
        let same: Vec<_> = (0..50)
            .map(|n| exchange(0, n + 1, Ok((201, "a"))))
            .collect();
        let (grouped, _) = bars(&same);
        assert_eq!(
            grouped.iter().map(|bar| bar.many).collect::<Vec<_>>(),
            [1, 49]
        );
        let other = (0..50).map(|n| exchange(0, n + 1, Ok((200 + n as u16, ""))));
        let (other, _) = bars(&other.collect::<Vec<_>>());
        assert_eq!(other.len(), MOST_LINES);
        assert_eq!(other[MOST_LINES - 1].says, "and 39 other answers");
    }
}
