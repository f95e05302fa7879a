//! Where checkpoints are kept: one directory a job, as `docs/format.md` lays it out.
//!
//! A [`JobStore`] lists, opens and deletes what is there; what writes a checkpoint is
//! [`crate::snapshot`]. Every decision about what exists is in [`fence`] and has no IO.

mod check;
mod epoch;
pub mod fence;
mod listing;
mod lock;
mod manifest;

use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use jiff::Timestamp;
use nodus_protocol::JobName;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::durable;
use crate::error::{Context as _, Error, Result};
use crate::format::{FORMAT, JobRecord};

pub use check::check_entry;
pub use epoch::Epoch;
pub use lock::WriterLock;
pub use manifest::ManifestReader;
pub(crate) use manifest::ManifestWriter;

pub use crate::stored::Stored;

/// The largest of the small JSON records that is read.
const MAX_RECORD: u64 = 4 << 20;

/// The checkpoints of one job.
#[derive(Clone, Debug)]
pub struct JobStore {
    root: PathBuf,
    dir: PathBuf,
    record: JobRecord,
}

impl JobStore {
    /// Opens the job's part of the store, and makes it where it is not there yet.
    ///
    /// # Errors
    /// [`Error::Refused`] where the job there belongs to another user.
    pub fn create(store_root: &Path, job: &JobName, uid: u32, now: Timestamp) -> Result<Self> {
        let dir = job_dir(store_root, job);
        durable::make_dirs(&dir)?;
        durable::make_dirs(&dir.join("epochs"))?;
        durable::make_dirs(&dir.join("checkpoints"))?;
        let id = random_id()?;
        let record = JobRecord { format: FORMAT, job: job.clone(), id, created: now, uid };
        durable::publish_new(&dir.join("job.json"), &to_json(&record))?;
        let there = Self::open(store_root, job)?
            .ok_or_else(|| Error::NotFound { job: job.to_string(), seq: None })?;
        if there.record.uid != uid {
            let owner = there.record.uid;
            return Err(Error::Refused(format!(
                "the checkpoints of job {job} in {} belong to user {owner}, not to {uid}",
                store_root.display()
            )));
        }
        Ok(there)
    }

    /// Opens the job's part of the store; `None` where it has none.
    ///
    /// # Errors
    /// [`Error::Refused`] where what is there cannot be understood.
    pub fn open(store_root: &Path, job: &JobName) -> Result<Option<Self>> {
        let dir = job_dir(store_root, job);
        let path = dir.join("job.json");
        let Some(record) = read_record::<JobRecord>(&path)? else { return Ok(None) };
        let record = record.map_err(|why| Error::Refused(format!("{}: {why}", path.display())))?;
        if record.format != FORMAT || record.job != *job {
            let JobRecord { format, job: other, .. } = record;
            return Err(Error::Refused(format!(
                "{}: format {format} of job {other} found, format {FORMAT} of job {job} expected",
                path.display()
            )));
        }
        Ok(Some(Self { root: store_root.to_owned(), dir, record }))
    }

    /// The jobs that have something in the store, by name.
    ///
    /// # Errors
    /// Where the store is there and cannot be listed.
    pub fn jobs(store_root: &Path) -> Result<Vec<JobName>> {
        let jobs = store_root.join("jobs");
        let mut names: Vec<JobName> = names_in(&jobs)?
            .into_iter()
            .filter_map(|name| name.parse().ok())
            .filter(|name: &JobName| jobs.join(name.as_str()).join("job.json").exists())
            .collect();
        names.sort();
        Ok(names)
    }

    /// `job.json`.
    #[must_use]
    pub fn record(&self) -> &JobRecord {
        &self.record
    }

    /// The job.
    #[must_use]
    pub fn job(&self) -> &JobName {
        &self.record.job
    }

    /// The directory of the whole store.
    #[must_use]
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The job's directory.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The directory that holds the checkpoints.
    #[must_use]
    pub fn checkpoints_dir(&self) -> PathBuf {
        self.dir.join("checkpoints")
    }

    /// The directory of a checkpoint, whether or not there is one.
    #[must_use]
    pub fn checkpoint_dir(&self, seq: u64) -> PathBuf {
        self.checkpoints_dir().join(seq.to_string())
    }

    /// The data of a checkpoint.
    #[must_use]
    pub fn archive_path(&self, seq: u64) -> PathBuf {
        self.checkpoint_dir(seq).join(ARCHIVE)
    }

