//! Checkpoints of an agent's jobs.

use jiff::Timestamp;
use nodus_protocol::JobName;
use nodus_protocol::checkpoint::CheckpointState;
use nodus_protocol::control::{CheckpointNow, RestoreTo, VerifyDone};

use super::Session;
use super::stored::refuse_occupied;
use crate::args::{Now, Restore, Verify};
use crate::console::{Console, Surroundings};
use crate::error::{Error, Result};
use crate::exit::{self, Exit};
use crate::progress::Progress;
use crate::render;

impl Session {
    pub(super) async fn checkpoint_now(&self, now: &Now) -> Result<Exit> {
        let job = &now.target.job.0;
        let request = CheckpointNow { urgent: now.urgent };
        let taken = self.client.checkpoint(job, request, now.target.wait.timeout);
        let done = self.watching(job, taken).await?;
        self.console.result(&done, || render::taken(job, &done))?;
        Ok(exit::of_checkpoint(done.outcome.as_ref()))
    }

    pub(super) async fn checkpoint_list(&self, job: &JobName) -> Result<Exit> {
        let list = self.client.checkpoints(job).await?;
        let text = || render::checkpoint_list(&list, Timestamp::now(), self.console.style);
        self.console.result(&list, text)?;
        Ok(Exit::DONE)
    }

    pub(super) async fn checkpoint_show(&self, job: &JobName, seq: Option<u64>) -> Result<Exit> {
        let seq = match seq {
            Some(seq) => seq,
            None => self.client.newest_checkpoint(job).await?,
        };
        let info = self.client.checkpoint_info(job, seq).await?;
        let text = || render::checkpoint(&info, Timestamp::now(), self.console.style);
        self.console.result(&info, text)?;
        Ok(Exit::DONE)
    }

    pub(super) async fn checkpoint_verify(&self, verify: &Verify) -> Result<Exit> {
        let job = &verify.job.0;
        let seqs = match verify.seq {
            Some(seq) => vec![seq],
            None => self.stored_seqs(job).await?,
        };
        let bar = Progress::new(self.console.progress, "");
        let mut found = Vec::with_capacity(seqs.len());
        for seq in seqs {
            bar.stage(format!("job/{job} checkpoint {seq}"));
            found.push(self.client.verify(job, seq, verify.wait.timeout).await?);
        }
        drop(bar);
        checked(&found, &self.console)
    }

    /// Every checkpoint that has data.
    async fn stored_seqs(&self, job: &JobName) -> Result<Vec<u64>> {
        let list = self.client.checkpoints(job).await?;
        let stored = list.iter().filter(|info| {
            !matches!(info.state, CheckpointState::Skipped | CheckpointState::Failed)
        });
        let seqs: Vec<u64> = stored.map(|info| info.seq).collect();
        if seqs.is_empty() {
            return Err(Error::NotFound(format!("job/{job} has no checkpoint yet")));
        }
        Ok(seqs)
    }

    pub(super) async fn checkpoint_delete(&self, job: &JobName, seq: u64) -> Result<Exit> {
        self.client.delete_checkpoint(job, seq).await?;
        deleted_checkpoint(job, seq, &self.console)
    }

    pub(super) async fn restore(&self, restore: &Restore, around: &Surroundings) -> Result<Exit> {
        let job = &restore.job.0;
        let to = around.here.join(&restore.to);
        refuse_occupied(&to)?;
        let to = to.to_str().ok_or_else(|| {
            Error::Usage(format!("--to {}: only text can be sent to an agent", to.display()))
        })?;
        let request = RestoreTo { seq: restore.seq, to: to.to_owned() };
        let bar = Progress::new(self.console.progress, &format!("restoring job/{job}"));
        let done = self.client.restore(job, &request, restore.wait.timeout).await?;
        drop(bar);
        self.console.result(&done, || render::restored(&done))?;
        Ok(Exit::DONE)
    }
}

/// Says that a checkpoint is gone.
pub(super) fn deleted_checkpoint(job: &JobName, seq: u64, console: &Console) -> Result<Exit> {
    let value = serde_json::json!({ "deleted": seq });
    console.result(&value, || format!("checkpoint {seq} of job/{job} is deleted"))?;
    Ok(Exit::DONE)
}

/// Says what was found; anything that is wrong makes it a failure.
pub(super) fn checked(found: &[VerifyDone], console: &Console) -> Result<Exit> {
    console.result(found, || found.iter().map(render::verified).collect())?;
    let sound = found.iter().all(|done| done.problems.is_empty());
    Ok(if sound { Exit::DONE } else { Exit::FAILED })
}
