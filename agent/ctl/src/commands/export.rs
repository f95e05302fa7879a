//! `checkpoint export`: one archive, to a file that appears when it is whole, or to a pipe.

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use nodus_protocol::units::ByteSize;
use tempfile::NamedTempFile;

use super::Session;
use crate::args::Export;
use crate::client::Stream;
use crate::console::Console;
use crate::error::{Error, Result};
use crate::exit::Exit;
use crate::progress::Progress;

/// What a new file may be used for; the umask takes its part.
const MODE: u32 = 0o666;

impl Session {
    pub(super) async fn checkpoint_export(&self, export: &Export) -> Result<Exit> {
        let job = &export.job.0;
        let mut target = Target::new(export.file.as_deref(), &self.console)?;
        let seq = match export.seq {
            Some(seq) => seq,
            None => self.client.newest_checkpoint(job).await?,
        };
        let stream = self.client.export(job, seq).await?;
        let bar = Progress::new(self.console.progress, &format!("job/{job} checkpoint {seq}"));
        tokio::select! {
            copied = copy(stream, &mut target, &bar) => copied?,
            // Leaving by an error takes the unfinished file away.
            _ = tokio::signal::ctrl_c() => return Ok(Exit::INTERRUPTED),
        }
        drop(bar);
        finish(target, &self.console)
    }
}

async fn copy(mut stream: Stream, target: &mut Target, bar: &Progress) -> Result<()> {
    let mut copied = 0;
    while let Some(bytes) = stream.next().await? {
        target.write_all(&bytes).map_err(|source| target.cannot("write to", source))?;
        copied += bytes.len() as u64;
        bar.set(copied, stream.length);
    }
    Ok(())
}

/// Makes the file appear and says so.
pub(super) fn finish(target: Target, console: &Console) -> Result<Exit> {
    if let Some((path, bytes)) = target.publish()? {
        let value = serde_json::json!({ "file": path, "bytes": bytes });
        let text = || format!("{}: {}", path.display(), ByteSize(bytes).approx());
        console.result(&value, text)?;
    }
    Ok(Exit::DONE)
}

/// Where an archive goes.
#[derive(Debug)]
pub(super) enum Target {
    /// Standard output.
    Pipe(io::Stdout),
    /// A file under a temporary name beside its own.
    File {
        /// The file it is going to be.
        path: PathBuf,
        /// What is written so far; removed when dropped.
        staged: NamedTempFile,
    },
}

impl Target {
    /// The file, or standard output where that is no terminal.
    pub(super) fn new(file: Option<&Path>, console: &Console) -> Result<Self> {
        let pipe = file.is_none_or(|file| file == Path::new("-"));
        match file {
            None if console.stdout_is_terminal => {
                Err(Error::Usage("an archive is nothing for a terminal: give -O FILE".to_owned()))
            }
            Some(path) if !pipe => Self::file(path),
            _ => Ok(Self::Pipe(io::stdout())),
        }
    }

    fn file(path: &Path) -> Result<Self> {
        use std::os::unix::fs::PermissionsExt as _;
        let staged = tempfile::Builder::new()
            .prefix(".nodus-export-")
            .permissions(std::fs::Permissions::from_mode(MODE))
            .tempfile_in(directory(path))
            .map_err(|source| Error::io("write to", path.display(), source))?;
        Ok(Self::File { path: path.to_owned(), staged })
    }

    /// Makes a file appear under its name, durably, and returns it with its size.
    pub(super) fn publish(self) -> Result<Option<(PathBuf, u64)>> {
        match self {
            Self::Pipe(mut out) => {
                let flushed = out.flush();
                flushed.map_err(|source| Error::io("write to", "standard output", source))?;
                Ok(None)
            }
            Self::File { path, staged } => {
                let cannot = |source| Error::io("write", path.display(), source);
                staged.as_file().sync_all().map_err(cannot)?;
                let file = staged.persist(&path).map_err(|error| cannot(error.error))?;
                let directory = std::fs::File::open(directory(&path)).map_err(cannot)?;
                directory.sync_all().map_err(cannot)?;
                let bytes = file.metadata().map_err(cannot)?.len();
                Ok(Some((path, bytes)))
            }
        }
    }

    /// An error about it.
    pub(super) fn cannot(&self, action: &'static str, source: io::Error) -> Error {
        match self {
            Self::Pipe(_) => Error::io(action, "standard output", source),
            Self::File { path, .. } => Error::io(action, path.display(), source),
        }
    }
}

fn directory(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

impl Write for Target {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Pipe(out) => out.write(bytes),
            Self::File { staged, .. } => staged.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::Pipe(out) => out.flush(),
            Self::File { staged, .. } => staged.flush(),
        }
    }
}
