//! Jobs of an agent.

use std::future::Future;
use std::time::Duration;

use jiff::Timestamp;
use nodus_protocol::JobName;
use nodus_protocol::control::{CheckpointProgress, Notice};

use super::Session;
use crate::args::Slow;
use crate::error::Result;
use crate::exit::{self, Exit};
use crate::progress::Progress;
use crate::render;

/// How often a watched checkpoint is looked at.
const LOOK: Duration = Duration::from_millis(500);

impl Session {
    pub(super) async fn list(&self) -> Result<Exit> {
        let jobs = self.client.jobs().await?;
        let text = || render::job_list(&jobs, Timestamp::now(), self.console.style);
        self.console.result(&jobs, text)?;
        Ok(Exit::DONE)
    }

    pub(super) async fn describe(&self, job: &JobName) -> Result<Exit> {
        let detail = self.client.job(job).await?;
        let text = || render::describe(&detail, Timestamp::now(), self.console.style);
        self.console.result(&detail, text)?;
        Ok(Exit::DONE)
    }

    pub(super) async fn suspend(&self, target: &Slow) -> Result<Exit> {
        let job = &target.job.0;
        let suspended = self.client.suspend(job, target.wait.timeout);
        let done = self.watching(job, suspended).await?;
        self.console.result(&done, || render::taken(job, &done))?;
        Ok(exit::of_last_checkpoint(done.outcome.as_ref()))
    }

    pub(super) async fn resume(&self, job: &JobName) -> Result<Exit> {
        self.client.resume(job).await?;
        self.print_state(job).await
    }

    pub(super) async fn stop(&self, target: &Slow) -> Result<Exit> {
        let job = &target.job.0;
        let done = self.watching(job, self.client.stop(job, target.wait.timeout)).await?;
        self.console.result(&done, || render::taken(job, &done))?;
        Ok(exit::of_last_checkpoint(done.outcome.as_ref()))
    }

    pub(super) async fn delete(&self, job: &JobName) -> Result<Exit> {
        self.client.delete(job).await?;
        let value = serde_json::json!({ "deleted": job });
        self.console.result(&value, || format!("job/{job} and its checkpoints are deleted"))?;
        Ok(Exit::DONE)
    }

    pub(super) async fn reclaim(&self, within: Option<Duration>) -> Result<Exit> {
        let notice = Notice { r#in: within, source: "nodusctl".to_owned() };
        self.client.notice(&notice).await?;
        let text = || "the agent takes an urgent checkpoint of every job on its node".to_owned();
        self.console.result(&notice, text)?;
        Ok(Exit::DONE)
    }

    pub(super) async fn events(&self, job: &JobName) -> Result<Exit> {
        let mut events = self.client.events(job).await?;
        while let Some(event) = events.next().await? {
            let line = if self.console.is_json() {
                serde_json::to_string(&event).ok()
            } else {
                let at = event.at.strftime("%Y-%m-%dT%H:%M:%SZ");
                render::event_line(&event).map(|line| format!("{at} {line}"))
            };
            if let Some(line) = line {
                self.console.bytes(format!("{line}\n").as_bytes())?;
            }
        }
        Ok(Exit::DONE)
    }

    async fn print_state(&self, job: &JobName) -> Result<Exit> {
        let info = self.client.job(job).await?.info;
        self.console.result(&info, || render::state(&info))?;
        Ok(Exit::DONE)
    }

    /// Waits for a request in which the agent takes a checkpoint, and shows how far that is.
    pub(super) async fn watching<T>(
        &self,
        job: &JobName,
        request: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        if !self.console.progress {
            return request.await;
        }
        let bar = Progress::new(true, &format!("job/{job}"));
        let look = async {
            loop {
                tokio::time::sleep(LOOK).await;
                // A look that fails shows nothing; the request itself reports what is wrong.
                let detail = self.client.job(job).await.ok();
                if let Some(copy) = detail.and_then(|detail| detail.in_progress) {
                    show(&bar, job, &copy);
                }
            }
        };
        tokio::select! {
            answer = request => answer,
            () = look => unreachable!("looking never ends"),
        }
    }
}

fn show(bar: &Progress, job: &JobName, copy: &CheckpointProgress) {
    bar.stage(format!("job/{job} checkpoint {} {:?}", copy.seq, copy.stage));
    bar.set(copy.copied, copy.total);
}
