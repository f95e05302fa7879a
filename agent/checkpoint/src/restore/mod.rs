//! Putting a checkpoint's files back.
//!
//! A target ends up as it was or as the checkpoint has it, whatever happens in between:
//!
//! 1. **Survey.** The manifest is read and held to its hash and its rules, and compared with what
//!    is in the targets. A target that is the same already is left alone: no byte is written.
//! 2. **Build.** For every other one the complete new tree is made beside it ([`stage`]): identical
//!    files are linked from the target, everything else is written from verified frames.
//! 3. **Swap.** Once all is there and on the disk, the new trees take the targets' places. What is
//!    not the checkpoint's to replace stays where it is ([`standing`]).
//!
//! Everything in a target is looked at and made with the rights of the job's user, name by name
//! below the target ([`beneath`]); the store is read with the rights of this process. Attributes
//! follow [`attributes::Policy`].

mod attributes;
mod beneath;
mod build;
mod compare;
mod elsewhere;
mod empty;
mod findings;
mod finish;
mod plan;
mod remove;
mod select;
mod stage;
mod standing;
mod tree;

use std::collections::HashSet;
use std::num::NonZeroUsize;
use std::path::PathBuf;

use crate::archive::FrameReader;
use crate::choose::{self, Choice, PassedOver};
use crate::control::Control;
use crate::error::{Error, Result};
use crate::format::{CommitRecord, Entry, FrameRef};
use crate::identity::{self, Credentials};
use crate::outcomes;
use crate::root::Root;
use crate::store::{Epoch, JobStore, ManifestReader};
use crate::stored::Stored;

pub use elsewhere::roots_under;
pub use empty::empty;
pub use findings::{About, Warning};

use attributes::Policy;
use build::{Build, Trees};
use findings::Findings;
use finish::Moment;
use plan::{RootPlan, Survey};
use stage::{Place, Stage};

/// How to restore.
#[derive(Clone, Debug)]
pub struct RestoreOptions {
    /// The user to act as, who will own everything. `None`: this process as it is; root then gives
    /// entries their recorded owners.
    pub credentials: Option<Credentials>,
    /// Threads that decompress and write.
    pub threads: NonZeroUsize,
    /// Only what is at or below this path, absolute as the job names it. The targets it concerns
    /// must be absent or empty, and the others are left alone.
    pub only: Option<PathBuf>,
    /// Fail where an owner or an extended attribute cannot be set, in place of a warning.
    pub strict: bool,
    /// Give files their set-uid and set-gid bits and capabilities.
    pub keep_privileges: bool,
    /// Device and inode of directories in the targets that stay as they are, as captures leave them
    /// out. The store and mount points always do.
    pub standing: HashSet<(u64, u64)>,
}

impl RestoreOptions {
    /// For the next attempt of a job: everything, as the job's user, warnings for what cannot be.
    #[must_use]
    pub fn for_job(credentials: Option<Credentials>, threads: NonZeroUsize) -> Self {
        Self {
            credentials,
            threads,
            only: None,
            strict: false,
            keep_privileges: false,
            standing: HashSet::new(),
        }
    }
}

/// What a restore did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RestoreReport {
    /// The checkpoint.
    pub seq: u64,
    /// Why that one, in a sentence for people.
    pub reason: String,
    /// The newer ones that were passed over, newest first.
    pub passed_over: Vec<PassedOver>,
    /// Entries of every type that the targets have from it.
    pub files: u64,
    /// Logical bytes of the regular files among them.
    pub bytes: u64,
    /// Regular files that were in the targets already and stayed what they were.
    pub kept: u64,
    /// Whether everything was there already, so that nothing was written.
    pub unchanged: bool,
    /// What a person should know.
    pub warnings: Vec<Warning>,
}

impl RestoreReport {
    /// Why this one, and what was passed over, in one line for people.
    #[must_use]
    pub fn explanation(&self) -> String {
        choose::explanation(&self.reason, &self.passed_over)
    }
}

