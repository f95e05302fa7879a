//! Epochs: who may write, and who no longer may.

use jiff::Timestamp;

use super::{JobStore, numbers_in, read_record, to_json};
use crate::durable;
use crate::error::{Error, Result};
use crate::format::{EpochRecord, FORMAT};

/// Times to try again when others create epochs at the same moment.
const RACES: usize = 100;

/// The right to write, as long as no later epoch exists.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Epoch(EpochRecord);

impl Epoch {
    /// The record in the store.
    #[must_use]
    pub fn record(&self) -> &EpochRecord {
        &self.0
    }

    /// Its number.
    #[must_use]
    pub fn number(&self) -> u64 {
        self.0.epoch
    }
}

impl JobStore {
    /// Begins a new epoch for an attempt: everything older stops being able to write.
    ///
    /// # Errors
    /// Where the epochs cannot be listed or the record cannot be made.
    pub fn begin_epoch(
        &self,
        attempt: u32,
        first_seq: u64,
        node: &str,
        now: Timestamp,
    ) -> Result<Epoch> {
        for _ in 0..RACES {
            let epoch = self.epoch_numbers()?.last().map_or(1, |last| last + 1);
            let node = node.to_owned();
            let record =
                EpochRecord { format: FORMAT, epoch, attempt, first_seq, node, started: now };
            let path = self.dir().join("epochs").join(epoch.to_string());
            if durable::publish_new(&path, &to_json(&record))? {
                return Ok(Epoch(record));
            }
        }
        Err(Error::Refused(format!(
            "others began {RACES} epochs of job {} at the same time",
            self.job()
        )))
    }

    /// The epoch that exists under this number, for an agent that takes a running attempt over.
    ///
    /// # Errors
    /// [`Error::Fenced`] where a later one exists, [`Error::Refused`] where this one does not.
    pub fn resume_epoch(&self, number: u64) -> Result<Epoch> {
        let record = self.epochs()?.into_iter().find(|record| record.epoch == number);
        let epoch = record.map(Epoch).ok_or_else(|| {
            Error::Refused(format!("job {} has no epoch {number} in this store", self.job()))
        })?;
        self.check_fence(&epoch)?;
        Ok(epoch)
    }

    /// All epochs, ascending.
    ///
    /// # Errors
    /// Where one cannot be read: what it hides is unknown then, so nothing can be concluded.
    pub fn epochs(&self) -> Result<Vec<EpochRecord>> {
        self.epoch_numbers()?.into_iter().map(|number| self.read_epoch(number)).collect()
    }

    /// Looks whether this epoch may still write.
    ///
    /// # Errors
    /// [`Error::Fenced`] where a later epoch exists.
    pub fn check_fence(&self, epoch: &Epoch) -> Result<()> {
        match self.epoch_numbers()?.last() {
            Some(&current) if current > epoch.number() => {
                Err(Error::Fenced { ours: epoch.number(), current })
            }
            _ => Ok(()),
        }
    }

    fn epoch_numbers(&self) -> Result<Vec<u64>> {
        numbers_in(&self.dir().join("epochs"))
    }

    fn read_epoch(&self, number: u64) -> Result<EpochRecord> {
        let path = self.dir().join("epochs").join(number.to_string());
        let refuse = |why: &str| Error::Refused(format!("{}: {why}", path.display()));
        let record: EpochRecord = read_record(&path)?
            .ok_or_else(|| refuse("it went away"))?
            .map_err(|why| refuse(&why))?;
        if record.epoch != number || record.format != FORMAT {
            return Err(refuse("its number or format is not the one expected"));
        }
        Ok(record)
    }
}
