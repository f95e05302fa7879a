//! Progress of long copies, for whoever watches a terminal.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressState, ProgressStyle};
use nodus_protocol::units::ByteSize;

/// Often enough to look alive, seldom enough to cost nothing.
const TICK: Duration = Duration::from_millis(200);

/// Bytes, rate and time left on standard error; nothing where that is no terminal.
#[derive(Debug)]
pub(crate) struct Progress(ProgressBar);

impl Progress {
    /// Draws nothing before the first bytes are known.
    #[must_use]
    pub(crate) fn new(visible: bool, what: &str) -> Self {
        if !visible {
            return Self(ProgressBar::hidden());
        }
        let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
        bar.set_style(style("{spinner} {msg}  {copied}  {rate}  {elapsed}"));
        bar.set_message(what.to_owned());
        bar.enable_steady_tick(TICK);
        Self(bar)
    }

    /// Says what is being done.
    pub(crate) fn stage(&self, what: impl Into<String>) {
        self.0.set_message(what.into());
    }

    /// Says how far it is.
    pub(crate) fn set(&self, copied: u64, total: Option<u64>) {
        if let Some(total) = total
            && self.0.length() != Some(total)
        {
            let bar = "{spinner} {msg}  [{wide_bar}] {copied} of {whole}  {rate}  {eta} left";
            self.0.set_style(style(bar));
            self.0.set_length(total);
        }
        self.0.set_position(copied);
    }
}

impl Drop for Progress {
    /// What it drew goes away: the result says the rest.
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}

fn style(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template)
        .expect("the templates here are valid")
        .progress_chars("=> ")
        .with_key("copied", |state: &ProgressState, out: &mut dyn std::fmt::Write| {
            let _ = out.write_str(&ByteSize(state.pos()).approx());
        })
        .with_key("whole", |state: &ProgressState, out: &mut dyn std::fmt::Write| {
            let _ = out.write_str(&ByteSize(state.len().unwrap_or_default()).approx());
        })
        .with_key("rate", |state: &ProgressState, out: &mut dyn std::fmt::Write| {
            let _ = write!(out, "{}/s", ByteSize(whole(state.per_sec())).approx());
        })
}

/// Display only: a rate beyond what fits is shown as the largest that does.
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
fn whole(rate: f64) -> u64 {
    rate as u64
}