/// Restores the checkpoint that somebody asked for.
///
/// A path that the checkpoint has and `roots` has not is refused; one that only `roots` has is left
/// alone, since the checkpoint knows nothing of it. A path that did not exist when the checkpoint
/// was taken does not exist afterwards.
///
/// # Errors
/// [`Error::NotFound`], [`Error::Damaged`] with the targets untouched, or why it could not be done.
pub fn restore(
    store: &JobStore,
    seq: u64,
    roots: &[Root],
    options: &RestoreOptions,
    control: &Control,
) -> Result<RestoreReport> {
    let listing = store.list()?;
    let choice = choose::requested(store.job().as_str(), &listing, seq)?;
    restore_chosen(store, &listing, choice, roots, options, control).map_err(|failed| *failed.error)
}

/// Restores the checkpoint that the next attempt starts from; damaged ones are passed over.
///
/// Each one found damaged is marked in the store under `mark`, together with those that share what
/// is bad, so that nothing builds on it; without `mark` the store is only read.
///
/// # Errors
/// [`Error::NotFound`] where there is none, [`Error::Damaged`] where all are, or why the chosen one
/// could not be restored.
pub fn restore_newest(
    store: &JobStore,
    mark: Option<&Epoch>,
    roots: &[Root],
    options: &RestoreOptions,
    control: &Control,
) -> Result<RestoreReport> {
    let mut listing = store.list()?;
    loop {
        let Some(choice) = choose::newest(&listing) else {
            return Err(choose::none(store.job().as_str(), &listing));
        };
        let seq = choice.seq;
        let failed = match restore_chosen(store, &listing, choice, roots, options, control) {
            Ok(report) => return Ok(report),
            Err(failed) => failed,
        };
        if !matches!(*failed.error, Error::Damaged { .. }) {
            return Err(*failed.error);
        }
        let what = failed.error.chain();
        tracing::warn!(job = %store.job(), seq, what, "passing over a damaged checkpoint");
        let bad = failed.frame.map_or_else(Vec::new, |frame| vec![(frame, what.clone())]);
        outcomes::note_damage(store, mark, &mut listing, seq, &[what], &bad);
    }
}

/// An error, and the frame that is bad where that is the cause.
#[derive(Debug)]
struct Failed {
    error: Box<Error>,
    frame: Option<FrameRef>,
}

impl From<Error> for Failed {
    fn from(error: Error) -> Self {
        Self { error: Box::new(error), frame: None }
    }
}

/// A restore under way: what all its parts need.
struct Job<'a> {
    store: &'a JobStore,
    record: &'a CommitRecord,
    frames: FrameReader,
    options: &'a RestoreOptions,
    policy: Policy,
    control: &'a Control,
    findings: Findings,
}

impl Job<'_> {
    fn read(&self, frame: &FrameRef) -> std::result::Result<Vec<u8>, Failed> {
        self.control.check()?;
        let bad = |error: Error| {
            let frame = matches!(error, Error::Damaged { .. }).then_some(*frame);
            Failed { error: Box::new(error), frame }
        };
        self.frames.read(frame).map_err(bad)
    }

    fn manifest(&self) -> Result<ManifestReader> {
        self.store.manifest(self.record.seq, self.record)
    }

    /// Acts as the job's user for as long as the result lives.
    fn user(&self) -> Result<identity::Guard> {
        identity::enter(self.options.credentials.as_ref())
    }

    fn damaged(&self, what: String) -> Error {
        Error::Damaged { seq: self.record.seq, what }
    }
}

fn restore_chosen(
    store: &JobStore,
    listing: &[Stored],
    choice: Choice,
    roots: &[Root],
    options: &RestoreOptions,
    control: &Control,
) -> std::result::Result<RestoreReport, Failed> {
    let record = listing.iter().find_map(|stored| match stored {
        Stored::Good { record, .. } if record.seq == choice.seq => Some(record),
        _ => None,
    });
    let record = record.expect("only checkpoints with a record are chosen");
    let policy = Policy::of(options);
    let frames = FrameReader::new(store);
    let findings = Findings::default();
    let job = Job { store, record, frames, options, policy, control, findings };
    let plans = plan::roots(&job, roots)?;
    let survey = plan::survey(&job, &plans)?;
    let kept = bring_in(&job, &plans, &survey)?;
    Ok(RestoreReport {
        seq: choice.seq,
        reason: choice.reason,
        passed_over: choice.passed_over,
        files: survey.files,
        bytes: survey.bytes,
        kept: kept + survey.kept_in_place,
        unchanged: survey.roots.iter().all(|root| root.unchanged),
        warnings: job.findings.warnings(),
    })
}

