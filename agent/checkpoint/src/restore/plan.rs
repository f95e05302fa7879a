//! What has to be done for each root: the manifest held against the targets.

use std::collections::{BTreeMap, HashSet};
use std::os::unix::ffi::OsStrExt as _;

use super::Job;
use super::build::Trees;
use super::compare::Comparison;
use super::select::Selection;
use super::stage::{RootKind, Stage, Target};
use super::standing::Standing;
use crate::error::{Context as _, Error, Result};
use crate::format::text::{os_string, unescape};
use crate::format::{Entry, Kind};
use crate::root::Root;
use crate::snapshot::object_of;

/// What is wanted of a root of the manifest.
pub(super) struct RootPlan {
    /// Which part of it.
    pub(super) selection: Selection,
    /// The root as the job names it, as bytes.
    pub(super) path: Vec<u8>,
    /// Where it goes; `None` where nothing of it is wanted.
    pub(super) target: Option<Target>,
    /// What stays in it.
    pub(super) standing: Standing,
}

/// What a root is, and what is to be done for it.
pub(super) struct RootSurvey {
    /// What it is in the checkpoint.
    pub(super) kind: RootKind,
    /// The target has it already, and nothing else.
    pub(super) unchanged: bool,
    /// Bytes to write.
    pub(super) needed: u64,
}

/// What one reading of the manifest told.
pub(super) struct Survey {
    /// By root.
    pub(super) roots: Vec<RootSurvey>,
    /// By the number of the entry: whether the target has it as it is.
    pub(super) same: Vec<bool>,
    /// Whether any entry is what was asked for, and not only on the way to it.
    pub(super) found: bool,
    /// Entries that are restored.
    pub(super) files: u64,
    /// Their logical bytes.
    pub(super) bytes: u64,
    /// Files in roots that are unchanged.
    pub(super) kept_in_place: u64,
    /// Whether any wanted entry is another name of an earlier one.
    pub(super) has_links: bool,
    /// Entries that are not restored, or elsewhere, but whose content another name needs.
    pub(super) lone: HashSet<(u16, Vec<u8>)>,
}

/// Matches the manifest's roots with where they are on this node.
pub(super) fn roots(job: &Job<'_>, roots: &[Root]) -> Result<Vec<RootPlan>> {
    let manifest = job.manifest()?;
    let header = manifest.header();
    if header.roots != job.record.roots {
        return Err(job.damaged("its manifest and its record name other roots".to_owned()));
    }
    let _user = job.user()?;
    let mut plans = Vec::with_capacity(header.roots.len());
    for text in &header.roots {
        let bytes = unescape(text)
            .ok_or_else(|| job.damaged(format!("its root {text:?} is not escaped text")))?;
        let path = std::path::PathBuf::from(os_string(&bytes));
        let selection = Selection::of(&path, job.options.only.as_deref());
        let target = match selection {
            Selection::Nothing => None,
            _ => Some(Target::open(&place(job, roots, &path)?)?),
        };
        plans.push(RootPlan { selection, path: bytes, target, standing: Standing::default() });
    }
    let own = own_objects(job);
    for plan in &mut plans {
        let Some(target) = &plan.target else { continue };
        target.remove_leftovers()?;
        plan.standing = Standing::find(&target.tree(), &own)?;
    }
    Ok(plans)
}

/// The directories that captures leave out, wherever they are.
fn own_objects(job: &Job<'_>) -> HashSet<(u64, u64)> {
    let mut own = job.options.standing.clone();
    own.extend([job.store.root(), job.store.dir()].into_iter().filter_map(object_of));
    own
}

fn place(job: &Job<'_>, roots: &[Root], path: &std::path::Path) -> Result<std::path::PathBuf> {
    let root =
        roots.iter().find(|root| root.path.as_os_str().as_bytes() == path.as_os_str().as_bytes());
    root.map(|root| root.dir.clone()).ok_or_else(|| {
        let (seq, path) = (job.record.seq, path.display());
        Error::Refused(format!("checkpoint {seq} has {path}, for which no place is given"))
    })
}

/// Reads the whole manifest and compares it with the targets; nothing is written.
pub(super) fn survey(job: &Job<'_>, plans: &[RootPlan]) -> Result<Survey> {
    let manifest = job.manifest()?;
    let _user = job.user()?;
    let trees: Vec<_> = plans.iter().map(|plan| plan.target.as_ref().map(Target::tree)).collect();
    let mut surveyor = Surveyor::new(job, plans);
    let mut comparisons: Vec<_> = trees
        .iter()
        .zip(plans)
        .map(|(tree, plan)| Some(Comparison::new(tree.as_ref()?, &job.policy, &plan.standing)))
        .collect();
    for entry in manifest {
        job.control.check()?;
        surveyor.take(&entry?, &mut comparisons)?;
    }
    for (number, (plan, comparison)) in plans.iter().zip(&comparisons).enumerate() {
        let root = &mut surveyor.survey.roots[number];
        root.unchanged = match (&plan.target, comparison) {
            (Some(target), _) if root.kind == RootKind::Absent => target.stat()?.is_none(),
            (Some(_), Some(comparison)) => comparison.is_unchanged(),
            _ => true,
        };
        if root.unchanged {
            surveyor.survey.kept_in_place += surveyor.same_files[number];
        }
    }
    surveyor.survey.check_wanted(job, plans)?;
    Ok(surveyor.survey)
}

struct Surveyor<'a> {
    job: &'a Job<'a>,
    plans: &'a [RootPlan],
    /// Files of each root that the target has as they are.
    same_files: Vec<u64>,
    survey: Survey,
}

