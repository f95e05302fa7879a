//! The job a user describes, from YAML or from flags.
//!
//! [`SpecFile`] has the shape of the file and takes any text; [`JobSpec`] can hold only what is
//! allowed. The way from one to the other is the only validation there is, and each refusal names
//! the field, the value and what is allowed.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Component, Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::JobName;
use crate::units::{ByteSize, parse_duration};

/// The most paths one checkpoint can have.
pub const MAX_PATHS: usize = 64;
/// The shortest interval.
pub const MIN_INTERVAL: Duration = Duration::from_secs(60);
/// The longest interval.
pub const MAX_INTERVAL: Duration = Duration::from_secs(6 * 3600);

/// The state directory of a job that names none.
pub const DEFAULT_PATH: &str = "/nodus/state";
/// Failures of the program that are tried again where the user says nothing.
pub const DEFAULT_MAX_RETRIES: u32 = 3;
/// Larger than any trainer's state that was meant to be saved.
pub const DEFAULT_MAX_SIZE: ByteSize = ByteSize(1 << 40);
/// Seven days.
pub const DEFAULT_RETAIN: Duration = Duration::from_secs(168 * 3600);
/// Enough to survive one bad checkpoint and still have a choice.
pub const DEFAULT_KEEP_LAST: u32 = 3;
/// Longer than a slow step plus a large save.
pub const DEFAULT_ACK_TIMEOUT: Duration = Duration::from_secs(600);

/// A field whose value is not allowed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {value:?} is not allowed: {allowed}")]
pub struct InvalidField {
    /// The path of the field in the file, such as `recovery.checkpoint.interval`.
    pub field: String,
    /// The value as it was given.
    pub value: String,
    /// What would be allowed.
    pub allowed: String,
}

/// Why a job description was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SpecError {
    /// One field has a value that is not allowed.
    #[error(transparent)]
    Field(#[from] InvalidField),
    /// The text is not YAML of this shape; the message says where.
    #[error("invalid job description: {0}")]
    Syntax(String),
}

fn invalid(
    field: impl Into<String>,
    value: impl fmt::Display,
    allowed: impl Into<String>,
) -> InvalidField {
    InvalidField { field: field.into(), value: value.to_string(), allowed: allowed.into() }
}

/// What happens to a job's files between two attempts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Continuity {
    /// The newest checkpoint is restored before each attempt.
    #[default]
    Checkpointed,
    /// The files stay as they are; the cursor is handed over.
    Restartable,
    /// Each attempt starts with its own paths empty.
    Ephemeral,
}

/// When a checkpoint is taken without being asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Interval {
    /// From what checkpoints cost and how often the capacity is interrupted.
    #[default]
    Auto,
    /// Always after this long: [`MIN_INTERVAL`] to [`MAX_INTERVAL`].
    Fixed(Duration),
}

/// Whether the program is asked before each checkpoint.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Integration {
    /// When it subscribes.
    #[default]
    Auto,
    /// Never.
    None,
    /// From inside Hugging Face Trainer.
    HFTrainer,
}

/// Whether capture stops the attempt's processes for as long as it takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Quiesce {
    /// No.
    #[default]
    None,
    /// Yes, where nobody was asked.
    Freeze,
}

/// Who writes the checkpoint's data.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Format {
    /// The agent copies the files.
    #[default]
    Files,
    /// The ranks write their shards with `torch.distributed.checkpoint`.
    Dcp,
}

/// A valid job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "SpecFile", into = "SpecFile")]
pub struct JobSpec {
    /// Its name.
    pub name: JobName,
    /// The program and its arguments; at least the program.
    pub command: Vec<String>,
    /// Variables added to the attempt's environment.
    pub env: BTreeMap<String, String>,
    /// Where the command starts; absolute.
    pub workdir: Option<PathBuf>,
    /// Processors the job asks for.
    pub cpu: Option<u32>,
    /// What happens when an attempt ends.
    pub recovery: Recovery,
    /// Ranks of a gang.
    pub ranks: Option<u32>,
}

/// What happens when an attempt ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recovery {
    /// What happens to the files.
    pub continuity: Continuity,
    /// How long the program runs if nothing interrupts it.
    pub expected_run_time: Option<Duration>,
    /// Failures of the program that are tried again; interruptions never count.
    pub max_retries: u32,
    /// Time over all attempts.
    pub max_wall_time: Option<Duration>,
    /// Attempts in a row without a new checkpoint before the job is `Failed`, `NoProgress`.
    pub max_attempts_without_progress: Option<u32>,
    /// What is saved, and when.
    pub checkpoint: CheckpointPolicy,
}