/// Builds and swaps in what differs; says how many files were taken over.
fn bring_in(
    job: &Job<'_>,
    plans: &[RootPlan],
    survey: &Survey,
) -> std::result::Result<u64, Failed> {
    let stages = plan::stage(job, plans, survey)?;
    let places: Vec<Option<Place>> =
        stages.iter().map(|stage| stage.as_ref().map(Stage::place)).collect();
    let built = build_all(job, plans, survey, &stages, &places).and_then(|kept| {
        swap_all(job, plans, survey, &stages)?;
        Ok(kept)
    });
    remove_all(job, plans, stages)?;
    let kept = built?;
    // Last, because removing the stage from a target has changed its time once more.
    if places.contains(&Some(Place::Inside)) {
        let trees = plan::target_trees(plans);
        finish::finish(&Build::new(job, &trees), plans, &places, Moment::AfterSwap)?;
    }
    Ok(kept)
}

/// Removes the stages: with what was there before, or with what did not become whole.
fn remove_all(job: &Job<'_>, plans: &[RootPlan], stages: Vec<Option<Stage>>) -> Result<()> {
    let _user = job.user()?;
    for (stage, plan) in stages.into_iter().zip(plans) {
        let Some(removed) = stage.map(Stage::remove) else { continue };
        if let (Err(error), Some(target)) = (removed, &plan.target) {
            job.findings.add(About::Leftover { cause: error.to_string() }, target.path());
        }
    }
    Ok(())
}

fn build_all(
    job: &Job<'_>,
    plans: &[RootPlan],
    survey: &Survey,
    stages: &[Option<Stage>],
    places: &[Option<Place>],
) -> std::result::Result<u64, Failed> {
    let trees: Vec<Option<Trees>> = stages
        .iter()
        .zip(plans)
        .map(|(stage, plan)| {
            let (stage, target) = (stage.as_ref()?, plan.target.as_ref()?);
            Some(Trees { new: stage.new_tree().clone(), old: target.tree() })
        })
        .collect();
    let build = Build::new(job, &trees);
    let selected = selected(job.manifest()?, plans, &survey.same);
    let kept = build.run(selected)?;
    if survey.has_links {
        finish::link(&build, plans, survey)?;
    }
    finish::finish(&build, plans, places, Moment::BeforeSwap)?;
    match job.findings.unmet().filter(|_| job.options.strict) {
        Some(warning) => Err(Error::Refused(format!("strict: {warning}")).into()),
        None => Ok(kept),
    }
}

fn swap_all(
    job: &Job<'_>,
    plans: &[RootPlan],
    survey: &Survey,
    stages: &[Option<Stage>],
) -> Result<()> {
    let _user = job.user()?;
    for stage in stages.iter().flatten() {
        job.control.check()?;
        stage.sync()?;
    }
    job.control.check()?;
    // From here on nothing stops it: the sooner all are swapped, the better.
    for ((stage, plan), root) in stages.iter().zip(plans).zip(&survey.roots) {
        if let (Some(stage), Some(target)) = (stage, &plan.target) {
            stage.swap(target, root.kind, &plan.standing)?;
        }
    }
    Ok(())
}

/// The entries that are restored, each with whether the target has it as it is.
fn selected<'a>(
    manifest: ManifestReader,
    plans: &'a [RootPlan],
    same: &'a [bool],
) -> impl Iterator<Item = Result<(Entry, bool)>> + use<'a> {
    manifest.enumerate().filter_map(|(number, entry)| match entry {
        Err(error) => Some(Err(error)),
        Ok(entry) => {
            let taken = plans[usize::from(entry.root)].selection.takes(&entry);
            let same = same.get(number).copied().unwrap_or(false);
            taken.then_some(Ok((entry, same)))
        }
    })
}
