//! The full screen: redrawn with every sample; `q`, Escape or Ctrl-C quits.

use std::time::Duration;

use ratatui::{
    DefaultTerminal, Frame,
    crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers},
    layout::{Constraint, Layout, Rect},
    style::{Color, Modifier, Style},
    text::Line,
    widgets::{Paragraph, Row, Sparkline, Table},
};
use tokio::time::Instant;

use super::{
    ASK_EVERY, ask,
    figures::{DECISIONS, Figures},
    plain::shown,
};
use crate::keys::way::Way;

/// How long a key press may go unnoticed.
const LISTEN: Duration = Duration::from_millis(100);
const COLOURS: [Color; 5] = [
    Color::Blue,
    Color::Green,
    Color::Magenta,
    Color::Yellow,
    Color::Red,
];
/// Rates are drawn in hundredths, so that slow ones are visible.
const FINE: f64 = 100.0;

/// Draws until the user quits.
pub(super) async fn watch(way: &Way, mut figures: Figures) -> anyhow::Result<()> {
    let mut terminal = ratatui::try_init()?;
    let watched = watch_on(&mut terminal, way, &mut figures).await;
    // Restores the previous content of the terminal, whatever happened.
    ratatui::restore();
    watched
}

async fn watch_on(
    terminal: &mut DefaultTerminal,
    way: &Way,
    figures: &mut Figures,
) -> anyhow::Result<()> {
    loop {
        terminal.draw(|frame| draw(frame, figures))?;
        let next = Instant::now() + ASK_EVERY;
        while Instant::now() < next {
            // Reading the terminal blocks, and there is nothing else to do meanwhile.
            if tokio::task::block_in_place(leaves)? {
                return Ok(());
            }
        }
        figures.update(ask(way).await);
    }
}

/// Whether the user asks to quit within [`LISTEN`].
fn leaves() -> std::io::Result<bool> {
    if !event::poll(LISTEN)? {
        return Ok(false);
    }
    let Event::Key(key) = event::read()? else {
        return Ok(false);
    };
    let interrupt = key.modifiers.contains(KeyModifiers::CONTROL) && key.code == KeyCode::Char('c');
    let quit = matches!(key.code, KeyCode::Char('q') | KeyCode::Esc);
    Ok(key.kind == KeyEventKind::Press && (quit || interrupt))
}

fn draw(frame: &mut Frame, figures: &Figures) {
    let [head, rates, lower, foot] = Layout::vertical([
        Constraint::Length(3),
        Constraint::Length(11),
        Constraint::Min(6),
        Constraint::Length(1),
    ])
    .areas(frame.area());
    let bold = Style::new().add_modifier(Modifier::BOLD);
    let (executing, waiting) = (figures.number("/executing"), figures.number("/waiting"));
    let headline = Line::styled(figures.headline(), bold);
    let second = Line::raw(format!("executing {executing}  waiting {waiting}"));
    let shadow = figures.shadow().map(Line::raw);
    let lines: Vec<Line<'_>> = [headline, second].into_iter().chain(shadow).collect();
    frame.render_widget(Paragraph::new(lines), head);
    draw_rates(frame, rates, figures);
    let [left, right] =
        Layout::horizontal([Constraint::Percentage(58), Constraint::Percentage(42)]).areas(lower);
    draw_routes(frame, left, figures);
    let [keys, latency, workers] = Layout::vertical([
        Constraint::Length(7),
        Constraint::Length(5),
        Constraint::Min(3),
    ])
    .areas(right);
    draw_keys(frame, keys, figures);
    draw_latency(frame, latency, figures);
    draw_workers(frame, workers, figures);
    let told = figures.failure.as_deref().unwrap_or("q leaves");
    frame.render_widget(Paragraph::new(told), foot);
}

fn draw_rates(frame: &mut Frame, area: Rect, figures: &Figures) {
    let lanes: [Rect; 5] = Layout::vertical([Constraint::Length(2); 5]).areas(area);
    let now = figures.rate();
    for (index, lane) in lanes.into_iter().enumerate() {
        let [label, line] =
            Layout::horizontal([Constraint::Length(24), Constraint::Min(10)]).areas(lane);
        let style = Style::new().fg(COLOURS[index]);
        let text = format!("{:<9}{:>9.1}/s", DECISIONS[index], now[index]);
        frame.render_widget(Paragraph::new(text).style(style), label);
        let from = figures.rates.len().saturating_sub(usize::from(line.width));
        let rates = figures.rates.iter().skip(from);
        // A rate is never negative, and one that is too large only affects the drawing.
        let data: Vec<u64> = rates.map(|rate| (rate[index] * FINE) as u64).collect();
        frame.render_widget(Sparkline::default().data(data).style(style), line);
    }
}

