//! What commands print on standard output: a table for people, or one JSON document.

use std::io::{self, Write};
use std::time::{SystemTime, UNIX_EPOCH};

use ckpt_engine::{Error, Result};
use serde::Serialize;

/// Where the answers go.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Output {
    /// Text for people.
    Text,
    /// One JSON document.
    Json,
}

impl Output {
    pub(crate) fn new(json: bool) -> Self {
        if json { Self::Json } else { Self::Text }
    }

    /// Prints `document`, or what `text` makes of it.
    pub(crate) fn print(self, document: &impl Serialize, text: impl FnOnce() -> String) -> Result<()> {
        let mut text = match self {
            Self::Text => text(),
            Self::Json => serde_json::to_string_pretty(document)
                .map_err(|error| Error::internal("cannot write JSON").with_source(error))?,
        };
        if !text.is_empty() && !text.ends_with('\n') {
            text.push('\n');
        }
        self.raw(text.as_bytes())
    }

    /// Prints bytes as they are.
    pub(crate) fn raw(self, bytes: &[u8]) -> Result<()> {
        let mut stdout = io::stdout().lock();
        match stdout.write_all(bytes).and_then(|()| stdout.flush()) {
            // The reader has seen enough, as `head` has.
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
            written => written.map_err(|error| Error::io("cannot write to standard output", error)),
        }
    }
}

/// Columns, each as wide as its widest cell; the first row is the heading. Columns whose heading begins with `>` are aligned right.
pub(crate) fn table<const N: usize>(heading: [&str; N], rows: Vec<[String; N]>) -> String {
    let plain = heading.map(|title| title.trim_start_matches('>').to_owned());
    let right = heading.map(|title| title.starts_with('>'));
    let all: Vec<&[String; N]> = std::iter::once(&plain).chain(&rows).collect();
    let mut widths = [0; N];
    for row in &all {
        for (width, cell) in widths.iter_mut().zip(row.iter()) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let mut text = String::new();
    for row in all {
        let mut line = String::new();
        for ((cell, width), right) in row.iter().zip(widths).zip(right) {
            let padding = " ".repeat(width - cell.chars().count());
            let cell = if right { format!("{padding}{cell}") } else { format!("{cell}{padding}") };
            line.push_str(&cell);
            line.push_str("  ");
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

/// A number of bytes for people.
pub(crate) fn size(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["KiB", "MiB", "GiB", "TiB", "PiB"];
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    let mut value = bytes as f64 / 1024.0;
    let mut unit = "KiB";
    for larger in UNITS.into_iter().skip(1) {
        if value < 1023.95 {
            break;
        }
        value /= 1024.0;
        unit = larger;
    }
    format!("{value:.1} {unit}")
}

/// A name for people: control characters and what could move the cursor are shown as escapes.
pub(crate) fn name(name: &str) -> String {
    name.chars().flat_map(|c| if c.is_control() { c.escape_default().collect() } else { vec![c] }).collect()
}

/// Date and time of day, in UTC.
pub(crate) fn time(unix_ms: u64) -> String {
    let seconds = unix_ms / 1000;
    let (days, second) = (seconds / 86_400, seconds % 86_400);
    let (year, month, day) = civil_date(days);
    format!("{year:04}-{month:02}-{day:02} {:02}:{:02}:{:02}", second / 3600, second / 60 % 60, second % 60)
}

/// The Gregorian date of a number of days since 1970-01-01, by eras of 400 years that begin in March.
fn civil_date(days: u64) -> (u64, u64, u64) {
    let shifted = days + 719_468;
    let (era, day_of_era) = (shifted / 146_097, shifted % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    (era * 400 + year_of_era + u64::from(month <= 2), month, day)
}

/// Now, as [`time`] writes it.
pub(crate) fn now() -> String {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    time(u64::try_from(since.as_millis()).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes() {
        let cases = [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1.0 KiB"),
            (1536, "1.5 KiB"),
            (1 << 20, "1.0 MiB"),
            ((1 << 20) - 1, "1.0 MiB"),
            (90 << 30, "90.0 GiB"),
            (u64::MAX, "16384.0 PiB"),
        ];
        for (bytes, expected) in cases {
            assert_eq!(size(bytes), expected);
        }
    }

    #[test]
    fn columns_line_up() {
        let rows = vec![["a".to_owned(), "10".to_owned()], ["böse".to_owned(), "9".to_owned()]];
        assert_eq!(table(["name", ">n"], rows), "name   n\na     10\nböse   9\n");
    }

    #[test]
    fn names_cannot_drive_the_terminal() {
        assert_eq!(name("w\u{1b}[2J\n"), "w\\u{1b}[2J\\n");
    }

    #[test]
    fn dates() {
        let cases = [
            (0, "1970-01-01 00:00:00"),
            (951_782_400_000, "2000-02-29 00:00:00"),
            (1_764_583_907_123, "2025-12-01 10:11:47"),
            (4_102_444_799_000, "2099-12-31 23:59:59"),
        ];
        for (unix_ms, expected) in cases {
            assert_eq!(time(unix_ms), expected);
        }
    }
}