/// What is saved, and when.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckpointPolicy {
    /// 1 to [`MAX_PATHS`] absolute, normalised paths, none inside another.
    pub paths: Vec<PathBuf>,
    /// When.
    pub interval: Interval,
    /// The most logical bytes.
    pub max_size: ByteSize,
    /// How long all kept checkpoints outlive the job's end; then only the final one.
    pub retain_after_finish: Duration,
    /// Checkpoints kept while the job runs.
    pub keep_last: u32,
    /// Whether the program is asked.
    pub integration: Integration,
    /// How long an answer is waited for, where no shutdown decides.
    pub ack_timeout: Duration,
    /// Whether capture freezes a program that was not asked.
    pub quiesce: Quiesce,
    /// Who writes the data.
    pub format: Format,
}

impl JobSpec {
    /// Reads a job description in YAML.
    ///
    /// # Errors
    /// The first thing that is not as it must be.
    pub fn from_yaml(text: &str) -> Result<Self, SpecError> {
        Ok(SpecFile::from_yaml(text)?.validate()?)
    }
}

/// The shape of a job description, before validation. Flags fill the same one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct SpecFile {
    /// See [`JobSpec::name`].
    pub name: Option<String>,
    /// See [`JobSpec::command`].
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub command: Vec<String>,
    /// See [`JobSpec::env`].
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
    /// See [`JobSpec::workdir`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub workdir: Option<String>,
    /// See [`JobSpec::cpu`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu: Option<u32>,
    /// See [`Recovery`].
    pub recovery: RecoveryFile,
    /// See [`JobSpec::ranks`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub distributed: Option<DistributedFile>,
}

/// The shape of `recovery`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct RecoveryFile {
    /// See [`Recovery::continuity`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub continuity: Option<Continuity>,
    /// See [`Recovery::expected_run_time`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expected_run_time: Option<String>,
    /// See [`Recovery::max_retries`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_retries: Option<u32>,
    /// See [`Recovery::max_wall_time`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_wall_time: Option<String>,
    /// See [`Recovery::max_attempts_without_progress`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_attempts_without_progress: Option<u32>,
    /// See [`CheckpointPolicy`].
    pub checkpoint: CheckpointFile,
}

/// The shape of `recovery.checkpoint`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct CheckpointFile {
    /// See [`CheckpointPolicy::paths`]; `None` means [`DEFAULT_PATH`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub paths: Option<Vec<String>>,
    /// See [`CheckpointPolicy::interval`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub interval: Option<String>,
    /// See [`CheckpointPolicy::max_size`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_size: Option<SizeText>,
    /// See [`CheckpointPolicy::retain_after_finish`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retain_after_finish: Option<String>,
    /// See [`CheckpointPolicy::keep_last`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub keep_last: Option<u32>,
    /// See [`CheckpointPolicy::integration`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub integration: Option<Integration>,
    /// See [`CheckpointPolicy::ack_timeout`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ack_timeout: Option<String>,
    /// See [`CheckpointPolicy::quiesce`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub quiesce: Option<Quiesce>,
    /// See [`CheckpointPolicy::format`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub format: Option<Format>,
}

/// A size before validation: YAML gives a bare number as a number.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum SizeText {
    /// `1048576`
    Bytes(u64),
    /// `1Mi`
    Text(String),
}

/// The shape of `distributed`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DistributedFile {
    /// See [`JobSpec::ranks`].
    pub ranks: u32,
}

impl SpecFile {
    /// Reads the shape; values are checked by [`SpecFile::validate`].
    ///
    /// # Errors
    /// Where the text is not YAML of this shape.
    pub fn from_yaml(text: &str) -> Result<Self, SpecError> {
        serde_saphyr::from_str(text).map_err(|error| SpecError::Syntax(error.to_string()))
    }

    /// Checks every value.
    ///
    /// # Errors
    /// The first field whose value is not allowed.
    pub fn validate(self) -> Result<JobSpec, InvalidField> {
        let ranks = self.distributed.as_ref().map(|distributed| distributed.ranks);
        if let Some(0) = ranks {
            return Err(invalid("distributed.ranks", 0, "1 or more"));
        }
        if let Some(0) = self.cpu {
            return Err(invalid("cpu", 0, "1 or more"));
        }
        Ok(JobSpec {
            name: validate_name(self.name)?,
            command: validate_command(self.command)?,
            env: validate_env(self.env)?,
            workdir: self.workdir.map(|dir| absolute_path("workdir", &dir)).transpose()?,
            cpu: self.cpu,
            recovery: self.recovery.validate(ranks)?,
            ranks,
        })
    }
}

