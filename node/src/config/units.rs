//! Sizes and times as people write them.

use std::time::Duration;

/// Bytes: `4096`, `64KiB`, `512MiB`, `2GiB`, `1.5TiB`; `K`, `M`, `G`, `T` for short.
pub fn size(text: &str) -> Result<u64, String> {
    let wrong = || format!("`{text}`: expected a size, as 512MiB, 2GiB or 1.5TiB");
    let split = text.find(|c: char| !(c.is_ascii_digit() || c == '.')).unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let shift = match unit.trim().trim_end_matches("iB").trim_end_matches('B') {
        "" => 0,
        "k" | "K" => 10,
        "M" => 20,
        "G" => 30,
        "T" => 40,
        _ => return Err(wrong()),
    };
    let number: f64 = number.parse().map_err(|_| wrong())?;
    let bytes = number * (1_u64 << shift) as f64;
    if bytes.is_finite() && (0.0..9e18).contains(&bytes) { Ok(bytes as u64) } else { Err(wrong()) }
}

/// A time: `3` and `3s` are seconds; `500ms`, `5m`, `2h`, `7d`.
pub fn duration(text: &str) -> Result<Duration, String> {
    let wrong = || format!("`{text}`: expected a time, as 3, 500ms, 5m, 2h or 7d");
    let split = text.find(|c: char| !(c.is_ascii_digit() || c == '.')).unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let seconds = match unit {
        "ms" => 0.001,
        "" | "s" => 1.0,
        "m" => 60.0,
        "h" => 3600.0,
        "d" => 86_400.0,
        _ => return Err(wrong()),
    };
    let number: f64 = number.parse().map_err(|_| wrong())?;
    Duration::try_from_secs_f64(number * seconds).ok().filter(|time| time.as_secs() < 1 << 32).ok_or_else(wrong)
}

/// Bytes with a unit, for people.
pub fn show_size(bytes: u64) -> String {
    let units = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut value = bytes as f64;
    let mut place = 0;
    while value >= 1024.0 && place + 1 < units.len() {
        value /= 1024.0;
        place += 1;
    }
    if place == 0 { format!("{bytes} B") } else { format!("{value:.1} {}", units[place]) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_times_as_people_write_them() {
        for (text, bytes) in [("0", 0), ("4096", 4096), ("64KiB", 65_536), ("1.5G", 3 << 29), ("2TiB", 1 << 41)] {
            assert_eq!(size(text), Ok(bytes), "{text}");
        }
        for (text, ms) in [("3", 3000), ("3s", 3000), ("250ms", 250), ("1.5m", 90_000), ("1d", 86_400_000)] {
            assert_eq!(duration(text), Ok(Duration::from_millis(ms)), "{text}");
        }
        for text in ["", "x", "-1", "1Q", "1e9", "NaN", "inf", "1.2.3"] {
            assert!(size(text).unwrap_err().contains("512MiB"), "{text}");
            assert!(duration(text).unwrap_err().contains("500ms"), "{text}");
        }
        assert_eq!(show_size(3 << 29), "1.5 GiB");
    }
}
