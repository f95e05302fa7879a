//! The interruptions of this node, kept over restarts and reboots.

use std::path::PathBuf;
use std::sync::Mutex;
use std::time::Duration;

use nodus_checkpoint::durable;

use crate::cadence::{InterruptionHistory, Prior};

use super::{Settings, lock};

/// What this node has seen, and where that is written down.
#[derive(Debug)]
pub struct History {
    /// Held for a moment only: every job looks at it all the time.
    seen: Mutex<InterruptionHistory>,
    /// Held while it is written.
    path: Mutex<Option<PathBuf>>,
}

impl History {
    /// Reads what was written down; one that cannot be understood begins anew, since it only
    /// improves an assumption.
    pub fn load(settings: &Settings) -> Self {
        let path = settings.history.clone();
        let text = path.as_ref().and_then(|path| std::fs::read(path).ok());
        let seen = text.map(|text| serde_json::from_slice(&text));
        let seen = seen.unwrap_or_else(|| Ok(InterruptionHistory::default()));
        let seen = seen.unwrap_or_else(|error| {
            tracing::warn!(%error, ?path, "the record of interruptions cannot be read, and begins anew");
            InterruptionHistory::default()
        });
        Self { seen: Mutex::new(seen), path: Mutex::new(path) }
    }

    /// M.
    #[must_use]
    pub fn mean_between(&self, prior: &Prior) -> Duration {
        lock(&self.seen).mean_between(prior)
    }

    /// Adds how long an attempt ran, and whether it was taken away.
    pub fn remember(&self, ran: Duration, interrupted: bool) {
        let mut seen = lock(&self.seen);
        seen.up(ran);
        if interrupted {
            seen.interrupted();
        }
        drop(seen);
        let path = lock(&self.path);
        let Some(path) = &*path else { return };
        // Looked at again, so that the last to write writes the newest.
        let text = serde_json::to_vec(&*lock(&self.seen)).expect("two numbers");
        let made = path.parent().map_or(Ok(()), durable::make_dirs);
        if let Err(error) = made.and_then(|()| durable::publish(path, &text)) {
            let error = error.chain();
            tracing::warn!(error, "cannot write down the interruptions of this node");
        }
    }
}