fn validate_name(name: Option<String>) -> Result<JobName, InvalidField> {
    let allowed = "1 to 63 of A-Z a-z 0-9 . _ -, beginning with a letter or a digit";
    let name = name.ok_or_else(|| invalid("name", "", allowed))?;
    name.parse().map_err(|_| invalid("name", name, allowed))
}

fn validate_command(command: Vec<String>) -> Result<Vec<String>, InvalidField> {
    if command.first().is_none_or(String::is_empty) {
        return Err(invalid("command", command.join(" "), "a program and its arguments"));
    }
    match command.iter().find(|argument| argument.contains('\0')) {
        Some(argument) => Err(invalid("command", argument, "arguments without a NUL character")),
        None => Ok(command),
    }
}

fn validate_env(env: BTreeMap<String, String>) -> Result<BTreeMap<String, String>, InvalidField> {
    for (key, value) in &env {
        if key.is_empty() || key.contains(['=', '\0']) || value.contains('\0') {
            let allowed = "names without = and NUL, values without NUL";
            return Err(invalid(format!("env.{key}"), value, allowed));
        }
    }
    Ok(env)
}

impl RecoveryFile {
    fn validate(self, ranks: Option<u32>) -> Result<Recovery, InvalidField> {
        let field = |name: &str| format!("recovery.{name}");
        if let Some(0) = self.max_attempts_without_progress {
            return Err(invalid(field("maxAttemptsWithoutProgress"), 0, "1 or more"));
        }
        Ok(Recovery {
            continuity: self.continuity.unwrap_or_default(),
            expected_run_time: positive(&field("expectedRunTime"), self.expected_run_time)?,
            max_retries: self.max_retries.unwrap_or(DEFAULT_MAX_RETRIES),
            max_wall_time: positive(&field("maxWallTime"), self.max_wall_time)?,
            max_attempts_without_progress: self.max_attempts_without_progress,
            checkpoint: self.checkpoint.validate(ranks)?,
        })
    }
}

impl CheckpointFile {
    fn validate(self, ranks: Option<u32>) -> Result<CheckpointPolicy, InvalidField> {
        let field = |name: &str| format!("recovery.checkpoint.{name}");
        let keep_last = self.keep_last.unwrap_or(DEFAULT_KEEP_LAST);
        if keep_last == 0 {
            return Err(invalid(field("keepLast"), 0, "1 or more"));
        }
        let default_format = if ranks.is_some() { Format::Dcp } else { Format::Files };
        let format = self.format.unwrap_or(default_format);
        if format == Format::Dcp && ranks.is_none() {
            return Err(invalid(field("format"), "Dcp", "Files, or Dcp where distributed is set"));
        }
        let retain = self.retain_after_finish.map(|text| any(&field("retainAfterFinish"), &text));
        Ok(CheckpointPolicy {
            paths: validate_paths(&field("paths"), self.paths)?,
            interval: validate_interval(&field("interval"), self.interval)?,
            max_size: validate_size(&field("maxSize"), self.max_size)?,
            retain_after_finish: retain.transpose()?.unwrap_or(DEFAULT_RETAIN),
            keep_last,
            integration: self.integration.unwrap_or_default(),
            ack_timeout: positive(&field("ackTimeout"), self.ack_timeout)?
                .unwrap_or(DEFAULT_ACK_TIMEOUT),
            quiesce: self.quiesce.unwrap_or_default(),
            format,
        })
    }
}

fn any(field: &str, text: &str) -> Result<Duration, InvalidField> {
    parse_duration(text).map_err(|_| invalid(field, text, "a duration such as 90s, 10m or 168h"))
}

fn positive(field: &str, text: Option<String>) -> Result<Option<Duration>, InvalidField> {
    let Some(text) = text else { return Ok(None) };
    match any(field, &text)? {
        Duration::ZERO => Err(invalid(field, text, "a duration above zero, such as 90s or 8h")),
        duration => Ok(Some(duration)),
    }
}

fn validate_interval(field: &str, text: Option<String>) -> Result<Interval, InvalidField> {
    let Some(text) = text else { return Ok(Interval::Auto) };
    if text == "auto" {
        return Ok(Interval::Auto);
    }
    match parse_duration(&text) {
        Ok(duration) if (MIN_INTERVAL..=MAX_INTERVAL).contains(&duration) => {
            Ok(Interval::Fixed(duration))
        }
        _ => Err(invalid(field, text, "auto, or a duration from 1m to 6h")),
    }
}

