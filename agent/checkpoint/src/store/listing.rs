//! What checkpoints there are.

use super::{COMMIT, JobStore, OUTCOMES, fence, numbers_in, read_record};
use crate::error::Result;
use crate::format::{CommitRecord, FORMAT, Outcomes};
use crate::stored::Stored;

impl JobStore {
    /// The checkpoints that exist, by number, oldest first. What a fence hides is not among them.
    ///
    /// # Errors
    /// Where the store cannot be listed; a single damaged record is no error.
    pub fn list(&self) -> Result<Vec<Stored>> {
        let fences = self.fences()?;
        let mut stored = Vec::new();
        for seq in numbers_in(&self.checkpoints_dir())? {
            stored.extend(self.stored(&fences, seq)?);
        }
        Ok(stored)
    }

    /// One checkpoint; `None` where it does not exist.
    ///
    /// # Errors
    /// Where the store cannot be read.
    pub fn get(&self, seq: u64) -> Result<Option<Stored>> {
        self.stored(&self.fences()?, seq)
    }

    /// The highest seq ever used as far as the store knows; 0 where there was none.
    ///
    /// Hidden and unfinished checkpoints count, and so does what an epoch set out to write.
    ///
    /// # Errors
    /// Where the store cannot be listed: a guess could use a number twice.
    pub fn highest_seq(&self) -> Result<u64> {
        let used = numbers_in(&self.checkpoints_dir())?.last().copied().unwrap_or(0);
        let epochs = self.epochs()?;
        let begun = epochs.iter().map(|epoch| epoch.first_seq.saturating_sub(1)).max();
        Ok(used.max(begun.unwrap_or(0)))
    }

    fn fences(&self) -> Result<Vec<(u64, u64)>> {
        Ok(self.epochs()?.iter().map(|epoch| (epoch.epoch, epoch.first_seq)).collect())
    }

    fn stored(&self, fences: &[(u64, u64)], seq: u64) -> Result<Option<Stored>> {
        let dir = self.checkpoint_dir(seq);
        let record = match read_record::<CommitRecord>(&dir.join(COMMIT))? {
            None => return Ok(None),
            Some(Err(why)) => return Ok(Some(Stored::Damaged { seq, why })),
            Some(Ok(record)) => Box::new(record),
        };
        if let Some(why) = self.misfit(seq, &record) {
            return Ok(Some(Stored::Damaged { seq, why }));
        }
        if !fence::is_visible(fences, record.epoch, seq) {
            return Ok(None);
        }
        let outcomes = match read_record::<Outcomes>(&dir.join(OUTCOMES))? {
            Some(Ok(outcomes)) => outcomes,
            None => Outcomes::default(),
            Some(Err(why)) => {
                tracing::warn!(job = %self.job(), seq, why, "the record of outcomes is not readable");
                Outcomes::default()
            }
        };
        Ok(Some(Stored::Good { record, outcomes }))
    }

    fn misfit(&self, seq: u64, record: &CommitRecord) -> Option<String> {
        if record.format != FORMAT {
            Some(format!("format {} is not known, only {FORMAT}", record.format))
        } else if record.seq != seq {
            Some(format!("its record is that of seq {}", record.seq))
        } else if record.job != *self.job() {
            Some(format!("it belongs to job {}", record.job))
        } else {
            None
        }
    }
}