    /// The manifest of a checkpoint.
    #[must_use]
    pub fn manifest_path(&self, seq: u64) -> PathBuf {
        self.checkpoint_dir(seq).join(MANIFEST)
    }

    /// Deletes a checkpoint under an epoch that is still the newest: at once for every reader.
    ///
    /// # Errors
    /// [`Error::Fenced`] where a later epoch exists.
    pub fn delete_checkpoint(&self, epoch: &Epoch, seq: u64) -> Result<()> {
        self.check_fence(epoch)?;
        durable::remove_dir(&self.checkpoint_dir(seq))
    }

    /// Replaces a small record of a checkpoint, such as `outcomes.json`, under the newest epoch.
    ///
    /// # Errors
    /// [`Error::Fenced`] where a later epoch exists.
    pub fn replace_record<T: Serialize>(
        &self,
        epoch: &Epoch,
        seq: u64,
        name: &str,
        record: &T,
    ) -> Result<()> {
        self.check_fence(epoch)?;
        durable::publish(&self.checkpoint_dir(seq).join(name), &to_json(record))
    }

    /// Deletes everything the store has of the job.
    ///
    /// # Errors
    /// Where something could not be removed.
    pub fn delete_job(self) -> Result<()> {
        durable::remove_dir(&self.dir)
    }
}

/// The name of the data in a checkpoint's directory.
pub(crate) const ARCHIVE: &str = "data-0.tar.zst";
/// The name of the manifest.
pub(crate) const MANIFEST: &str = "files.jsonl.zst";
/// The name of the commit record.
pub(crate) const COMMIT: &str = "checkpoint.json";
/// The name of the record of outcomes.
pub const OUTCOMES: &str = "outcomes.json";

fn job_dir(store_root: &Path, job: &JobName) -> PathBuf {
    store_root.join("jobs").join(job.as_str())
}

/// 128 random bits in hex.
fn random_id() -> Result<String> {
    let mut bytes = [0; 16];
    let source = Path::new("/dev/urandom");
    File::open(source).and_then(|mut file| file.read_exact(&mut bytes)).context("read", source)?;
    Ok(bytes.iter().fold(String::new(), |text, byte| format!("{text}{byte:02x}")))
}

/// A record as it is stored: one JSON object and a line feed.
pub(crate) fn to_json<T: Serialize>(record: &T) -> Vec<u8> {
    let mut json = serde_json::to_vec(record).expect("records have only text keys");
    json.push(b'\n');
    json
}

/// Reads a small record; `None` where there is none, the inner error where it is not one.
pub(crate) fn read_record<T: DeserializeOwned>(
    path: &Path,
) -> Result<Option<std::result::Result<T, String>>> {
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if is_absent(&error) => return Ok(None),
        Err(error) => return Err(Error::io("open", path, error)),
    };
    let mut json = Vec::new();
    file.take(MAX_RECORD + 1).read_to_end(&mut json).context("read", path)?;
    if json.len() as u64 > MAX_RECORD {
        return Ok(Some(Err(format!("more than the {MAX_RECORD} bytes that a record may have"))));
    }
    Ok(Some(serde_json::from_slice(&json).map_err(|error| error.to_string())))
}

/// Whether a name simply is not there; a store that does not answer is another matter.
fn is_absent(error: &std::io::Error) -> bool {
    matches!(error.kind(), std::io::ErrorKind::NotFound | std::io::ErrorKind::NotADirectory)
}

/// The names in a directory of the store that are text; a directory that is not there has none.
fn names_in(dir: &Path) -> Result<Vec<String>> {
    let entries = match std::fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(Error::io("list", dir, error)),
    };
    let mut names = Vec::new();
    for entry in entries {
        names.extend(entry.context("list", dir)?.file_name().into_string());
    }
    Ok(names)
}

/// The numbers among the names of a directory of a job that exists, ascending.
fn numbers_in(dir: &Path) -> Result<Vec<u64>> {
    // C13: the directory is made with the job, so where it is missing nothing can be concluded.
    if !dir.is_dir() {
        let missing = std::io::Error::from(std::io::ErrorKind::NotFound);
        return Err(Error::io("list", dir, missing));
    }
    let mut numbers: Vec<u64> =
        names_in(dir)?.iter().filter_map(|name| fence::parse_number(name)).collect();
    numbers.sort_unstable();
    Ok(numbers)
}
