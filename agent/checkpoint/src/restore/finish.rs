//! What can only be done once all files are there: other names of files, and directories.

use std::collections::HashMap;
use std::io;

use rustix::fs::{Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

use super::beneath::{join, split};
use super::build::Build;
use super::compare::is_regular;
use super::findings::About;
use super::plan::{RootPlan, Survey};
use super::select::closed_by;
use super::stage::Place;
use super::tree::Tree;
use super::{Failed, selected};
use crate::error::{Error, Result};
use crate::format::{Chunk, Entry, Kind};

/// The last thing done to a directory depends on how the new tree is swapped in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Moment {
    /// All directories but those that have to be moved one by one.
    BeforeSwap,
    /// Those.
    AfterSwap,
}

/// An entry whose content other names need although it is not restored with them.
enum Lone {
    /// Where its content is.
    Content(Vec<Chunk>),
    /// The first of its other names, which has been made.
    Made(u16, Vec<u8>),
}

/// Makes the entries that are other names of earlier ones.
pub(super) fn link(
    build: &Build<'_>,
    plans: &[RootPlan],
    survey: &Survey,
) -> std::result::Result<(), Failed> {
    let mut lone: HashMap<(u16, Vec<u8>), Lone> = HashMap::new();
    for entry in build.job.manifest()? {
        let entry = entry?;
        build.job.control.check()?;
        let Kind::File(file) = &entry.kind else { continue };
        let Some(first) = &file.hardlink else {
            let key = (entry.root, entry.path.clone());
            if survey.lone.contains(&key) {
                lone.insert(key, Lone::Content(file.chunks.clone()));
            }
            continue;
        };
        let number = usize::from(entry.root);
        if !plans[number].selection.takes(&entry) || build.trees[number].is_none() {
            continue;
        }
        match lone.get_mut(&(first.0, first.1.clone())) {
            None => link_within(build, &entry, &first.1)?,
            Some(first_name) => link_alone(build, plans, &entry, (first.0, &first.1), first_name)?,
        }
    }
    Ok(())
}