fn list(frame: &mut Frame, area: Rect, header: &[&'static str], rows: Vec<Vec<String>>) {
    let numbers = header.len().saturating_sub(1);
    let widths = std::iter::once(Constraint::Min(16))
        .chain(std::iter::repeat_n(Constraint::Length(9), numbers));
    let bold = Style::new().add_modifier(Modifier::BOLD);
    let header = Row::new(header.iter().copied()).style(bold);
    let table = Table::new(rows.into_iter().map(Row::new), widths).header(header);
    frame.render_widget(table, area);
}

fn draw_routes(frame: &mut Frame, area: Rect, figures: &Figures) {
    let rows = figures.list("routes").iter().map(|route| {
        let counts = DECISIONS.iter().map(|name| shown(&route["decided"][*name]));
        std::iter::once(shown(&route["id"])).chain(counts).collect()
    });
    let header = ["ROUTE", "new", "replayed", "waited", "refused", "unknown"];
    list(frame, area, &header, rows.collect());
}

fn draw_keys(frame: &mut Frame, area: Rect, figures: &Figures) {
    let keys = figures.now["keys"].as_object().into_iter().flatten();
    let rows = keys.map(|(state, count)| vec![state.clone(), shown(count)]);
    list(frame, area, &["KEYS", "count"], rows.collect());
}

fn draw_latency(frame: &mut Frame, area: Rect, figures: &Figures) {
    let stages = figures.now["latency"].as_object().into_iter().flatten();
    let rows: Vec<Vec<String>> = stages
        .map(|(stage, times)| {
            let time = |name: &str| shown(&times[name]);
            vec![stage.clone(), time("p50_ms"), time("p99_ms")]
        })
        .collect();
    if !rows.is_empty() {
        list(frame, area, &["LATENCY", "p50 ms", "p99 ms"], rows);
    }
}

fn draw_workers(frame: &mut Frame, area: Rect, figures: &Figures) {
    let rows = figures.list("workers").iter().map(|worker| {
        let clock = shown(&worker["last_run_at"]);
        let time = clock.get(11..19).unwrap_or("-").to_owned();
        vec![shown(&worker["name"]), time, shown(&worker["changed"])]
    });
    list(
        frame,
        area,
        &["LOOP", "last run", "changed"],
        rows.collect(),
    );
}

#[cfg(test)]
mod tests {
    use ratatui::{Terminal, backend::TestBackend};
    use serde_json::json;

    use super::*;

    #[test]
    fn everything_is_on_the_screen() {
        let mut figures = Figures::new(json!({
            "version": "1.2.3", "status": "ready", "totals": {}, "executing": 4, "waiting": 2,
            "store": { "kind": "sqlite", "level": "sync", "writable": true, "breaker": "closed" },
            "config": { "generation": 7 }, "protected_routes": 1, "shadow_routes": ["old"],
            "routes": [{ "id": "payments", "decided": { "new": 12, "replayed": 34 } }],
            "keys": { "completed": 56, "unknown": 1 },
            "latency": { "reserve": { "p50_ms": 0.4, "p99_ms": 1.5 } },
            "workers": [{ "name": "sweep", "last_run_at": "2026-01-02T03:04:05.000Z", "changed": 0 }],
        }));
        figures.rates.push_back([8.0, 2.0, 0.0, 0.0, 0.0]);
        let mut terminal = Terminal::new(TestBackend::new(130, 34)).unwrap();
        terminal.draw(|frame| draw(frame, &figures)).unwrap();
        let screen = terminal.backend().to_string();
        for word in [
            "OnlyOnce 1.2.3",
            "SHADOW old",
            "executing 4",
            "8.0/s",
            "payments",
            "34",
            "completed",
            "56",
            "reserve",
            "1.5",
            "sweep",
            "03:04:05",
            "q leaves",
        ] {
            assert!(screen.contains(word), "{word}\n{screen}");
        }
    }
}