impl<'a> Surveyor<'a> {
    fn new(job: &'a Job<'a>, plans: &'a [RootPlan]) -> Self {
        let root = |_| RootSurvey { kind: RootKind::Absent, unchanged: false, needed: 0 };
        let survey = Survey {
            roots: plans.iter().map(root).collect(),
            same: Vec::new(),
            found: false,
            files: 0,
            bytes: 0,
            kept_in_place: 0,
            has_links: false,
            lone: HashSet::new(),
        };
        Self { job, plans, same_files: vec![0; plans.len()], survey }
    }

    fn take(&mut self, entry: &Entry, comparisons: &mut [Option<Comparison<'_>>]) -> Result<()> {
        let number = usize::from(entry.root);
        self.check_frames(entry)?;
        let plan = &self.plans[number];
        let taken = plan.selection.takes(entry);
        let same = match &mut comparisons[number] {
            Some(comparison) if taken => comparison.is_same(entry),
            _ => false,
        };
        self.survey.same.push(same);
        if !taken {
            return Ok(());
        }
        if let Some(target) = &plan.target {
            plan.standing.check(entry, &target.tree())?;
        }
        self.survey.files += 1;
        self.survey.found |= plan.selection.wants(&entry.path);
        let root = &mut self.survey.roots[number];
        if entry.path.is_empty() {
            root.kind = match entry.kind {
                Kind::Dir => RootKind::Dir,
                Kind::File(_) | Kind::Symlink { .. } => RootKind::Leaf,
                Kind::Fifo | Kind::Socket | Kind::CharDev | Kind::BlockDev => RootKind::Absent,
            };
        }
        let Kind::File(file) = &entry.kind else { return Ok(()) };
        self.survey.bytes += if file.hardlink.is_none() { file.size } else { 0 };
        if same {
            self.same_files[number] += 1;
        } else {
            root.needed += file.chunks.iter().map(|chunk| chunk.len).sum::<u64>();
        }
        if let Some(first) = &file.hardlink {
            self.survey.has_links = true;
            let elsewhere = first.0 != entry.root || !plan.selection.wants(&first.1);
            if elsewhere {
                self.survey.lone.insert((first.0, first.1.clone()));
            }
        }
        Ok(())
    }

    fn check_frames(&self, entry: &Entry) -> Result<()> {
        let record = self.job.record;
        let known = |seq: u64| seq == record.seq || record.bases.contains(&seq);
        match entry.chunks().iter().find(|chunk| !known(chunk.frame.seq)) {
            None => Ok(()),
            Some(chunk) => {
                let seq = chunk.frame.seq;
                Err(self.job.damaged(format!("it needs checkpoint {seq}, which is not a base")))
            }
        }
    }
}

impl Survey {
    /// What was asked for by path must be there, and must not cost what it does not replace.
    fn check_wanted(&self, job: &Job<'_>, plans: &[RootPlan]) -> Result<()> {
        let Some(only) = &job.options.only else { return Ok(()) };
        if !self.found {
            let (seq, only) = (job.record.seq, only.display());
            return Err(Error::Refused(format!("checkpoint {seq} has nothing at {only}")));
        }
        for target in plans.iter().filter_map(|plan| plan.target.as_ref()) {
            if !target.is_vacant()? {
                return Err(Error::Refused(format!(
                    "{} is not empty: a part of a checkpoint can only be restored to a new or empty directory",
                    target.path().display()
                )));
            }
        }
        Ok(())
    }
}

/// Begins the new trees, once it is clear that there is room for them.
pub(super) fn stage(
    job: &Job<'_>,
    plans: &[RootPlan],
    survey: &Survey,
) -> Result<Vec<Option<Stage>>> {
    let _user = job.user()?;
    let mut stages = Vec::with_capacity(plans.len());
    let mut needed: BTreeMap<u64, u64> = BTreeMap::new();
    for (plan, root) in plans.iter().zip(&survey.roots) {
        let stage = match &plan.target {
            Some(target) if !root.unchanged => {
                Some(target.stage(root.kind, &plan.standing).and_then(|stage| {
                    match check_room(&stage, root.needed, &mut needed) {
                        Ok(()) => Ok(stage),
                        Err(error) => Err(abandon([Some(stage)], error)),
                    }
                }))
            }
            _ => None,
        };
        match stage.transpose() {
            Ok(stage) => stages.push(stage),
            Err(error) => return Err(abandon(stages, error)),
        }
    }
    job.control.expect(survey.roots.iter().map(|root| root.needed).sum());
    Ok(stages)
}

/// Removes what was begun; the error stays the one that counts.
fn abandon(stages: impl IntoIterator<Item = Option<Stage>>, error: Error) -> Error {
    for removed in stages.into_iter().flatten().map(Stage::remove) {
        if let Err(error) = removed {
            tracing::warn!(%error, "cannot remove an unfinished restore");
        }
    }
    error
}

fn check_room(stage: &Stage, needed: u64, on: &mut BTreeMap<u64, u64>) -> Result<()> {
    let path = || stage.new_tree().base().show(b"");
    let base = stage.new_tree().base();
    let device = rustix::fs::fstat(base).context("look at", path())?.st_dev;
    let free = rustix::fs::fstatvfs(base).context("look at", path())?;
    let free = free.f_bavail.saturating_mul(free.f_frsize);
    let needed_here = on.entry(device).or_default();
    *needed_here = needed_here.saturating_add(needed);
    if *needed_here > free {
        return Err(Error::NoSpace { path: path(), needed: *needed_here, free });
    }
    Ok(())
}

/// The targets as trees to finish in, once the new ones are in their places.
pub(super) fn target_trees(plans: &[RootPlan]) -> Vec<Option<Trees>> {
    let trees = |plan: &RootPlan| {
        let tree = plan.target.as_ref()?.tree();
        Some(Trees { new: tree.clone(), old: tree })
    };
    plans.iter().map(trees).collect()
}
