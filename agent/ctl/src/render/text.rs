//! Words, times and colours.

use std::time::Duration;

use jiff::Timestamp;
use nodus_protocol::checkpoint::{CheckpointState, Consistency};
use nodus_protocol::job::Phase;

/// A colour with its meaning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Paint {
    /// As the rest.
    Plain,
    /// A heading.
    Bold,
    /// It is well.
    Good,
    /// It deserves a look.
    Odd,
    /// It is not well.
    Bad,
}

/// Whether colours are used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Style {
    /// On a terminal, without `NO_COLOR`.
    pub color: bool,
}

impl Style {
    /// The text in its colour.
    #[must_use]
    pub fn paint(self, paint: Paint, text: &str) -> String {
        let code = match paint {
            Paint::Plain => return text.to_owned(),
            _ if !self.color => return text.to_owned(),
            Paint::Bold => 1,
            Paint::Good => 32,
            Paint::Odd => 33,
            Paint::Bad => 31,
        };
        format!("\x1b[{code}m{text}\x1b[0m")
    }
}

/// Text of a program or a file name: control characters, which could rewrite the terminal or break
/// the line, are shown as escapes.
pub(super) fn safe(text: &str) -> String {
    let escape = |c: char| match c {
        c if c.is_control() => c.escape_default().to_string(),
        c => c.to_string(),
    };
    text.chars().map(escape).collect()
}

/// The time between two moments, never below zero: clocks may be set back.
pub(super) fn between(from: Timestamp, to: Timestamp) -> Duration {
    Duration::try_from(to.duration_since(from)).unwrap_or_default()
}

/// One number and its unit, exact enough for a column: `95s`, `12m`, `30h`, `4d`.
pub(super) fn age(duration: Duration) -> String {
    let seconds = duration.as_secs();
    match seconds {
        0..120 => format!("{seconds}s"),
        120..7200 => format!("{}m", seconds / 60),
        7200..172_800 => format!("{}h", seconds / 3600),
        _ => format!("{}d", seconds / 86_400),
    }
}

/// A moment and how far it is: `2026-11-30T12:00:00Z (3m ago)`.
pub(super) fn moment(at: Timestamp, now: Timestamp) -> String {
    let relative = if at > now {
        format!("in {}", age(between(now, at)))
    } else {
        format!("{} ago", age(between(at, now)))
    };
    format!("{} ({relative})", at.strftime("%Y-%m-%dT%H:%M:%SZ"))
}

/// `1 file`, `12 files`.
pub(super) fn count(number: u64, one: &str) -> String {
    let plural = if number == 1 { "" } else { "s" };
    format!("{number} {one}{plural}")
}

/// Arguments so that a shell would read them back.
pub(super) fn command(arguments: &[String]) -> String {
    let quote = |argument: &String| {
        let plain = |c: char| c.is_ascii_alphanumeric() || "-_./=:,@%+".contains(c);
        if !argument.is_empty() && argument.chars().all(plain) {
            argument.clone()
        } else {
            format!("'{}'", argument.replace('\'', r"'\''"))
        }
    };
    safe(&arguments.iter().map(quote).collect::<Vec<_>>().join(" "))
}

pub(super) fn of_phase(phase: Phase) -> Paint {
    match phase {
        Phase::Running | Phase::Succeeded => Paint::Good,
        Phase::Suspending | Phase::Suspended | Phase::Recovering => Paint::Odd,
        Phase::Failed => Paint::Bad,
        Phase::Pending => Paint::Plain,
    }
}

pub(super) fn of_state(state: CheckpointState) -> Paint {
    match state {
        CheckpointState::Committed => Paint::Good,
        CheckpointState::Suspect | CheckpointState::Skipped => Paint::Odd,
        CheckpointState::Damaged | CheckpointState::Failed => Paint::Bad,
    }
}

pub(super) fn of_consistency(consistency: Option<Consistency>) -> Paint {
    match consistency {
        Some(Consistency::Torn) => Paint::Odd,
        Some(Consistency::Acked | Consistency::Quiet) | None => Paint::Plain,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_are_short() {
        for (seconds, expected) in [
            (0, "0s"),
            (119, "119s"),
            (120, "2m"),
            (7199, "119m"),
            (7200, "2h"),
            (172_799, "47h"),
            (172_800, "2d"),
        ] {
            assert_eq!(age(Duration::from_secs(seconds)), expected);
        }
    }

    #[test]
    fn moments_are_readable_whichever_way_they_lie() {
        let at: Timestamp = "2026-11-30T12:00:00.75Z".parse().unwrap();
        let later: Timestamp = "2026-11-30T12:03:01Z".parse().unwrap();
        assert_eq!(moment(at, later), "2026-11-30T12:00:00Z (3m ago)");
        assert_eq!(moment(later, at), "2026-11-30T12:03:01Z (in 3m)");
    }

    #[test]
    fn what_a_program_says_cannot_rewrite_the_terminal() {
        assert_eq!(safe("a\x1b[2Jb\r\nü"), "a\\u{1b}[2Jb\\r\\nü");
    }

    #[test]
    fn commands_can_be_pasted() {
        let arguments = ["bash", "-c", "echo it's", ""].map(str::to_owned);
        assert_eq!(command(&arguments), r"bash -c 'echo it'\''s' ''");
    }

    #[test]
    fn colour_is_only_used_where_asked() {
        assert_eq!(Style { color: false }.paint(Paint::Bad, "x"), "x");
        assert_eq!(Style { color: true }.paint(Paint::Bad, "x"), "\x1b[31mx\x1b[0m");
    }
}