fn validate_size(field: &str, size: Option<SizeText>) -> Result<ByteSize, InvalidField> {
    let allowed = "a number of bytes above zero with an optional unit of Ki, Mi, Gi, Ti or Pi";
    let (text, size) = match size {
        None => return Ok(DEFAULT_MAX_SIZE),
        Some(SizeText::Bytes(bytes)) => (bytes.to_string(), Ok(ByteSize(bytes))),
        Some(SizeText::Text(text)) => (text.clone(), text.parse()),
    };
    match size {
        Ok(ByteSize(bytes)) if bytes > 0 => Ok(ByteSize(bytes)),
        _ => Err(invalid(field, text, allowed)),
    }
}

/// An absolute path without `.`, `..`, doubled or trailing slashes.
fn absolute_path(field: &str, text: &str) -> Result<PathBuf, InvalidField> {
    let path = Path::new(text);
    let normal: PathBuf = path.components().collect();
    let plain =
        path.components().all(|part| matches!(part, Component::RootDir | Component::Normal(_)));
    if !path.is_absolute()
        || !plain
        || text.contains('\0')
        || normal.as_os_str() != path.as_os_str()
    {
        let allowed = "an absolute path without . or .. and without doubled or trailing slashes";
        return Err(invalid(field, text, allowed));
    }
    Ok(normal)
}

fn validate_paths(field: &str, paths: Option<Vec<String>>) -> Result<Vec<PathBuf>, InvalidField> {
    let texts = paths.unwrap_or_else(|| vec![DEFAULT_PATH.to_owned()]);
    if texts.is_empty() || texts.len() > MAX_PATHS {
        let allowed = format!("1 to {MAX_PATHS} paths");
        return Err(invalid(field, format!("{} paths", texts.len()), allowed));
    }
    let mut paths = Vec::with_capacity(texts.len());
    for (index, text) in texts.iter().enumerate() {
        let field = format!("{field}[{index}]");
        let path = absolute_path(&field, text)?;
        if path == Path::new("/") {
            return Err(invalid(field, text, "a path below the root directory"));
        }
        if let Some(other) = paths.iter().find(|other: &&PathBuf| nested(other, &path)) {
            let allowed = format!(
                "paths that are distinct and not inside another; {} is in the list",
                other.display()
            );
            return Err(invalid(field, text, allowed));
        }
        paths.push(path);
    }
    Ok(paths)
}

fn nested(a: &Path, b: &Path) -> bool {
    a.starts_with(b) || b.starts_with(a)
}

impl TryFrom<SpecFile> for JobSpec {
    type Error = InvalidField;

    fn try_from(file: SpecFile) -> Result<Self, InvalidField> {
        file.validate()
    }
}

impl From<JobSpec> for SpecFile {
    fn from(spec: JobSpec) -> Self {
        let text = |path: PathBuf| path.to_string_lossy().into_owned();
        let time = |duration: Duration| humantime::format_duration(duration).to_string();
        let Recovery { checkpoint, .. } = spec.recovery;
        Self {
            name: Some(spec.name.into()),
            command: spec.command,
            env: spec.env,
            workdir: spec.workdir.map(text),
            cpu: spec.cpu,
            recovery: RecoveryFile {
                continuity: Some(spec.recovery.continuity),
                expected_run_time: spec.recovery.expected_run_time.map(time),
                max_retries: Some(spec.recovery.max_retries),
                max_wall_time: spec.recovery.max_wall_time.map(time),
                max_attempts_without_progress: spec.recovery.max_attempts_without_progress,
                checkpoint: CheckpointFile {
                    paths: Some(checkpoint.paths.into_iter().map(text).collect()),
                    interval: Some(checkpoint.interval.to_string()),
                    max_size: Some(SizeText::Text(checkpoint.max_size.to_string())),
                    retain_after_finish: Some(time(checkpoint.retain_after_finish)),
                    keep_last: Some(checkpoint.keep_last),
                    integration: Some(checkpoint.integration),
                    ack_timeout: Some(time(checkpoint.ack_timeout)),
                    quiesce: Some(checkpoint.quiesce),
                    format: Some(checkpoint.format),
                },
            },
            distributed: spec.ranks.map(|ranks| DistributedFile { ranks }),
        }
    }
}

impl fmt::Display for Interval {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::Fixed(duration) => humantime::format_duration(*duration).fmt(f),
        }
    }
}

