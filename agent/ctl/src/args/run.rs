//! `run`: flags over a job description, into the one type that both have.

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser as _};
use nodus_protocol::spec::{Continuity, SizeText, SpecFile};

/// `run`.
#[derive(Args, Debug, Default)]
pub struct Run {
    /// Read the job description from this YAML file; - is standard input. Flags win over it
    #[arg(short, long, value_name = "FILE")]
    pub file: Option<PathBuf>,
    /// The job's name
    #[arg(long)]
    pub name: Option<String>,
    /// A directory to save; may be given more than once [default: /nodus/state]
    #[arg(long, value_name = "PATH")]
    pub checkpoint: Vec<String>,
    /// When to take checkpoints: auto, or 1m to 6h
    #[arg(long, value_name = "auto|DURATION")]
    pub interval: Option<String>,
    /// The most that one checkpoint may hold, such as 20Gi
    #[arg(long, value_name = "SIZE")]
    pub max_size: Option<String>,
    /// What happens to the files between two attempts
    #[arg(long, value_name = "C", ignore_case = true, value_parser = continuity_parser())]
    pub continuity: Option<Continuity>,
    /// How often a program that fails is started again; interruptions never count
    #[arg(long, value_name = "N")]
    pub max_retries: Option<u32>,
    /// Processors the job asks for
    #[arg(long, value_name = "N")]
    pub cpu: Option<u32>,
    /// A variable for the program; may be given more than once
    #[arg(long, value_name = "K=V", value_parser = variable)]
    pub env: Vec<(String, String)>,
    /// Where the command starts [default: the current directory]
    #[arg(long, value_name = "DIR")]
    pub workdir: Option<PathBuf>,
    /// Return as soon as the job is accepted
    #[arg(short, long, conflicts_with = "standalone")]
    pub detach: bool,
    /// Run in this process, without an agent; Ctrl-C suspends, the same command again resumes
    #[arg(long)]
    pub standalone: bool,
    /// Where a standalone run keeps its files.
    #[command(flatten)]
    pub places: Places,
    /// How long this process has between SIGTERM and its end, in a standalone run
    #[arg(
        long,
        value_name = "DURATION",
        default_value = "30s",
        value_parser = nodus_protocol::units::parse_duration,
        requires = "standalone"
    )]
    pub grace: Duration,
    /// Show every event of a standalone run
    #[arg(short, long, requires = "standalone")]
    pub verbose: bool,
    /// The program and its arguments
    #[arg(last = true, value_name = "COMMAND")]
    pub command: Vec<String>,
}

/// Where a standalone run keeps its files.
#[derive(Args, Clone, Debug, Default)]
pub struct Places {
    /// Keep checkpoints here [default: ~/.local/state/nodus/store]
    #[arg(long, value_name = "DIR", requires = "standalone")]
    pub store: Option<PathBuf>,
    /// Keep jobs' own directories here: /nodus/state of job N is DIR/N/state
    /// [default: ~/.local/state/nodus/jobs]
    #[arg(long, value_name = "DIR", requires = "standalone")]
    pub state_root: Option<PathBuf>,
}

fn continuity_parser() -> impl clap::builder::TypedValueParser<Value = Continuity> {
    PossibleValuesParser::new(["Checkpointed", "Restartable", "Ephemeral"]).map(|name| {
        match name.to_ascii_lowercase().as_str() {
            "restartable" => Continuity::Restartable,
            "ephemeral" => Continuity::Ephemeral,
            _ => Continuity::Checkpointed,
        }
    })
}

fn variable(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
        _ => Err("a name, =, and a value is allowed, such as STEPS=120".to_owned()),
    }
}