/// The usual case: the file is in the same new tree.
fn link_within(build: &Build<'_>, entry: &Entry, first: &[u8]) -> Result<()> {
    let _user = build.job.user()?;
    let Some(trees) = &build.trees[usize::from(entry.root)] else { return Ok(()) };
    let attempt = || -> io::Result<bool> {
        let first = trees.new.spot(first)?;
        if !is_regular(&first)? {
            return Ok(false);
        }
        first.link_to(&trees.new.spot(&entry.path)?).map(|()| true)
    };
    let no_file = || {
        let path = crate::format::text::escape(&entry.path);
        build.job.damaged(format!("{path} is another name of what is no earlier file"))
    };
    match attempt() {
        Ok(true) => Ok(()),
        Ok(false) => Err(no_file()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Err(no_file()),
        Err(error) => Err(build.io("link", entry, error)),
    }
}

/// The file is not restored, or in another root: linked where possible, else written once more.
fn link_alone(
    build: &Build<'_>,
    plans: &[RootPlan],
    entry: &Entry,
    first: (u16, &[u8]),
    lone: &mut Lone,
) -> std::result::Result<(), Failed> {
    let (root, path) = match lone {
        Lone::Content(_) => first,
        Lone::Made(root, path) => (*root, path.as_slice()),
    };
    let linked = {
        let _user = build.job.user()?;
        link_across(build, plans, entry, root, path).unwrap_or(false)
    };
    if !linked {
        match lone {
            Lone::Content(chunks) => build.write_alone(entry, chunks)?,
            Lone::Made(..) => {
                let error = io::Error::from(io::ErrorKind::NotFound);
                return Err(build.io("link", entry, error).into());
            }
        }
    }
    *lone = Lone::Made(entry.root, entry.path.clone());
    Ok(())
}

fn link_across(
    build: &Build<'_>,
    plans: &[RootPlan],
    entry: &Entry,
    root: u16,
    path: &[u8],
) -> io::Result<bool> {
    let (Some(from), Some(into)) =
        (view(build, plans, root), build.trees[usize::from(entry.root)].as_ref())
    else {
        return Ok(false);
    };
    let first = from.spot(path)?;
    if !is_regular(&first)? {
        return Ok(false);
    }
    first.link_to(&into.new.spot(&entry.path)?).map(|()| true)
}

/// The root's tree as it will be: the new one, or the target where that stays.
fn view(build: &Build<'_>, plans: &[RootPlan], root: u16) -> Option<Tree> {
    let number = usize::from(root);
    match build.trees.get(number)? {
        Some(trees) => Some(trees.new.clone()),
        None => plans.get(number)?.target.as_ref().map(super::stage::Target::tree),
    }
}

/// Gives directories their attributes, the innermost first, and looks where links lead.
pub(super) fn finish(
    build: &Build<'_>,
    plans: &[RootPlan],
    places: &[Option<Place>],
    moment: Moment,
) -> Result<()> {
    let entries = selected(build.job.manifest()?, plans, &[]);
    let _user = build.job.user()?;
    let mut open: Vec<Entry> = Vec::new();
    let close = |dirs: Vec<Entry>| -> Result<()> {
        for dir in dirs {
            let number = usize::from(dir.root);
            let (Some(place), Some(trees)) = (places[number], &build.trees[number]) else {
                continue;
            };
            if moment_of(place, &plans[number], &dir.path) == moment {
                build.finish_dir(&trees.new, &dir)?;
            }
        }
        Ok(())
    };
    for next in entries {
        let (entry, _) = next?;
        close(closed_by(&mut open, Some(&entry)))?;
        match &entry.kind {
            Kind::Dir => open.push(entry),
            Kind::Symlink { target } if moment == Moment::BeforeSwap => {
                check_link(build, plans, &entry, target);
            }
            _ => {}
        }
    }
    close(closed_by(&mut open, None))
}

/// A directory that is renamed to another place must be its owner's to write until then.
fn moment_of(place: Place, plan: &RootPlan, path: &[u8]) -> Moment {
    let (above, _) = split(path);
    let moves = place == Place::Inside
        && !plan.standing.keeps(path)
        && (above.is_empty() || plan.standing.leads(above));
    if moves { Moment::AfterSwap } else { Moment::BeforeSwap }
}

/// C10: a link that leads nowhere is restored as it was, and reported.
fn check_link(build: &Build<'_>, plans: &[RootPlan], entry: &Entry, target: &[u8]) {
    let (root, path) = match target.strip_prefix(b"/") {
        None => (entry.root, join(split(&entry.path).0, target)),
        Some(_) => match root_of(plans, target) {
            Some(found) => found,
            None => return, // It leads out of what the checkpoint knows.
        },
    };
    let Some(tree) = view(build, plans, root).filter(|_| !entry.path.is_empty()) else { return };
    if leads_nowhere(&tree, &path) {
        build.job.findings.add(About::DanglingLink, &tree.show(&entry.path));
    }
}

fn root_of(plans: &[RootPlan], target: &[u8]) -> Option<(u16, Vec<u8>)> {
    let below = |plan: &RootPlan| {
        let rest = target.strip_prefix(plan.path.as_slice())?;
        if rest.is_empty() { Some(Vec::new()) } else { rest.strip_prefix(b"/").map(<[u8]>::to_vec) }
    };
    (0..).zip(plans).find_map(|(number, plan)| Some((number, below(plan)?)))
}

/// Whether a path leads to nothing, where that can be told without leaving the tree.
fn leads_nowhere(tree: &Tree, path: &[u8]) -> bool {
    let Ok(root) = tree.handle(b"") else { return false };
    let path = if path.is_empty() { b".".as_slice() } else { path };
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    let found = rustix::fs::openat2(root, path, flags, Mode::empty(), ResolveFlags::BENEATH);
    matches!(found, Err(Errno::NOENT | Errno::LOOP | Errno::NOTDIR))
}

impl From<Failed> for Error {
    fn from(failed: Failed) -> Self {
        *failed.error
    }
}
