//! `run` with an agent.

use std::fs::File;
use std::io::{self, Read as _};
use std::path::Path;

use nodus_protocol::control::Submit;
use nodus_protocol::spec::SpecFile;

use super::Session;
use crate::args::Run;
use crate::console::{Surroundings, note};
use crate::error::{Error, Result};
use crate::exit::{self, Exit};
use crate::render;

/// A job description is a page; what is larger is another file.
const MAX_DESCRIPTION: u64 = 1 << 20;

impl Session {
    pub(super) async fn run(&self, run: &Run, around: &Surroundings) -> Result<Exit> {
        let info = self.client.submit(&submission(run, around)?).await?;
        if run.detach {
            let text = || format!("job/{} is submitted", info.name);
            self.console.result(&info, text)?;
            return Ok(Exit::DONE);
        }
        tokio::select! {
            detail = self.follow(&info.name, 1) => {
                let detail = detail?;
                note(&render::state(&detail.info));
                Ok(exit::of_job(&detail))
            }
            pressed = tokio::signal::ctrl_c() => {
                pressed.map_err(|source| Error::io("wait for", "Ctrl-C", source))?;
                let name = &info.name;
                note(&format!(
                    "job/{name} goes on without this terminal; `nodusctl logs -f job/{name}` \
                     follows it, `nodusctl suspend job/{name}` suspends it"
                ));
                Ok(Exit::INTERRUPTED)
            }
        }
    }
}

/// The job that the file and the flags describe, in the environment of whoever typed the command.
pub(super) fn submission(run: &Run, around: &Surroundings) -> Result<Submit> {
    let file = run.file.as_deref().map(description).transpose()?.unwrap_or_default();
    let spec = run.over(file, &around.here).validate()?;
    let (environment, left_out) = around.text_environment();
    if !left_out.is_empty() {
        note(&format!("not text and left out of the job: {}", left_out.join(", ")));
    }
    Ok(Submit { spec, environment })
}

fn description(path: &Path) -> Result<SpecFile> {
    let what = path.display();
    let cannot = |source| Error::io("read", what, source);
    let mut text = String::new();
    if path == Path::new("-") {
        io::stdin().lock().take(MAX_DESCRIPTION + 1).read_to_string(&mut text)
    } else {
        let file = File::open(path).map_err(|source| Error::io("read", path.display(), source))?;
        file.take(MAX_DESCRIPTION + 1).read_to_string(&mut text)
    }
    .map_err(cannot)?;
    if text.len() as u64 > MAX_DESCRIPTION {
        let text = format!("{} is too large for a job description", path.display());
        return Err(Error::Usage(text));
    }
    Ok(SpecFile::from_yaml(&text)?)
}