crate::checkpoint::display_as_name!(Continuity, Integration, Quiesce, Format);

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(checkpoint: &str) -> Result<JobSpec, SpecError> {
        let text = format!("name: n\ncommand: [a]\nrecovery:\n  checkpoint: {{{checkpoint}}}\n");
        JobSpec::from_yaml(&text)
    }

    fn check(checkpoint: &str, expected: &str) {
        let error = parse(checkpoint).unwrap_err().to_string();
        assert!(error.contains(expected), "{checkpoint}: {error}");
    }

    #[test]
    fn the_defaults_suit_most_programs() {
        let spec = JobSpec::from_yaml("name: n\ncommand: [python, train.py]\n").unwrap();
        let policy = &spec.recovery.checkpoint;
        assert_eq!(policy.paths, [Path::new("/nodus/state")]);
        assert_eq!(policy.interval, Interval::Auto);
        assert_eq!(policy.max_size.to_string(), "1Ti");
        assert_eq!(policy.retain_after_finish, Duration::from_secs(168 * 3600));
        assert_eq!(spec.recovery.max_retries, 3);
        assert_eq!(policy.format, Format::Files);
    }

    #[test]
    fn the_whole_example_of_the_design() {
        let text = r#"
name: train
command: [python, train.py]
env: {STEPS: "120"}
workdir: /home/me/run
recovery:
  continuity: Checkpointed
  expectedRunTime: 8h
  maxRetries: 3
  maxWallTime: 48h
  maxAttemptsWithoutProgress: 5
  checkpoint:
    paths: [/nodus/state]
    interval: 1m
    maxSize: 1Ti
    retainAfterFinish: 168h
    keepLast: 3
    integration: Auto
    ackTimeout: 10m
    quiesce: None
distributed: {ranks: 8}
"#;
        let spec = JobSpec::from_yaml(text).unwrap();
        assert_eq!(spec.recovery.checkpoint.format, Format::Dcp);
        let json = serde_json::to_string(&spec).unwrap();
        assert_eq!(serde_json::from_str::<JobSpec>(&json).unwrap(), spec);
    }

    #[test]
    fn intervals() {
        for good in ["auto", "1m", "60s", "6h", "360m"] {
            parse(&format!("interval: {good}")).unwrap();
        }
        for bad in ["59s", "6h 1m", "6h1s", "30s", "10", "often"] {
            check(&format!("interval: {bad}"), "recovery.checkpoint.interval");
        }
        check("interval: 30s", "\"30s\" is not allowed: auto, or a duration from 1m to 6h");
    }

    #[test]
    fn paths() {
        check("paths: [state]", "recovery.checkpoint.paths[0]: \"state\"");
        for bad in ["/a/../b", "/a/", "//a", "/a/./b", "/"] {
            check(&format!("paths: [\"{bad}\"]"), "paths[0]");
        }
        check("paths: [/a, /a]", "paths[1]");
        check("paths: [/a/b, /a]", "not inside another");
        check("paths: []", "1 to 64 paths");
        let many = |n: usize| (0..n).map(|i| format!("/p{i}")).collect::<Vec<_>>().join(",");
        parse(&format!("paths: [{}]", many(64))).unwrap();
        check(&format!("paths: [{}]", many(65)), "\"65 paths\" is not allowed: 1 to 64 paths");
    }

    #[test]
    fn sizes_and_other_values() {
        assert_eq!(parse("maxSize: 4096").unwrap().recovery.checkpoint.max_size, ByteSize(4096));
        check("maxSize: 1GB", "recovery.checkpoint.maxSize: \"1GB\"");
        check("maxSize: 0", "maxSize");
        check("keepLast: 0", "keepLast");
        check("ackTimeout: 0s", "ackTimeout");
        check("integration: Maybe", "Maybe");
        check("format: Dcp", "distributed");
    }

    #[test]
    fn unknown_fields_are_refused_by_name() {
        check("intervall: auto", "intervall");
        let error = JobSpec::from_yaml("name: n\ncommand: [a]\nretries: 3\n").unwrap_err();
        assert!(error.to_string().contains("retries"), "{error}");
    }

    #[test]
    fn a_job_has_a_name_and_a_command() {
        assert!(JobSpec::from_yaml("command: [a]").unwrap_err().to_string().contains("name"));
        assert!(JobSpec::from_yaml("name: n").unwrap_err().to_string().contains("command"));
        let error = JobSpec::from_yaml("name: ../x\ncommand: [a]").unwrap_err().to_string();
        assert!(error.contains("\"../x\""), "{error}");
    }
}