impl Run {
    /// The description with the flags over it. Paths replace the description's, variables are
    /// added to it; the command starts in `here` if neither says where.
    #[must_use]
    pub fn over(&self, mut file: SpecFile, here: &Path) -> SpecFile {
        let replace = |target: &mut Option<String>, flag: &Option<String>| {
            if flag.is_some() {
                target.clone_from(flag);
            }
        };
        replace(&mut file.name, &self.name);
        if !self.command.is_empty() {
            file.command.clone_from(&self.command);
        }
        file.env.extend(self.env.iter().cloned());
        if self.workdir.is_some() || file.workdir.is_none() {
            let workdir = here.join(self.workdir.as_deref().unwrap_or(Path::new("")));
            // Validation refuses what is not normal; a trailing slash is no reason to.
            let workdir: PathBuf = workdir.components().collect();
            file.workdir = Some(workdir.to_string_lossy().into_owned());
        }
        file.cpu = self.cpu.or(file.cpu);
        let recovery = &mut file.recovery;
        recovery.continuity = self.continuity.or(recovery.continuity);
        recovery.max_retries = self.max_retries.or(recovery.max_retries);
        let checkpoint = &mut recovery.checkpoint;
        replace(&mut checkpoint.interval, &self.interval);
        if let Some(size) = &self.max_size {
            checkpoint.max_size = Some(SizeText::Text(size.clone()));
        }
        if !self.checkpoint.is_empty() {
            checkpoint.paths = Some(self.checkpoint.clone());
        }
        file
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser as _;
    use nodus_protocol::spec::JobSpec;

    fn spec(flags: &str, file: &str) -> Result<JobSpec, String> {
        let line = format!("nodusctl run {flags}");
        let cli = crate::Cli::try_parse_from(line.split_whitespace()).map_err(|e| e.to_string())?;
        let crate::args::Command::Run(run) = cli.command else { panic!("not run") };
        let file = SpecFile::from_yaml(file).map_err(|error| error.to_string())?;
        run.over(file, Path::new("/here")).validate().map_err(|error| error.to_string())
    }

    const FILE: &str = "
name: from-file
command: [python, train.py]
env: {A: file, B: file}
workdir: /there
cpu: 1
recovery: {maxRetries: 7, continuity: Restartable, checkpoint: {paths: [/x, /y], interval: 5m}}
";

    #[test]
    fn the_description_alone_is_taken_as_it_is() {
        assert_eq!(spec("", FILE).unwrap(), JobSpec::from_yaml(FILE).unwrap());
    }

    #[test]
    fn flags_win_over_the_description() {
        let flags = "--name n --checkpoint /z --interval 1m --max-size 1Gi --continuity checkpointed \
             --max-retries 0 --cpu 2 --env A=flag -- bash -c true";
        let spec = spec(flags, FILE).unwrap();
        let expected = JobSpec::from_yaml(
            "
name: n
command: [bash, -c, 'true']
env: {A: flag, B: file}
workdir: /there
cpu: 2
recovery:
  maxRetries: 0
  continuity: Checkpointed
  checkpoint: {paths: [/z], interval: 1m, maxSize: 1Gi}
",
        );
        assert_eq!(spec, expected.unwrap());
    }

    #[test]
    fn the_command_starts_where_it_was_typed() {
        for (flags, expected) in [
            ("--name n -- true", "/here"),
            ("--name n --workdir ./sub/ -- true", "/here/sub"),
            ("--name n --workdir /other -- true", "/other"),
        ] {
            assert_eq!(spec(flags, "{}").unwrap().workdir.unwrap(), Path::new(expected));
        }
    }

    #[test]
    fn flags_are_refused_by_the_rules_of_the_description() {
        for (flags, expected) in [
            ("--name n --interval 30s -- a", "auto, or a duration from 1m to 6h"),
            ("--name n --interval 6h1s -- a", "recovery.checkpoint.interval"),
            ("--name n --checkpoint state -- a", "paths[0]: \"state\""),
            ("--name n --max-size 1GB -- a", "recovery.checkpoint.maxSize: \"1GB\""),
            ("--name ../n -- a", "name: \"../n\""),
            ("--name n", "command"),
            ("--name n --cpu 0 -- a", "cpu: \"0\""),
        ] {
            let error = spec(flags, "{}").unwrap_err();
            assert!(error.contains(expected), "{flags}: {error}");
        }
    }
}
