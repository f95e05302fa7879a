//! The requests, one method each.

use std::time::Duration;

use hyper::Method;
use nodus_protocol::JobName;
use nodus_protocol::checkpoint::CheckpointInfo;
use nodus_protocol::control::{
    CheckpointDone, CheckpointNow, JobDetail, JobInfo, Notice, RestoreDone, RestoreTo, Submit,
    VerifyDone,
};

use super::{Client, Events, QUICK, Stream, to_body};
use crate::error::{Error, Result};

/// A listing may have to read the whole store of a job.
const LISTING: Duration = Duration::from_secs(120);

impl Client {
    /// Every job that the caller may see.
    ///
    /// # Errors
    /// As for each request here: no agent, no answer in time, or a problem the agent describes.
    pub async fn jobs(&self) -> Result<Vec<JobInfo>> {
        self.json(Method::GET, "/v1/jobs", None, QUICK).await
    }

    /// Gives the agent a job.
    ///
    /// # Errors
    /// As [`Client::jobs`].
    pub async fn submit(&self, submit: &Submit) -> Result<JobInfo> {
        self.json(Method::POST, "/v1/jobs", Some(to_body(submit)), QUICK).await
    }

    /// Everything about one job.
    ///
    /// # Errors
    /// As [`Client::jobs`].
    pub async fn job(&self, name: &JobName) -> Result<JobDetail> {
        self.json(Method::GET, &format!("/v1/jobs/{name}"), None, QUICK).await
    }

    /// Deletes a job and its checkpoints.
    ///
    /// # Errors
    /// As [`Client::jobs`].
    pub async fn delete(&self, name: &JobName) -> Result<()> {
        let path = format!("/v1/jobs/{name}");
        self.answer(Method::DELETE, &path, None, LISTING).await.map(drop)
    }

    /// Takes a checkpoint, stops the job, and returns when both are over.
    ///
    /// # Errors
    /// As [`Client::jobs`].
    pub async fn suspend(&self, name: &JobName, within: Duration) -> Result<CheckpointDone> {
        self.json(Method::POST, &format!("/v1/jobs/{name}/suspend"), None, within).await
    }

    /// Starts the next attempt.
    ///
    /// # Errors
    /// As [`Client::jobs`].
    pub async fn resume(&self, name: &JobName) -> Result<()> {
        let path = format!("/v1/jobs/{name}/resume");
        self.answer(Method::POST, &path, None, QUICK).await.map(drop)
    }

    /// Ends the job for good, and returns when its last checkpoint is over.
    ///
    /// # Errors
    /// As [`Client::jobs`].
    pub async fn stop(&self, name: &JobName, within: Duration) -> Result<CheckpointDone> {
        self.json(Method::POST, &format!("/v1/jobs/{name}/stop"), None, within).await
    }

    /// Takes a checkpoint, and returns when it is over.
    ///
    /// # Errors
    /// As [`Client::jobs`].
    pub async fn checkpoint(
        &self,
        name: &JobName,
        request: CheckpointNow,
        within: Duration,
    ) -> Result<CheckpointDone> {
        let path = format!("/v1/jobs/{name}/checkpoint");
        self.json(Method::POST, &path, Some(to_body(&request)), within).await
    }

    /// Every checkpoint of a job, oldest first, also those that were not stored.
    ///
    /// # Errors
    /// As [`Client::jobs`].
    pub async fn checkpoints(&self, name: &JobName) -> Result<Vec<CheckpointInfo>> {
        self.json(Method::GET, &format!("/v1/jobs/{name}/checkpoints"), None, LISTING).await
    }

    /// One checkpoint.
    ///
    /// # Errors
    /// As [`Client::jobs`].
    pub async fn checkpoint_info(&self, name: &JobName, seq: u64) -> Result<CheckpointInfo> {
        let path = format!("/v1/jobs/{name}/checkpoints/{seq}");
        self.json(Method::GET, &path, None, LISTING).await
    }

    /// The number of the newest checkpoint that can be restored.
    ///
    /// # Errors
    /// As [`Client::jobs`], and where there is none.
    pub async fn newest_checkpoint(&self, name: &JobName) -> Result<u64> {
        let newest = self.job(name).await?.info.latest_checkpoint;
        newest
            .map(|checkpoint| checkpoint.seq)
            .ok_or_else(|| Error::NotFound(format!("job/{name} has no checkpoint yet")))
    }

    /// Deletes one checkpoint.
    ///
    /// # Errors
    /// As [`Client::jobs`].
    pub async fn delete_checkpoint(&self, name: &JobName, seq: u64) -> Result<()> {
        let path = format!("/v1/jobs/{name}/checkpoints/{seq}");
        self.answer(Method::DELETE, &path, None, LISTING).await.map(drop)
    }

    /// Compares a checkpoint's data with its hashes.
    ///
    /// # Errors
    /// As [`Client::jobs`]; damage is no error here.
    pub async fn verify(&self, name: &JobName, seq: u64, within: Duration) -> Result<VerifyDone> {
        let path = format!("/v1/jobs/{name}/checkpoints/{seq}/verify");
        self.json(Method::POST, &path, None, within).await
    }

    /// A checkpoint as one `.tar.zst`.
    ///
    /// # Errors
    /// As [`Client::jobs`].
    pub async fn export(&self, name: &JobName, seq: u64) -> Result<Stream> {
        self.stream(&format!("/v1/jobs/{name}/checkpoints/{seq}/export")).await
    }

    /// Restores a checkpoint on the agent's node.
    ///
    /// # Errors
    /// As [`Client::jobs`].
    pub async fn restore(
        &self,
        name: &JobName,
        request: &RestoreTo,
        within: Duration,
    ) -> Result<RestoreDone> {
        let path = format!("/v1/jobs/{name}/restore");
        self.json(Method::POST, &path, Some(to_body(request)), within).await
    }

    /// What the program wrote in one attempt, or the newest; following ends with the attempt.
    ///
    /// # Errors
    /// As [`Client::jobs`].
    pub async fn logs(&self, name: &JobName, attempt: Option<u32>, follow: bool) -> Result<Stream> {
        let mut path = format!("/v1/jobs/{name}/logs?follow={follow}");
        if let Some(attempt) = attempt {
            path.push_str(&format!("&attempt={attempt}"));
        }
        self.stream(&path).await
    }

    /// What happens to a job from now on.
    ///
    /// # Errors
    /// As [`Client::jobs`].
    pub async fn events(&self, name: &JobName) -> Result<Events> {
        self.stream(&format!("/v1/jobs/{name}/events")).await.map(Events::new)
    }

    /// Says that the capacity of the agent's node is about to go away.
    ///
    /// # Errors
    /// As [`Client::jobs`].
    pub async fn notice(&self, notice: &Notice) -> Result<()> {
        self.answer(Method::POST, "/v1/notices", Some(to_body(notice)), QUICK).await.map(drop)
    }
}
